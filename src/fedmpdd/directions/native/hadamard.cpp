#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <unordered_map>

#include "families.hpp"
#include "philox.hpp"
#include "pool.hpp"

namespace fedmpdd {
namespace {

constexpr std::uint64_t kCacheFloats = 1u << 15;  // a run of butterflies that stays in the second-level cache
constexpr std::uint64_t kColumnPiece = 4096;
constexpr std::uint64_t kRowPiece = 1024;
constexpr double kFloatsPerThread = 1e5;          // tens of microseconds

// Whether a is a non-zero square modulo the prime q.
bool is_square(int a, int q) {
  a = ((a % q) + q) % q;
  if (a == 0) return false;
  for (int x = 1; x < q; ++x)
    if (x * x % q == a) return true;
  return false;
}

// chi(row - column) of the field of q elements, bordered: the conference matrix of order q + 1, 0 on the diagonal.
int conference(int row, int column, int q) {
  if (row == column) return 0;
  if (row == 0) return 1;
  if (column == 0) return q % 4 == 3 ? -1 : 1;
  return is_square(row - column, q) ? 1 : -1;
}

// Paley's first construction (q = 3 mod 4, order q + 1) and second (q = 1 mod 4, order 2q + 2).
int paley(int row, int column, int q) {
  if (q % 4 == 3) return row == column ? 1 : conference(row, column, q);
  const int r = row % 2, c = column % 2;
  if (row / 2 == column / 2) return r == 0 && c == 0 ? 1 : -1;
  return conference(row / 2, column / 2, q) * (r == 1 && c == 1 ? -1 : 1);
}

OuterMatrix make_outer_matrix(int order) {
  OuterMatrix matrix{order, {}};
  const int q = order == 28 ? 13 : order - 1;
  for (int row = 0; order > 1 && row < order; ++row)
    for (int column = 0; column < order; ++column)
      if (paley(row, column, q) < 0) matrix.negative[row] |= 1u << column;
  return matrix;
}

void for_pieces(std::uint64_t size, std::uint64_t piece, int threads,
                const std::function<void(std::uint64_t, std::uint64_t)>& body) {
  const std::uint64_t pieces = (size + piece - 1) / piece;
  parallel_for(pieces, threads, [&](std::size_t i, int) { body(i * piece, std::min(size, (i + 1) * piece)); });
}

// Butterflies of strides 1, 2, ... over each of `outer` runs of 2^log2 floats.
void fwht_runs(const Kernels& kernels, float* x, const HadamardOrder& order, int threads) {
  const std::uint64_t n = std::uint64_t{1} << order.log2, size = order.size();
  const std::uint64_t block = std::min(n, kCacheFloats);
  parallel_for(size / block, threads, [&](std::size_t i, int) { kernels.fwht(x + i * block, block); });
  for (std::uint64_t stride = block; stride < n;) {
    int stages = 1;
    while (stages < 4 && (stride << stages) < n) ++stages;
    const std::uint64_t group = stride << stages, pieces = stride / kColumnPiece;
    parallel_for(size / group * pieces, threads, [&](std::size_t i, int) {
      const std::uint64_t begin = i % pieces * kColumnPiece;
      kernels.fwht_columns(x + i / pieces * group, stride, stages, begin, begin + kColumnPiece);
    });
    stride = group;
  }
}

// Calls body(begin, rows, n) for the rows of directions first + begin ... in pieces; indices repeat after `size` rows.
template <class Body>
void for_rows(const Kernels& kernels, const Feistel& feistel, std::uint64_t size, std::uint64_t first,
                  std::uint64_t count, const Body& body) {
  std::uint64_t rows[kRowPiece];
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t slot = (first + done) % size;
    const std::uint64_t piece = std::min({kRowPiece, count - done, size - slot});
    kernels.permute(feistel, slot, piece, rows);
    body(done, rows, static_cast<int>(piece));
    done += piece;
  }
}

int tile_coordinates(std::uint64_t d, std::uint64_t tile) {
  return static_cast<int>(std::min<std::uint64_t>(kTile, d - tile * kTile));
}

// The scalars of one client's gradient g, by way of x, a buffer as long as the matrix's order; the two may be one.
void encode_client(const Kernels& kernels, const Batch& batch, const HadamardOrder& order, std::size_t client,
                   const float* g, float* x, float* scalars, int threads) {
  const OuterMatrix& matrix = outer_matrix(order.outer);
  const std::uint64_t size = order.size(), tiles = (batch.d + kTile - 1) / kTile, seed = batch.seeds[client];
  parallel_for(tiles, threads, [&](std::size_t tile, int) {
    kernels.apply_signs(g + tile * kTile, x + tile * kTile, tile_coordinates(batch.d, tile), tile, seed,
                        kDomainDiagonal, 0, false);
  });
  std::fill(x + batch.d, x + size, 0.0f);
  fwht_runs(kernels, x, order, threads);
  // Of the outer matrix only the rows that are sent are ever computed.
  const Feistel feistel = feistel_for(seed, order);
  for_pieces(batch.m, kRowPiece, threads, [&](std::uint64_t begin, std::uint64_t end) {
    for_rows(kernels, feistel, size, batch.firsts[client] + begin, end - begin,
             [&](std::uint64_t done, const std::uint64_t* rows, int count) {
      kernels.outer_rows(x, order.log2, matrix, rows, count, scalars + begin + done);
    });
  });
}

}  // namespace

HadamardOrder hadamard_order(std::uint64_t d) {
  HadamardOrder best{0, 0};
  for (const int outer : {1, 12, 20, 28}) {
    HadamardOrder order{outer, 0};
    while (order.size() < d) ++order.log2;
    if (best.outer == 0 || order.size() < best.size()) best = order;
  }
  return best;
}

const OuterMatrix& outer_matrix(int order) {
  static const OuterMatrix matrices[] = {make_outer_matrix(1), make_outer_matrix(12), make_outer_matrix(20),
                                         make_outer_matrix(28)};
  return *std::find_if(std::begin(matrices), std::end(matrices),
                       [order](const OuterMatrix& matrix) { return matrix.order == order; });
}

Feistel feistel_for(std::uint64_t seed, const HadamardOrder& order) {
  // size = odd * 2^e; the right half takes floor(e / 2) of the twos.
  std::uint64_t odd = order.size();
  int twos = 0;
  for (; odd % 2 == 0; odd /= 2) ++twos;
  Feistel feistel{};
  feistel.right_bits = twos / 2;
  feistel.left = static_cast<std::uint32_t>(order.size() >> feistel.right_bits);
  feistel.rounds = order.size() < kFeistelSmall ? kFeistelRoundsSmall : kFeistelRounds;
  for (int r = 0; r < feistel.rounds; r += 4) {
    const std::uint32_t counter[4] = {static_cast<std::uint32_t>(r / 4), 0, kDomainPermutation, 0};
    std::uint32_t words[4];
    philox4x32(counter, seed, words);
    std::copy_n(words, 4, feistel.keys + r);  // there is room for whole blocks
  }
  return feistel;
}

void hadamard_encode(const Kernels& kernels, const Batch& batch, const float* gradients, float* scalars, int threads) {
  const HadamardOrder order = hadamard_order(batch.d);
  const std::uint64_t size = order.size();
  threads = worthwhile_threads(threads, static_cast<double>(size) * static_cast<double>(batch.clients), kFloatsPerThread);
  // Many clients: one thread each. Few: all threads work on one client at a time, and one buffer is enough.
  const bool per_client = batch.clients >= static_cast<std::size_t>(threads);
  const int buffers = per_client ? threads : 1, inner = per_client ? 1 : threads;
  const std::unique_ptr<float[]> memory(new float[static_cast<std::size_t>(buffers) * size]);

  const auto encode = [&](std::size_t client, float* x) {
    encode_client(kernels, batch, order, client, gradients + client * batch.d, x, scalars + client * batch.m, inner);
  };
  if (per_client) {
    parallel_for(batch.clients, threads, [&](std::size_t client, int worker) {
      encode(client, memory.get() + static_cast<std::size_t>(worker) * size);
    });
  } else {
    for (std::size_t client = 0; client < batch.clients; ++client) encode(client, memory.get());
  }
}

void hadamard_encode_in_place(const Kernels& kernels, const Batch& batch, float* buffer, float* scalars, int threads) {
  const HadamardOrder order = hadamard_order(batch.d);
  threads = worthwhile_threads(threads, static_cast<double>(order.size()), kFloatsPerThread);
  encode_client(kernels, batch, order, 0, buffer, buffer, scalars, threads);
}

void hadamard_decode(const Kernels& kernels, const Batch& batch, const float* scalars, const double* factors,
                     float* out, int threads) {
  const HadamardOrder order = hadamard_order(batch.d);
  const OuterMatrix& matrix = outer_matrix(order.outer);
  const std::uint64_t size = order.size(), columns = std::uint64_t{1} << order.log2;
  const std::uint64_t tiles = (batch.d + kTile - 1) / kTile;
  threads = worthwhile_threads(threads, static_cast<double>(size), kFloatsPerThread);
  // Clients of one seed share one inverse transform: groups in order of first appearance.
  std::vector<std::vector<std::size_t>> groups;
  std::unordered_map<std::uint64_t, std::size_t> group_of;
  for (std::size_t i = 0; i < batch.clients; ++i) {
    const auto [entry, is_new] = group_of.try_emplace(batch.seeds[i], groups.size());
    if (is_new) groups.emplace_back();
    groups[entry->second].push_back(i);
  }
  // The first transform takes place in `out` itself, and in a round of one seed it is the only one.
  const std::unique_ptr<float[]> scratch(groups.size() > 1 ? new float[size] : nullptr);
  for (const auto& group : groups) {
    const bool is_first = &group == &groups.front();
    float* z = is_first ? out : scratch.get();
    const std::uint64_t seed = batch.seeds[group.front()];
    const Feistel feistel = feistel_for(seed, order);
    std::fill_n(z, size, 0.0f);
    for (const std::size_t client : group) {
      const DecodeItem item{seed, batch.firsts[client], factors[client], scalars + client * batch.m, nullptr};
      for_rows(kernels, feistel, size, item.first, batch.m,
               [&](std::uint64_t done, const std::uint64_t* rows, int count) {
        float coefficients[kRowPiece];
        for (int i = 0; i < count; ++i) coefficients[i] = item.coefficient(item.scalars[done + i]);
        for (int i = 0; i < count; ++i) z[rows[i]] += coefficients[i];
      });
    }
    if (order.outer > 1)
      for_pieces(columns, kColumnPiece, threads, [&](std::uint64_t begin, std::uint64_t end) {
        kernels.outer_transpose(z, columns, matrix, begin, end);
      });
    fwht_runs(kernels, z, order, threads);
    parallel_for(tiles, threads, [&](std::size_t tile, int) {
      kernels.apply_signs(z + tile * kTile, out + tile * kTile, tile_coordinates(batch.d, tile), tile, seed,
                          kDomainDiagonal, 0, !is_first);
    });
  }
}

}  // namespace fedmpdd
