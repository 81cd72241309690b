#include <algorithm>
#include <cstring>

#include "families.hpp"
#include "philox.hpp"
#include "pool.hpp"

namespace fedmpdd {
namespace {

constexpr std::uint64_t kMinDirections = 64;     // fewer per piece and building tables starts to show
constexpr std::uint64_t kMaxDirections = 1024;
constexpr std::uint64_t kWaveRuns = 64;
constexpr std::uint64_t kWaveDoubles = 1 << 16;  // half a megabyte of partial sums
constexpr double kFloatsPerThread = 2e5;
constexpr double kSignsPerThread = 2e6;          // tens of microseconds

int threads_for(const Batch& batch, int threads) {
  const double signs = static_cast<double>(batch.clients) * static_cast<double>(batch.m) * static_cast<double>(batch.d);
  return worthwhile_threads(threads, signs, kSignsPerThread);
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

struct Encoder {
  const Kernels& kernels;
  const Batch& batch;
  std::uint64_t first_tile;
  const float* gradients;
  double* sums;
  std::uint64_t runs = (batch.d + kRun - 1) / kRun;

  static constexpr std::uint64_t kRun = kRunTiles * kTile;

  // The sums of one run alone; they are then added to those of the runs before it, in order.
  void run(std::size_t client, std::uint64_t number, std::uint64_t begin, std::uint64_t count, double* out) const {
    std::fill_n(out, round_up(count, 16), 0.0);
    kernels.rademacher_encode(gradients + client * batch.d + number * kRun, std::min(kRun, batch.d - number * kRun),
                              first_tile + number * kRunTiles, batch.seeds[client],
                              static_cast<std::uint32_t>(batch.firsts[client] + begin),
                              static_cast<std::uint32_t>(count), out);
  }

  // Pieces: so many directions of one client, all of its coordinates.
  void by_directions(std::uint64_t piece, int threads) const {
    const std::uint64_t pieces = (batch.m + piece - 1) / piece;
    std::vector<double> scratch(static_cast<std::size_t>(threads) * kMaxDirections);
    parallel_for(batch.clients * pieces, threads, [&](std::size_t item, int worker) {
      double* part = scratch.data() + static_cast<std::size_t>(worker) * kMaxDirections;
      const std::size_t client = item / pieces;
      const std::uint64_t begin = item % pieces * piece, count = std::min(piece, batch.m - begin);
      double* total = sums + client * batch.m + begin;
      for (std::uint64_t r = 0; r < runs; ++r) {
        run(client, r, begin, count, part);
        for (std::uint64_t j = 0; j < count; ++j) total[j] += part[j];
      }
    });
  }

  // Pieces: all directions of one client, so many of its coordinates. For one long gradient: each table of signed sums
  // is then built once.
  void by_runs(int threads) const {
    const std::uint64_t width = round_up(batch.m, 16);
    const std::uint64_t fitting = std::max(kWaveDoubles / width, static_cast<std::uint64_t>(threads));
    const std::uint64_t at_once = std::min({runs, kWaveRuns, fitting});
    std::vector<double> parts(width * at_once);
    for (std::size_t client = 0; client < batch.clients; ++client) {
      double* total = sums + client * batch.m;
      for (std::uint64_t wave = 0; wave < runs; wave += at_once) {
        const std::uint64_t count = std::min(at_once, runs - wave);
        parallel_for(count, threads, [&](std::size_t item, int) {
          run(client, wave + item, 0, batch.m, parts.data() + item * width);
        });
        for (std::uint64_t r = 0; r < count; ++r)
          for (std::uint64_t j = 0; j < batch.m; ++j) total[j] += parts[r * width + j];
      }
    }
  }
};

// `decode(acc, coordinates, tile)` for every tile; the last one, if short, in a padded copy.
template <class Decode>
void for_each_tile(const Batch& batch, std::uint64_t first_tile, float* out, int threads, const Decode& decode) {
  const std::uint64_t tiles = (batch.d + kTile - 1) / kTile;
  parallel_for(tiles, threads_for(batch, threads), [&](std::size_t item, int) {
    const std::uint64_t tile = first_tile + item;
    float* acc = out + item * kTile;
    const int coordinates = static_cast<int>(std::min<std::uint64_t>(kTile, batch.d - item * kTile));
    if (coordinates == kTile) {
      decode(acc, kTile, tile);
      return;
    }
    alignas(64) float padded[kTile] = {};
    std::memcpy(padded, acc, static_cast<std::size_t>(coordinates) * sizeof(float));
    decode(padded, coordinates, tile);
    std::memcpy(acc, padded, static_cast<std::size_t>(coordinates) * sizeof(float));
  });
}

}  // namespace

void rademacher_encode(const Kernels& kernels, const Batch& batch, std::uint64_t first_tile, const float* gradients,
                       double* sums, int threads) {
  threads = threads_for(batch, threads);
  const Encoder encoder{kernels, batch, first_tile, gradients, sums};
  const std::uint64_t workers = static_cast<std::uint64_t>(threads);
  const std::uint64_t finest = batch.clients * ((batch.m + kMinDirections - 1) / kMinDirections);
  const bool few_pieces = finest < workers && encoder.runs > 1;
  const bool long_gradient = batch.clients < workers && encoder.runs >= 4 * workers && batch.m <= 4 * kMaxDirections;
  if (few_pieces || long_gradient) {
    encoder.by_runs(threads);
    return;
  }
  // One piece per client where clients keep all threads busy, else about one piece per thread.
  std::uint64_t piece = kMaxDirections;
  if (batch.clients % workers != 0 && batch.clients < 4 * workers)
    piece = std::clamp(round_up((batch.clients * batch.m + workers - 1) / workers, 16), kMinDirections, kMaxDirections);
  encoder.by_directions(piece, threads);
}

void rademacher_decode(const Kernels& kernels, const Batch& batch, std::uint64_t first_tile, const float* scalars,
                       const double* factors, float* out, int threads) {
  std::vector<DecodeItem> items(batch.clients);
  for (std::size_t i = 0; i < batch.clients; ++i)
    items[i] = {batch.seeds[i], batch.firsts[i], factors[i], scalars + i * batch.m, nullptr};
  for_each_tile(batch, first_tile, out, threads, [&](float* acc, int coordinates, std::uint64_t tile) {
    kernels.rademacher_decode(acc, coordinates, tile, items.data(), items.size(), static_cast<std::uint32_t>(batch.m));
  });
}

void onebit_decode(const Kernels& kernels, const Batch& batch, std::uint64_t first_tile, const std::uint8_t* negative,
                   std::size_t row_bytes, const double* factors, float* out, int threads) {
  std::vector<DecodeItem> items(batch.clients);
  for (std::size_t i = 0; i < batch.clients; ++i)
    items[i] = {batch.seeds[i], batch.firsts[i], factors[i], nullptr, negative + i * row_bytes};
  for_each_tile(batch, first_tile, out, threads, [&](float* acc, int coordinates, std::uint64_t tile) {
    kernels.onebit_decode(acc, coordinates, tile, items.data(), items.size(), static_cast<std::uint32_t>(batch.m));
  });
}

void gradient_moments(const Kernels& kernels, const float* gradients, std::size_t rows, std::uint64_t d, double* lanes,
                      double* out, int threads) {
  threads = worthwhile_threads(threads, static_cast<double>(rows) * static_cast<double>(d), kFloatsPerThread);
  parallel_for(rows, threads, [&](std::size_t row, int) {
    auto* sums = reinterpret_cast<double(*)[kMomentLanes]>(lanes) + 2 * row;
    kernels.moments(gradients + row * d, d, sums);
    for (int moment = 0; moment < 2; ++moment) {
      double total = 0.0;
      for (int lane = 0; lane < kMomentLanes; ++lane) total += sums[moment][lane];
      out[2 * row + moment] = total;
    }
  });
}

}  // namespace fedmpdd
