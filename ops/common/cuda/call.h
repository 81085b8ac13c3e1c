// The device that a call on CUDA memory runs on.
#pragma once

#include <cstdint>
#include <string>

#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "ops/common/regions.h"
#include "runtime/kernels/kernel.h"

namespace blockscale::cuda {

/// Throws `unsupported`, naming `argument`, unless some of an operation's kernels run on a chip.
void require_kernels_for(const runtime::KernelSet& kernels, const Chip& chip, const char* argument);

/// The device of a call: that of the first pointer that is not null, on which all others must lie.
class CallDevice {
 public:
  /// That of execution.device if it is given: what is added is then not looked up. Throws
  /// invalid_argument if there is none of that number.
  explicit CallDevice(const Execution& execution = {});

  /// Throws invalid_argument, naming `argument`, for memory of the host or of another device.
  void add(const char* argument, const void* pointer);

  bool is_known() const { return ordinal_ >= 0; }
  int ordinal() const { return ordinal_; }

  /// What the call's plan is made for. Throws `unsupported` unless some of these kernels run on it.
  const Chip& chip(const runtime::KernelSet& kernels) const;

 private:
  int given_ = -1;
  int ordinal_ = -1;
  const char* first_ = "";
};

/// The chip that a plan is described for. Throws invalid_argument for one without multiprocessors,
/// `unsupported` for one that none of
/// the kernels runs on.
const Chip& checked(const Chip& chip, const runtime::KernelSet& kernels);

/// The text of a plan, and whether kernels for such a chip have ever run on one.
std::string with_proof(std::string text, const Chip& chip);

/// `execution`, with a workspace of `needed` bytes from its source where it has none.
Execution with_workspace(const Execution& execution, std::int64_t needed);

/// Launches in the execution's stream, and as early as it allows.
template <class Parameters>
void launch(const runtime::Kernel& kernel, LaunchShape shape, const Execution& execution,
            const Parameters& parameters) {
  shape.programmatic_dependent_launch = shape.programmatic_dependent_launch && execution.overlap;
  runtime::launch(kernel, shape, execution.stream, parameters);
}

/// Checks that a workspace of `needed` bytes is there, and its device with the others of the call.
void check_workspace(const Execution& execution, std::int64_t needed, CallDevice& device);

/// The same, and that it is apart from all that the call reads and writes.
template <class Arguments>
void check_workspace(const Execution& execution, std::int64_t needed, CallDevice& device,
                     const Arguments& a) {
  if (needed == 0) return;
  check_workspace(execution, needed, device);
  check_apart({"execution.workspace", line_of(execution.workspace, needed)}, regions_of(a));
}

}  // namespace blockscale::cuda
