/* fedmpdd.h: a client of FedMPDD in C99. A gradient in, the bytes of one update out.
 *
 * The bytes are those of the Python package for the same gradient, codec and key. Formats and the order of additions
 * are in docs/directions.md, docs/codecs.md and docs/wire-format.md; how to use this file is in docs/c-client.md.
 *
 * One header, no allocation, no recursion, no global variable, no libc beyond memcpy. float and double must be IEEE 754
 * with subnormal numbers, round to nearest, and neither be fused nor reordered: cc -std=c99 -ffp-contract=off */
#ifndef FEDMPDD_H
#define FEDMPDD_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>
#ifndef FEDMPDD_MEMCPY /* a program without string.h says here what copies bytes */
#include <string.h>
#define FEDMPDD_MEMCPY memcpy
#endif

#if (FLT_EVAL_METHOD != 0) || (FLT_MANT_DIG != 24) || (DBL_MANT_DIG != 53) || defined(__FAST_MATH__)
#error "fedmpdd: needs IEEE 754 floats and doubles that are computed as such: no -ffast-math; on x86 -mfpmath=sse"
#endif
#if defined(__clang__) || !defined(__GNUC__) /* GCC does not know the pragma: it takes -ffp-contract=off */
#pragma STDC FP_CONTRACT OFF
#endif

/* ------------------------------------------------------------------------------------------------ what callers use */
#define FEDMPDD_MAX_D ((uint32_t)1 << 24) /* coordinates of a gradient */
#define FEDMPDD_NO_CLIENT UINT64_MAX      /* the number of what belongs to a round and to no client */
#define FEDMPDD_PIECE 256U                /* pieces of a stream are multiples of this, but for the last */

typedef enum {
    FEDMPDD_OK = 0,
    FEDMPDD_ERROR_NULL,       /* a pointer is null */
    FEDMPDD_ERROR_CODEC,      /* there is no such codec, or not for this d: see fedmpdd_codec */
    FEDMPDD_ERROR_DIMENSION,  /* d is 0 or above FEDMPDD_MAX_D */
    FEDMPDD_ERROR_KEY,        /* the slot, client or round is out of range, or this frame carries no slot */
    FEDMPDD_ERROR_BUFFER,     /* the buffer is shorter than fedmpdd_buffer_floats, or there are fewer lanes than m */
    FEDMPDD_ERROR_ROOM,       /* the frame is longer than the room for it */
    FEDMPDD_ERROR_PIECE,      /* a piece is not a multiple of FEDMPDD_PIECE, or pieces do not add up to d */
    FEDMPDD_ERROR_NOT_FINITE, /* a coordinate is NaN or infinite: lower the step size or clip */
    FEDMPDD_ERROR_TOO_LARGE   /* a scalar or scale is above what frames carry: scale or clip the gradient */
} fedmpdd_result;

typedef enum { FEDMPDD_RADEMACHER = 0, FEDMPDD_HADAMARD = 1 } fedmpdd_family;
/* How scalars are written: as float32, as one bit each and a scale, or of each group the largest (peaks). */
typedef enum { FEDMPDD_FLOAT32 = 0, FEDMPDD_ONE_BIT = 1, FEDMPDD_PEAKS = 2 } fedmpdd_scalars;

/* m scalars, or m peaks of `group` scalars each: a power of two from 4 to 65,536, 0 where there are no peaks.
 * Hadamard directions: m, or m * group, is at most d. Rademacher peaks: m * group is at most max(d, 2^20). */
typedef struct { fedmpdd_scalars scalars; fedmpdd_family family; uint32_t m; uint32_t group; } fedmpdd_codec;

typedef struct { uint64_t seed; uint32_t slot; } fedmpdd_key;
/* Who has which key: every client a seed of its own in each round; all clients one; one seed, and a slot for each. */
typedef enum { FEDMPDD_DERIVED = 0, FEDMPDD_SHARED = 1, FEDMPDD_PARTITIONED = 2 } fedmpdd_way;

typedef enum {
    FEDMPDD_BARE = 0,          /* the payload alone, over a transport that vouches for it */
    FEDMPDD_COMPACT = 1,       /* tag, payload and checksum; the session assigns keys */
    FEDMPDD_COMPACT_SEED = 2,  /* the same with the seed, slot 0 */
    FEDMPDD_SELF_CONTAINED = 3 /* the whole header */
} fedmpdd_frame;

/* What a stream keeps of one direction; waiting[b][n] are sums of unit b of a tile that wait for their neighbours. */
typedef struct { double total; double run; float waiting[4][3]; } fedmpdd_lane;
typedef struct { double second[16]; double fourth[16]; } fedmpdd_moments;

typedef struct {
    fedmpdd_codec codec; fedmpdd_key key;
    uint32_t d; uint32_t position; /* coordinates that came */
    fedmpdd_lane *lanes; fedmpdd_moments moments;
    fedmpdd_result result;         /* the first error, which stays */
} fedmpdd_stream;

/* ------------------------------------------------------------------------------------------- random words and keys */
/* The four words of a block of Philox4x32-10 (directions.md, section 1). */
static inline void fedmpdd_block(uint64_t seed, uint32_t domain, uint32_t index, uint64_t number, uint32_t words[4]) {
    uint32_t c0 = (uint32_t)number, c1 = index, c2 = domain, c3 = (uint32_t)(number >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (uint32_t round = 0U; round < 10U; ++round) {
        const uint64_t p0 = (uint64_t)0xD2511F53U * c0, p1 = (uint64_t)0xCD9E8D57U * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0; c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1; c3 = (uint32_t)p0;
        k0 += 0x9E3779B9U; k1 += 0xBB67AE85U;
    }
    words[0] = c0; words[1] = c1; words[2] = c2; words[3] = c3;
}

/* The seed of a client in a round. FEDMPDD_NO_CLIENT: the seed of the round, for shared and partitioned keys. */
static inline uint64_t fedmpdd_derive_seed(uint64_t session, uint32_t round, uint64_t client) {
    uint32_t words[4];
    fedmpdd_block(session, 4U, round, client, words);
    return (uint64_t)words[0] | ((uint64_t)words[1] << 32);
}

/* The key of a client in a round; with partitioned keys `client` is its place among those of the round, from 0. */
static inline fedmpdd_result fedmpdd_assign_key(uint64_t session, fedmpdd_way way, uint32_t round, uint64_t client,
                                                fedmpdd_key *key) {
    const int is_partitioned = (way == FEDMPDD_PARTITIONED);
    if (key == NULL) { return FEDMPDD_ERROR_NULL; }
    if ((client > (FEDMPDD_NO_CLIENT - 2U)) || (is_partitioned && (client > UINT32_MAX))) { return FEDMPDD_ERROR_KEY; }
    key->seed = fedmpdd_derive_seed(session, round, (way == FEDMPDD_DERIVED) ? client : FEDMPDD_NO_CLIENT);
    key->slot = is_partitioned ? (uint32_t)client : 0U;
    return FEDMPDD_OK;
}

/* How many peaks a codec that grows from m has in a round: twice as many after grows_after rounds, and so on. */
static inline uint32_t fedmpdd_peaks_at(uint32_t m, uint32_t grows_to, uint32_t grows_after, uint32_t round) {
    uint64_t peaks = m;
    if (grows_after == 0U) { return m; }
    for (uint32_t past = round / grows_after; (past > 0U) && (peaks < grows_to); past >>= 1) { peaks *= 2U; }
    return (peaks < grows_to) ? (uint32_t)peaks : grows_to;
}

/* ------------------------------------------------------------------------------------------ sizes, and their checks */
/* The order h * 2^log2 of the Hadamard matrix for d: the smallest that is not below d. Returns h. */
static inline uint32_t fedmpdd_order(uint32_t d, uint32_t *log2) {
    static const uint8_t outers[4] = {1U, 12U, 20U, 28U};
    uint32_t outer = 0U, best = UINT32_MAX;
    *log2 = 0U;
    for (uint32_t i = 0U; i < 4U; ++i) {
        uint32_t size = outers[i], twos = 0U;
        while (size < d) { size *= 2U; twos += 1U; } /* d is at most 2^24, so that size does not overflow */
        if (size < best) { best = size; outer = outers[i]; *log2 = twos; }
    }
    return outer;
}

/* How many floats the buffer of fedmpdd_encode has; only d of them come from the caller. */
static inline uint32_t fedmpdd_buffer_floats(const fedmpdd_codec *codec, uint32_t d) {
    uint32_t log2;
    if ((codec == NULL) || (codec->family != FEDMPDD_HADAMARD) || (d > FEDMPDD_MAX_D)) { return d; }
    const uint32_t outer = fedmpdd_order(d, &log2); /* before log2 is read */
    return outer << log2;
}

static inline uint32_t fedmpdd_log2(uint32_t value) {
    uint32_t log2 = 0U;
    while ((log2 < 31U) && ((value >> (log2 + 1U)) > 0U)) { log2 += 1U; }
    return log2;
}

/* Directions that an update uses. */
static inline uint64_t fedmpdd_count(const fedmpdd_codec *codec) {
    return (codec->scalars == FEDMPDD_PEAKS) ? ((uint64_t)codec->m * codec->group) : (uint64_t)codec->m;
}

static inline uint64_t fedmpdd_payload_bytes(const fedmpdd_codec *codec) {
    const uint64_t m = codec->m;
    if (codec->scalars == FEDMPDD_PEAKS) { return 1U + (((m * (fedmpdd_log2(codec->group) + 1U)) + 7U) / 8U); }
    return (codec->scalars == FEDMPDD_ONE_BIT) ? (4U + ((m + 7U) / 8U)) : (4U * m);
}

/* Length of every frame of this kind. */
static inline uint64_t fedmpdd_frame_bytes(const fedmpdd_codec *codec, fedmpdd_frame frame) {
    static const uint8_t around[4] = {0U, 8U, 16U, 36U};
    return (codec == NULL) ? 0U : (fedmpdd_payload_bytes(codec) + around[(uint32_t)frame & 3U]);
}

/* Whether there are updates of this codec, of so many coordinates, with this key. */
static inline fedmpdd_result fedmpdd_check(const fedmpdd_codec *codec, uint32_t d, const fedmpdd_key *key) {
    if ((codec == NULL) || (key == NULL)) { return FEDMPDD_ERROR_NULL; }
    if ((d < 1U) || (d > FEDMPDD_MAX_D)) { return FEDMPDD_ERROR_DIMENSION; }
    const int is_peaks = (codec->scalars == FEDMPDD_PEAKS), is_hadamard = (codec->family == FEDMPDD_HADAMARD);
    const int is_known = ((uint32_t)codec->scalars <= 2U) && ((uint32_t)codec->family <= 1U);
    const uint32_t group = codec->group;
    const int is_group = is_peaks ? ((group >= 4U) && (group <= 65536U) && ((group & (group - 1U)) == 0U)) : !group;
    if ((!is_known) || (!is_group) || (codec->m < 1U)) { return FEDMPDD_ERROR_CODEC; }
    const uint64_t count = fedmpdd_count(codec), most = (is_hadamard || (d > 1048576U)) ? d : 1048576U;
    if ((count > (uint64_t)INT32_MAX) || ((is_hadamard || is_peaks) && (count > most))) { return FEDMPDD_ERROR_CODEC; }
    const int has_directions = (((uint64_t)key->slot + 1U) * count) <= ((uint64_t)1 << 32); /* below 2^63 */
    return (is_hadamard || has_directions) ? FEDMPDD_OK : FEDMPDD_ERROR_KEY;
}

/* --------------------------------------------------------------------------------------------------------- numbers */
static inline uint32_t fedmpdd_bits_of(float value) {
    uint32_t bits;
    (void)FEDMPDD_MEMCPY(&bits, &value, sizeof bits);
    return bits;
}

/* Whether a float is at most 2^127 in magnitude, which a scalar on the wire must be; NaN is not. */
static inline int fedmpdd_within(float value) { return (fedmpdd_bits_of(value) & 0x7FFFFFFFU) <= 0x7F000000U; }

/* float32 of a double; of one that is too large, or NaN, a number that is not within. */
static inline float fedmpdd_narrow(double value) {
    const int fits = (value > -2.6e38) && (value < 2.6e38); /* above 2^127 and below the largest float32 */
    return fits ? (float)value : FLT_MAX;
}

/* The square root of a positive normal double, correctly rounded: 54 binary digits of the root, one by one. */
static inline double fedmpdd_sqrt(double value) {
    uint64_t bits, rest = 0U, root = 0U;
    (void)FEDMPDD_MEMCPY(&bits, &value, sizeof bits);
    const uint64_t exponent = bits >> 52, odd = (exponent & 1U) ^ 1U;
    const uint64_t mantissa = ((bits & 0xFFFFFFFFFFFFFU) | ((uint64_t)1 << 52)) << odd;
    for (uint32_t digit = 0U; digit < 54U; ++digit) {
        const uint64_t pair = (digit < 27U) ? ((mantissa >> (52U - (2U * digit))) & 3U) : 0U;
        const uint64_t trial = (root << 2) | 1U;
        rest = (rest << 2) | pair; root <<= 1;
        if (rest >= trial) { rest -= trial; root |= 1U; }
    }
    /* The last digit rounds. It cannot be a tie: its square would need more digits than a double has. */
    bits = (((exponent + 1023U - odd) >> 1) << 52) + ((root + 1U) >> 1) - ((uint64_t)1 << 52);
    (void)FEDMPDD_MEMCPY(&value, &bits, sizeof value);
    return value;
}

/* Add the squares and fourth powers of coordinates, or say that one is not finite. `position` is that of the first. */
static inline int fedmpdd_measure(fedmpdd_moments *moments, const fedmpdd_codec *codec, const float *x, uint32_t length,
                                  uint32_t position) {
    for (uint32_t i = 0U; i < length; ++i) {
        if ((fedmpdd_bits_of(x[i]) & 0x7F800000U) == 0x7F800000U) { return 0; }
        if (codec->scalars != FEDMPDD_FLOAT32) {
            const double square = (double)x[i] * (double)x[i];
            moments->second[(position + i) % 16U] += square; moments->fourth[(position + i) % 16U] += square * square;
        }
    }
    return 1;
}

static inline double fedmpdd_sum(const double lanes[16]) {
    double total = 0.0;
    for (uint32_t lane = 0U; lane < 16U; ++lane) { total += lanes[lane]; }
    return total;
}

/* --------------------------------------------------------------------------------------------- scalars into frames */
/* A sum of halves of halves, eight numbers side by side in each: the order in which NumPy adds, for the mean peak. */
typedef struct {
    double lanes[8]; double total;
    double left[16];                  /* sums of left halves whose right half is under way; m is below 2^22 */
    uint32_t begin; uint32_t length;  /* of the part under way */
    uint32_t depth; uint32_t rights;  /* halvings on the way to it; in which of them it is right, the last in bit 0 */
} fedmpdd_pairwise;

typedef struct {
    const fedmpdd_codec *codec; const fedmpdd_key *key; fedmpdd_frame frame;
    uint8_t *payload;
    uint32_t crc;                /* of the header, inverted as CRC-32 keeps it */
    uint32_t number;             /* scalars that came */
    uint32_t code; float height; /* of the largest of its group so far: its place and sign, and its size */
    fedmpdd_pairwise heights;
    int is_too_large;
} fedmpdd_writer;

static inline uint32_t fedmpdd_crc(uint32_t crc, const uint8_t *bytes, size_t length) {
    for (size_t i = 0U; i < length; ++i) {
        crc ^= bytes[i];
        for (uint32_t bit = 0U; bit < 8U; ++bit) { crc = (crc >> 1) ^ (((crc & 1U) != 0U) ? 0xEDB88320U : 0U); }
    }
    return crc;
}

static inline void fedmpdd_store(uint8_t *out, uint64_t value, uint32_t bytes) {
    for (uint32_t i = 0U; i < bytes; ++i) { out[i] = (uint8_t)(value >> (8U * i)); }
}

/* Find the part, of at most 128 of all n numbers, that begins with this one. */
static inline void fedmpdd_find_part(fedmpdd_pairwise *sum, uint32_t n, uint32_t number) {
    uint32_t start = 0U;
    sum->begin = number; sum->length = n; sum->depth = 0U; sum->rights = 0U; sum->total = 0.0;
    while (sum->length > 128U) {
        const uint32_t half = (sum->length / 16U) * 8U;
        const int is_right = (number >= (start + half));
        start += is_right ? half : 0U;
        sum->length = is_right ? (sum->length - half) : half;
        sum->rights = (sum->rights << 1) | (is_right ? 1U : 0U);
        sum->depth += 1U;
    }
}

static inline void fedmpdd_pair(fedmpdd_pairwise *sum, uint32_t n, uint32_t number, double value) {
    double *v = sum->lanes;
    if ((number == 0U) || (number == (sum->begin + sum->length))) { fedmpdd_find_part(sum, n, number); }
    const uint32_t at = number - sum->begin, even = (sum->length / 8U) * 8U;
    if (at >= even) { sum->total += value; }
    else { v[at % 8U] = (at < 8U) ? value : (v[at % 8U] + value); }
    if ((at + 1U) == even) { sum->total = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }
    if ((at + 1U) == sum->length) {
        for (; (sum->rights & 1U) != 0U; sum->rights >>= 1) { sum->depth -= 1U; sum->total += sum->left[sum->depth]; }
        if (sum->depth > 0U) { sum->left[sum->depth - 1U] = sum->total; }
    }
}

/* Check everything and write what stands before the payload. */
static inline fedmpdd_result fedmpdd_open(fedmpdd_writer *writer, const fedmpdd_codec *codec, uint32_t d,
                                          const fedmpdd_key *key, fedmpdd_frame frame, uint8_t *out, size_t room,
                                          size_t *length) {
    static const uint8_t before[4] = {0U, 4U, 12U, 32U};
    if ((out == NULL) || (length == NULL)) { return FEDMPDD_ERROR_NULL; }
    *length = 0U;
    const fedmpdd_result result = fedmpdd_check(codec, d, key);
    if (result != FEDMPDD_OK) { return result; }
    if ((uint32_t)frame > 3U) { return FEDMPDD_ERROR_CODEC; }
    if ((frame == FEDMPDD_COMPACT_SEED) && (key->slot != 0U)) { return FEDMPDD_ERROR_KEY; }
    if (fedmpdd_frame_bytes(codec, frame) > (uint64_t)room) { return FEDMPDD_ERROR_ROOM; }
    const int is_peaks = (codec->scalars == FEDMPDD_PEAKS), is_bits = (codec->scalars == FEDMPDD_ONE_BIT);
    const uint8_t number = is_peaks ? 13U : 1U, family = (uint8_t)codec->family;
    const uint8_t second = is_peaks ? (uint8_t)fedmpdd_log2(codec->group) : (is_bits ? 1U : 32U);
    uint8_t header[33] = {0x46U, 0x4DU, 0x50U, 0x44U, 1U, number, family, second};
    fedmpdd_store(&header[8], d, 8U);
    fedmpdd_store(&header[16], codec->m, 4U);
    header[32] = (frame == FEDMPDD_COMPACT_SEED) ? 1U : 0U;
    const uint32_t tag = ~fedmpdd_crc(UINT32_MAX, header, 33U);
    fedmpdd_store(&header[20], key->slot, 4U);
    fedmpdd_store(&header[24], key->seed, 8U);
    if (frame == FEDMPDD_SELF_CONTAINED) { (void)FEDMPDD_MEMCPY(out, header, 32U); }
    else if (frame != FEDMPDD_BARE) { fedmpdd_store(out, ((uint64_t)tag << 8) | 0xF1U, 4U); }
    if (frame == FEDMPDD_COMPACT_SEED) { fedmpdd_store(&out[4], key->seed, 8U); }
    writer->codec = codec; writer->key = key; writer->frame = frame; writer->payload = &out[before[(uint32_t)frame]];
    writer->crc = fedmpdd_crc(UINT32_MAX, header, 32U); writer->number = 0U; writer->is_too_large = 0;
    for (size_t i = 0U; i < (size_t)fedmpdd_payload_bytes(codec); ++i) { writer->payload[i] = 0U; }
    return FEDMPDD_OK;
}

/* Write one bit of the payload, after `skipped` bytes. */
static inline void fedmpdd_set(fedmpdd_writer *writer, uint32_t skipped, uint64_t bit) {
    uint8_t *byte = &writer->payload[skipped + (size_t)(bit >> 3)];
    *byte = (uint8_t)(*byte | (1U << (bit & 7U)));
}

static inline void fedmpdd_take_peak(fedmpdd_writer *writer, float scalar) {
    const uint32_t group = writer->codec->group, width = fedmpdd_log2(group) + 1U;
    const uint32_t place = writer->number % group, peak = writer->number / group;
    const float height = (scalar < 0.0F) ? -scalar : scalar;
    if ((place == 0U) || (height > writer->height)) {
        writer->height = height; writer->code = place + ((scalar < 0.0F) ? group : 0U);
    }
    if (place != (group - 1U)) { return; }
    for (uint32_t bit = 0U; bit < width; ++bit) {
        if (((writer->code >> bit) & 1U) != 0U) { fedmpdd_set(writer, 1U, ((uint64_t)peak * width) + bit); }
    }
    fedmpdd_pair(&writer->heights, writer->codec->m, peak, (double)writer->height);
}

/* Write the next scalar. */
static inline void fedmpdd_take(fedmpdd_writer *writer, float scalar) {
    if (!fedmpdd_within(scalar)) { writer->is_too_large = 1; }
    else if (writer->codec->scalars == FEDMPDD_PEAKS) { fedmpdd_take_peak(writer, scalar); }
    else if (writer->codec->scalars == FEDMPDD_FLOAT32) {
        fedmpdd_store(&writer->payload[(size_t)writer->number * 4U], fedmpdd_bits_of(scalar), 4U);
    } else if (scalar < 0.0F) { fedmpdd_set(writer, 4U, writer->number); }
    else { /* a bit that is not set is a plus */ }
    writer->number += 1U;
}

/* Number k of the 256 scales of peaks: 0, and 2^((k - 128) / 4). */
static inline double fedmpdd_scale(uint32_t k) {
    static const double roots[4] = {1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429};
    const uint64_t bits = (uint64_t)(1023U - 32U + (k / 4U)) << 52;
    double power;
    (void)FEDMPDD_MEMCPY(&power, &bits, sizeof power);
    return (k == 0U) ? 0.0 : (roots[k & 3U] * power);
}

/* Write the scale of peaks as one byte, rounded up or down by a word of the key; returns whether it is in range. */
static inline int fedmpdd_write_peaks_scale(fedmpdd_writer *writer, double second) {
    const double mean = writer->heights.total / (double)writer->codec->m, exact = (mean > 0.0) ? (second / mean) : 0.0;
    uint32_t words[4], above = 1U;
    while ((above < 255U) && (fedmpdd_scale(above) < exact)) { above += 1U; }
    fedmpdd_block(writer->key->seed, 3U, writer->key->slot, 0U, words);
    const double low = fedmpdd_scale(above - 1U), high = fedmpdd_scale(above);
    const double uniform = ((double)words[0] + 0.5) * (1.0 / 4294967296.0);
    writer->payload[0] = (uint8_t)(((uniform * (high - low)) < (exact - low)) ? above : (above - 1U));
    return exact <= fedmpdd_scale(255U);
}

/* Write the scale of signs, sqrt(pi / 2 * second) / (1 + fourth / (12 * second^2)); returns whether it is in range. */
static inline int fedmpdd_write_signs_scale(fedmpdd_writer *writer, double second, double fourth) {
    const double shape = (second > 0.0) ? (1.0 + (fourth / ((12.0 * second) * second))) : 1.0;
    const double exact = (second > 0.0) ? (fedmpdd_sqrt(1.5707963267948966 * second) / shape) : 0.0;
    const float scale = fedmpdd_narrow(exact);
    fedmpdd_store(writer->payload, fedmpdd_bits_of(scale), 4U);
    return fedmpdd_within(scale);
}

/* Write scale and checksum once all scalars were taken. */
static inline fedmpdd_result fedmpdd_close(fedmpdd_writer *writer, const fedmpdd_moments *moments, size_t *length) {
    const fedmpdd_scalars scalars = writer->codec->scalars;
    const int is_peaks = (scalars == FEDMPDD_PEAKS), is_bits = (scalars == FEDMPDD_ONE_BIT);
    const size_t bytes = (size_t)fedmpdd_payload_bytes(writer->codec), start = is_peaks ? 1U : 4U;
    const double second = fedmpdd_sum(moments->second), fourth = fedmpdd_sum(moments->fourth);
    uint32_t any = (is_peaks || is_bits) ? 0U : 1U;
    if (writer->is_too_large) { return FEDMPDD_ERROR_TOO_LARGE; }
    if (is_peaks && (!fedmpdd_write_peaks_scale(writer, second))) { return FEDMPDD_ERROR_TOO_LARGE; }
    if (is_bits && (!fedmpdd_write_signs_scale(writer, second, fourth))) { return FEDMPDD_ERROR_TOO_LARGE; }
    for (size_t i = 0U; i < start; ++i) { any |= writer->payload[i]; }
    for (size_t i = start; (any == 0U) && (i < bytes); ++i) { writer->payload[i] = 0U; } /* scale 0: all else too */
    if (writer->frame != FEDMPDD_BARE) {
        fedmpdd_store(&writer->payload[bytes], ~fedmpdd_crc(writer->crc, writer->payload, bytes), 4U);
    }
    *length = (size_t)fedmpdd_frame_bytes(writer->codec, writer->frame);
    return FEDMPDD_OK;
}

/* ----------------------------------------------------------------------------------------------------- rademacher */
/* Four coordinates 64 apart, each with the sign of its bit; those that are not there are zeros. */
static inline float fedmpdd_four(const float *x, uint32_t length, uint32_t at, uint32_t signs) {
    float v[4];
    for (uint32_t i = 0U; i < 4U; ++i) {
        const uint32_t c = at + (64U * i);
        const float value = (c < length) ? x[c] : 0.0F;
        v[i] = (((signs >> i) & 1U) != 0U) ? -value : value;
    }
    return (v[0] + v[1]) + (v[2] + v[3]);
}

/* Add fours [from, to) of each word of a tile, of which x holds the first `length` coordinates, to one direction. */
static inline void fedmpdd_add_fours(fedmpdd_lane *lane, uint64_t seed, uint32_t index, uint32_t tile, const float *x,
                                     uint32_t length, uint32_t from, uint32_t to) {
    for (uint32_t unit = 0U; unit < 4U; ++unit) {
        float sums[8] = {0.0F};
        for (uint32_t block = 4U * unit; block < ((4U * unit) + 4U); ++block) {
            uint32_t words[4];
            fedmpdd_block(seed, 0U, index, ((uint64_t)tile * 16U) + block, words);
            for (uint32_t w = 0U; w < 4U; ++w) {
                for (uint32_t q = from, at = (16U * w) + block; (q < to) && (at < length); ++q, at += 256U) {
                    sums[q] += fedmpdd_four(x, length, at, words[w] >> (4U * q));
                }
            }
        }
        for (uint32_t q = from; q < to; ++q) { /* ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), as soon as can be */
            float sum = sums[q]; uint32_t level = 0U;
            for (; ((q >> level) & 1U) != 0U; ++level) { sum = lane->waiting[unit][level] + sum; }
            if (level < 3U) { lane->waiting[unit][level] = sum; }
            else { lane->run += (double)sum; }
        }
    }
}

/* Add coordinates from `position` on, a multiple of 256, to one direction of a gradient of d. */
static inline void fedmpdd_add_piece(fedmpdd_lane *lane, uint64_t seed, uint32_t index, uint32_t d, uint32_t position,
                                     const float *x, uint32_t length) {
    for (uint32_t done = 0U; done < length;) {
        const uint32_t tile = (position + done) / 2048U, from = ((position + done) % 2048U) / 256U;
        const uint32_t left = length - done, fitting = 2048U - (256U * from), part = (left < fitting) ? left : fitting;
        const int is_last = ((position + done + part) == d);
        const uint32_t to = is_last ? 8U : (from + (part / 256U));
        fedmpdd_add_fours(lane, seed, index, tile, &x[done], part, from, to);
        done += part;
        if (is_last || ((to == 8U) && ((tile % 16U) == 15U))) { lane->total += lane->run; lane->run = 0.0; }
    }
}

static inline void fedmpdd_encode_rademacher(fedmpdd_writer *writer, const float *x, uint32_t d) {
    const uint32_t count = (uint32_t)fedmpdd_count(writer->codec), first = writer->key->slot * count; /* below 2^32 */
    for (uint32_t j = 0U; j < count; ++j) {
        fedmpdd_lane lane = {0.0, 0.0, {{0.0F}}};
        fedmpdd_add_piece(&lane, writer->key->seed, first + j, d, 0U, x, d);
        fedmpdd_take(writer, fedmpdd_narrow(lane.total));
    }
}

/* ------------------------------------------------------------------------------------------------------- hadamard */
/* Whether an entry of the matrix of order 1, 12, 20 or 28 is -1 (Paley's constructions; directions.md, section 5). */
static inline int fedmpdd_outer_is_negative(uint32_t order, uint32_t row, uint32_t column) {
    const int is_second = (order == 28U);
    const uint32_t q = is_second ? 13U : (order - 1U), r = is_second ? (row / 2U) : row;
    const uint32_t c = is_second ? (column / 2U) : column, both = is_second ? (row & column & 1U) : 0U;
    /* Bit a is set where a is a square modulo 13, 11 or 19. */
    const uint32_t squares = is_second ? 0x161AU : ((order == 12U) ? 0x23AU : 0x30AF2U);
    if (order == 1U) { return 0; }
    if (r == c) { return is_second && (((row | column) & 1U) != 0U); }
    const int is_border = (r == 0U) || (c == 0U), is_square = (int)((squares >> ((r + q - c) % q)) & 1U);
    return ((is_border ? ((!is_second) && (c == 0U)) : !is_square) != 0) != (both != 0U);
}

/* The row of the matrix of order `size` that comes in this place, by the keys of blocks 0 to 5 of domain 2. */
static inline uint32_t fedmpdd_row(const uint32_t keys[24], uint32_t size, uint32_t place) {
    uint32_t bits = 0U; /* of the right half: half of the twos of the order */
    while (((size >> (2U * bits)) & 3U) == 0U) { bits += 1U; }
    const uint32_t sizes[2] = {size >> bits, (uint32_t)1 << bits}, rounds = (size < 4096U) ? 24U : 6U;
    uint32_t halves[2] = {0U, place & (sizes[1] - 1U)};
    halves[0] = place >> bits;
    for (uint32_t i = 0U; i < rounds; ++i) {
        const uint32_t side = i & 1U;
        uint32_t x = halves[side ^ 1U] + keys[i];
        x = (x ^ (x >> 16)) * 0x85EBCA6BU; x = (x ^ (x >> 13)) * 0xC2B2AE35U; x ^= x >> 16;
        halves[side] += (uint32_t)(((uint64_t)x * sizes[side]) >> 32);
        halves[side] -= (halves[side] >= sizes[side]) ? sizes[side] : 0U;
    }
    return (halves[0] << bits) | halves[1];
}

/* Give each coordinate its sign and pad with zeros, then butterflies within each run of 2^log2. */
static inline void fedmpdd_transform(uint64_t seed, float *x, uint32_t d, uint32_t size, uint32_t log2) {
    for (uint32_t block = 0U; block < (((d + 2047U) / 2048U) * 16U); ++block) {
        uint32_t words[4];
        fedmpdd_block(seed, 1U, 0U, block, words);
        for (uint32_t i = 0U; i < 128U; ++i) { /* bit i / 4 of word i mod 4 */
            const uint32_t c = ((block / 16U) * 2048U) + (block % 16U) + (16U * i);
            if ((c < d) && (((words[i % 4U] >> (i / 4U)) & 1U) != 0U)) { x[c] = -x[c]; }
        }
    }
    for (uint32_t c = d; c < size; ++c) { x[c] = 0.0F; }
    for (uint32_t stride = 1U; stride < ((uint32_t)1 << log2); stride *= 2U) {
        for (uint32_t base = 0U; base < size; base += 2U * stride) {
            for (uint32_t c = base; c < (base + stride); ++c) {
                const float a = x[c], b = x[c + stride];
                x[c] = a + b; x[c + stride] = a - b;
            }
        }
    }
}

static inline void fedmpdd_encode_hadamard(fedmpdd_writer *writer, float *x, uint32_t d) {
    uint32_t keys[24], log2;
    const uint32_t outer = fedmpdd_order(d, &log2), size = outer << log2;
    const uint32_t count = (uint32_t)fedmpdd_count(writer->codec);
    uint32_t place = (uint32_t)(((uint64_t)writer->key->slot * count) % size);
    fedmpdd_transform(writer->key->seed, x, d, size, log2);
    for (uint32_t i = 0U; i < 6U; ++i) { fedmpdd_block(writer->key->seed, 2U, 0U, i, &keys[4U * i]); }
    for (uint32_t j = 0U; j < count; ++j) {
        const uint32_t row = fedmpdd_row(keys, size, place);
        float sum = 0.0F;
        for (uint32_t a = 0U; a < outer; ++a) {
            const float value = x[(a << log2) + (row & (((uint32_t)1 << log2) - 1U))];
            sum += fedmpdd_outer_is_negative(outer, row >> log2, a) ? -value : value;
        }
        fedmpdd_take(writer, sum);
        place = ((place + 1U) == size) ? 0U : (place + 1U);
    }
}

/* ------------------------------------------------------------------------------------------------ encode and stream */
/* Make the frame of the gradient in the first d floats of `buffer`, which has fedmpdd_buffer_floats of them.
 *
 * Hadamard directions overwrite the buffer; rademacher directions do not. `out` has room for `room` bytes, and *length
 * is how many the frame has: fedmpdd_frame_bytes. On an error *length is 0, what is in `out` counts for nothing, and a
 * gradient that is not finite was left as it was. */
static inline fedmpdd_result fedmpdd_encode(const fedmpdd_codec *codec, uint32_t d, const fedmpdd_key *key,
                                            float *buffer, uint32_t floats, fedmpdd_frame frame, uint8_t *out,
                                            size_t room, size_t *length) {
    fedmpdd_writer writer;
    fedmpdd_moments moments = {{0.0}, {0.0}};
    const fedmpdd_result result = fedmpdd_open(&writer, codec, d, key, frame, out, room, length);
    if (result != FEDMPDD_OK) { return result; }
    if (buffer == NULL) { return FEDMPDD_ERROR_NULL; }
    if (floats < fedmpdd_buffer_floats(codec, d)) { return FEDMPDD_ERROR_BUFFER; }
    if (!fedmpdd_measure(&moments, codec, buffer, d, 0U)) { return FEDMPDD_ERROR_NOT_FINITE; }
    if (codec->family == FEDMPDD_HADAMARD) { fedmpdd_encode_hadamard(&writer, buffer, d); }
    else { fedmpdd_encode_rademacher(&writer, buffer, d); }
    return fedmpdd_close(&writer, &moments, length);
}

/* Begin an update of rademacher directions, without peaks, of a gradient that comes in pieces. The caller owns `lanes`,
 * m of them, and leaves them alone until the end. */
static inline fedmpdd_result fedmpdd_begin(fedmpdd_stream *stream, const fedmpdd_codec *codec, uint32_t d,
                                           const fedmpdd_key *key, fedmpdd_lane *lanes, uint32_t lane_count) {
    const fedmpdd_moments zeros = {{0.0}, {0.0}};
    fedmpdd_result result = fedmpdd_check(codec, d, key);
    if (stream == NULL) { return FEDMPDD_ERROR_NULL; }
    if (result == FEDMPDD_OK) {
        const int is_stream = (codec->family == FEDMPDD_RADEMACHER) && (codec->scalars != FEDMPDD_PEAKS);
        if (!is_stream) { result = FEDMPDD_ERROR_CODEC; }
        else if (lanes == NULL) { result = FEDMPDD_ERROR_NULL; }
        else if (lane_count < codec->m) { result = FEDMPDD_ERROR_BUFFER; }
        else { stream->codec = *codec; stream->key = *key; stream->d = d; stream->lanes = lanes; }
    }
    for (uint32_t j = 0U; (result == FEDMPDD_OK) && (j < codec->m); ++j) { lanes[j].total = 0.0; lanes[j].run = 0.0; }
    stream->moments = zeros; stream->position = 0U; stream->result = result;
    return result;
}

/* Add the next coordinates: a multiple of FEDMPDD_PIECE, unless they are the last. Whole tiles of 2,048 are fastest. */
static inline fedmpdd_result fedmpdd_add(fedmpdd_stream *stream, const float *piece, uint32_t length) {
    if (stream == NULL) { return FEDMPDD_ERROR_NULL; }
    if (stream->result != FEDMPDD_OK) { return stream->result; }
    const uint32_t left = stream->d - stream->position, first = stream->key.slot * stream->codec.m;
    if (piece == NULL) { stream->result = FEDMPDD_ERROR_NULL; }
    else if ((length > left) || (((length % FEDMPDD_PIECE) != 0U) && (length != left))) {
        stream->result = FEDMPDD_ERROR_PIECE;
    } else if (!fedmpdd_measure(&stream->moments, &stream->codec, piece, length, stream->position)) {
        stream->result = FEDMPDD_ERROR_NOT_FINITE;
    } else {
        const uint32_t position = stream->position;
        for (uint32_t j = 0U; j < stream->codec.m; ++j) {
            fedmpdd_add_piece(&stream->lanes[j], stream->key.seed, first + j, stream->d, position, piece, length);
        }
        stream->position = position + length;
    }
    return stream->result;
}

/* Make the frame once all d coordinates came; `out`, `room` and `length` as for fedmpdd_encode. */
static inline fedmpdd_result fedmpdd_end(fedmpdd_stream *stream, fedmpdd_frame frame, uint8_t *out, size_t room,
                                         size_t *length) {
    fedmpdd_writer writer;
    if ((stream == NULL) || (length == NULL)) { return FEDMPDD_ERROR_NULL; }
    *length = 0U;
    if (stream->result != FEDMPDD_OK) { return stream->result; }
    if (stream->position != stream->d) { return FEDMPDD_ERROR_PIECE; }
    const fedmpdd_codec *codec = &stream->codec;
    const fedmpdd_result result = fedmpdd_open(&writer, codec, stream->d, &stream->key, frame, out, room, length);
    if (result != FEDMPDD_OK) { return result; }
    for (uint32_t j = 0U; j < stream->codec.m; ++j) { fedmpdd_take(&writer, fedmpdd_narrow(stream->lanes[j].total)); }
    return fedmpdd_close(&writer, &stream->moments, length);
}

#endif /* FEDMPDD_H */
