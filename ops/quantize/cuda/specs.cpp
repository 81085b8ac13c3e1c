// The quantizers' kernels as the kernel pack compiles them, and what plans say of them.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/quantize/cuda/plan.h"

namespace blockscale::quantize_detail {
namespace {

constexpr const char* kRuleNames[] = {"mx", "nvfp4", "fp8"};

/// What each kind is for, in a plan.
constexpr const char* kPurposes[kQuantizeKernelKinds] = {
    "a scale for each block of one row, and codes",
    "the same, of rows by an index",
    "codes with known scales",
    "whole rows",
    "a scale for each 2-D block, and codes",
    "partial amaxes, of which the next launch makes the tensor scale",
    "1 / root mean square of each row, for the next launch",
    "the result from partial amaxes",
};

/// Whether a kernel stores scales of blocks or rows.
bool stores_scales(QuantizeKernel kernel) {
  return kernel == QuantizeKernel::blocks || kernel == QuantizeKernel::gathered ||
         kernel == QuantizeKernel::blocks_2d || kernel == QuantizeKernel::rows;
}

}  // namespace

std::string quantize_kernel_name(const QuantizeConfig& c) {
  std::string name = std::string("quantize_") + kQuantizeKernelNames[static_cast<int>(c.kernel)];
  if (c.kernel != QuantizeKernel::amax && c.kernel != QuantizeKernel::rstd) {
    name += std::string("_") + kRuleNames[static_cast<int>(c.rule)] + "_" +
            format_traits(c.element).name;
    if (c.block != 0) name += "_" + std::to_string(c.block);
  }
  if (c.kernel == QuantizeKernel::finalize) return name;
  name += std::string("_") + format_traits(c.input).name;
  const bool says_fused = c.fused != Fused::none && c.kernel != QuantizeKernel::rstd;
  return says_fused ? name + "_" + kFusedNames[static_cast<int>(c.fused)] : name;
}

std::string QuantizePlan::str() const {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const Step& step = steps[static_cast<std::size_t>(i)];
    const QuantizeConfig& c = step.config();
    const QuantizeParams& p = step.params;
    text += quantize_kernel_name(c) + ": " + kPurposes[static_cast<int>(c.kernel)] + "; " +
            std::to_string(p.grid.tiles) + " tiles of " + std::to_string(p.grid.rows) + " rows, " +
            std::to_string(step.shape.grid.x) + " x " + std::to_string(step.shape.block.x) +
            " threads" + (p.x.vectors ? ", vector loads" : ", element loads");
    if (holds_rows(c) && p.row_rounds > 1) {
      text += ", " + std::to_string(p.row_rounds) + " rounds a row, read again for each use";
    } else if (c.kernel == QuantizeKernel::rows) {
      text += ", read once";
    }
    const bool stores = c.kernel == QuantizeKernel::cast || stores_scales(c.kernel);
    if (stores) text += p.value_vectors ? ", vector stores" : ", byte stores";
    if (stores_scales(c.kernel)) {
      text += std::string(", scales ") + scale_layout_traits(p.scales.layout).name;
    }
    if (p.backwards) text += ", the last tile first";
    text += "\n";
  }
  return text + "workspace " + std::to_string(workspace_bytes) + " bytes\n";
}

std::string quantize_config_source(const QuantizeConfig& c) {
  const auto value = [](const char* type, auto v) {
    return std::string("blockscale::") + type + "(" + std::to_string(static_cast<int>(v)) + "), ";
  };
  return "blockscale::QuantizeConfig{" + value("QuantizeKernel", c.kernel) +
         value("Format", c.input) + value("Format", c.element) + value("ScaleRule", c.rule) +
         std::to_string(c.block) + ", " + value("Fused", c.fused) + std::to_string(c.chunk) + ", " +
         std::to_string(c.chunks) + ", " + std::to_string(c.threads) + ", " +
         std::to_string(c.min_blocks) + ", " + (c.persistent ? "true" : "false") + "}";
}

std::vector<runtime::KernelSpec> quantize_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kQuantizeKernels.count; ++i) {
    const QuantizeConfig& c = kQuantizeKernels[i];
    specs.push_back(runtime::with_parameters<QuantizeParams>(
        {.name = quantize_kernel_name(c),
         .header = "ops/quantize/kernels/entry.cuh",
         .call = "blockscale::quantize_kernel<" + quantize_config_source(c) + ">",
         .threads = c.threads,
         .fewer_threads = holds_rows(c),
         .min_blocks_per_multiprocessor = c.min_blocks},
        "blockscale::QuantizeParams"));
  }
  specs = runtime::for_architectures(specs, kQuantizeArchitectures);
  // Tuned on Hopper: elsewhere 40 registers, which 12 blocks leave, are too few.
  constexpr int kMostBlocks = 10;
  for (runtime::KernelSpec& spec : specs) {
    int& blocks = spec.min_blocks_per_multiprocessor;
    if (spec.architecture != "sm_90a") blocks = std::min(blocks, kMostBlocks);
  }
  return specs;
}

}  // namespace blockscale::quantize_detail
