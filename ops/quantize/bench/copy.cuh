// The yardstick of everything that moves bytes: a copy of 16 bytes a thread.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "device/vector.h"

namespace blockscale {

struct CopyParams {
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t vectors = 0;
};
inline constexpr int kCopyThreads = 256;

BLOCKSCALE_DEVICE void copy_vectors(const CopyParams& p) {
  ptx::griddepcontrol_wait();
  using Words = device::Vector<uint32_t, 4>;
  const uint64_t i = uint64_t{ptx::ctaid_x()} * kCopyThreads + ptx::tid_x();
  if (i >= p.vectors) return;
  ptx::st_global(static_cast<Words*>(p.to) + i,
                 ptx::ld_global(static_cast<const Words*>(p.from) + i));
}

}  // namespace blockscale
