// Trials of kernels that only the emulator has run: before such a kernel is first launched on a
// device, it computes a small product there whose sums are exact, and so does the plain kernel. If
// bits differ, plain kernels take its place, and a warning says so once. What a trial found is kept
// for the process, and for others in the user's cache: by the device's name and the kernel's code.
// A kernel that faults or hangs takes its process with it, but no other: that a trial has begun is
// written before it, and where its process ended meanwhile, the kernel has failed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::cuda {

/// A kernel that a plain one can stand in for.
struct Trial {
  runtime::KernelSet* kernels = nullptr;
  std::size_t kernel = 0;  // of these
  /// Whether it gives on the current device what the plain one does. Takes memory of the device,
  /// and waits.
  bool (*agrees)(std::size_t kernel) = nullptr;
  /// What it is tried for, of a kernel that has several uses: each has a trial and a verdict.
  const char* use = "";
};

class Trials {
 public:
  /// How long one process waits for another that tries the same kernel; most take a second.
  static constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(2);

  /// Verdicts are files of `folder`; without one (an empty path) they are kept for the process.
  explicit Trials(std::filesystem::path folder,
                  std::chrono::milliseconds longest_wait = kLongestWait)
      : folder_(std::move(folder)), longest_wait_(longest_wait) {}

  /// The process's, in the folder of the user's kernel cache, unless others may write there.
  static Trials& instance();

  /// Whether a kernel may be launched on a device, in a call on `stream`: it is tried if nobody
  /// knows yet. False, and nothing is said or kept, where that stream is captured: nothing can be
  /// tried then. Of processes that ask at once the first tries it and the others wait. Thread-safe.
  /// Throws as KernelSet::get does.
  bool passed(const Trial& trial, int device, void* stream);

 private:
  std::filesystem::path folder_;
  std::chrono::milliseconds longest_wait_;
  std::mutex mutex_;                                      // held while a kernel is tried
  std::map<std::pair<int, std::string>, bool> verdicts_;  // by device, kernel and its use
};

/// A device as one of plain kernels alone.
const Chip& plain_chip(int device);

/// What a call is planned for, one of the operation's kernels. Where none was ever run on such a
/// chip, that has plain kernels alone if visit_trials(chip, visit) of the call's plan has a trial
/// that is not passed.
template <class VisitTrials>
const Chip& chip_of_call(const CallDevice& device, const runtime::KernelSet& kernels,
                         const Execution& execution, const VisitTrials& visit_trials) {
  const Chip& chip = device.chip(kernels);
  if (!runtime::is_emulated_only(chip.architecture)) return chip;
  bool passed = true;
  visit_trials(chip, [&](const Trial& trial) {
    passed = passed && Trials::instance().passed(trial, device.ordinal(), execution.stream);
  });
  return passed ? chip : plain_chip(device.ordinal());
}

/// bytes_on(chip), or what plain kernels need if that is more and they may take others' place.
template <class BytesOn>
std::int64_t workspace_bytes_on(const Chip& chip, const BytesOn& bytes_on) {
  const std::int64_t bytes = bytes_on(chip);
  if (!runtime::is_emulated_only(chip.architecture)) return bytes;
  Chip plain = chip;
  plain.plain_only = true;
  return std::max(bytes, bytes_on(plain));
}

}  // namespace blockscale::cuda
