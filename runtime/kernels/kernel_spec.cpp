#include "runtime/kernels/kernel_spec.h"

#include <algorithm>
#include <string_view>

#include "blockscale/error.h"

namespace blockscale::runtime {
namespace {

constexpr int kMaxThreads = 1024;

bool is_identifier(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && letter(text.front()) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

/// One line, so that no part of a description can end the line that it is pasted into.
bool is_line(std::string_view text) {
  return !text.empty() && text.find_first_of("\n\r\"") == std::string_view::npos;
}

void require(bool holds, const KernelSpec& spec, const std::string& message) {
  if (!holds) {
    throw Error(ErrorCode::invalid_argument, spec.name.empty() ? "kernel" : "kernel " + spec.name,
                message);
  }
}

void check(const KernelSpec& spec) {
  require(is_identifier(spec.name), spec, "its name must be a C identifier");
  require(is_line(spec.header), spec, "it needs a header of one line");
  require(is_line(spec.parameters), spec, "it needs the name of its parameter struct");
  require(is_line(spec.call), spec, "it needs a function to call");
  require(spec.parameter_bytes > 0 && spec.parameter_bytes <= 4096, spec,
          "parameter_bytes is " + std::to_string(spec.parameter_bytes) + "; 1 to 4096 are allowed");
  require(spec.threads > 0 && spec.threads <= kMaxThreads, spec,
          "threads is " + std::to_string(spec.threads) + "; 1 to 1024 are allowed");
  require(spec.min_blocks_per_multiprocessor > 0 && spec.min_blocks_per_multiprocessor <= 32, spec,
          "min_blocks_per_multiprocessor is " + std::to_string(spec.min_blocks_per_multiprocessor) +
              "; 1 to 32 are allowed");
  require(spec.architecture.starts_with("sm_") && is_identifier(spec.architecture), spec,
          "architecture is '" + spec.architecture + "'; sm_90a, sm_100f and the like are allowed");
}

}  // namespace

void add_for_architectures(const KernelSpec& spec, std::span<const char* const> architectures,
                           std::vector<KernelSpec>& specs) {
  for (const char* const architecture : architectures) {
    specs.push_back(spec);
    specs.back().architecture = architecture;
  }
}

std::vector<KernelSpec> for_architectures(const std::vector<KernelSpec>& specs,
                                          std::span<const char* const> architectures) {
  std::vector<KernelSpec> result;
  for (const KernelSpec& spec : specs) add_for_architectures(spec, architectures, result);
  return result;
}

std::string translation_unit(const KernelSpec& spec) {
  check(spec);
  return "#include \"" + spec.header + "\"\nstatic_assert(sizeof(" + spec.parameters +
         ") == " + std::to_string(spec.parameter_bytes) +
         ", \"host and device disagree about the parameters\");\n"
         "extern \"C\" __global__ void __launch_bounds__(" +
         std::to_string(spec.threads) + ", " + std::to_string(spec.min_blocks_per_multiprocessor) +
         ")\n" + spec.name + "(const __grid_constant__ " + spec.parameters + " parameters) {\n  " +
         spec.call + "(parameters);\n}\n";
}

}  // namespace blockscale::runtime
