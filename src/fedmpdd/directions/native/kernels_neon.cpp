#include "kernels.hpp"

#if defined(__ARM_NEON) && defined(__aarch64__)

#include "simd_neon.hpp"

#include "kernels_impl.hpp"

namespace fedmpdd {

const Kernels* neon_kernels() {
  static constexpr Kernels kernels = make_kernels<NeonSimd>();
  return &kernels;
}

}  // namespace fedmpdd

#else

namespace fedmpdd {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace fedmpdd

#endif
