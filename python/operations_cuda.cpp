// Operations on arrays in the memory of a CUDA device, on the caller's stream.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

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
  /// `of_torch`: torch's own allocator is asked first.
  DeviceWork(int device, std::uintptr_t stream, nb::handle make_workspace, bool of_torch = false)
      : place_(place_on(stream)), make_workspace_(make_workspace), of_torch_(of_torch) {
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
    if (of_torch_) bytes_ = torch_bytes(execution_.device, bytes);
    if (bytes_ != nullptr) return data_of(bytes_);
    workspace_ = output_array("workspace", make_workspace_(bytes), place_);
    return workspace_.data();
  }

 private:
  Place place_;
  nb::handle make_workspace_;
  bool of_torch_;
  TorchBytes bytes_{nullptr, nullptr};
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

/// A text; empty for anything else.
std::string_view text_of(nb::handle object) {
  Py_ssize_t size = 0;
  if (!nb::isinstance<nb::str>(object)) return {};
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? std::string_view()
                         : std::string_view(text, static_cast<std::size_t>(size));
}

/// The member of an enum that is given as itself or by name; nothing for anything else.
template <class Enum, class Table>
std::optional<Enum> member_of(const Table& table, nb::handle given) {
  if (Enum member{}; nb::try_cast(given, member, false)) return member;
  const std::string_view name = text_of(given);
  for (const auto& row : table) {
    if (name == row.name) return static_cast<Enum>(&row - std::begin(table));
  }
  return std::nullopt;
}

/// `amax_floor`, where a recipe may have it.
std::optional<float> floor_of(nb::handle amax_floor, const RecipeTraits& recipe) {
  if (!PyFloat_CheckExact(amax_floor.ptr())) return std::nullopt;
  const double floor = PyFloat_AsDouble(amax_floor.ptr());
  if (floor != 0 && recipe.family != Family::fp8) return std::nullopt;
  return static_cast<float>(floor);
}

/// Whether it is f32, f16 or bf16.
bool is_plain(const ElementType* type) {
  return type != nullptr && format_traits(type->format).bits >= 16;
}

/// Where Python says that a ScaledTensor lies.
nb::object place_of(nb::handle scaled_tensor) {
  static const nb::object& name = *new nb::object(interned("_place"));
  return scaled_tensor.attr(name);
}

/// Whether a result of quantizing x in these ways is as Python wants it.
bool fits(const QuantizeCall& call, Recipe recipe, const std::optional<ScaleLayout>& layout) {
  const MutableScaledTensorView& out = call.out.view;
  return call.array.ndim() == call.out.values.ndim() && call.x.batch == out.batch &&
         call.x.rows == out.rows && call.x.columns == out.k && out.recipe == recipe &&
         out.layout == layout.value_or(out.layout);
}

/// `quantize` of a tensor of torch without Python, where nothing but layout and amax_floor is
/// given. make_out(shape, recipe, layout, place) makes the result, unless `out`, a ScaledTensor, is
/// given. None, and nothing done, for all that Python has to look at or to refuse.
nb::object quantize_torch(nb::handle x, nb::handle recipe, nb::handle layout, nb::handle amax_floor,
                          nb::handle transform, nb::handle scale_choice, nb::object out,
                          nb::handle device_of, nb::handle make_out) {
  nb::dlpack::dltensor tensor;
  const ElementType* const type = torch_type(x, tensor);
  if (!is_plain(type) || tensor.ndim < 2 || tensor.ndim > 3 || text_of(transform) != "identity" ||
      text_of(scale_choice) != "amax") {
    return nb::none();
  }
  const auto to = member_of<Recipe>(kRecipes, recipe);
  if (!to || is_plain(*to)) return nb::none();
  const auto placed = member_of<ScaleLayout>(kScaleLayouts, layout);
  const std::optional<float> floor = floor_of(amax_floor, recipe_traits(*to));
  if (!floor || (!placed && !layout.is_none())) return nb::none();

  const int device = tensor.device.device_id;
  const nb::object place = device_of("torch", device);
  if (out.is_none()) {
    nb::list shape;
    for (int axis = 0; axis < tensor.ndim; ++axis) shape.append(tensor.shape[axis]);
    out = make_out(nb::tuple(shape), *to, placed.value_or(ScaleLayout::row_major), place);
  } else if (!place_of(out).is(place)) {
    return nb::none();
  }
  const auto stream = nb::cast<std::uintptr_t>(place.attr("stream")());
  const QuantizeCall call = quantize_call(x, type->format, out, MxScaleMode::ceil, false, *floor,
                                          std::nullopt, place_on(stream));
  if (!fits(call, *to, placed)) return nb::none();
  DeviceWork work(device, stream, place.attr("workspace"), true);
  with_python_names([&] { cuda::quantize(call.x, call.out.view, call.options, work.execution()); });
  return out;
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

/// What plans are described for.
cuda::Chip chip_of(const std::optional<std::string>& name) {
  return name ? cuda::chip_named(*name) : cuda::default_chip();
}

/// The plan of one problem, in memory that does not exist. `transform` numbers InputTransform.
std::string describe_quantize(std::int64_t rows, std::int64_t k, Format dtype, Recipe recipe,
                              ScaleLayout layout, int transform,
                              const std::optional<std::string>& chip) {
  cuda::QuantizeBenchmarkOptions options;
  options.recipes = {recipe};
  options.dtypes = {dtype};
  options.layouts = {layout};
  options.transforms = {static_cast<InputTransform>(transform)};
  const std::int64_t columns = options.transforms[0] == InputTransform::swiglu ? 2 * k : k;
  options.input_bytes = {rows * columns * (format_traits(dtype).bits / 8)};
  options.k = k;
  const auto plans = cuda::describe_benchmark(options, chip_of(chip));
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

/// `gemm` of two ScaledTensors into a tensor of torch without Python, where nothing but alpha, bias
/// and batch_invariant is given. False, and nothing done, as quantize_torch's None.
bool gemm_torch(nb::handle a, nb::handle b, nb::handle out, nb::handle alpha, nb::handle bias,
                bool batch_invariant, nb::handle device_of) {
  nb::dlpack::dltensor d, row;
  const ElementType* const type = torch_type(out, d);
  if (!is_plain(type) || !PyFloat_CheckExact(alpha.ptr())) return false;
  const int device = d.device.device_id;
  const nb::object place = device_of("torch", device);
  if (!place_of(a).is(place) || !place_of(b).is(place)) return false;
  std::optional<nb::tuple> bias_pair;
  if (!bias.is_none()) {
    const ElementType* const bias_type = torch_type(bias, row);
    if (!is_plain(bias_type) || row.ndim != 1 || row.device.device_id != device) return false;
    bias_pair = nb::make_tuple(bias, bias_type->format);
  }
  const auto stream = nb::cast<std::uintptr_t>(place.attr("stream")());
  const auto factor = static_cast<float>(PyFloat_AsDouble(alpha.ptr()));
  const GemmCall call = gemm_call(a, b, out, type->format, factor, nb::none(), 0.0f, std::nullopt,
                                  bias_pair, batch_invariant, place_on(stream));
  if (!is_of_matrices(call)) return false;
  DeviceWork work(device, stream, place.attr("workspace"), true);
  with_python_names([&] { cuda::gemm(call.arguments, work.execution()); });
  return true;
}

std::string describe_gemm(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch,
                          Recipe a, Recipe b, Format dtype, const std::optional<Recipe>& to,
                          const std::optional<nb::tuple>& transform,
                          const std::optional<std::string>& chip) {
  const InputArgument input = input_argument(transform, {});
  const GemmArguments arguments = imagined_gemm(m, n, k, a, b, dtype, batch, to, input.input);
  return with_python_names([&] { return cuda::describe_gemm(arguments, chip_of(chip)); });
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
  module.def("quantize_torch", &quantize_torch, nb::arg("x").none(), nb::arg("recipe").none(),
             nb::arg("layout").none(), nb::arg("amax_floor").none(), nb::arg("transform").none(),
             nb::arg("scale_choice").none(), nb::arg("out").none(), nb::arg("device_of"),
             nb::arg("make_out"));
  module.def("cuda_quantize_rows_and_columns", &quantize_twice_on_device, nb::arg("x"),
             nb::arg("dtype"), nb::arg("out_rows"), nb::arg("out_columns"), nb::arg("amax_floor"),
             nb::arg("transform").none(), nb::arg("device"), nb::arg("stream"),
             nb::arg("make_workspace"));
  module.def("cuda_dequantize", &dequantize_on_device, nb::arg("x"), nb::arg("out"),
             nb::arg("dtype"), nb::arg("device"), nb::arg("stream"), nb::arg("make_workspace"));
  module.def("cuda_describe_quantize", &describe_quantize, nb::arg("rows"), nb::arg("k"),
             nb::arg("dtype"), nb::arg("recipe"), nb::arg("layout"), nb::arg("transform"),
             nb::arg("chip").none());
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
  module.def("gemm_torch", &gemm_torch, nb::arg("a"), nb::arg("b"), nb::arg("out"),
             nb::arg("alpha").none(), nb::arg("bias").none(), nb::arg("batch_invariant"),
             nb::arg("device_of"));
  module.def("cuda_describe_gemm", &describe_gemm, nb::arg("m"), nb::arg("n"), nb::arg("k"),
             nb::arg("batch"), nb::arg("a"), nb::arg("b"), nb::arg("dtype"), nb::arg("to").none(),
             nb::arg("transform").none(), nb::arg("chip").none());
  module.def("cuda_set_overlap", [](bool value) { overlap = value; }, nb::arg("value"));
  module.def("cuda_synchronize", &synchronize, nb::arg("device"), nb::arg("stream"));
}

}  // namespace blockscale::python
