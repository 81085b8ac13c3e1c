// Bulk copies of four rows of a matrix, wherever they lie, to shared memory, which Blackwell
// (sm_100f, sm_120f) has and Hopper lacks. PTX ISA "cp.async.bulk.tensor", ".tile::gather4".
//
// As device/ptx/tensor_copy.h, but that the map is of rank 2 and its box one row, and that the
// coordinates are a column and four rows, in any order. They lie one behind the other, as a box of
// four rows would, and with a swizzle likewise. Rows outside the tensor fill in the map's value and
// count: the bytes that the mbarrier expects are always those of four rows.
#pragma once

#include "device/kernel.h"
#include "device/ptx/tensor_copy.h"

namespace blockscale::ptx {

/// cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.
BLOCKSCALE_DEVICE void cp_async_bulk_tensor_shared_global_gather4(
    SharedAddress destination, const TensorMap* map, int32_t column, const int32_t (&rows)[4],
    SharedAddress mbarrier, SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      :
      : "r"(destination.value), "l"(map), "r"(mbarrier.value), "r"(column), "r"(rows[0]),
        "r"(rows[1]), "r"(rows[2]), "r"(rows[3])
      : "memory");
#else
  const int32_t coordinates[] = {column, rows[0], rows[1], rows[2], rows[3]};
  emulator::tensor_gather(destination.value, map, coordinates, mbarrier.value, at);
#endif
}

}  // namespace blockscale::ptx
