// Routing on the CPU: the same operations in the same order as the kernel's (kernels/route.cuh),
// whose lanes are partial sums here.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "blockscale/moe.h"
#include "blockscale/parallel.h"
#include "core/exponential.h"
#include "core/format.h"
#include "ops/common/checks.h"
#include "ops/common/float_environment.h"
#include "ops/moe/routing.h"
#include "ops/moe/validate_routing.h"

namespace blockscale {
namespace moe_detail {
namespace {

using math::ScalarMath;

template <class T>
using OfExperts = std::array<T, kMaxExperts>;

/// A token's numbers, as far as experts have them.
struct Token {
  std::size_t experts = 0;
  OfExperts<float> scores;
  OfExperts<std::uint32_t> keys;  // of choices

  std::size_t best() const {
    return static_cast<std::size_t>(std::max_element(keys.begin(), keys.begin() + experts) -
                                    keys.begin());
  }
};

void load_logits(const RouteArguments& x, std::int64_t token, Token& t) {
  const std::int64_t first = token * x.logits.row_stride;
  for (std::size_t e = 0; e < t.experts; ++e) {
    const std::int64_t at = first + static_cast<std::int64_t>(e);
    if (x.logits.dtype == Format::f32) {
      t.scores[e] = static_cast<const float*>(x.logits.data)[at];
    } else {
      const std::uint16_t bits = static_cast<const std::uint16_t*>(x.logits.data)[at];
      t.scores[e] = x.logits.dtype == Format::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  }
}

void softmax(Token& t) {
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t e = 0; e < t.experts; ++e) largest = std::max(largest, t.scores[e]);
  std::array<float, routing::kPartialSums> partial = {};
  for (std::size_t e = 0; e < t.experts; ++e) {
    t.scores[e] = math::exponential(ScalarMath::add(t.scores[e], -largest));
    float& sum = partial[e % partial.size()];
    sum = ScalarMath::add(sum, t.scores[e]);
  }
  // As a butterfly adds them up: both of a pair get the same sum.
  for (std::size_t step = partial.size() / 2; step > 0; step /= 2) {
    for (std::size_t i = 0; i < step; ++i) {
      partial[i] = ScalarMath::add(partial[i], partial[i + step]);
    }
  }
  for (std::size_t e = 0; e < t.experts; ++e) t.scores[e] = math::divide(t.scores[e], partial[0]);
}

/// Experts of all but the best groups can no longer be chosen.
void choose_groups(const RouteArguments& x, Token& t) {
  if (x.groups == 1) return;
  const auto size = static_cast<std::size_t>(experts_of_group(x));
  std::array<std::uint32_t, kMaxRouterGroups> of_group = {};
  for (std::size_t g = 0; g < static_cast<std::size_t>(x.groups); ++g) {
    std::uint32_t first = routing::kTakenKey, second = routing::kTakenKey;
    for (std::size_t e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(first, t.keys[e]));
      first = std::max(first, t.keys[e]);
    }
    of_group[g] = routing::group_key(first, second, x.best_of_group);
  }
  std::array<bool, kMaxRouterGroups> is_chosen = {};
  for (int i = 0; i < x.top_groups; ++i) {
    const auto best = std::max_element(of_group.begin(), of_group.end());
    *best = routing::kTakenKey;
    is_chosen[static_cast<std::size_t>(best - of_group.begin())] = true;
  }
  for (std::size_t e = 0; e < t.experts; ++e) {
    if (!is_chosen[e / size]) t.keys[e] = routing::kTakenKey;
  }
}

void route_token(const RouteArguments& x, std::int64_t token, Token& t) {
  load_logits(x, token, t);
  if (x.score == RouterScore::softmax) {
    softmax(t);
  } else {
    for (std::size_t e = 0; e < t.experts; ++e) t.scores[e] = math::sigmoid(t.scores[e]);
  }
  for (std::size_t e = 0; e < t.experts; ++e) {
    const float choice = x.correction_bias == nullptr
                             ? t.scores[e]
                             : ScalarMath::add(t.scores[e], x.correction_bias[e]);
    t.keys[e] = routing::key_of(choice);
  }
  choose_groups(x, t);
  std::int32_t* const ids = x.ids + token * choices_of(x);
  float* const weights = x.weights + token * choices_of(x);
  float sum = 0;
  for (int j = 0; j < x.top_k; ++j) {
    const std::size_t best = t.best();
    t.keys[best] = routing::kTakenKey;
    ids[j] = static_cast<std::int32_t>(best);
    weights[j] = t.scores[best];
    sum = ScalarMath::add(sum, weights[j]);
  }
  for (int j = 0; j < x.top_k; ++j) {
    const float weight =
        x.renormalize ? math::divide(weights[j], routing::divisor_of(sum)) : weights[j];
    weights[j] = routing::stored_weight(weight, x.scale);
  }
  for (int j = 0; j < x.shared_experts; ++j) {
    ids[x.top_k + j] = static_cast<std::int32_t>(x.logits.columns) + j;
    weights[x.top_k + j] = 1.0f;
  }
}

}  // namespace
}  // namespace moe_detail

void route(const RouteArguments& arguments, int threads) {
  checks::check_threads("threads", threads);
  const RouteArguments x = moe_detail::validated(arguments);
  constexpr std::int64_t kTokens = 16;  // of a piece
  parallel_for(x.logits.rows, kTokens, threads, [&](std::int64_t begin, std::int64_t end) {
    const DefaultFloatEnvironment environment;
    moe_detail::Token token;
    token.experts = static_cast<std::size_t>(x.logits.columns);
    for (std::int64_t t = begin; t < end; ++t) moe_detail::route_token(x, t, token);
  });
}

}  // namespace blockscale
