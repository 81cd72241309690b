// The inner loops, written once over a set of vector operations `S` (see simd_plain.hpp for what each means).
// Included by one translation unit per instruction set; the anonymous namespace keeps the instances apart.
//
// Every floating-point operation here is part of the published order of additions (docs/directions.md):
// nothing is reassociated and nothing fused, so all instruction sets give the same bits.
#pragma once
#include <cstring>

#include "kernels.hpp"
#include "philox.hpp"

namespace fedmpdd {
namespace {

struct RoundKeys {
  std::uint32_t k0[kPhiloxRounds], k1[kPhiloxRounds];
  std::uint64_t wide0[kPhiloxRounds], wide1[kPhiloxRounds];  // the same, ready to be spread over 64-bit lanes
  explicit RoundKeys(std::uint64_t seed) {
    for (std::uint32_t r = 0; r < kPhiloxRounds; ++r) {
      wide0[r] = k0[r] = static_cast<std::uint32_t>(seed) + r * kPhiloxW0;
      wide1[r] = k1[r] = static_cast<std::uint32_t>(seed >> 32) + r * kPhiloxW1;
    }
  }
};

inline std::uint32_t high32(std::uint64_t product) { return static_cast<std::uint32_t>(product >> 32); }
inline std::uint32_t low32(std::uint64_t product) { return static_cast<std::uint32_t>(product); }
inline std::uint64_t wide(std::uint32_t a, std::uint32_t b) { return static_cast<std::uint64_t>(a) * b; }

// Rounds four to ten, and the joining of the even and odd lanes. c0..c3 is the state after round three.
template <class S>
inline void finish_philox(const RoundKeys& keys, typename S::Half* c0, typename S::Half* c1, typename S::Half* c2,
                          typename S::Half* c3, typename S::U out[4]) {
  using Half = typename S::Half;
  for (int r = 3; r < kPhiloxRounds - 1; ++r) {
    const Half k0 = S::half_spread(&keys.wide0[r]), k1 = S::half_spread(&keys.wide1[r]);
    for (int h = 0; h < S::halves; ++h) {
      const Half p0 = S::mul(c0[h], kPhiloxM0), p1 = S::mul(c2[h], kPhiloxM1);
      c0[h] = S::half_xor3(S::high(p1), c1[h], k0);
      c1[h] = p1;
      c2[h] = S::half_xor3(S::high(p0), c3[h], k1);
      c3[h] = p0;
    }
  }
  Half p0[2], p1[2];
  for (int h = 0; h < S::halves; ++h) {
    p0[h] = S::mul(c0[h], kPhiloxM0);
    p1[h] = S::mul(c2[h], kPhiloxM1);
  }
  out[0] = S::xor3(S::merge_high(p1), S::merge_low(c1), S::set(keys.k0[kPhiloxRounds - 1]));
  out[1] = S::merge_low(p1);
  out[2] = S::xor3(S::merge_high(p0), S::merge_low(c3), S::set(keys.k1[kPhiloxRounds - 1]));
  out[3] = S::merge_low(p0);
}

// What depends on the block alone, in memory: spreading it over lanes from there is free.
struct BlockWords {
  std::uint64_t c2, v0, v2, v3;
  BlockWords() = default;
  BlockWords(const RoundKeys& keys, std::uint64_t index) {
    const std::uint64_t p = wide(kPhiloxM0, low32(index));
    const std::uint64_t q = wide(kPhiloxM1, high32(p) ^ high32(index) ^ keys.k1[0]);
    const std::uint64_t r = wide(kPhiloxM0, high32(q) ^ low32(wide(kPhiloxM1, kDomainDirections)) ^ keys.k0[1]);
    c2 = low32(p) ^ keys.k1[1];
    v0 = low32(q) ^ keys.k0[2];
    v2 = high32(r) ^ keys.k1[2];
    v3 = low32(r);
  }
};

// One block of `lanes` consecutive directions. In the first rounds most of the state is the same in every
// lane or the same for every block; only what varies in both is computed here per block.
template <class S>
struct PhiloxAcrossDirections {
  using Half = typename S::Half;
  const RoundKeys& keys;
  Half high2[2], low2[2];  // products of round two that depend on the direction alone

  PhiloxAcrossDirections(const RoundKeys& keys_, std::uint32_t first) : keys(keys_) {
    const std::uint32_t common = high32(wide(kPhiloxM1, kDomainDirections)) ^ keys.k0[0];
    for (int h = 0; h < S::halves; ++h) {
      low2[h] = S::mul(S::half_xor(S::half_iota(h, first), S::half_set(common)), kPhiloxM0);
      high2[h] = S::high(low2[h]);
    }
  }

  void block(const BlockWords& own, typename S::U out[4]) const {
    const Half in_c2 = S::half_spread(&own.c2), in_v0 = S::half_spread(&own.v0), in_v2 = S::half_spread(&own.v2);
    Half v0[2], v1[2], v2[2], v3[2];
    for (int h = 0; h < S::halves; ++h) {
      const Half p1 = S::mul(S::half_xor(high2[h], in_c2), kPhiloxM1);
      v0[h] = S::half_xor(S::high(p1), in_v0);
      v1[h] = p1;
      v2[h] = S::half_xor(low2[h], in_v2);
      v3[h] = S::half_spread(&own.v3);
    }
    finish_philox<S>(keys, v0, v1, v2, v3, out);
  }
};

// What depends on the direction alone, likewise.
struct DirectionWords {
  std::uint64_t c2, v2;
  DirectionWords() = default;
  DirectionWords(const RoundKeys& keys, std::uint32_t domain, std::uint32_t index) {
    const std::uint64_t p = wide(kPhiloxM0, high32(wide(kPhiloxM1, domain)) ^ index ^ keys.k0[0]);
    c2 = high32(p) ^ keys.k1[1];
    v2 = low32(p) ^ keys.k1[2];
  }
};

// One direction of `lanes` consecutive blocks, likewise.
template <class S>
struct PhiloxAcrossBlocks {
  using Half = typename S::Half;
  const RoundKeys& keys;
  std::uint32_t domain;
  Half low1[2], c1[2], high3[2], low3[2];

  PhiloxAcrossBlocks(const RoundKeys& keys_, std::uint32_t domain_, std::uint64_t first_block)
      : keys(keys_), domain(domain_) {
    const std::uint32_t lo1 = low32(wide(kPhiloxM1, domain));
    for (int h = 0; h < S::halves; ++h) {
      // Sixteen consecutive blocks start at a multiple of sixteen: the low word cannot wrap among them.
      low1[h] = S::mul(S::half_iota(h, low32(first_block)), kPhiloxM0);
      const Half c2 = S::half_xor(S::high(low1[h]), S::half_set(high32(first_block) ^ keys.k1[0]));
      c1[h] = S::mul(c2, kPhiloxM1);
      const Half c0 = S::half_xor(S::high(c1[h]), S::half_set(lo1 ^ keys.k0[1]));
      low3[h] = S::mul(c0, kPhiloxM0);
      high3[h] = S::high(low3[h]);
    }
  }

  void direction(const DirectionWords& own, typename S::U out[4]) const {
    const Half in_c2 = S::half_spread(&own.c2), in_v2 = S::half_spread(&own.v2), in_v0 = S::half_spread(&keys.wide0[2]);
    Half v0[2], v1[2], v2[2], v3[2];
    for (int h = 0; h < S::halves; ++h) {
      const Half p1 = S::mul(S::half_xor(low1[h], in_c2), kPhiloxM1);
      v0[h] = S::half_xor3(S::high(p1), c1[h], in_v0);
      v1[h] = p1;
      v2[h] = S::half_xor(high3[h], in_v2);
      v3[h] = low3[h];
    }
    finish_philox<S>(keys, v0, v1, v2, v3, out);
  }
};

// entry n = (±a ±b) + (±c ±d), a minus where bit 0, 1, 2, 3 of n is set.
struct SignedSums {
  alignas(64) float sign[4][16];
  SignedSums() {
    for (int bit = 0; bit < 4; ++bit)
      for (int n = 0; n < 16; ++n) sign[bit][n] = (n >> bit) & 1 ? -1.0f : 1.0f;
  }
  void fill(float* table, float a, float b, float c, float d) const {
    for (int n = 0; n < 16; ++n) table[n] = (sign[0][n] * a + sign[1][n] * b) + (sign[2][n] * c + sign[3][n] * d);
  }
};

// ---------------------------------------------------------------------------------------------- encode

constexpr int kUnitBlocks = 4;   // a unit: four blocks of a tile, 512 coordinates, summed in float32
constexpr int kTableFloats = 16;
constexpr int kWordTables = 8;   // one table per four bits of a word

template <class S, int q>
inline void add_lookups(typename S::F* sums, const float* tables, typename S::U words) {
  if constexpr (q > 0) add_lookups<S, q - 1>(sums, tables, words);
  if constexpr (q >= 0) {
    const auto table = S::load_table(tables + q * kTableFloats);
    sums[q] = S::add(sums[q], S::template lookup<q>(table, words));
  }
}

// `quads` of the eight fours of bits per word are in use; the rest would add zeros.
template <class S, int quads>
void encode_unit(const float* tables, std::uint64_t first_block, const RoundKeys& keys, std::uint32_t first,
                 std::uint32_t count, double* out) {
  using F = typename S::F;
  BlockWords blocks[kUnitBlocks];
  for (int l = 0; l < kUnitBlocks; ++l) blocks[l] = BlockWords(keys, first_block + l);
  for (std::uint32_t j = 0; j < count; j += S::lanes) {
    const PhiloxAcrossDirections<S> philox(keys, first + j);
    F sums[8];
    for (int q = 0; q < 8; ++q) sums[q] = S::zero();
    const float* table = tables;
    for (int l = 0; l < kUnitBlocks; ++l) {
      typename S::U words[4];
      philox.block(blocks[l], words);
      for (int w = 0; w < 4; ++w, table += kWordTables * kTableFloats)
        add_lookups<S, quads - 1>(sums, table, S::prepare(words[w]));
    }
    const F low = S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]));
    const F high = S::add(S::add(sums[4], sums[5]), S::add(sums[6], sums[7]));
    S::add_to_doubles(out + j, S::add(low, high));
  }
}

template <class S>
void rademacher_encode(const float* g, std::uint64_t coordinates, std::uint64_t tile, std::uint64_t seed,
                       std::uint32_t first, std::uint32_t count, double* out) {
  using Unit = void (*)(const float*, std::uint64_t, const RoundKeys&, std::uint32_t, std::uint32_t, double*);
  static constexpr Unit units[8] = {encode_unit<S, 1>, encode_unit<S, 2>, encode_unit<S, 3>, encode_unit<S, 4>,
                                    encode_unit<S, 5>, encode_unit<S, 6>, encode_unit<S, 7>, encode_unit<S, 8>};
  const RoundKeys keys(seed);
  const SignedSums sums;
  alignas(64) float padded[kTile];
  alignas(64) float tables[kUnitBlocks * 4 * kWordTables * kTableFloats];
  for (std::uint64_t begin = 0; begin < coordinates; begin += kTile, ++tile) {
    const float* x = g + begin;
    const std::uint64_t left = coordinates - begin;
    int quads = 8;
    if (left < kTile) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, x, left * sizeof(float));
      x = padded;
      quads = static_cast<int>((left + 4 * kWordStride - 1) / (4 * kWordStride));
    }
    for (int unit = 0; unit < kTileBlocks / kUnitBlocks; ++unit) {
      float* table = tables;
      for (int l = unit * kUnitBlocks; l < (unit + 1) * kUnitBlocks; ++l)
        for (int w = 0; w < 4; ++w, table += kWordTables * kTableFloats)
          for (int q = 0; q < quads; ++q) {
            const float* y = x + 4 * kWordStride * q + 16 * w + l;
            sums.fill(table + q * kTableFloats, y[0], y[kWordStride], y[2 * kWordStride], y[3 * kWordStride]);
          }
      units[quads - 1](tables, tile * kTileBlocks + unit * kUnitBlocks, keys, first, count, out);
    }
  }
}

// ---------------------------------------------------------------------------------------------- decode

constexpr int kGroup = 16;  // directions whose words are held at once: four fours

// The words of up to sixteen directions over one tile: [direction][word of block][block].
struct GroupWords {
  alignas(64) std::uint32_t words[kGroup][4][kTileBlocks];
};

template <class S>
struct TilePhilox {
  static constexpr int parts = kTileBlocks / S::lanes;
  const RoundKeys& keys;
  std::uint32_t domain;
  std::uint64_t first_block;

  TilePhilox(const RoundKeys& keys_, std::uint32_t domain_, std::uint64_t tile)
      : keys(keys_), domain(domain_), first_block(tile * kTileBlocks) {}
  // The words of `count` directions from `first` on.
  void words(std::uint32_t first, int count, std::uint32_t (*out)[4][kTileBlocks]) const {
    DirectionWords own[kGroup];
    for (int k = 0; k < count; ++k) own[k] = DirectionWords(keys, domain, first + static_cast<std::uint32_t>(k));
    for (int part = 0; part < parts; ++part) {
      const PhiloxAcrossBlocks<S> philox(keys, domain, first_block + part * S::lanes);
      for (int k = 0; k < count; ++k) {
        typename S::U words[4];
        philox.direction(own[k], words);
        for (int w = 0; w < 4; ++w) S::store_words(&out[k][w][part * S::lanes], words[w]);
      }
    }
  }
};

// Four words of bits become four words of nibbles: nibble p of out[r] is bit 4p + r of in[0], in[1], in[2], in[3].
template <class S>
inline void interleave(const typename S::U in[4], typename S::U out[4]) {
  using U = typename S::U;
  const U even = S::set(0x55555555u), pairs = S::set(0x33333333u);
  const U a01 = S::select(even, in[0], S::template shl<1>(in[1]));
  const U b01 = S::select(even, S::template shr<1>(in[0]), in[1]);
  const U a23 = S::select(even, in[2], S::template shl<1>(in[3]));
  const U b23 = S::select(even, S::template shr<1>(in[2]), in[3]);
  out[0] = S::select(pairs, a01, S::template shl<2>(a23));
  out[1] = S::select(pairs, b01, S::template shl<2>(b23));
  out[2] = S::select(pairs, S::template shr<2>(a01), a23);
  out[3] = S::select(pairs, S::template shr<2>(b01), b23);
}

template <class S, int quads, int p>
inline void add_columns(float* acc, int r, int bits, const typename S::Table* tables, const typename S::U (*nibbles)[4]) {
  if constexpr (p > 0) add_columns<S, quads, p - 1>(acc, r, bits, tables, nibbles);
  if (4 * p + r < bits) {
    float* column = acc + (4 * p + r) * kWordStride;
    auto sum = S::load(column);
    for (int quad = 0; quad < quads; ++quad)
      sum = S::add(sum, S::template lookup<p>(tables[quad], nibbles[quad][r]));
    S::store(column, sum);
  }
}

template <class S, int quads>
void decode_group(float* acc, int bits, const GroupWords& group, const float* table_floats) {
  typename S::Table tables[quads];
  for (int quad = 0; quad < quads; ++quad) tables[quad] = S::load_table(table_floats + quad * kTableFloats);
  for (int w = 0; w < 4; ++w)
    for (int part = 0; part < kTileBlocks; part += S::lanes) {
      typename S::U nibbles[quads][4];
      for (int quad = 0; quad < quads; ++quad) {
        typename S::U in[4];
        for (int b = 0; b < 4; ++b) in[b] = S::load_words(&group.words[4 * quad + b][w][part]);
        interleave<S>(in, nibbles[quad]);
        for (int r = 0; r < 4; ++r) nibbles[quad][r] = S::prepare(nibbles[quad][r]);
      }
      for (int r = 0; r < 4; ++r) add_columns<S, quads, 7>(acc + 16 * w + part, r, bits, tables, nibbles);
    }
}

inline int bits_in_use(int coordinates) { return (coordinates + kWordStride - 1) / kWordStride; }

template <class S>
void rademacher_decode(float* acc, int coordinates, std::uint64_t tile, const DecodeItem* items,
                       std::size_t item_count, std::uint32_t m) {
  const SignedSums sums;
  const int bits = bits_in_use(coordinates);
  GroupWords group = {};
  alignas(64) float tables[4 * kTableFloats];
  for (std::size_t i = 0; i < item_count; ++i) {
    const DecodeItem& item = items[i];
    const RoundKeys keys(item.seed);
    const TilePhilox<S> philox(keys, kDomainDirections, tile);
    for (std::uint32_t j = 0; j < m; j += kGroup) {
      const int count = static_cast<int>(m - j < kGroup ? m - j : kGroup);
      float c[kGroup] = {};
      for (int k = 0; k < count; ++k) c[k] = item.coefficient(item.scalars[j + k]);
      philox.words(static_cast<std::uint32_t>(item.first) + j, count, group.words);
      const int quads = (count + 3) / 4;
      for (int q = 0; q < quads; ++q) sums.fill(tables + q * kTableFloats, c[4 * q], c[4 * q + 1], c[4 * q + 2], c[4 * q + 3]);
      switch (quads) {
        case 4: decode_group<S, 4>(acc, bits, group, tables); break;
        case 3: decode_group<S, 3>(acc, bits, group, tables); break;
        case 2: decode_group<S, 2>(acc, bits, group, tables); break;
        default: decode_group<S, 1>(acc, bits, group, tables); break;
      }
    }
  }
}

// -------------------------------------------------------------------------------------- one-bit decode

constexpr int kMaxPlanes = 32;

// Adds three bits per position: sum stays in `a`, the carry is returned.
template <class S>
inline typename S::U full_add(typename S::U& a, typename S::U b, typename S::U c) {
  const auto carry = S::majority(a, b, c);
  a = S::xor3(a, b, c);
  return carry;
}

// Adds sixteen one-bit words to bit-sliced counters.
template <class S>
inline void count_group(std::uint32_t (*planes)[kTileBlocks], int plane_count, const GroupWords& group,
                        const std::uint32_t flips[kGroup], int w, int part) {
  using U = typename S::U;
  U plane[5];
  for (int k = 0; k < 4; ++k) plane[k] = S::load_words(&planes[k][part]);
  const auto word = [&](int k) { return S::bit_xor(S::load_words(&group.words[k][w][part]), S::set(flips[k])); };
  U eights[2];
  for (int half = 0; half < 2; ++half) {
    U fours[2];
    for (int quarter = 0; quarter < 2; ++quarter) {
      const int k = 8 * half + 4 * quarter;
      const U twos_a = full_add<S>(plane[0], word(k), word(k + 1));
      const U twos_b = full_add<S>(plane[0], word(k + 2), word(k + 3));
      fours[quarter] = full_add<S>(plane[1], twos_a, twos_b);
    }
    eights[half] = full_add<S>(plane[2], fours[0], fours[1]);
  }
  U carry = full_add<S>(plane[3], eights[0], eights[1]);
  for (int k = 0; k < 4; ++k) S::store_words(&planes[k][part], plane[k]);
  for (int k = 4; k < plane_count; ++k) {
    const U old = S::load_words(&planes[k][part]);
    S::store_words(&planes[k][part], S::bit_xor(old, carry));
    carry = S::bit_and(old, carry);
  }
}

template <class S, int p>
inline void add_votes(float* acc, int r, int bits, const typename S::U (*nibbles)[4], int nibble_count,
                      typename S::U m, typename S::F coefficient) {
  using U = typename S::U;
  if constexpr (p > 0) add_votes<S, p - 1>(acc, r, bits, nibbles, nibble_count, m, coefficient);
  if (4 * p + r < bits) {
    U count = S::set(0);
    for (int k = nibble_count - 1; k >= 0; --k)
      count = S::bit_or(S::template shl<4>(count), S::bit_and(S::template shr<4 * p>(nibbles[k][r]), S::set(15)));
    const U votes = S::int_sub(m, S::template shl<1>(count));  // plus minus minus
    float* column = acc + (4 * p + r) * kWordStride;
    S::store(column, S::add(S::load(column), S::mul(coefficient, S::from_int(votes))));
  }
}

template <class S>
void onebit_decode(float* acc, int coordinates, std::uint64_t tile, const DecodeItem* items, std::size_t item_count,
                   std::uint32_t m) {
  const int bits = bits_in_use(coordinates);
  int plane_count = 4;
  while (plane_count < kMaxPlanes && (m >> plane_count) != 0) ++plane_count;
  const int nibble_count = (plane_count + 3) / 4;
  GroupWords group = {};
  alignas(64) std::uint32_t planes[4][kMaxPlanes][kTileBlocks];
  for (std::size_t i = 0; i < item_count; ++i) {
    const DecodeItem& item = items[i];
    const RoundKeys keys(item.seed);
    const TilePhilox<S> philox(keys, kDomainDirections, tile);
    for (int w = 0; w < 4; ++w) std::memset(planes[w], 0, static_cast<std::size_t>(4 * nibble_count) * sizeof planes[w][0]);
    for (std::uint32_t j = 0; j < m; j += kGroup) {
      const int count = static_cast<int>(m - j < kGroup ? m - j : kGroup);
      std::uint32_t flips[kGroup] = {};
      for (int k = 0; k < count; ++k) flips[k] = 0u - ((item.negative[(j + k) / 8] >> ((j + k) % 8)) & 1u);
      philox.words(static_cast<std::uint32_t>(item.first) + j, count, group.words);
      for (int k = count; k < kGroup; ++k) std::memset(group.words[k], 0, sizeof group.words[k]);
      for (int w = 0; w < 4; ++w)
        for (int part = 0; part < kTileBlocks; part += S::lanes)
          count_group<S>(planes[w], plane_count, group, flips, w, part);
    }
    const auto coefficient = S::splat(item.coefficient(1.0f));
    for (int w = 0; w < 4; ++w)
      for (int part = 0; part < kTileBlocks; part += S::lanes) {
        typename S::U nibbles[kMaxPlanes / 4][4];
        for (int k = 0; k < nibble_count; ++k) {
          typename S::U in[4];
          for (int b = 0; b < 4; ++b) in[b] = S::load_words(&planes[w][4 * k + b][part]);
          interleave<S>(in, nibbles[k]);
        }
        for (int r = 0; r < 4; ++r)
          add_votes<S, 7>(acc + 16 * w + part, r, bits, nibbles, nibble_count, S::set(m), coefficient);
      }
  }
}

// ------------------------------------------------------------------------------------------- hadamard

template <class S, int bit>
inline void flip_columns(const float* in, float* out, int bits, typename S::U words, bool accumulate) {
  if constexpr (bit > 0) flip_columns<S, bit - 1>(in, out, bits, words, accumulate);
  if (bit < bits) {
    const auto value = S::template flip<bit>(S::load(in + bit * kWordStride), words);
    float* column = out + bit * kWordStride;
    S::store(column, S::add(accumulate ? S::load(column) : S::zero(), value));
  }
}

template <class S>
void apply_signs(const float* in, float* out, int coordinates, std::uint64_t tile, std::uint64_t seed,
                 std::uint32_t domain, std::uint32_t index, bool accumulate) {
  alignas(64) float in_padded[kTile], out_padded[kTile];
  const std::size_t bytes = static_cast<std::size_t>(coordinates) * sizeof(float);
  const bool partial = coordinates < kTile;
  const float* x = in;
  float* y = out;
  if (partial) {
    std::memset(in_padded, 0, sizeof in_padded);
    std::memcpy(in_padded, in, bytes);
    std::memset(out_padded, 0, sizeof out_padded);
    if (accumulate) std::memcpy(out_padded, out, bytes);
    x = in_padded;
    y = out_padded;
  }
  const RoundKeys keys(seed);
  const TilePhilox<S> philox(keys, domain, tile);
  alignas(64) std::uint32_t words[4][kTileBlocks];
  philox.words(index, 1, &words);
  const int bits = bits_in_use(coordinates);
  for (int w = 0; w < 4; ++w)
    for (int part = 0; part < kTileBlocks; part += S::lanes)
      flip_columns<S, 31>(x + 16 * w + part, y + 16 * w + part, bits, S::load_words(&words[w][part]), accumulate);
  if (partial) std::memcpy(out, out_padded, bytes);
}

// Spelled out by recursion: the values must stay in registers, and compilers give up on the loops.
template <class S, int stages, int i>
inline void butterfly_pairs(typename S::F* v, int step) {
  if constexpr (i > 0) butterfly_pairs<S, stages, i - 1>(v, step);
  const int low = i & (step - 1), first = ((i - low) << 1) | low;
  const auto a = v[first], b = v[first + step];
  v[first] = S::add(a, b);
  v[first + step] = S::sub(a, b);
}

template <class S, int stages, int stage = 0>
inline void butterflies(typename S::F* v) {
  butterfly_pairs<S, stages, (1 << (stages - 1)) - 1>(v, 1 << stage);
  if constexpr (stage + 1 < stages) butterflies<S, stages, stage + 1>(v);
}

template <class S, int stages>
inline void column_butterflies(float* x, std::uint64_t stride, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t c = begin; c < end; c += S::lanes) {
    typename S::F v[1 << stages];
    for (int i = 0; i < (1 << stages); ++i) v[i] = S::load(x + c + i * stride);
    butterflies<S, stages>(v);
    for (int i = 0; i < (1 << stages); ++i) S::store(x + c + i * stride, v[i]);
  }
}

template <class S>
void fwht_columns(float* x, std::uint64_t stride, int stages, std::uint64_t begin, std::uint64_t end) {
  switch (stages) {
    case 4: column_butterflies<S, 4>(x, stride, begin, end); break;
    case 3: column_butterflies<S, 3>(x, stride, begin, end); break;
    case 2: column_butterflies<S, 2>(x, stride, begin, end); break;
    default: column_butterflies<S, 1>(x, stride, begin, end); break;
  }
}

template <class S>
void fwht(float* x, std::uint64_t n) {
  constexpr int registers = 1 << S::radix_stages;
  std::uint64_t stride = 1;
  if (n >= static_cast<std::uint64_t>(S::lanes) * registers) {
    for (std::uint64_t base = 0; base < n; base += S::lanes * registers) {
      typename S::F v[registers];
      for (int i = 0; i < registers; ++i) v[i] = S::small_butterflies(S::load(x + base + i * S::lanes));
      butterflies<S, S::radix_stages>(v);
      for (int i = 0; i < registers; ++i) S::store(x + base + i * S::lanes, v[i]);
    }
    stride = S::lanes * registers;
    while (stride < n) {
      int stages = 1;
      while (stages < S::radix_stages && (stride << stages) < n) ++stages;
      for (std::uint64_t base = 0; base < n; base += stride << stages)
        fwht_columns<S>(x + base, stride, stages, 0, stride);
      stride <<= stages;
    }
    return;
  }
  for (; stride < n; stride *= 2)
    for (std::uint64_t base = 0; base < n; base += 2 * stride)
      for (std::uint64_t i = base; i < base + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
}

// The matrix as ±1.0, so that a sum needs no branch.
struct OuterSigns {
  alignas(64) float sign[28][28];
  explicit OuterSigns(const OuterMatrix& matrix) {
    for (int row = 0; row < matrix.order; ++row)
      for (int column = 0; column < matrix.order; ++column)
        sign[row][column] = (matrix.negative[row] >> column) & 1 ? -1.0f : 1.0f;
  }
};

template <class S>
inline void outer_transpose_columns(float* z, std::uint64_t columns, int order, const OuterSigns& signs) {
  constexpr int together = 4;  // independent sums, to hide the latency of additions; divides every order
  typename S::F in[28];
  for (int a = 0; a < order; ++a) in[a] = S::load(z + a * columns);
  for (int out = 0; out < order; out += together) {
    typename S::F sums[together];
    for (int k = 0; k < together; ++k) sums[k] = S::zero();
    for (int a = 0; a < order; ++a)
      for (int k = 0; k < together; ++k)
        sums[k] = S::add_signed(sums[k], in[a], &signs.sign[a][out + k]);
    for (int k = 0; k < together; ++k) S::store(z + (out + k) * columns, sums[k]);
  }
}

template <class S>
void outer_transpose(float* z, std::uint64_t columns, const OuterMatrix& matrix, std::uint64_t begin,
                     std::uint64_t end) {
  const OuterSigns signs(matrix);
  std::uint64_t b = begin;
  for (; b + S::lanes <= end; b += S::lanes) outer_transpose_columns<S>(z + b, columns, matrix.order, signs);
  for (; b < end; ++b) {
    float in[28];
    for (int a = 0; a < matrix.order; ++a) in[a] = z[a * columns + b];
    for (int out = 0; out < matrix.order; ++out) {
      float sum = 0.0f;
      for (int a = 0; a < matrix.order; ++a) sum += signs.sign[a][out] * in[a];
      z[out * columns + b] = sum;
    }
  }
}

// Several rows side by side, since the additions of one row wait for each other.
template <class S>
void outer_rows(const float* y, int log2, const OuterMatrix& matrix, const std::uint64_t* rows, int count, float* out) {
  constexpr int together = 16;
  const std::uint64_t mask = (std::uint64_t{1} << log2) - 1;
  for (int begin = 0; begin < count; begin += together) {
    const int n = count - begin < together ? count - begin : together;
    const float* columns[together];
    std::uint32_t negative[together];
    float sums[together] = {};
    for (int i = 0; i < together; ++i) {
      const std::uint64_t row = rows[begin + (i < n ? i : 0)];
      columns[i] = y + (row & mask);
      negative[i] = matrix.negative[row >> log2];
    }
    for (int a = 0; a < matrix.order; ++a)
      for (int i = 0; i < together; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, columns[i] + (static_cast<std::uint64_t>(a) << log2), sizeof bits);
        bits ^= (negative[i] >> a) << 31;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        sums[i] += value;
      }
    for (int i = 0; i < n; ++i) out[begin + i] = sums[i];
  }
}

// The finaliser of MurmurHash3 over the other half plus the round's key.
inline std::uint32_t feistel_mix(std::uint32_t other, std::uint32_t key) {
  std::uint32_t x = other + key;
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}

// Plain loops over short arrays: compilers turn them into vector code for each instruction set.
template <class S>
void permute(const Feistel& feistel, std::uint64_t first, std::uint64_t count, std::uint64_t* rows) {
  constexpr int batch = 128;
  alignas(64) std::uint32_t left[batch], right[batch];
  const int right_bits = feistel.right_bits;
  const std::uint32_t right_mask = (1u << right_bits) - 1, left_size = feistel.left;
  for (std::uint64_t done = 0; done < count; done += batch) {
    const int n = static_cast<int>(count - done < batch ? count - done : batch);
    for (int i = 0; i < batch; ++i) {
      // Past the end of a short batch the values are not used.
      left[i] = static_cast<std::uint32_t>((first + done + i) >> right_bits);
      right[i] = static_cast<std::uint32_t>(first + done + i) & right_mask;
    }
    for (int r = 0; r < feistel.rounds; r += 2) {
      const std::uint32_t left_key = feistel.keys[r], right_key = feistel.keys[r + 1];
      for (int i = 0; i < batch; ++i) {
        const std::uint64_t scaled = static_cast<std::uint64_t>(feistel_mix(right[i], left_key)) * left_size;
        const std::uint32_t sum = left[i] + static_cast<std::uint32_t>(scaled >> 32);
        left[i] = sum < sum - left_size ? sum : sum - left_size;  // sum mod left, both terms being below it
      }
      // The same with a power of two: scaling is a shift (by 32 when there is one row half only), modulo a mask.
      for (int i = 0; i < batch; ++i)
        right[i] = (right[i] + (feistel_mix(left[i], right_key) >> 1 >> (31 - right_bits))) & right_mask;
    }
    for (int i = 0; i < n; ++i) rows[done + i] = (static_cast<std::uint64_t>(left[i]) << right_bits) | right[i];
  }
}

// So many sums side by side on every machine, so that every machine gets the same.
template <class S>
void moments(const float* x, std::uint64_t d, double lanes[2][kMomentLanes]) {
  constexpr int width = kMomentLanes;
  double second[width], fourth[width];
  for (int lane = 0; lane < width; ++lane) second[lane] = lanes[0][lane];
  for (int lane = 0; lane < width; ++lane) fourth[lane] = lanes[1][lane];
  std::uint64_t i = 0;
  for (; i + width <= d; i += width) {
    double squares[width];  // short loops, each of which compilers turn into vector code
    for (int lane = 0; lane < width; ++lane) squares[lane] = static_cast<double>(x[i + lane]) * x[i + lane];
    for (int lane = 0; lane < width; ++lane) second[lane] += squares[lane];
    for (int lane = 0; lane < width; ++lane) fourth[lane] += squares[lane] * squares[lane];
  }
  for (int lane = 0; lane < width; ++lane) lanes[0][lane] = second[lane];
  for (int lane = 0; lane < width; ++lane) lanes[1][lane] = fourth[lane];
  for (int lane = 0; i < d; ++i, ++lane) {
    const double square = static_cast<double>(x[i]) * x[i];
    lanes[0][lane] += square;
    lanes[1][lane] += square * square;
  }
}

template <class S>
constexpr Kernels make_kernels() {
  return {S::name,        rademacher_encode<S>, rademacher_decode<S>, onebit_decode<S>, apply_signs<S>,
          fwht<S>,        fwht_columns<S>,      outer_transpose<S>,   outer_rows<S>,    moments<S>,
          permute<S>};
}

}  // namespace
}  // namespace fedmpdd
