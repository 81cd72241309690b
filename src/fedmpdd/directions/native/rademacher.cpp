#include <algorithm>
#include <cstring>

#include "families.hpp"
#include "philox.hpp"
#include "pool.hpp"

namespace fedmpdd {
namespace {

constexpr std::uint64_t kChunkTiles = 16;        // summed on its own, then chunk sums are added in order
constexpr std::uint64_t kMinDirections = 64;     // fewer per piece and building tables starts to show
constexpr std::uint64_t kMaxDirections = 1024;
constexpr std::uint64_t kWaveChunks = 64;
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
  const float* gradients;
  float* scalars;
  std::uint64_t tiles = (batch.d + kTile - 1) / kTile;
  std::uint64_t chunks = (tiles + kChunkTiles - 1) / kChunkTiles;

  void chunk(std::size_t client, std::uint64_t chunk, std::uint64_t begin, std::uint64_t count, double* out) const {
    std::fill_n(out, round_up(count, 16), 0.0);
    kernels.rademacher_encode(gradients + client * batch.d, batch.d, chunk * kChunkTiles,
                              std::min(tiles, (chunk + 1) * kChunkTiles), batch.seeds[client],
                              static_cast<std::uint32_t>(batch.firsts[client] + begin),
                              static_cast<std::uint32_t>(count), out);
  }

  // Pieces: so many directions of one client, all of its coordinates.
  void by_directions(std::uint64_t piece, int threads) const {
    const std::uint64_t pieces = (batch.m + piece - 1) / piece;
    std::vector<double> scratch(static_cast<std::size_t>(threads) * 2 * kMaxDirections);
    parallel_for(batch.clients * pieces, threads, [&](std::size_t item, int worker) {
      double* total = scratch.data() + static_cast<std::size_t>(worker) * 2 * kMaxDirections;
      double* part = total + kMaxDirections;
      const std::size_t client = item / pieces;
      const std::uint64_t begin = item % pieces * piece, count = std::min(piece, batch.m - begin);
      std::fill_n(total, count, 0.0);
      for (std::uint64_t c = 0; c < chunks; ++c) {
        chunk(client, c, begin, count, part);
        for (std::uint64_t j = 0; j < count; ++j) total[j] += part[j];
      }
      for (std::uint64_t j = 0; j < count; ++j)
        scalars[client * batch.m + begin + j] = static_cast<float>(total[j]);
    });
  }

  // Pieces: all directions of one client, so many of its coordinates. For one long gradient: each table of signed sums
  // is then built once.
  void by_chunks(int threads) const {
    const std::uint64_t width = round_up(batch.m, 16);
    const std::uint64_t fitting = std::max(kWaveDoubles / width, static_cast<std::uint64_t>(threads));
    const std::uint64_t at_once = std::min({chunks, kWaveChunks, fitting});
    std::vector<double> total(width), parts(width * at_once);
    for (std::size_t client = 0; client < batch.clients; ++client) {
      std::fill(total.begin(), total.end(), 0.0);
      for (std::uint64_t wave = 0; wave < chunks; wave += at_once) {
        const std::uint64_t count = std::min(at_once, chunks - wave);
        parallel_for(count, threads, [&](std::size_t item, int) {
          chunk(client, wave + item, 0, batch.m, parts.data() + item * width);
        });
        for (std::uint64_t c = 0; c < count; ++c)
          for (std::uint64_t j = 0; j < batch.m; ++j) total[j] += parts[c * width + j];
      }
      for (std::uint64_t j = 0; j < batch.m; ++j) scalars[client * batch.m + j] = static_cast<float>(total[j]);
    }
  }
};

// `decode(acc, coordinates, tile)` for every tile; the last one, if short, in a padded copy.
template <class Decode>
void for_each_tile(const Batch& batch, float* out, int threads, const Decode& decode) {
  const std::uint64_t tiles = (batch.d + kTile - 1) / kTile;
  parallel_for(tiles, threads_for(batch, threads), [&](std::size_t tile, int) {
    float* acc = out + tile * kTile;
    const int coordinates = static_cast<int>(std::min<std::uint64_t>(kTile, batch.d - tile * kTile));
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

void rademacher_encode(const Kernels& kernels, const Batch& batch, const float* gradients, float* scalars, int threads) {
  threads = threads_for(batch, threads);
  const Encoder encoder{kernels, batch, gradients, scalars};
  const std::uint64_t workers = static_cast<std::uint64_t>(threads);
  const std::uint64_t finest = batch.clients * ((batch.m + kMinDirections - 1) / kMinDirections);
  const bool few_pieces = finest < workers && encoder.chunks > 1;
  const bool long_gradient = batch.clients < workers && encoder.chunks >= 4 * workers && batch.m <= 4 * kMaxDirections;
  if (few_pieces || long_gradient) {
    encoder.by_chunks(threads);
    return;
  }
  // One piece per client where clients keep all threads busy, else about one piece per thread.
  std::uint64_t piece = kMaxDirections;
  if (batch.clients % workers != 0 && batch.clients < 4 * workers)
    piece = std::clamp(round_up((batch.clients * batch.m + workers - 1) / workers, 16), kMinDirections, kMaxDirections);
  encoder.by_directions(piece, threads);
}

void rademacher_decode(const Kernels& kernels, const Batch& batch, const float* scalars, const double* factors,
                       float* out, int threads) {
  std::vector<DecodeItem> items(batch.clients);
  for (std::size_t i = 0; i < batch.clients; ++i)
    items[i] = {batch.seeds[i], batch.firsts[i], factors[i], scalars + i * batch.m, nullptr};
  for_each_tile(batch, out, threads, [&](float* acc, int coordinates, std::uint64_t tile) {
    kernels.rademacher_decode(acc, coordinates, tile, items.data(), items.size(), static_cast<std::uint32_t>(batch.m));
  });
}

void onebit_decode(const Kernels& kernels, const Batch& batch, const std::uint8_t* negative, std::size_t row_bytes,
                   const double* factors, float* out, int threads) {
  std::vector<DecodeItem> items(batch.clients);
  for (std::size_t i = 0; i < batch.clients; ++i)
    items[i] = {batch.seeds[i], batch.firsts[i], factors[i], nullptr, negative + i * row_bytes};
  for_each_tile(batch, out, threads, [&](float* acc, int coordinates, std::uint64_t tile) {
    kernels.onebit_decode(acc, coordinates, tile, items.data(), items.size(), static_cast<std::uint32_t>(batch.m));
  });
}

void gradient_moments(const Kernels& kernels, const float* gradients, std::size_t rows, std::uint64_t d, double* out,
                      int threads) {
  threads = worthwhile_threads(threads, static_cast<double>(rows) * static_cast<double>(d), kFloatsPerThread);
  parallel_for(rows, threads, [&](std::size_t row, int) { kernels.moments(gradients + row * d, d, out + 2 * row); });
}

}  // namespace fedmpdd
