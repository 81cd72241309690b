/* The functions of fedmpdd.h under names that JavaScript calls. Memory is the caller's, from __heap_base on. */
#include "fedmpdd.h"

#define EXPORT(name) __attribute__((export_name(#name)))

EXPORT(bufferFloats) uint32_t buffer_floats(uint32_t family, uint32_t d);
EXPORT(deriveSeed) uint64_t derive_seed(uint64_t session, uint32_t round, uint64_t client);
EXPORT(encode) int32_t encode(uint32_t scalars, uint32_t family, uint32_t m, uint32_t group, uint32_t d, uint64_t seed,
                              uint32_t slot, float *buffer, uint32_t floats, uint32_t frame, uint8_t *out, uint32_t room);

uint32_t buffer_floats(uint32_t family, uint32_t d) {
    const fedmpdd_codec codec = {FEDMPDD_FLOAT32, (fedmpdd_family)family, 1U, 0U};
    return fedmpdd_buffer_floats(&codec, d);
}

uint64_t derive_seed(uint64_t session, uint32_t round, uint64_t client) {
    return fedmpdd_derive_seed(session, round, client);
}

/* The length of the frame, or minus a fedmpdd_result. */
int32_t encode(uint32_t scalars, uint32_t family, uint32_t m, uint32_t group, uint32_t d, uint64_t seed, uint32_t slot,
               float *buffer, uint32_t floats, uint32_t frame, uint8_t *out, uint32_t room) {
    const fedmpdd_codec codec = {(fedmpdd_scalars)scalars, (fedmpdd_family)family, m, group};
    const fedmpdd_key key = {seed, slot};
    size_t length = 0U;
    const fedmpdd_result result =
        fedmpdd_encode(&codec, d, &key, buffer, floats, (fedmpdd_frame)frame, out, room, &length);
    return (result == FEDMPDD_OK) ? (int32_t)length : -(int32_t)result;
}
