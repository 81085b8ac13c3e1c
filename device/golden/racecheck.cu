// The hand-over of hand_over.h, for racecheck:
//
//   nvcc -std=c++20 -arch=sm_90a -lineinfo -I. -o /tmp/racecheck device/golden/racecheck.cu
//   compute-sanitizer --tool racecheck /tmp/racecheck FORM
//
// FORM: 0 lane 0 arrives; 1 all lanes arrive; 2 and 3 the same with a bulk copy.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "device/golden/hand_over.h"

namespace blockscale::golden {

template <bool kAllArrive, bool kCopies>
__global__ void __launch_bounds__(kHandOverThreads, 1) run(const uint32_t* from, uint32_t* to) {
  hand_over<kAllArrive, kCopies>(from, to);
}

}  // namespace blockscale::golden

int main(int count, char** arguments) {
  using namespace blockscale::golden;
  const int form = count > 1 ? std::atoi(arguments[1]) : 0;
  uint32_t *from, *to, sums[32];
  cudaMalloc(&from, 128);
  cudaMalloc(&to, 128);
  cudaMemset(from, 0, 128);
  const auto kernel = form == 0   ? &run<false, false>
                      : form == 1 ? &run<true, false>
                      : form == 2 ? &run<false, true>
                                  : &run<true, true>;
  kernel<<<1, kHandOverThreads, kHandOverBytes>>>(from, to);
  if (cudaMemcpy(sums, to, 128, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if (sums[lane] != handed_over(lane)) return 2;
  }
  std::puts("right");
}
