// blockscale gemm --weights: what a recipe does to the outputs of a checkpoint's linear layers.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "arguments.h"
#include "blockscale/convert.h"
#include "blockscale/parallel.h"
#include "blockscale/quantize.h"
#include "blockscale/system.h"
#include "command.h"
#include "listing.h"
#include "output.h"
#include "products/gemm.h"
#include "table.h"
#include "text.h"

namespace blockscale::cli {
namespace {

constexpr std::int64_t kDefaultRows = 128;

/// One product of a layer, or the sums over all layers.
struct Product {
  Recipe recipe_a = Recipe::f32;
  Recipe recipe_b = Recipe::f32;
  double squared_error = 0;      // sum of (d - d')^2
  double squared_reference = 0;  // sum of d'^2
  double seconds = 0;

  /// NaN where a product is; infinite where only the reference is 0.
  double relative_error() const {
    return squared_error == 0 ? 0 : std::sqrt(squared_error / squared_reference);
  }
  void add(const Product& other) {
    squared_error += other.squared_error;
    squared_reference += other.squared_reference;
    seconds += other.seconds;
  }
};

struct Layer {
  std::string name;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::vector<Product> products;  // what was asked for, then the baselines
};

/// The values of a stored matrix in f32.
std::vector<float> values_of(const ScaledTensorView& view, int threads) {
  std::vector<float> values(static_cast<std::size_t>(view.rows * view.k));
  dequantize(view, {values.data(), Format::f32, view.rows, view.k}, threads);
  return values;
}

/// sum_i a[i] b[i] in f64. Sixteen partial sums leave the compiler free to use vectors.
double dot(const float* a, const float* b, std::int64_t k) {
  constexpr std::int64_t kLanes = 16;
  double sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  double sum = 0;
  for (const double partial : sums) sum += partial;
  for (; i < k; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// The true operands of a layer and their product in f64.
struct Truth {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::vector<float> a;         // [m, k]
  std::vector<float> b;         // [n, k]
  std::vector<double> product;  // [m, n]
};

Truth truth_of(const ScaledTensorView& weight, std::int64_t m, std::uint64_t seed, int threads) {
  Truth truth{m,
              weight.rows,
              weight.k,
              random_normal(m, weight.k, seed, threads),
              values_of(weight, threads),
              {}};
  truth.product.resize(static_cast<std::size_t>(m * truth.n));
  parallel_for(truth.n, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t column = begin; column < end; ++column) {
      for (std::int64_t row = 0; row < m; ++row) {
        truth.product[static_cast<std::size_t>(row * truth.n + column)] =
            dot(truth.a.data() + row * truth.k, truth.b.data() + column * truth.k, truth.k);
      }
    }
  });
  return truth;
}

Product multiply(const Truth& truth, const ScaledTensorView& a, const ScaledTensorView& b,
                 const GemmCommand& command) {
  ScaledTensor d(plain_recipe(command.output_dtype), truth.m, truth.n);
  GemmArguments arguments;
  arguments.a = a;
  arguments.b = b;
  arguments.d = {d.view().values, command.output_dtype, truth.m, truth.n};
  Product product{a.recipe, b.recipe};
  product.seconds = time_gemm(std::span(&arguments, 1), command.threads, command.repeats).fastest;
  const ScaledTensor& result = d;
  const std::vector<float> values = values_of(result.view(), command.threads);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = static_cast<double>(values[i]) - truth.product[i];
    product.squared_error += error * error;
    product.squared_reference += truth.product[i] * truth.product[i];
  }
  return product;
}

/// Both operands quantized from the true ones.
Product multiply_quantized(const Truth& truth, Recipe recipe_a, Recipe recipe_b,
                           const GemmCommand& command) {
  const ScaledTensor a =
      in_recipe({truth.a.data(), Format::f32, truth.m, truth.k}, recipe_a, command.threads);
  const ScaledTensor b =
      in_recipe({truth.b.data(), Format::f32, truth.n, truth.k}, recipe_b, command.threads);
  return multiply(truth, a.view(), b.view(), command);
}

/// A from the true one, B as it is stored.
Product multiply_stored(const Truth& truth, Recipe recipe_a, const ScaledTensorView& weight,
                        const GemmCommand& command) {
  const ScaledTensor a =
      in_recipe({truth.a.data(), Format::f32, truth.m, truth.k}, recipe_a, command.threads);
  return multiply(truth, a.view(), weight, command);
}

Layer measure(const ScaledTensorView& weight, const ScaledTensorView& true_weight,
              const std::string& name, std::uint64_t seed, const GemmCommand& command) {
  const std::int64_t m = command.m.value_or(kDefaultRows);
  const Recipe recipe_a = command.recipe_a.value_or(Recipe::f32);
  const Truth truth = truth_of(true_weight, m, seed, command.threads);
  Layer layer{name, truth.n, truth.k, {}};
  layer.products.push_back(command.recipe_b
                               ? multiply_quantized(truth, recipe_a, *command.recipe_b, command)
                               : multiply_stored(truth, recipe_a, weight, command));
  if (command.baselines) {
    layer.products.push_back(multiply_quantized(truth, Recipe::f32, Recipe::f32, command));
    layer.products.push_back(multiply_quantized(truth, Recipe::bf16, Recipe::bf16, command));
  }
  return layer;
}

/// Linear layers, or the matrices that were asked for by name.
std::vector<CheckpointTensor> selected_tensors(const Checkpoint& weights,
                                               const GemmCommand& command) {
  std::vector<CheckpointTensor> selected = tensors_of(weights, command.selected);
  std::erase_if(selected, [&](const CheckpointTensor& tensor) {
    return command.selected.empty() ? !is_linear_weight(tensor) : tensor.shape.size() != 2;
  });
  return selected;
}

const CheckpointTensor& true_tensor(const Checkpoint& reference, const CheckpointTensor& tensor) {
  const CheckpointTensor* const found = reference.find(tensor.name);
  if (found == nullptr || found->shape != tensor.shape) {
    throw Error(ErrorCode::not_found, "reference",
                "has no tensor " + tensor.name + " of the same shape as the weights' one");
  }
  return *found;
}

std::vector<Layer> measure_all(const GemmCommand& command) {
  const Checkpoint weights = Checkpoint::open(command.weights);
  const Checkpoint reference =
      command.reference.empty() ? weights : Checkpoint::open(command.reference);
  std::vector<Layer> layers;
  for (const CheckpointTensor& tensor : selected_tensors(weights, command)) {
    layers.push_back(measure(weights.view(tensor), reference.view(true_tensor(reference, tensor)),
                             tensor.name, layers.size(), command));
    spdlog::info("{}: error {:.3g}", printable(tensor.name),
                 layers.back().products.front().relative_error());
  }
  if (layers.empty()) {
    throw Error(ErrorCode::not_found, "weights",
                "have no 2-D weight of a linear layer that was asked for; blockscale inspect shows "
                "what there is, --tensor PATTERN chooses");
  }
  return layers;
}

/// Sums over the layers, one for each kind of product.
std::vector<Product> totals_of(const std::vector<Layer>& layers) {
  std::vector<Product> totals = layers.front().products;
  for (std::size_t i = 1; i < layers.size(); ++i) {
    for (std::size_t j = 0; j < totals.size(); ++j) totals[j].add(layers[i].products[j]);
  }
  return totals;
}

/// The recipe of B; "mixed" where the layers of a checkpoint differ.
std::string recipe_of_b(const std::vector<Layer>& layers, std::size_t product) {
  const Recipe first = layers.front().products[product].recipe_b;
  const bool same = std::all_of(layers.begin(), layers.end(), [&](const Layer& layer) {
    return layer.products[product].recipe_b == first;
  });
  return same ? recipe_traits(first).name : "mixed";
}

double total_flops(const std::vector<Layer>& layers, std::int64_t m) {
  double flops = 0;
  for (const Layer& layer : layers) flops += gemm_gflops(m, layer.n, layer.k, 1.0);
  return flops;
}

Json layer_json(const Layer& layer, std::int64_t m) {
  const Product& product = layer.products.front();
  Json json = {{"name", layer.name},
               {"n", layer.n},
               {"k", layer.k},
               {"recipe_b", recipe_traits(product.recipe_b).name},
               {"error", product.relative_error()},
               {"seconds", product.seconds},
               {"gflops", gemm_gflops(m, layer.n, layer.k, product.seconds)}};
  for (std::size_t i = 1; i < layer.products.size(); ++i) {
    const Product& baseline = layer.products[i];
    json["baselines"][recipe_traits(baseline.recipe_b).name] = {
        {"error", baseline.relative_error()}, {"seconds", baseline.seconds}};
  }
  return json;
}

Json report_json(const GemmCommand& command, const std::vector<Layer>& layers, std::int64_t m) {
  Json layer_list = Json::array();
  for (const Layer& layer : layers) layer_list.push_back(layer_json(layer, m));
  Json totals = Json::array();
  const std::vector<Product> products = totals_of(layers);
  for (std::size_t i = 0; i < products.size(); ++i) {
    totals.push_back({{"recipe_a", recipe_traits(products[i].recipe_a).name},
                      {"recipe_b", recipe_of_b(layers, i)},
                      {"error", products[i].relative_error()},
                      {"seconds", products[i].seconds},
                      {"gflops", total_flops(layers, m) / products[i].seconds}});
  }
  return {{"weights", command.weights},
          {"reference", command.reference.empty() ? command.weights : command.reference},
          {"m", m},
          {"dtype", format_traits(command.output_dtype).name},
          {"threads", effective_threads(command.threads)},
          {"simd_target", simd_target()},
          {"layers", layer_list},
          {"totals", totals}};
}

/// Title of the columns of one kind of product, such as "nvfp4 x nvfp4".
std::string product_title(const std::vector<Layer>& layers, std::size_t product) {
  return std::string(recipe_traits(layers.front().products[product].recipe_a).name) + " x " +
         recipe_of_b(layers, product);
}

void print_report(const std::vector<Layer>& layers, std::int64_t m) {
  std::vector<Table::Column> columns = {{"Layer"}, {"N", Align::right}, {"K", Align::right}};
  for (std::size_t i = 0; i < layers.front().products.size(); ++i) {
    columns.push_back({product_title(layers, i), Align::right});
    columns.push_back({"time", Align::right});
  }
  Table table(columns);
  const auto add_row = [&](std::vector<std::string> cells, const std::vector<Product>& products) {
    for (const Product& product : products) {
      cells.push_back(format_significant(100 * product.relative_error(), 3) + " %");
      cells.push_back(format_duration(product.seconds));
    }
    table.add_row(cells);
  };
  for (const Layer& layer : layers) {
    add_row({layer.name, std::to_string(layer.n), std::to_string(layer.k)}, layer.products);
  }
  table.add_rule();
  add_row({"all", "", ""}, totals_of(layers));
  print(table.str() + "\nError of each layer's output for " + std::to_string(m) +
        " rows of random normal inputs, relative to the f64 product of the\n"
        "unquantized operands, and the time of the product.\n");
}

}  // namespace

ExitCode run_gemm_weights(const GemmCommand& command) {
  const std::vector<Layer> layers = measure_all(command);
  const std::int64_t m = command.m.value_or(kDefaultRows);
  if (command.json) {
    print_json(report_json(command, layers, m));
  } else {
    print_report(layers, m);
  }
  return ExitCode::success;
}

}  // namespace blockscale::cli
