// Crossing from Python arrays to the library's views. Python passes raw numpy-like arrays (unsigned
// integers and floats that DLPack or the buffer protocol can carry) with the format they stand for;
// here they are checked and become views that point into them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "blockscale/tensor.h"

namespace blockscale::python {

namespace nb = nanobind;

using InputArray = nb::ndarray<nb::ro>;
using OutputArray = nb::ndarray<>;

/// Where the arrays of a call lie: in memory of the CPU, or of a CUDA device.
struct Place {
  bool cuda = false;
  /// DLPack's number of the stream on which they will be used; their library has that stream wait
  /// for what it is still doing to them.
  std::int64_t dlpack_stream = -1;
};

/// The memory of an array, without copying: a numpy array, or on a CUDA device one of any library
/// that speaks DLPack. Throws an Error naming `argument` for one whose memory cannot be described,
/// is read-only where it must be written, or is elsewhere.
InputArray input_array(const std::string& argument, nb::handle object, const Place& place = {});
OutputArray output_array(const std::string& argument, nb::handle object, const Place& place = {});

/// A [rows, columns] or [batch, rows, columns] array of `dtype`, columns contiguous.
MatrixView matrix_view(const char* argument, const InputArray& array, Format dtype);
MutableMatrixView matrix_view(const char* argument, const OutputArray& array, Format dtype);

enum class Access { read, write };

/// A Python ScaledTensor as a view, with the arrays that keep its memory alive. Written through
/// only if it was asked for with Access::write, which refuses read-only arrays.
struct ScaledArgument {
  InputArray values;
  InputArray scales;
  InputArray tensor_scale;  // invalid where the recipe has none
  MutableScaledTensorView view;
};

/// Reads the attributes of a ScaledTensor (python/blockscale/_tensor.py). `argument` null: errors
/// name its parts alone.
ScaledArgument scaled_argument(const char* argument, nb::handle scaled_tensor, Access access,
                               const Place& place = {});

/// An operand of a product: a ScaledTensor, or a pair (array, Format).
struct Operand {
  InputArray plain;
  ScaledArgument scaled;
  ScaledTensorView view;
};
Operand operand_argument(const char* argument, nb::handle object, const Place& place = {});

}  // namespace blockscale::python
