// Views and owners of plain and scaled matrices: what every operation takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

#include "core/format.h"
#include "core/recipe.h"
#include "core/scale_layout.h"

namespace blockscale {

/// A batch of row-major [rows, columns] matrices of f32, f16 or bf16. Columns are contiguous.
/// Strides count elements. A stride of 0 stands for the packed one.
template <bool Mutable>
struct BasicMatrixView {
  using Pointer = std::conditional_t<Mutable, void*, const void*>;

  Pointer data = nullptr;
  Format dtype = Format::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;  // elements between rows; >= columns, or 0 for columns
  std::int64_t batch = 1;
  std::int64_t batch_stride = 0;  // elements between matrices, or 0 for rows * row_stride

  operator BasicMatrixView<false>() const
    requires Mutable
  {
    return {data, dtype, rows, columns, row_stride, batch, batch_stride};
  }
};
using MatrixView = BasicMatrixView<false>;
using MutableMatrixView = BasicMatrixView<true>;

/// How a stored tensor scale enters a value (numerics.md): `code * (s * t)` with a multiplier
/// (ModelOpt's weight_scale_2), `code * (s / S)` with a divisor (compressed-tensors). It is kept as
/// the producer stored it and never inverted.
enum class TensorScaleSense : std::uint8_t { multiplier, divisor };

/// A batch of quantized [rows, k] matrices: packed values, scales and optional tensor scale.
///
/// values   row r starts at byte r * value_row_stride; row_bytes(recipe, k) bytes follow.
/// scales   elements of the recipe's scale format, placed by `layout` (core/scale_layout.h).
/// Strides of 0 stand for the packed ones. Plain recipes have values only.
template <bool Mutable>
struct BasicScaledTensorView {
  template <class T>
  using Pointer = std::conditional_t<Mutable, T*, const T*>;

  Recipe recipe = Recipe::f32;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  std::int64_t batch = 1;

  Pointer<void> values = nullptr;
  std::int64_t value_row_stride = 0;    // bytes
  std::int64_t value_batch_stride = 0;  // bytes

  Pointer<void> scales = nullptr;
  ScaleLayout layout = ScaleLayout::row_major;
  std::int64_t scale_leading_stride = 0;  // scale elements; must be 0 or default for swizzled
  std::int64_t scale_batch_stride = 0;    // scale elements

  Pointer<float> tensor_scale = nullptr;  // NVFP4 only; null reads as 1
  TensorScaleSense sense = TensorScaleSense::divisor;
  std::int64_t tensor_scale_batch_stride = 0;  // 0: one for all matrices; 1: one each

  operator BasicScaledTensorView<false>() const
    requires Mutable
  {
    return {recipe,
            rows,
            k,
            batch,
            values,
            value_row_stride,
            value_batch_stride,
            scales,
            layout,
            scale_leading_stride,
            scale_batch_stride,
            tensor_scale,
            sense,
            tensor_scale_batch_stride};
  }
};
using ScaledTensorView = BasicScaledTensorView<false>;
using MutableScaledTensorView = BasicScaledTensorView<true>;

/// A plain matrix as an operand of an operation.
ScaledTensorView as_scaled(const MatrixView& matrix);

/// `view` with every 0 that stands for "packed" replaced by the number. Throws invalid_argument
/// (naming `argument`) for negative sizes, overflow, k no multiple of the block, strides below the
/// packed ones, null pointers with a size above zero, or misaligned pointers.
MatrixView resolved(const MatrixView& view, const char* argument);
MutableMatrixView resolved(const MutableMatrixView& view, const char* argument);
ScaledTensorView resolved(const ScaledTensorView& view, const char* argument);
MutableScaledTensorView resolved(const MutableScaledTensorView& view, const char* argument);

/// Bytes of a batch of packed values / scales (padding of the scale layout included).
std::int64_t value_bytes(Recipe recipe, std::int64_t rows, std::int64_t k, std::int64_t batch = 1);
std::int64_t scale_bytes(Recipe recipe, ScaleLayout layout, std::int64_t rows, std::int64_t k,
                         std::int64_t batch = 1);

/// Owns a scaled tensor: packed values, 64-byte aligned, scales in `layout`, a tensor scale where
/// the recipe has one. Contents start zeroed (so a swizzled layout's padding is zero), the tensor
/// scale as 1. Movable, not copyable; the view stays valid when the owner is moved.
class ScaledTensor {
 public:
  ScaledTensor() = default;
  /// Throws invalid_argument for negative or overflowing sizes, a k the recipe cannot divide, or a
  /// swizzled layout where scales are not one byte for one row.
  ScaledTensor(Recipe recipe, std::int64_t rows, std::int64_t k,
               ScaleLayout layout = ScaleLayout::row_major, std::int64_t batch = 1,
               TensorScaleSense sense = TensorScaleSense::divisor);

  MutableScaledTensorView view() { return view_; }
  ScaledTensorView view() const { return view_; }

 private:
  struct FreeAligned {
    void operator()(std::byte* p) const noexcept;
  };
  std::unique_ptr<std::byte, FreeAligned> storage_;
  MutableScaledTensorView view_;
};

}  // namespace blockscale
