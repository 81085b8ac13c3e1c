#include "ops/gemm/cuda/plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <utility>

#include "ops/common/checks.h"
#include "ops/gemm/cuda/quantize.h"
#include "ops/gemm/validate.h"
#include "runtime/kernels/architecture.h"

namespace blockscale::gemm_detail {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 31;  // of a dimension: TMA's coordinates

/// Whether TMA reads the operand's values where they are.
bool fits_tma(const ScaledTensorView& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.values);
  return address % 16 == 0 && (x.rows <= 1 || x.value_row_stride % 16 == 0) &&
         (x.batch <= 1 || x.value_batch_stride % 16 == 0);
}

void check_operand(const ScaledTensorView& x, const char* argument) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  if (t.family != Family::fp8 || t.element != Format::e4m3) {
    throw Error(ErrorCode::unsupported, std::string(argument) + ".recipe",
                std::string("is ") + t.name +
                    "; products on CUDA devices take FP8 recipes of e4m3 (fp8_tensor, fp8_row, "
                    "fp8_1x128, fp8_128x128 and their kin)");
  }
}

void check_chip(const cuda::Chip& chip) {
  for (const char* const architecture : kWgmmaArchitectures) {
    if (runtime::runs_on(architecture, chip.architecture)) return;
  }
  throw Error(ErrorCode::unsupported, "a.recipe",
              "has no kernel for " + chip.name + " (compute capability " +
                  runtime::compute_capability_text(chip.architecture) + ")");
}

void check_size(const char* argument, std::int64_t value) {
  if (value < kMostElements) return;
  throw Error(ErrorCode::unsupported, argument,
              "is " + std::to_string(value) + "; products on CUDA devices take less than 2^31");
}

TensorMapDescription map_of(const ScaledTensorView& x, std::uint32_t box_rows) {
  const auto rows = static_cast<std::uint64_t>(x.rows);
  TensorMapDescription d;
  d.address = reinterpret_cast<std::uint64_t>(x.values);
  d.rank = 3;
  const auto count = static_cast<std::uint64_t>(x.batch);
  // A stride that is never used may break TMA's rules.
  const auto k = static_cast<std::uint64_t>(x.k);
  const std::uint64_t row_stride =
      x.rows > 1 ? static_cast<std::uint64_t>(x.value_row_stride) : (k + 15) / 16 * 16;
  d.sizes[0] = k;
  d.sizes[1] = rows;
  d.sizes[2] = count;
  d.strides[0] = row_stride;
  d.strides[1] = x.batch > 1 ? static_cast<std::uint64_t>(x.value_batch_stride) : rows * row_stride;
  d.box[0] = kFp8BlockK;
  d.box[1] = box_rows;
  d.box[2] = 1;
  d.element_strides[0] = d.element_strides[1] = d.element_strides[2] = 1;
  d.swizzle = TensorMapSwizzle::bytes_128;
  d.l2_promotion = TensorMapL2Promotion::bytes_128;
  return d;
}

GemmScales scales_of_operand(const ScaledTensorView& x) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  GemmScales s;
  s.data = static_cast<const std::uint8_t*>(x.scales);
  s.layout = x.layout;
  s.bytes = t.scale == Format::ue8m0;
  s.row_shift =
      t.block_rows == 0 ? 0 : static_cast<std::uint32_t>(std::countr_zero(unsigned(t.block_rows)));
  s.row_stride = x.layout == ScaleLayout::mn_major ? 1 : x.scale_leading_stride;
  s.k_stride = scale_offset(x.layout, 0, 1, x.scale_leading_stride);
  s.k_stride_4 = scale_offset(x.layout, 0, 4, x.scale_leading_stride);
  if (t.block_rows == 0) s.row_stride = 0;
  if (t.block_k == 0) s.k_stride = s.k_stride_4 = 0;
  s.batch_stride = x.batch > 1 ? x.scale_batch_stride : 0;
  return s;
}

/// Kernels count a matrix's scales in 32 bits from row to row.
void check_scales(const GemmScales& scales, const ScaledTensorView& x, const char* argument) {
  const std::int64_t last = scales.row_offset(static_cast<std::uint32_t>(x.rows - 1));
  if (last <= std::numeric_limits<std::uint32_t>::max()) return;
  throw Error(ErrorCode::unsupported, std::string(argument) + ".scale_leading_stride",
              "is " + std::to_string(x.scale_leading_stride) +
                  ", which puts the last row's scales " + std::to_string(last) +
                  " after the first's; products on CUDA devices take less than 2^32");
}

/// What a tensor copy of scales reads: rows of them along the contiguous dimension, and how far
/// apart they are.
struct ScaleRows {
  std::int64_t inner, outer, stride;
};

ScaleRows scale_rows_of(const ScaledTensorView& x) {
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  const bool rows_inner = x.layout == ScaleLayout::mn_major;
  const std::int64_t outer = rows_inner ? grid.columns : grid.rows;
  // A stride that is never used may break TMA's rules.
  return {rows_inner ? grid.rows : grid.columns, outer,
          outer > 1 ? x.scale_leading_stride : std::int64_t{4}};
}

/// Whether tensor copies can bring `x`'s scales, of blocks of `block_rows` x 128: f32, in rows that
/// begin at multiples of 16 bytes.
bool takes_copied_scales(const ScaledTensorView& x, int block_rows) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  if (t.block_rows != block_rows || t.block_k != kFp8BlockK || t.scale != Format::f32) return false;
  if (x.layout != ScaleLayout::mn_major && x.layout != ScaleLayout::row_major) return false;
  return reinterpret_cast<std::uintptr_t>(x.scales) % 16 == 0 && scale_rows_of(x).stride % 4 == 0 &&
         (x.batch <= 1 || x.scale_batch_stride % 4 == 0);
}

TensorMapDescription map_of_scales(const ScaledTensorView& x, std::uint32_t box_rows) {
  const bool rows_inner = x.layout == ScaleLayout::mn_major;
  const ScaleRows rows = scale_rows_of(x);
  TensorMapDescription d;
  d.address = reinterpret_cast<std::uint64_t>(x.scales);
  d.rank = 3;
  d.element = TensorMapElement::u32;
  d.sizes[0] = static_cast<std::uint64_t>(rows.inner);
  d.sizes[1] = static_cast<std::uint64_t>(rows.outer);
  d.sizes[2] = static_cast<std::uint64_t>(x.batch);
  d.strides[0] = static_cast<std::uint64_t>(rows.stride) * 4;
  d.strides[1] = x.batch > 1 ? static_cast<std::uint64_t>(x.scale_batch_stride) * 4
                             : d.sizes[1] * d.strides[0];
  d.box[0] = rows_inner ? box_rows : kScaleChunk;
  d.box[1] = rows_inner ? kScaleChunk : box_rows;
  d.box[2] = 1;
  d.element_strides[0] = d.element_strides[1] = d.element_strides[2] = 1;
  return d;
}

/// The maps of scales that are copied.
void set_scales(Fp8GemmLaunch& launch, const GemmArguments& x, const Fp8GemmConfig& config) {
  if (x.a.k == 0) return;
  const std::uint32_t b_rows = x.b.layout == ScaleLayout::mn_major
                                   ? kBoxRowsB
                                   : static_cast<std::uint32_t>(row_scales_of(config));
  launch.a_scales = map_of_scales(x.a, static_cast<std::uint32_t>(config.rows));
  launch.b_scales = map_of_scales(x.b, b_rows);
  launch.params.b_chunk_bytes = b_rows * kScaleChunk * 4;
}

template <class View>
EpilogueMatrix matrix_of(const View& x) {
  EpilogueMatrix m;
  m.data = static_cast<std::uint8_t*>(const_cast<void*>(static_cast<const void*>(x.data)));
  m.dtype = x.dtype;
  m.row_stride = x.row_stride;
  m.batch_stride = x.batch > 1 ? x.batch_stride : 0;
  return m;
}

/// Whether tensor copies can write D: all rows begin and end at multiples of 16 bytes.
bool takes_boxes(const MutableMatrixView& d) {
  const std::int64_t size = format_traits(d.dtype).bits / 8;
  return reinterpret_cast<std::uintptr_t>(d.data) % 16 == 0 && d.columns * size % 16 == 0 &&
         (d.rows <= 1 || d.row_stride * size % 16 == 0) &&
         (d.batch <= 1 || d.batch_stride * size % 16 == 0);
}

TensorMapDescription map_of_results(const MutableMatrixView& x, const Fp8GemmConfig& config) {
  const auto size = static_cast<std::uint64_t>(format_traits(x.dtype).bits / 8);
  const auto columns = static_cast<std::uint64_t>(x.columns);
  const auto rows = static_cast<std::uint64_t>(x.rows);
  const auto bytes = static_cast<std::uint32_t>(store_bytes_of(config));
  TensorMapDescription d;
  d.address = reinterpret_cast<std::uint64_t>(x.data);
  d.rank = 3;
  d.element = size == 4 ? TensorMapElement::u32 : TensorMapElement::u16;
  d.sizes[0] = columns;
  d.sizes[1] = rows;
  d.sizes[2] = static_cast<std::uint64_t>(x.batch);
  // Strides that are never used may break TMA's rules.
  d.strides[0] = (x.rows > 1 ? static_cast<std::uint64_t>(x.row_stride) : columns) * size;
  d.strides[1] =
      x.batch > 1 ? static_cast<std::uint64_t>(x.batch_stride) * size : rows * d.strides[0];
  d.box[0] = bytes / static_cast<std::uint32_t>(size);
  d.box[1] = 16;
  d.box[2] = 1;
  d.element_strides[0] = d.element_strides[1] = d.element_strides[2] = 1;
  d.swizzle = bytes == 128 ? TensorMapSwizzle::bytes_128 : TensorMapSwizzle::bytes_64;
  return d;
}

LinearEpilogue epilogue_of(const GemmArguments& x) {
  LinearEpilogue e;
  if (!x.quantized) {
    e.d = matrix_of(x.d);
    e.d.boxes = takes_boxes(x.d);
  }
  if (x.beta != 0) e.c = matrix_of(x.c);
  e.bias.data = static_cast<std::uint8_t*>(const_cast<void*>(x.bias));
  e.bias.dtype = x.bias_dtype;
  e.alpha_factor = x.alpha_factor;
  e.alpha = x.alpha;
  e.beta = x.beta;
  e.keeps_sums = x.alpha_factor == nullptr && x.alpha == 1 && x.beta == 0 && x.bias == nullptr;
  e.rows = static_cast<std::uint32_t>(x.d.rows);
  e.columns = static_cast<std::uint32_t>(x.d.columns);
  return e;
}

int kernel_of(const Fp8GemmConfig& config) {
  for (int i = 0; i < kFp8GemmKernels.kCount; ++i) {
    const Fp8GemmConfig& c = kFp8GemmKernels.at[i];
    if (c.rows == config.rows && c.columns == config.columns && c.promotion == config.promotion &&
        c.quantizes == config.quantizes && c.copies_scales == config.copies_scales) {
      return i;
    }
  }
  return -1;
}

/// `data` and so many bytes more: in integers, as a workspace that is not known yet is null.
template <class T>
T* byte_at(T* data, std::int64_t offset) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) +
                              static_cast<std::uintptr_t>(offset));
}

/// Has `x` copied to the plan's workspace.
void align(ScaledTensorView& x, void* workspace, const cuda::Chip& chip, Fp8GemmPlan& plan) {
  OperandCopy& copy = plan.copies[plan.copy_count++];
  AlignRowsParams& p = copy.params;
  p.from = static_cast<const std::uint8_t*>(x.values);
  p.to = static_cast<std::uint8_t*>(byte_at(workspace, plan.workspace_bytes));
  p.from_row_stride = x.value_row_stride;
  p.from_batch_stride = x.value_batch_stride;
  p.rows = x.rows;
  p.batch = x.batch;
  p.bytes = x.k;
  constexpr std::int64_t kRowsOfBlock = kAlignRowsThreads / 32;
  constexpr std::int64_t kBlocksOfMultiprocessor = 8;
  copy.shape.grid = {static_cast<std::uint32_t>(
      std::min(ceil_div(x.rows * x.batch, kRowsOfBlock),
               kBlocksOfMultiprocessor * std::int64_t{chip.multiprocessors}))};
  copy.shape.block = {kAlignRowsThreads};
  copy.shape.programmatic_dependent_launch = true;
  x.values = p.to;
  x.value_row_stride = p.to_row_stride();
  x.value_batch_stride = x.rows * x.value_row_stride;
  plan.workspace_bytes += x.batch * x.value_batch_stride;
}

/// The kernel of a choice.
Fp8GemmConfig config_of(const Fp8GemmSize& size, const Fp8GemmChoice& c) {
  return {c.rows, c.columns, size.promotion, size.quantized_columns != 0,
          size.copies_scales(c.rows, c.columns, c.split)};
}

/// The maps of the operands, and how many bytes their boxes bring.
void set_operands(Fp8GemmLaunch& launch, const GemmArguments& x, const Fp8GemmSize& size) {
  const Fp8GemmChoice& c = launch.choice;
  Fp8GemmParams& p = launch.params;
  const auto a_rows = static_cast<std::uint32_t>(a_rows_of(size, c));
  const auto b_rows = static_cast<std::uint32_t>(c.columns);
  p.a_bytes = p.a_last_bytes = a_rows * kFp8BlockK;
  p.b_bytes = p.b_last_bytes = b_rows * kFp8BlockK;
  if (x.a.k == 0) return;
  launch.a = map_of(x.a, a_rows);
  // Boxes that are as high as what is left.
  const auto last_of = [](std::int64_t rows, std::uint32_t tiles, int of_tile) {
    return static_cast<std::uint32_t>(ceil_div(rows - (tiles - 1) * std::int64_t{of_tile}, 8) * 8);
  };
  if (const std::uint32_t last = last_of(x.a.rows, p.order.tiles_m, c.rows); last < a_rows) {
    launch.a_last = map_of(x.a, last);
    p.a_last_bytes = last * kFp8BlockK;
  }
  if (x.quantized) {
    launch.b = map_of(rows_of_run(x.b, p.runs, 0), kRunColumns);
    launch.b_second = map_of(rows_of_run(x.b, p.runs, 1), kRunColumns);
  } else {
    launch.b = map_of(x.b, b_rows);
    if (const std::uint32_t last = last_of(x.b.rows, p.order.tiles_n, c.columns); last < b_rows) {
      launch.b_second = map_of(x.b, last);
      p.b_last_bytes = last * kFp8BlockK;
    }
  }
}

/// Tile rows of a group of TileOrder: as many rows as 1.5 MiB of A are, from 512, which are best
/// where K is long, by up to a fifth in products of a millisecond and more, to 2048, which are
/// where it is short (docs/log/gemm-sm90.md, version 77).
std::uint32_t group_rows_of(std::int64_t k, int tile_rows) {
  constexpr std::uint64_t kBytesOfA = std::uint64_t{3} << 19;
  const auto row_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(1, k));
  const auto rows = std::clamp<std::uint64_t>(std::bit_floor(kBytesOfA / row_bytes), 512, 2048);
  const auto tile = static_cast<std::uint64_t>(tile_rows);
  return static_cast<std::uint32_t>((rows + tile / 2) / tile);
}

/// The launch of a product, or of some of its columns (`size`; where D is quantized, from column
/// `first` on), by `choice`.
Fp8GemmLaunch launch_of(const GemmArguments& x, const Fp8GemmSize& size, const Fp8GemmChoice& c,
                        std::int64_t first, const cuda::Chip& chip) {
  const Fp8GemmConfig config = config_of(size, c);
  Fp8GemmLaunch launch;
  launch.choice = c;
  launch.kernel = kernel_of(config);
  if (launch.kernel < 0) {
    checks::fail("choice", "",
                 "has a tile of " + std::to_string(c.rows) + " x " + std::to_string(c.columns) +
                     "; there is no such kernel");
  }
  if (c.split > 1 && size.parts() > 1) {
    checks::fail("choice", "",
                 "divides K among " + std::to_string(c.split) +
                     " blocks; results of two tiles are not divided");
  }
  if (c.split > 1 && config.rows == 192) {
    checks::fail("choice", "",
                 "divides K among " + std::to_string(c.split) +
                     " blocks; tiles of 192 rows are not divided");
  }
  Fp8GemmParams& p = launch.params;
  p.a_scales = scales_of_operand(x.a);
  p.b_scales = scales_of_operand(x.b);
  check_scales(p.a_scales, x.a, "a");
  check_scales(p.b_scales, x.b, "b");
  p.epilogue = epilogue_of(x);
  if (x.quantized) {
    p.quantize = quantizing_epilogue(x);
    p.quantize.takes_sums = p.epilogue.keeps_sums && p.quantize.activation == Activation::none;
    p.runs = tile_runs(x);
    p.log2_parts = static_cast<std::uint32_t>(std::countr_zero(unsigned(size.parts())));
    p.first_n = static_cast<std::uint32_t>(first / size.quantized_columns);
  }
  p.order = TileOrder(static_cast<std::uint32_t>(ceil_div(x.d.rows, c.rows)),
                      static_cast<std::uint32_t>(ceil_div(size.n, c.columns * size.parts())),
                      static_cast<std::uint32_t>(x.d.batch), group_rows_of(x.a.k, c.rows));
  p.split = Divisor(c.split);
  p.k_blocks = static_cast<std::uint32_t>(ceil_div(x.a.k, kFp8BlockK));
  p.split_blocks = static_cast<std::uint32_t>(ceil_div(p.k_blocks, c.split));
  p.stages = c.stages;
  p.a_batched = x.a.batch > 1;
  p.b_batched = x.b.batch > 1;
  p.b_once = p.order.tiles_m == 1 && x.b.batch == x.d.batch;
  if (p.epilogue.d.boxes) launch.d = map_of_results(x.d, config);
  if (config.copies_scales) set_scales(launch, x, config);
  set_operands(launch, x, size);
  launch.shape.grid = {grid_of(size, c, chip)};
  launch.shape.block = {static_cast<std::uint32_t>(threads_of(config))};
  launch.shape.cluster = {c.split};
  launch.shape.dynamic_shared_bytes = memory_of(config, c.stages, c.split).total;
  launch.shape.programmatic_dependent_launch = true;
  return launch;
}

/// `count` columns of a product from `first` on, a multiple of kFp8BlockK; all where D is
/// quantized.
GemmArguments columns_of(GemmArguments x, std::int64_t first, std::int64_t count) {
  if (x.quantized) return x;
  const auto cut = [&](auto& matrix) {
    matrix.data = byte_at(matrix.data, first * (format_traits(matrix.dtype).bits / 8));
    matrix.columns = count;
  };
  const GemmScales scales = scales_of_operand(x.b);
  x.b.values = byte_at(x.b.values, first * x.b.value_row_stride);
  x.b.scales = byte_at(
      x.b.scales, scales.row_offset(static_cast<std::uint32_t>(first)) * (scales.bytes ? 1 : 4));
  x.b.rows = count;
  cut(x.d);
  if (x.beta != 0) cut(x.c);
  if (x.bias != nullptr) x.bias = byte_at(x.bias, first * (format_traits(x.bias_dtype).bits / 8));
  return x;
}

/// Whether the kernel for one row computes the product: it has no form for scales of single rows of
/// B, adds in another order than tiles, and is no faster where K is short.
bool takes_row_kernel(const GemmArguments& x, const Fp8GemmSize& size) {
  constexpr std::int64_t kLeastK = 4096;
  constexpr std::int64_t kMostK = std::int64_t{1} << 16;  // as shared memory holds A
  constexpr std::int64_t kMostBatch = 65535;              // of a grid
  return size.m == 1 && size.promotion == Promotion::blocks && !x.batch_invariant && !x.quantized &&
         size.k >= kLeastK && size.k <= kMostK && size.k % 16 == 0 && size.batch <= kMostBatch;
}

Fp8RowLaunch row_launch_of(const GemmArguments& x, const Fp8GemmSize& size) {
  // A warp that has fewer k-blocks spends its time on beginning and ending.
  constexpr std::int64_t kLeastBlocks = 7;
  const std::int64_t k_blocks = ceil_div(size.k, kFp8BlockK);
  Fp8RowLaunch launch;
  Fp8RowParams& p = launch.params;
  std::uint32_t divisions = 1;
  while (divisions < kFp8RowWarps && k_blocks >= 2 * divisions * kLeastBlocks) divisions *= 2;
  p.a = static_cast<const std::uint8_t*>(x.a.values);
  p.b = static_cast<const std::uint8_t*>(x.b.values);
  p.a_batch_stride = x.a.batch > 1 ? x.a.value_batch_stride : 0;
  p.b_batch_stride = x.b.batch > 1 ? x.b.value_batch_stride : 0;
  p.b_row_stride = x.b.value_row_stride;
  p.a_scales = scales_of_operand(x.a);
  p.b_scales = scales_of_operand(x.b);
  p.epilogue = epilogue_of(x);
  p.k = static_cast<std::uint32_t>(size.k);
  p.division_shift = static_cast<std::uint32_t>(std::countr_zero(divisions));
  p.part_blocks = static_cast<std::uint32_t>(ceil_div(k_blocks, std::int64_t{divisions}));
  const std::uint32_t rows = kFp8RowWarps / divisions * kFp8RowWarpRows;
  launch.shape.grid = {static_cast<std::uint32_t>(ceil_div(size.n, std::int64_t{rows})),
                       static_cast<std::uint32_t>(size.batch)};
  launch.shape.block = {32 * kFp8RowWarps};
  launch.shape.dynamic_shared_bytes =
      fp8_row::memory_of(static_cast<std::uint32_t>(k_blocks)).total;
  launch.shape.programmatic_dependent_launch = true;
  return launch;
}

std::string text_of(const Fp8RowLaunch& launch) {
  const std::uint32_t divisions = 1u << launch.params.division_shift;
  return "gemm_fp8_one_row: " + std::to_string(kFp8RowWarps / divisions * kFp8RowWarpRows) +
         " rows of B a block, K divided among " + std::to_string(divisions) + " warps; " +
         std::to_string(launch.shape.grid.x) + " x " + std::to_string(launch.shape.block.x) +
         " threads, " + std::to_string(launch.shape.dynamic_shared_bytes) + " bytes shared";
}

std::string text_of(const Fp8GemmLaunch& launch) {
  const Fp8GemmParams& p = launch.params;
  const Fp8GemmChoice& c = launch.choice;
  std::string text = fp8_gemm_kernel_name(kFp8GemmKernels.at[launch.kernel]) + ": " +
                     std::to_string(p.order.tiles << p.log2_parts) + " tiles of " +
                     std::to_string(c.rows) + " x " + std::to_string(c.columns) + ", " +
                     std::to_string(p.k_blocks) + " blocks of K";
  if (c.split > 1) {
    text += " divided among " + std::to_string(c.split) + " blocks of a cluster";
  }
  text += "; " + std::to_string(launch.shape.grid.x) + " x " +
          std::to_string(launch.shape.block.x) + " threads, " + std::to_string(c.per_sm) +
          " a multiprocessor, " + std::to_string(c.stages) + " stages, " +
          std::to_string(launch.shape.dynamic_shared_bytes) + " bytes shared";
  if (kFp8GemmKernels.at[launch.kernel].quantizes) {
    if (p.log2_parts != 0) text += ", two tiles a result";
    text += p.quantize.vectors ? ", stored by vectors" : ", stored by bytes";
  } else {
    text += p.epilogue.d.boxes ? ", stored as boxes" : ", stored by elements";
  }
  if (kFp8GemmKernels.at[launch.kernel].copies_scales) text += ", scales copied";
  if (p.b_once) text += ", B read once";
  return text;
}

}  // namespace

Fp8GemmSize size_of(const GemmArguments& x) {
  const RecipeTraits& b = recipe_traits(x.b.recipe);
  Fp8GemmSize size;
  size.m = x.d.rows;
  size.n = x.d.columns;
  size.k = x.a.k;
  size.batch = x.d.batch;
  size.promotion =
      b.block_rows == 0 || b.block_rows == 128 ? Promotion::blocks : Promotion::columns;
  size.may_cut = x.quantized || !is_swizzled(x.b.layout);
  if (x.quantized) {
    size.quantized_columns = quantized_columns(x);
    const bool one_scale = b.block_rows == 0;
    if (!one_scale && !runs_fit_blocks(tile_runs(x))) size.promotion = Promotion::columns;
  }
  size.may_split = !x.batch_invariant;
  size.may_copy_scales = takes_copied_scales(x.a, 1) && takes_copied_scales(x.b, kFp8BlockK);
  return size;
}

Fp8GemmPlan plan_fp8_gemm(const GemmArguments& validated, const cuda::Chip& chip,
                          const std::optional<Fp8GemmChoice>& choice, void* workspace) {
  GemmArguments x = validated;
  check_operand(x.a, "a");
  check_operand(x.b, "b");
  check_size("d.rows", x.d.rows);
  check_size("d.columns", x.d.columns);
  check_size("a.k", x.a.k);
  check_size("d.batch", x.d.batch);
  check_chip(chip);
  Fp8GemmPlan plan;
  plan.architecture = chip.architecture;
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return plan;
  if (ceil_div(x.d.rows, 64) * ceil_div(x.d.columns, 32) > kMostElements / x.d.batch - 1) {
    throw Error(ErrorCode::unsupported, "d", "has 2^31 tiles of 64 x 32 or more");
  }
  for (ScaledTensorView* const operand : {&x.a, &x.b}) {
    if (x.a.k == 0 || fits_tma(*operand)) continue;
    align(*operand, workspace, chip, plan);
  }
  const Fp8GemmSize size = size_of(x);
  if (!choice && takes_row_kernel(x, size)) {
    plan.row = row_launch_of(x, size);
    plan.expected_seconds = expected_row_seconds(size);
    return plan;
  }
  Fp8GemmDivision division;
  if (choice) {
    division = {size.n, *choice, {}, expected_seconds(size, *choice, chip)};
  } else {
    division = divide_fp8_gemm(size, chip);
  }
  plan.expected_seconds = division.expected_seconds;
  plan.quantization = text_of_quantization(x);
  plan.batch_invariant = x.batch_invariant;
  if (x.batch_invariant) {
    Fp8GemmSize any = size;
    any.may_split = true;
    plan.batch_invariant_seconds =
        plan.expected_seconds - divide_fp8_gemm(any, chip).expected_seconds;
  }
  const auto add = [&](std::int64_t first, std::int64_t count, const Fp8GemmChoice& c) {
    Fp8GemmSize part = size;
    part.n = count;
    if (first != 0) part.may_copy_scales = false;  // they begin where a box may not
    plan.launches[plan.count++] = launch_of(columns_of(x, first, count), part, c, first, chip);
    plan.columns[plan.count - 1] = count;
  };
  add(0, division.columns, division.first);
  if (division.rest) {
    add(division.columns, size.n - division.columns, *division.rest);
    plan.launches[1].params.is_beside = true;
  }
  return plan;
}

std::string Fp8GemmPlan::str() const {
  if (count == 0 && !row) return "nothing to do: D has no element\n";
  std::string text;
  for (std::size_t i = 0; i < copy_count; ++i) {
    text += "a copy of " + std::to_string(copies[i].params.rows * copies[i].params.batch) +
            " rows that begin at no multiple of 16 bytes\n";
  }
  text += row ? text_of(*row) : text_of(launches[0]);
  if (count == 2) {
    text += "\nbeside its last wave the other " + std::to_string(columns[1]) + " columns by " +
            text_of(launches[1]);
  }
  char expected[64];
  std::snprintf(expected, sizeof expected, "; %.1f us expected\n", expected_seconds * 1e6);
  text += quantization + expected;
  if (batch_invariant) {
    std::snprintf(expected, sizeof expected, "%.1f us", batch_invariant_seconds * 1e6);
    text += "batch-invariant: K is not divided, which is expected to cost " +
            std::string(expected) + "\n";
  }
  return text + "workspace " + std::to_string(workspace_bytes) + " bytes\n";
}

std::string fp8_gemm_kernel_name(const Fp8GemmConfig& c) {
  return "gemm_fp8_" + std::to_string(c.rows) + "x" + std::to_string(c.columns) +
         (c.promotion == Promotion::blocks ? "_blocks" : "_columns") +
         (c.quantizes ? "_quantized" : "") + (c.copies_scales ? "_copied" : "");
}

std::vector<runtime::KernelSpec> fp8_gemm_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (const Fp8GemmConfig& c : kFp8GemmKernels.at) {
    specs.push_back(runtime::with_parameters<Fp8GemmParams>(
        {.name = fp8_gemm_kernel_name(c),
         .header = "ops/gemm/kernels/sm90/fp8_entry.cuh",
         .call = "blockscale::fp8_gemm_kernel<blockscale::Fp8GemmConfig{" + std::to_string(c.rows) +
                 ", " + std::to_string(c.columns) + ", blockscale::Promotion(" +
                 std::to_string(static_cast<int>(c.promotion)) + ")" +
                 (c.quantizes ? ", true" : ", false") + (c.copies_scales ? ", true" : ", false") +
                 "}>",
         .threads = threads_of(c),
         .min_blocks_per_multiprocessor = blocks_per_multiprocessor(c)},
        "blockscale::Fp8GemmParams"));
  }
  specs = runtime::for_architectures(specs, kWgmmaArchitectures);
  const std::vector<runtime::KernelSpec> others = {
      runtime::with_parameters<AlignRowsParams>({.name = "gemm_align_rows",
                                                 .header = "ops/gemm/kernels/align_rows.cuh",
                                                 .call = "blockscale::align_rows_kernel",
                                                 .threads = kAlignRowsThreads},
                                                "blockscale::AlignRowsParams"),
      runtime::with_parameters<Fp8RowParams>(
          {.name = "gemm_fp8_one_row",
           .header = "ops/gemm/kernels/fp8_one_row.cuh",
           .call = "blockscale::fp8_row_kernel",
           .threads = 32 * kFp8RowWarps,
           .min_blocks_per_multiprocessor = kFp8RowBlocksPerMultiprocessor},
          "blockscale::Fp8RowParams")};
  for (runtime::KernelSpec& spec : runtime::for_architectures(others, kAnyArchitectures)) {
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace blockscale::gemm_detail
