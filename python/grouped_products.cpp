// Grouped products: a door for each kind, on the CPU or a CUDA device. Python has looked at
// everything that is given (python/blockscale/_grouped.py).
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "argument_names.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "grouped_call.h"
#include "module.h"
#include "work.h"

namespace blockscale::python {
namespace {

void grouped_gemm_into(nb::handle a, nb::handle b, nb::handle offsets, nb::handle out,
                       const nb::tuple& options, const nb::tuple& where) {
  const Work work(where);
  const GroupedCall call =
      grouped_call(a, b, offsets, out, GroupedCallOptions(options), work.place());
  with_python_names([&] {
    if (is_rehearsal) {
      (void)describe_grouped_gemm(call.arguments);
    } else if (work.is_cuda()) {
      cuda::grouped_gemm(call.arguments, work.execution());
    } else {
      grouped_gemm(call.arguments, {call.threads});
    }
  });
}

void check_groups_of(nb::handle a, nb::handle b, nb::handle offsets, nb::handle out,
                     const nb::tuple& options, const nb::tuple& where) {
  const Work work(where);
  const GroupedCall call =
      grouped_call(a, b, offsets, out, GroupedCallOptions(options), work.place());
  with_python_names([&] {
    if (work.is_cuda()) {
      cuda::check_groups(call.arguments, work.execution());
    } else {
      check_groups(call.arguments);
    }
  });
}

/// Where groups are empty and added to D, nothing is read or written.
void rehearse(KGroupedGemmArguments arguments, int threads) {
  const auto groups = static_cast<std::size_t>(arguments.d.batch);
  const std::vector<std::int32_t> nothing(groups + 1, 0);
  arguments.offsets = nothing.data();
  arguments.adds = true;
  k_grouped_gemm(arguments, {threads});
}

void k_grouped_gemm_into(nb::handle a, nb::handle b, nb::handle offsets, nb::handle out,
                         const nb::tuple& options, const nb::tuple& where) {
  const Work work(where);
  const KGroupedCall call = k_grouped_call(a, b, offsets, out, options, work.place());
  with_python_names([&] {
    if (is_rehearsal) {
      rehearse(call.arguments, call.threads);
    } else if (work.is_cuda()) {
      cuda::k_grouped_gemm(call.arguments, work.execution());
    } else {
      k_grouped_gemm(call.arguments, {call.threads});
    }
  });
}

std::string describe_grouped(std::int64_t groups, std::int64_t rows, std::int64_t n, std::int64_t k,
                             Recipe a, Recipe b, Format dtype, nb::handle transform,
                             const std::optional<std::string>& chip) {
  const InputArgument input = input_argument(transform, {});
  const GroupedGemmArguments arguments =
      imagined_grouped_gemm(groups, rows, n, k, a, b, dtype, input.input);
  return with_python_names(
      [&] { return cuda::describe_grouped_gemm(arguments, described_chip(chip)); });
}

}  // namespace

void bind_grouped_products(nb::module_& module) {
  const auto define = [&](const char* name, auto* function) {
    module.def(name, function, nb::arg("a"), nb::arg("b"), nb::arg("offsets").none(),
               nb::arg("out"), nb::arg("options"), nb::arg("where"));
  };
  define("grouped_gemm", &grouped_gemm_into);
  define("check_groups", &check_groups_of);
  define("k_grouped_gemm", &k_grouped_gemm_into);
  module.def("cuda_describe_grouped_gemm", &describe_grouped, nb::arg("groups"), nb::arg("rows"),
             nb::arg("n"), nb::arg("k"), nb::arg("a"), nb::arg("b"), nb::arg("dtype"),
             nb::arg("transform").none(), nb::arg("chip").none());
}

}  // namespace blockscale::python
