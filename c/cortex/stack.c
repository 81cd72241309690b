/* How deep the stack gets below a caller of the header, with everything that the compiler brings. */
#include "board.h"
#include "fedmpdd.h"

#define D 7000U /* of order 28 * 2^8 */
#define WORDS 1024U
#define PAINT 0x5AA5C33CU

static float buffer[7168];
static fedmpdd_lane lanes[4];
static uint8_t out[64];
static fedmpdd_stream stream;
static size_t length;
static const fedmpdd_key key = {1U, 0U};

static volatile uint32_t *top(void) {
    uint32_t *pointer;
    __asm__ volatile("mov %0, sp" : "=r"(pointer));
    return pointer;
}

static void report(const char *name, volatile const uint32_t *caller) {
    uint32_t unused = 0U;
    while ((unused < WORDS) && (caller[(int32_t)unused - (int32_t)WORDS] == PAINT)) { unused += 1U; }
    say(name);
    say(" ");
    say_number((WORDS - unused) * 4U);
    say("\n");
}

static __attribute__((noinline)) void encode(const fedmpdd_codec *codec) {
    (void)fedmpdd_encode(codec, D, &key, buffer, 7168U, FEDMPDD_COMPACT, out, sizeof out, &length);
}

static __attribute__((noinline)) void all_of_stream(const fedmpdd_codec *codec) {
    (void)fedmpdd_begin(&stream, codec, D, &key, lanes, 4U);
    (void)fedmpdd_add(&stream, buffer, D);
    (void)fedmpdd_end(&stream, FEDMPDD_COMPACT, out, sizeof out, &length);
}

int main(void) {
    static const fedmpdd_codec codecs[7] = {
        {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 7U, 256U},   {FEDMPDD_ONE_BIT, FEDMPDD_HADAMARD, 50U, 0U},
        {FEDMPDD_FLOAT32, FEDMPDD_HADAMARD, 4U, 0U},   {FEDMPDD_PEAKS, FEDMPDD_RADEMACHER, 2U, 4U},
        {FEDMPDD_ONE_BIT, FEDMPDD_RADEMACHER, 4U, 0U}, {FEDMPDD_FLOAT32, FEDMPDD_RADEMACHER, 4U, 0U},
        {FEDMPDD_ONE_BIT, FEDMPDD_RADEMACHER, 4U, 0U}};
    static const char *const names[7] = {"hadamard-peaks", "hadamard-one-bit", "hadamard-float32",
        "rademacher-peaks", "rademacher-one-bit", "rademacher-float32", "stream-one-bit"};
    for (uint32_t i = 0U; i < 7U; ++i) {
        volatile uint32_t *const caller = top();
        for (uint32_t c = 0U; c < D; ++c) { buffer[c] = (float)(int32_t)(c % 101U) - 50.0F; }
        for (uint32_t word = 1U; word <= WORDS; ++word) { *(caller - word) = PAINT; }
        if (i < 6U) { encode(&codecs[i]); }
        else { all_of_stream(&codecs[i]); }
        report((length > 0U) ? names[i] : "FAILED", caller);
    }
    say("a stream, without its lanes ");
    say_number((uint32_t)sizeof(fedmpdd_stream));
    say("\none lane of a stream ");
    say_number((uint32_t)sizeof(fedmpdd_lane));
    say("\n");
    return 0;
}
