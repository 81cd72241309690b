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

// scalars[i][j] = direction (seed i, first i + j) . gradients[i]
void rademacher_encode(const Kernels&, const Batch&, const float* gradients, float* scalars, int threads);
// out += sum over clients i and directions j of (factors[i] * scalars[i][j]) * direction, in the order of the spec
void rademacher_decode(const Kernels&, const Batch&, const float* scalars, const double* factors, float* out,
                       int threads);
// The same for scalars +1 and -1 (bit set: -1), `row_bytes` bytes a client.
void onebit_decode(const Kernels&, const Batch&, const std::uint8_t* negative, std::size_t row_bytes,
                   const double* factors, float* out, int threads);

void hadamard_encode(const Kernels&, const Batch&, const float* gradients, float* scalars, int threads);
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

// out[row] = {sum of squares, sum of fourth powers} of gradients[rows][d].
void gradient_moments(const Kernels&, const float* gradients, std::size_t rows, std::uint64_t d, double* out,
                      int threads);

}  // namespace fedmpdd
