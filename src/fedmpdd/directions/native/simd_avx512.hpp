// Sixteen lanes of AVX-512 (F, BW, DQ, VL).
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace fedmpdd {
namespace {

struct Avx512Simd {
  static constexpr const char* name = "avx512";
  static constexpr int lanes = 16;
  static constexpr int halves = 2;  // even lanes, then odd lanes
  static constexpr int radix_stages = 4;
  using F = __m512;
  using U = __m512i;
  using Half = __m512i;
  using Table = __m512;

  static Half half_set(std::uint32_t value) { return _mm512_set1_epi64(static_cast<long long>(value)); }
  static Half half_spread(const std::uint64_t* value) { return _mm512_set1_epi64(static_cast<long long>(*value)); }
  static Half half_iota(int half, std::uint32_t first) {
    const __m512i steps = _mm512_add_epi64(_mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0), _mm512_set1_epi64(half));
    return _mm512_add_epi32(half_set(first), steps);
  }
  static Half mul(Half a, std::uint32_t constant) { return _mm512_mul_epu32(a, half_set(constant)); }
  static Half high(Half product) { return _mm512_srli_epi64(product, 32); }
  static Half half_xor(Half a, Half b) { return _mm512_xor_si512(a, b); }
  static Half half_xor3(Half a, Half b, Half c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  static U merge_low(const Half* h) {
    return _mm512_mask_shuffle_epi32(h[0], 0xAAAA, h[1], static_cast<_MM_PERM_ENUM>(0xA0));
  }
  static U merge_high(const Half* h) {
    return _mm512_mask_shuffle_epi32(h[1], 0x5555, h[0], static_cast<_MM_PERM_ENUM>(0xF5));
  }

  static U set(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static U load_words(const std::uint32_t* p) { return _mm512_loadu_si512(p); }
  static void store_words(std::uint32_t* p, U a) { _mm512_storeu_si512(p, a); }
  static U bit_xor(U a, U b) { return _mm512_xor_si512(a, b); }
  static U xor3(U a, U b, U c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
  static U bit_and(U a, U b) { return _mm512_and_si512(a, b); }
  static U bit_or(U a, U b) { return _mm512_or_si512(a, b); }
  static U majority(U a, U b, U c) { return _mm512_ternarylogic_epi32(a, b, c, 0xE8); }
  static U select(U mask, U a, U b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xCA); }
  template <int n> static U shl(U a) { return _mm512_slli_epi32(a, n); }
  template <int n> static U shr(U a) { return _mm512_srli_epi32(a, n); }

  static F zero() { return _mm512_setzero_ps(); }
  static F splat(float value) { return _mm512_set1_ps(value); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  // sum + sign * a for a sign of ±1. Fused, yet the same bits as an addition: that product is exact.
  static F add_signed(F sum, F a, const float* sign) { return _mm512_fmadd_ps(a, _mm512_set1_ps(*sign), sum); }
  static F from_int(U a) { return _mm512_cvtepi32_ps(a); }
  static U int_sub(U a, U b) { return _mm512_sub_epi32(a, b); }
  template <int bit> static F flip(F a, U words) {
    // (words << (31 - bit)) & sign ^ a, as one three-input operation after the shift.
    const U shifted = _mm512_slli_epi32(words, 31 - bit);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(a), shifted, set(0x80000000u), 0x78));
  }
  static void add_to_doubles(double* out, F a) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
    _mm512_storeu_pd(out, _mm512_add_pd(_mm512_loadu_pd(out), low));
    _mm512_storeu_pd(out + 8, _mm512_add_pd(_mm512_loadu_pd(out + 8), high));
  }

  static Table load_table(const float* entries) { return _mm512_loadu_ps(entries); }
  static U prepare(U words) { return words; }
  // The permutation looks at the low four bits of each lane. It competes with shifts for execution units, so most
  // nibbles are brought there by a multiplication of 16-bit halves instead, which runs beside it.
  template <int p> static F lookup(Table table, U words) {
    const U half = p < 4 ? words : _mm512_srli_epi32(words, 16);
    const U low = p % 4 == 0 ? half : _mm512_mulhi_epu16(half, _mm512_set1_epi16(static_cast<short>(1 << (16 - 4 * (p % 4)))));
    return _mm512_permutexvar_ps(low, table);
  }

  static F small_butterflies(F a) {
    a = butterfly(a, _mm512_permute_ps(a, 0xB1), 0xAAAA);
    a = butterfly(a, _mm512_permute_ps(a, 0x4E), 0xCCCC);
    a = butterfly(a, _mm512_shuffle_f32x4(a, a, 0xB1), 0xF0F0);
    return butterfly(a, _mm512_shuffle_f32x4(a, a, 0x4E), 0xFF00);
  }

 private:
  // Lanes outside `second` hold the first of a pair and become first + second, the others first - second.
  static F butterfly(F a, F partner, __mmask16 second) {
    return _mm512_mask_sub_ps(_mm512_add_ps(a, partner), second, partner, a);
  }
};

}  // namespace
}  // namespace fedmpdd
