// Eight lanes of AVX2.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace fedmpdd {
namespace {

struct Avx2Simd {
  static constexpr const char* name = "avx2";
  static constexpr int lanes = 8;
  static constexpr int halves = 2;  // even lanes, then odd lanes
  static constexpr int radix_stages = 3;
  using F = __m256;
  using U = __m256i;
  using Half = __m256i;
  using Table = __m256;

  static Half half_set(std::uint32_t value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }
  static Half half_spread(const std::uint64_t* value) { return _mm256_set1_epi64x(static_cast<long long>(*value)); }
  static Half half_iota(int half, std::uint32_t first) {
    const __m256i steps = _mm256_add_epi64(_mm256_set_epi64x(6, 4, 2, 0), _mm256_set1_epi64x(half));
    return _mm256_add_epi32(half_set(first), steps);
  }
  static Half mul(Half a, std::uint32_t constant) { return _mm256_mul_epu32(a, half_set(constant)); }
  static Half high(Half product) { return _mm256_srli_epi64(product, 32); }
  static Half half_xor(Half a, Half b) { return _mm256_xor_si256(a, b); }
  static Half half_xor3(Half a, Half b, Half c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
  static U merge_low(const Half* h) { return _mm256_blend_epi32(h[0], _mm256_slli_epi64(h[1], 32), 0xAA); }
  static U merge_high(const Half* h) { return _mm256_blend_epi32(_mm256_srli_epi64(h[0], 32), h[1], 0xAA); }

  static U set(std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
  static U load_words(const std::uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store_words(std::uint32_t* p, U a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
  static U bit_xor(U a, U b) { return _mm256_xor_si256(a, b); }
  static U xor3(U a, U b, U c) { return half_xor3(a, b, c); }
  static U bit_and(U a, U b) { return _mm256_and_si256(a, b); }
  static U bit_or(U a, U b) { return _mm256_or_si256(a, b); }
  static U majority(U a, U b, U c) {
    return _mm256_or_si256(_mm256_and_si256(a, b), _mm256_and_si256(c, _mm256_or_si256(a, b)));
  }
  static U select(U mask, U a, U b) {
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
  }
  template <int n> static U shl(U a) { return _mm256_slli_epi32(a, n); }
  template <int n> static U shr(U a) { return _mm256_srli_epi32(a, n); }

  static F zero() { return _mm256_setzero_ps(); }
  static F splat(float value) { return _mm256_set1_ps(value); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F from_int(U a) { return _mm256_cvtepi32_ps(a); }
  static U int_sub(U a, U b) { return _mm256_sub_epi32(a, b); }
  template <int bit> static F flip(F a, U words) {
    return _mm256_xor_ps(a, _mm256_castsi256_ps(bit_and(_mm256_slli_epi32(words, 31 - bit), set(0x80000000u))));
  }
  // sum + sign * a for a sign of ±1.
  static F add_signed(F sum, F a, const float* sign) { return add(sum, mul(a, splat(*sign))); }
  static void add_to_doubles(double* out, F a) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
    _mm256_storeu_pd(out, _mm256_add_pd(_mm256_loadu_pd(out), low));
    _mm256_storeu_pd(out + 4, _mm256_add_pd(_mm256_loadu_pd(out + 4), high));
  }

  // A table of signed sums is odd, entry 15 - n = -(entry n), so its first eight entries, one register, do:
  // `prepare` turns a nibble 8 + r into 8 + (7 - r), and lookup flips the sign where bit 3 is set.
  static Table load_table(const float* entries) { return _mm256_loadu_ps(entries); }
  static U prepare(U words) {
    const U top = bit_and(words, set(0x88888888u));
    return bit_xor(bit_xor(words, shr<1>(top)), bit_xor(shr<2>(top), shr<3>(top)));
  }
  template <int p> static F lookup(Table table, U words) {
    return flip<4 * p + 3>(_mm256_permutevar8x32_ps(table, _mm256_srli_epi32(words, 4 * p)), words);
  }

  static F small_butterflies(F a) {
    a = butterfly(a, _mm256_permute_ps(a, 0xB1), _mm256_setr_ps(0.f, -0.f, 0.f, -0.f, 0.f, -0.f, 0.f, -0.f));
    a = butterfly(a, _mm256_permute_ps(a, 0x4E), _mm256_setr_ps(0.f, 0.f, -0.f, -0.f, 0.f, 0.f, -0.f, -0.f));
    return butterfly(a, _mm256_permute2f128_ps(a, a, 0x01),
                     _mm256_setr_ps(0.f, 0.f, 0.f, 0.f, -0.f, -0.f, -0.f, -0.f));
  }

 private:
  // partner + a in the first lane of a pair, partner - a in the second.
  static F butterfly(F a, F partner, F second_sign) {
    return _mm256_add_ps(partner, _mm256_xor_ps(a, second_sign));
  }
};

}  // namespace
}  // namespace fedmpdd
