#include "simd_plain.hpp"

#include "kernels_impl.hpp"

namespace fedmpdd {

const Kernels* plain_kernels() {
  static constexpr Kernels kernels = make_kernels<PlainSimd>();
  return &kernels;
}

}  // namespace fedmpdd
