// Some programs tell the processor to flush tiny numbers to zero (torch.set_flush_denormal does). Decoding must give
// the same bits anyway: while one of these lives, arithmetic is plain IEEE.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace fedmpdd {

class PlainFloatEnvironment {
 public:
#if defined(__x86_64__) || defined(_M_X64)
  PlainFloatEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }  // round to nearest, keep denormals, no traps
  ~PlainFloatEnvironment() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__) && defined(__GNUC__)
  PlainFloatEnvironment() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    __asm__ volatile("msr fpcr, %0" : : "r"(0ul));
  }
  ~PlainFloatEnvironment() { __asm__ volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  unsigned long before_;
#else
  PlainFloatEnvironment() {}
#endif

 public:
  PlainFloatEnvironment(const PlainFloatEnvironment&) = delete;
  PlainFloatEnvironment& operator=(const PlainFloatEnvironment&) = delete;
};

}  // namespace fedmpdd
