// CPU time of launches, and the driver's own launch with everything prepared to compare with.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/launch_shape.h"
#include "runtime/cuda/measure.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::test {

/// cuLaunchKernelEx itself, with everything but the call prepared beforehand.
template <class Parameters>
std::function<void()> bare_launch(const runtime::Kernel& kernel, const LaunchShape& shape,
                                  void* stream, const Parameters& parameters) {
  namespace cu = runtime::cu;
  struct Prepared {
    cu::LaunchAttribute attributes[2];
    cu::LaunchConfig config;
    Parameters parameters;
    void* arguments[1];
  };
  const auto prepared = std::make_shared<Prepared>();
  std::uint32_t count = 0;
  if (shape.cluster != Dim3{}) {
    auto& attribute = prepared->attributes[count++];
    attribute.id = cu::LaunchAttributeId::cluster_dimension;
    attribute.cluster[0] = shape.cluster.x;
    attribute.cluster[1] = attribute.cluster[2] = 1;
  }
  if (shape.programmatic_dependent_launch) {
    auto& attribute = prepared->attributes[count++];
    attribute.id = cu::LaunchAttributeId::programmatic_stream_serialization;
    attribute.programmatic_stream_serialization_allowed = 1;
  }
  prepared->config = {shape.grid.x,
                      1,
                      1,
                      shape.block.x,
                      1,
                      1,
                      shape.dynamic_shared_bytes,
                      static_cast<cu::Stream>(stream),
                      prepared->attributes,
                      count};
  prepared->parameters = parameters;
  prepared->arguments[0] = &prepared->parameters;
  return [prepared, function = reinterpret_cast<cu::Function>(kernel.handle())] {
    runtime::driver().launch(&prepared->config, function, prepared->arguments, nullptr);
  };
}

/// Microseconds of CPU time, medians.
struct LaunchTimes {
  double bare, ours, above_bare;
};

/// Times both alternately, so that they see the same machine, each from an empty stream and fewer
/// times than a stream holds launches before one waits.
inline LaunchTimes time_launches(const std::function<void()>& bare,
                                 const std::function<void()>& ours) {
  constexpr int kLaunches = 200, kRounds = 101;
  using Clock = std::chrono::steady_clock;
  const auto time = [](const std::function<void()>& launch) {
    runtime::wait_for_device();
    const auto begin = Clock::now();
    for (int i = 0; i < kLaunches; ++i) launch();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kLaunches;
  };
  const auto median = [](std::vector<double> values) {
    const auto middle = values.begin() + static_cast<long>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  std::vector<double> bare_times, our_times, differences;
  ours();
  for (int round = 0; round < kRounds; ++round) {
    bare_times.push_back(time(bare));
    our_times.push_back(time(ours));
    differences.push_back(our_times.back() - bare_times.back());
  }
  return {median(bare_times), median(our_times), median(differences)};
}

}  // namespace blockscale::test
