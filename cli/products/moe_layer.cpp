// Random layers: operands, routings, times.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "arguments.h"
#include "blockscale/cuda.h"
#include "command.h"
#include "products/moe.h"
#include "text.h"

namespace blockscale::cli {
namespace {

using Generator = std::mt19937_64;

/// Normal numbers from which rows are taken, each from a random place on: a layer has billions.
constexpr std::int64_t kPool = std::int64_t{1} << 20;

/// Matrix `i` of a batch, packed.
MutableScaledTensorView matrix_of(MutableScaledTensorView x, std::int64_t i) {
  const auto behind = [](void* data, std::int64_t bytes) {
    return data == nullptr ? nullptr : static_cast<std::uint8_t*>(data) + bytes;
  };
  x.values = behind(x.values, i * x.value_batch_stride);
  x.scales = behind(
      x.scales, i * x.scale_batch_stride * (format_traits(recipe_traits(x.recipe).scale).bits / 8));
  if (x.tensor_scale != nullptr) x.tensor_scale += i * x.tensor_scale_batch_stride;
  x.batch = 1;
  return x;
}

/// [experts, rows, k] in `recipe`, normal with a variance of 1 / k.
ScaledTensor random_matrices(Recipe recipe, std::int64_t experts, std::int64_t rows, std::int64_t k,
                             std::uint64_t seed, int threads) {
  std::vector<float> pool = random_normal(1, kPool + k, seed, threads);
  for (float& value : pool) value /= std::sqrt(static_cast<float>(k));
  ScaledTensor weights(recipe, rows, k, ScaleLayout::row_major, experts);
  std::vector<float> values(static_cast<std::size_t>(rows * k));
  const auto width = static_cast<std::size_t>(k);
  QuantizeOptions options;
  options.threads = threads;
  Generator generator(seed);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    for (auto row = values.begin(); row != values.end(); row += k) {
      std::copy_n(pool.begin() + static_cast<std::int64_t>(generator() % kPool), width, row);
    }
    const MatrixView matrix{values.data(), Format::f32, rows, k};
    const MutableScaledTensorView to = matrix_of(weights.view(), expert);
    if (is_plain(recipe)) {
      dequantize(as_scaled(matrix), {to.values, recipe_traits(recipe).element, rows, k}, threads);
    } else {
      quantize(matrix, to, options);
    }
  }
  return weights;
}

/// How much each expert is wanted. The most wanted one is expert 0.
std::vector<double> demand(std::int64_t experts, Routing routing, Generator& generator) {
  std::vector<double> demand(static_cast<std::size_t>(experts), 1.0);
  if (routing != Routing::zipf) return demand;
  for (std::size_t rank = 0; rank < demand.size(); ++rank) {
    demand[rank] = std::pow(static_cast<double>(rank + 1), -1.2);
  }
  std::shuffle(demand.begin() + 1, demand.end(), generator);
  return demand;
}

/// `count` different experts.
void draw(std::discrete_distribution<std::int32_t>& experts, int count, Generator& generator,
          std::int32_t* ids) {
  for (int j = 0; j < count; ++j) {
    do {
      ids[j] = experts(generator);
    } while (std::find(ids, ids + j, ids[j]) != ids + j);
  }
}

std::vector<std::int32_t> random_ids(const Layer& layer, std::int64_t tokens, Routing routing,
                                     std::uint64_t seed) {
  Generator generator(seed);
  const std::vector<double> wanted = demand(layer.all_experts(), routing, generator);
  std::discrete_distribution<std::int32_t> experts(wanted.begin(), wanted.end());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * layer.top_k));
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::int32_t* const of_token = ids.data() + t * layer.top_k;
    if (routing == Routing::one_hot) {
      std::iota(of_token, of_token + layer.top_k, 0);
    } else {
      draw(experts, layer.top_k, generator, of_token);
    }
  }
  return ids;
}

/// Positive, of each token 1 in sum.
std::vector<float> random_weights(std::int64_t tokens, int top_k) {
  Generator generator(4);
  std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
  std::vector<float> weights(static_cast<std::size_t>(tokens * top_k));
  for (auto token = weights.begin(); token != weights.end(); token += top_k) {
    std::generate_n(token, top_k, [&] { return uniform(generator); });
    const float sum = std::accumulate(token, token + top_k, 0.0f);
    std::for_each(token, token + top_k, [sum](float& weight) { weight /= sum; });
  }
  return weights;
}

std::int64_t count_here(const std::vector<std::int32_t>& ids, const Layer& layer) {
  return std::count_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id < layer.experts; });
}

}  // namespace

Routing parse_routing(const std::string& name) {
  return static_cast<Routing>(
      index_of(name, "routing", {std::begin(kRoutingNames), std::end(kRoutingNames)}));
}

QuantizeInput Layer::transform() const {
  return QuantizedTo{{}, activation}.input();
}

MoeArguments Layer::imagined() const {
  MoeArguments layer =
      imagined_moe(tokens, hidden, inner, experts, top_k, recipe, dtype, transform(), activations);
  layer.all_experts = all_experts();
  return layer;
}

void check_layer(const Layer& layer) {
  if (layer.all_experts() < layer.experts) {
    throw UsageError("--of is " + std::to_string(layer.all_experts()) + ", must be at least " +
                     std::to_string(layer.experts) + ", the experts that are here");
  }
  if (layer.top_k > layer.all_experts()) {
    throw UsageError("--top-k is " + std::to_string(layer.top_k) + ", must be at most " +
                     plural(layer.all_experts(), "expert"));
  }
}

void add_layer_kind(CLI::App& command, Layer& layer) {
  add_parsed(command, "--recipe", "R", layer.recipe, parse_recipe,
             "Recipe of the weights (table below). Default: fp8_128x128");
  add_parsed(command, "--activations", "R", layer.activations, parse_recipe,
             help_text("What x and the first product's result become: bf16, fp8_1x128, "
                       "fp8_1x128_pow2, fp8_1x128_ue8m0, fp8_row or mxfp8_e4m3. Default: fp8_1x128 "
                       "with FP8 weights, else bf16"));
  add_parsed(
      command, "--activation", "F", layer.activation, parse_product_transform,
      help_text(
          "Between the products: swiglu (the default), gelu_tanh, gelu_erf, silu or identity"));
  add_parsed(command, "--dtype", "T", layer.dtype, parse_plain_format,
             "Type of y: f32, f16 or bf16 (the default)");
}

RandomLayer::RandomLayer(const Layer& layer, int threads) : layer_(layer), threads_(threads) {
  const MoeArguments imagined = layer.imagined();
  const std::int64_t up_rows = imagined.w13.rows, experts = layer.experts;
  const auto bytes = [](Recipe recipe, std::int64_t rows, std::int64_t k, std::int64_t batch) {
    const auto scales =
        is_plain(recipe) ? 0 : scale_bytes(recipe, ScaleLayout::row_major, rows, k, batch);
    return static_cast<double>(value_bytes(recipe, rows, k, batch) + scales);
  };
  check_memory(bytes(layer.recipe, up_rows, layer.hidden, experts) +
                   bytes(layer.recipe, layer.hidden, layer.inner, experts) +
                   bytes(Recipe::f32, up_rows, layer.hidden, 1) +
                   bytes(Recipe::f32, 2 * layer.tokens, layer.hidden, 1),
               "tokens, hidden, inner, experts");
  (void)describe_moe(imagined);  // throws for what no layer may be
  w13_ = random_matrices(layer.recipe, experts, up_rows, layer.hidden, 1, threads);
  w2_ = random_matrices(layer.recipe, experts, layer.hidden, layer.inner, 2, threads);
  arguments_ = imagined;
  arguments_.w13 = w13_.view();
  arguments_.w2 = w2_.view();
  route(layer.tokens, layer.routing);
}

void RandomLayer::route(std::int64_t tokens, Routing routing) {
  constexpr std::int64_t kFewTokens = 64;
  constexpr std::uint64_t kTries = 1000;
  const std::vector<float> values = random_normal(tokens, layer_.hidden, 3, threads_);
  x_ = in_recipe({values.data(), Format::f32, tokens, layer_.hidden}, Recipe::bf16, threads_);
  y_ = ScaledTensor(plain_recipe(layer_.dtype), tokens, layer_.hidden);
  const std::int64_t expected =
      std::max<std::int64_t>(1, tokens * layer_.top_k * layer_.experts / layer_.all_experts());
  for (std::uint64_t seed = 1; seed <= kTries; ++seed) {
    ids_ = random_ids(layer_, tokens, routing, seed);
    if (routing != Routing::uniform || tokens > kFewTokens) break;
    if (count_here(ids_, layer_) == expected) break;
  }
  weights_ = random_weights(tokens, layer_.top_k);
  arguments_.x = x_.view();
  arguments_.y = {y_.view().values, layer_.dtype, tokens, layer_.hidden};
  arguments_.ids = ids_.data();
  arguments_.weights = weights_.data();
}

std::vector<std::int64_t> RandomLayer::rows() const {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(layer_.experts));
  for (const std::int32_t id : ids_) {
    if (id < layer_.experts) ++rows[static_cast<std::size_t>(id)];
  }
  return rows;
}

Hit hit_of(const std::vector<std::int64_t>& rows) {
  Hit hit;
  for (const std::int64_t of_expert : rows) {
    hit.experts += of_expert > 0 ? 1 : 0;
    hit.rows += of_expert;
    hit.most = std::max(hit.most, of_expert);
  }
  return hit;
}

GemmTime time_moe(const MoeArguments& layer, int threads, int repeats, bool on_device) {
  if (!on_device) {
    return time_runs([&](std::size_t) { moe(layer, {.threads = threads}); }, repeats);
  }
  const double seconds = cuda::benchmark_moe(layer, repeats);
  return {seconds, seconds, {seconds, seconds}};
}

}  // namespace blockscale::cli
