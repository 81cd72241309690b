/* What a compiler calls by itself, where there is no C library. */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *restrict to, const void *restrict from, size_t length);
void *memset(void *to, int value, size_t length);

__attribute__((no_builtin)) void *memcpy(void *restrict to, const void *restrict from, size_t length) {
    for (size_t i = 0U; i < length; ++i) { ((uint8_t *)to)[i] = ((const uint8_t *)from)[i]; }
    return to;
}

__attribute__((no_builtin)) void *memset(void *to, int value, size_t length) {
    for (size_t i = 0U; i < length; ++i) { ((uint8_t *)to)[i] = (uint8_t)value; }
    return to;
}
