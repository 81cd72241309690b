/* Every function for callers, so that their size can be taken. */
#include "fedmpdd.h"

#define KEPT __attribute__((used, noinline))

KEPT fedmpdd_result all_encode(const fedmpdd_codec *codec, uint32_t d, const fedmpdd_key *key, float *buffer,
                               uint32_t floats, fedmpdd_frame frame, uint8_t *out, size_t room, size_t *length);
KEPT fedmpdd_result all_begin(fedmpdd_stream *stream, const fedmpdd_codec *codec, uint32_t d, const fedmpdd_key *key,
                              fedmpdd_lane *lanes, uint32_t count);
KEPT fedmpdd_result all_add(fedmpdd_stream *stream, const float *piece, uint32_t length);
KEPT fedmpdd_result all_end(fedmpdd_stream *stream, fedmpdd_frame frame, uint8_t *out, size_t room, size_t *length);
KEPT fedmpdd_result all_key(uint64_t session, fedmpdd_way way, uint32_t round, uint64_t client, fedmpdd_key *key);
KEPT uint32_t all_peaks(uint32_t m, uint32_t grows_to, uint32_t grows_after, uint32_t round);
KEPT uint32_t all_floats(const fedmpdd_codec *codec, uint32_t d);
KEPT uint64_t all_bytes(const fedmpdd_codec *codec, fedmpdd_frame frame);

fedmpdd_result all_encode(const fedmpdd_codec *codec, uint32_t d, const fedmpdd_key *key, float *buffer,
                          uint32_t floats, fedmpdd_frame frame, uint8_t *out, size_t room, size_t *length) {
    return fedmpdd_encode(codec, d, key, buffer, floats, frame, out, room, length);
}

fedmpdd_result all_begin(fedmpdd_stream *stream, const fedmpdd_codec *codec, uint32_t d, const fedmpdd_key *key,
                         fedmpdd_lane *lanes, uint32_t count) {
    return fedmpdd_begin(stream, codec, d, key, lanes, count);
}

fedmpdd_result all_add(fedmpdd_stream *stream, const float *piece, uint32_t length) {
    return fedmpdd_add(stream, piece, length);
}

fedmpdd_result all_end(fedmpdd_stream *stream, fedmpdd_frame frame, uint8_t *out, size_t room, size_t *length) {
    return fedmpdd_end(stream, frame, out, room, length);
}

fedmpdd_result all_key(uint64_t session, fedmpdd_way way, uint32_t round, uint64_t client, fedmpdd_key *key) {
    return fedmpdd_assign_key(session, way, round, client, key);
}

uint32_t all_peaks(uint32_t m, uint32_t grows_to, uint32_t grows_after, uint32_t round) {
    return fedmpdd_peaks_at(m, grows_to, grows_after, round);
}

uint32_t all_floats(const fedmpdd_codec *codec, uint32_t d) {
    return fedmpdd_buffer_floats(codec, d);
}

uint64_t all_bytes(const fedmpdd_codec *codec, fedmpdd_frame frame) {
    return fedmpdd_frame_bytes(codec, frame);
}
