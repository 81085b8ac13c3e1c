// The main function of the GPU benchmarks.
#pragma once

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "tests/gpu.h"

namespace blockscale::test {

/// Prints the JSON object that `measure` returns, run with device 0 current, and returns the
/// program's exit code: 0, 77 without a GPU, or 1 with what went wrong on standard error.
template <class Measure>
int gpu_benchmark_main(const Measure& measure) {
  constexpr int kNoGpu = 77;
  try {
    if (!has_gpu()) {
      std::fputs("no GPU\n", stderr);
      return kNoGpu;
    }
    const cuda::DeviceScope scope(0);
    nlohmann::json report = measure();
    report["device"] = cuda::current_device().name;
    std::printf("%s\n", report.dump(1).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace blockscale::test
