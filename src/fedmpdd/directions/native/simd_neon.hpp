// Four lanes of NEON (AArch64).
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace fedmpdd {
namespace {

struct NeonSimd {
  static constexpr const char* name = "neon";
  static constexpr int lanes = 4;
  static constexpr int halves = 2;  // even lanes, then odd lanes
  static constexpr int radix_stages = 3;
  using F = float32x4_t;
  using U = uint32x4_t;
  using Half = uint64x2_t;
  using Table = uint8x16x4_t;

  static Half half_set(std::uint32_t value) { return vdupq_n_u64(value); }
  static Half half_spread(const std::uint64_t* value) { return vdupq_n_u64(*value); }
  static Half half_iota(int half, std::uint32_t first) {
    const std::uint64_t lanes_[2] = {static_cast<std::uint32_t>(first + half), static_cast<std::uint32_t>(first + half + 2)};
    return vld1q_u64(lanes_);
  }
  static Half mul(Half a, std::uint32_t constant) { return vmull_u32(vmovn_u64(a), vdup_n_u32(constant)); }
  static Half high(Half product) { return vshrq_n_u64(product, 32); }
  static Half half_xor(Half a, Half b) { return veorq_u64(a, b); }
  static Half half_xor3(Half a, Half b, Half c) { return veorq_u64(veorq_u64(a, b), c); }
  static U merge_low(const Half* h) { return vtrn1q_u32(vreinterpretq_u32_u64(h[0]), vreinterpretq_u32_u64(h[1])); }
  static U merge_high(const Half* h) { return vtrn2q_u32(vreinterpretq_u32_u64(h[0]), vreinterpretq_u32_u64(h[1])); }

  static U set(std::uint32_t value) { return vdupq_n_u32(value); }
  static U load_words(const std::uint32_t* p) { return vld1q_u32(p); }
  static void store_words(std::uint32_t* p, U a) { vst1q_u32(p, a); }
  static U bit_xor(U a, U b) { return veorq_u32(a, b); }
  static U xor3(U a, U b, U c) { return veorq_u32(veorq_u32(a, b), c); }
  static U bit_and(U a, U b) { return vandq_u32(a, b); }
  static U bit_or(U a, U b) { return vorrq_u32(a, b); }
  static U majority(U a, U b, U c) { return vbslq_u32(veorq_u32(a, b), c, a); }
  static U select(U mask, U a, U b) { return vbslq_u32(mask, a, b); }
  template <int n> static U shl(U a) { return vshlq_n_u32(a, n); }
  template <int n> static U shr(U a) {
    if constexpr (n == 0) return a; else return vshrq_n_u32(a, n);
  }

  static F zero() { return vdupq_n_f32(0.0f); }
  static F splat(float value) { return vdupq_n_f32(value); }
  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F a) { vst1q_f32(p, a); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F from_int(U a) { return vcvtq_f32_s32(vreinterpretq_s32_u32(a)); }
  static U int_sub(U a, U b) { return vsubq_u32(a, b); }
  template <int bit> static F flip(F a, U words) {
    const U sign = vandq_u32(vshlq_n_u32(words, 31 - bit), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), sign));
  }
  // sum + sign * a for a sign of ±1.
  static F add_signed(F sum, F a, const float* sign) { return add(sum, mul(a, splat(*sign))); }
  static void add_to_doubles(double* out, F a) {
    vst1q_f64(out, vaddq_f64(vld1q_f64(out), vcvt_f64_f32(vget_low_f32(a))));
    vst1q_f64(out + 2, vaddq_f64(vld1q_f64(out + 2), vcvt_high_f64_f32(a)));
  }

  // Sixteen floats are the 64 bytes of one four-register byte table.
  static Table load_table(const float* entries) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(entries);
    return {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  }
  static U prepare(U words) { return words; }
  template <int p> static F lookup(Table table, U words) {
    const U nibble = vandq_u32(shr<4 * p>(words), vdupq_n_u32(15));
    const U bytes = vmlaq_u32(vdupq_n_u32(0x03020100u), nibble, vdupq_n_u32(0x04040404u));
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)));
  }

  static F small_butterflies(F a) {
    const std::uint32_t odd[4] = {0, 0x80000000u, 0, 0x80000000u};
    const std::uint32_t upper[4] = {0, 0, 0x80000000u, 0x80000000u};
    a = butterfly(a, vrev64q_f32(a), vld1q_u32(odd));
    return butterfly(a, vextq_f32(a, a, 2), vld1q_u32(upper));
  }

 private:
  // partner + a in the first lane of a pair, partner - a in the second.
  static F butterfly(F a, F partner, U second_sign) {
    return vaddq_f32(partner, vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), second_sign)));
  }
};

}  // namespace
}  // namespace fedmpdd
