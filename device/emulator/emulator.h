// Runs a kernel on the host, instruction by instruction, and checks it. docs/emulator.md.
//
//   emulator::Report report = emulator::launch(
//       shape, {emulator::input("x", x), emulator::output("values", values)},
//       emulator::random_order(seed), [&] { quantize_kernel<kQuantizeKernels[17]>(params); });
//   EXPECT_TRUE(report.ok()) << report.text();
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/launch_shape.h"
#include "core/tensor_map.h"
#include "device/emulator/architecture.h"
#include "device/emulator/report.h"

namespace blockscale::emulator {

enum class BufferUse : uint8_t {
  input,   // never written by the kernel
  output,  // read by the kernel only after it has written it
  both,
};

/// Global memory that the kernel may touch: all of it is registered with the launch.
struct Buffer {
  std::string name;  // for reports
  void* data = nullptr;
  std::size_t bytes = 0;
  BufferUse use = BufferUse::both;
  /// With programmatic dependent launch: the previous kernel may still read or write it, so that it
  /// is touched only behind griddepcontrol.wait. False for weights, for example.
  bool dependent = true;
};

inline Buffer buffer(std::string name, const void* data, std::size_t bytes, BufferUse use) {
  return {std::move(name), const_cast<void*>(data), bytes, use};
}
/// Of a std::vector, std::array, std::span.
template <class Container>
Buffer input(std::string name, const Container& c) {
  return buffer(std::move(name), std::data(c), std::size(c) * sizeof(*std::data(c)),
                BufferUse::input);
}
template <class Container>
Buffer output(std::string name, Container& c) {
  return buffer(std::move(name), std::data(c), std::size(c) * sizeof(*std::data(c)),
                BufferUse::output);
}
template <class Container>
Buffer in_out(std::string name, Container& c) {
  return buffer(std::move(name), std::data(c), std::size(c) * sizeof(*std::data(c)),
                BufferUse::both);
}

struct Options {
  /// Threads run in order, each until it blocks, and copies complete in order; or whoever runs and
  /// whatever completes next is drawn from `seed`. The same seed gives the same run.
  bool random_order = false;
  uint64_t seed = 0;
  /// Clusters that run interleaved, at first. More are begun when these only wait for others.
  uint32_t resident_clusters = 4;
  /// Clusters that the device holds at once: those that wait for a later one never finish.
  uint32_t max_resident_clusters = 132;
  std::size_t max_findings = 16;  // the run ends with the last of them
  /// What the kernel is compiled for: an instruction that it lacks is a finding.
  Architecture architecture = Architecture::sm_90a;
  bool proxy_fences = true;  // false: fence.proxy.async does nothing, a bug to plant
};
inline Options in_order() {
  return {};
}
inline Options random_order(uint64_t seed) {
  return {.random_order = true, .seed = seed};
}

/// `options`, for the architecture of devices of compute capability `capability` / 10.
inline Options compiled_for(int capability, Options options) {
  options.architecture = architecture_of(capability);
  return options;
}

/// Runs `kernel` once for each thread. Launches made by one host thread are not nested.
Report launch(const LaunchShape& shape, const std::vector<Buffer>& buffers, const Options& options,
              const std::function<void()>& kernel);

/// The map that the driver's encoder would make of `description`, for emulated kernels only. Throws
/// std::invalid_argument, naming the field, where the encoder would refuse it.
TensorMap encode_tensor_map(const TensorMapDescription& description);

}  // namespace blockscale::emulator
