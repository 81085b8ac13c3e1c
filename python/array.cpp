#include "array.h"

#include <atomic>
#include <cstddef>
#include <utility>

#include "blockscale/error.h"

namespace blockscale::python {

/// DLPack's DLManagedTensorVersioned.
struct ManagedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedTensor* tensor);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};

namespace {

[[noreturn]] void fail(const ArrayName& name, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, name.str(), message);
}

void require_place(const ArrayName& name, int device, const Place& place) {
  const int wanted = place.cuda ? nb::device::cuda::value : nb::device::cpu::value;
  if (device == wanted) return;
  fail(name, place.cuda ? "is not on a CUDA device" : "is not in CPU memory");
}

/// DLPack 1.3's table of C functions. The members up to `previous` stay as they are in versions to
/// come.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* previous;
  int (*allocate)(nb::dlpack::dltensor* prototype, ManagedTensor** tensor, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  void *managed_from_object, *managed_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* tensor);  // may be null
};

/// That of a class of arrays; null where it has none.
const ExchangeApi* exchange_api_of(nb::handle type) {
  static const nb::object& name = *new nb::object(interned("__dlpack_c_exchange_api__"));
  const nb::object capsule = nb::getattr(type, name, nb::none());
  if (capsule.is_none()) return nullptr;
  const auto* api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  while (api != nullptr && api->major != 1) api = api->previous;
  return api;
}

/// What of torch is asked for often.
struct Torch {
  nb::object tensor;  // its class
  const ExchangeApi* api;
};

/// Null as long as nobody imported torch.
const Torch* torch() {
  static std::atomic<const Torch*> kept = nullptr;
  if (const Torch* const known = kept) return known;
  const auto module = nb::steal(PyImport_GetModule(interned("torch").ptr()));
  PyErr_Clear();
  if (!module.is_valid() || !nb::hasattr(module, "Tensor")) return nullptr;
  const nb::object tensor = module.attr("Tensor");
  return kept = new Torch{tensor, exchange_api_of(tensor)};
}

/// That of an array's library; null where it has none.
const ExchangeApi* exchange_api(nb::handle object) {
  const Torch* const known = torch();
  return known != nullptr && object.type().is(known->tensor) ? known->api
                                                             : exchange_api_of(object.type());
}

/// What nanobind makes an array of: on a device, a capsule. torch's function for that, unlike its
/// `__dlpack__`, is not written in Python; it leaves streams alone, and its arrays are used on its
/// current one. Bytes are bytes: a torch from before the table may not export 8-bit floats.
nb::object array_source(nb::handle object, const Place& place) {
  if (!place.cuda) return nb::borrow(object);
  if (is_torch_tensor(object)) {
    const nb::module_ torch = nb::module_::import_("torch");
    const bool bytes = nb::cast<int>(object.attr("element_size")()) == 1;
    return torch.attr("utils").attr("dlpack").attr("to_dlpack")(
        bytes ? object.attr("view")(torch.attr("uint8")) : nb::borrow(object));
  }
  return object.attr("__dlpack__")(nb::arg("stream") = place.dlpack_stream);
}

/// Whether its library's table describes an array on a CUDA device.
bool is_exchanged(const ArrayName& name, nb::handle object, const Place& place,
                  nb::dlpack::dltensor& tensor) {
  if (!place.cuda || !describe_by_table(object, tensor)) return false;
  require_place(name, tensor.device.device_type, place);
  return true;
}

/// What numpy's attribute __array_struct__ gives ("The array interface protocol", C side): a
/// description that lives as long as its capsule.
struct ArrayInterface {
  static constexpr int kAligned = 0x100, kNative = 0x200, kWritable = 0x400;  // of flags

  int two;  // a check
  int ndim;
  char kind;  // of elements
  int itemsize;
  int flags;
  const Py_intptr_t* shape;
  const Py_intptr_t* strides;  // bytes
  void* data;
};

nb::object numpy_dtype(nb::handle type) {
  return nb::module_::import_("numpy").attr("dtype")(type);
}

/// numpy's dtype of ml_dtypes; null as long as nobody imported that.
nb::handle bfloat16() {
  static std::atomic<PyObject*> kept = nullptr;
  if (PyObject* const known = kept) return known;
  const auto module = nb::steal(PyImport_GetModule(interned("ml_dtypes").ptr()));
  PyErr_Clear();
  if (!module.is_valid() || !nb::hasattr(module, "bfloat16")) return {};
  return kept = numpy_dtype(module.attr("bfloat16")).release().ptr();
}

bool is_numpy_array(nb::handle object) {
  static const nb::object& type = *new nb::object(nb::module_::import_("numpy").attr("ndarray"));
  return object.type().is(type);
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

std::string ArrayName::str() const {
  if (part == nullptr) return argument;
  return argument == nullptr ? part : std::string(argument) + "." + part;
}

bool is_torch_tensor(nb::handle object) {
  const Torch* const known = torch();
  return known != nullptr && nb::isinstance(object, known->tensor);
}

TorchBytes torch_bytes(int device, std::int64_t bytes) {
  TorchBytes result(nullptr, [](ManagedTensor* tensor) { tensor->deleter(tensor); });
  const Torch* const known = torch();
  if (known == nullptr || known->api == nullptr || known->api->allocate == nullptr) return result;
  nb::dlpack::dltensor prototype;
  prototype.device = {nb::device::cuda::value, device};
  prototype.ndim = 1;
  prototype.dtype = nb::dtype<std::uint8_t>();
  prototype.shape = &bytes;
  ManagedTensor* made = nullptr;
  const auto ignore = [](void*, const char*, const char*) {};
  if (known->api->allocate(&prototype, &made, nullptr, ignore) == 0) result.reset(made);
  return result;
}

void* data_of(const TorchBytes& bytes) {
  return static_cast<std::byte*>(bytes->tensor.data) + bytes->tensor.byte_offset;
}

bool describe_by_table(nb::handle object, nb::dlpack::dltensor& tensor) {
  const ExchangeApi* const api = exchange_api(object);
  if (api == nullptr || api->tensor_from_object == nullptr) return false;
  if (api->tensor_from_object(object.ptr(), &tensor) != 0) throw nb::python_error();
  return true;
}

Array::Array(const ArrayName& name, const nb::dlpack::dltensor& tensor, nb::object owner)
    : data_(static_cast<std::byte*>(tensor.data) + tensor.byte_offset),
      ndim_(static_cast<std::size_t>(tensor.ndim)),
      itemsize_(tensor.dtype.bits * tensor.dtype.lanes / 8),
      owner_(std::move(owner)) {
  if (ndim_ > kMostDimensions) {
    fail(name, "has " + std::to_string(ndim_) + " dimensions, must have at most " +
                   std::to_string(kMostDimensions));
  }
  std::int64_t packed = 1;
  for (std::size_t axis = ndim_; axis-- > 0;) {
    shape_[axis] = tensor.shape[axis];
    strides_[axis] = tensor.strides == nullptr ? packed : tensor.strides[axis];
    packed *= shape_[axis];
  }
}

Array::Array(const ArrayName& name, const nb::ndarray<nb::ro>& array)
    : Array(name, described(array), {}) {
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

/// An array of numpy's own class, with types that the buffer protocol cannot carry (ml_dtypes').
/// Nothing where that protocol has more to say.
std::optional<Array> numpy_array(nb::handle object, bool to_write) {
  if (!is_numpy_array(object)) return std::nullopt;
  static const nb::object& name = *new nb::object(interned("__array_struct__"));
  const nb::object capsule = object.attr(name);
  const auto* x = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (x == nullptr) throw nb::python_error();
  const int flags = ArrayInterface::kAligned | ArrayInterface::kNative |
                    (to_write ? ArrayInterface::kWritable : 0);
  if (x->two != 2 || (x->flags & flags) != flags || x->kind == 'O' || x->itemsize <= 0 ||
      static_cast<std::size_t>(x->ndim) > Array::kMostDimensions) {
    return std::nullopt;
  }
  Array array;
  array.data_ = x->data;
  array.ndim_ = static_cast<std::size_t>(x->ndim);
  array.itemsize_ = x->itemsize;
  for (std::size_t axis = 0; axis < array.ndim_; ++axis) {
    if (x->strides[axis] % x->itemsize != 0) return std::nullopt;
    array.shape_[axis] = x->shape[axis];
    array.strides_[axis] = x->strides[axis] / x->itemsize;
  }
  array.owner_ = nb::borrow(object);
  return array;
}

bool describe_tensor(nb::handle x, nb::dlpack::dltensor& tensor) {
  if (!is_torch_tensor(x)) return false;
  try {
    return describe_by_table(x, tensor);
  } catch (const nb::python_error&) {
    return false;
  }
}

/// The dtype of an array of numpy's own class, an object that numpy has one of unless it is swapped
/// or annotated; null for all else.
nb::object numpy_dtype_of(nb::handle x) {
  static const nb::object& name = *new nb::object(interned("dtype"));
  return is_numpy_array(x) ? x.attr(name) : nb::object();
}

std::optional<Format> numpy_format(nb::handle x) {
  const nb::object dtype = numpy_dtype_of(x);
  if (!dtype.is_valid()) return std::nullopt;
  static const nb::object& f32 = *new nb::object(numpy_dtype(nb::str("float32")));
  static const nb::object& f16 = *new nb::object(numpy_dtype(nb::str("float16")));
  if (dtype.is(f32)) return Format::f32;
  if (dtype.is(f16)) return Format::f16;
  if (dtype.is(bfloat16())) return Format::bf16;
  return std::nullopt;
}

bool is_numpy_int32(nb::handle x) {
  static const nb::object& int32 = *new nb::object(numpy_dtype(nb::str("int32")));
  return numpy_dtype_of(x).is(int32);
}

Array input_array(const ArrayName& name, nb::handle object, const Place& place) {
  nb::dlpack::dltensor tensor;
  if (is_exchanged(name, object, place, tensor)) return {name, tensor, nb::borrow(object)};
  if (!place.cuda) {
    if (std::optional<Array> array = numpy_array(object, false)) return *std::move(array);
  }
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(array_source(object, place), array, false)) {
    fail(name, "is no array that DLPack or the buffer protocol can carry; copy it");
  }
  require_place(name, array.device_type(), place);
  return {name, array};
}

Array output_array(const ArrayName& name, nb::handle object, const Place& place) {
  nb::dlpack::dltensor tensor;
  if (is_exchanged(name, object, place, tensor)) return {name, tensor, nb::borrow(object)};
  if (!place.cuda) {
    if (std::optional<Array> array = numpy_array(object, true)) return *std::move(array);
  }
  nb::ndarray<> array;
  if (!nb::try_cast(array_source(object, place), array, false)) {
    (void)input_array(name, object, place);
    fail(name, "is read-only, must be writable");
  }
  require_place(name, array.device_type(), place);
  return {name, nb::ndarray<nb::ro>(array)};
}

}  // namespace blockscale::python
