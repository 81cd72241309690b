// Compares every set of kernels compiled in with the plain one, bit for bit. For machines, real or emulated,
// that have no Python: `make neon` builds it for AArch64 and runs it under qemu.
#include <cstdio>
#include <cstring>
#include <vector>

#include "families.hpp"

using namespace fedmpdd;

namespace {

std::vector<float> noise(std::size_t n, std::uint32_t state) {
  std::vector<float> out(n);
  for (float& x : out) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
  }
  return out;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::uint64_t fnv(const std::vector<float>& values, std::uint64_t hash) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (std::size_t i = 0; i < values.size() * sizeof(float); ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

constexpr std::uint64_t kHighTile = (1ull << 28) + 16;  // its block numbers need more than 32 bits

struct Results {
  std::vector<float> rademacher_scalars, hadamard_scalars, in_place, rademacher, onebit, hadamard;
  double moments[4];
};

// The rademacher slice begins with `first_tile`; hadamard gradients are always whole.
Results run(const Kernels& kernels, std::uint64_t d, std::uint64_t m, std::uint64_t first_tile) {
  const std::uint64_t seeds[2] = {0x0123456789ABCDEFull, 42}, firsts[2] = {3, 7};
  const Batch batch{2, d, m, seeds, firsts};
  const std::vector<float> gradients = noise(2 * d, 1);
  const double factors[2] = {0.3, 1.7};
  const std::uint64_t size = hadamard_order(d).size();
  Results r{std::vector<float>(2 * m), std::vector<float>(2 * m), std::vector<float>(m), std::vector<float>(d),
            std::vector<float>(d),     std::vector<float>(size),  {}};
  std::vector<double> sums(2 * m);
  rademacher_encode(kernels, batch, first_tile, gradients.data(), sums.data(), 1);
  for (std::size_t i = 0; i < sums.size(); ++i) r.rademacher_scalars[i] = static_cast<float>(sums[i]);
  hadamard_encode(kernels, batch, gradients.data(), r.hadamard_scalars.data(), 1);
  std::vector<float> buffer(gradients.begin(), gradients.begin() + static_cast<std::ptrdiff_t>(d));
  buffer.resize(size);
  hadamard_encode_in_place(kernels, {1, d, m, seeds, firsts}, buffer.data(), r.in_place.data(), 2);
  const std::size_t row = (m + 7) / 8;
  std::vector<std::uint8_t> negative(2 * row);
  for (std::size_t i = 0; i < 2; ++i)
    for (std::uint64_t j = 0; j < m; ++j)
      if (r.rademacher_scalars[i * m + j] < 0) negative[i * row + j / 8] |= static_cast<std::uint8_t>(1u << (j % 8));
  rademacher_decode(kernels, batch, first_tile, r.rademacher_scalars.data(), factors, r.rademacher.data(), 2);
  onebit_decode(kernels, batch, first_tile, negative.data(), row, factors, r.onebit.data(), 2);
  hadamard_decode(kernels, batch, r.hadamard_scalars.data(), factors, r.hadamard.data(), 2);
  r.hadamard.resize(d);
  std::vector<double> lanes(2 * 2 * kMomentLanes);
  gradient_moments(kernels, gradients.data(), 2, d, lanes.data(), r.moments, 1);
  return r;
}

}  // namespace

int main() {
  int failed = 0, passed = 0;
  for (const char* name : {"avx512", "avx2", "neon"}) {
    const Kernels* kernels = select_kernels(name);
    if (kernels == nullptr) {
      std::printf("%-6s not on this machine\n", name);
      continue;
    }
    std::uint64_t digest = 14695981039346656037ull;
    for (const std::uint64_t first_tile : {std::uint64_t{0}, kHighTile})
      for (const std::uint64_t d : {1, 12, 63, 64, 700, 2047, 2048, 2049, 13426, 40000})
        for (std::uint64_t m : {1, 4, 18, 50}) {
          if (m > d) m = d;
          const Results a = run(*plain_kernels(), d, m, first_tile), b = run(*kernels, d, m, first_tile);
          const bool ok = same(a.rademacher_scalars, b.rademacher_scalars) &&
                          same(a.hadamard_scalars, b.hadamard_scalars) && same(a.in_place, b.in_place) &&
                          same(a.rademacher, b.rademacher) && same(a.onebit, b.onebit) &&
                          same(a.hadamard, b.hadamard) && std::memcmp(a.moments, b.moments, sizeof a.moments) == 0 &&
                          std::memcmp(b.in_place.data(), b.hadamard_scalars.data(), m * sizeof(float)) == 0;
          ok ? ++passed : ++failed;
          for (const auto* values : {&b.rademacher_scalars, &b.hadamard_scalars, &b.rademacher, &b.onebit, &b.hadamard})
            digest = fnv(*values, digest);
          if (!ok) std::printf("%-6s differs from plain at d = %llu, m = %llu, first tile %llu\n", name,
                               static_cast<unsigned long long>(d), static_cast<unsigned long long>(m),
                               static_cast<unsigned long long>(first_tile));
        }
    // The same digest on every machine, whatever its instruction set.
    std::printf("%-6s compared with plain, digest %016llx\n", name, static_cast<unsigned long long>(digest));
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
