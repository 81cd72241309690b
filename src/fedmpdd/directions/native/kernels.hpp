// The table of inner loops that each instruction set provides. Everything above this line of the
// software (threads, batching, Python) calls through it and does not know which one it got.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fedmpdd {

// One update as the decoder sees it: where its directions start and what multiplies each.
struct DecodeItem {
  std::uint64_t seed;
  std::uint64_t first;           // index of its first direction
  double factor;                 // multiplies every scalar
  const float* scalars;          // [m]; none for one-bit updates
  const std::uint8_t* negative;  // one-bit updates only: bit j set means that scalar j is -1, else it is +1

  // The one rounding between a scalar and the coefficient of its direction.
  float coefficient(float scalar) const { return static_cast<float>(factor * static_cast<double>(scalar)); }
};

// The row permutation of the hadamard family, as a Feistel network on Z_left x Z_2^right_bits.
// A small right half mixes little per round, so small matrices take more rounds.
constexpr std::uint64_t kFeistelSmall = 4096;
constexpr int kFeistelRounds = 6, kFeistelRoundsSmall = 24;
struct Feistel {
  std::uint32_t left;  // left * 2^right_bits = order of the matrix
  int right_bits;
  int rounds;
  std::uint32_t keys[kFeistelRoundsSmall];
};

// A hadamard matrix of order h in {1, 12, 20, 28}: bit `column` of negative[row] set means -1.
struct OuterMatrix {
  int order;
  std::uint32_t negative[28];
};

constexpr int kMomentLanes = 16;  // sums side by side, whatever the vector width

struct Kernels {
  const char* name;

  // out[j] += sum over c < coordinates of sign(first + j, first coordinate of the tile + c) * g[c], j < count. `out`
  // has room for `count` rounded up to a multiple of 16.
  void (*rademacher_encode)(const float* g, std::uint64_t coordinates, std::uint64_t tile, std::uint64_t seed,
                            std::uint32_t first, std::uint32_t count, double* out);
  // acc[0..2047] += the tile's coordinates of sum over items and directions, in the order of the spec.
  void (*rademacher_decode)(float* acc, int coordinates, std::uint64_t tile, const DecodeItem* items,
                            std::size_t item_count, std::uint32_t m);
  void (*onebit_decode)(float* acc, int coordinates, std::uint64_t tile, const DecodeItem* items,
                        std::size_t item_count, std::uint32_t m);
  // out[c] = (accumulate ? out[c] : 0) + sign(index, c) * in[c] for one tile (or what there is of it).
  void (*apply_signs)(const float* in, float* out, int coordinates, std::uint64_t tile, std::uint64_t seed,
                      std::uint32_t domain, std::uint32_t index, bool accumulate);
  // Butterfly stages of strides 1, 2, ... n/2 over each run of n floats (n a power of two, fits the cache).
  void (*fwht)(float* x, std::uint64_t n);
  // `stages` (1 to 4) butterfly stages of strides s, 2s, ... for columns [begin, end) of one group of
  // s * 2^stages floats.
  void (*fwht_columns)(float* x, std::uint64_t stride, int stages, std::uint64_t begin, std::uint64_t end);
  // z[a][b] <- sum over a' of H[a'][a] * z[a'][b] for columns b in [begin, end); z is [order][columns].
  void (*outer_transpose)(float* z, std::uint64_t columns, const OuterMatrix& matrix, std::uint64_t begin,
                          std::uint64_t end);
  // out[i] = entry rows[i] of (outer matrix x identity) y, for the count rows that are wanted.
  void (*outer_rows)(const float* y, int log2, const OuterMatrix& matrix, const std::uint64_t* rows, int count,
                     float* out);
  // lanes[0][i] += squares, lanes[1][i] += fourth powers of x[i], x[i + 16], ..., in double.
  void (*moments)(const float* x, std::uint64_t d, double lanes[2][kMomentLanes]);
  // rows[i] = permutation(first + i), i < count, for slots below the order of the matrix.
  void (*permute)(const Feistel& feistel, std::uint64_t first, std::uint64_t count, std::uint64_t* rows);
};

const Kernels* plain_kernels();
const Kernels* avx2_kernels();    // nullptr where it was not compiled in
const Kernels* avx512_kernels();  // likewise
const Kernels* neon_kernels();    // likewise

// The kernels of that name ("auto" for the best this machine runs), or nullptr if it cannot run them.
const Kernels* select_kernels(const char* name);

}  // namespace fedmpdd
