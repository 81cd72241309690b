#include "kernels.hpp"

#if defined(__AVX2__)

#include "simd_avx2.hpp"

#include "kernels_impl.hpp"

namespace fedmpdd {

const Kernels* avx2_kernels() {
  static constexpr Kernels kernels = make_kernels<Avx2Simd>();
  return &kernels;
}

}  // namespace fedmpdd

#else

namespace fedmpdd {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace fedmpdd

#endif
