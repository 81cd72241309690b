#include <cstring>

#include "kernels.hpp"

namespace fedmpdd {
namespace {

bool runs_avx2() {
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
  return __builtin_cpu_supports("avx2");
#else
  return false;
#endif
}

bool runs_avx512() {
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

}  // namespace

const Kernels* select_kernels(const char* name) {
  const Kernels* best_first[] = {
      runs_avx512() ? avx512_kernels() : nullptr,
      runs_avx2() ? avx2_kernels() : nullptr,
      neon_kernels(),  // compiled in only where every machine has it
      plain_kernels(),
  };
  const bool any = std::strcmp(name, "auto") == 0;
  for (const Kernels* kernels : best_first)
    if (kernels != nullptr && (any || std::strcmp(name, kernels->name) == 0)) return kernels;
  return nullptr;
}

}  // namespace fedmpdd
