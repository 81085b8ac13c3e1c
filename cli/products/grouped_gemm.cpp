// blockscale gemm --groups: time a product of groups, and check it against float64.
#include "products/grouped_gemm.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <variant>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "command.h"
#include "output.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

constexpr std::int64_t kMostGroups = 65'535;
constexpr std::int64_t kMostRows = std::int64_t{1} << 24;  // of all groups

/// Offsets of groups that random rows belong to.
std::vector<std::int32_t> random_offsets(const Groups& groups) {
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(groups.count) + 1);
  std::mt19937_64 generator(3);
  for (std::int64_t row = 0; row < groups.count * groups.rows; ++row) {
    ++offsets[1 + generator() % static_cast<std::uint64_t>(groups.count)];
  }
  for (std::size_t g = 1; g < offsets.size(); ++g) offsets[g] += offsets[g - 1];
  return offsets;
}

/// The least and the most rows of a group.
struct RowRange {
  std::int32_t least = 0, most = 0;
};
RowRange row_range(const std::vector<std::int32_t>& offsets) {
  RowRange range{offsets[1], offsets[1]};
  for (std::size_t g = 1; g < offsets.size(); ++g) {
    range.least = std::min(range.least, offsets[g] - offsets[g - 1]);
    range.most = std::max(range.most, offsets[g] - offsets[g - 1]);
  }
  return range;
}

struct GroupedResult {
  std::string plan;
  RowRange range;
  GemmTime time;
  GemmCheck check;  // of D before its transform
  GemmPlace place;
};

/// The sizes and recipes that a command must name.
struct Product {
  Groups groups;
  std::int64_t n, k;
  Recipe recipe_a, recipe_b;

  std::int64_t rows() const { return groups.count * groups.rows; }
};

Product product_of(const GemmCommand& command) {
  if (!command.groups || !command.n || !command.k || !command.recipe_a || !command.recipe_b) {
    throw UsageError("give -n, -k, --recipe-a and --recipe-b with --groups");
  }
  if (command.m || command.to.recipe || !command.weights.empty() || !command.reference.empty() ||
      !command.selected.empty() || command.baselines) {
    throw UsageError("--groups goes without -m, --to, --weights and what goes with that");
  }
  return {*command.groups, *command.n, *command.k, *command.recipe_a, *command.recipe_b};
}

GroupedResult multiply(const GemmCommand& command, const Product& product) {
  const auto on_device = command.cuda ? std::make_unique<cuda::DeviceScope>(0) : nullptr;
  const RandomGroupedProduct operands(product.groups, product.n, product.k, product.recipe_a,
                                      product.recipe_b, command.output_dtype, command.to,
                                      command.threads);
  GroupedGemmArguments arguments = operands.arguments();
  GroupedResult result;
  result.place = place_of(command.cuda, command.threads);
  result.plan = command.cuda ? cuda::describe_grouped_gemm(arguments, cuda::current_device())
                             : describe_grouped_gemm(arguments);
  result.range = row_range(operands.offsets());
  result.time = time_grouped_gemm(arguments, command.threads, command.repeats, command.cuda);
  const ScaledTensor before(Recipe::f32, product.rows(), product.n);  // of a transform
  if (!std::holds_alternative<Identity>(arguments.transform)) {
    arguments.transform = Identity{};
    arguments.d = {const_cast<void*>(before.view().values), Format::f32, product.rows(), product.n};
    (void)time_grouped_gemm(arguments, command.threads, 1, command.cuda);
  }
  const auto check = command.cuda ? &cuda::check_grouped_gemm : &check_grouped_gemm;
  result.check = check(arguments, command.samples);
  return result;
}

Json result_json(const GemmCommand& command, const Product& product, const GroupedResult& result) {
  Json json = {{"groups", product.groups.count},
               {"m", product.rows()},
               {"least_rows", result.range.least},
               {"most_rows", result.range.most},
               {"n", product.n},
               {"k", product.k},
               {"recipe_a", recipe_traits(product.recipe_a).name},
               {"recipe_b", recipe_traits(product.recipe_b).name}};
  name_result(command.output_dtype, command.to, json);
  json.update(result.place.json);
  json.update({{"plan", result.plan},
               {"seconds", result.time.fastest},
               {"median_seconds", result.time.median},
               {"gflops", gemm_gflops(product.rows(), product.n, product.k, result.time.fastest)},
               {"check", check_json(result.check)}});
  return json;
}

/// "D [640, 64] f32 = A [640, 256] fp8_1x128 x B [32, 64, 256]^T fp8_128x128: 32 groups of 11 to 30
/// rows".
std::string product_text(const GemmCommand& command, const Product& product,
                         const RowRange& range) {
  const InputTransform transform = command.to.transform;
  const bool transformed = transform != InputTransform::identity;
  return "D " + shape_text({product.rows(), command.to.columns(product.n)}) + " " +
         format_traits(command.output_dtype).name + " = " +
         (transformed ? std::string(kInputTransformNames[static_cast<int>(transform)]) + "(" : "") +
         "A " + shape_text({product.rows(), product.k}) + " " +
         recipe_traits(product.recipe_a).name + " x B " +
         shape_text({product.groups.count, product.n, product.k}) + "^T " +
         recipe_traits(product.recipe_b).name + (transformed ? ")" : "") + ": " +
         plural(product.groups.count, "group") + " of " + std::to_string(range.least) + " to " +
         plural(range.most, "row");
}

}  // namespace

Groups parse_groups(const std::string& text) {
  const auto cross = text.find('x');
  if (cross == std::string::npos) {
    throw ParseError("'" + text + "' is no number of groups x rows, such as 32x20");
  }
  const std::int64_t count = parse_integer(text.substr(0, cross), 1, kMostGroups);
  return {count, parse_integer(text.substr(cross + 1), 1, kMostRows / count)};
}

RandomGroupedProduct::RandomGroupedProduct(const Groups& groups, std::int64_t n, std::int64_t k,
                                           Recipe a, Recipe b, Format d, const QuantizedTo& to,
                                           int threads)
    : offsets_(random_offsets(groups)) {
  const std::int64_t m = groups.count * groups.rows;
  const auto all_rows = static_cast<double>(m + groups.count * n);
  // A and B in f32 and in their recipe, which may be f32 too, and D.
  check_memory(4.0 * (2.0 * all_rows * static_cast<double>(k) +
                      static_cast<double>(m) * static_cast<double>(n)),
               "groups, n, k");
  const std::vector<float> values_a = random_normal(m, k, 1, threads);
  a_ = in_recipe({values_a.data(), Format::f32, m, k}, a, threads);
  const std::vector<float> values_b = random_normal(groups.count * n, k, 2, threads);
  MatrixView matrices{values_b.data(), Format::f32, n, k};
  matrices.batch = groups.count;
  b_ = in_recipe(matrices, b, threads);
  const std::int64_t columns = to.columns(n);
  d_ = ScaledTensor(plain_recipe(d), m, columns);
  arguments_.a = a_.view();
  arguments_.b = b_.view();
  arguments_.d = {d_.view().values, d, m, columns};
  arguments_.offsets = offsets_.data();
  arguments_.transform = to.input();
}

GemmTime time_grouped_gemm(const GroupedGemmArguments& product, int threads, int repeats,
                           bool on_device) {
  if (!on_device) {
    return time_runs([&](std::size_t) { grouped_gemm(product, {threads}); }, repeats);
  }
  const double seconds = cuda::benchmark_grouped_gemm(product, repeats);
  return {seconds, seconds, {seconds, seconds}};
}

ExitCode run_gemm_groups(const GemmCommand& command) {
  const Product product = product_of(command);
  const GroupedResult result = multiply(command, product);
  if (command.json) {
    print_json(result_json(command, product, result));
  } else {
    const double gflops = gemm_gflops(product.rows(), product.n, product.k, result.time.fastest);
    print(product_text(command, product, result.range) + "\n" + result.plan +
          time_text(command.cuda, command.repeats, result.time, gflops, result.place.text) +
          check_text(result.check));
  }
  return exit_code_of("gemm", result.check.passed(), "is outside its error bound");
}

}  // namespace blockscale::cli
