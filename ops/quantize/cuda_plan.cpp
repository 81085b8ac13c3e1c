#include "ops/quantize/cuda_plan.h"

#include <algorithm>

#include "core/recipe.h"
#include "ops/quantize/cuda_kernel_choice.h"
#include "ops/quantize/cuda_params.h"
#include "ops/quantize/cuda_tiles.h"

namespace blockscale::quantize_detail {
namespace {

/// The least power of two, as an exponent, that is not below `value`.
std::uint32_t log2_ceil(std::int64_t value) {
  std::uint32_t log2 = 0;
  while (std::int64_t{1} << log2 < value) ++log2;
  return log2;
}

/// The plan while it is made.
class Planner {
 public:
  Planner(const QuantizeArguments& a, const QuantizeOptions& options, const PlanDevice& device,
          void* workspace, const PlanTuning& tuning)
      : a_(a),
        options_(options),
        device_(device),
        workspace_(static_cast<std::uint8_t*>(workspace)),
        recipe_(recipe_traits(a.out.recipe)),
        base_(quantize_params(a, options)),
        choice_(a, base_, device, tuning) {
    base_.lets_next_start = choice_.lets_next_start();
  }

  QuantizePlan plan() {
    const bool given = options_.scale_source == ScaleSource::given;
    if (is_empty() && !(recipe_.tensor_scale && !given)) return plan_;
    const bool rms = a_.input.transform == InputTransform::rms_norm;
    const bool whole_tensor = recipe_.block_rows == 0;
    const bool needs_maximum = !given && has_tensor_wide_scale(recipe_);
    const bool by_row = recipe_.block_k == 0 && recipe_.block_rows == 1;
    const bool scales_known = whole_tensor || (by_row && given);
    const bool tall = recipe_.block_rows > 1;
    if (may_wait_for_each_other(a_) && add_stripes()) return plan_;
    if (rms && !needs_maximum && (scales_known || tall)) add_norm();
    if (needs_maximum) {
      set_computed_scale();
      if (is_empty()) {
        add_settle();
        return plan_;
      }
      add_maximum();
    }
    if (scales_known) {
      add_scaled(by_row);
    } else if (tall) {
      add_tall();
    } else if (by_row || (rms && !needs_maximum)) {
      add_row();
    } else {
      add_blocks();
    }
    return plan_;
  }

  /// Only the largest magnitudes, of an fp8_tensor that nothing is written to.
  QuantizePlan plan_maximum(float* out) {
    base_.maxima.scales = out;
    base_.maxima.scale_stride = 1;
    if (!is_empty()) add_maximum();
    add_settle();
    return plan_;
  }

  QuantizePlan plan_row_factors() {
    add_norm();
    return plan_;
  }

 private:
  bool is_empty() const { return a_.out.rows == 0 || a_.out.k == 0 || a_.out.batch == 0; }

  ScaleRule rule() const {
    return recipe_.family == Family::mx      ? ScaleRule::mx
           : recipe_.family == Family::nvfp4 ? ScaleRule::nvfp4
                                             : ScaleRule::fp8;
  }

  /// A part of the workspace, in whole 16 bytes.
  template <class T>
  T* take(std::int64_t count) {
    std::uint8_t* const at = workspace_ == nullptr ? nullptr : workspace_ + plan_.workspace_bytes;
    plan_.workspace_bytes += ceil_div(count * static_cast<std::int64_t>(sizeof(T)), 16) * 16;
    return reinterpret_cast<T*>(at);
  }

  TileGrid tile_grid(std::int64_t all_rows, std::int64_t all_chunks, std::int64_t rows,
                     std::uint32_t log2_chunks) const {
    return make_tile_grid(a_.out.batch, all_rows, all_chunks, rows, log2_chunks);
  }

  void add(int kernel, const QuantizeConfig& c, std::int64_t blocks, QuantizeParams params) {
    const std::int64_t fits = std::int64_t{device_.multiprocessors} * c.min_blocks;
    params.value_vectors = has_value_vectors(params, c);
    params.prefetches = choice_.prefetches(c, params);
    // Of kernels with a table one thread block a multiprocessor: nobody is in the way of those to
    // come. (`stripe` and `clear` do as they see fit.)
    params.lets_next_start |= comes_first(c.kernel) || c.table;
    QuantizePlan::Step& step = plan_.steps.at(static_cast<std::size_t>(plan_.count++));
    step.kernel = kernel;
    step.config = c;
    step.shape.grid.x = static_cast<std::uint32_t>(
        std::max<std::int64_t>(1, c.persistent ? std::min(blocks, fits) : blocks));
    step.shape.block.x = static_cast<std::uint32_t>(c.threads);
    step.shape.dynamic_shared_bytes = c.table ? kTableSharedBytes : kQuantizeSharedBytes;
    step.shape.programmatic_dependent_launch = true;
    step.params = params;
  }

  void add_norm() {
    const int kernel = choice_.kernel_of(QuantizeKernel::norm, Format::e4m3, ScaleRule::fp8, 0);
    add_row_factors(kernel);
    if (base_.lets_next_start) {  // two a multiprocessor: the next kernel's find room beside them
      std::uint32_t& blocks = plan_.last().shape.grid.x;
      blocks = std::min(blocks, static_cast<std::uint32_t>(2 * device_.multiprocessors));
    }
    base_.backwards = true;
  }

  /// The kernel that finds the factors of rms_norm.
  void add_row_factors(int kernel) {
    check_count(a_.out.batch * a_.out.rows, "rows");
    base_.row_factors = take<float>(a_.out.batch * a_.out.rows);
    add_row_kernel(kernel, a_.out.rows, a_.out.k);
    base_.transform.row_factors = base_.row_factors;
  }

  /// Only where rows of x are whole vectors, and thread blocks that wait for each other are at most
  /// a quarter of what there is room for: others may run at the same time, and wait too.
  bool add_stripes() {
    if (!choice_.reads_stripes()) return false;
    const int kernel = find_kernel(QuantizeKernel::stripe, a_.x.dtype, recipe_.element, rule(), 128,
                                   a_.input.transform);
    const QuantizeConfig c = choice_.config_of(kernel);
    const std::int64_t chunks = ceil_div(a_.out.k, c.chunk);
    const std::int64_t mates = ceil_div(chunks, 32);
    const int limit = device_.stream_multiprocessors;
    const std::int64_t fits =
        std::int64_t{limit == 0 ? device_.multiprocessors : limit} * c.min_blocks;
    if (mates > kMaxMates || 4 * mates > fits) return false;
    base_.grid = tile_grid(base_.rows, chunks, kStripeRows, 5);
    const std::int64_t words = std::int64_t{base_.grid.tiles} * (kStripeRows / 2);
    base_.stripes.words = static_cast<std::uint64_t>(words);
    base_.stripes.sums = take<std::uint64_t>(words);
    base_.stripes.stripes = static_cast<std::uint32_t>(base_.grid.tiles / mates);
    base_.stripes.per_matrix =
        Divisor(base_.stripes.stripes / static_cast<std::uint32_t>(a_.out.batch));
    base_.stripes.teams = std::min(static_cast<std::uint32_t>(fits / mates), base_.stripes.stripes);
    base_.stripes.slots =
        std::min(kStripeSlots, (base_.stripes.stripes - 1) / base_.stripes.teams + 1);
    const std::int64_t blocks = base_.stripes.teams * mates;
    const std::uint32_t shared_bytes =
        kQuantizeSharedBytes + kStripeWeightBytes + base_.stripes.slots * kStripeSlotBytes;
    add_clear(blocks, shared_bytes);
    add(kernel, c, blocks, base_);
    plan_.last().shape.dynamic_shared_bytes = shared_bytes;
    return true;
  }

  /// `clear`, before a `stripe` kernel of `blocks` thread blocks. Where each of its thread blocks
  /// prefetches a tile, beside the call before, it takes all shared memory that one of `stripe`
  /// leaves: few of them are to find room on an idle multiprocessor, so that all of these prefetch.
  /// They keep that memory until the kernel before has ended.
  void add_clear(std::int64_t blocks, std::uint32_t shared_bytes) {
    const int kernel = find_kernel(QuantizeKernel::clear, Format::f32, Format::e4m3, ScaleRule::fp8,
                                   0, InputTransform::identity);
    const QuantizeConfig& c = kQuantizeKernels[kernel];
    const auto words = static_cast<std::int64_t>(base_.stripes.words);
    const bool prefetches = choice_.prefetches(c, base_);
    add(kernel, c, prefetches ? blocks : ceil_div(words, 2 * c.threads), base_);
    if (!prefetches) return;
    plan_.last().shape.dynamic_shared_bytes =
        kSharedBytesOfMultiprocessor - shared_bytes - 2 * kReservedSharedBytes;
  }

  /// Whether all matrices have one scale.
  bool one_scale_for_all() const {
    return recipe_.tensor_scale && a_.out.tensor_scale_batch_stride == 0;
  }

  /// The kernels after `maximum` make the scale of what it leaves.
  void set_computed_scale() {
    base_.tensor_source = TensorScaleSource::maxima;
    base_.backwards = true;
    MaximaParams& m = base_.maxima;
    if (recipe_.tensor_scale) {
      m.scales = a_.out.tensor_scale;
      m.scale_stride = a_.out.tensor_scale_batch_stride;
      m.as_multiplier = a_.out.sense == TensorScaleSense::multiplier;
    } else {
      m.scales = reinterpret_cast<float*>(base_.scales);
      m.scale_stride = base_.scale_batch_stride;
    }
  }

  void add_maximum() {
    const int kernel = choice_.kernel_of(QuantizeKernel::maximum, Format::e4m3, ScaleRule::fp8, 0);
    const QuantizeConfig& c = kQuantizeKernels[kernel];
    if (holds_rows(c.kernel, c.transform)) {
      add_row_factors(kernel);
    } else {
      QuantizeParams p = base_;
      p.grid = choice_.chunk_grid(c, a_.out.rows, a_.out.k);
      add(kernel, c, p.grid.tiles, p);
    }
    const std::int64_t scales = one_scale_for_all() ? 1 : a_.out.batch;
    QuantizePlan::Step& step = plan_.last();
    const std::int64_t most = std::min<std::int64_t>(
        step.shape.grid.x, choice_.most_thread_blocks(c, step.params.grid.tiles));
    const std::int64_t count = std::clamp<std::int64_t>(
        most / scales, 1, std::max<std::int64_t>(1, step.params.grid.tiles / scales));
    const std::int64_t words = ceil_div(count, 4) * 4;
    check_count(scales * words, "maxima");
    base_.maxima.bits = take<std::uint32_t>(scales * words);
    base_.maxima.count = static_cast<std::uint32_t>(count);
    base_.maxima.parts = Divisor(base_.maxima.count);
    base_.maxima.stride = static_cast<std::uint32_t>(one_scale_for_all() ? 0 : words);
    step.params.maxima = base_.maxima;
    step.shape.grid.x = static_cast<std::uint32_t>(scales * count);
  }

  /// One result for each matrix, or one for all.
  void add_settle() {
    const std::int64_t scales = one_scale_for_all() ? 1 : a_.out.batch;
    if (scales == 0) return;
    check_count(scales, "matrices");
    const int kernel = find_kernel(QuantizeKernel::settle, Format::f32, recipe_.element, rule(), 0,
                                   InputTransform::identity);
    add(kernel, kQuantizeKernels[kernel], scales, base_);
  }

  void add_blocks() {
    const int kernel =
        choice_.kernel_of(QuantizeKernel::blocks, recipe_.element, rule(), recipe_.block_k);
    const QuantizeConfig c = choice_.config_of(kernel);
    QuantizeParams p = base_;
    const std::int64_t columns = std::int64_t{p.scale_columns} * recipe_.block_k;
    p.grid = choice_.chunk_grid(c, p.scale_rows, columns);
    add(kernel, c, p.grid.tiles, p);
    if (loads_at_once(c)) {
      plan_.last().shape.dynamic_shared_bytes += strip_bytes(c, 1u << p.grid.log2_chunks);
    }
  }

  void add_scaled(bool by_row) {
    const int kernel =
        choice_.kernel_of(QuantizeKernel::scaled, recipe_.element, ScaleRule::fp8, 0);
    const QuantizeConfig c = choice_.config_of(kernel);
    QuantizeParams p = base_;
    p.grid = choice_.chunk_grid(c, p.rows, p.k);
    p.given_scales = by_row;
    if (!by_row && p.tensor_source == TensorScaleSource::none) {
      p.tensor_scale = reinterpret_cast<float*>(p.scales);
      p.tensor_scale_stride = p.scale_batch_stride;
      p.tensor_source = TensorScaleSource::stored;
    }
    add(kernel, c, p.grid.tiles, p);
  }

  void add_tall() {
    const int kernel =
        choice_.kernel_of(QuantizeKernel::tall, recipe_.element, ScaleRule::fp8, 128);
    const QuantizeConfig c = choice_.config_of(kernel);
    QuantizeParams p = base_;
    if (c.table) {
      const int chunks = 128 / c.chunk;
      p.grid = tile_grid(p.rows, ceil_div(p.k, c.chunk), c.threads / chunks, log2_ceil(chunks));
      add(kernel, c, p.grid.tiles, p);
      return;
    }
    const int rows = static_cast<int>(p.block_rows) / (halves_blocks(c) ? 2 : 1);
    // 16 chunks are a block's 128 columns; a thread block holds one block (or half), or as many as
    // fit.
    const int of_block = 128 / c.chunk;
    const int chunks = is_spread_tall(c) ? of_block : c.threads * c.chunks / rows;
    p.grid = tile_grid(p.rows, ceil_div(p.k, c.chunk), rows, log2_ceil(chunks));
    add(kernel, c, p.grid.tiles, p);
    plan_.last().shape.block.x = static_cast<std::uint32_t>(chunks * rows / c.chunks);
  }

  void add_row() {
    const bool norm = a_.input.transform == InputTransform::rms_norm;
    const int block = recipe_.block_k;
    const int kernel = choice_.kernel_of(QuantizeKernel::row, recipe_.element, rule(), block);
    if (kQuantizeKernels[kernel].table) {
      add_row_table(kernel);
      return;
    }
    add_row_kernel(kernel, norm && block > 0 ? base_.scale_rows : base_.rows,
                   block > 0 ? std::int64_t{base_.scale_columns} * block : base_.k);
  }

  /// As few warps a row as hold it, but no more groups of several than there are barriers.
  void add_row_table(int kernel) {
    const QuantizeConfig c = choice_.config_of(kernel);
    QuantizeParams p = base_;
    const std::int64_t chunks = ceil_div(p.k, c.chunk);
    const std::uint32_t log2 =
        chunks <= 32 ? 5 : log2_ceil(std::max<std::int64_t>(chunks, c.threads / 8));
    p.grid = tile_grid(p.rows, chunks, c.threads >> log2, log2);
    add(kernel, c, p.grid.tiles, p);
  }

  /// As few warps a row as hold it, and as many rows a thread block as make eight warps.
  void add_row_kernel(int kernel, std::int64_t rows, std::int64_t columns) {
    const QuantizeConfig c = choice_.config_of(kernel);
    const std::int64_t all_warps = row_warps(c, columns);
    const std::int64_t warps = std::min<std::int64_t>(all_warps, kRowMostWarps);
    const std::int64_t tile_rows = std::max<std::int64_t>(1, kRowMostWarps / 2 / warps);
    const std::int64_t threads = tile_rows * warps * 32;
    QuantizeParams p = base_;
    p.grid = tile_grid(rows, 1, tile_rows, 0);
    p.row_warps = Divisor(static_cast<std::uint32_t>(warps));
    p.row_rounds = static_cast<std::uint32_t>(ceil_div(all_warps, warps));
    add(kernel, c, p.grid.tiles, p);
    LaunchShape& shape = plan_.last().shape;
    shape.block.x = static_cast<std::uint32_t>(threads);
    if (!c.persistent) return;
    shape.dynamic_shared_bytes += shape.block.x * row_operand_bytes(c);
    const std::int64_t fits = c.threads * c.min_blocks / threads * device_.multiprocessors;
    shape.grid.x = static_cast<std::uint32_t>(
        std::max<std::int64_t>(1, std::min<std::int64_t>(p.grid.tiles, fits)));
  }

  const QuantizeArguments& a_;
  const QuantizeOptions& options_;
  const PlanDevice& device_;
  std::uint8_t* workspace_;
  const RecipeTraits& recipe_;
  QuantizeParams base_;  // of the next kernel, but for its tiles
  KernelChoice choice_;
  QuantizePlan plan_;
};

}  // namespace

bool may_wait_for_each_other(const QuantizeArguments& a) {
  return a.input.transform == InputTransform::rms_norm &&
         recipe_traits(a.out.recipe).block_rows > 1;
}

QuantizePlan plan_quantize(const QuantizeArguments& a, const QuantizeOptions& options,
                           const PlanDevice& device, void* workspace, const PlanTuning& tuning) {
  return Planner(a, options, device, workspace, tuning).plan();
}

QuantizePlan plan_row_factors(const QuantizeArguments& a, const QuantizeOptions& options,
                              const PlanDevice& device, void* workspace) {
  return Planner(a, options, device, workspace, {}).plan_row_factors();
}

QuantizePlan plan_absolute_maximum(const AbsoluteMaximumArguments& a, float* out,
                                   const PlanDevice& device, void* workspace) {
  check_size("x.rows", a.x.rows);
  check_size("x.columns", a.k);
  MutableScaledTensorView shape;
  shape.recipe = Recipe::fp8_tensor;
  shape.rows = a.x.rows;
  shape.k = a.k;
  shape.batch = a.x.batch;
  const QuantizeArguments arguments{a.x, shape, a.input};
  return Planner(arguments, {}, device, workspace, {}).plan_maximum(out);
}

}  // namespace blockscale::quantize_detail
