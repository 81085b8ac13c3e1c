// What the parts of `gemm`, random matrices, groups of them and a checkpoint's layers, share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockscale/gemm.h"
#include "blockscale/quantize.h"
#include "exit_code.h"
#include "output.h"

namespace blockscale::cli {

/// What becomes of D on its way to the next product.
struct QuantizedTo {
  std::optional<Recipe> recipe;                         // none: D is stored in its dtype
  InputTransform transform = InputTransform::identity;  // before that: GELU, SiLU or SwiGLU

  /// Columns of D where B has `n` rows.
  std::int64_t columns(std::int64_t n) const {
    return transform == InputTransform::swiglu ? n / 2 : n;
  }

  QuantizeInput input() const;
};

/// Sets "dtype", or "to" where D is quantized, and "transform" where there is one or D is
/// quantized.
void name_result(Format dtype, const QuantizedTo& to, Json& json);

/// The transforms that may stand between a product and its quantization.
InputTransform parse_product_transform(const std::string& name);
void add_product_transform(CLI::App& command, QuantizedTo& to);
/// --to, which goes without --dtype, and --transform.
void add_quantized_options(CLI::App& command, CLI::Option* dtype, QuantizedTo& to);

/// --repeats and --device.
void add_timing(CLI::App& command, int& repeats, bool& cuda);
/// From 1 to `most`.
int parse_count(const std::string& text, int most);

/// --groups: a product of groups of rows.
struct Groups {
  std::int64_t count = 0;
  std::int64_t rows = 0;  // of each, on average
};
/// "32x20": so many groups x rows.
Groups parse_groups(const std::string& text);

struct GemmCommand {
  std::optional<std::int64_t> m;
  std::optional<std::int64_t> n;
  std::optional<std::int64_t> k;
  std::optional<Recipe> recipe_a;
  std::optional<Recipe> recipe_b;
  Format output_dtype = Format::f32;
  QuantizedTo to;
  std::optional<Groups> groups;  // in place of m
  int threads = 0;
  int repeats = 5;
  int samples = 1024;
  std::string weights;                // --weights: a checkpoint, in place of n and k
  std::string reference;              // whose values are the true ones; empty: those of `weights`
  std::vector<std::string> selected;  // patterns; empty: all linear layers
  bool baselines = false;
  bool cuda = false;
  bool json = false;
};

/// [rows, columns] of f32 from the standard normal distribution; the same for the same seed,
/// whatever the number of threads.
std::vector<float> random_normal(std::int64_t rows, std::int64_t columns, std::uint64_t seed,
                                 int threads);

/// `x`, a matrix or a batch, in `recipe`, plain ones included, with packed row-major scales.
ScaledTensor in_recipe(const MatrixView& x, Recipe recipe, int threads);

/// A product of random normal operands, in memory; D has some too where it is quantized. Throws as
/// check_gemm_memory does.
class RandomProduct {
 public:
  RandomProduct(std::int64_t m, std::int64_t n, std::int64_t k, Recipe a, Recipe b, Format d,
                const QuantizedTo& to, int threads);

  const GemmArguments& arguments() const { return arguments_; }

 private:
  ScaledTensor a_, b_, d_, quantized_;
  GemmArguments arguments_;
};

struct GemmTime {
  double fastest = 0;  // seconds
  double median = 0;
  double quartiles[2] = {};
};
/// Of run(0), which is not counted, and then run(1) to run(repeats).
GemmTime time_runs(const std::function<void(std::size_t)>& run, int repeats);
/// Runs the products in turns, one a run: one run to warm up, then `repeats`.
GemmTime time_gemm(std::span<const GemmArguments> products, int threads, int repeats);

/// Throws invalid_argument if random operands of these sizes would not fit into the memory that is
/// free: better than to be killed half way.
void check_gemm_memory(std::int64_t m, std::int64_t n, std::int64_t k,
                       std::int64_t copied_bytes = 0);

/// The same of `needed` bytes for `argument`.
void check_memory(double needed, const char* argument);

double gemm_gflops(std::int64_t m, std::int64_t n, std::int64_t k, double seconds);

/// Where a command multiplies, for people and for JSON.
struct GemmPlace {
  std::string text;
  Json json;
};
GemmPlace place_of(bool cuda, int threads);

/// Lines of the report, and what JSON has in their place.
std::string time_text(bool cuda, int repeats, const GemmTime& time, double gflops,
                      const std::string& where);
std::string check_text(const GemmCheck& check);
Json check_json(const GemmCheck& check);
/// The exit code of a command's result that passed its check or, with a word on standard error, did
/// not.
ExitCode exit_code_of(const char* command, bool passed, const char* failure);

ExitCode run_gemm_weights(const GemmCommand& command);
ExitCode run_gemm_groups(const GemmCommand& command);

}  // namespace blockscale::cli
