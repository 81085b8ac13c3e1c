#include "work.h"

namespace blockscale::python {
namespace {

/// What of the package is asked for often; loaded by the first call.
struct Package {
  nb::object scaled_tensor = nb::module_::import_("blockscale._tensor").attr("ScaledTensor");
  nb::object device = nb::module_::import_("blockscale._device").attr("device");
  nb::object place = interned("_place");
  nb::object numpy = interned("numpy");
  nb::object ndim = interned("ndim");
};
const Package& package() {
  static const auto* const made = new Package();
  return *made;
}

/// Whether it is f32, f16 or bf16.
bool is_plain(const ElementType* type) {
  return type != nullptr && format_traits(type->format).bits >= 16;
}

}  // namespace

Work::Work(const nb::tuple& where) {
  if (where.size() == 0) return;
  make_workspace_ = where[2];
  set_device(nb::cast<int>(where[0]), nb::cast<std::uintptr_t>(where[1]));
}

Work::Work(int device, nb::handle place)
    : make_workspace_(place.attr("workspace")), of_torch_(true) {
  set_device(device, nb::cast<std::uintptr_t>(place.attr("stream")()));
}

/// DLPack writes the legacy default stream as 1.
void Work::set_device(int device, std::uintptr_t stream) {
  place_ = {true, stream == 0 ? 1 : static_cast<std::int64_t>(stream)};
  execution_.stream = reinterpret_cast<void*>(stream);
  execution_.workspace_source = this;
  execution_.overlap = overlap;
  execution_.device = device;
}

void* Work::allocate(std::int64_t bytes) {
  const nb::gil_scoped_acquire acquire;
  if (of_torch_) bytes_ = torch_bytes(execution_.device, bytes);
  if (bytes_ != nullptr) return data_of(bytes_);
  workspace_ = output_array("workspace", make_workspace_(bytes), place_);
  return workspace_.data();
}

std::unique_ptr<Work> work_of_torch(nb::dlpack::device device) {
  if (device.device_type != nb::device::cuda::value) return std::make_unique<Work>(nb::tuple());
  return std::make_unique<Work>(device.device_id, package().device("torch", device.device_id));
}

std::optional<TakenPlace> TakenPlace::of(nb::handle array) {
  TakenPlace result;
  if (const std::optional<Format> format = numpy_format(array)) {
    result.format_ = *format;
    result.place_ = package().numpy;
    return result;
  }
  nb::dlpack::dltensor tensor;
  const ElementType* const type = torch_type(array, tensor);
  if (!is_plain(type)) return std::nullopt;
  result.format_ = type->format;
  result.is_cuda_ = true;
  result.device_ = tensor.device.device_id;
  result.place_ = package().device("torch", result.device_);
  return result;
}

std::optional<Format> TakenPlace::format_of(nb::handle array, int& dimensions) const {
  if (!is_cuda_) {
    const std::optional<Format> format = numpy_format(array);
    if (format) dimensions = nb::cast<int>(array.attr(package().ndim));
    return format;
  }
  nb::dlpack::dltensor tensor;
  const ElementType* const type = torch_type(array, tensor);
  if (!is_plain(type) || tensor.device.device_id != device_) return std::nullopt;
  dimensions = tensor.ndim;
  return type->format;
}

bool TakenPlace::pair(nb::object& array) const {
  int dimensions = 0;
  if (array.is_none()) return true;
  const std::optional<Format> format = format_of(array, dimensions);
  if (format) array = nb::make_tuple(array, *format);
  return format.has_value();
}

bool TakenPlace::has_int32(nb::handle array) const {
  if (!is_cuda_) return is_numpy_int32(array);
  nb::dlpack::dltensor tensor;
  return describe_tensor(array, tensor) && tensor.device.device_type == nb::device::cuda::value &&
         tensor.device.device_id == device_ && tensor.dtype == nb::dtype<std::int32_t>();
}

bool TakenPlace::has_f32(nb::handle array) const {
  int dimensions = 0;
  return format_of(array, dimensions) == Format::f32;
}

bool TakenPlace::has(nb::handle scaled_tensor) const {
  const Package& names = package();
  if (!scaled_tensor.type().is(names.scaled_tensor)) return false;
  const nb::object place = scaled_tensor.attr(names.place);
  if (is_cuda_) return place.is(place_);
  return PyUnicode_Check(place.ptr()) != 0 &&
         PyUnicode_CompareWithASCIIString(place.ptr(), "numpy") == 0;
}

nb::object TakenPlace::operand(nb::handle x) const {
  if (has(x)) return nb::borrow(x);
  int dimensions = 0;
  const std::optional<Format> format = format_of(x, dimensions);
  return format ? nb::object(nb::make_tuple(x, *format)) : nb::object();
}

}  // namespace blockscale::python
