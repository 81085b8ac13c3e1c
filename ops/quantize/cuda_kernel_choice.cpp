#include "ops/quantize/cuda_kernel_choice.h"

#include <algorithm>

#include "ops/quantize/cuda_params.h"
#include "ops/quantize/cuda_tiles.h"

namespace blockscale::quantize_detail {
namespace {

/// Values for each multiprocessor from which on a kernel with a table wins, as measured in a chain
/// of calls; more where it loses more than that behind an ordinary kernel, beside which it cannot
/// be filled. That depends on how long it takes to fill (f16 has four times the entries that cost
/// something, and silu of x and of -x share nothing), and on what is done without: approximate
/// values of tanh cost less than those of erf, and with 8 bits there is more time.
std::int64_t least_table_values(const QuantizeConfig& c) {
  constexpr std::int64_t kFew = 1 << 14;
  constexpr std::int64_t kMany = 1 << 16;
  const bool bf16 = c.input == Format::bf16;
  const bool nvfp4 = c.rule == ScaleRule::nvfp4;
  const bool bytes = format_traits(c.element).bits == 8;
  if (!is_gelu(c.transform)) {
    if (nvfp4) return bf16 ? 3 * kFew : 5 * kFew;
    if (!bf16 || c.kernel == QuantizeKernel::scaled) return 3 * kFew;
    return c.kernel == QuantizeKernel::tall ? kFew * 3 / 8 : kFew;
  }
  const bool erf = c.transform == InputTransform::gelu_erf;
  switch (c.kernel) {
    case QuantizeKernel::row: return erf && bf16 ? kFew : 3 * kFew;
    case QuantizeKernel::blocks:
      if (nvfp4) return kMany;
      if (erf) return bf16 && bytes ? kFew * 3 / 2 : 3 * kFew;
      return !bf16 && bytes ? 4 * kMany : kMany;
    case QuantizeKernel::scaled: return kMany;
    default: return 3 * kFew;
  }
}

/// Elements for each multiprocessor up to which a plan's last kernel lets the next one in the
/// stream start at once. A larger one does so as its thread blocks end: earlier, those of a
/// successor that stays would be spread unevenly over the multiprocessors.
constexpr std::int64_t kMostOvertaken = 64 << 10;

/// Elements of x for each multiprocessor.
struct Sizes {
  std::int64_t least;
  std::int64_t below;
};

/// Those for which kernels take their form for small inputs, `small`: what one wave of its thread
/// blocks holds, or two, or as measured.
constexpr Sizes small_sizes(const QuantizeConfig& small) {
  constexpr std::int64_t kKibi = 1 << 10;
  const bool gelu = is_gelu(small.transform);
  const bool modulate = small.transform == InputTransform::modulate;
  if (is_exact_form(small)) {
    return {0, (small.kernel == QuantizeKernel::blocks ? 24 : 12) * kKibi};
  }
  if (has_few_rows(small.kernel, small.rule, small.transform)) {
    // Of fewer the weight, which every thread block loads, counts for more.
    return {small.transform == InputTransform::rms_norm ? 6 * kKibi : 0, 24 * kKibi};
  }
  switch (small.kernel) {
    case QuantizeKernel::maximum: return {0, (modulate ? 24 : 10) * kKibi};
    case QuantizeKernel::blocks: return {0, 64 * kKibi};
    case QuantizeKernel::tall: return {0, (gelu ? 24 : 32) * kKibi};
    case QuantizeKernel::row:
      if (loads_at_once(small)) return {0, (modulate ? 48 : 64) * kKibi};
      return {0, (gelu ? 24 : 32) * kKibi};
    default: return {0, 32 * kKibi};
  }
}

/// The same from which on rms_norm with blocks of several rows is faster from one read, whose
/// thread blocks wait for each other, than in two launches.
constexpr std::int64_t kLeastStripes = 20 << 10;

}  // namespace

int find_kernel(QuantizeKernel kernel, Format input, Format element, ScaleRule rule, int block,
                InputTransform transform, bool table, bool large) {
  for (int i = 0; i < kQuantizeKernels.count; ++i) {
    const QuantizeConfig& c = kQuantizeKernels[i];
    if (c.kernel == kernel && c.input == input && c.element == element && c.rule == rule &&
        c.block == block && c.transform == transform && c.table == table && c.large == large) {
      return i;
    }
  }
  throw Error(ErrorCode::unsupported, "x.dtype", "has no kernel for this recipe on a GPU");
}

std::int64_t row_warps(const QuantizeConfig& c, std::int64_t columns) {
  return std::max<std::int64_t>(1, ceil_div(columns, std::int64_t{32} * c.chunk * c.chunks));
}

int KernelChoice::kernel_of(QuantizeKernel kind, Format element, ScaleRule rule, int block) const {
  const Format input = a_.x.dtype;
  const InputTransform transform = a_.input.transform;
  const auto find = [&](bool table, bool large) {
    return find_kernel(kind, input, element, rule, block, transform, table, large);
  };
  const int small = find(false, false);
  const bool large =
      has_large_form(kind, input, rule, transform) && is_large(kQuantizeKernels[small]);
  const int computed = large ? find(false, true) : small;
  if (!has_table(kind, input, transform)) return computed;
  const int with_table = find(true, false);
  return wants_table(kQuantizeKernels[with_table]) ? with_table : computed;
}

bool KernelChoice::is_large(const QuantizeConfig& small) const {
  if (loads_at_once(small) && !may_load_at_once(small)) return true;
  const bool gelu_of_row = small.kernel == QuantizeKernel::row && is_gelu(small.transform);
  if (gelu_of_row && row_warps(small, a_.out.k) > kRowMostWarps) return true;
  if (streams_rows(small)) return !may_stream_rows(small) || tuning_.large == Choice::always;
  if (tuning_.large != Choice::by_size) return tuning_.large == Choice::always;
  const std::int64_t of_value = a_.input.transform == InputTransform::swiglu ? 2 : 1;
  const Sizes sizes = small_sizes(small);
  const std::int64_t size = values() * of_value;
  return size < device_.multiprocessors * sizes.least ||
         size >= device_.multiprocessors * sizes.below;
}

/// What kernel_sm90_at_once.cuh asks for.
bool KernelChoice::may_load_at_once(const QuantizeConfig& c) const {
  if (!params_.x.vectors || !has_value_vectors(params_, c)) return false;
  if (!is_multiple(a_.out.k, c.chunk)) return false;
  if (c.kernel == QuantizeKernel::row) {
    return has_operands_of_x() && row_warps(c, a_.out.k) <= kRowMostWarps;
  }
  const std::int64_t rows = a_.out.rows;
  const std::int64_t group_rows = params_.transform.rows_per_group.divisor;
  const std::int64_t tile_rows = chunk_grid(c, rows, a_.out.k).rows;
  return is_multiple(group_rows, rows) || (is_multiple(group_rows, tile_rows) &&
                                           (a_.out.batch == 1 || is_multiple(rows, tile_rows)));
}

/// What kernel_sm90_row_maximum.cuh asks for.
bool KernelChoice::may_stream_rows(const QuantizeConfig& c) const {
  return params_.x.vectors && is_multiple(a_.out.k, c.chunk) && has_operands_of_x() &&
         row_warps(c, a_.out.k) <= kRowMostWarps;
}

/// Whether operands that rows share are of the type of x.
bool KernelChoice::has_operands_of_x() const {
  const QuantizeInput& input = a_.input;
  if (input.transform == InputTransform::rms_norm) return input.weight.dtype == a_.x.dtype;
  return input.scale.dtype == a_.x.dtype && input.shift.dtype == a_.x.dtype;
}

/// Whether a kernel with a table can work with vectors, and is the faster: each multiprocessor has
/// enough elements to pay for filling it.
bool KernelChoice::wants_table(const QuantizeConfig& c) const {
  if (tuning_.table == Choice::never) return false;
  if (!params_.x.vectors || !has_value_vectors(params_, c)) return false;
  if (c.kernel == QuantizeKernel::row && a_.out.k > std::int64_t{c.threads} * c.chunk) return false;
  return tuning_.table == Choice::always ||
         values() >= device_.multiprocessors * least_table_values(c);
}

/// Rows of a stripe beyond the matrix are encoded in vain, as those of a block are.
bool KernelChoice::fills_stripes() const {
  const auto covered = [&](std::int64_t rows) { return ceil_div(a_.out.rows, rows) * rows; };
  return covered(kStripeRows) <= 2 * covered(params_.block_rows);
}

bool KernelChoice::reads_stripes() const {
  if (!params_.x.vectors || !is_multiple(a_.out.k * format_bytes(a_.x.dtype), 16)) return false;
  if (tuning_.large != Choice::by_size) return tuning_.large == Choice::always;
  return fills_stripes() && values() >= device_.multiprocessors * kLeastStripes;
}

QuantizeConfig KernelChoice::config_of(int kernel) const {
  QuantizeConfig c = kQuantizeKernels[kernel];
  if (comes_first(c.kernel)) return c;
  if (tuning_.chunk != 0) c.chunk = tuning_.chunk;
  if (tuning_.chunks != 0) c.chunks = tuning_.chunks;
  if (tuning_.threads != 0) c.threads = tuning_.threads;
  if (tuning_.min_blocks != 0) c.min_blocks = tuning_.min_blocks;
  return c;
}

TileGrid KernelChoice::chunk_grid(const QuantizeConfig& c, std::int64_t rows,
                                  std::int64_t columns) const {
  const std::int64_t chunks = ceil_div(columns, c.chunk);
  const std::uint32_t log2 = log2_chunks_of(chunks, c);
  const std::int64_t tile_rows = (c.threads >> log2) * tile_rows_of_thread(c);
  return make_tile_grid(a_.out.batch, rows, chunks, tile_rows, log2);
}

/// As wide as a thread block; narrower and taller where the scales of a column lie together, so
/// that a tile fills whole sectors of them, and where rows share operands, so that they find these
/// in the level-1 cache.
std::uint32_t KernelChoice::log2_chunks_of(std::int64_t chunks, const QuantizeConfig& c) const {
  int most = c.threads & -c.threads;  // of 768 threads 256: a tile's rows are whole ones
  if (c.kernel == QuantizeKernel::blocks) {
    // At most eight columns of scales.
    if (a_.out.layout == ScaleLayout::mn_major) most = std::min(8, 8 * c.block / c.chunk);
    if (is_swizzled(a_.out.layout)) most = 16;
  }
  if (shared_operands(a_.input.transform) > 0) most = std::min(most, kMostOperandChunks);
  const int least = std::max(2, c.block / c.chunk);
  return fitting_log2_chunks(chunks, least, std::max(most, least));
}

/// Where it was measured to gain: of small inputs, unless a `maximum` has just read them, and
/// before a table is filled.
bool KernelChoice::prefetches(const QuantizeConfig& c, const QuantizeParams& p) const {
  const bool small = lets_next_start();
  // First tiles of stripes: beside all slots `clear` has too little shared memory to be spread.
  const bool clear_does = small && p.stripes.slots < kStripeSlots;
  if (c.kernel == QuantizeKernel::clear) return clear_does;
  if (c.kernel == QuantizeKernel::stripe) return !clear_does;
  if (comes_first(c.kernel)) return small;
  const bool is_near = p.tensor_source == TensorScaleSource::maxima;
  return c.table || (small && prefetches_tile(c) && !is_near);
}

/// Of GELU's form for large inputs, while the next call may start at once: one a multiprocessor, so
/// that many of the next kernel's find room beside it; or up to two that go through their tiles at
/// once instead of in two turns.
std::int64_t KernelChoice::most_thread_blocks(const QuantizeConfig& c, std::int64_t tiles) const {
  const std::int64_t most = most_maxima(c);
  if (!orders_gelu(c) || !c.large || !lets_next_start()) return most;
  const std::int64_t one = device_.multiprocessors;
  const std::int64_t at_once = ceil_div(tiles, c.chunks);
  return std::min(most, at_once <= 2 * one ? std::max(at_once, one) : one);
}

bool KernelChoice::lets_next_start() const {
  return values() <= device_.multiprocessors * kMostOvertaken;
}

}  // namespace blockscale::quantize_detail
