// What plans of products read off validated arguments, whatever kernel computes them.
#pragma once

#include <cstdint>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "device/epilogue/linear.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale::gemm_detail {

inline constexpr std::int64_t kMostElements = std::int64_t{1} << 31;  // of a dimension

/// Throws `unsupported`, naming the argument: for recipes that the FP8 kernels do not take, chips
/// that they do not run on, and sizes beyond what kernels and tensor copies count.
void check_problem(const GemmArguments& validated, const cuda::Chip& chip);

/// Whether kernels beside the plain ones that are compiled for an architecture are there for a
/// chip.
bool has_kernels_of(const char* architecture, const cuda::Chip& chip);

/// Throws `unsupported` for 2^31 and more.
void check_size(const char* argument, std::int64_t value);

/// Whether each row does.
bool begins_at_16_bytes(const ScaledTensorView& x);

/// Without data where the recipe has no scales.
GemmScales scales_of_operand(const ScaledTensorView& x);

/// Without data where the operand has none.
TensorScale tensor_scale_of(const ScaledTensorView& x);

/// Kernels count a matrix's scales in 32 bits from row to row. Throws `unsupported`.
void check_scales(const GemmScales& scales, const ScaledTensorView& x, const char* argument);

/// A view of any kind as kernels take it.
template <class View>
EpilogueMatrix matrix_of(const View& x) {
  EpilogueMatrix m;
  m.data = static_cast<std::uint8_t*>(const_cast<void*>(static_cast<const void*>(x.data)));
  m.dtype = x.dtype;
  m.row_stride = x.row_stride;
  m.batch_stride = x.batch > 1 ? x.batch_stride : 0;
  return m;
}

LinearEpilogue epilogue_of(const GemmArguments& validated);

/// Whether the scales of both operands hold for all of K: they are then left to the epilogue.
bool has_scales_at_end(const GemmArguments& x);

/// Gives scales to the epilogue, if so; they have no data any more.
void move_scales_to_end(const GemmArguments& x, GemmScales& a_scales, GemmScales& b_scales,
                        LinearEpilogue& epilogue);

/// Gives the epilogue the scales of A alone, which hold for all of K.
void leave_row_scales(const ScaledTensorView& a, LinearEpilogue& epilogue);

/// `count` columns of a product from `first` on, a multiple of kFp8BlockK; all where D is
/// quantized.
GemmArguments columns_of(GemmArguments x, std::int64_t first, std::int64_t count);

/// `data` and so many bytes more: in integers, as a workspace that is not known yet is null.
template <class T>
T* byte_at(T* data, std::int64_t offset) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) +
                              static_cast<std::uintptr_t>(offset));
}

}  // namespace blockscale::gemm_detail
