// Encode and decode of whole batches: how the inner loops of kernels.hpp are cut into pieces and shared
// among threads. The cuts never change a result.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace fedmpdd {

struct Batch {
  std::size_t clients;
  std::uint64_t d;
  std::uint64_t m;
  const std::uint64_t* seeds;  // [clients]
  const std::uint64_t* firsts;  // [clients], index of each client's first direction
};

// The rademacher family works on any slice of the coordinates that begins with a tile: `d` is then the length of the
// slice and `first_tile` the number of its first tile.

// Tiles whose sums are added up on their own. A slice to be encoded begins with such a run, so that slices one after
// the other give the same sums as all coordinates at once.
constexpr std::uint64_t kRunTiles = 16;

// sums[i][j] += direction (seed i, first i + j) . gradients[i]
void rademacher_encode(const Kernels&, const Batch&, std::uint64_t first_tile, const float* gradients, double* sums,
                       int threads);
// out += sum over clients i and directions j of (factors[i] * scalars[i][j]) * direction, in the order of the spec
void rademacher_decode(const Kernels&, const Batch&, std::uint64_t first_tile, const float* scalars,
                       const double* factors, float* out, int threads);
// The same for scalars +1 and -1 (bit set: -1), `row_bytes` bytes a client.
void onebit_decode(const Kernels&, const Batch&, std::uint64_t first_tile, const std::uint8_t* negative,
                   std::size_t row_bytes, const double* factors, float* out, int threads);

// scalars[i][j] = direction . gradients[i]
void hadamard_encode(const Kernels&, const Batch&, const float* gradients, float* scalars, int threads);
// The same for one client whose gradient is in a buffer as long as the matrix's order; the buffer is overwritten.
void hadamard_encode_in_place(const Kernels&, const Batch&, float* buffer, float* scalars, int threads);
// out = the sum, as above, in a buffer as long as the matrix's order: values beyond d are left over.
void hadamard_decode(const Kernels&, const Batch&, const float* scalars, const double* factors, float* out,
                     int threads);

// The smallest h * 2^k >= d with h in {1, 12, 20, 28}.
struct HadamardOrder {
  int outer;  // h
  int log2;   // k
  std::uint64_t size() const { return static_cast<std::uint64_t>(outer) << log2; }
};
HadamardOrder hadamard_order(std::uint64_t d);
const OuterMatrix& outer_matrix(int order);
Feistel feistel_for(std::uint64_t seed, const HadamardOrder& order);

// Adds gradients[rows][d] to lanes[rows][2][kMomentLanes] and sets out[row] = {sum of squares, sum of fourth powers}
// of all that the lanes have seen. Slices one after the other, all but the last a multiple of kMomentLanes long, give the
// same as all coordinates at once.
void gradient_moments(const Kernels&, const float* gradients, std::size_t rows, std::uint64_t d, double* lanes,
                      double* out, int threads);

}  // namespace fedmpdd
