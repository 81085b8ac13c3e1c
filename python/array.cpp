#include "array.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "blockscale/error.h"

namespace blockscale::python {
namespace {

[[noreturn]] void fail(const std::string& argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

void require_place(const std::string& argument, int device, const Place& place) {
  const int wanted = place.cuda ? nb::device::cuda::value : nb::device::cpu::value;
  if (device == wanted) return;
  fail(argument, place.cuda ? "is not on a CUDA device" : "is not in CPU memory");
}

/// What nanobind makes an array of: on a device, a capsule. torch's function for that, unlike its
/// `__dlpack__`, is not written in Python; it leaves streams alone, and its arrays are used on its
/// current one. Bytes are bytes: a torch from before the table below may not export 8-bit floats.
nb::object array_source(nb::handle object, const Place& place) {
  if (!place.cuda) return nb::borrow(object);
  const nb::object torch = nb::module_::import_("sys").attr("modules").attr("get")("torch");
  if (!torch.is_none() && nb::isinstance(object, torch.attr("Tensor"))) {
    const bool bytes = nb::cast<int>(object.attr("element_size")()) == 1;
    return torch.attr("utils").attr("dlpack").attr("to_dlpack")(
        bytes ? object.attr("view")(torch.attr("uint8")) : nb::borrow(object));
  }
  return object.attr("__dlpack__")(nb::arg("stream") = place.dlpack_stream);
}

/// DLPack 1.3's table of C functions. The members up to `previous` stay as they are in versions to
/// come.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* previous;
  void *allocate, *managed_from_object, *managed_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* tensor);  // may be null
};

/// That of an array's library; null where it has none.
const ExchangeApi* exchange_api(nb::handle object) {
  static const nb::object& name = *new nb::object(interned("__dlpack_c_exchange_api__"));
  const nb::object capsule = nb::getattr(object.type(), name, nb::none());
  if (capsule.is_none()) return nullptr;
  const auto* api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  while (api != nullptr && api->major != 1) api = api->previous;
  return api;
}

/// An array on a CUDA device by its library's table, in a hundredth of the time of `__dlpack__`; it
/// too leaves streams alone. Nothing where there is no table.
std::optional<Array> exchanged(const std::string& argument, nb::handle object, const Place& place) {
  if (!place.cuda) return std::nullopt;
  const ExchangeApi* const api = exchange_api(object);
  if (api == nullptr || api->tensor_from_object == nullptr) return std::nullopt;
  nb::dlpack::dltensor tensor;
  if (api->tensor_from_object(object.ptr(), &tensor) != 0) throw nb::python_error();
  require_place(argument, tensor.device.device_type, place);
  return Array(argument, tensor, nb::borrow(object));
}

nb::dlpack::dltensor described(const nb::ndarray<nb::ro>& array) {
  nb::dlpack::dltensor tensor;
  tensor.data = const_cast<void*>(array.data());
  tensor.ndim = static_cast<std::int32_t>(array.ndim());
  tensor.dtype = array.dtype();
  tensor.shape = const_cast<std::int64_t*>(array.shape_ptr());
  tensor.strides = const_cast<std::int64_t*>(array.stride_ptr());
  return tensor;
}

}  // namespace

Array::Array(const std::string& argument, const nb::dlpack::dltensor& tensor, nb::object owner)
    : data_(static_cast<std::byte*>(tensor.data) + tensor.byte_offset),
      ndim_(static_cast<std::size_t>(tensor.ndim)),
      itemsize_(tensor.dtype.bits * tensor.dtype.lanes / 8),
      owner_(std::move(owner)) {
  if (ndim_ > kMostDimensions) {
    fail(argument, "has " + std::to_string(ndim_) + " dimensions, must have at most " +
                       std::to_string(kMostDimensions));
  }
  std::int64_t packed = 1;
  for (std::size_t axis = ndim_; axis-- > 0;) {
    shape_[axis] = tensor.shape[axis];
    strides_[axis] = tensor.strides == nullptr ? packed : tensor.strides[axis];
    packed *= shape_[axis];
  }
}

Array::Array(const std::string& argument, const nb::ndarray<nb::ro>& array)
    : Array(argument, described(array), {}) {
  capsule_ = array;
}

Array Array::as_row() const {
  Array row = *this;
  row.ndim_ = 2;
  row.shape_[1] = std::exchange(row.shape_[0], 1);
  row.strides_[1] = std::exchange(row.strides_[0], 0);
  return row;
}

std::int64_t Array::size() const {
  std::int64_t size = 1;
  for (std::size_t axis = 0; axis < ndim_; ++axis) size *= shape_[axis];
  return size;
}

Array input_array(const std::string& argument, nb::handle object, const Place& place) {
  if (std::optional<Array> found = exchanged(argument, object, place)) return *std::move(found);
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(array_source(object, place), array, false)) {
    fail(argument, "is no array that DLPack or the buffer protocol can carry; copy it");
  }
  require_place(argument, array.device_type(), place);
  return {argument, array};
}

Array output_array(const std::string& argument, nb::handle object, const Place& place) {
  if (std::optional<Array> found = exchanged(argument, object, place)) return *std::move(found);
  nb::ndarray<> array;
  if (!nb::try_cast(array_source(object, place), array, false)) {
    (void)input_array(argument, object, place);
    fail(argument, "is read-only, must be writable");
  }
  require_place(argument, array.device_type(), place);
  return {argument, nb::ndarray<nb::ro>(array)};
}

}  // namespace blockscale::python
