// gemm: one door for every operand and result, on the CPU or a CUDA device (quantizers.cpp says how
// doors are used).
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "argument_names.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "blockscale/error.h"
#include "gemm_call.h"
#include "module.h"
#include "work.h"

namespace blockscale::python {
namespace {

void run(const GemmCall& call, const Work& work) {
  with_python_names([&] {
    if (is_rehearsal) {
      (void)gemm_workspace_bytes(call.arguments, call.threads);
    } else if (work.is_cuda()) {
      cuda::gemm(call.arguments, work.execution());
    } else {
      gemm(call.arguments, GemmOptions{call.threads});
    }
  });
}

/// Whether the call was taken as it is: of matrices that all lie in one place, with usual options.
bool gemm_as_given(nb::handle a, nb::handle b, nb::handle out, const GemmCallOptions& given) {
  if (!given.are_usual()) return false;
  const std::optional<TakenPlace> place = TakenPlace::of(out);
  if (!place) return false;
  const nb::object left = place->operand(a), right = place->operand(b);
  if (!left.is_valid() || !right.is_valid()) return false;
  GemmCallOptions options = given;
  for (nb::object* const operand : {&options.c, &options.bias, &options.gate}) {
    if (!place->pair(*operand)) return false;
  }
  return place->run([&](const Work& work) {
    return taken(
        [&] { return gemm_call(left, right, out, place->format(), options, work.place()); },
        [&](const GemmCall& call) {
          if (!is_of_matrices(call)) return false;
          run(call, work);
          return true;
        });
  });
}

bool gemm_into(nb::handle a, nb::handle b, nb::handle out, const nb::tuple& options,
               nb::handle where) {
  const GemmCallOptions given(options);
  if (where.is_none()) return gemm_as_given(a, b, out, given);
  const Work work(nb::cast<nb::tuple>(where));
  const bool is_plain = given.quantization.is_none();
  run(is_plain ? gemm_call(a, b, out[0], nb::cast<Format>(out[1]), given, work.place())
               : gemm_quantize_call(a, b, out, given, work.place()),
      work);
  return true;
}

std::string describe_gemm(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch,
                          Recipe a, Recipe b, Format dtype, const std::optional<Recipe>& to,
                          nb::handle transform, const std::optional<std::string>& chip) {
  const InputArgument input = input_argument(transform, {});
  const GemmArguments arguments = imagined_gemm(m, n, k, a, b, dtype, batch, to, input.input);
  return with_python_names([&] { return cuda::describe_gemm(arguments, described_chip(chip)); });
}

void synchronize(int device, std::uintptr_t stream) {
  const nb::gil_scoped_release release;
  const cuda::DeviceScope scope(device);
  cuda::synchronize(reinterpret_cast<void*>(stream));
}

int load_kernels(const std::string& operations, int device) {
  constexpr std::pair<const char*, cuda::KernelsOf> kNames[] = {
      {"all", cuda::KernelsOf::all},
      {"quantize", cuda::KernelsOf::quantize},
      {"dequantize", cuda::KernelsOf::dequantize},
      {"gemm", cuda::KernelsOf::gemm},
      {"grouped_gemm", cuda::KernelsOf::grouped_gemm},
      {"moe", cuda::KernelsOf::moe}};
  for (const auto& [name, of] : kNames) {
    if (operations != name) continue;
    const nb::gil_scoped_release release;
    return cuda::load_kernels(of, device);
  }
  throw Error(ErrorCode::invalid_argument, "operations",
              "is '" + operations +
                  "', must be 'all', 'quantize', 'dequantize', 'gemm', "
                  "'grouped_gemm' or 'moe'");
}

}  // namespace

void bind_products(nb::module_& module) {
  module.def("gemm", &gemm_into, nb::arg("a").none(), nb::arg("b").none(), nb::arg("out"),
             nb::arg("options"), nb::arg("where").none());
  module.def("gemm_supports", &gemm_supports, nb::arg("a"), nb::arg("b"));
  module.def("cuda_describe_gemm", &describe_gemm, nb::arg("m"), nb::arg("n"), nb::arg("k"),
             nb::arg("batch"), nb::arg("a"), nb::arg("b"), nb::arg("dtype"), nb::arg("to").none(),
             nb::arg("transform").none(), nb::arg("chip").none());
  module.def("cuda_set_overlap", [](bool value) { overlap = value; }, nb::arg("value"));
  module.def("cuda_load_kernels", &load_kernels, nb::arg("operations"), nb::arg("device"));
  module.def("cuda_synchronize", &synchronize, nb::arg("device"), nb::arg("stream"));
}

}  // namespace blockscale::python
