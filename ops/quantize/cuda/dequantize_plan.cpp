#include "ops/quantize/cuda/dequantize_plan.h"

#include <algorithm>
#include <utility>

#include "core/recipe.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/cuda/tiles.h"

namespace blockscale::quantize_detail {
namespace {

int find_kernel(Format element, Format output) {
  for (int i = 0; i < kDequantizeKernels.count; ++i) {
    const DequantizeConfig& c = kDequantizeKernels[i];
    if (c.element == element && c.output == output) return i;
  }
  throw Error(ErrorCode::unsupported, "x.recipe", "has no kernel on a GPU");
}

/// Rows or columns that share a scale; all of them, where the recipe says 0.
Divisor block_divisor(int block, std::int64_t all) {
  return Divisor(static_cast<std::uint32_t>(block == 0 ? std::max<std::int64_t>(1, all) : block));
}

void set_scales(DequantizeParams& p, const ScaledTensorView& x) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  if (t.family == Family::plain) return;
  p.scales = static_cast<const std::uint8_t*>(x.scales);
  p.scale_format = t.scale;
  p.layout = x.layout;
  p.scale_leading_stride = x.scale_leading_stride;
  p.scale_batch_stride = x.scale_batch_stride;
  p.block_rows = block_divisor(t.block_rows, x.rows);
  p.block_k = block_divisor(t.block_k, x.k);
  if (!t.tensor_scale || x.tensor_scale == nullptr) return;
  p.tensor_scale = x.tensor_scale;
  p.tensor_scale_stride = x.tensor_scale_batch_stride;
  p.tensor_scale_use =
      x.sense == TensorScaleSense::multiplier ? TensorScaleUse::multiply : TensorScaleUse::divide;
}

}  // namespace

DequantizePlan plan_dequantize(const DequantizeArguments& a, const cuda::Chip& chip) {
  const ScaledTensorView& x = a.x;
  DequantizePlan plan;
  plan.architecture = chip.architecture;
  if (x.rows == 0 || x.k == 0 || x.batch == 0) return plan;
  check_size("x.rows", x.rows);
  check_size("x.k", x.k);
  const Format element = recipe_traits(x.recipe).element;
  plan.kernel = find_kernel(element, a.out.dtype);
  const DequantizeConfig& c = kDequantizeKernels[plan.kernel];
  DequantizeParams& p = plan.params;
  p.rows = static_cast<std::uint32_t>(x.rows);
  p.k = static_cast<std::uint32_t>(x.k);
  const std::int64_t chunks = ceil_div(x.k, c.chunk);
  const std::uint32_t log2 = fitting_log2_chunks(chunks, 1, c.threads);
  p.grid = make_tile_grid(x.batch, x.rows, chunks, c.threads >> log2, log2);
  p.values = static_cast<const std::uint8_t*>(x.values);
  p.value_row_stride = device_stride(x.value_row_stride, x.rows);
  p.value_batch_stride = device_stride(x.value_batch_stride, x.batch);
  const std::int64_t load = code_store_bytes(element, c.chunk);
  p.value_vectors = is_multiple(p.values, load) && is_multiple(p.value_row_stride, load) &&
                    is_multiple(p.value_batch_stride, load);
  set_scales(p, x);
  const DeviceMatrix out = device_matrix(a.out);
  p.out = static_cast<std::uint8_t*>(a.out.data);
  p.out_row_stride = out.row_stride;
  p.out_batch_stride = out.batch_stride;
  p.out_vectors = out.vectors;
  plan.shape.grid.x = p.grid.tiles;
  plan.shape.block.x = static_cast<std::uint32_t>(c.threads);
  plan.shape.programmatic_dependent_launch = true;
  return plan;
}

std::string dequantize_kernel_name(const DequantizeConfig& c) {
  return std::string("dequantize_") + format_traits(c.element).name + "_" +
         format_traits(c.output).name;
}

std::string DequantizePlan::str() const {
  if (kernel < 0) return "nothing to do\n";
  return dequantize_kernel_name(kDequantizeKernels[kernel]) + ": " +
         std::to_string(params.grid.tiles) + " tiles of " + std::to_string(params.grid.rows) +
         " rows" + (params.value_vectors ? ", vector loads" : ", byte loads") +
         (params.out_vectors ? ", vector stores" : ", element stores") + "\n";
}

std::vector<runtime::KernelSpec> dequantize_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (int i = 0; i < kDequantizeKernels.count; ++i) {
    const DequantizeConfig& c = kDequantizeKernels[i];
    specs.push_back(runtime::with_parameters<DequantizeParams>(
        {.name = dequantize_kernel_name(c),
         .header = "ops/quantize/kernels/dequantize.cuh",
         .call = "blockscale::dequantize_blocks<blockscale::kDequantizeKernels[" +
                 std::to_string(i) + "]>",
         .threads = c.threads,
         .min_blocks_per_multiprocessor = c.min_blocks},
        "blockscale::DequantizeParams"));
  }
  return runtime::for_architectures(specs, kQuantizeArchitectures);
}

}  // namespace blockscale::quantize_detail
