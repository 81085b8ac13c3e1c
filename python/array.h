// The memory of an array of Python's, whichever library it belongs to.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace blockscale::python {

namespace nb = nanobind;

/// A Python string for attributes that are asked for often.
inline nb::object interned(const char* name) {
  return nb::steal(PyUnicode_InternFromString(name));
}

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
  Array(const std::string& argument, const nb::dlpack::dltensor& tensor, nb::object owner);
  Array(const std::string& argument, const nb::ndarray<nb::ro>& array);

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
  static constexpr std::size_t kMostDimensions = 8;

  void* data_ = nullptr;
  std::size_t ndim_ = 0;
  std::int64_t itemsize_ = 0;
  std::array<std::int64_t, kMostDimensions> shape_{}, strides_{};
  nb::object owner_;
  nb::ndarray<nb::ro> capsule_;
};

/// The memory of an array, without copying: a numpy array, or on a CUDA device one of any library
/// that speaks DLPack. Throws an Error naming `argument` for one whose memory cannot be
/// described, is read-only where it must be written, or is elsewhere.
Array input_array(const std::string& argument, nb::handle object, const Place& place = {});
Array output_array(const std::string& argument, nb::handle object, const Place& place = {});

}  // namespace blockscale::python
