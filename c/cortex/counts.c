/* How many instructions an update takes, by the board's clock under `qemu -icount shift=0`: d = 7,850. */
#include "board.h"
#include "fedmpdd.h"

#define D 7850U

static float buffer[8192];
static fedmpdd_lane lanes[50];
static uint8_t out[512];

static void fill(void) {
    for (uint32_t c = 0U; c < D; ++c) { buffer[c] = ((float)(int32_t)(((37U * c) + 11U) % 101U) - 50.0F) / 64.0F; }
}

static void report(const char *name, uint32_t begin, fedmpdd_result result) {
    const uint32_t end = ticks();
    say(name);
    say(" ");
    say_number((end - begin) * 40U);
    say((result == FEDMPDD_OK) ? "\n" : " FAILED\n");
}

static void encode(const char *name, fedmpdd_codec codec) {
    const fedmpdd_key key = {1U, 0U};
    size_t length;
    fill();
    const uint32_t begin = ticks();
    report(name, begin, fedmpdd_encode(&codec, D, &key, buffer, 8192U, FEDMPDD_BARE, out, sizeof out, &length));
}

static void stream(const char *name, fedmpdd_codec codec, uint32_t piece) {
    const fedmpdd_key key = {1U, 0U};
    fedmpdd_stream stream;
    size_t length;
    fill();
    const uint32_t begin = ticks();
    (void)fedmpdd_begin(&stream, &codec, D, &key, lanes, 50U);
    for (uint32_t c = 0U; c < D; c += piece) {
        (void)fedmpdd_add(&stream, &buffer[c], ((D - c) < piece) ? (D - c) : piece);
    }
    report(name, begin, fedmpdd_end(&stream, FEDMPDD_BARE, out, sizeof out, &length));
}

int main(void) {
    const fedmpdd_codec peaks = {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 7U, 256U};
    const fedmpdd_codec signs = {FEDMPDD_ONE_BIT, FEDMPDD_HADAMARD, 50U, 0U};
    const fedmpdd_codec floats = {FEDMPDD_FLOAT32, FEDMPDD_HADAMARD, 4U, 0U};
    const fedmpdd_codec random_floats = {FEDMPDD_FLOAT32, FEDMPDD_RADEMACHER, 4U, 0U};
    const fedmpdd_codec random_signs = {FEDMPDD_ONE_BIT, FEDMPDD_RADEMACHER, 50U, 0U};
    encode("hadamard-peaks-7-256", peaks);
    encode("hadamard-one-bit-50", signs);
    encode("hadamard-float32-4", floats);
    encode("rademacher-float32-4", random_floats);
    stream("rademacher-float32-4-pieces-of-256", random_floats, 256U);
    stream("rademacher-float32-4-pieces-of-2048", random_floats, 2048U);
    encode("rademacher-one-bit-50", random_signs);
    return 0;
}
