// Times the CPU's grouped_gemm against a call of gemm for each group, in turn: few rows of many
// groups, as experts have them. Prints one JSON object. Usage: [THREADS [REPEATS]].
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "blockscale/parallel.h"

namespace blockscale {
namespace {

using Json = nlohmann::json;

struct Shape {
  std::int64_t groups, rows, n, k;  // rows of each group
};

/// Codes and scales of realistic size, no NaN among them.
void fill(ScaledTensor& tensor, std::mt19937_64& random) {
  const MutableScaledTensorView x = tensor.view();
  const RecipeTraits& t = recipe_traits(x.recipe);
  const std::uint8_t mask = format_traits(t.element).bits == 8 ? 0xEF : 0xFF;
  std::generate_n(static_cast<std::uint8_t*>(x.values), value_bytes(x.recipe, x.rows, x.k, x.batch),
                  [&] { return static_cast<std::uint8_t>(random() & mask); });
  const std::int64_t bytes = scale_bytes(x.recipe, x.layout, x.rows, x.k, x.batch);
  if (t.scale == Format::f32) {
    std::generate_n(static_cast<float*>(x.scales), bytes / 4,
                    [&] { return 0.01f + static_cast<float>(random() % 100) * 0.001f; });
  } else {
    std::generate_n(static_cast<std::uint8_t*>(x.scales), bytes,
                    [&] { return static_cast<std::uint8_t>(0x30 + random() % 16); });
  }
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Both of one product, in turn.
Json measure(Recipe recipe_a, Recipe recipe_b, const Shape& s, int threads, int repeats) {
  std::mt19937_64 random(1);
  const std::int64_t rows = s.groups * s.rows;
  ScaledTensor a(recipe_a, rows, s.k), b(recipe_b, s.n, s.k, {}, s.groups);
  fill(a, random);
  fill(b, random);
  std::vector<std::uint16_t> d(static_cast<std::size_t>(rows * s.n)), d_of_calls(d.size());
  std::vector<std::int32_t> offsets;
  for (std::int64_t g = 0; g <= s.groups; ++g) {
    offsets.push_back(static_cast<std::int32_t>(g * s.rows));
  }
  GroupedGemmArguments grouped;
  grouped.a = a.view();
  grouped.b = b.view();
  grouped.d = {d.data(), Format::bf16, rows, s.n};
  grouped.offsets = offsets.data();

  // Rows of either recipe have scales of their own, one behind the other.
  const auto dense = [&](std::int64_t g) {
    const auto size = [](Recipe recipe) {
      return std::int64_t{format_traits(recipe_traits(recipe).scale).bits / 8};
    };
    const ScaledTensorView all_a = resolved(grouped.a, "a"), all_b = resolved(grouped.b, "b");
    GemmArguments x;
    x.a = all_a;
    x.a.rows = s.rows;
    x.a.values =
        static_cast<const std::uint8_t*>(all_a.values) + g * s.rows * all_a.value_row_stride;
    x.a.scales = static_cast<const std::uint8_t*>(all_a.scales) +
                 g * s.rows * all_a.scale_leading_stride * size(recipe_a);
    x.b = all_b;
    x.b.batch = 1;
    x.b.values = static_cast<const std::uint8_t*>(all_b.values) + g * all_b.value_batch_stride;
    x.b.scales = static_cast<const std::uint8_t*>(all_b.scales) +
                 g * all_b.scale_batch_stride * size(recipe_b);
    x.d = {d_of_calls.data() + g * s.rows * s.n, Format::bf16, s.rows, s.n};
    return x;
  };
  std::vector<double> of_grouped, of_calls, ratios;
  for (int i = 0; i < repeats + 2; ++i) {
    const double one = seconds_of([&] { grouped_gemm(grouped, {threads}); });
    const double each = seconds_of([&] {
      for (std::int64_t g = 0; g < s.groups; ++g) gemm(dense(g), {threads});
    });
    if (i < 2) continue;  // memory is mapped and threads are started
    of_grouped.push_back(one);
    of_calls.push_back(each);
    ratios.push_back(one / each);
  }
  if (d != d_of_calls) throw std::runtime_error("the results differ");
  return {{"recipe_a", recipe_traits(recipe_a).name},
          {"recipe_b", recipe_traits(recipe_b).name},
          {"groups", s.groups},
          {"rows", s.rows},
          {"n", s.n},
          {"k", s.k},
          {"grouped_seconds", median(of_grouped)},
          {"calls_seconds", median(of_calls)},
          {"ratio", median(ratios)},
          {"ratio_of_fastest", *std::min_element(of_grouped.begin(), of_grouped.end()) /
                                   *std::min_element(of_calls.begin(), of_calls.end())}};
}

int run(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 11;
  Json report = {{"threads", effective_threads(threads)}, {"cases", Json::array()}};
  for (const Shape& shape : {Shape{8, 16, 4096, 4096}, Shape{8, 2, 4096, 4096},
                             Shape{64, 4, 768, 2048}, Shape{8, 128, 2048, 2048}}) {
    for (const auto& [a, b] : {std::pair{Recipe::nvfp4, Recipe::nvfp4},
                               std::pair{Recipe::fp8_1x128, Recipe::fp8_128x128}}) {
      report["cases"].push_back(measure(a, b, shape, threads, repeats));
    }
  }
  std::printf("%s\n", report.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace blockscale

int main(int argc, char** argv) {
  try {
    return blockscale::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
