// Who a thread is. PTX ISA "Special Registers".
#pragma once

#include "device/kernel.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

#if BLOCKSCALE_GPU
#define BLOCKSCALE_SPECIAL_REGISTER(name, text)   \
  BLOCKSCALE_DEVICE uint32_t name() {             \
    uint32_t value;                               \
    asm("mov.u32 %0, %%" text ";" : "=r"(value)); \
    return value;                                 \
  }
#else
#define BLOCKSCALE_SPECIAL_REGISTER(name, text) \
  BLOCKSCALE_DEVICE uint32_t name() {           \
    return emulator::identity().name;           \
  }
#endif

BLOCKSCALE_SPECIAL_REGISTER(tid_x, "tid.x")
BLOCKSCALE_SPECIAL_REGISTER(tid_y, "tid.y")
BLOCKSCALE_SPECIAL_REGISTER(tid_z, "tid.z")
BLOCKSCALE_SPECIAL_REGISTER(ntid_x, "ntid.x")
BLOCKSCALE_SPECIAL_REGISTER(ntid_y, "ntid.y")
BLOCKSCALE_SPECIAL_REGISTER(ntid_z, "ntid.z")
BLOCKSCALE_SPECIAL_REGISTER(ctaid_x, "ctaid.x")
BLOCKSCALE_SPECIAL_REGISTER(ctaid_y, "ctaid.y")
BLOCKSCALE_SPECIAL_REGISTER(ctaid_z, "ctaid.z")
BLOCKSCALE_SPECIAL_REGISTER(nctaid_x, "nctaid.x")
BLOCKSCALE_SPECIAL_REGISTER(nctaid_y, "nctaid.y")
BLOCKSCALE_SPECIAL_REGISTER(nctaid_z, "nctaid.z")
BLOCKSCALE_SPECIAL_REGISTER(laneid, "laneid")
BLOCKSCALE_SPECIAL_REGISTER(cluster_ctarank, "cluster_ctarank")
BLOCKSCALE_SPECIAL_REGISTER(cluster_nctarank, "cluster_nctarank")

#undef BLOCKSCALE_SPECIAL_REGISTER

/// laneid, read where it stands: nothing that follows from it is computed before, and kept in
/// registers that a loop in between needs.
BLOCKSCALE_DEVICE uint32_t laneid_here() {
#if BLOCKSCALE_GPU
  uint32_t value;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(value));
  return value;
#else
  return laneid();
#endif
}

}  // namespace blockscale::ptx
