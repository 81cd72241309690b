#include "kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "simd_avx512.hpp"

#include "kernels_impl.hpp"

namespace fedmpdd {

const Kernels* avx512_kernels() {
  static constexpr Kernels kernels = make_kernels<Avx512Simd>();
  return &kernels;
}

}  // namespace fedmpdd

#else

namespace fedmpdd {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace fedmpdd

#endif
