#include "runtime/kernels/kernel_compiler.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "blockscale/error.h"

namespace blockscale::runtime {
namespace {

/// Calls `visit` with each line, without its end.
template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// The number that stands right before `unit`: 75 in "Used 75 registers" for " registers".
std::optional<std::uint32_t> number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return std::nullopt;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  std::uint32_t value = 0;
  const auto [stop, error] = std::from_chars(line.data() + begin, line.data() + end, value);
  if (error != std::errc() || stop != line.data() + end || begin == end) return std::nullopt;
  return value;
}

std::vector<std::string> all_flags(const KernelSpec& spec, LineInfo line_info) {
  std::vector<std::string> flags = compile_flags(spec);
  if (line_info == LineInfo::yes) flags.emplace_back("--generate-line-info");
  return flags;
}

bool says_resources(std::string_view line) {
  return line.starts_with("ptxas info") || line.find("bytes stack frame") != line.npos ||
         line.find_first_not_of(" \t\r") == line.npos;
}

[[noreturn]] void fail(const KernelSpec& spec, const std::string& what, const std::string& log) {
  throw Error(ErrorCode::compile_failed, "kernel " + spec.name, what + "\n" + log);
}

}  // namespace

void check_local_memory(const KernelSpec& spec, const KernelResources& used,
                        const std::string& log) {
  if (spec.allows_local_memory || (used.spill_bytes == 0 && used.stack_bytes == 0)) return;
  fail(spec,
       "uses local memory, which its description does not allow: " +
           std::to_string(used.stack_bytes) + " bytes of stack, " +
           std::to_string(used.spill_bytes) + " bytes spilled, " + std::to_string(used.registers) +
           " registers",
       log);
}

KernelResources resources_in_log(std::string_view log, const std::string& kernel) {
  KernelResources used;
  bool registers = false, stack = false;
  for_each_line(log, [&](std::string_view line) {
    if (const auto bytes = number_before(line, " bytes stack frame")) {
      stack = true;
      used.stack_bytes = std::max(used.stack_bytes, *bytes);
      used.spill_bytes += number_before(line, " bytes spill stores").value_or(0) +
                          number_before(line, " bytes spill loads").value_or(0);
    }
    if (const auto count = number_before(line, " registers")) {
      registers = true;
      used.registers = std::max(used.registers, *count);
    }
    if (const auto bytes = number_before(line, " bytes smem")) {
      used.static_shared_bytes = std::max(used.static_shared_bytes, *bytes);
    }
  });
  if (!registers || !stack) {
    throw Error(ErrorCode::compile_failed, "kernel " + kernel,
                "the compiler's log does not say what the kernel uses\n" + std::string(log));
  }
  return used;
}

std::string warnings_in_log(std::string_view log) {
  std::string warnings;
  for_each_line(log, [&](std::string_view line) {
    if (!says_resources(line)) warnings += std::string(line) + "\n";
  });
  return warnings;
}

std::string recorded_flags(const KernelSpec& spec, LineInfo line_info) {
  std::string text;
  for (const std::string& flag : all_flags(spec, line_info)) {
    text += (text.empty() ? "" : " ") + flag;
  }
  return text;
}

CompiledKernel compile_kernel(const KernelSpec& spec, const SourceTree& tree, const Nvrtc& nvrtc,
                              LineInfo line_info) {
  const std::string source = translation_unit(spec);
  const std::vector<std::string> flags = all_flags(spec, line_info);
  std::vector<Nvrtc::Header> headers;
  for (const std::string_view path : tree.closure(spec.header)) {
    headers.push_back({std::string(path), std::string(tree.text(path))});
  }
  Nvrtc::Result result = nvrtc.compile(spec.name + ".cu", source, headers, flags);
  const std::string with = " with " + nvrtc.version() + " for " + spec.architecture;
  if (!result.compiled) fail(spec, "does not compile" + with, result.log + source);
  const std::string warnings = warnings_in_log(result.log);
  if (!warnings.empty()) fail(spec, "compiles with warnings" + with, warnings);

  CompiledKernel kernel;
  kernel.name = spec.name;
  kernel.architecture = spec.architecture;
  kernel.compiler = nvrtc.version();
  kernel.flags = recorded_flags(spec, line_info);
  kernel.source = source_hash(spec, tree);
  kernel.resources = resources_in_log(result.log, spec.name);
  check_local_memory(spec, kernel.resources, result.log);
  kernel.cubin = std::move(result.cubin);
  return kernel;
}

}  // namespace blockscale::runtime
