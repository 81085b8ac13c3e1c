// Boxes of a matrix, loaded through a tensor map: one source for the emulator and for a GPU.
#pragma once

#include "core/tensor_map.h"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/mbarrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"

namespace blockscale::test {

struct TensorBoxesParams {
  TensorMap map;  // of a matrix of 32-bit elements
  uint32_t* out;  // (box, row, column) as it came to shared memory; x of the grid goes fastest
  int32_t first_column, first_row;
  uint32_t columns, rows;  // of a box
};

/// Dynamic shared memory of boxes of up to 1024 bytes.
inline constexpr uint32_t kTensorBoxesSharedBytes = 2048;

/// A thread block loads one box and writes out what came.
template <uint32_t kThreads>
BLOCKSCALE_DEVICE void copy_box(const TensorBoxesParams& p) {
  const ptx::SharedAddress loaded = device::shared_base(), box = loaded + 1024;
  const uint32_t words = p.columns * p.rows;
  if (ptx::tid_x() == 0) {
    ptx::mbarrier_init(loaded, 1, "loaded");
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(loaded, 4 * words);
    const ptx::TensorCoordinates<2> at = {
        {p.first_column + static_cast<int32_t>(ptx::ctaid_x() * p.columns),
         p.first_row + static_cast<int32_t>(ptx::ctaid_y() * p.rows)}};
    ptx::cp_async_bulk_tensor_shared_global(box, &p.map, at, loaded);
  }
  ptx::barrier_sync_all();
  device::mbarrier_wait(loaded, 0);
  uint32_t* const out = p.out + (ptx::ctaid_y() * ptx::nctaid_x() + ptx::ctaid_x()) * words;
  for (uint32_t word = ptx::tid_x(); word < words; word += kThreads) {
    ptx::st_global(out + word, ptx::ld_shared<uint32_t>(box + 4 * word));
  }
}

}  // namespace blockscale::test
