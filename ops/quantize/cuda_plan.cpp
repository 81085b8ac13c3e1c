#include "ops/quantize/cuda_plan.h"

#include <algorithm>

#include "core/recipe.h"
#include "ops/quantize/cuda_tiles.h"
#include "ops/quantize/exponent_rounding.h"

namespace blockscale::quantize_detail {
namespace {

/// Values for each multiprocessor from which on a kernel with a table wins, as measured. That
/// depends on how long it takes to fill (f16 has four times the entries that cost something, and
/// silu of x and of -x share nothing), and on what is done without: approximate values of tanh cost
/// less than those of erf, and with 8 bits there is more time.
std::int64_t least_table_values(const QuantizeConfig& c) {
  constexpr std::int64_t kFew = 1 << 14;
  constexpr std::int64_t kMany = 1 << 16;
  const bool bf16 = c.input == Format::bf16;
  if (!is_gelu(c.transform)) return bf16 ? kFew : 5 * kFew;
  const bool erf = c.transform == InputTransform::gelu_erf;
  switch (c.kernel) {
    case QuantizeKernel::tall: return kMany;
    case QuantizeKernel::row:
      if (erf) return bf16 ? kFew : 3 * kFew;
      return kMany;
    case QuantizeKernel::blocks:
      if (c.rule == ScaleRule::nvfp4) return 3 * kFew;
      if (erf) return 3 * kFew;
      return !bf16 && format_traits(c.element).bits == 8 ? 4 * kMany : kMany;
    default: break;
  }
  return 3 * kFew;
}

/// Elements for each multiprocessor up to which a plan's last kernel lets the next one in the
/// stream start at once. A larger one does so as its thread blocks end: earlier, those of a
/// successor that stays would be spread unevenly over the multiprocessors.
constexpr std::int64_t kMostOvertaken = 64 << 10;

/// Whether a kernel is followed by another one of its plan, which may always start at once.
constexpr bool comes_first(QuantizeKernel kernel) {
  return kernel == QuantizeKernel::maximum || kernel == QuantizeKernel::norm ||
         kernel == QuantizeKernel::clear;
}

/// Elements of x for each multiprocessor from which on kernels take their form for large inputs,
/// where `small` is the one for small ones: what one wave of these holds, or two.
constexpr std::int64_t large_elements(const QuantizeConfig& small) {
  return small.kernel == QuantizeKernel::blocks || loads_at_once(small) ? 64 << 10 : 32 << 10;
}

/// The same from which on rms_norm with blocks of several rows is faster from one read, whose
/// thread blocks wait for each other, than in two launches.
constexpr std::int64_t kLeastStripes = 8 << 10;

/// Index of the kernel that agrees with these fields; the others are its tuning.
int find_kernel(QuantizeKernel kernel, Format input, Format element, ScaleRule rule, int block,
                InputTransform transform, bool table = false, bool large = false) {
  for (int i = 0; i < kQuantizeKernels.count; ++i) {
    const QuantizeConfig& c = kQuantizeKernels[i];
    if (c.kernel == kernel && c.input == input && c.element == element && c.rule == rule &&
        c.block == block && c.transform == transform && c.table == table && c.large == large) {
      return i;
    }
  }
  throw Error(ErrorCode::unsupported, "x.dtype", "has no kernel for this recipe on a GPU");
}

/// The least power of two, as an exponent, that is not below `value`.
std::uint32_t log2_ceil(std::int64_t value) {
  std::uint32_t log2 = 0;
  while (std::int64_t{1} << log2 < value) ++log2;
  return log2;
}

/// The plan while it is made.
class Planner {
 public:
  Planner(const QuantizeArguments& a, const QuantizeOptions& options, const DeviceTraits& device,
          void* workspace, const PlanTuning& tuning)
      : a_(a),
        options_(options),
        device_(device),
        tuning_(tuning),
        workspace_(static_cast<std::uint8_t*>(workspace)),
        recipe_(recipe_traits(a.out.recipe)) {}

  QuantizePlan plan() {
    base_ = base_params();
    const bool given = options_.scale_source == ScaleSource::given;
    const bool empty = a_.out.rows == 0 || a_.out.k == 0 || a_.out.batch == 0;
    if (empty && !(recipe_.tensor_scale && !given)) return plan_;
    const bool rms = a_.input.transform == InputTransform::rms_norm;
    const bool whole_tensor = recipe_.block_rows == 0;
    const bool needs_maximum = !given && (whole_tensor || recipe_.tensor_scale);
    const bool by_row = recipe_.block_k == 0 && recipe_.block_rows == 1;
    const bool scales_known = whole_tensor || (by_row && given);
    const bool tall = recipe_.block_rows > 1;
    if (rms && tall && add_stripes()) return plan_;
    if (rms && !needs_maximum && (scales_known || tall)) add_norm();
    if (needs_maximum) {
      set_computed_scale();
      if (empty) {
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
    base_ = base_params();
    const bool empty = a_.out.rows == 0 || a_.out.k == 0 || a_.out.batch == 0;
    base_.maxima.scales = out;
    base_.maxima.scale_stride = 1;
    if (!empty) add_maximum();
    add_settle();
    return plan_;
  }

  QuantizePlan plan_row_factors() {
    base_ = base_params();
    add_norm();
    return plan_;
  }

  QuantizeParams params() const { return base_params(); }

 private:
  ScaleRule rule() const {
    return recipe_.family == Family::mx      ? ScaleRule::mx
           : recipe_.family == Family::nvfp4 ? ScaleRule::nvfp4
                                             : ScaleRule::fp8;
  }

  QuantizeParams base_params() const {
    const MutableScaledTensorView& out = a_.out;
    QuantizeParams p;
    p.x = device_matrix(a_.x);
    p.x.vectors &= operands_have_vectors();
    check_size("out.rows", out.rows);
    check_size("out.k", out.k);
    p.rows = static_cast<std::uint32_t>(out.rows);
    p.k = static_cast<std::uint32_t>(out.k);
    p.batch = static_cast<std::uint32_t>(out.batch);
    p.transform = transform_params();
    p.values = static_cast<std::uint8_t*>(out.values);
    p.value_row_stride = out.value_row_stride;
    p.value_batch_stride = out.value_batch_stride;
    p.exponent_rounding = recipe_.family == Family::mx
                              ? exponent_rounding(recipe_.element, options_.mx_scale_mode)
                              : 0;
    p.amax_floor = options_.fp8_amax_floor;
    p.block_rows = static_cast<std::uint32_t>(std::max(1, recipe_.block_rows));
    p.lets_next_start =
        a_.out.batch * a_.out.rows * a_.out.k <= device_.multiprocessors * kMostOvertaken;
    set_scales(p);
    set_tensor_scale(p);
    return p;
  }

  /// Whether chunks of whatever is fused start at multiples of 16 bytes where those of x do.
  bool operands_have_vectors() const {
    const QuantizeInput& input = a_.input;
    switch (input.transform) {
      case InputTransform::swiglu:
        return input.gate_group != a_.out.k || is_multiple(a_.out.k * format_bytes(a_.x.dtype), 16);
      case InputTransform::modulate:
        return device_matrix(input.scale).vectors && device_matrix(input.shift).vectors;
      case InputTransform::rms_norm: return device_matrix(input.weight).vectors;
      default: return true;
    }
  }

  TransformParams transform_params() const {
    const QuantizeInput& input = a_.input;
    TransformParams t;
    t.gate_order = input.gate_order;
    t.gate_group = input.gate_group;
    if (input.transform == InputTransform::modulate) {
      t.scale = device_matrix(input.scale);
      t.shift = device_matrix(input.shift);
      const std::int64_t rows = a_.x.batch * a_.x.rows;
      check_tiles(rows);
      t.rows_per_group = Divisor(static_cast<std::uint32_t>(
          std::max<std::int64_t>(1, rows / std::max<std::int64_t>(1, input.scale.rows))));
    }
    if (input.transform == InputTransform::rms_norm) {
      t.weight = device_matrix(input.weight);
      t.epsilon = input.epsilon;
      t.reciprocal_k = 1.0f / static_cast<float>(a_.out.k);
    }
    return t;
  }

  void set_scales(QuantizeParams& p) const {
    const MutableScaledTensorView& out = a_.out;
    p.scales = static_cast<std::uint8_t*>(out.scales);
    p.layout = out.layout;
    p.scale_leading_stride = out.scale_leading_stride;
    p.scale_batch_stride = out.scale_batch_stride;
    p.scale_column_step = scale_offset(out.layout, 0, 1, out.scale_leading_stride);
    p.scale_row_step = scale_offset(out.layout, 1, 0, out.scale_leading_stride);
    p.scale_pairs = recipe_.scale != Format::f32 && p.scale_column_step == 1 &&
                    is_multiple(out.scales, 2) && is_multiple(out.scale_batch_stride, 2) &&
                    (is_swizzled(out.layout) || is_multiple(out.scale_leading_stride, 2));
    const ScaleGrid grid = scale_grid(out.recipe, out.rows, out.k);
    const ScaleLayoutTraits& layout = scale_layout_traits(out.layout);
    p.scale_rows =
        static_cast<std::uint32_t>(ceil_div(grid.rows, layout.tile_rows) * layout.tile_rows);
    p.scale_columns =
        static_cast<std::uint32_t>(ceil_div(grid.columns, layout.tile_k) * layout.tile_k);
    if (recipe_.family == Family::fp8) {
      p.fp8_scale = recipe_.scale == Format::ue8m0 ? Fp8Scale::ue8m0
                    : recipe_.power_of_two         ? Fp8Scale::f32_power_of_two
                                                   : Fp8Scale::f32;
    }
  }

  void set_tensor_scale(QuantizeParams& p) const {
    if (!recipe_.tensor_scale) return;
    const bool multiplier = a_.out.sense == TensorScaleSense::multiplier;
    p.tensor_scale = a_.out.tensor_scale;
    p.tensor_scale_stride = a_.out.tensor_scale_batch_stride;
    if (options_.scale_source == ScaleSource::given && p.tensor_scale != nullptr) {
      p.tensor_source = multiplier ? TensorScaleSource::multiplier : TensorScaleSource::stored;
    }
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

  /// As wide as a thread block; narrower and taller where the scales of a column lie together, so
  /// that a tile fills whole sectors of them, and where rows share operands, so that they find
  /// these in the level-1 cache.
  std::uint32_t log2_chunks_of(std::int64_t chunks, const QuantizeConfig& c) const {
    int most = c.threads;
    if (c.kernel == QuantizeKernel::blocks) {
      // Eight columns of scales.
      if (a_.out.layout == ScaleLayout::mn_major) most = std::min(8, 8 * c.block / c.chunk);
      if (is_swizzled(a_.out.layout)) most = 16;
    }
    const InputTransform transform = a_.input.transform;
    if (transform == InputTransform::modulate || transform == InputTransform::rms_norm) {
      most = std::min(most, 16);
    }
    const int least = std::max(2, c.block / c.chunk);
    return fitting_log2_chunks(chunks, least, std::max(most, least));
  }

  /// The configuration of a kernel of the plan. The last one's may be tuned.
  QuantizeConfig config_of(int kernel) const {
    QuantizeConfig c = kQuantizeKernels[kernel];
    if (comes_first(c.kernel)) return c;
    if (tuning_.chunk != 0) c.chunk = tuning_.chunk;
    if (tuning_.chunks != 0) c.chunks = tuning_.chunks;
    if (tuning_.threads != 0) c.threads = tuning_.threads;
    if (tuning_.min_blocks != 0) c.min_blocks = tuning_.min_blocks;
    c.persistent |= tuning_.persistent;
    return c;
  }

  /// Tiles of the kernels whose threads hold chunks of consecutive rows.
  TileGrid chunk_grid(const QuantizeConfig& c, std::int64_t rows, std::int64_t columns) const {
    const std::int64_t chunks = ceil_div(columns, c.chunk);
    const std::uint32_t log2 = tuning_.log2_chunks != 0
                                   ? static_cast<std::uint32_t>(tuning_.log2_chunks)
                                   : log2_chunks_of(chunks, c);
    return tile_grid(rows, chunks, (c.threads >> log2) * tile_rows_of_thread(c), log2);
  }

  /// Whether the codes of each chunk start at a multiple of their widest store.
  bool has_value_vectors(const QuantizeConfig& c) const {
    const std::int64_t store = code_store_bytes(c.element, c.chunk);
    return is_multiple(base_.values, store) && is_multiple(base_.value_row_stride, store) &&
           is_multiple(base_.value_batch_stride, store);
  }

  /// QuantizeParams::prefetches, where it was measured to gain: of small inputs, unless a `maximum`
  /// has just read them, and before a table is filled.
  bool prefetches(const QuantizeConfig& c, const QuantizeParams& p) const {
    const bool small = p.lets_next_start;
    if (comes_first(c.kernel)) return small;
    if (tuning_.prefetch != Choice::by_size) return tuning_.prefetch == Choice::always;
    const bool is_near = p.tensor_source == TensorScaleSource::maxima;
    return c.table || (small && prefetches_tile(c) && !is_near);
  }

  void add(int kernel, const QuantizeConfig& c, std::int64_t blocks, QuantizeParams params) {
    const std::int64_t fits = std::int64_t{device_.multiprocessors} * c.min_blocks;
    params.value_vectors = has_value_vectors(c);
    // One thread block a multiprocessor: nobody is in the way of those to come.
    params.prefetches = prefetches(c, params);
    params.lets_next_start |=
        comes_first(c.kernel) || c.table || c.kernel == QuantizeKernel::stripe;
    QuantizePlan::Step& step = plan_.steps[static_cast<std::size_t>(plan_.count++)];
    step.kernel = kernel;
    step.config = c;
    step.shape.grid.x = static_cast<std::uint32_t>(
        std::max<std::int64_t>(1, c.persistent ? std::min(blocks, fits) : blocks));
    step.shape.block.x = static_cast<std::uint32_t>(c.threads);
    step.shape.dynamic_shared_bytes = c.table ? kTableSharedBytes : kQuantizeSharedBytes;
    step.shape.programmatic_dependent_launch = true;
    step.params = params;
  }

  int kernel_of(QuantizeKernel kind, Format element, ScaleRule scale_rule, int block) const {
    const auto find = [&](bool table, bool large) {
      return find_kernel(kind, a_.x.dtype, element, scale_rule, block, a_.input.transform, table,
                         large);
    };
    const int small = find(false, false);
    const bool large = has_large_form(kind, a_.x.dtype, scale_rule, a_.input.transform) &&
                       is_large(kQuantizeKernels[small]);
    const int computed = large ? find(false, true) : small;
    if (!has_table(kind, a_.x.dtype, a_.input.transform)) return computed;
    const int with_table = find(true, false);
    return wants_table(kQuantizeKernels[with_table]) ? with_table : computed;
  }

  bool is_large(const QuantizeConfig& small) const {
    if (loads_at_once(small) && !may_load_at_once(small)) return true;
    if (streams_rows(small)) return !may_stream_rows(small) || tuning_.large == Choice::always;
    if (tuning_.large != Choice::by_size) return tuning_.large == Choice::always;
    const std::int64_t of_value = a_.input.transform == InputTransform::swiglu ? 2 : 1;
    return a_.out.batch * a_.out.rows * a_.out.k * of_value >=
           device_.multiprocessors * large_elements(small);
  }

  /// What kernel_sm90_at_once.cuh asks for.
  bool may_load_at_once(const QuantizeConfig& c) const {
    if (!base_.x.vectors || !has_value_vectors(c) || !is_multiple(a_.out.k, c.chunk)) return false;
    if (c.kernel == QuantizeKernel::row) {
      return has_operands_of_x() && row_warps(c, a_.out.k) <= kRowMostWarps;
    }
    const std::int64_t rows = a_.out.rows;
    const std::int64_t group_rows = base_.transform.rows_per_group.divisor;
    const std::int64_t tile_rows = chunk_grid(c, rows, a_.out.k).rows;
    return is_multiple(group_rows, rows) || (is_multiple(group_rows, tile_rows) &&
                                             (a_.out.batch == 1 || is_multiple(rows, tile_rows)));
  }

  /// What kernel_sm90_row_maximum.cuh asks for.
  bool may_stream_rows(const QuantizeConfig& c) const {
    return base_.x.vectors && is_multiple(a_.out.k, c.chunk) && has_operands_of_x() &&
           row_warps(c, a_.out.k) <= kRowMostWarps;
  }

  /// Whether operands that rows share are of the type of x.
  bool has_operands_of_x() const {
    const QuantizeInput& input = a_.input;
    if (input.transform == InputTransform::rms_norm) return input.weight.dtype == a_.x.dtype;
    return input.scale.dtype == a_.x.dtype && input.shift.dtype == a_.x.dtype;
  }

  /// Whether a kernel with a table can work with vectors, and is the faster: each multiprocessor
  /// has enough elements to pay for filling it.
  bool wants_table(const QuantizeConfig& c) const {
    if (tuning_.table == Choice::never) return false;
    if (!base_.x.vectors || !has_value_vectors(c)) return false;
    if (c.kernel == QuantizeKernel::row &&
        base_.k > static_cast<std::uint32_t>(c.threads * c.chunk)) {
      return false;
    }
    const std::int64_t values = a_.out.batch * a_.out.rows * a_.out.k;
    return tuning_.table == Choice::always ||
           values >= device_.multiprocessors * least_table_values(c);
  }

  void add_norm() {
    const int kernel = kernel_of(QuantizeKernel::norm, Format::e4m3, ScaleRule::fp8, 0);
    add_row_factors(kernel);
    base_.backwards = true;
  }

  /// The kernel that finds the factors of rms_norm.
  void add_row_factors(int kernel) {
    check_tiles(a_.out.batch * a_.out.rows);  // kernels number the factors in 32 bits
    base_.row_factors = take<float>(a_.out.batch * a_.out.rows);
    add_row_kernel(kernel, a_.out.rows, a_.out.k);
    base_.transform.row_factors = base_.row_factors;
  }

  /// Only where rows of x are whole vectors, and thread blocks that wait for each other are at most
  /// a quarter of what the device holds: others may run at the same time, and wait too.
  bool add_stripes() {
    const bool large =
        a_.out.batch * a_.out.rows * a_.out.k >= device_.multiprocessors * kLeastStripes;
    if (!base_.x.vectors || tuning_.large == Choice::never) return false;
    if (!is_multiple(a_.out.k * format_bytes(a_.x.dtype), 16)) return false;
    if (tuning_.large == Choice::by_size && !large) return false;
    const int kernel = find_kernel(QuantizeKernel::stripe, a_.x.dtype, recipe_.element, rule(), 128,
                                   a_.input.transform);
    const QuantizeConfig c = config_of(kernel);
    const std::int64_t chunks = ceil_div(a_.out.k, c.chunk);
    const std::int64_t mates = ceil_div(chunks, 32);
    const std::int64_t fits = std::int64_t{device_.multiprocessors} * c.min_blocks;
    if (mates > kMaxMates || 4 * mates > fits) return false;
    base_.grid = tile_grid(base_.rows, chunks, kStripeRows, 5);
    const std::int64_t words = std::int64_t{base_.grid.tiles} * (kStripeRows / 2);
    base_.stripes.words = static_cast<std::uint64_t>(words);
    base_.stripes.sums = take<std::uint64_t>(words);
    base_.stripes.tickets = take<std::uint32_t>(1);
    base_.stripes.stripes = static_cast<std::uint32_t>(base_.grid.tiles / mates);
    base_.stripes.per_matrix =
        Divisor(base_.stripes.stripes / static_cast<std::uint32_t>(a_.out.batch));
    base_.stripes.teams = std::min(static_cast<std::uint32_t>(fits / mates), base_.stripes.stripes);
    const int clear = find_kernel(QuantizeKernel::clear, Format::f32, Format::e4m3, ScaleRule::fp8,
                                  0, InputTransform::identity);
    const QuantizeConfig& clear_config = kQuantizeKernels[clear];
    add(clear, clear_config, ceil_div(words, 2 * clear_config.threads), base_);
    add(kernel, c, base_.stripes.teams * mates, base_);
    plan_.last().shape.dynamic_shared_bytes += kStripeWeightBytes + kStripeSlots * kStripeSlotBytes;
    return true;
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

  /// Thread blocks of a `maximum` kernel, at most. For small inputs of GELU one a multiprocessor,
  /// so that many of the next kernel's find room beside it.
  std::int64_t most_thread_blocks(const QuantizeConfig& c) const {
    if (tuning_.maxima != 0) return tuning_.maxima;
    const bool small = orders_gelu(c) && base_.lets_next_start;
    return small ? device_.multiprocessors : std::int64_t{most_maxima(c)};
  }

  void add_maximum() {
    const int kernel = kernel_of(QuantizeKernel::maximum, Format::e4m3, ScaleRule::fp8, 0);
    const QuantizeConfig& c = kQuantizeKernels[kernel];
    if (holds_rows(c.kernel, c.transform)) {
      add_row_factors(kernel);
    } else {
      QuantizeParams p = base_;
      p.grid = chunk_grid(c, a_.out.rows, a_.out.k);
      add(kernel, c, p.grid.tiles, p);
    }
    const std::int64_t scales = one_scale_for_all() ? 1 : a_.out.batch;
    QuantizePlan::Step& step = plan_.last();
    const std::int64_t most = std::min<std::int64_t>(step.shape.grid.x, most_thread_blocks(c));
    const std::int64_t count = std::clamp<std::int64_t>(
        most / scales, 1, std::max<std::int64_t>(1, step.params.grid.tiles / scales));
    const std::int64_t words = ceil_div(count, 4) * 4;
    check_tiles(scales * words);
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
    check_tiles(scales);
    const int kernel = find_kernel(QuantizeKernel::settle, Format::f32, recipe_.element, rule(), 0,
                                   InputTransform::identity);
    add(kernel, kQuantizeKernels[kernel], scales, base_);
  }

  void add_blocks() {
    const int kernel = kernel_of(QuantizeKernel::blocks, recipe_.element, rule(), recipe_.block_k);
    const QuantizeConfig c = config_of(kernel);
    QuantizeParams p = base_;
    const std::int64_t columns = std::int64_t{p.scale_columns} * recipe_.block_k;
    p.grid = chunk_grid(c, p.scale_rows, columns);
    add(kernel, c, p.grid.tiles, p);
    if (loads_at_once(c)) {
      plan_.last().shape.dynamic_shared_bytes += strip_bytes(c, 1u << p.grid.log2_chunks);
    }
  }

  void add_scaled(bool by_row) {
    const int kernel = kernel_of(QuantizeKernel::scaled, recipe_.element, ScaleRule::fp8, 0);
    const QuantizeConfig c = config_of(kernel);
    QuantizeParams p = base_;
    p.grid = chunk_grid(c, p.rows, p.k);
    p.given_scales = by_row;
    if (!by_row && p.tensor_source == TensorScaleSource::none) {
      p.tensor_scale = reinterpret_cast<float*>(p.scales);
      p.tensor_scale_stride = p.scale_batch_stride;
      p.tensor_source = TensorScaleSource::stored;
    }
    add(kernel, c, p.grid.tiles, p);
  }

  void add_tall() {
    const int kernel = kernel_of(QuantizeKernel::tall, recipe_.element, ScaleRule::fp8, 128);
    const QuantizeConfig c = config_of(kernel);
    QuantizeParams p = base_;
    if (c.table) {
      const int chunks = 128 / c.chunk;
      p.grid = tile_grid(p.rows, ceil_div(p.k, c.chunk), c.threads / chunks, log2_ceil(chunks));
      add(kernel, c, p.grid.tiles, p);
      return;
    }
    // 16 chunks are a block's 128 columns; a thread block holds one block, or as many as fit.
    const int of_block = 128 / c.chunk;
    const int chunks = is_spread_tall(c) ? of_block : c.threads * c.chunks / recipe_.block_rows;
    p.grid = tile_grid(p.rows, ceil_div(p.k, c.chunk), recipe_.block_rows, log2_ceil(chunks));
    add(kernel, c, p.grid.tiles, p);
    plan_.last().shape.block.x = static_cast<std::uint32_t>(chunks * recipe_.block_rows / c.chunks);
  }

  void add_row() {
    const bool norm = a_.input.transform == InputTransform::rms_norm;
    const int block = recipe_.block_k;
    const int kernel = kernel_of(QuantizeKernel::row, recipe_.element, rule(), block);
    if (kQuantizeKernels[kernel].table) {
      add_row_table(kernel);
      return;
    }
    add_row_kernel(kernel, norm && block > 0 ? base_.scale_rows : base_.rows,
                   block > 0 ? std::int64_t{base_.scale_columns} * block : base_.k);
  }

  /// As few warps a row as hold it, but no more groups of several than there are barriers.
  void add_row_table(int kernel) {
    const QuantizeConfig c = config_of(kernel);
    QuantizeParams p = base_;
    const std::int64_t chunks = ceil_div(p.k, c.chunk);
    const std::uint32_t log2 =
        chunks <= 32 ? 5 : log2_ceil(std::max<std::int64_t>(chunks, c.threads / 8));
    p.grid = tile_grid(p.rows, chunks, c.threads >> log2, log2);
    add(kernel, c, p.grid.tiles, p);
  }

  /// Warps that hold a row.
  static std::int64_t row_warps(const QuantizeConfig& c, std::int64_t columns) {
    return std::max<std::int64_t>(1, ceil_div(columns, std::int64_t{32} * c.chunk * c.chunks));
  }

  /// As few warps a row as hold it, and as many rows a thread block as make eight warps.
  void add_row_kernel(int kernel, std::int64_t rows, std::int64_t columns) {
    const QuantizeConfig c = config_of(kernel);
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
  const DeviceTraits& device_;
  const PlanTuning& tuning_;
  std::uint8_t* workspace_;
  const RecipeTraits& recipe_;
  QuantizeParams base_;
  QuantizePlan plan_;
};

}  // namespace

QuantizePlan plan_quantize(const QuantizeArguments& a, const QuantizeOptions& options,
                           const DeviceTraits& device, void* workspace, const PlanTuning& tuning) {
  return Planner(a, options, device, workspace, tuning).plan();
}

QuantizeParams quantize_params(const QuantizeArguments& a, const QuantizeOptions& options) {
  return Planner(a, options, {}, nullptr, {}).params();
}

QuantizePlan plan_row_factors(const QuantizeArguments& a, const QuantizeOptions& options,
                              const DeviceTraits& device, void* workspace) {
  return Planner(a, options, device, workspace, {}).plan_row_factors();
}

QuantizePlan plan_absolute_maximum(const AbsoluteMaximumArguments& a, float* out,
                                   const DeviceTraits& device, void* workspace) {
  MutableScaledTensorView shape;
  shape.recipe = Recipe::fp8_tensor;
  shape.rows = a.x.rows;
  shape.k = a.k;
  shape.batch = a.x.batch;
  const QuantizeArguments arguments{a.x, shape, a.input};
  return Planner(arguments, {}, device, workspace, {}).plan_maximum(out);
}

}  // namespace blockscale::quantize_detail
