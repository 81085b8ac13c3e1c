// Operations on arrays in the memory of a CUDA device, on the caller's stream.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <atomic>

#include <cstdint>

#include "argument_names.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "gemm_call.h"
#include "module.h"
#include "quantize_call.h"

namespace blockscale::python {
namespace {

/// Arrays of a call on `stream`, a CUstream; DLPack writes the legacy default stream as 1.
Place place_on(std::uintptr_t stream) {
  return {true, stream == 0 ? 1 : static_cast<std::int64_t>(stream)};
}

/// cuda::Execution::overlap of all calls from Python.
std::atomic<bool> overlap = true;

/// A device, a stream of it, and for calls that need a workspace the Python function that makes
/// one: of a number of bytes, an array.
class DeviceWork final : public cuda::WorkspaceSource {
 public:
  DeviceWork(int device, std::uintptr_t stream, nb::handle make_workspace)
      : place_(place_on(stream)), make_workspace_(make_workspace) {
    execution_.stream = reinterpret_cast<void*>(stream);
    execution_.workspace_source = this;
    execution_.overlap = overlap;
    execution_.device = device;
  }
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  const cuda::Execution& execution() const { return execution_; }

  void* allocate(std::int64_t bytes) override {
    const nb::gil_scoped_acquire acquire;
    workspace_ = output_array("workspace", make_workspace_(bytes), place_);
    return workspace_.data();
  }

 private:
  Place place_;
  nb::handle make_workspace_;
  Array workspace_;
  cuda::Execution execution_;
};

void quantize_on_device(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode,
                        bool given_scales, float amax_floor,
                        const std::optional<nb::tuple>& transform, int device,
                        std::uintptr_t stream, nb::handle make_workspace) {
  const QuantizeCall call =
      quantize_call(x, dtype, out, mode, given_scales, amax_floor, transform, place_on(stream));
  DeviceWork work(device, stream, make_workspace);
  with_python_names([&] { cuda::quantize(call.x, call.out.view, call.options, work.execution()); });
}

/// The arguments of quantize_rows_and_columns: those of `quantize`, and the second result.
struct QuantizeTwiceCall {
  QuantizeCall rows;
  ScaledArgument columns;
};
QuantizeTwiceCall quantize_twice_call(nb::handle x, Format dtype, nb::handle out_rows,
                                      nb::handle out_columns, float amax_floor,
                                      const std::optional<nb::tuple>& transform,
                                      const Place& place) {
  return {quantize_call(x, dtype, out_rows, MxScaleMode::ceil, false, amax_floor, transform, place),
          scaled_argument("out[1]", out_columns, Access::write, place)};
}

void quantize_twice_on_device(nb::handle x, Format dtype, nb::handle out_rows,
                              nb::handle out_columns, float amax_floor,
                              const std::optional<nb::tuple>& transform, int device,
                              std::uintptr_t stream, nb::handle make_workspace) {
  const QuantizeTwiceCall call =
      quantize_twice_call(x, dtype, out_rows, out_columns, amax_floor, transform, place_on(stream));
  DeviceWork work(device, stream, make_workspace);
  with_python_names([&] {
    cuda::quantize_rows_and_columns(call.rows.x, call.rows.out.view, call.columns.view,
                                    call.rows.options, work.execution());
  });
}

void dequantize_on_device(nb::handle x, nb::handle out, Format dtype, int device,
                          std::uintptr_t stream, nb::handle make_workspace) {
  const Place place = place_on(stream);
  const ScaledArgument source = scaled_argument("x", x, Access::read, place);
  const Array array = output_array("out", out, place);
  const MutableMatrixView matrix = matrix_view("out", array, dtype);
  DeviceWork work(device, stream, make_workspace);
  const nb::gil_scoped_release release;
  cuda::dequantize(source.view, matrix, work.execution());
}

/// The plan of one problem, in memory that does not exist. `transform` numbers InputTransform.
std::string describe_quantize(std::int64_t rows, std::int64_t k, Format dtype, Recipe recipe,
                              ScaleLayout layout, int transform) {
  cuda::QuantizeBenchmarkOptions options;
  options.recipes = {recipe};
  options.dtypes = {dtype};
  options.layouts = {layout};
  options.transforms = {static_cast<InputTransform>(transform)};
  const std::int64_t columns = options.transforms[0] == InputTransform::swiglu ? 2 * k : k;
  options.input_bytes = {rows * columns * (format_traits(dtype).bits / 8)};
  options.k = k;
  const auto plans = cuda::describe_benchmark(options);
  if (plans.empty()) {
    throw Error(ErrorCode::invalid_argument, "layout",
                std::string("is ") + scale_layout_traits(layout).name + ", which is none of " +
                    recipe_traits(recipe).name);
  }
  return plans.front().plan;
}

void gemm_on_device(nb::handle a, nb::handle b, nb::handle out, Format dtype, float alpha,
                    nb::handle alpha_factor, float beta, const std::optional<nb::tuple>& c,
                    const std::optional<nb::tuple>& bias, bool batch_invariant, int device,
                    std::uintptr_t stream, nb::handle make_workspace) {
  const GemmCall call = gemm_call(a, b, out, dtype, alpha, alpha_factor, beta, c, bias,
                                  batch_invariant, place_on(stream));
  DeviceWork work(device, stream, make_workspace);
  with_python_names([&] { cuda::gemm(call.arguments, work.execution()); });
}

void gemm_quantize_on_device(nb::handle a, nb::handle b, nb::handle out, MxScaleMode mode,
                             bool given_scales, float amax_floor,
                             const std::optional<nb::tuple>& transform, float alpha,
                             nb::handle alpha_factor, float beta, const std::optional<nb::tuple>& c,
                             const std::optional<nb::tuple>& bias, bool batch_invariant, int device,
                             std::uintptr_t stream, nb::handle make_workspace) {
  const GemmCall call =
      gemm_quantize_call(a, b, out, mode, given_scales, amax_floor, transform, alpha, alpha_factor,
                         beta, c, bias, batch_invariant, place_on(stream));
  DeviceWork work(device, stream, make_workspace);
  with_python_names([&] { cuda::gemm(call.arguments, work.execution()); });
}

std::string describe_gemm(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch,
                          Recipe a, Recipe b, Format dtype, const std::optional<Recipe>& to,
                          const std::optional<nb::tuple>& transform) {
  const InputArgument input = input_argument(transform, {});
  const GemmArguments arguments = imagined_gemm(m, n, k, a, b, dtype, batch, to, input.input);
  return with_python_names([&] { return cuda::describe_gemm(arguments); });
}

void synchronize(int device, std::uintptr_t stream) {
  const nb::gil_scoped_release release;
  const cuda::DeviceScope scope(device);
  cuda::synchronize(reinterpret_cast<void*>(stream));
}

}  // namespace

void bind_cuda_operations(nb::module_& module) {
  module.def("cuda_quantize", &quantize_on_device, nb::arg("x"), nb::arg("dtype"), nb::arg("out"),
             nb::arg("mode"), nb::arg("given_scales"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("device"), nb::arg("stream"),
             nb::arg("make_workspace"));
  module.def("cuda_quantize_rows_and_columns", &quantize_twice_on_device, nb::arg("x"),
             nb::arg("dtype"), nb::arg("out_rows"), nb::arg("out_columns"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("device"), nb::arg("stream"),
             nb::arg("make_workspace"));
  module.def("cuda_dequantize", &dequantize_on_device, nb::arg("x"), nb::arg("out"),
             nb::arg("dtype"), nb::arg("device"), nb::arg("stream"), nb::arg("make_workspace"));
  module.def("cuda_describe_quantize", &describe_quantize, nb::arg("rows"), nb::arg("k"),
             nb::arg("dtype"), nb::arg("recipe"), nb::arg("layout"), nb::arg("transform"));
  module.def("cuda_gemm", &gemm_on_device, nb::arg("a"), nb::arg("b"), nb::arg("out"),
             nb::arg("dtype"), nb::arg("alpha"), nb::arg("alpha_factor").none(), nb::arg("beta"),
             nb::arg("c").none(), nb::arg("bias").none(), nb::arg("batch_invariant"),
             nb::arg("device"), nb::arg("stream"), nb::arg("make_workspace"));
  module.def("cuda_gemm_quantize", &gemm_quantize_on_device, nb::arg("a"), nb::arg("b"),
             nb::arg("out"), nb::arg("mode"), nb::arg("given_scales"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("alpha"), nb::arg("alpha_factor").none(),
             nb::arg("beta"), nb::arg("c").none(), nb::arg("bias").none(),
             nb::arg("batch_invariant"), nb::arg("device"), nb::arg("stream"),
             nb::arg("make_workspace"));
  module.def("cuda_describe_gemm", &describe_gemm, nb::arg("m"), nb::arg("n"), nb::arg("k"),
             nb::arg("batch"), nb::arg("a"), nb::arg("b"), nb::arg("dtype"), nb::arg("to").none(),
             nb::arg("transform").none());
  module.def("cuda_set_overlap", [](bool value) { overlap = value; }, nb::arg("value"));
  module.def("cuda_synchronize", &synchronize, nb::arg("device"), nb::arg("stream"));
}

}  // namespace blockscale::python
