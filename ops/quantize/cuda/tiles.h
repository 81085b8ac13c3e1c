// What the plans of quantize and dequantize share: sizes, alignments and tiles.
#pragma once

#include <cstdint>

#include "blockscale/tensor.h"
#include "ops/quantize/kernels/config.h"

namespace blockscale::quantize_detail {

inline std::int64_t format_bytes(Format dtype) {
  return format_traits(dtype).bits / 8;
}
inline bool is_multiple(std::int64_t value, std::int64_t of) {
  return value % of == 0;
}
inline bool is_multiple(const void* pointer, std::int64_t of) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(of) == 0;
}

/// A stride of `steps` rows or matrices as kernels take it. That of one, which may be anything, is
/// 0: they also multiply it by numbers of rows that do not exist.
inline std::int64_t device_stride(std::int64_t stride, std::int64_t steps) {
  return steps > 1 ? stride : 0;
}

/// A matrix as kernels take it. `view` is resolved.
DeviceMatrix device_matrix(const MatrixView& view);

/// Throws `unsupported`, naming `argument`, unless size < 2^30.
void check_size(const char* argument, std::int64_t size);
/// Throws `unsupported` for more of what kernels number in 32 bits ("tiles") than they can.
void check_count(std::int64_t count, const char* what);

/// Numbers tiles of `rows` rows x 2^log2_chunks chunks over `batch` matrices of `all_rows` x
/// `all_chunks`.
TileGrid make_tile_grid(std::int64_t batch, std::int64_t all_rows, std::int64_t all_chunks,
                        std::int64_t rows, std::uint32_t log2_chunks);

/// The largest power of two from `least` to `most` chunks, unless more than an eighth of the chunks
/// would lie beyond the end of a row of `chunks`: then one that wastes less.
std::uint32_t fitting_log2_chunks(std::int64_t chunks, int least, int most);

}  // namespace blockscale::quantize_detail
