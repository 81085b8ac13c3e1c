// Layouts of scales in words: CuTe's shape:stride, for people and for other tools.
#pragma once

#include <cstdint>
#include <string>

#include "blockscale/tensor.h"
#include "core/layout_print.h"

namespace blockscale {

/// The order of coordinates in which a layout of scales is written: CUTLASS writes that of an
/// MN-major operand with k first, ((16,4),(32,4)):((0,1),(16,4)) for the atom of swizzled_128x4.
/// Where a scale lies does not depend on it.
enum class OperandMajor : std::uint8_t {
  k,   // (row, k, batch)
  mn,  // (k, row, batch)
};

/// The layout of the scales of a batch of [rows, k] matrices over element coordinates (row, k,
/// batch), e.g. "((1,256),(128,8),1):((0,1),(0,256),2048)". One scale covers `rows_per_scale` rows
/// and `group` consecutive k. A leading stride of 0 stands for the packed one; matrices of a batch
/// are packed. Notation::cutlass marks what core/scale_layout.h fixes for every shape.
/// OperandMajor::mn is the same function with its first two modes exchanged.
///
/// Throws invalid_argument for sizes below 1 or above 2^57, a leading stride below the packed one
/// (or any other for the swizzled layouts), and rows_per_scale other than 1 with a swizzled layout.
std::string describe_scale_layout(ScaleLayout layout, std::int64_t rows, std::int64_t k,
                                  std::int64_t rows_per_scale, std::int64_t group,
                                  std::int64_t leading_stride = 0, std::int64_t batch = 1,
                                  Notation notation = Notation::plain,
                                  OperandMajor major = OperandMajor::k);

/// The same for the scales of `tensor`, with its strides. Throws invalid_argument for plain
/// recipes, which have none, and for what `resolved` or the function above refuse.
std::string describe_scale_layout(const ScaledTensorView& tensor,
                                  Notation notation = Notation::plain);

}  // namespace blockscale
