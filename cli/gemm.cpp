// blockscale gemm: time a product, and check it against float64.
#include "gemm.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "arguments.h"
#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "blockscale/parallel.h"
#include "blockscale/quantize.h"
#include "blockscale/system.h"
#include "command.h"
#include "output.h"
#include "text.h"

namespace blockscale::cli {
namespace {

/// Elements an operand may have, so that a slip of the hand does not ask for a petabyte.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 24;

const char* name_of(Recipe recipe) {
  return recipe_traits(recipe).name;
}

/// What a product of random matrices needs, given in full.
struct Product {
  std::int64_t m, n, k;
  Recipe recipe_a, recipe_b;
};

Product product_of(const GemmCommand& command) {
  if (!command.m || !command.n || !command.k || !command.recipe_a || !command.recipe_b) {
    throw UsageError("give -m, -n, -k, --recipe-a and --recipe-b, or --weights PATH");
  }
  return {*command.m, *command.n, *command.k, *command.recipe_a, *command.recipe_b};
}

struct GemmResult {
  GemmTime time;
  GemmCheck check;
  std::string where;  // it was computed, for people
  Json where_json;
};

GemmResult multiply_random(const GemmCommand& command, const Product& product) {
  const auto on_device = command.cuda ? std::make_unique<cuda::DeviceScope>(0) : nullptr;
  const RandomProduct operands(product.m, product.n, product.k, product.recipe_a, product.recipe_b,
                               command.output_dtype, command.threads);
  const GemmArguments& arguments = operands.arguments();
  if (command.cuda) {
    const std::string& device = cuda::current_device().name;
    const double seconds = cuda::benchmark_gemm(arguments, command.repeats);
    return {{seconds, seconds, {seconds, seconds}},
            cuda::check_gemm(arguments, command.samples),
            device,
            {{"device", device}}};
  }
  return {time_gemm(std::span(&arguments, 1), command.threads, command.repeats),
          check_gemm(arguments, command.samples),
          plural(effective_threads(command.threads), "thread") + ", " + simd_target(),
          {{"threads", effective_threads(command.threads)}, {"simd_target", simd_target()}}};
}

Json result_json(const GemmCommand& command, const Product& product, const GemmResult& result) {
  Json json = {{"m", product.m},
               {"n", product.n},
               {"k", product.k},
               {"recipe_a", name_of(product.recipe_a)},
               {"recipe_b", name_of(product.recipe_b)},
               {"dtype", format_traits(command.output_dtype).name}};
  json.update(result.where_json);
  json.update({{"seconds", result.time.fastest},
               {"median_seconds", result.time.median},
               {"gflops", gemm_gflops(product.m, product.n, product.k, result.time.fastest)},
               {"check",
                {{"elements", result.check.elements},
                 {"largest_error", result.check.largest_error},
                 {"allowed_error", result.check.allowed_error},
                 {"passed", result.check.passed()}}}});
  return json;
}

std::string size_text(std::int64_t rows, std::int64_t columns) {
  return shape_text({rows, columns});
}

void print_result(const GemmCommand& command, const Product& product, const GemmResult& result) {
  const double gflops = gemm_gflops(product.m, product.n, product.k, result.time.fastest);
  const GemmCheck& check = result.check;
  const std::string count = std::to_string(command.repeats);
  const std::string repeats = command.cuda ? " (median of " + count + ", caches cold), "
                                           : " (fastest of " + count + "; median " +
                                                 format_duration(result.time.median) + "), ";
  print("D " + size_text(product.m, product.n) + " " + format_traits(command.output_dtype).name +
        " = A " + size_text(product.m, product.k) + " " + name_of(product.recipe_a) + " x B " +
        size_text(product.n, product.k) + "^T " + name_of(product.recipe_b) + "\n" + "time   " +
        format_duration(result.time.fastest) + repeats + format_fixed(gflops, 1) + " GFLOP/s, " +
        result.where + "\n" + "check  " + plural(check.elements, "element") +
        " against float64: error at most " + format_significant(check.largest_error, 3) +
        " of the " + format_significant(check.allowed_error, 3) +
        " allowed (x 2^-24 sum |a||b|): " + (check.passed() ? "passed" : "FAILED") + "\n");
}

ExitCode run_random(const GemmCommand& command) {
  const Product product = product_of(command);
  if (!command.reference.empty() || !command.selected.empty() || command.baselines) {
    throw UsageError("--reference, --tensor and --baselines go with --weights");
  }
  const GemmResult result = multiply_random(command, product);
  if (command.json) {
    print_json(result_json(command, product, result));
  } else {
    print_result(command, product, result);
  }
  if (result.check.passed()) return ExitCode::success;
  print_error("gemm",
              "the result is outside its error bound; please report it with the output of "
              "blockscale doctor");
  return ExitCode::check_failed;
}

ExitCode run(const GemmCommand& command) {
  if (command.weights.empty()) return run_random(command);
  if (command.n || command.k) throw UsageError("-n and -k come from --weights; leave them out");
  if (command.cuda) throw UsageError("--device cuda goes with random operands, not with --weights");
  return run_gemm_weights(command);
}

constexpr const char* kExamples = R"help(
The product is D[M,N] = A[M,K] B[N,K]^T on random normal operands. A sample of its elements is
checked against float64 and the error bound of docs/numerics.md; outside it, the exit code is 10.
With --weights, B is each linear layer of a checkpoint in turn, and the error is
||D - D'|| / ||D'||, D' being the float64 product of the unquantized operands.

Examples:
  MXFP8 activations by MXFP4 weights:
    blockscale gemm -m 512 -n 4096 -k 4096 --recipe-a mxfp8_e4m3 --recipe-b mxfp4

  FP8 with block scales on a GPU:
    blockscale gemm -m 128 -n 4096 -k 7168 --recipe-a fp8_1x128 --recipe-b fp8_128x128 \
        --dtype bf16 --device cuda

  The layers of a converted checkpoint, as they are stored, against the original:
    blockscale gemm --weights ./minilm-fp8 --reference ./all-MiniLM-L6-v2 \
        --tensor '*.intermediate.*' --json
)help";

void add_size_options(CLI::App& command, GemmCommand& state) {
  const auto size = [](const std::string& text) { return parse_integer(text, 1, kLargestSize); };
  add_parsed(command, "-m", "M", state.m, size, "Rows of A and D. Default with --weights: 128");
  add_parsed(command, "-n", "N", state.n, size, "Rows of B, columns of D");
  add_parsed(command, "-k", "K", state.k, size, "Columns of A and B");
  add_parsed(command, "--recipe-a", "R", state.recipe_a, parse_recipe,
             "Recipe of A (table below). Default with --weights: f32");
  add_parsed(command, "--recipe-b", "R", state.recipe_b, parse_recipe,
             "Recipe of B. Default with --weights: as the weights are stored");
  add_parsed(command, "--dtype", "T", state.output_dtype, parse_plain_format,
             "Type of D: f32 (the default), f16 or bf16");
}

void add_measuring_options(CLI::App& command, GemmCommand& state) {
  const auto count = [](int most) {
    return
        [most](const std::string& text) { return static_cast<int>(parse_integer(text, 1, most)); };
  };
  add_parsed(command, "--repeats", "N", state.repeats, count(1'000'000),
             "Timed runs, of which the fastest counts. Default: 5");
  add_parsed(command, "--device", "D", state.cuda, parse_device,
             help_text("cpu (the default) or cuda, the first CUDA device, which takes the FP8 "
                       "recipes of e4m3. There caches are cold and the median counts"));
  add_parsed(command, "--samples", "N", state.samples, count(1'000'000'000),
             "Elements of D to check against float64. Default: 1024");
  add_threads(command, state.threads);
}

void add_weights_options(CLI::App& command, GemmCommand& state) {
  const auto as_is = [](const std::string& text) {
    if (text.empty()) throw ParseError("must not be empty");
    return text;
  };
  add_parsed(command, "--weights", "PATH", state.weights, as_is,
             "Multiply by the linear layers of this checkpoint");
  add_parsed(command, "--reference", "PATH", state.reference, as_is,
             help_text("Checkpoint with the true weights. Default: the values of --weights"));
  add_repeated(command, "--tensor", "PATTERN", state.selected, as_is,
               "Only the weights whose names match. Repeatable");
  command.add_flag("--baselines", state.baselines, "Run every layer in f32 and bf16 as well");
}

}  // namespace

std::vector<float> random_normal(std::int64_t rows, std::int64_t columns, std::uint64_t seed,
                                 int threads) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  parallel_for(rows, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::seed_seq sequence{seed, static_cast<std::uint64_t>(row)};
      std::mt19937_64 generator(sequence);
      std::normal_distribution<float> normal;
      float* const out = values.data() + row * columns;
      std::generate(out, out + columns, [&] { return normal(generator); });
    }
  });
  return values;
}

ScaledTensor in_recipe(const MatrixView& x, Recipe recipe, int threads) {
  QuantizeOptions options;
  options.threads = threads;
  if (!is_plain(recipe)) return quantize(x, recipe, ScaleLayout::row_major, options);
  ScaledTensor tensor(recipe, x.rows, x.columns);
  dequantize(as_scaled(x), {tensor.view().values, recipe_traits(recipe).element, x.rows, x.columns},
             threads);
  return tensor;
}

RandomProduct::RandomProduct(std::int64_t m, std::int64_t n, std::int64_t k, Recipe a, Recipe b,
                             Format d, int threads) {
  check_gemm_memory(m, n, k);
  const auto operand = [&](std::int64_t rows, Recipe recipe, std::uint64_t seed) {
    const std::vector<float> values = random_normal(rows, k, seed, threads);
    return in_recipe({values.data(), Format::f32, rows, k}, recipe, threads);
  };
  a_ = operand(m, a, 1);
  b_ = operand(n, b, 2);
  d_ = ScaledTensor(plain_recipe(d), m, n);
  arguments_.a = a_.view();
  arguments_.b = b_.view();
  arguments_.d = {d_.view().values, d, m, n};
}

GemmTime time_gemm(std::span<const GemmArguments> products, int threads, int repeats) {
  using Clock = std::chrono::steady_clock;
  const GemmOptions options{threads};
  gemm(products[0], options);
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(repeats));
  for (std::size_t i = 1; i <= static_cast<std::size_t>(repeats); ++i) {
    const auto start = Clock::now();
    gemm(products[i % products.size()], options);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const std::size_t quarter = seconds.size() / 4;
  return {seconds.front(),
          seconds[seconds.size() / 2],
          {seconds[quarter], seconds[seconds.size() - 1 - quarter]}};
}

void check_gemm_memory(std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto rows = static_cast<double>(m) + static_cast<double>(n);
  // A and B in f32 and in their recipe, which may be f32 too, and D.
  const double needed =
      4.0 * (2.0 * rows * static_cast<double>(k) + static_cast<double>(m) * static_cast<double>(n));
  const auto available = static_cast<double>(memory_info().available);
  if (available != 0 && needed > available) {
    throw Error(ErrorCode::invalid_argument, "m, n, k",
                "need " + format_bytes(needed) + " of memory, of which " + format_bytes(available) +
                    " are free; choose smaller sizes");
  }
}

double gemm_gflops(std::int64_t m, std::int64_t n, std::int64_t k, double seconds) {
  const double operations =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return seconds > 0 ? operations / seconds * 1e-9 : 0;
}

void add_gemm(CLI::App& app, Action& action) {
  const auto state = std::make_shared<GemmCommand>();
  CLI::App* const command =
      app.add_subcommand("gemm", "Multiply, check the result against float64, and time it");
  add_size_options(*command, *state);
  add_measuring_options(*command, *state);
  add_weights_options(*command, *state);
  add_json(*command, state->json);
  command->footer(recipe_help() + kExamples);
  command->callback([&action, state] { action = [state] { return run(*state); }; });
}

}  // namespace blockscale::cli
