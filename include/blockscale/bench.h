// Benchmarks of the library's operations on this machine, as data: `blockscale bench` prints them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/error.h"
#include "blockscale/gemm.h"
#include "blockscale/grouped_gemm.h"
#include "blockscale/moe.h"
#include "blockscale/quantize.h"
#include "blockscale/tensor.h"
#include "core/input_transform.h"

namespace blockscale {

struct QuantizeBenchmarkOptions {
  std::vector<Recipe> recipes;       // empty: every recipe but the plain ones
  std::vector<Format> dtypes;        // of the input; empty: bf16 only
  std::vector<ScaleLayout> layouts;  // empty: the layout most kernels read (swizzled_128x4 where
                                     // the recipe allows it, else row_major)
  std::vector<InputTransform> transforms;  // fused inputs; empty: identity only
  /// Of MX and NVFP4; the others are always measured with `amax`. Weights of `weighted` are 1.
  ScaleChoice scale_choice = ScaleChoice::amax;
  std::int64_t rows = 8192;  // inputs above the last-level cache measure memory, not cache
  std::int64_t k = 8192;     // columns of what is quantized
  int threads = 1;           // 0: all of the machine's
  int repeats = 5;           // timed runs of each case and of memcpy; the fastest counts
};

/// One case. memcpy is measured in the same run: as many threads, rows * k elements of the dtype.
struct QuantizeBenchmarkRow {
  Recipe recipe = Recipe::f32;
  Format dtype = Format::bf16;
  ScaleLayout layout = ScaleLayout::row_major;
  InputTransform transform = InputTransform::identity;
  int threads = 1;
  double seconds = 0;
  double median_seconds = 0;
  double quartile_seconds[2] = {};
  double input_gb_per_second = 0;  // 1e9 bytes of input (of `dequantize`: of the result) a second
  double bytes_per_second = 0;     // bytes read + written; nvfp4 and fp8_tensor read their input
                                   // twice, which counts
  double memcpy_share = 0;         // bytes_per_second over memcpy's (read + written too)
};

/// Times `quantize` on random finite inputs, outputs touched beforehand. Cases whose layout the
/// recipe does not allow are left out. Throws invalid_argument for sizes that a recipe cannot hold.
std::vector<QuantizeBenchmarkRow> benchmark_quantize(const QuantizeBenchmarkOptions& options);

/// The same of `dequantize` into matrices of `dtypes`. Throws invalid_argument for transforms too.
std::vector<QuantizeBenchmarkRow> benchmark_dequantize(const QuantizeBenchmarkOptions& options);

/// Bytes a second, read + written, that memcpy of `bytes` bytes moves on `threads` threads (0:
/// all): the fastest of `repeats`. Throws invalid_argument for sizes outside 1..2^40, or no repeat.
double benchmark_copy(std::int64_t bytes, int threads = 1, int repeats = 5);

/// Arguments of a product in memory that does not exist, for describe_gemm, cuda::describe_gemm and
/// gemm_work.
/// Its result is of type `d` or, with `to`, quantized, behind `input`.
GemmArguments imagined_gemm(std::int64_t m, std::int64_t n, std::int64_t k, Recipe a, Recipe b,
                            Format d, std::int64_t batch = 1, std::optional<Recipe> to = {},
                            const QuantizeInput& input = {});

/// The same of a product of groups, which have `rows` rows together, for describe_grouped_gemm and
/// cuda::describe_grouped_gemm.
GroupedGemmArguments imagined_grouped_gemm(std::int64_t groups, std::int64_t rows, std::int64_t n,
                                           std::int64_t k, Recipe a, Recipe b, Format d,
                                           const QuantizeInput& input = {});

/// The same of a layer of `experts` that are here, whose x is bf16, for describe_moe and
/// cuda::describe_moe. Both weights are of one recipe; `inner` is I.
MoeArguments imagined_moe(std::int64_t tokens, std::int64_t hidden, std::int64_t inner,
                          std::int64_t experts, int top_k, Recipe weights, Format y,
                          const QuantizeInput& transform = Swiglu{},
                          std::optional<Recipe> activations = {});

/// What a CPU product multiplies with: f32; pairs of bf16, summed in f32; four bytes, summed in 32
/// bits; pairs of bf16 in AMX's tiles.
enum class Multiplier : std::uint8_t { f32, bf16, int8, tiles };
inline constexpr int kMultiplierCount = 4;
inline constexpr const char* kMultiplierNames[kMultiplierCount] = {"f32", "bf16", "int8", "tiles"};

/// The most that this CPU does, by the instruction set in use: what products are bound by.
struct CpuPeaks {
  int threads = 1;
  double read_bytes_per_second = 0;  // of memory beyond all caches
  /// By Multiplier; multiplications and additions. 0 where there is no such instruction.
  double operations_per_second[kMultiplierCount] = {};
};
/// The fastest of `repeats` of each, which takes a second and 513 MiB. Throws invalid_argument for
/// no repeat, or fewer than 0 threads (0: all).
CpuPeaks measure_cpu_peaks(int threads = 1, int repeats = 5);

/// What a product takes at least: A, B and D in memory, each once, and 2 M N K.
struct GemmWork {
  std::int64_t bytes = 0;
  double operations = 0;
  Multiplier multiplier = Multiplier::f32;
};
/// Throws as `gemm` does.
GemmWork gemm_work(const GemmArguments& arguments);
/// The same of a layer: x, y and the weights of the experts that have rows, each once; the two
/// products of all rows; and what the first one multiplies with. Reads ids. Throws as `moe` does.
GemmWork moe_work(const MoeArguments& arguments);
/// The longer of the two times that the work takes: its roofline.
double bound_seconds(const GemmWork& work, const CpuPeaks& peaks);

namespace cuda {

struct QuantizeBenchmarkOptions {
  std::vector<Recipe> recipes;             // as above
  std::vector<Format> dtypes;              // as above
  std::vector<ScaleLayout> layouts;        // empty: every one that the recipe allows
  std::vector<InputTransform> transforms;  // fused inputs; empty: identity only
  std::vector<std::int64_t> input_bytes;   // empty: 1, 8, 64 and 512 MiB; at most 2^36 each
  std::int64_t k = 8192;                   // columns of what is quantized
  int repeats = 20;                        // timed replays of a graph; the median counts
};

/// What is measured: x has input_bytes, or a row.
struct QuantizeBenchmarkCase {
  Recipe recipe = Recipe::f32;
  Format dtype = Format::bf16;
  ScaleLayout layout = ScaleLayout::row_major;
  InputTransform transform = InputTransform::identity;
  std::int64_t rows = 0;
  std::int64_t k = 0;
};

/// One case. A copy kernel that moves as many bytes is timed in turns with it; both replay a graph
/// of calls on buffers that are together larger than three times the level-2 cache.
struct QuantizeBenchmarkRow : QuantizeBenchmarkCase {
  std::int64_t input_bytes = 0;
  std::int64_t moved_bytes = 0;  // read + written; the input counts twice where it is read twice
  double seconds = 0;
  double copy_seconds = 0;
  double dependent_copy_seconds = 0;  // of the copy launched as `quantize` launches its kernels
  double bytes_per_second = 0;        // moved_bytes over seconds
  double copy_share = 0;              // copy_seconds over seconds
};

struct QuantizeBenchmarkPlan : QuantizeBenchmarkCase {
  std::string plan;  // as cuda::describe_quantize says it
};

/// The plans of the cases that benchmark_quantize would time, in its order, on a chip, by default
/// that of describe_quantize: needs no GPU and no memory. Throws invalid_argument for options that
/// are not allowed, and as cuda::describe_quantize does.
std::vector<QuantizeBenchmarkPlan> describe_benchmark(const QuantizeBenchmarkOptions& options,
                                                      const Chip& chip = default_chip());

/// Times cuda::quantize on the current device, in a stream of its own and on random normal inputs,
/// in memory that it frees in the end. Throws as cuda::quantize does.
std::vector<QuantizeBenchmarkRow> benchmark_quantize(const QuantizeBenchmarkOptions& options);

/// Seconds of cuda::gemm on the current device, of arguments in host memory, which are copied there
/// as often as is needed to find caches cold: the median of `repeats` replays of a graph. Leaves
/// the product in d, or in quantized.out. Throws as cuda::gemm does, and invalid_argument for no
/// repeat.
double benchmark_gemm(const GemmArguments& arguments, int repeats = 20);

/// The same of cuda::grouped_gemm; `adds` is not allowed, as every replay would add.
double benchmark_grouped_gemm(const GroupedGemmArguments& arguments, int repeats = 20);

/// The same of cuda::moe. Where all weights that a call reads may be in a cache, calls of the graph
/// name other experts in turn, each as often as `ids` does. Leaves y of `ids`.
double benchmark_moe(const MoeArguments& arguments, int repeats = 20);

struct GemmTuning {
  std::size_t tried = 0;       // choices: tile, stages, division of K
  double planned_seconds = 0;  // as the plan would have it that nothing was tuned for
  double best_seconds = 0;     // by the best choice
  std::string kept;            // that choice, where it is faster by 3 %; else nothing
  std::string path;            // of the file
};

/// Times a product by every choice that its plan has, as benchmark_gemm does, and keeps the best
/// one in the user's file, where `gemm` finds it in processes that begin later: for this chip, N, K
/// and batch, scales of B by blocks or by columns, and as many rows up to the next power of two.
/// Leaves D undefined. Throws as benchmark_gemm does; corrupt_file or io if the file cannot be read
/// or written.
GemmTuning tune_gemm(const GemmArguments& arguments, int repeats = 20);

}  // namespace cuda
}  // namespace blockscale
