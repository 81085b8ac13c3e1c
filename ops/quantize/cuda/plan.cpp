#include "ops/quantize/cuda/plan.h"

#include <algorithm>

#include "core/recipe.h"
#include "ops/quantize/cuda/params.h"
#include "ops/quantize/cuda/tiles.h"

namespace blockscale::quantize_detail {
namespace {

/// Elements for each SM up to which a plan's last kernel lets the next one in the stream start at
/// once. A larger one does so as its CTAs end: earlier, those of a successor that stays would be
/// spread unevenly over the SMs.
constexpr std::int64_t kMostOvertaken = 64 << 10;

int find_kernel(QuantizeKernel kernel, Format input, Format element, ScaleRule rule, int block,
                Fused fused) {
  for (int i = 0; i < kQuantizeKernels.count; ++i) {
    const QuantizeConfig& c = kQuantizeKernels[i];
    if (c.kernel == kernel && c.input == input && c.element == element && c.rule == rule &&
        c.block == block && c.fused == fused) {
      return i;
    }
  }
  throw Error(ErrorCode::unsupported, "x.dtype", "has no kernel for this recipe on a GPU");
}

/// The plan while it is made.
class Planner {
 public:
  Planner(const QuantizeArguments& a, const QuantizeOptions& options, const cuda::Chip& chip,
          void* workspace)
      : a_(a),
        options_(options),
        sms_(chip.multiprocessors),
        workspace_(static_cast<std::uint8_t*>(workspace)),
        recipe_(recipe_traits(a.out.recipe)),
        params_(quantize_params(a, options)) {
    check_fused(a.input);
    if (a.row_index != nullptr && (recipe_.block_rows != 1 || recipe_.block_k == 0)) {
      throw Error(ErrorCode::unsupported, "out.recipe",
                  std::string("is ") + recipe_.name + ", which is not quantized by an index");
    }
    plan_.architecture = chip.architecture;
    params_.lets_next_start = a.out.batch * a.out.rows * a.out.k <= sms_ * kMostOvertaken;
  }

  QuantizePlan plan() {
    const bool given = options_.scale_source == ScaleSource::given;
    if (is_empty() && !(recipe_.tensor_scale && !given)) return plan_;
    const bool rms = a_.input.transform == InputTransform::rms_norm;
    const bool needs_amax = !given && has_tensor_wide_scale(recipe_);
    const bool per_token = recipe_.block_k == 0 && recipe_.block_rows == 1;
    const bool scales_known = recipe_.block_rows == 0 || (per_token && given);
    const bool blocks_2d = recipe_.block_rows > 1;
    if (needs_amax) {
      set_computed_scale();
      if (is_empty()) {
        add_finalize();
        return plan_;
      }
      add_amax();
    } else if (rms && (scales_known || blocks_2d)) {
      add_rstd();
    }
    if (scales_known) {
      add_cast(per_token);
    } else if (blocks_2d) {
      add_blocks_2d();
    } else if (per_token || (rms && !needs_amax)) {
      add_rows(QuantizeKernel::rows);
    } else {
      add_blocks();
    }
    return plan_;
  }

  /// Only the amax, of an fp8_tensor that nothing is written to.
  QuantizePlan plan_amax(float* out) {
    params_.amax.scales = out;
    params_.amax.scale_stride = 1;
    if (!is_empty()) add_amax();
    add_finalize();
    return plan_;
  }

  QuantizePlan plan_rstd() {
    add_rstd();
    return plan_;
  }

 private:
  bool is_empty() const { return a_.out.rows == 0 || a_.out.k == 0 || a_.out.batch == 0; }

  ScaleRule rule() const {
    return recipe_.family == Family::mx      ? ScaleRule::mx
           : recipe_.family == Family::nvfp4 ? ScaleRule::nvfp4
                                             : ScaleRule::fp8;
  }

  /// A kernel for the problem's input.
  int kernel_of(QuantizeKernel kind, Format element, ScaleRule rule, int block) const {
    return find_kernel(kind, a_.x.dtype, element, rule, block, fused_of(a_.input.transform));
  }

  /// A part of the workspace, in whole 16 bytes.
  template <class T>
  T* take(std::int64_t count) {
    std::uint8_t* const at = workspace_ == nullptr ? nullptr : workspace_ + plan_.workspace_bytes;
    plan_.workspace_bytes += ceil_div(count * static_cast<std::int64_t>(sizeof(T)), 16) * 16;
    return reinterpret_cast<T*>(at);
  }

  /// A launch of params_ over its grid, by `threads` threads a CTA.
  QuantizePlan::Step& add(int kernel, std::int64_t threads) {
    const QuantizeConfig& c = kQuantizeKernels[kernel];
    QuantizePlan::Step& step = plan_.steps.at(static_cast<std::size_t>(plan_.count++));
    const std::int64_t fits = c.threads * c.min_blocks / threads * sms_;
    const std::int64_t tiles = std::max<std::int64_t>(1, params_.grid.tiles);
    step.kernel = kernel;
    step.params = params_;
    step.params.value_vectors = has_value_vectors(params_, c);
    step.shape.grid.x = static_cast<std::uint32_t>(c.persistent ? std::min(tiles, fits) : tiles);
    step.shape.block.x = static_cast<std::uint32_t>(threads);
    step.shape.dynamic_shared_bytes = kQuantizeSharedBytes;
    step.shape.programmatic_dependent_launch = true;
    return step;
  }

  /// Tiles of chunks over `columns` columns.
  QuantizePlan::Step& add_chunks(int kernel, std::int64_t rows, std::int64_t columns) {
    const QuantizeConfig& c = kQuantizeKernels[kernel];
    const std::int64_t chunks = ceil_div(columns, c.chunk);
    const std::uint32_t log2 = log2_chunks_of(chunks, c);
    params_.grid = make_tile_grid(a_.out.batch, rows, chunks, c.threads >> log2, log2);
    return add(kernel, c.threads);
  }

  /// As wide as a CTA; narrower and taller where the scales of a column lie together, so that a
  /// tile fills whole sectors of them, and where rows share operands, so that they find these in
  /// L1.
  std::uint32_t log2_chunks_of(std::int64_t chunks, const QuantizeConfig& c) const {
    int most = c.threads;
    if (c.kernel == QuantizeKernel::blocks) {
      // At most eight columns of scales.
      if (a_.out.layout == ScaleLayout::mn_major) most = std::min(8, 8 * c.block / c.chunk);
      if (is_swizzled(a_.out.layout)) most = 16;
    }
    if (c.fused == Fused::modulate || c.fused == Fused::rms_norm) most = std::min(most, 16);
    const int least = std::max(2, c.block / c.chunk);
    return fitting_log2_chunks(chunks, least, std::max(most, least));
  }

  /// As few warps a row as hold it, in as few rounds as there may be, and as many rows a CTA as
  /// make eight warps.
  QuantizePlan::Step& add_row_tiles(int kernel, std::int64_t rows, std::int64_t columns) {
    const QuantizeConfig& c = kQuantizeKernels[kernel];
    const std::int64_t all_warps =
        std::max<std::int64_t>(1, ceil_div(columns, std::int64_t{32} * c.chunk * c.chunks));
    const std::int64_t rounds = ceil_div(all_warps, kRowMostWarps);
    // The segments of a sum of squares are whole in a round.
    const bool sums = c.fused == Fused::rms_norm && rounds > 1;
    const std::int64_t warps = sums ? kRowMostWarps : ceil_div(all_warps, rounds);
    const std::int64_t tile_rows = std::max<std::int64_t>(1, kRowMostWarps / 2 / warps);
    params_.grid = make_tile_grid(a_.out.batch, rows, 1, tile_rows, 0);
    params_.row_warps = Divisor(static_cast<std::uint32_t>(warps));
    params_.row_rounds = static_cast<std::uint32_t>(rounds);
    return add(kernel, tile_rows * warps * 32);
  }

  /// What follows a kernel that leaves something for it, and reads x again.
  void go_backwards() {
    plan_.last().params.lets_next_start = true;
    params_.backwards = true;
  }

  void take_rstd() {
    check_count(a_.out.batch * a_.out.rows, "rows");
    params_.fused.rstd = take<float>(a_.out.batch * a_.out.rows);
  }

  void add_rstd() {
    take_rstd();
    const int kernel = kernel_of(QuantizeKernel::rstd, Format::e4m3, ScaleRule::fp8, 0);
    add_row_tiles(kernel, a_.out.rows, a_.out.k);
    go_backwards();
  }

  /// Whether all matrices have one scale.
  bool one_scale_for_all() const {
    return recipe_.tensor_scale && a_.out.tensor_scale_batch_stride == 0;
  }

  /// The kernels after `amax` make the scale of what it leaves.
  void set_computed_scale() {
    params_.tensor_source = TensorScaleSource::amaxes;
    AmaxParams& amax = params_.amax;
    if (recipe_.tensor_scale) {
      amax.scales = a_.out.tensor_scale;
      amax.scale_stride = a_.out.tensor_scale_batch_stride;
      amax.as_multiplier = a_.out.sense == TensorScaleSense::multiplier;
    } else {
      amax.scales = reinterpret_cast<float*>(params_.scales.data);
      amax.scale_stride = params_.scales.batch_stride;
    }
  }

  void add_amax() {
    const int kernel = kernel_of(QuantizeKernel::amax, Format::e4m3, ScaleRule::fp8, 0);
    const bool rms = holds_rows(kQuantizeKernels[kernel]);
    if (rms) take_rstd();
    QuantizePlan::Step& step = rms ? add_row_tiles(kernel, a_.out.rows, a_.out.k)
                                   : add_chunks(kernel, a_.out.rows, a_.out.k);
    const std::int64_t scales = one_scale_for_all() ? 1 : a_.out.batch;
    const std::int64_t most = std::min<std::int64_t>(step.shape.grid.x, kMostAmaxes);
    const std::int64_t count = std::clamp<std::int64_t>(
        most / scales, 1, std::max<std::int64_t>(1, params_.grid.tiles / scales));
    const std::int64_t words = ceil_div(count, 4) * 4;
    check_count(scales * words, "amaxes");
    params_.amax.bits = take<std::uint32_t>(scales * words);
    params_.amax.count = static_cast<std::uint32_t>(count);
    params_.amax.parts = Divisor(params_.amax.count);
    params_.amax.stride = static_cast<std::uint32_t>(one_scale_for_all() ? 0 : words);
    step.params.amax = params_.amax;
    step.shape.grid.x = static_cast<std::uint32_t>(scales * count);
    go_backwards();
  }

  /// One result for each matrix, or one for all.
  void add_finalize() {
    const std::int64_t scales = one_scale_for_all() ? 1 : a_.out.batch;
    if (scales == 0) return;
    check_count(scales, "matrices");
    const int kernel =
        find_kernel(QuantizeKernel::finalize, Format::f32, recipe_.element, rule(), 0, Fused::none);
    add(kernel, kQuantizeKernels[kernel].threads).shape.grid.x = static_cast<std::uint32_t>(scales);
  }

  void add_blocks() {
    const auto kind = a_.row_index == nullptr ? QuantizeKernel::blocks : QuantizeKernel::gathered;
    const int kernel = kernel_of(kind, recipe_.element, rule(), recipe_.block_k);
    add_chunks(kernel, params_.scales.rows, std::int64_t{params_.scales.columns} * recipe_.block_k);
  }

  void add_cast(bool per_token) {
    params_.given_scales = per_token;
    if (!per_token && params_.tensor_source == TensorScaleSource::none) {
      params_.tensor_scale = reinterpret_cast<float*>(params_.scales.data);
      params_.tensor_scale_stride = params_.scales.batch_stride;
      params_.tensor_source = TensorScaleSource::stored;
    }
    add_chunks(kernel_of(QuantizeKernel::cast, recipe_.element, ScaleRule::fp8, 0), params_.rows,
               params_.k);
  }

  /// A CTA holds one block, or as many as fit side by side.
  void add_blocks_2d() {
    const int kernel = kernel_of(QuantizeKernel::blocks_2d, recipe_.element, ScaleRule::fp8, 128);
    const QuantizeConfig& c = kQuantizeKernels[kernel];
    std::uint32_t log2 = 0;
    while (c.chunk << log2 < c.threads * c.chunks * c.chunk / static_cast<int>(params_.block_rows))
      ++log2;
    params_.grid = make_tile_grid(a_.out.batch, params_.rows, ceil_div(params_.k, c.chunk),
                                  params_.block_rows, log2);
    add(kernel, c.threads);
  }

  void add_rows(QuantizeKernel kind) {
    const int block = recipe_.block_k;
    const int kernel = kernel_of(kind, recipe_.element, rule(), block);
    // With the padding of scales, which becomes 0.
    add_row_tiles(kernel, block > 0 ? params_.scales.rows : params_.rows,
                  block > 0 ? std::int64_t{params_.scales.columns} * block : params_.k);
  }

  const QuantizeArguments& a_;
  const QuantizeOptions& options_;
  int sms_;
  std::uint8_t* workspace_;
  const RecipeTraits& recipe_;
  QuantizeParams params_;  // of the next kernel
  QuantizePlan plan_;
};

}  // namespace

QuantizePlan plan_quantize(const QuantizeArguments& a, const QuantizeOptions& options,
                           const cuda::Chip& chip, void* workspace) {
  return Planner(a, options, chip, workspace).plan();
}

QuantizePlan plan_rstd(const QuantizeArguments& a, const QuantizeOptions& options,
                       const cuda::Chip& chip, void* workspace) {
  return Planner(a, options, chip, workspace).plan_rstd();
}

QuantizePlan plan_absolute_maximum(const AbsoluteMaximumArguments& a, float* out,
                                   const cuda::Chip& chip, void* workspace) {
  check_size("x.rows", a.x.rows);
  check_size("x.columns", a.k);
  MutableScaledTensorView shape;
  shape.recipe = Recipe::fp8_tensor;
  shape.rows = a.x.rows;
  shape.k = a.k;
  shape.batch = a.x.batch;
  const QuantizeArguments arguments{a.x, shape, a.input};
  return Planner(arguments, {}, chip, workspace).plan_amax(out);
}

}  // namespace blockscale::quantize_detail
