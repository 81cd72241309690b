/* The functions of fedmpdd.h under names that ctypes can call. */
#include "fedmpdd.h"

int bridge_encode(int scalars, int family, uint32_t m, uint32_t group, uint32_t d, uint64_t seed, uint32_t slot,
                  float *buffer, uint32_t floats, int frame, uint8_t *out, size_t room, size_t *length) {
    const fedmpdd_codec codec = {(fedmpdd_scalars)scalars, (fedmpdd_family)family, m, group};
    const fedmpdd_key key = {seed, slot};
    return (int)fedmpdd_encode(&codec, d, &key, buffer, floats, (fedmpdd_frame)frame, out, room, length);
}

/* The same in pieces of `piece` coordinates. */
int bridge_stream(int scalars, uint32_t m, uint32_t d, uint64_t seed, uint32_t slot, const float *gradient,
                  uint32_t piece, fedmpdd_lane *lanes, int frame, uint8_t *out, size_t room, size_t *length) {
    const fedmpdd_codec codec = {(fedmpdd_scalars)scalars, FEDMPDD_RADEMACHER, m, 0U};
    const fedmpdd_key key = {seed, slot};
    fedmpdd_stream stream;
    (void)fedmpdd_begin(&stream, &codec, d, &key, lanes, m);
    for (uint32_t begin = 0U; begin < d; begin += piece) {
        (void)fedmpdd_add(&stream, &gradient[begin], ((d - begin) < piece) ? (d - begin) : piece);
    }
    return (int)fedmpdd_end(&stream, (fedmpdd_frame)frame, out, room, length);
}

uint32_t bridge_floats(int family, uint32_t d) {
    const fedmpdd_codec codec = {FEDMPDD_FLOAT32, (fedmpdd_family)family, 1U, 0U};
    return fedmpdd_buffer_floats(&codec, d);
}

size_t bridge_lane_bytes(void) {
    return sizeof(fedmpdd_lane);
}

void bridge_sqrt(double *values, size_t count) {
    for (size_t i = 0U; i < count; ++i) {
        values[i] = fedmpdd_sqrt(values[i]);
    }
}

/* The sums of squares and of fourth powers, in pieces of `piece` coordinates. */
void bridge_moments(const float *x, uint32_t d, uint32_t piece, double *sums) {
    const fedmpdd_codec codec = {FEDMPDD_ONE_BIT, FEDMPDD_RADEMACHER, 1U, 0U};
    fedmpdd_moments moments = {{0.0}, {0.0}};
    for (uint32_t begin = 0U; begin < d; begin += piece) {
        (void)fedmpdd_measure(&moments, &codec, &x[begin], ((d - begin) < piece) ? (d - begin) : piece, begin);
    }
    sums[0] = fedmpdd_sum(moments.second);
    sums[1] = fedmpdd_sum(moments.fourth);
}

double bridge_pairwise(const double *values, uint32_t count) {
    fedmpdd_pairwise sum;
    for (uint32_t i = 0U; i < count; ++i) {
        fedmpdd_pair(&sum, count, i, values[i]);
    }
    return sum.total;
}
