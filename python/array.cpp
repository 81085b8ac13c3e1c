#include "array.h"

#include <atomic>

#include "blockscale/error.h"

namespace blockscale::python {
namespace {

[[noreturn]] void fail(const std::string& argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

template <class NbArray>
void require_place(const std::string& argument, const NbArray& array, const Place& place) {
  const bool cuda = array.device_type() == nb::device::cuda::value;
  const bool host = array.device_type() == nb::device::cpu::value;
  if (place.cuda ? cuda : host) return;
  fail(argument, place.cuda ? "is not on a CUDA device" : "is not in CPU memory");
}

/// What nanobind makes an array of: on a device, the capsule of a stream.
nb::object array_source(nb::handle object, const Place& place) {
  if (!place.cuda) return nb::borrow(object);
  return object.attr("__dlpack__")(nb::arg("stream") = place.dlpack_stream);
}

/// torch.Tensor; null while torch is not imported.
PyTypeObject* torch_tensor_type() {
  static std::atomic<PyObject*> type = nullptr;
  if (PyObject* const known = type.load(std::memory_order_acquire)) {
    return reinterpret_cast<PyTypeObject*>(known);
  }
  PyObject* const modules = PySys_GetObject("modules");
  PyObject* const torch = modules == nullptr ? nullptr : PyDict_GetItemString(modules, "torch");
  if (torch == nullptr) return nullptr;
  PyObject* const found = PyObject_GetAttrString(torch, "Tensor");
  if (found == nullptr) PyErr_Clear();  // it is being imported
  if (found == nullptr || !PyType_Check(found)) return nullptr;
  type.store(found, std::memory_order_release);  // for good
  return reinterpret_cast<PyTypeObject*>(found);
}

bool is_torch(nb::handle object) {
  PyTypeObject* const tensor = torch_tensor_type();
  return tensor != nullptr && PyType_IsSubtype(Py_TYPE(object.ptr()), tensor) != 0;
}

/// Names of a tensor's methods, made once.
struct TensorNames {
  nb::object data_ptr = interned("data_ptr");
  nb::object shape = interned("shape");
  nb::object stride = interned("stride");
  nb::object element_size = interned("element_size");
};
const TensorNames& tensor_names() {
  static const auto* const names = new TensorNames();
  return *names;
}

template <class Number>
Number item(nb::handle tuple, std::size_t index) {
  PyObject* const number = PyTuple_GetItem(tuple.ptr(), static_cast<Py_ssize_t>(index));
  if (number == nullptr) throw nb::python_error();
  return nb::cast<Number>(nb::handle(number));
}

}  // namespace

void Array::set_dimensions(const std::string& argument, std::size_t count) {
  if (count > kMostDimensions) {
    fail(argument, "has " + std::to_string(count) + " dimensions, must have at most " +
                       std::to_string(kMostDimensions));
  }
  ndim_ = count;
}

Array::Array(const std::string& argument, const nb::ndarray<nb::ro>& array)
    : data_(const_cast<void*>(array.data())),
      itemsize_(static_cast<std::int64_t>(array.itemsize())),
      capsule_(array) {
  set_dimensions(argument, array.ndim());
  for (std::size_t axis = 0; axis < ndim_; ++axis) {
    shape_[axis] = static_cast<std::int64_t>(array.shape(axis));
    strides_[axis] = array.stride(axis);
  }
}

Array Array::of_torch(const std::string& argument, nb::handle tensor) {
  const TensorNames& names = tensor_names();
  Array array;
  array.owner_ = nb::borrow(tensor);
  const nb::object shape = tensor.attr(names.shape);
  const nb::object strides = tensor.attr(names.stride)();
  array.set_dimensions(argument, nb::len(shape));
  for (std::size_t axis = 0; axis < array.ndim_; ++axis) {
    array.shape_[axis] = item<std::int64_t>(shape, axis);
    array.strides_[axis] = item<std::int64_t>(strides, axis);
  }
  array.itemsize_ = nb::cast<std::int64_t>(tensor.attr(names.element_size)());
  array.data_ = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(tensor.attr(names.data_ptr)()));
  return array;
}

std::int64_t Array::size() const {
  std::int64_t size = 1;
  for (std::size_t axis = 0; axis < ndim_; ++axis) size *= shape_[axis];
  return size;
}

Array input_array(const std::string& argument, nb::handle object, const Place& place) {
  if (place.cuda && is_torch(object)) return Array::of_torch(argument, object);
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(array_source(object, place), array, false)) {
    fail(argument, "is no array that DLPack or the buffer protocol can carry; copy it");
  }
  require_place(argument, array, place);
  return {argument, array};
}

Array output_array(const std::string& argument, nb::handle object, const Place& place) {
  if (place.cuda && is_torch(object)) return Array::of_torch(argument, object);
  nb::ndarray<> array;
  if (!nb::try_cast(array_source(object, place), array, false)) {
    (void)input_array(argument, object, place);
    fail(argument, "is read-only, must be writable");
  }
  require_place(argument, array, place);
  return {argument, nb::ndarray<nb::ro>(array)};
}

}  // namespace blockscale::python
