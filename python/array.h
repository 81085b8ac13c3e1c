// The memory of an array of Python's, whichever library it belongs to.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "blockscale/tensor.h"

namespace blockscale::python {

namespace nb = nanobind;

/// A Python string for attributes that are asked for often.
inline nb::object interned(const char* name) {
  return nb::steal(PyUnicode_InternFromString(name));
}

/// What errors call an array: an argument, or "argument.part" (the part alone where `argument` is
/// null). It is put together for errors only.
struct ArrayName {
  ArrayName(const char* argument, const char* part = nullptr) : argument(argument), part(part) {}
  std::string str() const;

  const char* argument;
  const char* part;
};

/// Where the arrays of a call lie: in memory of the CPU, or of a CUDA device.
struct Place {
  bool cuda = false;
  /// DLPack's number of the stream on which they will be used; their library has that stream wait
  /// for what it is still doing to them.
  std::int64_t dlpack_stream = -1;
};

/// Pointer, shape and strides (of elements), and what keeps the memory alive. Written through only
/// if it is an output_array.
class Array {
 public:
  Array() = default;
  /// What an array's library gave, of which `owner` keeps the memory alive.
  Array(const ArrayName& name, const nb::dlpack::dltensor& tensor, nb::object owner);
  Array(const ArrayName& name, const nb::ndarray<nb::ro>& array);

  /// The array [n] as [1, n].
  Array as_row() const;

  void* data() const { return data_; }
  std::size_t ndim() const { return ndim_; }
  std::int64_t shape(std::size_t axis) const { return shape_.at(axis); }
  std::int64_t stride(std::size_t axis) const { return strides_.at(axis); }
  std::int64_t size() const;
  std::int64_t itemsize() const { return itemsize_; }
  std::int64_t nbytes() const { return size() * itemsize_; }

 private:
  friend std::optional<Array> numpy_array(nb::handle object, bool to_write);

  static constexpr std::size_t kMostDimensions = 8;

  void* data_ = nullptr;
  std::size_t ndim_ = 0;
  std::int64_t itemsize_ = 0;
  std::array<std::int64_t, kMostDimensions> shape_{}, strides_{};
  nb::object owner_;
  nb::ndarray<nb::ro> capsule_;
};

/// The memory of an array, without copying: a numpy array, or on a CUDA device one of any library
/// that speaks DLPack. Throws an Error with its name for one whose memory cannot be described, is
/// read-only where it must be written, or is elsewhere.
Array input_array(const ArrayName& name, nb::handle object, const Place& place = {});
Array output_array(const ArrayName& name, nb::handle object, const Place& place = {});

/// A type of DLPack's.
struct ElementType {
  nb::dlpack::dtype_code code;
  std::uint8_t bits;
  const char* name;  // as in ml_dtypes and torch
  Format format;
};

/// Whether it is a tensor of torch that its table describes: no sparse one, say.
bool describe_tensor(nb::handle x, nb::dlpack::dltensor& tensor);
/// The type of a tensor of torch that is taken as it is, and its memory: on the CPU or a CUDA
/// device, strided, with neither a gradient nor a negation to come. Null for all else.
const ElementType* tensor_type(nb::handle x, nb::dlpack::dltensor& tensor);
/// The same on a CUDA device alone.
const ElementType* torch_type(nb::handle x, nb::dlpack::dltensor& tensor);

/// The format of an array of numpy's own class, with the dtype float32, float16 or ml_dtypes'
/// bfloat16; nothing for all else.
std::optional<Format> numpy_format(nb::handle x);

/// Whether it is an array of int32 of numpy's own class.
bool is_numpy_int32(nb::handle x);

/// What torch's allocator gave, until it is destroyed: work that is queued on torch's stream by
/// then may use it. Null where torch has no table of C functions, or no memory.
struct ManagedTensor;
using TorchBytes = std::unique_ptr<ManagedTensor, void (*)(ManagedTensor*)>;
TorchBytes torch_bytes(int device, std::int64_t bytes);
void* data_of(const TorchBytes& bytes);

bool is_torch_tensor(nb::handle object);

/// Has an array described by its library's table of C functions (DLPack 1.3), in a hundredth of the
/// time of `__dlpack__`: memory, shape and strides remain the array's, and streams are left alone.
/// False where there is no table. Throws what the library does.
bool describe_by_table(nb::handle object, nb::dlpack::dltensor& tensor);

}  // namespace blockscale::python
