// What tensor copies of products read and write: whether they can, and the maps that describe it.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>

#include "blockscale/tensor.h"
#include "core/tensor_map.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale::gemm_detail {

/// The maps of a launch, by the enum of its parameters; of rank 0 what is not used. No kernel has
/// more.
inline constexpr std::size_t kMostTensorMaps = 8;
using TensorMapDescriptions = std::array<TensorMapDescription, kMostTensorMaps>;

/// Sets the maps of a launch's parameters, those that have any: `encode` makes one of a
/// description.
template <class Params, class Encode>
void resolve_tensor_maps(const TensorMapDescriptions& descriptions, const Encode& encode,
                         Params& params) {
  if constexpr (requires { params.maps; }) {
    static_assert(std::size(Params{}.maps) <= kMostTensorMaps);
    for (std::size_t i = 0; i < std::size(params.maps); ++i) {
      if (descriptions[i].rank != 0) params.maps[i] = encode(descriptions[i]);
    }
  }
}

/// Whether TMA reads the operand's values where they are.
bool fits_tma(const ScaledTensorView& x);
/// An operand's values, in boxes of so many rows of `box_bytes` (32, 64 or 128) of k: of FP8's
/// kFp8BlockK elements.
TensorMapDescription map_of_values(const ScaledTensorView& x, std::uint32_t box_rows,
                                   std::uint32_t box_bytes = kFp8BlockK);

/// The same of elements of 4 or 6 bits that lie in a byte each in shared memory, every 16 before a
/// gap: in boxes of so many rows of `box_k` elements, which are 128.
TensorMapDescription map_of_values_with_gaps(const ScaledTensorView& x, std::uint32_t box_rows,
                                             std::uint32_t box_k);

/// Whether tensor copies can bring `x`'s scales, of blocks of `block_rows` x 128: f32, in rows that
/// begin at multiples of 16 bytes.
bool takes_copied_scales(const ScaledTensorView& x, int block_rows);
/// In boxes of `box_blocks` of k and so many rows.
TensorMapDescription map_of_scales(const ScaledTensorView& x, std::uint32_t box_rows,
                                   std::uint32_t box_blocks);

/// D, in boxes of 16 rows of `box_bytes` (64 or 128).
TensorMapDescription map_of_results(const MutableMatrixView& d, std::uint32_t box_bytes);

}  // namespace blockscale::gemm_detail
