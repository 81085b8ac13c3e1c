#include "ops/common/cuda/call.h"

#include <cstddef>
#include <string>
#include <utility>

#include "blockscale/error.h"

namespace blockscale::cuda {

/// Of a chip that no kernel runs on.
static std::string refusal(const runtime::KernelSet& kernels, const Chip& chip) {
  return chip.name + " (compute capability " + runtime::compute_capability_text(chip.architecture) +
         "); kernels are for " + kernels.chips();
}

void require_kernels_for(const runtime::KernelSet& kernels, const Chip& chip,
                         const char* argument) {
  if (kernels.has_any(chip.architecture)) return;
  throw Error(ErrorCode::unsupported, argument, "is on " + refusal(kernels, chip));
}

CallDevice::CallDevice(const Execution& execution) : given_(execution.device) {
  if (given_ == -1) return;
  const auto count = static_cast<int>(devices().size());
  if (given_ >= 0 && given_ < count) return;
  throw Error(ErrorCode::invalid_argument, "execution.device",
              "is " + std::to_string(given_) + ", must be -1 or one of this machine's " +
                  std::to_string(count) + " CUDA devices, counted from 0");
}

void CallDevice::add(const char* argument, const void* pointer) {
  if (pointer == nullptr) return;
  const int device = given_ >= 0 ? given_ : device_of(pointer);
  if (device < 0) {
    throw Error(ErrorCode::invalid_argument, argument,
                "is memory of the host, must be on a CUDA device");
  }
  if (ordinal_ < 0) {
    ordinal_ = device;
    first_ = argument;
  } else if (device != ordinal_) {
    throw Error(ErrorCode::invalid_argument, argument,
                "is on CUDA device " + std::to_string(device) + ", must be on " +
                    std::to_string(ordinal_) + " like " + first_);
  }
}

const Chip& CallDevice::chip(const runtime::KernelSet& kernels) const {
  const DeviceTraits& device = devices().at(static_cast<std::size_t>(ordinal_));
  require_kernels_for(kernels, device, first_);
  return device;
}

const Chip& checked(const Chip& chip, const runtime::KernelSet& kernels) {
  if (chip.multiprocessors < 1) {
    throw Error(ErrorCode::invalid_argument, "chip.multiprocessors",
                "is " + std::to_string(chip.multiprocessors) + ", must be at least 1");
  }
  if (!kernels.has_any(chip.architecture)) {
    throw Error(ErrorCode::unsupported, "chip", "is " + refusal(kernels, chip));
  }
  return chip;
}

std::string with_proof(std::string text, const Chip& chip) {
  if (!runtime::is_emulated_only(chip.architecture)) return text;
  return std::move(text) + "kernels for compute capability " +
         runtime::compute_capability_text(chip.architecture) + ": " + runtime::kEmulatedOnly + "\n";
}

Execution with_workspace(const Execution& execution, std::int64_t needed) {
  Execution result = execution;
  if (needed == 0 || execution.workspace != nullptr || execution.workspace_source == nullptr) {
    return result;
  }
  result.workspace = execution.workspace_source->allocate(needed);
  result.workspace_bytes = needed;
  return result;
}

void check_workspace(const Execution& execution, std::int64_t needed, CallDevice& device) {
  if (needed == 0) return;
  if (execution.workspace_bytes < needed) {
    throw Error(ErrorCode::invalid_argument, "execution.workspace_bytes",
                "is " + std::to_string(execution.workspace_bytes) + ", must be at least " +
                    std::to_string(needed));
  }
  if (execution.workspace == nullptr) {
    throw Error(ErrorCode::invalid_argument, "execution.workspace",
                "is null, must point to workspace_bytes on the device");
  }
  if (reinterpret_cast<std::uintptr_t>(execution.workspace) % 16 != 0) {
    throw Error(ErrorCode::invalid_argument, "execution.workspace",
                "is not a multiple of 16 bytes");
  }
  device.add("execution.workspace", execution.workspace);
}

}  // namespace blockscale::cuda
