// blockscale gemm: time a product, and check it against float64.
#include "products/gemm.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <variant>

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
const char* name_of(InputTransform transform) {
  return kInputTransformNames[static_cast<int>(transform)];
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
  GemmCheck check;             // of D in f32, where it is quantized
  std::int64_t bytes = 0;      // of D that were compared, where it is quantized
  std::int64_t different = 0;  // of these, from what `quantize` makes of D in f32
  GemmPlace place;             // it was computed

  bool passed() const { return check.passed() && different == 0; }
};

GemmTime time_product(const GemmCommand& command, const GemmArguments& arguments, int repeats) {
  if (!command.cuda) return time_gemm(std::span(&arguments, 1), command.threads, repeats);
  const double seconds = cuda::benchmark_gemm(arguments, repeats);
  return {seconds, seconds, {seconds, seconds}};
}

void count_different(const void* got, const void* wanted, std::int64_t bytes, GemmResult& result) {
  const auto* const x = static_cast<const std::uint8_t*>(got);
  const auto* const y = static_cast<const std::uint8_t*>(wanted);
  for (std::int64_t i = 0; i < bytes; ++i) result.different += x[i] != y[i] ? 1 : 0;
  result.bytes += bytes;
}

/// Whether a device rounds sums of D alike where D is quantized and where it is f32: not where one
/// tile's gates and ups lie in two blocks of B's scales, which then apply after A's, not with them,
/// nor with FP4 weights beside bf16 or f16, where D in f32 has kernels of its own.
bool sums_are_alike(const GemmArguments& x, const QuantizedResult& quantized) {
  if (is_plain(x.a.recipe) && recipe_traits(x.b.recipe).element == Format::e2m1) return false;
  constexpr std::int64_t kRun = 64;  // columns of a tile that are gates, and as many ups
  return !std::holds_alternative<Swiglu>(quantized.options.input) ||
         recipe_traits(x.b.recipe).block_rows != 128 || x.d.columns / 2 % kRun == 0;
}

/// Computes D in f32 as well, of which `check` is then made. On a device by batch-invariant
/// products both times, which divide K alike: not at all. Elsewhere sums have the order of D's
/// anyway.
void check_quantized(const GemmCommand& command, const QuantizedResult& quantized,
                     GemmArguments& arguments, GemmResult& result) {
  const bool compares = !command.cuda || sums_are_alike(arguments, quantized);
  if (command.cuda) {
    arguments.batch_invariant = true;
    (void)time_product(command, arguments, 1);
  }
  arguments.quantized.reset();
  (void)time_product(command, arguments, 1);
  if (!compares) return;
  const ScaledTensorView got = quantized.out;
  ScaledTensor tensor(got.recipe, got.rows, got.k, got.layout);
  quantize(arguments.d, tensor.view(), quantized.options);
  const ScaledTensorView wanted = tensor.view();
  count_different(got.values, wanted.values, value_bytes(got.recipe, got.rows, got.k), result);
  count_different(got.scales, wanted.scales, scale_bytes(got.recipe, got.layout, got.rows, got.k),
                  result);
}

GemmResult multiply_random(const GemmCommand& command, const Product& product) {
  const auto on_device = command.cuda ? std::make_unique<cuda::DeviceScope>(0) : nullptr;
  const RandomProduct operands(product.m, product.n, product.k, product.recipe_a, product.recipe_b,
                               command.output_dtype, command.to, command.threads);
  GemmArguments arguments = operands.arguments();
  GemmResult result;
  result.place = place_of(command.cuda, command.threads);
  result.time = time_product(command, arguments, command.repeats);
  if (const auto quantized = arguments.quantized) {
    check_quantized(command, *quantized, arguments, result);
  }
  const ScaledTensor before(Recipe::f32, product.m, product.n);  // of a transform
  if (!std::holds_alternative<Identity>(arguments.transform)) {
    arguments.transform = Identity{};
    arguments.d = {const_cast<void*>(before.view().values), Format::f32, product.m, product.n};
    (void)time_product(command, arguments, 1);
  }
  const auto check = command.cuda ? &cuda::check_gemm : &check_gemm;
  result.check = check(arguments, command.samples);
  return result;
}

Json result_json(const GemmCommand& command, const Product& product, const GemmResult& result) {
  Json json = {{"m", product.m},
               {"n", product.n},
               {"k", product.k},
               {"recipe_a", name_of(product.recipe_a)},
               {"recipe_b", name_of(product.recipe_b)}};
  name_result(command.output_dtype, command.to, json);
  json.update(result.place.json);
  json.update({{"seconds", result.time.fastest},
               {"median_seconds", result.time.median},
               {"gflops", gemm_gflops(product.m, product.n, product.k, result.time.fastest)},
               {"check", check_json(result.check)}});
  json["check"]["passed"] = result.passed();
  if (command.to.recipe) {
    json["check"].update({{"bytes", result.bytes}, {"different_bytes", result.different}});
  }
  return json;
}

std::string size_text(std::int64_t rows, std::int64_t columns) {
  return shape_text({rows, columns});
}

/// "D [8, 64] mxfp8_e4m3 = swiglu(A [8, 256] nvfp4 x B [128, 256]^T nvfp4)".
std::string product_text(const GemmCommand& command, const Product& product) {
  const QuantizedTo& to = command.to;
  const bool transformed = to.transform != InputTransform::identity;
  return "D " + size_text(product.m, to.columns(product.n)) + " " +
         (to.recipe ? name_of(*to.recipe) : format_traits(command.output_dtype).name) + " = " +
         (transformed ? std::string(name_of(to.transform)) + "(" : "") + "A " +
         size_text(product.m, product.k) + " " + name_of(product.recipe_a) + " x B " +
         size_text(product.n, product.k) + "^T " + name_of(product.recipe_b) +
         (transformed ? ")" : "");
}

/// What `check` says of bytes; nothing where D is not quantized.
std::string bytes_text(const GemmCommand& command, const GemmResult& result) {
  if (!command.to.recipe) return "";
  if (result.bytes == 0) {
    return "bytes  not compared: a tile's gates and ups have scales of B in two blocks, which D in "
           "f32 rounds otherwise\n";
  }
  return "bytes  " + format_count(static_cast<std::uint64_t>(result.different)) + " of " +
         format_count(static_cast<std::uint64_t>(result.bytes)) +
         " differ from what quantize makes of D in f32: " +
         (result.different == 0 ? "passed" : "FAILED") + "\n";
}

void print_result(const GemmCommand& command, const Product& product, const GemmResult& result) {
  const double gflops = gemm_gflops(product.m, product.n, product.k, result.time.fastest);
  print(product_text(command, product) + "\n" +
        time_text(command.cuda, command.repeats, result.time, gflops, result.place.text) +
        check_text(result.check) + bytes_text(command, result));
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
  return exit_code_of(
      "gemm", result.passed(),
      result.check.passed() ? "is not what quantize makes of it" : "is outside its error bound");
}

ExitCode run(const GemmCommand& command) {
  if (command.groups) return run_gemm_groups(command);
  if (command.weights.empty()) return run_random(command);
  if (command.n || command.k) throw UsageError("-n and -k come from --weights; leave them out");
  if (command.cuda || command.to.recipe || command.to.transform != InputTransform::identity) {
    throw UsageError(
        "--device cuda, --to and --transform go with random operands, not with --weights");
  }
  return run_gemm_weights(command);
}

constexpr const char* kExamples = R"help(
The product is D[M,N] = A[M,K] B[N,K]^T on random normal operands. A sample of its elements is
checked against float64 and the error bound of docs/numerics.md; outside it, the exit code is 10.
With --weights, B is each linear layer of a checkpoint in turn, and the error is
||D - D'|| / ||D'||, D' being the float64 product of the unquantized operands.
With --transform, what is checked is D before that, in f32. With --to, D goes straight to the next
product, in that recipe. Then D in f32 is checked as above, and every byte of the result compared
with what quantize makes of that.
With --groups, rows belong to groups, each with a B of its own, as tokens do to experts: to which,
is random. What is printed begins with the plan.

Examples:
  FP8 with block scales on a GPU, whose result goes on in FP8 behind SwiGLU:
    blockscale gemm -m 128 -n 4096 -k 7168 --recipe-a fp8_1x128 --recipe-b fp8_128x128 \
        --to fp8_1x128 --transform swiglu --device cuda

  MXFP8 activations by MXFP4 weights: 32 experts, each with 20 tokens on average:
    blockscale gemm --groups 32x20 -n 1024 -k 2048 --recipe-a mxfp8_e4m3 --recipe-b mxfp4

  The layers of a converted checkpoint, as they are stored, against the original:
    blockscale gemm --weights ./minilm-fp8 --reference ./all-MiniLM-L6-v2 \
        --tensor '*.intermediate.*' --json
)help";

void add_size_options(CLI::App& command, GemmCommand& state) {
  const auto size = [](const std::string& text) { return parse_integer(text, 1, kLargestSize); };
  add_parsed(command, "-m", "M", state.m, size, "Rows of A and D. Default with --weights: 128");
  add_parsed(command, "--groups", "GxM", state.groups, parse_groups,
             help_text("In place of -m: so many groups, of so many rows on average"));
  add_parsed(command, "-n", "N", state.n, size, "Rows of B, columns of D");
  add_parsed(command, "-k", "K", state.k, size, "Columns of A and B");
  add_parsed(command, "--recipe-a", "R", state.recipe_a, parse_recipe,
             "Recipe of A (table below). Default with --weights: f32");
  add_parsed(command, "--recipe-b", "R", state.recipe_b, parse_recipe,
             "Recipe of B. Default with --weights: as the weights are stored");
  CLI::Option* const dtype =
      add_parsed(command, "--dtype", "T", state.output_dtype, parse_plain_format,
                 "Type of D: f32 (the default), f16 or bf16");
  add_quantized_options(command, dtype, state.to);
}

void add_measuring_options(CLI::App& command, GemmCommand& state) {
  add_timing(command, state.repeats, state.cuda);
  add_parsed(
      command, "--samples", "N", state.samples,
      [](const std::string& text) { return parse_count(text, 1'000'000'000); },
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
  add_repeated(command, "--tensor", "PATTERN", state.selected, parse_pattern,
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
  ScaledTensor tensor(recipe, x.rows, x.columns, ScaleLayout::row_major, x.batch);
  MutableMatrixView plain{tensor.view().values, recipe_traits(recipe).element, x.rows, x.columns};
  plain.batch = x.batch;
  dequantize(as_scaled(x), plain, threads);
  return tensor;
}

QuantizeInput QuantizedTo::input() const {
  switch (transform) {
    case InputTransform::gelu_tanh: return Gelu{GeluForm::tanh};
    case InputTransform::gelu_erf: return Gelu{GeluForm::erf};
    case InputTransform::silu: return Silu{};
    case InputTransform::swiglu: return Swiglu{};
    default: return Identity{};
  }
}

void name_result(Format dtype, const QuantizedTo& to, Json& json) {
  if (to.recipe) {
    json["to"] = name_of(*to.recipe);
  } else {
    json["dtype"] = format_traits(dtype).name;
  }
  if (to.recipe || to.transform != InputTransform::identity) {
    json["transform"] = name_of(to.transform);
  }
}

void add_timing(CLI::App& command, int& repeats, bool& cuda) {
  add_parsed(
      command, "--repeats", "N", repeats,
      [](const std::string& text) { return parse_count(text, 1'000'000); },
      "Timed runs, of which the fastest counts. Default: 5");
  add_parsed(command, "--device", "D", cuda, parse_device,
             help_text("cpu (the default) or cuda, the first CUDA device. There caches are cold "
                       "and the median counts"));
}

int parse_count(const std::string& text, int most) {
  return static_cast<int>(parse_integer(text, 1, most));
}

InputTransform parse_product_transform(const std::string& name) {
  std::vector<std::string> names = input_transform_names();
  names.resize(static_cast<std::size_t>(InputTransform::swiglu) + 1);
  return static_cast<InputTransform>(index_of(name, "transform of a product", names));
}

void add_product_transform(CLI::App& command, QuantizedTo& to) {
  add_parsed(
      command, "--transform", "F", to.transform, parse_product_transform,
      help_text("What is stored in place of D: gelu_tanh, gelu_erf, silu or swiglu, which takes "
                "the first half of B's rows as gates and leaves N / 2 columns"));
}

void add_quantized_options(CLI::App& command, CLI::Option* dtype, QuantizedTo& to) {
  CLI::Option* const recipe = add_parsed(
      command, "--to", "R", to.recipe, parse_recipe,
      help_text("Quantize D for the next product: fp8_1x128, fp8_1x128_pow2, fp8_1x128_ue8m0, "
                "fp8_row, mxfp8_e4m3, or nvfp4 with a tensor scale of 1"));
  recipe->excludes(dtype);
  add_product_transform(command, to);
}

RandomProduct::RandomProduct(std::int64_t m, std::int64_t n, std::int64_t k, Recipe a, Recipe b,
                             Format d, const QuantizedTo& to, int threads) {
  check_gemm_memory(m, n, k);
  const auto operand = [&](std::int64_t rows, Recipe recipe, std::uint64_t seed) {
    const std::vector<float> values = random_normal(rows, k, seed, threads);
    return in_recipe({values.data(), Format::f32, rows, k}, recipe, threads);
  };
  a_ = operand(m, a, 1);
  b_ = operand(n, b, 2);
  const std::int64_t columns = to.recipe ? n : to.columns(n);
  d_ = ScaledTensor(plain_recipe(d), m, columns);
  arguments_.a = a_.view();
  arguments_.b = b_.view();
  arguments_.d = {d_.view().values, d, m, columns};
  if (!to.recipe) {
    arguments_.transform = to.input();
    return;
  }
  quantized_ = ScaledTensor(*to.recipe, m, to.columns(n));
  arguments_.quantized = {quantized_.view(), {}};
  QuantizeOptions& options = arguments_.quantized->options;
  options.input = to.input();
  if (recipe_traits(*to.recipe).tensor_scale) options.scale_source = ScaleSource::given;
}

GemmTime time_runs(const std::function<void(std::size_t)>& run, int repeats) {
  using Clock = std::chrono::steady_clock;
  run(0);
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(repeats));
  for (std::size_t i = 1; i <= static_cast<std::size_t>(repeats); ++i) {
    const auto start = Clock::now();
    run(i);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const std::size_t quarter = seconds.size() / 4;
  return {seconds.front(),
          seconds[seconds.size() / 2],
          {seconds[quarter], seconds[seconds.size() - 1 - quarter]}};
}

GemmTime time_gemm(std::span<const GemmArguments> products, int threads, int repeats) {
  const auto run = [&](std::size_t i) { gemm(products[i % products.size()], {threads}); };
  return time_runs(run, repeats);
}

void check_gemm_memory(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t copied_bytes) {
  const auto rows = static_cast<double>(m) + static_cast<double>(n);
  // A and B in f32 and in their recipe, which may be f32 too, and D.
  const double needed = 4.0 * (2.0 * rows * static_cast<double>(k) +
                               static_cast<double>(m) * static_cast<double>(n)) +
                        static_cast<double>(copied_bytes);
  check_memory(needed, "m, n, k");
}

void check_memory(double needed, const char* argument) {
  const auto available = static_cast<double>(memory_info().available);
  if (available != 0 && needed > available) {
    throw Error(ErrorCode::invalid_argument, argument,
                "need " + format_bytes(needed) + " of memory, of which " + format_bytes(available) +
                    " are free; choose smaller sizes");
  }
}

GemmPlace place_of(bool cuda, int threads) {
  if (cuda) {
    const std::string name = cuda::current_device().name;
    return {name, {{"device", name}}};
  }
  const int used = effective_threads(threads);
  return {plural(used, "thread") + ", " + simd_target(),
          {{"threads", used}, {"simd_target", simd_target()}}};
}

std::string time_text(bool cuda, int repeats, const GemmTime& time, double gflops,
                      const std::string& where) {
  const std::string count = std::to_string(repeats);
  const std::string how =
      cuda ? " (median of " + count + ", caches cold), "
           : " (fastest of " + count + "; median " + format_duration(time.median) + "), ";
  return "time   " + format_duration(time.fastest) + how + format_fixed(gflops, 1) + " GFLOP/s, " +
         where + "\n";
}

std::string check_text(const GemmCheck& check) {
  return "check  " + plural(check.elements, "element") + " against float64: error at most " +
         format_significant(check.largest_error, 3) +
         " x 2^-24 sum |a||b| (proven: " + format_significant(check.proven_error, 3) + "), " +
         format_significant(check.of_usual, 3) +
         " of what is usual: " + (check.passed() ? "passed" : "FAILED") + "\n";
}

Json check_json(const GemmCheck& check) {
  return {{"elements", check.elements},
          {"largest_error", check.largest_error},
          {"proven_error", check.proven_error},
          {"of_usual", check.of_usual},
          {"passed", check.passed()}};
}

ExitCode exit_code_of(const char* command, bool passed, const char* failure) {
  if (passed) return ExitCode::success;
  print_error(command, std::string("the result ") + failure +
                           "; please report it with the output of blockscale doctor");
  return ExitCode::check_failed;
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
