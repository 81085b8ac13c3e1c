// Crossing from Python arrays to the library's views. Python passes raw numpy-like arrays (unsigned
// integers and floats that DLPack or the buffer protocol can carry) with the format they stand for;
// here they are checked and become views that point into them.
#pragma once

#include <array>
#include <cstdint>

#include "array.h"
#include "blockscale/tensor.h"

namespace blockscale::python {

/// A [rows, columns] or [batch, rows, columns] array of `dtype`, columns contiguous. Written
/// through only if it is an output_array.
MutableMatrixView matrix_view(const char* argument, const Array& array, Format dtype);

/// The dimensions of an array of scales of a matrix [rows, k]. Of an empty one the side that is not
/// empty has its blocks.
std::array<std::int64_t, 2> scale_array_shape(Recipe recipe, ScaleLayout layout, std::int64_t rows,
                                              std::int64_t k);

enum class Access { read, write };

/// A Python ScaledTensor as a view, with the arrays that keep its memory alive. Written through
/// only if it was asked for with Access::write, which refuses read-only arrays.
struct ScaledArgument {
  Array values;
  Array scales;
  Array tensor_scale;  // of nothing where the recipe has none
  MutableScaledTensorView view;
};

/// Reads the attributes of a ScaledTensor (python/blockscale/_tensor.py). `argument` null: errors
/// name its parts alone.
ScaledArgument scaled_argument(const char* argument, nb::handle scaled_tensor, Access access,
                               const Place& place = {});

/// An operand of a product: a ScaledTensor, or a pair (array, Format).
struct Operand {
  Array plain;
  ScaledArgument scaled;
  ScaledTensorView view;

  std::size_t ndim() const { return plain.ndim() != 0 ? plain.ndim() : scaled.values.ndim(); }
};
Operand operand_argument(const char* argument, nb::handle object, const Place& place = {});

}  // namespace blockscale::python
