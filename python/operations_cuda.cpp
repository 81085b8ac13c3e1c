// Operations on arrays in the memory of a CUDA device, on the caller's stream.
#include <nanobind/stl/optional.h>

#include <cstdint>

#include "blockscale/cuda.h"
#include "module.h"
#include "quantize_call.h"

namespace blockscale::python {
namespace {

/// Arrays of a call on `stream`, a CUstream; DLPack writes the legacy default stream as 1.
Place place_on(std::uintptr_t stream) {
  return {true, stream == 0 ? 1 : static_cast<std::int64_t>(stream)};
}

std::int64_t quantize_workspace(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode,
                                bool given_scales, float amax_floor,
                                const std::optional<nb::tuple>& transform, std::uintptr_t stream) {
  const QuantizeCall call =
      quantize_call(x, dtype, out, mode, given_scales, amax_floor, transform, place_on(stream));
  return with_python_names(
      [&] { return cuda::quantize_workspace_bytes(call.x, call.out.view, call.options); });
}

/// `workspace` is an array of bytes, or None where none is needed.
void quantize_on_device(nb::handle x, Format dtype, nb::handle out, MxScaleMode mode,
                        bool given_scales, float amax_floor,
                        const std::optional<nb::tuple>& transform, std::uintptr_t stream,
                        nb::handle workspace) {
  const Place place = place_on(stream);
  const QuantizeCall call =
      quantize_call(x, dtype, out, mode, given_scales, amax_floor, transform, place);
  OutputArray bytes;
  cuda::Execution execution;
  execution.stream = reinterpret_cast<void*>(stream);
  if (!workspace.is_none()) {
    bytes = output_array("workspace", workspace, place);
    execution.workspace = bytes.data();
    execution.workspace_bytes = static_cast<std::int64_t>(bytes.nbytes());
  }
  with_python_names([&] { cuda::quantize(call.x, call.out.view, call.options, execution); });
}

void dequantize_on_device(nb::handle x, nb::handle out, Format dtype, std::uintptr_t stream) {
  const Place place = place_on(stream);
  const ScaledArgument source = scaled_argument("x", x, Access::read, place);
  const OutputArray array = output_array("out", out, place);
  const MutableMatrixView matrix = matrix_view("out", array, dtype);
  const nb::gil_scoped_release release;
  cuda::dequantize(source.view, matrix, {reinterpret_cast<void*>(stream)});
}

void synchronize(int device, std::uintptr_t stream) {
  const nb::gil_scoped_release release;
  const cuda::DeviceScope scope(device);
  cuda::synchronize(reinterpret_cast<void*>(stream));
}

}  // namespace

void bind_cuda_operations(nb::module_& module) {
  module.def("cuda_quantize_workspace", &quantize_workspace, nb::arg("x"), nb::arg("dtype"),
             nb::arg("out"), nb::arg("mode"), nb::arg("given_scales"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("stream"));
  module.def("cuda_quantize", &quantize_on_device, nb::arg("x"), nb::arg("dtype"), nb::arg("out"),
             nb::arg("mode"), nb::arg("given_scales"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("stream"), nb::arg("workspace").none());
  module.def("cuda_dequantize", &dequantize_on_device, nb::arg("x"), nb::arg("out"),
             nb::arg("dtype"), nb::arg("stream"));
  module.def("cuda_synchronize", &synchronize, nb::arg("device"), nb::arg("stream"));
}

}  // namespace blockscale::python
