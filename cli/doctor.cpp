// blockscale doctor: what this machine has, what will be used of it, and why.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "blockscale/kernels.h"
#include "blockscale/system.h"
#include "command.h"
#include "log.h"
#include "output.h"
#include "table.h"
#include "text.h"

namespace blockscale::cli {
namespace {

std::string dotted_version(int cuda_version) {
  return std::to_string(cuda_version / 1000) + "." + std::to_string(cuda_version % 1000 / 10);
}

std::vector<Component> all_components() {
  std::vector<Component> result = components();
  result.push_back({"CLI11", CLI11_VERSION});
  return result;
}

std::string list_or_none(const std::vector<std::string>& words) {
  return words.empty() ? "none" : comma_list(words);
}

std::string describe(const GpuDevice& device) {
  return device.name + " (sm_" + std::to_string(device.compute_capability) + ", " +
         format_bytes(static_cast<double>(device.memory_bytes)) + ")";
}

/// Whether there is a GPU, and what was looked at to know.
std::string gpu_text(const GpuInfo& gpu) {
  if (!gpu.devices.empty()) {
    std::vector<std::string> names;
    for (const GpuDevice& device : gpu.devices) names.push_back(describe(device));
    return list_or_none(names) + "; driver for CUDA " + dotted_version(gpu.driver_cuda_version) +
           ", " + gpu.driver_path + (gpu.problem.empty() ? "" : "; " + gpu.problem);
  }
  if (!gpu.problem.empty()) return "none usable: " + gpu.problem;
  return "none: no NVIDIA driver (libcuda.so.1) and no /dev/nvidia* device";
}

/// The architecture of this version's kernels that runs on the device; empty if none does.
std::string architecture_for(const GpuDevice& device, const KernelListing& kernels) {
  const auto found =
      std::find_if(kernels.packs.begin(), kernels.packs.end(), [&](const KernelPackInfo& pack) {
        return architecture_runs_on(pack.architecture, device.compute_capability);
      });
  return found == kernels.packs.end() ? "" : found->architecture;
}

/// Where the kernels are that a GPU of this machine can run, or all where there is none.
KernelListing kernels_for(const GpuInfo& gpu) {
  KernelListing listing = list_kernels();
  if (gpu.devices.empty()) return listing;
  std::erase_if(listing.kernels, [&](const KernelInfo& kernel) {
    return std::none_of(gpu.devices.begin(), gpu.devices.end(), [&](const GpuDevice& device) {
      return architecture_runs_on(kernel.architecture, device.compute_capability);
    });
  });
  return listing;
}

/// The plain statement of what runs.
std::string used_text(const CpuInfo& cpu, const GpuInfo& gpu, const KernelListing& kernels) {
  const std::string cpu_part =
      "the CPU, with " + simd_target() + " code on " + plural(cpu.threads, "thread");
  if (gpu.devices.empty()) return cpu_part + ", as there is no usable GPU";
  if (!gpu.problem.empty()) return cpu_part + "; not the GPU, as " + gpu.problem;
  for (const GpuDevice& device : gpu.devices) {
    const std::string architecture = architecture_for(device, kernels);
    if (architecture.empty()) continue;
    const std::string gpu_part = "; the GPU for data that is in its memory (" + device.name + ")";
    if (!is_emulated_only(architecture)) return cpu_part + gpu_part;
    return cpu_part + gpu_part + ", by kernels for " + architecture + ": " + emulated_only_text();
  }
  return cpu_part + "; not the GPU, as this version has no kernels for " + gpu.devices.front().name;
}

std::string compiler_text(const KernelCompilerInfo& compiler) {
  if (!compiler.problem.empty()) {
    return "none: " + compiler.problem +
           ". Kernels of the pack run without it; the cache needs the one that filled it";
  }
  return compiler.version + ", " + compiler.path.string();
}

std::int64_t count_in(const KernelListing& kernels, KernelState state) {
  return std::count_if(kernels.kernels.begin(), kernels.kernels.end(),
                       [&](const KernelInfo& kernel) { return kernel.state == state; });
}

/// Where the kernels are, and what that means for the first call.
std::string kernels_text(const KernelListing& kernels, const KernelCompilerInfo& compiler) {
  std::string text;
  for (const KernelPackInfo& pack : kernels.packs) {
    if (!pack.problem.empty()) {
      text += pack.problem + "; ";
    } else if (!pack.path.empty()) {
      text += plural(static_cast<std::int64_t>(pack.kernels), "kernel") + " in " +
              pack.path.string() + "; ";
    } else {
      text += "no pack for " + pack.architecture + "; ";
    }
  }
  if (kernels.cache_problem.empty()) {
    text += std::to_string(count_in(kernels, KernelState::cached)) + " in the cache, " +
            (kernels.cache.empty() ? "which has no folder" : kernels.cache.string());
  } else {
    text += "the cache is not used: " + kernels.cache_problem;
  }
  if (const auto missing = count_in(kernels, KernelState::missing); missing > 0) {
    text += "; " + plural(missing, "kernel") +
            (compiler.problem.empty()
                 ? " would be compiled at their first launch (`blockscale kernels build` does it "
                   "ahead)"
                 : " cannot be launched without NVRTC");
  }
  if (const auto outdated = count_in(kernels, KernelState::outdated); outdated > 0) {
    text += "; " + plural(outdated, "kernel") +
            " of the pack are from other sources and are refused: `blockscale kernels build`";
  }
  return text;
}

std::string memory_text(const MemoryInfo& memory) {
  std::string text = format_bytes(static_cast<double>(memory.total)) + ", " +
                     format_bytes(static_cast<double>(memory.available)) + " available";
  if (memory.limit != 0) {
    text += ", limited to " + format_bytes(static_cast<double>(memory.limit));
  }
  return text;
}

Json gpu_json(const GpuInfo& gpu) {
  Json devices = Json::array();
  for (const GpuDevice& device : gpu.devices) {
    devices.push_back({{"name", device.name},
                       {"compute_capability", device.compute_capability},
                       {"memory_bytes", device.memory_bytes}});
  }
  return {{"devices", devices},
          {"driver_library", gpu.driver_library},
          {"driver_cuda_version", gpu.driver_cuda_version},
          {"device_nodes", gpu.device_nodes},
          {"driver_path", gpu.driver_path},
          {"problem", gpu.problem}};
}

Json kernels_json(const KernelListing& kernels) {
  const KernelCompilerInfo compiler = kernel_compiler_info();
  Json packs = Json::array();
  for (const KernelPackInfo& pack : kernels.packs) {
    packs.push_back({{"architecture", pack.architecture},
                     {"path", pack.path.string()},
                     {"kernels", pack.kernels},
                     {"problem", pack.problem}});
  }
  return {{"compiler",
           {{"version", compiler.version},
            {"path", compiler.path.string()},
            {"problem", compiler.problem}}},
          {"packs", packs},
          {"packed", count_in(kernels, KernelState::packed)},
          {"cached", count_in(kernels, KernelState::cached)},
          {"outdated", count_in(kernels, KernelState::outdated)},
          {"missing", count_in(kernels, KernelState::missing)},
          {"cache", kernels.cache.string()},
          {"cache_problem", kernels.cache_problem}};
}

Json doctor_json() {
  const CpuInfo cpu = cpu_info();
  const MemoryInfo memory = memory_info();
  const GpuInfo gpu = gpu_info();
  const KernelListing kernels = kernels_for(gpu);
  Json versions = Json::object();
  for (const Component& component : all_components()) versions[component.name] = component.version;
  return {{"version", library_version()},
          {"used", used_text(cpu, gpu, kernels)},
          {"cpu",
           {{"model", cpu.model},
            {"logical_cpus", cpu.logical_cpus},
            {"threads", cpu.threads},
            {"features", cpu.features},
            {"simd_target", simd_target()},
            {"simd_has_tiles", simd_has_tiles()},
            {"simd_targets_compiled", simd_targets_compiled()}}},
          {"memory",
           {{"total_bytes", memory.total},
            {"available_bytes", memory.available},
            {"limit_bytes", memory.limit == 0 ? Json(nullptr) : Json(memory.limit)}}},
          {"gpu", gpu_json(gpu)},
          {"kernels", kernels_json(kernels)},
          {"log_level", current_log_level()},
          {"versions", versions}};
}

/// "label     text", the text broken into lines under itself.
std::string paragraph(const std::string& label, const std::string& text) {
  constexpr std::size_t kIndent = 11;
  std::string body = help_text(printable(text));
  for (std::size_t at = body.find('\n'); at != std::string::npos; at = body.find('\n', at + 1)) {
    body.insert(at + 1, kIndent, ' ');
  }
  return label + std::string(kIndent - label.size(), ' ') + body + "\n";
}

std::string doctor_text() {
  const CpuInfo cpu = cpu_info();
  const GpuInfo gpu = gpu_info();
  const KernelListing kernels = kernels_for(gpu);
  const KernelCompilerInfo compiler = kernel_compiler_info();
  std::vector<std::string> versions;
  for (const Component& component : all_components()) {
    versions.push_back(component.name + " " + component.version);
  }
  return paragraph("Uses", used_text(cpu, gpu, kernels)) +
         paragraph("CPU", cpu.model + ", " + plural(cpu.logical_cpus, "logical CPU")) +
         paragraph("Features", list_or_none(cpu.features)) +
         paragraph("SIMD", simd_target() + (simd_has_tiles() ? " with AMX" : "") + ", of " +
                               list_or_none(simd_targets_compiled()) + " compiled") +
         paragraph("Memory", memory_text(memory_info())) + paragraph("GPU", gpu_text(gpu)) +
         paragraph("NVRTC", compiler_text(compiler)) +
         paragraph("Kernels", kernels_text(kernels, compiler)) +
         paragraph("Versions", list_or_none(versions)) +
         paragraph("Log", current_log_level() + " (set BLOCKSCALE_LOG to change it)");
}

constexpr const char* kExamples = R"help(Examples:
  What will run here, and why:
    blockscale doctor

  The instruction set that was chosen, in a script:
    blockscale doctor --json | jq -r .cpu.simd_target
)help";

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* const command =
      app.add_subcommand("doctor", "Show what this machine has and what will be used of it");
  add_json(*command, *json);
  command->footer(kExamples);
  command->callback([&action, json] {
    action = [json] {
      if (*json) {
        print_json(doctor_json());
      } else {
        print(doctor_text());
      }
      return ExitCode::success;
    };
  });
}

}  // namespace blockscale::cli
