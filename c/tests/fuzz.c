/* Random sizes, wrong and right, in buffers that are exactly as long as was said: for the sanitisers. Always the same. */
#include <stdio.h>
#include <stdlib.h>

#include "fedmpdd.h"

static uint64_t state = 0x9E3779B97F4A7C15U;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

/* A number that is near a limit, small, or anything. */
static uint32_t size(uint32_t near) {
    const uint32_t kind = draw(8U);
    uint32_t number = near;
    if (kind == 0U) { number = near - 1U; }
    else if (kind == 1U) { number = near + 1U; }
    else if (kind == 2U) { number = draw(3000U); }
    else if (kind == 3U) { number = (uint32_t)(state >> 20); }
    return number;
}

static void *room_of(size_t bytes) {
    void *room = malloc((bytes > 0U) ? bytes : 1U);
    if (room == NULL) { abort(); }
    return room;
}

static void fill(float *x, uint32_t floats) {
    const uint32_t kind = draw(4U);
    for (uint32_t i = 0U; i < floats; ++i) {
        uint32_t bits = (draw(65536U) << 16) | draw(65536U);
        if (kind > 0U) { bits = (bits & 0x80FFFFFFU) | (kind << 28); } /* finite, of one size */
        (void)memcpy(&x[i], &bits, sizeof bits);
    }
}

/* Encode once; returns the result. */
static fedmpdd_result once(void) {
    static const uint32_t groups[8] = {4U, 8U, 16U, 64U, 256U, 65536U, 3U, 0U};
    const uint32_t d = (draw(40U) == 0U) ? size(0U) : (1U + draw(3000U));
    fedmpdd_codec codec = {(fedmpdd_scalars)draw((draw(20U) == 0U) ? 5U : 3U),
                           (fedmpdd_family)draw((draw(20U) == 0U) ? 4U : 2U),
                           (draw(4U) == 0U) ? size(d) : (1U + draw(20U)), 0U};
    codec.group = ((codec.scalars == FEDMPDD_PEAKS) || (draw(20U) == 0U)) ? groups[draw(8U)] : 0U;
    const fedmpdd_key key = {state, (draw(2U) == 0U) ? 0U : (uint32_t)(state >> draw(32U))};
    const fedmpdd_frame kind = (fedmpdd_frame)draw((draw(20U) == 0U) ? 9U : 4U);
    const uint64_t bytes = fedmpdd_frame_bytes(&codec, kind);
    const uint32_t needed = fedmpdd_buffer_floats(&codec, d);
    if (((d > 4096U) || (needed > 8192U)) && (fedmpdd_check(&codec, d, &key) == FEDMPDD_OK)) { return FEDMPDD_OK; }
    if ((codec.family == FEDMPDD_RADEMACHER) && (fedmpdd_count(&codec) > 4096U) &&
        (fedmpdd_check(&codec, d, &key) == FEDMPDD_OK)) { return FEDMPDD_OK; } /* minutes under a sanitiser */
    uint32_t floats = (needed > 8192U) ? 16U : needed;
    floats -= ((draw(10U) == 0U) && (floats > 0U)) ? 1U : 0U;
    size_t room = (bytes > 20000U) ? 100U : (size_t)bytes, length = 1U;
    room -= ((draw(10U) == 0U) && (room > 0U)) ? 1U : 0U;
    float *buffer = room_of(sizeof(float) * (size_t)floats);
    uint8_t *out = room_of(room);
    fill(buffer, floats);
    const fedmpdd_result result = fedmpdd_encode(&codec, d, &key, buffer, floats, kind, out, room, &length);
    if (length != ((result == FEDMPDD_OK) ? (size_t)bytes : 0U)) {
        (void)printf("FAILED: result %d, length %lu\n", (int)result, (unsigned long)length);
        exit(1);
    }
    free(buffer);
    free(out);
    return result;
}

/* A stream whose pieces have sizes of every kind. */
static fedmpdd_result stream_once(void) {
    const uint32_t d = 1U + draw(6000U), m = 1U + draw(8U), count = m - ((draw(20U) == 0U) ? 1U : 0U);
    const fedmpdd_codec codec = {(fedmpdd_scalars)draw(2U), FEDMPDD_RADEMACHER, m, 0U};
    const fedmpdd_key key = {state, draw(1000U)};
    const int is_right = (draw(2U) == 0U);
    fedmpdd_lane *lanes = room_of(sizeof(fedmpdd_lane) * count);
    uint8_t out[100];
    size_t length = 1U;
    fedmpdd_stream stream;
    (void)fedmpdd_begin(&stream, &codec, d, &key, lanes, count);
    for (uint32_t done = 0U; done < d;) {
        uint32_t piece = is_right ? (FEDMPDD_PIECE * (1U + draw(9U))) : draw(3000U);
        if (is_right && (piece > (d - done))) { piece = d - done; }
        float *part = room_of(sizeof(float) * (size_t)piece);
        for (uint32_t i = 0U; i < piece; ++i) { part[i] = (float)draw(100U) - 50.0F; }
        (void)fedmpdd_add(&stream, part, piece);
        free(part);
        done += piece + (is_right ? 0U : 1U);
    }
    const fedmpdd_result result = fedmpdd_end(&stream, (fedmpdd_frame)draw(4U), out, sizeof out, &length);
    free(lanes);
    return result;
}

int main(void) {
    uint32_t results[16] = {0U};
    for (uint32_t i = 0U; i < 6000U; ++i) { results[(uint32_t)once()] += 1U; }
    for (uint32_t i = 0U; i < 1500U; ++i) { results[(uint32_t)stream_once()] += 1U; }
    (void)printf("fuzz: results");
    for (uint32_t i = 0U; i <= (uint32_t)FEDMPDD_ERROR_TOO_LARGE; ++i) { (void)printf(" %u", results[i]); }
    (void)printf("\n");
    return 0;
}
