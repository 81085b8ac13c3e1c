// Rows of A in bf16 in the workspace, for kernels that take no other numbers of eight bits and
// fewer: exactly, where they are below 2^128, with what is left of A to the sums.
#pragma once

#include <cstdint>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "ops/quantize/cuda/dequantize_plan.h"

namespace blockscale::gemm_detail {

/// Whether A has such rows: elements of eight bits without their scales (MXFP8's smallest numbers
/// with them are none of bf16), those of fewer times the scales of their blocks, but for a tensor
/// scale. Not those of A in bf16, which are its own, nor where they would take a terabyte.
bool has_bf16_rows(const ScaledTensorView& a);

/// These rows, at multiples of 128 bytes. `workspace` is not looked at.
ScaledTensorView bf16_rows_of(const ScaledTensorView& a, void* workspace);

std::int64_t bf16_rows_bytes(const ScaledTensorView& a);

/// The launch that makes them.
quantize_detail::DequantizePlan plan_bf16_rows(const ScaledTensorView& a,
                                               const ScaledTensorView& rows,
                                               const cuda::Chip& chip);

}  // namespace blockscale::gemm_detail
