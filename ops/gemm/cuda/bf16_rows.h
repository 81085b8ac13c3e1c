// Rows of an operand in bf16 in the workspace, for kernels that take no other numbers of eight bits
// and fewer: exactly, where bf16 has them, with what is left of A to the sums.
#pragma once

#include <cstdint>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "ops/quantize/cuda/dequantize_plan.h"

namespace blockscale::gemm_detail {

/// Whether A has such rows: elements with or without their scales (block_scales_of_rows), but for a
/// tensor scale. Not those of A in bf16, which are its own, nor where they would take a terabyte.
bool has_bf16_rows(const ScaledTensorView& a);

/// Whether B has: of MX, times the scales of their blocks. MXFP6's below 2^128 are numbers of bf16,
/// and of MXFP8's those from 2^-126 on; of smaller ones multiples of 2^-133 are.
bool has_bf16_weights(const ScaledTensorView& b);

/// These rows, at multiples of 128 bytes. `workspace` is not looked at.
ScaledTensorView bf16_rows_of(const ScaledTensorView& x, void* workspace);

std::int64_t bf16_rows_bytes(const ScaledTensorView& x);

enum class BlockScales : bool { left, applied };

/// Whether elements of eight bits have scales that do not hold for all of K.
bool has_scales_of_k(const ScaledTensorView& x);

/// What becomes of an operand's: scales in f32, and those that hold for all of K, are left. Powers
/// of two are applied; in eight bits bf16 lacks the smallest numbers.
BlockScales block_scales_of_rows(const ScaledTensorView& x);

/// The launch that makes them, and reports numbers that bf16 lacks to `loss`, unless that is null.
quantize_detail::DequantizePlan plan_bf16_rows(const ScaledTensorView& x,
                                               const ScaledTensorView& rows, BlockScales scales,
                                               const cuda::Chip& chip,
                                               ConversionLoss* loss = nullptr);

}  // namespace blockscale::gemm_detail
