// Compiles one kernel with NVRTC and reads what it uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/nvrtc.h"
#include "runtime/hash.h"
#include "runtime/kernels/kernel_sources.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::runtime {

/// What ptxas reports. Per thread but for shared memory, which is per block.
struct KernelResources {
  std::uint32_t registers = 0;
  std::uint32_t spill_bytes = 0;          // stores + loads
  std::uint32_t stack_bytes = 0;          // in local memory
  std::uint32_t static_shared_bytes = 0;  // beyond dynamic shared memory

  friend bool operator==(const KernelResources&, const KernelResources&) = default;
};

/// A kernel in a form that can be stored and loaded.
struct CompiledKernel {
  std::string name;
  std::string architecture;
  std::string compiler;  // Nvrtc::version()
  std::string flags;     // separated by spaces
  Hash128 source;        // source_hash()
  KernelResources resources;
  std::vector<std::byte> cubin;
};

/// Whether the code says which source lines it comes from, for profilers and compute-sanitizer. The
/// instructions are the same, but the file is some four times as large: it holds the PTX too.
enum class LineInfo : bool { no, yes };

/// The flags that compiling with these options records.
std::string recorded_flags(const KernelSpec& spec, LineInfo line_info);

/// Throws compile_failed with the compiler's log if the kernel does not compile, if it compiles
/// with warnings, or if it spills or uses a stack in local memory although its description does not
/// allow that.
CompiledKernel compile_kernel(const KernelSpec& spec, const SourceTree& tree, const Nvrtc& nvrtc,
                              LineInfo line_info = LineInfo::no);

/// The resources in a log of `--ptxas-options=-v` about one kernel: sums of spills and the largest
/// of the rest over its functions. Throws compile_failed if the log does not tell.
KernelResources resources_in_log(std::string_view log, const std::string& kernel);

/// Throws compile_failed with `log` if `used` has spills or a stack and `spec` does not allow them.
void check_local_memory(const KernelSpec& spec, const KernelResources& used,
                        const std::string& log);

/// `log` without what ptxas says about resources: warnings, or nothing.
std::string warnings_in_log(std::string_view log);

}  // namespace blockscale::runtime
