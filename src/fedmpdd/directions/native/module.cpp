// The Python face of the kernels. Arguments are checked in Python (native.py), where errors can be good; what is
// checked here again is only what would otherwise read or write outside an array.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "families.hpp"
#include "float_environment.hpp"
#include "philox.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using fedmpdd::Batch;
using fedmpdd::Kernels;

constexpr std::uint64_t kMaxD = std::uint64_t{1} << 40;

template <class T> using In1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using In2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T> using Out1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Out2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const Kernels& kernels_named(const std::string& isa) {
  const Kernels* kernels = fedmpdd::select_kernels(isa.c_str());
  if (kernels == nullptr) throw std::invalid_argument("this machine cannot run the '" + isa + "' kernels");
  return *kernels;
}

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

Batch batch_of(const In1<std::uint64_t>& seeds, const In1<std::uint64_t>& firsts, std::size_t clients, std::uint64_t d,
               std::uint64_t m, int threads) {
  require(seeds.shape(0) == clients && firsts.shape(0) == clients, "one seed and one first index per client");
  require(clients > 0 && d > 0 && m > 0 && threads > 0, "clients, d, m and threads must be positive");
  return {clients, d, m, seeds.data(), firsts.data()};
}

void require_padded(std::uint64_t d, std::size_t floats) {
  require(d > 0 && d <= kMaxD && floats == fedmpdd::hadamard_order(d).size(), "a buffer as long as the matrix's order");
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("isa_name", [](const std::string& isa) { return std::string(kernels_named(isa).name); }, "isa"_a);

  m.def("rademacher_encode", [](const In2<float>& gradients, std::uint64_t first_tile, const In1<std::uint64_t>& seeds,
                                const In1<std::uint64_t>& firsts, const Out2<double>& sums, int threads,
                                const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    require(sums.shape(0) == gradients.shape(0), "one row of sums per gradient");
    require(first_tile % fedmpdd::kRunTiles == 0, "a slice begins with a run of 16 tiles");
    const Batch batch = batch_of(seeds, firsts, gradients.shape(0), gradients.shape(1), sums.shape(1), threads);
    nb::gil_scoped_release release;
    const fedmpdd::PlainFloatEnvironment plain;
    fedmpdd::rademacher_encode(kernels, batch, first_tile, gradients.data(), sums.data(), threads);
  }, "gradients"_a, "first_tile"_a, "seeds"_a, "firsts"_a, "sums"_a, "threads"_a, "isa"_a);

  m.def("round_sums", [](const In2<double>& sums, const Out2<float>& scalars) {
    require(sums.shape(0) == scalars.shape(0) && sums.shape(1) == scalars.shape(1), "one scalar per sum");
    const fedmpdd::PlainFloatEnvironment plain;
    for (std::size_t i = 0; i < sums.size(); ++i) scalars.data()[i] = static_cast<float>(sums.data()[i]);
  }, "sums"_a, "scalars"_a);

  m.def("add_scaled", [](const In1<float>& values, double factor, const Out1<double>& total) {
    require(values.shape(0) == total.shape(0), "one sum per value");
    const fedmpdd::PlainFloatEnvironment plain;
    const float* const from = values.data();
    double* const to = total.data();
    for (std::size_t i = 0; i < values.shape(0); ++i) to[i] += factor * static_cast<double>(from[i]);
  }, "values"_a, "factor"_a, "total"_a);

  m.def("rademacher_decode", [](const In2<float>& scalars, const In1<double>& factors, const In1<std::uint64_t>& seeds,
                                const In1<std::uint64_t>& firsts, const Out1<float>& out, std::uint64_t first_tile,
                                int threads, const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    require(factors.shape(0) == scalars.shape(0), "one factor per row of scalars");
    const Batch batch = batch_of(seeds, firsts, scalars.shape(0), out.shape(0), scalars.shape(1), threads);
    nb::gil_scoped_release release;
    const fedmpdd::PlainFloatEnvironment plain;
    fedmpdd::rademacher_decode(kernels, batch, first_tile, scalars.data(), factors.data(), out.data(), threads);
  }, "scalars"_a, "factors"_a, "seeds"_a, "firsts"_a, "out"_a, "first_tile"_a, "threads"_a, "isa"_a);

  m.def("onebit_decode", [](const In2<std::uint8_t>& negative, std::uint64_t m_, const In1<double>& factors,
                            const In1<std::uint64_t>& seeds, const In1<std::uint64_t>& firsts, const Out1<float>& out,
                            std::uint64_t first_tile, int threads, const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    require(negative.shape(1) * 8 >= m_ && factors.shape(0) == negative.shape(0), "m bits and a factor a row");
    const Batch batch = batch_of(seeds, firsts, negative.shape(0), out.shape(0), m_, threads);
    nb::gil_scoped_release release;
    const fedmpdd::PlainFloatEnvironment plain;
    fedmpdd::onebit_decode(kernels, batch, first_tile, negative.data(), negative.shape(1), factors.data(), out.data(),
                           threads);
  }, "negative"_a, "m"_a, "factors"_a, "seeds"_a, "firsts"_a, "out"_a, "first_tile"_a, "threads"_a, "isa"_a);

  m.def("hadamard_encode", [](const In2<float>& gradients, const In1<std::uint64_t>& seeds,
                              const In1<std::uint64_t>& firsts, const Out2<float>& scalars, int threads,
                              const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    require(scalars.shape(0) == gradients.shape(0), "one row of scalars per gradient");
    const Batch batch = batch_of(seeds, firsts, gradients.shape(0), gradients.shape(1), scalars.shape(1), threads);
    nb::gil_scoped_release release;
    const fedmpdd::PlainFloatEnvironment plain;
    fedmpdd::hadamard_encode(kernels, batch, gradients.data(), scalars.data(), threads);
  }, "gradients"_a, "seeds"_a, "firsts"_a, "scalars"_a, "threads"_a, "isa"_a);

  m.def("hadamard_encode_in_place", [](const Out1<float>& buffer, std::uint64_t d, const In1<std::uint64_t>& seeds,
                                       const In1<std::uint64_t>& firsts, const Out2<float>& scalars, int threads,
                                       const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    require_padded(d, buffer.shape(0));
    require(scalars.shape(0) == 1, "one row of scalars");
    const Batch batch = batch_of(seeds, firsts, 1, d, scalars.shape(1), threads);
    nb::gil_scoped_release release;
    const fedmpdd::PlainFloatEnvironment plain;
    fedmpdd::hadamard_encode_in_place(kernels, batch, buffer.data(), scalars.data(), threads);
  }, "buffer"_a, "d"_a, "seeds"_a, "firsts"_a, "scalars"_a, "threads"_a, "isa"_a);

  m.def("hadamard_decode", [](const In2<float>& scalars, const In1<double>& factors, const In1<std::uint64_t>& seeds,
                              const In1<std::uint64_t>& firsts, const Out1<float>& out, std::uint64_t d, int threads,
                              const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    require(factors.shape(0) == scalars.shape(0), "one factor per row of scalars");
    require_padded(d, out.shape(0));
    const Batch batch = batch_of(seeds, firsts, scalars.shape(0), d, scalars.shape(1), threads);
    nb::gil_scoped_release release;
    const fedmpdd::PlainFloatEnvironment plain;
    fedmpdd::hadamard_decode(kernels, batch, scalars.data(), factors.data(), out.data(), threads);
  }, "scalars"_a, "factors"_a, "seeds"_a, "firsts"_a, "out"_a, "d"_a, "threads"_a, "isa"_a);

  m.def("moments", [](const In2<float>& gradients, const Out2<double>& lanes, const Out2<double>& out, int threads,
                      const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    const std::size_t rows = gradients.shape(0);
    require(out.shape(0) == rows && out.shape(1) == 2 && threads > 0, "two moments per gradient");
    require(lanes.shape(0) == rows && lanes.shape(1) == 2 * fedmpdd::kMomentLanes, "16 lanes per moment and gradient");
    nb::gil_scoped_release release;
    const fedmpdd::PlainFloatEnvironment plain;
    fedmpdd::gradient_moments(kernels, gradients.data(), rows, gradients.shape(1), lanes.data(), out.data(), threads);
  }, "gradients"_a, "lanes"_a, "out"_a, "threads"_a, "isa"_a);

  m.def("rounding_words", [](const In1<std::uint64_t>& seeds, const In1<std::uint64_t>& slots,
                             const Out2<std::uint32_t>& out) {
    const std::size_t rows = out.shape(0), width = out.shape(1);
    require(seeds.shape(0) == rows && slots.shape(0) == rows, "one seed and one slot per row");
    nb::gil_scoped_release release;
    const fedmpdd::PlainFloatEnvironment plain;
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < width; j += 4) {
        const std::uint64_t block = j / 4;
        const std::uint32_t counter[4] = {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(slots.data()[i]),
                                          fedmpdd::kDomainRounding, static_cast<std::uint32_t>(block >> 32)};
        std::uint32_t words[4];
        fedmpdd::philox4x32(counter, seeds.data()[i], words);
        std::copy_n(words, std::min<std::size_t>(4, width - j), out.data() + i * width + j);
      }
  }, "seeds"_a, "slots"_a, "out"_a);

  // Small windows onto the spec, for tests and for writers of other clients.
  m.def("signs", [](std::uint64_t seed, std::uint32_t domain, std::uint32_t index, const Out1<float>& out,
                    std::uint64_t first_tile, const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    for (std::size_t i = 0; i < out.shape(0); ++i) out.data()[i] = 1.0f;
    for (std::size_t begin = 0; begin < out.shape(0); begin += fedmpdd::kTile) {
      const std::size_t count = std::min<std::size_t>(fedmpdd::kTile, out.shape(0) - begin);
      kernels.apply_signs(out.data() + begin, out.data() + begin, static_cast<int>(count),
                          first_tile + begin / fedmpdd::kTile, seed, domain, index, false);
    }
  }, "seed"_a, "domain"_a, "index"_a, "out"_a, "first_tile"_a, "isa"_a);
  m.def("philox4x32", [](std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3, std::uint64_t key) {
    const std::uint32_t counter[4] = {c0, c1, c2, c3};
    std::uint32_t out[4];
    fedmpdd::philox4x32(counter, key, out);
    return nb::make_tuple(out[0], out[1], out[2], out[3]);
  }, "c0"_a, "c1"_a, "c2"_a, "c3"_a, "key"_a);
  m.def("hadamard_order", [](std::uint64_t d) {
    require(d > 0 && d <= kMaxD, "d must be in [1, 2^40]");
    const auto order = fedmpdd::hadamard_order(d);
    return nb::make_tuple(order.outer, order.log2);
  }, "d"_a);
  m.def("hadamard_rows", [](std::uint64_t seed, std::uint64_t d, std::uint64_t first, const Out1<std::uint64_t>& rows,
                            const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    require(d > 0 && d <= kMaxD, "d must be in [1, 2^40]");
    const auto order = fedmpdd::hadamard_order(d);
    require(rows.shape(0) <= order.size() && first <= order.size() - rows.shape(0), "rows beyond the matrix");
    kernels.permute(fedmpdd::feistel_for(seed, order), first, rows.shape(0), rows.data());
  }, "seed"_a, "d"_a, "first"_a, "rows"_a, "isa"_a);
}
