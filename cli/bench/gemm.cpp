// blockscale bench gemm: rates of products, next to what bounds them.
#include <spdlog/spdlog.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bench.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "output.h"
#include "products/gemm.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

struct BenchGemm {
  std::int64_t m = 512;
  std::int64_t n = 4096;
  std::int64_t k = 4096;
  std::vector<RecipePair> pairs;
  Format output_dtype = Format::bf16;
  QuantizedTo to;
  int threads = 1;
  int repeats = 3;
  bool cuda = false;
  bool plan = false;  // only how the work is divided
  std::string chip;   // on CUDA: where; empty: this machine's
  bool tune = false;  // on CUDA: keep what is faster than the plan
  BenchOutput output;
};

/// One pair of each kind that models use.
std::vector<RecipePair> usual_pairs() {
  return {{Recipe::f32, Recipe::f32},
          {Recipe::bf16, Recipe::bf16},
          {Recipe::fp8_tensor, Recipe::fp8_tensor},
          {Recipe::fp8_row, Recipe::fp8_row},
          {Recipe::fp8_1x128, Recipe::fp8_128x128},
          {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3},
          {Recipe::mxfp8_e4m3, Recipe::mxfp6_e2m3},
          {Recipe::mxfp8_e4m3, Recipe::mxfp4},
          {Recipe::mxfp4, Recipe::mxfp4},
          {Recipe::nvfp4, Recipe::nvfp4},
          {Recipe::bf16, Recipe::nvfp4}};
}

Json work_json(const GemmWork& work) {
  return {{"bytes", work.bytes},
          {"operations", work.operations},
          {"multiplier", kMultiplierNames[static_cast<int>(work.multiplier)]}};
}

ExitCode print_gemm_plans(const BenchGemm& command) {
  Json json = {{"m", command.m}, {"n", command.n}, {"k", command.k}, {"cases", Json::array()}};
  std::string text;
  for (const auto& [recipe_a, recipe_b] : command.pairs) {
    const GemmArguments arguments =
        imagined_gemm(command.m, command.n, command.k, recipe_a, recipe_b, command.output_dtype, 1,
                      command.to.recipe, command.to.input());
    const char* const name_a = recipe_traits(recipe_a).name;
    const char* const name_b = recipe_traits(recipe_b).name;
    const std::string plan = command.cuda ? cuda::describe_gemm(arguments, chip_of(command.chip))
                                          : describe_gemm(arguments);
    json["cases"].push_back({{"recipe_a", name_a}, {"recipe_b", name_b}, {"plan", plan}});
    if (!command.cuda) json["cases"].back().update(work_json(gemm_work(arguments)));
    if (command.cuda) text += std::string(name_a) + " x " + name_b + '\n';
    text += plan;
  }
  return print_result(json, text, command.output);
}

ExitCode run_gemm_cuda(const BenchGemm& command) {
  const cuda::DeviceScope scope(0);
  Json json = {{"m", command.m},
               {"n", command.n},
               {"k", command.k},
               {"device", cuda::current_device().name}};
  name_result(command.output_dtype, command.to, json);
  Table table({{"A"}, {"B"}, {"Time", Align::right}, {"TFLOP/s", Align::right}});
  for (const auto& [recipe_a, recipe_b] : command.pairs) {
    const RandomProduct product(command.m, command.n, command.k, recipe_a, recipe_b,
                                command.output_dtype, command.to, command.threads);
    const double seconds = cuda::benchmark_gemm(product.arguments(), command.repeats);
    const double gflops = gemm_gflops(command.m, command.n, command.k, seconds);
    const char* const name_a = recipe_traits(recipe_a).name;
    const char* const name_b = recipe_traits(recipe_b).name;
    json["cases"].push_back({{"recipe_a", name_a},
                             {"recipe_b", name_b},
                             {"median_seconds", seconds},
                             {"gflops", gflops}});
    table.add_row({name_a, name_b, format_duration(seconds), format_fixed(gflops * 1e-3, 1)});
  }
  return print_result(json, table.str(), command.output);
}

ExitCode tune_gemms(const BenchGemm& command) {
  const cuda::DeviceScope scope(0);
  Json json = {{"m", command.m},
               {"n", command.n},
               {"k", command.k},
               {"device", cuda::current_device().name},
               {"cases", Json::array()}};
  Table table({{"A"},
               {"B"},
               {"Plan", Align::right},
               {"Best", Align::right},
               {"Choices", Align::right},
               {"Kept"}});
  for (const auto& [recipe_a, recipe_b] : command.pairs) {
    const RandomProduct product(command.m, command.n, command.k, recipe_a, recipe_b,
                                command.output_dtype, command.to, command.threads);
    const cuda::GemmTuning t = cuda::tune_gemm(product.arguments(), command.repeats);
    const char* const name_a = recipe_traits(recipe_a).name;
    const char* const name_b = recipe_traits(recipe_b).name;
    json["path"] = t.path;
    json["cases"].push_back({{"recipe_a", name_a},
                             {"recipe_b", name_b},
                             {"planned_seconds", t.planned_seconds},
                             {"best_seconds", t.best_seconds},
                             {"tried", t.tried},
                             {"kept", t.kept}});
    table.add_row({name_a, name_b, format_duration(t.planned_seconds),
                   format_duration(t.best_seconds), std::to_string(t.tried),
                   t.kept.empty() ? "the plan's own" : t.kept});
    spdlog::info("{} x {}: kept in {}", name_a, name_b, t.path);
  }
  return print_result(json, table.str(), command.output);
}

/// Up to so many rows, a product is bound by reading B, which a model's other layers have evicted.
constexpr std::int64_t kColdRows = 16;
constexpr std::int64_t kColdBytes = std::int64_t{512} << 20;
constexpr std::size_t kMostCopies = 1024;

/// Copies of B that are together beyond all caches, unless B is below half a MiB, and the products
/// with each of them; with more rows of A the product itself.
class ColdProducts {
 public:
  explicit ColdProducts(const GemmArguments& x) : products_{x} {
    const ScaledTensorView& b = x.b;
    const std::int64_t values = value_bytes(b.recipe, b.rows, b.k);
    const std::int64_t scales =
        is_plain(b.recipe) ? 0 : scale_bytes(b.recipe, b.layout, b.rows, b.k);
    if (x.a.rows > kColdRows) return;
    check_gemm_memory(x.a.rows, b.rows, b.k, std::max(kColdBytes, values + scales));
    for (std::int64_t bytes = 0; bytes < kColdBytes && copies_.size() < kMostCopies;
         bytes += values + scales) {
      ScaledTensor& copy = copies_.emplace_back(b.recipe, b.rows, b.k, b.layout, 1, b.sense);
      const MutableScaledTensorView view = copy.view();
      std::memcpy(view.values, b.values, static_cast<std::size_t>(values));
      if (scales > 0) std::memcpy(view.scales, b.scales, static_cast<std::size_t>(scales));
      if (b.tensor_scale != nullptr) *view.tensor_scale = *b.tensor_scale;
      products_.push_back(x);
      products_.back().b = view;
    }
  }
  std::span<const GemmArguments> products() const { return products_; }

 private:
  std::vector<ScaledTensor> copies_;
  std::vector<GemmArguments> products_;
};

ExitCode run_gemm_cpu(const BenchGemm& command) {
  const CpuPeaks peaks = measure_cpu_peaks(command.threads);
  Json json = {{"m", command.m}, {"n", command.n}, {"k", command.k}};
  json.update(cpu_json(command.threads, peaks));
  name_result(command.output_dtype, command.to, json);
  Table table({{"A"},
               {"B"},
               {"Time", Align::right},
               {"Median", Align::right},
               {"GFLOP/s", Align::right},
               {"Of the bound", Align::right}});
  for (const auto& [recipe_a, recipe_b] : command.pairs) {
    const RandomProduct product(command.m, command.n, command.k, recipe_a, recipe_b,
                                command.output_dtype, command.to, command.threads);
    const ColdProducts cold(product.arguments());
    const GemmTime time = time_gemm(cold.products(), command.threads, command.repeats);
    const GemmWork work = gemm_work(product.arguments());
    const double share = bound_seconds(work, peaks) / time.median;
    const char* const name_a = recipe_traits(recipe_a).name;
    const char* const name_b = recipe_traits(recipe_b).name;
    spdlog::info("{} x {}: {}", name_a, name_b, format_duration(time.fastest));
    const double gflops = gemm_gflops(command.m, command.n, command.k, time.fastest);
    Json row = {{"recipe_a", name_a},
                {"recipe_b", name_b},
                {"threads", peaks.threads},
                {"seconds", time.fastest},
                {"median_seconds", time.median},
                {"quartile_seconds", time.quartiles},
                {"gflops", gflops}};
    row.update(work_json(work));
    row["bound_share"] = share;
    json["cases"].push_back(row);
    table.add_row({name_a, name_b, format_duration(time.fastest), format_duration(time.median),
                   format_fixed(gflops, 1), format_fixed(share, 2)});
  }
  return print_result(json, table.str(), command.output);
}

ExitCode run_gemm(const BenchGemm& command) {
  if (command.tune && (command.plan || !command.cuda)) {
    throw UsageError("--tune goes with --device cuda, and without --plan");
  }
  if (!command.chip.empty() && !command.plan) throw UsageError("--chip goes with --plan");
  if (command.tune) return tune_gemms(command);
  if (command.plan) return print_gemm_plans(command);
  if (command.cuda) return run_gemm_cuda(command);
  return run_gemm_cpu(command);
}

constexpr const char* kGemmExamples = R"help(Examples:
  The pairs that models use, 512 x 4096 x 4096, on one thread:
    blockscale bench gemm

  Two pairs of one's own choice:
    blockscale bench gemm --pair mxfp8_e4m3 --pair bf16:mxfp4 -m 64 --threads 0

  As on a CPU without AVX-512 (doctor lists the instruction sets):
    BLOCKSCALE_SIMD=AVX2 blockscale bench gemm

  How long a product with block scales takes on a GPU; with --plan by which kernel, with --tune
  whether another is faster, which is then kept for 33 to 64 rows:
    blockscale bench gemm --device cuda --pair fp8_1x128:fp8_128x128 -m 64 --repeats 20
)help";

}  // namespace

void add_gemm_bench(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchGemm>();
  CLI::App* const command = bench.add_subcommand("gemm", "Rate of multiplication, by recipe");
  add_parsed(*command, "-m", "M", state->m, parse_size, "Rows of A and D. Default: 512");
  add_parsed(*command, "-n", "N", state->n, parse_size, "Rows of B. Default: 4096");
  add_parsed(*command, "-k", "K", state->k, parse_size, "Columns of A and B. Default: 4096");
  add_pairs(*command, state->pairs);
  add_quantized_options(*command,
                        add_parsed(*command, "--dtype", "T", state->output_dtype,
                                   parse_plain_format, "Type of D: f32, f16 or bf16 (the default)"),
                        state->to);
  add_product_repeats(*command, state->repeats, "pair");
  add_device_and_plan(*command, state->cuda, state->plan);
  add_chip(*command, state->chip);
  command->add_flag("--tune", state->tune,
                    help_text("With --device cuda: time every choice of tile, stages and division "
                              "of K, and keep what is 3 % faster than the plan's for later "
                              "processes, in the file that BLOCKSCALE_TUNING names (default: "
                              "gemm-tuning.json beside cached kernels)"));
  add_threads(*command, state->threads, 1);
  add_output(*command, state->output);
  command->footer(recipe_help() + "\n" + kGemmExamples);
  command->callback([&action, state] {
    if (state->pairs.empty()) state->pairs = state->cuda ? usual_cuda_pairs() : usual_pairs();
    action = [state] { return run_gemm(*state); };
  });
}

}  // namespace blockscale::cli
