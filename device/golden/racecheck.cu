// What racecheck says of the hand-over that kernels of products use: one warp stores to shared
// memory, one of its lanes arrives at an mbarrier behind bar.warp.sync, another warp waits there
// and reads. PTX orders the reads behind the stores; the emulator finds nothing.
//
//   nvcc -std=c++20 -arch=sm_90a -lineinfo -I. device/golden/racecheck.cu -o racecheck
//   compute-sanitizer --tool racecheck ./racecheck FORM
//
// FORM: 0 lane 0 arrives; 1 all lanes arrive; 2 as 0, and a bulk copy's bytes complete the same
// phase, as operands' do; 3 as 1 with that copy.
#include <cstdio>
#include <cstdlib>

#include "device/pipeline/stages.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"

namespace blockscale {

constexpr uint32_t kStages = 2, kTurns = 8;

template <bool kAllArrive, bool kCopies>
__global__ void __launch_bounds__(64, 1) hand_over(const uint32_t* from, uint32_t* to) {
  const ptx::SharedAddress base = device::shared_base();
  const device::StageRing ring{base, kStages};
  const ptx::SharedAddress scales = base + 128, copied = base + 1024;
  const uint32_t warp = device::warp_index(), lane = ptx::laneid();
  if (ptx::tid_x() == 0) {
    ring.init<kStages>((kAllArrive ? 32 : 1) + (kCopies ? 1 : 0), 1);
    ptx::fence_mbarrier_init();
  }
  ptx::barrier_sync_all();
  device::StagePlace place;
  uint32_t sum = 0;
  for (uint32_t turn = 0; turn < kTurns; ++turn, place.advance(kStages)) {
    const ptx::SharedAddress full = ring.full(place.stage), slot = scales + place.stage * 128;
    if (warp == 0) {
      ring.wait_empty(place);
      if (kCopies && lane == 0) {
        ptx::mbarrier_arrive_expect_tx(full, 128);
        ptx::cp_async_bulk_shared_global(copied + place.stage * 128, from, 128, full);
      }
      ptx::st_shared(slot + lane * 4, turn * 32 + lane);
      ptx::bar_warp_sync(ptx::kFullMask);
      if (kAllArrive || lane == 0) ptx::mbarrier_arrive(full);
    } else {
      ring.wait_full(place);
      sum += ptx::ld_shared<uint32_t>(slot + (31 - lane) * 4);
      ptx::bar_warp_sync(ptx::kFullMask);
      if (lane == 0) ptx::mbarrier_arrive(ring.empty(place.stage));
    }
  }
  if (warp == 1) to[lane] = sum;
}

}  // namespace blockscale

int main(int count, char** arguments) {
  using namespace blockscale;
  const int form = count > 1 ? std::atoi(arguments[1]) : 0;
  uint32_t *from, *to, sums[32];
  cudaMalloc(&from, 128);
  cudaMalloc(&to, 128);
  cudaMemset(from, 0, 128);
  const auto kernel = form == 0   ? &hand_over<false, false>
                      : form == 1 ? &hand_over<true, false>
                      : form == 2 ? &hand_over<false, true>
                                  : &hand_over<true, true>;
  kernel<<<1, 64, 2048>>>(from, to);
  if (cudaMemcpy(sums, to, 128, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if (sums[lane] != kTurns * (31 - lane) + 32 * kTurns * (kTurns - 1) / 2) return 2;
  }
  std::puts("right");
}
