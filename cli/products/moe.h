// What `moe` and `bench moe` share: a layer of random weights, and tokens that a routing sends to
// its experts.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/moe.h"
#include "output.h"
#include "products/gemm.h"

namespace blockscale::cli {

/// To which experts tokens go.
enum class Routing : std::uint8_t {
  uniform,  // any
  zipf,     // the r-th most wanted one by r^-1.2
  one_hot,  // those of the first token
};
inline constexpr const char* kRoutingNames[] = {"uniform", "zipf", "one-hot"};
Routing parse_routing(const std::string& name);

struct Layer {
  std::int64_t tokens = 64;
  std::int64_t hidden = 2048;
  std::int64_t inner = 768;
  std::int64_t experts = 128;           // that are here: the first ones of all
  std::optional<std::int64_t> of = {};  // how many there are in all; none: `experts`
  int top_k = 8;
  Recipe recipe = Recipe::fp8_128x128;     // of both weights
  std::optional<Recipe> activations = {};  // as of MoeArguments
  InputTransform activation = InputTransform::swiglu;
  Format dtype = Format::bf16;  // of y
  Routing routing = Routing::uniform;

  std::int64_t all_experts() const { return of.value_or(experts); }
  QuantizeInput transform() const;
  /// In memory that does not exist.
  MoeArguments imagined() const;
};

/// Throws UsageError where tokens cannot have so many experts.
void check_layer(const Layer& layer);

/// --recipe, --activations, --activation and --dtype.
void add_layer_kind(CLI::App& command, Layer& layer);

/// A layer in memory. x is bf16, from the standard normal distribution; so are weights, divided by
/// the square root of their columns. Throws as check_memory does.
class RandomLayer {
 public:
  RandomLayer(const Layer& layer, int threads);

  /// Each token's top_k experts differ. Of a uniform routing of few tokens as many
  /// rows are here as are on average, and the most wanted expert of others is here.
  void route(std::int64_t tokens, Routing routing);

  const MoeArguments& arguments() const { return arguments_; }
  /// Of each expert that is here.
  std::vector<std::int64_t> rows() const;

 private:
  Layer layer_;
  int threads_;
  ScaledTensor x_, w13_, w2_, y_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
  MoeArguments arguments_;
};

/// Of a layer: how many experts have rows, and how many rows there are.
struct Hit {
  std::int64_t experts = 0;
  std::int64_t rows = 0;
  std::int64_t most = 0;  // rows of an expert
};
Hit hit_of(const std::vector<std::int64_t>& rows);

/// One run to warm up, then `repeats`; with `on_device` of the current CUDA device.
GemmTime time_moe(const MoeArguments& layer, int threads, int repeats, bool on_device);

/// What a result in JSON is of: the layer; tokens and where they went; the roofline's two numbers.
Json layer_json(const Layer& layer);
Json routing_json(std::int64_t tokens, Routing routing, const Hit& hit);
Json roofline_json(const GemmWork& work);

/// y of a sample of tokens against the layer in float64, with what the library quantizes and rounds
/// between its steps: |y - y'| / |y'|.
struct MoeCheck {
  std::int64_t tokens = 0;
  double error = 0;
  double allowed = 0;

  bool passed() const { return error <= allowed; }  // not where it is NaN
};
/// `x` is a RandomLayer's, whose y was computed.
MoeCheck check_moe(const MoeArguments& x, std::int64_t samples, int threads);

}  // namespace blockscale::cli
