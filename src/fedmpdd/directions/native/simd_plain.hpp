// One lane, no vector instructions: the meaning of every operation, and the path of any other machine.
#pragma once
#include <cstdint>
#include <cstring>

namespace fedmpdd {
namespace {

struct PlainSimd {
  static constexpr const char* name = "plain";
  static constexpr int lanes = 1;
  static constexpr int halves = 1;      // Philox state: vectors of 64-bit lanes needed for `lanes` blocks
  static constexpr int radix_stages = 3;  // butterfly stages done on values held in registers
  using F = float;
  using U = std::uint32_t;
  using Half = std::uint64_t;
  using Table = const float*;

  // Philox state: a 32-bit value in the low part of each 64-bit lane; the high part is never read.
  static Half half_set(std::uint32_t value) { return value; }
  static Half half_spread(const std::uint64_t* value) { return *value; }
  static Half half_iota(int, std::uint32_t first) { return first; }
  static Half mul(Half a, std::uint32_t constant) { return static_cast<std::uint64_t>(static_cast<std::uint32_t>(a)) * constant; }
  static Half high(Half product) { return product >> 32; }
  static Half half_xor(Half a, Half b) { return a ^ b; }
  static Half half_xor3(Half a, Half b, Half c) { return a ^ b ^ c; }
  static U merge_low(const Half* h) { return static_cast<U>(h[0]); }
  static U merge_high(const Half* h) { return static_cast<U>(h[0] >> 32); }

  static U set(std::uint32_t value) { return value; }
  static U load_words(const std::uint32_t* p) { return *p; }
  static void store_words(std::uint32_t* p, U a) { *p = a; }
  static U bit_xor(U a, U b) { return a ^ b; }
  static U xor3(U a, U b, U c) { return a ^ b ^ c; }
  static U bit_and(U a, U b) { return a & b; }
  static U bit_or(U a, U b) { return a | b; }
  static U majority(U a, U b, U c) { return (a & b) | (c & (a | b)); }
  static U select(U mask, U a, U b) { return (a & mask) | (b & ~mask); }
  template <int n> static U shl(U a) { return a << n; }
  template <int n> static U shr(U a) { return a >> n; }

  static F zero() { return 0.0f; }
  static F splat(float value) { return value; }
  static F load(const float* p) { return *p; }
  static void store(float* p, F a) { *p = a; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F from_int(U a) { return static_cast<float>(static_cast<std::int32_t>(a)); }
  static U int_sub(U a, U b) { return a - b; }
  // Bit `bit` of each word becomes the float's sign flip.
  template <int bit> static F flip(F a, U words) {
    return from_bits(to_bits(a) ^ ((words << (31 - bit)) & 0x80000000u));
  }
  // sum + sign * a for a sign of ±1.
  static F add_signed(F sum, F a, const float* sign) { return add(sum, mul(a, splat(*sign))); }
  static void add_to_doubles(double* out, F a) { *out += static_cast<double>(a); }

  static Table load_table(const float* entries) { return entries; }
  static U prepare(U words) { return words; }
  // Entry number (nibble p of the word) of a 16-entry table.
  template <int p> static F lookup(Table table, U words) { return table[(words >> (4 * p)) & 15u]; }

  // All butterfly stages of strides below `lanes`.
  static F small_butterflies(F a) { return a; }

 private:
  static std::uint32_t to_bits(float a) { std::uint32_t b; std::memcpy(&b, &a, 4); return b; }
  static float from_bits(std::uint32_t b) { float a; std::memcpy(&a, &b, 4); return a; }
};

}  // namespace
}  // namespace fedmpdd
