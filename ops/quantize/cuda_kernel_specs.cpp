// The quantisers' kernels as the kernel pack compiles them, and what plans say of them.
#include <string>
#include <utility>
#include <vector>

#include "ops/quantize/cuda_plan.h"

namespace blockscale::quantize_detail {
namespace {

constexpr const char* kKindNames[kQuantizeKernelKinds] = {
    "blocks", "tall", "row", "scaled", "maximum", "settle", "norm", "stripe", "clear"};
constexpr const char* kRuleNames[] = {"mx", "nvfp4", "fp8"};

/// Whether a kernel stores scales of blocks or rows.
bool stores_scales(QuantizeKernel kernel) {
  return kernel == QuantizeKernel::blocks || kernel == QuantizeKernel::tall ||
         kernel == QuantizeKernel::row || kernel == QuantizeKernel::stripe;
}

}  // namespace

std::string quantize_kernel_name(const QuantizeConfig& c) {
  std::string name = std::string("quantize_") + kKindNames[static_cast<int>(c.kernel)];
  if (c.kernel == QuantizeKernel::clear) return name;
  const bool scales = c.kernel != QuantizeKernel::maximum && c.kernel != QuantizeKernel::norm;
  if (scales) {
    name += std::string("_") + kRuleNames[static_cast<int>(c.rule)] + "_" +
            format_traits(c.element).name;
    if (c.block != 0) name += "_" + std::to_string(c.block);
  }
  if (c.kernel == QuantizeKernel::settle) return name;
  name += std::string("_") + format_traits(c.input).name;
  if (c.kernel == QuantizeKernel::norm) return c.large ? name + "_large" : name;
  name += std::string("_") + kInputTransformNames[static_cast<int>(c.transform)];
  if (c.large) name += "_large";
  return c.table ? name + "_table" : name;
}

std::string QuantizePlan::str() const {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const Step& step = steps[static_cast<std::size_t>(i)];
    const QuantizeConfig& c = step.config;
    const QuantizeParams& p = step.params;
    text += quantize_kernel_name(c) + ": " + std::to_string(p.grid.tiles) + " tiles of " +
            std::to_string(p.grid.rows) + " rows, " + std::to_string(step.shape.grid.x) + " x " +
            std::to_string(step.shape.block.x) + " threads with " + std::to_string(c.chunks) +
            " chunks of " + std::to_string(c.chunk) +
            (p.x.vectors ? ", vector loads" : ", element loads") +
            (p.value_vectors ? ", vector stores" : ", byte stores") +
            (p.backwards ? ", the last tile first" : "");
    if (c.kernel == QuantizeKernel::stripe) {
      text += ", " + std::to_string(p.stripes.teams) + " teams of " +
              std::to_string(p.grid.across.divisor) + " with " + std::to_string(p.stripes.slots) +
              " slots for " + std::to_string(p.stripes.stripes) + " stripes";
    }
    if (c.kernel == QuantizeKernel::clear && p.prefetches) text += ", prefetches first tiles";
    if (stores_scales(c.kernel)) {
      text += std::string(", scales ") + scale_layout_traits(p.layout).name;
    }
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
         std::to_string(c.block) + ", " + value("InputTransform", c.transform) +
         std::to_string(c.chunk) + ", " + std::to_string(c.chunks) + ", " +
         std::to_string(c.threads) + ", " + std::to_string(c.min_blocks) + ", " +
         (c.persistent ? "true" : "false") + ", " + (c.table ? "true" : "false") + ", " +
         (c.large ? "true" : "false") + "}";
}

runtime::KernelSpec quantize_kernel_spec(const QuantizeConfig& c, std::string name) {
  return runtime::with_parameters<QuantizeParams>(
      {.name = std::move(name),
       .header = "ops/quantize/kernel_sm90.cuh",
       .call = "blockscale::quantize_kernel<" + quantize_config_source(c) + ">",
       .threads = c.threads,
       .fewer_threads = may_have_fewer_threads(c),
       .min_blocks_per_multiprocessor = c.min_blocks,
       .prefers_shared_memory = c.kernel == QuantizeKernel::clear},  // what follows needs it
      "blockscale::QuantizeParams");
}

std::vector<runtime::KernelSpec> quantize_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kQuantizeKernels.count; ++i) {
    const QuantizeConfig& c = kQuantizeKernels[i];
    specs.push_back(quantize_kernel_spec(c, quantize_kernel_name(c)));
  }
  return specs;
}

}  // namespace blockscale::quantize_detail
