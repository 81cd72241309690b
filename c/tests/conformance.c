/* Every vector of docs/vectors.json that the header makes, and its errors: the same program on every machine. */
#include "conformance.h"

#include "fedmpdd.h"

typedef struct { uint32_t domain; uint32_t index; uint64_t first; const char *signs; } sign_row;
typedef struct { uint32_t order; uint32_t row; const char *signs; } outer_row;
typedef struct { uint32_t d; uint32_t outer; uint32_t log2; uint32_t rows[8]; } order_row;
typedef struct { fedmpdd_family family; uint32_t d; uint32_t scalars[6]; } scalar_row;
typedef struct {
    fedmpdd_codec codec; uint32_t d; uint32_t scale; fedmpdd_key key;
    fedmpdd_frame kind; size_t length; const char *bytes;
} frame_row;
typedef struct {
    frame_row frame; fedmpdd_way way; uint32_t round; uint64_t client; uint32_t grows_to; uint32_t grows_after;
} bare_row;

#include "vectors.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))
#define MOST_FLOATS 2048U
#define MOST_LANES 64U
#define MOST_BYTES 512U

static float buffer[MOST_FLOATS];
static fedmpdd_lane lanes[MOST_LANES];
static uint8_t out[MOST_BYTES];
static uint32_t checks, failures;

/* Count a check; the first of a kind that fails is named with its number. */
static void expect(int holds, const char *what, size_t number) {
    char text[16];
    size_t digit = sizeof text - 1U;
    checks += 1U;
    if (holds) { return; }
    failures += 1U;
    text[digit] = '\0';
    do {
        digit -= 1U;
        text[digit] = (char)('0' + (char)(number % 10U));
        number /= 10U;
    } while (number > 0U);
    say("FAILED: ");
    say(what);
    say(" ");
    say(&text[digit]);
    say("\n");
}

/* g[c] = ((37 c + 11) mod 101 - 50) / 64, times a float32; NaN behind it shows who reads too far. */
static void fill(uint32_t d, uint32_t scale_bits) {
    const uint32_t nan = 0x7FC00000U;
    float scale;
    (void)FEDMPDD_MEMCPY(&scale, &scale_bits, sizeof scale);
    for (uint32_t c = 0U; c < d; ++c) {
        buffer[c] = ((float)(int32_t)(((37U * c) + 11U) % 101U) - 50.0F) / 64.0F * scale;
    }
    for (uint32_t c = d; c < MOST_FLOATS; ++c) { (void)FEDMPDD_MEMCPY(&buffer[c], &nan, sizeof nan); }
}

static int same(const uint8_t *a, const char *b, size_t length) {
    size_t i = 0U;
    while ((i < length) && (a[i] == (uint8_t)b[i])) { i += 1U; }
    return i == length;
}

static void check_words(void) {
    static const uint32_t answers[3][4] = {{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U},
                                           {0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU},
                                           {0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}};
    static const uint64_t keys[3] = {0U, UINT64_MAX, 0x299F31D0A4093822U};
    static const uint64_t numbers[3] = {0U, UINT64_MAX, 0x03707344243F6A88U};
    static const uint32_t domains[3] = {0U, UINT32_MAX, 0x13198A2EU}, indices[3] = {0U, UINT32_MAX, 0x85A308D3U};
    uint32_t words[8];
    for (size_t i = 0U; i < 3U; ++i) {
        fedmpdd_block(keys[i], domains[i], indices[i], numbers[i], words);
        for (size_t w = 0U; w < 4U; ++w) { expect(words[w] == answers[i][w], "Philox", i); }
    }
    fedmpdd_block(vector_seed, 3U, rounding_slot, 0U, words);
    fedmpdd_block(vector_seed, 3U, rounding_slot, 1U, &words[4]);
    for (size_t i = 0U; i < COUNT(rounding_words); ++i) { expect(words[i] == rounding_words[i], "rounding word", i); }
    expect(fedmpdd_derive_seed(vector_seed, derived_round, derived_client) == derived_seed, "derived seed", 0U);
    for (size_t i = 0U; i < COUNT(sign_rows); ++i) {
        for (uint32_t c = 0U; sign_rows[i].signs[c] != '\0'; ++c) {
            const uint64_t at = sign_rows[i].first + c, tile = at / 2048U;
            const uint32_t t = (uint32_t)(at % 64U), bit = (uint32_t)((at % 2048U) / 64U);
            fedmpdd_block(vector_seed, sign_rows[i].domain, sign_rows[i].index, (tile * 16U) + (t % 16U), words);
            expect((((words[t / 16U] >> bit) & 1U) != 0U) == (sign_rows[i].signs[c] == '-'), "sign", i);
        }
    }
}

static void check_matrices(void) {
    uint32_t keys[24];
    for (size_t i = 0U; i < COUNT(outer_rows); ++i) {
        for (uint32_t c = 0U; c < outer_rows[i].order; ++c) {
            const int is_negative = fedmpdd_outer_is_negative(outer_rows[i].order, outer_rows[i].row, c);
            expect(is_negative == (outer_rows[i].signs[c] == '-'), "outer matrix", i);
        }
    }
    for (uint32_t i = 0U; i < 6U; ++i) { fedmpdd_block(vector_seed, 2U, 0U, i, &keys[4U * i]); }
    for (size_t i = 0U; i < COUNT(order_rows); ++i) {
        uint32_t log2;
        const uint32_t outer = fedmpdd_order(order_rows[i].d, &log2), size = outer << log2;
        expect((outer == order_rows[i].outer) && (log2 == order_rows[i].log2), "order", i);
        for (uint32_t j = 0U; j < 8U; ++j) {
            expect(fedmpdd_row(keys, size, j % size) == order_rows[i].rows[j], "row", i);
        }
    }
}

static void check_scalars(void) {
    size_t length;
    const fedmpdd_key key = {vector_seed, 0U};
    for (size_t i = 0U; i < COUNT(scalar_rows); ++i) {
        const fedmpdd_codec codec = {FEDMPDD_FLOAT32, scalar_rows[i].family, 6U, 0U};
        fill(scalar_rows[i].d, 0x3F800000U);
        (void)fedmpdd_encode(&codec, scalar_rows[i].d, &key, buffer, MOST_FLOATS, FEDMPDD_BARE, out, MOST_BYTES,
                             &length);
        for (uint32_t j = 0U; j < 24U; ++j) {
            expect(out[j] == (uint8_t)(scalar_rows[i].scalars[j / 4U] >> (8U * (j % 4U))), "scalar", i);
        }
    }
    const fedmpdd_codec bits = {FEDMPDD_ONE_BIT, FEDMPDD_HADAMARD, 6U, 0U};
    fill(300U, 0x3F800000U);
    (void)fedmpdd_encode(&bits, 300U, &key, buffer, MOST_FLOATS, FEDMPDD_BARE, out, sizeof out, &length);
    for (uint32_t j = 0U; j < 4U; ++j) { expect(out[j] == (uint8_t)(one_bit_scale >> (8U * j)), "one-bit scale", j); }
}

static void check_stream(const frame_row *row, uint32_t piece, size_t number) {
    fedmpdd_stream stream;
    size_t length = 0U;
    expect(fedmpdd_begin(&stream, &row->codec, row->d, &row->key, lanes, MOST_LANES) == FEDMPDD_OK, "begin", number);
    for (uint32_t c = 0U; c < row->d; c += piece) {
        const uint32_t left = row->d - c;
        expect(fedmpdd_add(&stream, &buffer[c], (left < piece) ? left : piece) == FEDMPDD_OK, "add", number);
    }
    expect(fedmpdd_end(&stream, row->kind, out, sizeof out, &length) == FEDMPDD_OK, "end", number);
    expect((length == row->length) && same(out, row->bytes, length), "stream", number);
}

static void check_frame(const frame_row *row, size_t number) {
    const uint32_t floats = fedmpdd_buffer_floats(&row->codec, row->d);
    size_t length = 0U;
    fill(row->d, row->scale);
    expect(fedmpdd_frame_bytes(&row->codec, row->kind) == row->length, "length of frame", number);
    expect(fedmpdd_encode(&row->codec, row->d, &row->key, buffer, floats, row->kind, out, row->length, &length) ==
               FEDMPDD_OK, "result of frame", number);
    expect((length == row->length) && same(out, row->bytes, length), "frame", number);
    if ((row->codec.family == FEDMPDD_RADEMACHER) && (row->codec.scalars != FEDMPDD_PEAKS)) {
        check_stream(row, 256U, number); /* rademacher leaves the gradient as it was */
        check_stream(row, 768U, number);
    }
}

static void check_frames(void) {
    for (size_t i = 0U; i < COUNT(frame_rows); ++i) { check_frame(&frame_rows[i], i); }
    for (size_t i = 0U; i < COUNT(bare_rows); ++i) {
        const bare_row *row = &bare_rows[i];
        frame_row grown = row->frame;
        fedmpdd_key key = {0U, 0U};
        expect(fedmpdd_assign_key(vector_session, row->way, row->round, row->client, &key) == FEDMPDD_OK, "key", i);
        expect((key.seed == row->frame.key.seed) && (key.slot == row->frame.key.slot), "key", i);
        grown.codec.m = fedmpdd_peaks_at(grown.codec.m, row->grows_to, row->grows_after, row->round);
        check_frame(&grown, i);
    }
}

/* The result of one codec with everything else in order, d = 300. */
static fedmpdd_result result_of(fedmpdd_codec codec, uint32_t d, uint32_t slot, uint32_t floats, fedmpdd_frame kind,
                                size_t room) {
    const fedmpdd_key key = {1U, slot};
    size_t length = 77U;
    fill(300U, 0x3F800000U);
    const fedmpdd_result result = fedmpdd_encode(&codec, d, &key, buffer, floats, kind, out, room, &length);
    expect((length == 0U) == (result != FEDMPDD_OK), "length after an error", (size_t)result);
    return result;
}

static void check_errors(void) {
    const fedmpdd_codec four = {FEDMPDD_FLOAT32, FEDMPDD_HADAMARD, 4U, 0U};
    const fedmpdd_codec random = {FEDMPDD_FLOAT32, FEDMPDD_RADEMACHER, 4U, 0U};
    const fedmpdd_codec peaks = {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 4U, 16U};
    const fedmpdd_codec wrong[] = {
        {FEDMPDD_FLOAT32, FEDMPDD_HADAMARD, 0U, 0U},  {FEDMPDD_FLOAT32, FEDMPDD_HADAMARD, 301U, 0U},
        {FEDMPDD_FLOAT32, FEDMPDD_HADAMARD, 4U, 4U},  {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 4U, 0U},
        {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 4U, 12U},   {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 4U, 2U},
        {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 5U, 64U},   {FEDMPDD_PEAKS, FEDMPDD_RADEMACHER, 17U, 65536U},
        {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 4U, 131072U}, {(fedmpdd_scalars)3, FEDMPDD_HADAMARD, 4U, 0U},
        {FEDMPDD_ONE_BIT, (fedmpdd_family)2, 4U, 0U}, {FEDMPDD_FLOAT32, FEDMPDD_RADEMACHER, UINT32_MAX, 0U}};
    const uint32_t infinity = 0x7F800000U, nan = 0xFFC00000U, huge = 0x7F7FFFFFU;
    const fedmpdd_key key = {1U, 0U};
    fedmpdd_stream stream;
    size_t length;
    for (size_t i = 0U; i < COUNT(wrong); ++i) {
        expect(result_of(wrong[i], 300U, 0U, 304U, FEDMPDD_BARE, MOST_BYTES) == FEDMPDD_ERROR_CODEC, "codec", i);
    }
    expect(result_of(four, 300U, 0U, 320U, FEDMPDD_BARE, 16U) == FEDMPDD_OK, "no error", 0U);
    expect(result_of(four, 0U, 0U, 320U, FEDMPDD_BARE, 16U) == FEDMPDD_ERROR_DIMENSION, "d of 0", 0U);
    expect(result_of(four, UINT32_MAX, 0U, 320U, FEDMPDD_BARE, 16U) == FEDMPDD_ERROR_DIMENSION, "d too large", 0U);
    expect(result_of(four, 300U, 0U, 319U, FEDMPDD_BARE, 16U) == FEDMPDD_ERROR_BUFFER, "short buffer", 0U);
    expect(result_of(random, 300U, 0U, 299U, FEDMPDD_BARE, 16U) == FEDMPDD_ERROR_BUFFER, "short buffer", 1U);
    expect(result_of(four, 300U, 0U, 320U, FEDMPDD_BARE, 15U) == FEDMPDD_ERROR_ROOM, "room", 0U);
    expect(result_of(peaks, 300U, 0U, 320U, FEDMPDD_SELF_CONTAINED, 39U) == FEDMPDD_ERROR_ROOM, "room", 1U);
    expect(result_of(four, 300U, 1U, 320U, FEDMPDD_COMPACT_SEED, MOST_BYTES) == FEDMPDD_ERROR_KEY, "slot", 0U);
    expect(result_of(random, 300U, 0x3FFFFFFFU, 300U, FEDMPDD_BARE, 16U) == FEDMPDD_OK, "the last slot", 0U);
    expect(result_of(random, 300U, 0x40000000U, 300U, FEDMPDD_BARE, 16U) == FEDMPDD_ERROR_KEY, "slot", 1U);
    expect(result_of(four, 300U, UINT32_MAX, 320U, FEDMPDD_BARE, 16U) == FEDMPDD_OK, "any slot", 0U);
    expect(result_of(four, 300U, 0U, 320U, (fedmpdd_frame)4, MOST_BYTES) == FEDMPDD_ERROR_CODEC, "frame", 0U);
    for (uint32_t i = 0U; i < 5U; ++i) {
        const fedmpdd_codec *codec = (i == 1U) ? NULL : &four;
        const fedmpdd_key *the_key = (i == 2U) ? NULL : &key;
        expect(fedmpdd_encode(codec, 300U, the_key, (i == 0U) ? NULL : buffer, 320U, FEDMPDD_BARE,
                              (i == 3U) ? NULL : out, 16U, (i == 4U) ? NULL : &length) == FEDMPDD_ERROR_NULL, "null", i);
    }
    for (uint32_t i = 0U; i < 3U; ++i) {
        fill(300U, 0x3F800000U);
        (void)FEDMPDD_MEMCPY(&buffer[299], (i == 0U) ? &infinity : ((i == 1U) ? &nan : &huge), sizeof nan);
        expect(fedmpdd_encode(&four, 300U, &key, buffer, 320U, FEDMPDD_BARE, out, 16U, &length) ==
                   ((i < 2U) ? FEDMPDD_ERROR_NOT_FINITE : FEDMPDD_ERROR_TOO_LARGE), "coordinate", i);
    }
    fill(2000U, 0x3F800000U);
    expect(fedmpdd_begin(&stream, &four, 2000U, &key, lanes, 4U) == FEDMPDD_ERROR_CODEC, "stream of hadamard", 0U);
    expect(fedmpdd_add(&stream, buffer, 256U) == FEDMPDD_ERROR_CODEC, "an error stays", 0U);
    expect(fedmpdd_begin(&stream, &random, 2000U, &key, lanes, 3U) == FEDMPDD_ERROR_BUFFER, "lanes", 0U);
    expect(fedmpdd_begin(&stream, &random, 2000U, &key, NULL, 4U) == FEDMPDD_ERROR_NULL, "lanes", 1U);
    expect(fedmpdd_begin(&stream, &random, 2000U, &key, lanes, 4U) == FEDMPDD_OK, "stream", 0U);
    expect(fedmpdd_add(&stream, buffer, 256U) == FEDMPDD_OK, "stream", 1U);
    expect(fedmpdd_end(&stream, FEDMPDD_BARE, out, sizeof out, &length) == FEDMPDD_ERROR_PIECE, "an end too early", 0U);
    expect(fedmpdd_add(&stream, buffer, 100U) == FEDMPDD_ERROR_PIECE, "piece", 0U);
    (void)fedmpdd_begin(&stream, &random, 2000U, &key, lanes, 4U);
    expect(fedmpdd_add(&stream, buffer, 2048U) == FEDMPDD_ERROR_PIECE, "piece", 1U);
    (void)fedmpdd_begin(&stream, &random, 2000U, &key, lanes, 4U);
    expect(fedmpdd_add(&stream, NULL, 256U) == FEDMPDD_ERROR_NULL, "piece", 2U);
    expect(fedmpdd_assign_key(1U, FEDMPDD_DERIVED, 0U, FEDMPDD_NO_CLIENT - 1U, NULL) == FEDMPDD_ERROR_NULL, "key", 0U);
}

int conformance(void) {
    checks = 0U;
    failures = 0U;
    check_words();
    check_matrices();
    check_scalars();
    check_frames();
    check_errors();
    say((failures == 0U) ? "conformance: all checks hold\n" : "conformance: checks FAILED\n");
    return (failures == 0U) ? (int)checks : -(int)failures;
}
