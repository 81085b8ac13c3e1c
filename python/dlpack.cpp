// Arrays of libraries that speak DLPack only: numpy knows neither bf16 nor FP8 there, nanobind
// does.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/error.h"
#include "module.h"

namespace blockscale::python {
namespace {

using nb::dlpack::dtype_code;
using DlpackArray = nb::ndarray<nb::array_api>;
using ReadOnlyArray = nb::ndarray<nb::ro>;

constexpr ElementType kTypes[] = {
    {dtype_code::Float, 32, "float32", Format::f32},
    {dtype_code::Float, 16, "float16", Format::f16},
    {dtype_code::Bfloat, 16, "bfloat16", Format::bf16},
    {dtype_code::Float8_E4M3FN, 8, "float8_e4m3fn", Format::e4m3},
    {dtype_code::Float8_E4M3FN, 8, "float8_e4m3fn", Format::ue4m3},
    {dtype_code::Float8_E5M2, 8, "float8_e5m2", Format::e5m2},
    {dtype_code::Float8_E8M0FNU, 8, "float8_e8m0fnu", Format::ue8m0},
};

/// Its row of kTypes; null if it has none.
const ElementType* known_type(nb::dlpack::dtype type) {
  for (const ElementType& row : kTypes) {
    if (static_cast<std::uint8_t>(row.code) == type.code && row.bits == type.bits &&
        type.lanes == 1) {
      return &row;
    }
  }
  return nullptr;
}

std::string type_name(nb::dlpack::dtype type) {
  if (const ElementType* const known = known_type(type)) return known->name;
  const auto code = static_cast<dtype_code>(type.code);
  const std::string bits = std::to_string(type.bits);
  std::string name = "DLPack type " + std::to_string(type.code) + " of " + bits + " bits";
  if (code == dtype_code::UInt) name = "uint" + bits;
  if (code == dtype_code::Int) name = "int" + bits;
  if (code == dtype_code::Float) name = "float" + bits;
  if (code == dtype_code::Bool) name = "bool";
  return type.lanes == 1 ? name : name + " x " + std::to_string(type.lanes);
}

/// The memory of `array` under another type, kept alive by it.
template <class Result, class Array>
Result retyped(const Array& array, nb::dlpack::dtype type) {
  const nb::capsule owner(new Array(array),
                          [](void* p) noexcept { delete static_cast<Array*>(p); });
  std::vector<std::size_t> shape;
  std::vector<std::int64_t> strides;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    shape.push_back(array.shape(axis));
    strides.push_back(array.stride(axis));
  }
  return Result(array.data(), shape.size(), shape.data(), owner, strides.data(), type,
                nb::device::cpu::value);
}

/// (numpy array over the same memory, name of the dtype); what numpy has no type for comes as
/// unsigned integers of its size.
template <class Array, class Result>
nb::tuple imported(const std::string& argument, const Array& array) {
  nb::dlpack::dtype type = array.dtype();
  const std::string name = type_name(type);
  if (type.lanes != 1 || type.bits % 8 != 0 || type.bits > 64) {
    throw nb::type_error((argument + ": has dtype " + name + ", which is not supported").c_str());
  }
  const auto code = static_cast<dtype_code>(type.code);
  const bool numpy_has_it = code == dtype_code::Float || code == dtype_code::Int ||
                            code == dtype_code::UInt || code == dtype_code::Bool;
  if (!numpy_has_it) type.code = static_cast<std::uint8_t>(dtype_code::UInt);
  return nb::make_tuple(nb::cast(retyped<Result>(array, type)), name);
}

nb::tuple import_dlpack(const char* argument, nb::handle object) {
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable, false)) {
    return imported<nb::ndarray<>, nb::ndarray<nb::numpy>>(argument, writable);
  }
  ReadOnlyArray array;
  if (nb::try_cast(object, array, false)) {
    return imported<ReadOnlyArray, nb::ndarray<nb::numpy, nb::ro>>(argument, array);
  }
  throw nb::type_error(
      (std::string(argument) + ": its __dlpack__ does not give an array in CPU memory").c_str());
}

/// (x, name of its dtype, device_of("torch", its device)) for what torch_type knows; None for all
/// else, at which Python has to look.
nb::object describe_torch(nb::handle x, nb::handle device_of) {
  nb::dlpack::dltensor tensor;
  const ElementType* const type = torch_type(x, tensor);
  if (type == nullptr) return nb::none();
  return nb::make_tuple(x, interned(type->name), device_of("torch", tensor.device.device_id));
}

/// An array of bytes, uint16 or floats with the type that it stands for, for a library's
/// from_dlpack. Formats that DLPack has no unpacked type for stay bytes.
nb::object export_dlpack(const nb::ndarray<>& array, Format format) {
  nb::dlpack::dtype type = array.dtype();
  for (const ElementType& row : kTypes) {
    if (row.format == format) type = {static_cast<std::uint8_t>(row.code), row.bits, 1};
  }
  return nb::cast(retyped<DlpackArray>(array, type));
}

}  // namespace

const ElementType* tensor_type(nb::handle x, nb::dlpack::dltensor& tensor) {
  static const nb::object& requires_grad = *new nb::object(interned("requires_grad"));
  static const nb::object& is_neg = *new nb::object(interned("is_neg"));
  if (!describe_tensor(x, tensor)) return nullptr;
  const auto kind = tensor.device.device_type;
  const bool is_plain = (kind == nb::device::cuda::value || kind == nb::device::cpu::value) &&
                        x.attr(requires_grad).is(Py_False) && x.attr(is_neg)().is(Py_False);
  return is_plain ? known_type(tensor.dtype) : nullptr;
}

const ElementType* torch_type(nb::handle x, nb::dlpack::dltensor& tensor) {
  const ElementType* const type = tensor_type(x, tensor);
  const bool is_cuda = type != nullptr && tensor.device.device_type == nb::device::cuda::value;
  return is_cuda ? type : nullptr;
}

void bind_dlpack(nb::module_& module) {
  module.def("import_dlpack", &import_dlpack, nb::arg("argument"), nb::arg("array"));
  module.def("describe_torch", &describe_torch, nb::arg("x").none(), nb::arg("device_of"));
  module.def("export_dlpack", &export_dlpack, nb::arg("array"), nb::arg("format"));
}

}  // namespace blockscale::python
