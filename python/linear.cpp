// A linear layer's call in one: inputs of torch are quantized, in memory that nobody else sees, and
// multiplied. What is not taken as it is Python has to look at.
#include <nanobind/stl/optional.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "blockscale/cuda.h"
#include "blockscale/error.h"
#include "blockscale/gemm.h"
#include "blockscale/quantize.h"
#include "module.h"
#include "work.h"

namespace blockscale::python {
namespace {

/// A tensor of any dimensions as the matrix of its last one; nothing where its rows are not evenly
/// apart, or have no element.
std::optional<MutableMatrixView> rows_of(const nb::dlpack::dltensor& x, Format dtype) {
  if (x.ndim < 1 || x.strides == nullptr) return std::nullopt;
  const auto dimension = [&x](int axis) { return x.shape[axis]; };
  const int last = x.ndim - 1;
  MutableMatrixView view;
  view.data = static_cast<std::byte*>(x.data) + x.byte_offset;
  view.dtype = dtype;
  view.columns = dimension(last);
  view.rows = 1;
  if (view.columns < 1 || (view.columns > 1 && x.strides[last] != 1)) return std::nullopt;
  for (int axis = last - 1; axis >= 0; --axis) {
    const std::int64_t size = dimension(axis);
    if (size < 1) return std::nullopt;
    if (size == 1) continue;
    if (view.rows == 1) view.row_stride = x.strides[axis];
    if (x.strides[axis] != view.row_stride * view.rows) return std::nullopt;
    view.rows *= size;
  }
  if (view.rows > 1 && view.row_stride < view.columns) return std::nullopt;
  if (view.rows == 1) view.row_stride = view.columns;
  return view;
}

/// Memory of the quantized inputs.
struct Scratch {
  TorchBytes on_device{nullptr, nullptr};
  std::unique_ptr<std::byte[]> on_host;
  std::byte* data = nullptr;

  Scratch(const Work& work, std::int64_t bytes) {
    constexpr std::size_t kAlignment = 64;
    if (work.is_cuda()) {
      on_device = torch_bytes(work.execution().device, bytes);
      if (on_device != nullptr) data = static_cast<std::byte*>(python::data_of(on_device));
      return;
    }
    std::size_t space = static_cast<std::size_t>(bytes) + kAlignment;
    on_host = std::make_unique_for_overwrite<std::byte[]>(space);
    void* at = on_host.get();
    data = static_cast<std::byte*>(std::align(kAlignment, space - kAlignment, at, space));
  }
};

/// x quantized row by row in `memory`; `sense` is that of a tensor scale, which stands there too.
struct Inputs {
  static constexpr std::int64_t kAlignment = 256;

  Inputs(const MatrixView& x, Recipe recipe, TensorScaleSense sense) {
    const auto aligned = [](std::int64_t n) { return ceil_div(n, kAlignment) * kAlignment; };
    const auto [rows, columns] =
        scale_array_shape(recipe, ScaleLayout::row_major, x.rows, x.columns);
    const std::int64_t size = format_traits(recipe_traits(recipe).scale).bits / 8;
    scales = aligned(x.rows * row_bytes(recipe, x.columns));
    tensor_scale = scales + aligned(rows * columns * size);
    bytes = tensor_scale + kAlignment;
    view.recipe = recipe;
    view.sense = sense;
    view.rows = x.rows;
    view.k = x.columns;
  }

  void set(std::byte* memory, const float* given) {
    const RecipeTraits& t = recipe_traits(view.recipe);
    view.values = memory;
    view.scales = memory + scales;
    if (t.tensor_scale) view.tensor_scale = reinterpret_cast<float*>(memory + tensor_scale);
    if (given == nullptr) return;
    // Read, and not written.
    auto* const stored = const_cast<float*>(given);
    if (t.tensor_scale) view.tensor_scale = stored;
    if (!t.tensor_scale) view.scales = stored;
  }

  MutableScaledTensorView view;
  std::int64_t scales = 0, tensor_scale = 0, bytes = 0;  // offsets, and all of it
};

/// Whether one stored scale is all that inputs in this recipe need.
bool takes_one_scale(Recipe recipe) {
  return recipe == Recipe::nvfp4 || recipe == Recipe::fp8_tensor;
}

/// A plain tensor of torch on the CPU or a CUDA device; null for all else.
const ElementType* plain_type(nb::handle x, nb::dlpack::dltensor& tensor) {
  const ElementType* const type = tensor_type(x, tensor);
  return type != nullptr && format_traits(type->format).bits >= 16 ? type : nullptr;
}

bool are_together(const nb::dlpack::dltensor& a, const nb::dlpack::dltensor& b) {
  return a.device.device_type == b.device.device_type && a.device.device_id == b.device.device_id;
}

template <class Number>
const Number* data_of(const nb::dlpack::dltensor& tensor) {
  return reinterpret_cast<const Number*>(static_cast<std::byte*>(tensor.data) + tensor.byte_offset);
}

/// Looked at, and of one place; nothing else is known of `weight` yet.
struct LinearCall {
  nb::dlpack::dltensor x{};
  MutableMatrixView rows, results;
  const float* scale = nullptr;  // of the inputs; null: their own
  const void* bias = nullptr;
  std::int64_t biases = 0;
  Format bias_dtype = Format::f32;
};

std::optional<LinearCall> looked_at(nb::handle x, nb::handle bias, nb::handle out,
                                    const std::optional<Recipe>& activations, nb::handle scale) {
  LinearCall call;
  nb::dlpack::dltensor other{};
  const ElementType* const type = plain_type(x, call.x);
  if (type == nullptr) return std::nullopt;
  const auto rows = rows_of(call.x, type->format);
  /// A further tensor's type, where it lies beside x.
  const auto beside = [&](nb::handle tensor) {
    const ElementType* const found = plain_type(tensor, other);
    return found != nullptr && are_together(call.x, other) ? found : nullptr;
  };
  const ElementType* const out_type = beside(out);
  if (!rows || out_type == nullptr) return std::nullopt;
  const auto results = rows_of(other, out_type->format);
  if (!results || results->rows != rows->rows) return std::nullopt;
  call.rows = *rows;
  call.results = *results;
  if (!scale.is_none()) {
    const ElementType* const found = beside(scale);
    const bool is_one = found != nullptr && found->format == Format::f32 && activations &&
                        takes_one_scale(*activations);
    if (!is_one) return std::nullopt;
    call.scale = data_of<float>(other);
  }
  if (!bias.is_none()) {
    const ElementType* const found = beside(bias);
    if (found == nullptr || other.ndim != 1 || other.strides == nullptr ||
        (other.shape[0] > 1 && other.strides[0] != 1)) {
      return std::nullopt;
    }
    call.bias = data_of<void>(other);
    call.biases = other.shape[0];
    call.bias_dtype = found->format;
  }
  return call;
}

void multiply(const GemmArguments& product, const Work& work) {
  work.is_cuda() ? cuda::gemm(product, work.execution()) : gemm(product);
}

/// False where the inputs' memory cannot be had.
bool quantize_and_multiply(const LinearCall& call, Recipe activations, TensorScaleSense sense,
                           GemmArguments& product, const Work& work) {
  Inputs inputs(call.rows, activations, sense);
  const Scratch scratch(work, inputs.bytes);
  if (scratch.data == nullptr) return false;
  inputs.set(scratch.data, call.scale);
  QuantizeOptions options;
  if (call.scale != nullptr) options.scale_source = ScaleSource::given;
  product.a = inputs.view;
  const nb::gil_scoped_release release;
  if (work.is_cuda()) {
    cuda::quantize(call.rows, inputs.view, options, work.execution());
  } else {
    quantize(call.rows, inputs.view, options);
  }
  multiply(product, work);
  return true;
}

/// Whether `out` is x w^T + bias now. `scale`, a stored one of the inputs, may be None, and so may
/// `bias`; `sense` is that of nvfp4 inputs' tensor scale. What the library refuses is not taken:
/// Python then has it refused by names that its caller knows.
bool linear(nb::handle x, nb::handle weight, nb::handle bias, nb::handle out,
            const std::optional<Recipe>& activations, TensorScaleSense sense, nb::handle scale) {
  const std::optional<LinearCall> call = looked_at(x, bias, out, activations, scale);
  if (!call || is_rehearsal) return false;
  try {
    const auto work = work_of_torch(call->x.device);
    const ScaledArgument b = scaled_argument("weight", weight, Access::read, work->place());
    const bool fits = b.values.ndim() == 2 && b.view.k == call->rows.columns &&
                      b.view.rows == call->results.columns &&
                      (call->bias == nullptr || call->biases == b.view.rows);
    if (!fits) return false;
    GemmArguments product;
    product.b = b.view;
    product.d = call->results;
    product.bias = call->bias;
    product.bias_dtype = call->bias_dtype;
    if (activations) return quantize_and_multiply(*call, *activations, sense, product, *work);
    product.a = as_scaled(call->rows);
    const nb::gil_scoped_release release;
    multiply(product, *work);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported) {
      return false;
    }
    throw;
  }
}

}  // namespace

void bind_linear(nb::module_& module) {
  module.def("linear", &linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(),
             nb::arg("out"), nb::arg("activations").none(), nb::arg("sense"),
             nb::arg("scale").none());
}

}  // namespace blockscale::python
