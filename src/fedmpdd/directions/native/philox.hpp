// Philox4x32-10, one block at a time, and the constants every vector kernel shares.
#pragma once
#include <cstdint>

namespace fedmpdd {

// What a block of random bits is for. Two uses never share a counter: see docs/directions.md.
enum Domain : std::uint32_t {
  kDomainDirections = 0,
  kDomainDiagonal = 1,
  kDomainPermutation = 2,
  kDomainRounding = 3,
};

constexpr std::uint32_t kPhiloxM0 = 0xD2511F53u;
constexpr std::uint32_t kPhiloxM1 = 0xCD9E8D57u;
constexpr std::uint32_t kPhiloxW0 = 0x9E3779B9u;
constexpr std::uint32_t kPhiloxW1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

constexpr int kTile = 2048;        // coordinates per tile
constexpr int kTileBlocks = 16;    // Philox blocks per tile
constexpr int kWordStride = 64;    // words per tile, and the distance between a word's coordinates

// `static`: every translation unit keeps its own copy, so that one compiled for AVX-512 can never be
// linked into the path of a machine without it.
static inline void philox4x32(const std::uint32_t counter[4], std::uint64_t key, std::uint32_t out[4]) {
  std::uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kPhiloxM0) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(kPhiloxM1) * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

}  // namespace fedmpdd
