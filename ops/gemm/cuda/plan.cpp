#include "ops/gemm/cuda/plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <limits>

#include "ops/common/checks.h"

namespace blockscale::gemm_detail {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 31;  // of a dimension: TMA's coordinates
constexpr std::uint32_t kSharedBytes = 227 * 1024;             // of a block
constexpr std::uint32_t kReservedBytes = 1024;                 // of each block, for the system
constexpr std::uint32_t kMultiprocessorBytes = 228 * 1024;

/// Clusters of so many blocks that an H200 holds at a time, one block a multiprocessor: measured,
/// but for 5 and 7, which lie between their neighbours.
constexpr std::array<std::uint32_t, 9> kResidentClusters = {0, 132, 66, 39, 30, 24, 17, 17, 15};

bool takes_block_scales(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  return t.block_rows == 0 || t.block_rows == 128;
}

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
  if (x.k > 0 && !fits_tma(x)) {
    throw Error(ErrorCode::unsupported, std::string(argument) + ".values",
                "begins at address " + std::to_string(reinterpret_cast<std::uintptr_t>(x.values)) +
                    " with rows " + std::to_string(x.value_row_stride) +
                    " bytes apart; both, and what is between matrices, must be multiples of 16");
  }
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
  e.d = matrix_of(x.d);
  e.d.boxes = takes_boxes(x.d);
  if (x.beta != 0) e.c = matrix_of(x.c);
  e.bias.data = static_cast<std::uint8_t*>(const_cast<void*>(x.bias));
  e.bias.dtype = x.bias_dtype;
  e.alpha_factor = x.alpha_factor;
  e.alpha = x.alpha;
  e.beta = x.beta;
  e.rows = static_cast<std::uint32_t>(x.d.rows);
  e.columns = static_cast<std::uint32_t>(x.d.columns);
  return e;
}

Fp8GemmConfig config_of(const Fp8GemmChoice& choice, Recipe b) {
  return {choice.rows, choice.columns,
          takes_block_scales(b) ? Promotion::blocks : Promotion::columns};
}

int kernel_of(const Fp8GemmConfig& config) {
  for (int i = 0; i < kFp8GemmKernels.kCount; ++i) {
    const Fp8GemmConfig& c = kFp8GemmKernels.at[i];
    if (c.rows == config.rows && c.columns == config.columns && c.promotion == config.promotion) {
      return i;
    }
  }
  return -1;
}

/// As many stages as fit, at most 16; 0 if fewer than 3 do.
std::uint32_t stages_that_fit(const Fp8GemmConfig& config, std::uint32_t split,
                              std::uint32_t per_sm) {
  const std::uint32_t bytes =
      std::min(kSharedBytes, kMultiprocessorBytes / per_sm - kReservedBytes);
  std::uint32_t stages = 16;
  while (stages > 0 && memory_of(config, stages, split).total > bytes) --stages;
  return stages < 3 ? 0 : stages;
}

std::uint32_t tiles_of(const GemmArguments& x, const Fp8GemmChoice& c) {
  return static_cast<std::uint32_t>(ceil_div(x.d.rows, c.rows) * ceil_div(x.d.columns, c.columns) *
                                    x.d.batch);
}

/// Rows of A in a box, a multiple of 8: to fill rows outside of A with zeros would take time.
std::int64_t a_rows_of(const GemmArguments& x, const Fp8GemmChoice& c) {
  return std::min<std::int64_t>(c.rows, ceil_div(x.d.rows, 8) * 8);
}

/// Clusters that run at a time.
std::uint32_t resident_clusters(const Fp8GemmChoice& c, int multiprocessors) {
  const auto sms = static_cast<std::uint32_t>(multiprocessors);
  const std::uint32_t clusters = kResidentClusters[c.split] * sms / 132;
  return std::max(1u, clusters * c.per_sm);
}

// A model of an H200, of few constants, fitted to what all choices took on the shapes of dense
// models (docs/log/gemm-sm90.md says how well).
constexpr double kLaunch = 3.6e-6;   // until the first products, and from the last ones on
constexpr double kMemory = 6.65e12;  // bytes a second
constexpr double kProducts = 6e12;   // multiply-adds a second of a multiprocessor
constexpr double kLoads = 96.6e9;    // bytes a second from L2 to a multiprocessor
constexpr double kStep = 0.03e-6;    // a k-block
constexpr double kStore = 1e-10;     // an element of a tile
constexpr double kSum = 6.5e-11;     // an element that a block of a cluster adds

double bytes_of(const GemmArguments& x) {
  return (double(x.a.rows) * double(x.a.k) + double(x.b.rows) * double(x.b.k) +
          double(x.d.rows) * double(x.d.columns) * 2) *
         double(x.d.batch);
}

/// Tiles run in waves, of which the last may leave multiprocessors with fewer blocks; what memory
/// delivers bounds them all.
double expected_seconds(const GemmArguments& x, const Fp8GemmChoice& c, int multiprocessors) {
  const double elements = double(c.rows) * c.columns;
  const double k_blocks = double(ceil_div(ceil_div(x.a.k, kFp8BlockK), c.split));
  const double block = std::max(elements * kFp8BlockK / kProducts,
                                double(a_rows_of(x, c) + c.columns) * kFp8BlockK / kLoads);
  const std::uint32_t resident = resident_clusters(c, multiprocessors);
  const std::uint32_t tiles = tiles_of(x, c);
  const auto wave = [&](double blocks_per_sm) {
    return k_blocks * (block * blocks_per_sm + kStep) + elements * kStore;
  };
  const std::uint32_t whole = tiles / resident;
  double waves = whole * wave(c.per_sm);
  if (const std::uint32_t rest = tiles % resident; rest != 0) {
    waves += wave(double(ceil_div(std::int64_t{rest} * c.split, multiprocessors)));
  }
  return kLaunch + (c.split - 1) * elements * kSum + std::max(waves, bytes_of(x) / kMemory);
}

}  // namespace

std::vector<Fp8GemmChoice> fp8_gemm_choices(const GemmArguments& x, int multiprocessors) {
  std::vector<Fp8GemmChoice> choices;
  const std::int64_t k_blocks = ceil_div(x.a.k, kFp8BlockK);
  for (int i = 0; i < kFp8GemmKernels.kCount; ++i) {
    const Fp8GemmConfig& config = kFp8GemmKernels.at[i];
    if (config.promotion != config_of({}, x.b.recipe).promotion) continue;
    const auto most_per_sm = static_cast<std::uint32_t>(blocks_per_multiprocessor(config));
    for (std::uint32_t per_sm = 1; per_sm <= most_per_sm; ++per_sm) {
      for (std::uint32_t split = 1; split <= 8; ++split) {
        if (split > 1 && (per_sm > 1 || split > k_blocks)) break;
        Fp8GemmChoice c = {config.rows, config.columns, 0, split, per_sm};
        c.stages = stages_that_fit(config, split, per_sm);
        if (c.stages == 0) continue;
        // A cluster computes one tile: more of them than run at a time wait.
        if (split > 1 && tiles_of(x, c) > resident_clusters(c, multiprocessors)) continue;
        choices.push_back(c);
      }
    }
  }
  return choices;
}

Fp8GemmPlan plan_fp8_gemm(const GemmArguments& x, int multiprocessors,
                          const std::optional<Fp8GemmChoice>& choice) {
  check_operand(x.a, "a");
  check_operand(x.b, "b");
  check_size("d.rows", x.d.rows);
  check_size("d.columns", x.d.columns);
  check_size("a.k", x.a.k);
  check_size("d.batch", x.d.batch);
  Fp8GemmPlan plan;
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return plan;
  if (ceil_div(x.d.rows, 64) * ceil_div(x.d.columns, 32) > kMostElements / x.d.batch - 1) {
    throw Error(ErrorCode::unsupported, "d", "has 2^31 tiles of 64 x 32 or more");
  }
  if (choice) {
    plan.choice = *choice;
  } else {
    double least = std::numeric_limits<double>::infinity();
    for (const Fp8GemmChoice& c : fp8_gemm_choices(x, multiprocessors)) {
      const double seconds = expected_seconds(x, c, multiprocessors);
      if (seconds >= least) continue;
      least = seconds;
      plan.choice = c;
    }
  }
  const Fp8GemmChoice& c = plan.choice;
  plan.expected_seconds = expected_seconds(x, c, multiprocessors);
  const Fp8GemmConfig config = config_of(c, x.b.recipe);
  plan.kernel = kernel_of(config);
  if (plan.kernel < 0) {
    checks::fail("choice", "",
                 "has a tile of " + std::to_string(c.rows) + " x " + std::to_string(c.columns) +
                     "; there is no such kernel");
  }
  Fp8GemmParams& p = plan.params;
  p.a_scales = scales_of_operand(x.a);
  p.b_scales = scales_of_operand(x.b);
  check_scales(p.a_scales, x.a, "a");
  check_scales(p.b_scales, x.b, "b");
  p.epilogue = epilogue_of(x);
  p.order = TileOrder(static_cast<std::uint32_t>(ceil_div(x.d.rows, c.rows)),
                      static_cast<std::uint32_t>(ceil_div(x.d.columns, c.columns)),
                      static_cast<std::uint32_t>(x.d.batch));
  p.k_blocks = static_cast<std::uint32_t>(ceil_div(x.a.k, kFp8BlockK));
  p.split_blocks = static_cast<std::uint32_t>(ceil_div(p.k_blocks, c.split));
  p.stages = c.stages;
  p.a_batched = x.a.batch > 1;
  p.b_batched = x.b.batch > 1;
  p.b_once = p.order.tiles_m == 1 && x.b.batch == x.d.batch;
  if (p.epilogue.d.boxes) plan.d = map_of_results(x.d, config);
  const auto a_rows = static_cast<std::uint32_t>(a_rows_of(x, c));
  const auto b_rows = static_cast<std::uint32_t>(c.columns);
  p.copied_bytes = (a_rows + b_rows) * kFp8BlockK;
  if (x.a.k > 0) {
    plan.a = map_of(x.a, a_rows);
    plan.b = map_of(x.b, b_rows);
  }
  const std::uint32_t clusters =
      c.split > 1 ? p.order.tiles : std::min(p.order.tiles, resident_clusters(c, multiprocessors));
  plan.shape.grid = {clusters * c.split};
  plan.shape.block = {static_cast<std::uint32_t>(threads_of(config))};
  plan.shape.cluster = {c.split};
  plan.shape.dynamic_shared_bytes = memory_of(config, c.stages, c.split).total;
  plan.shape.programmatic_dependent_launch = true;
  return plan;
}

std::string Fp8GemmPlan::str() const {
  if (kernel < 0) return "nothing to do: D has no element\n";
  char expected[64];
  std::snprintf(expected, sizeof expected, "; %.1f us expected\nworkspace 0 bytes\n",
                expected_seconds * 1e6);
  const Fp8GemmParams& p = params;
  std::string text = fp8_gemm_kernel_name(kFp8GemmKernels.at[kernel]) + ": " +
                     std::to_string(p.order.tiles) + " tiles of " + std::to_string(choice.rows) +
                     " x " + std::to_string(choice.columns) + ", " + std::to_string(p.k_blocks) +
                     " blocks of K";
  if (choice.split > 1) {
    text += " divided among " + std::to_string(choice.split) + " blocks of a cluster";
  }
  text += "; " + std::to_string(shape.grid.x) + " x " + std::to_string(shape.block.x) +
          " threads, " + std::to_string(choice.per_sm) + " a multiprocessor, " +
          std::to_string(choice.stages) + " stages, " + std::to_string(shape.dynamic_shared_bytes) +
          " bytes shared";
  text += p.epilogue.d.boxes ? ", stored as boxes" : ", stored by elements";
  if (p.b_once) text += ", B read once";
  return text + expected;
}

std::string fp8_gemm_kernel_name(const Fp8GemmConfig& c) {
  return "gemm_fp8_" + std::to_string(c.rows) + "x" + std::to_string(c.columns) +
         (c.promotion == Promotion::blocks ? "_blocks" : "_columns");
}

std::vector<runtime::KernelSpec> fp8_gemm_kernel_specs() {
  std::vector<runtime::KernelSpec> specs;
  for (const Fp8GemmConfig& c : kFp8GemmKernels.at) {
    specs.push_back(runtime::with_parameters<Fp8GemmParams>(
        {.name = fp8_gemm_kernel_name(c),
         .header = "ops/gemm/kernels/sm90/fp8_entry.cuh",
         .call = "blockscale::fp8_gemm_kernel<blockscale::Fp8GemmConfig{" + std::to_string(c.rows) +
                 ", " + std::to_string(c.columns) + ", blockscale::Promotion(" +
                 std::to_string(static_cast<int>(c.promotion)) + ")}>",
         .threads = threads_of(c),
         .min_blocks_per_multiprocessor = blocks_per_multiprocessor(c)},
        "blockscale::Fp8GemmParams"));
  }
  return specs;
}

}  // namespace blockscale::gemm_detail
