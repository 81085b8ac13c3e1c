// What the runtime costs: CPU time of a launch against a bare cuLaunchKernelEx with the same
// attributes, and the first call of a process that has the pack against cuInit and the primary
// context. Prints one JSON object.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "runtime/cuda/measure.h"
#include "runtime/kernels/kernel.h"
#include "tests/gpu.h"
#include "tests/launch_time.h"
#include "tests/sample_kernel.h"

namespace blockscale::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kExitNoGpu = 77;

double microseconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

json measure_launch(const char* name, const Kernel& kernel, const LaunchShape& shape,
                    void* stream) {
  const test::ScaleParameters parameters = {nullptr, nullptr, 1.0f, 0};  // touches no memory
  const test::LaunchTimes times =
      test::time_launches(test::bare_launch(kernel, shape, stream, parameters),
                          [&] { launch(kernel, shape, stream, parameters); });
  return {{"case", name},
          {"bare_us", times.bare},
          {"blockscale_us", times.ours},
          {"above_bare_us", times.above_bare}};
}

json launches(const std::filesystem::path& folder) {
  KernelStore store(
      test::sample_sources(), [](const std::string&) { return ""; }, KernelCache(folder));
  KernelSet set({test::sample_spec()}, store);
  const Kernel& kernel = set.get(0, 90);
  const DeviceStream stream;
  const LaunchShape plain = {.grid = {128}, .block = {128}};
  LaunchShape cluster = plain, dependent = plain, all = plain;
  cluster.cluster = {2};
  dependent.programmatic_dependent_launch = true;
  all.cluster = {2};
  all.programmatic_dependent_launch = true;
  all.dynamic_shared_bytes = 100 << 10;
  return {
      measure_launch("plain", kernel, plain, stream.handle()),
      measure_launch("cluster of 2", kernel, cluster, stream.handle()),
      measure_launch("programmatic dependent launch", kernel, dependent, stream.handle()),
      measure_launch("cluster, dependent launch, 100 KiB shared", kernel, all, stream.handle())};
}

/// In a process of its own: cuInit and the primary context, then the first launch from the pack up
/// to its end, then the second one.
json first_call(const std::filesystem::path& pack) {
  const auto start = Clock::now();
  const cuda::DeviceScope device(0);
  const DeviceStream stream;  // the context is complete
  stream.wait();
  const auto ready = Clock::now();
  KernelStore store(
      test::sample_sources(), [&](const std::string&) { return pack; }, KernelCache(""));
  KernelSet set({test::sample_spec()}, store);
  const test::ScaleParameters parameters = {nullptr, nullptr, 1.0f, 0};
  const LaunchShape shape = {.grid = {128}, .block = {128}};
  launch(set.get(0, 90), shape, stream.handle(), parameters);
  stream.wait();
  const auto first = Clock::now();
  launch(set.get(0, 90), shape, stream.handle(), parameters);
  stream.wait();
  return {{"init_and_context_ms", microseconds(start, ready) / 1e3},
          {"first_call_ms", microseconds(ready, first) / 1e3},
          {"second_call_ms", microseconds(first, Clock::now()) / 1e3}};
}

/// What `work` returns in a child process: one that has touched the driver (NVRTC does too) must
/// not fork, and what it does first is to be measured.
json in_child(const std::function<json()>& work) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 1;
    try {
      const std::string text = work().dump();
      status =
          ::write(pipe_ends[1], text.data(), text.size()) == static_cast<long>(text.size()) ? 0 : 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(status);
  }
  ::close(pipe_ends[1]);
  std::string text(4096, '\0');
  const auto bytes = ::read(pipe_ends[0], text.data(), text.size());
  ::close(pipe_ends[0]);
  ::waitpid(child, nullptr, 0);
  if (bytes <= 0) throw std::runtime_error("a measurement failed in its process");
  return json::parse(text.substr(0, static_cast<std::size_t>(bytes)));
}

/// The sample among as many kernels as a full pack has.
void write_sample_pack(const std::filesystem::path& pack) {
  constexpr int kKernels = 300;
  std::vector<CompiledKernel> kernels;
  kernels.push_back(compile_kernel(test::sample_spec(), test::sample_sources(), Nvrtc::instance()));
  for (int i = 1; i < kKernels; ++i) {
    kernels.push_back(kernels.front());
    kernels.back().name += "_copy_" + std::to_string(i);
  }
  write_pack(pack, kernels);
}

int run() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("blockscale-bench-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const auto pack = folder / pack_file_name("sm_90a");
  in_child([&] {
    write_sample_pack(pack);
    return json();
  });
  json first = json::array();
  for (int i = 0; i < 5; ++i) first.push_back(in_child([&] { return first_call(pack); }));
  const cuda::DeviceScope device(0);
  const json result = {
      {"device", cuda::current_device().name}, {"launch", launches(folder)}, {"first_call", first}};
  std::puts(result.dump(1).c_str());
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace blockscale::runtime

int main() {
  using namespace blockscale;
  if (runtime::in_child([] { return runtime::json(test::has_gpu()); }) == false) {
    std::puts("no GPU");
    return runtime::kExitNoGpu;
  }
  return blockscale::runtime::run();
}
