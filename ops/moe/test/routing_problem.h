// Random problems of route and moe_sort, their results in memory that is poisoned, and what a sort
// must give by its contract, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/moe.h"
#include "core/config.h"
#include "core/format.h"
#include "ops/moe/routing.h"
#include "ops/moe/validate_routing.h"
#include "tests/gemm_problem.h"

namespace blockscale::test {

inline constexpr std::int32_t kPoison = 0x3C3C3C3C;

enum class LogitFamily : std::uint8_t {
  normal,   // a few units around 0
  tied,     // few different numbers
  special,  // NaN, infinities, huge and subnormal ones among them
};

/// Logits, and how they are routed; results are the caller's.
class RouteProblem {
 public:
  /// Of any shape, rule and dtype.
  explicit RouteProblem(Random& random) {
    constexpr std::int64_t kExperts[] = {1, 2, 7, 31, 32, 33, 60, 64, 128, 256, 384, 1024};
    x.logits.dtype = std::vector{Format::f32, Format::f16, Format::bf16}.at(pick(random, 3));
    x.logits.rows = uniform(random, 0, 20);
    x.logits.columns = kExperts[pick(random, std::size(kExperts))];
    x.logits.row_stride = x.logits.columns + (chance(random, 0.3) ? uniform(random, 1, 5) : 0);
    x.score = chance(random, 0.5) ? RouterScore::softmax : RouterScore::sigmoid;
    x.renormalize = chance(random, 0.5);
    x.scale = chance(random, 0.5) ? 1.0f : 2.5f;
    if (chance(random, 0.5)) choose_groups(random);
    const std::int64_t candidates = x.top_groups * moe_detail::experts_of_group(x);
    x.top_k = static_cast<int>(uniform(random, 1, std::min<std::int64_t>(kMaxTopK, candidates)));
    if (chance(random, 0.3)) {
      x.shared_experts = static_cast<int>(uniform(random, 0, std::min(3, kMaxTopK - x.top_k)));
    }
    fill(random, static_cast<LogitFamily>(pick(random, 3)), chance(random, 0.5));
  }
  /// Of this shape and rule; logits and bias are set here.
  RouteProblem(Random& random, const RouteArguments& arguments, LogitFamily family, bool has_bias)
      : x(arguments) {
    if (x.logits.row_stride == 0) x.logits.row_stride = x.logits.columns;
    fill(random, family, has_bias);
  }

  float logit(std::int64_t token, std::int64_t expert) const {
    return decode(x.logits.dtype,
                  codes_[static_cast<std::size_t>(token * x.logits.row_stride + expert)]);
  }

  /// Without results. Valid as long as this problem is.
  RouteArguments arguments() const {
    RouteArguments of = x;
    of.logits.data = logits_.data();
    of.correction_bias = bias_.empty() ? nullptr : bias_.data();
    return of;
  }
  const std::vector<std::uint8_t>& logits() const { return logits_; }
  const std::vector<float>& bias() const { return bias_; }

  std::string text() const {
    return std::to_string(x.logits.rows) + " tokens, " + std::to_string(x.logits.columns) +
           " experts of " + format_traits(x.logits.dtype).name + ", top " +
           std::to_string(x.top_k) + " of " + std::to_string(x.top_groups) + " of " +
           std::to_string(x.groups) + " groups by their best " + std::to_string(x.best_of_group) +
           (x.score == RouterScore::softmax ? ", softmax" : ", sigmoid") +
           (x.renormalize ? ", renormalized" : "") + ", " + std::to_string(x.shared_experts) +
           " shared" + (bias_.empty() ? "" : ", with bias");
  }

  RouteArguments x;  // without memory

 private:
  static std::size_t pick(Random& random, std::size_t count) {
    return static_cast<std::size_t>(uniform(random, 0, static_cast<std::int64_t>(count) - 1));
  }

  void choose_groups(Random& random) {
    std::vector<int> counts;
    for (int groups = 1; groups <= kMaxRouterGroups; ++groups) {
      if (x.logits.columns % groups == 0) counts.push_back(groups);
    }
    x.groups = counts[pick(random, counts.size())];
    x.top_groups = static_cast<int>(uniform(random, 1, x.groups));
    x.best_of_group = moe_detail::experts_of_group(x) > 1 && chance(random, 0.5) ? 2 : 1;
  }

  static float number(Random& random, LogitFamily family) {
    if (family == LogitFamily::tied) return static_cast<float>(uniform(random, -2, 2));
    if (family == LogitFamily::special && chance(random, 0.1)) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      const std::vector<float> special = {std::numeric_limits<float>::quiet_NaN(),
                                          kInfinity,
                                          -kInfinity,
                                          0.0f,
                                          -0.0f,
                                          3e4f,
                                          -3e4f,
                                          1e-41f,
                                          88.0f,
                                          -88.0f};
      return special[pick(random, special.size())];
    }
    return static_cast<float>(2 * normal_real(random));
  }

  void fill(Random& random, LogitFamily family, bool has_bias) {
    const std::int64_t count = x.logits.rows * x.logits.row_stride;
    const int bytes = format_traits(x.logits.dtype).bits / 8;
    logits_.resize(static_cast<std::size_t>(count * bytes));
    for (std::int64_t i = 0; i < count; ++i) {
      codes_.push_back(encode(x.logits.dtype, number(random, family)));
      std::memcpy(logits_.data() + i * bytes, &codes_.back(), static_cast<std::size_t>(bytes));
    }
    if (!has_bias) return;
    for (std::int64_t e = 0; e < x.logits.columns; ++e) {
      bias_.push_back(number(random, family) / 8);
    }
  }

  static std::uint32_t encode(Format format, float value) {
    return format == Format::f32   ? bit_cast<std::uint32_t>(value)
           : format == Format::f16 ? blockscale::encode<Format::f16>(value, Overflow::propagate)
                                   : blockscale::encode<Format::bf16>(value, Overflow::propagate);
  }

  std::vector<std::uint32_t> codes_;
  std::vector<std::uint8_t> logits_;
  std::vector<float> bias_;
};

struct RouteResults {
  explicit RouteResults(const RouteArguments& x)
      : ids(static_cast<std::size_t>(x.logits.rows * moe_detail::choices_of(x)), kPoison),
        weights(ids.size(), bit_cast<float>(kPoison)) {}

  void set(RouteArguments& x) {
    x.ids = ids.data();
    x.weights = weights.data();
  }
  std::vector<std::uint32_t> weight_bits() const {
    std::vector<std::uint32_t> bits;
    for (const float weight : weights) bits.push_back(bit_cast<std::uint32_t>(weight));
    return bits;
  }

  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

/// Experts of entries, and how they are sorted; results are the caller's.
class SortProblem {
 public:
  /// Of any shape and spread of experts, with few blocks for the emulator.
  SortProblem(Random& random, std::int64_t most_tokens, std::int64_t most_experts, int tile) {
    x.tile = tile;
    x.top_k = static_cast<int>(uniform(random, 1, chance(random, 0.2) ? kMaxTopK : 8));
    x.tokens = chance(random, 0.05) ? 0 : uniform(random, 1, most_tokens);
    x.experts = uniform(random, 1, most_experts);
    x.first_expert = static_cast<std::int32_t>(chance(random, 0.5) ? 0 : uniform(random, 1, 9));
    skipped_ = static_cast<std::size_t>(uniform(random, 0, 3));  // so that ids begin anywhere
    const std::int64_t kind = uniform(random, 0, 4);
    const std::int64_t one = uniform(random, 0, x.experts - 1);
    ids_.resize(skipped_);
    for (std::int64_t i = 0; i < x.tokens * x.top_k; ++i) {
      std::int64_t expert = uniform(random, 0, x.experts - 1);
      if (kind == 1) expert = one;  // all to one expert
      if (kind == 2) expert = std::min(expert, uniform(random, 0, x.experts - 1)) / 2;
      if (kind == 3) expert = uniform(random, -x.experts, 2 * x.experts);  // many dropped
      std::int64_t id = x.first_expert + expert;
      if (kind == 4) id = any_number(random);
      if (chance(random, 0.05)) id = -1;
      ids_.push_back(static_cast<std::int32_t>(id));
    }
    if (chance(random, 0.3)) map_experts(random);
  }
  explicit SortProblem(const MoeSortArguments& arguments, std::vector<std::int32_t> ids)
      : x(arguments), ids_(std::move(ids)) {}

  MoeSortArguments arguments() const {
    MoeSortArguments of = x;
    of.ids = entries() == 0 ? nullptr : ids();
    of.expert_map = map_.empty() ? nullptr : map_.data();
    return of;
  }
  const std::int32_t* ids() const { return ids_.data() + skipped_; }
  const std::vector<std::int32_t>& map() const { return map_; }
  /// The expert, by the numbers that the device's have, of an entry.
  std::int64_t expert_of(std::size_t entry) const {
    const std::int32_t id = ids()[entry];
    if (map_.empty()) return id;
    return id >= 0 && id < std::ssize(map_) ? map_[static_cast<std::size_t>(id)] : -1;
  }
  std::size_t entries() const { return ids_.size() - skipped_; }

  std::string text() const {
    std::string text = std::to_string(x.tokens) + " tokens, top " + std::to_string(x.top_k) +
                       ", experts " + std::to_string(x.first_expert) + " to " +
                       std::to_string(x.first_expert + x.experts - 1) + ", tiles of " +
                       std::to_string(x.tile) + ":";
    for (std::size_t i = 0; i < std::min<std::size_t>(entries(), 64); ++i) {
      text += " " + std::to_string(ids()[i]);
    }
    return text;
  }

  MoeSortArguments x;  // without memory

 private:
  std::int64_t any_number(Random& random) const {
    constexpr auto kLeast = std::numeric_limits<std::int32_t>::min();
    constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
    const std::int64_t numbers[] = {kLeast,
                                    kMost,
                                    -1,
                                    x.first_expert - 1,
                                    x.first_expert,
                                    x.first_expert + x.experts,
                                    x.first_expert + x.experts - 1};
    return numbers[uniform(random, 0, std::ssize(numbers) - 1)];
  }
  void map_experts(Random& random) {
    x.mapped_ids = uniform(random, 1, x.first_expert + 2 * x.experts);
    for (std::int64_t i = 0; i < x.mapped_ids; ++i) {
      map_.push_back(static_cast<std::int32_t>(x.first_expert + uniform(random, -2, x.experts)));
    }
  }

  std::size_t skipped_ = 0;
  std::vector<std::int32_t> ids_, map_;
};

/// All that moe_sort can make.
struct SortResults {
  /// Poisoned. Those of tiles are empty where there are none.
  explicit SortResults(const MoeSortArguments& x) {
    const auto poisoned = [](std::int64_t count) {
      return std::vector<std::int32_t>(static_cast<std::size_t>(count), kPoison);
    };
    const std::int64_t rows = moe_sort_rows(x.tokens, x.top_k, x.experts, x.tile);
    offsets = poisoned(x.experts + 1);
    row_of_entry = poisoned(x.tokens * x.top_k);
    entry_of_row = token_of_row = poisoned(rows);
    padded_rows = poisoned(1);
    if (x.tile == 1) return;
    expert_of_tile = row_limit_of_tile = poisoned(rows / x.tile);
    tiles = poisoned(1);
  }

  void set(MoeSortArguments& x) {
    x.offsets = offsets.data();
    x.row_of_entry = row_of_entry.data();
    x.entry_of_row = entry_of_row.data();
    x.token_of_row = token_of_row.data();
    x.padded_rows = padded_rows.data();
    if (x.tile == 1) return;
    x.expert_of_tile = expert_of_tile.data();
    x.row_limit_of_tile = row_limit_of_tile.data();
    x.tiles = tiles.data();
  }

  friend bool operator==(const SortResults&, const SortResults&) = default;

  std::vector<std::int32_t> offsets, row_of_entry, entry_of_row, token_of_row, expert_of_tile,
      row_limit_of_tile, padded_rows, tiles;
};

/// By the words of include/blockscale/moe.h: a list of entries for each expert, padded.
inline SortResults sort_reference(const SortProblem& problem) {
  const MoeSortArguments& x = problem.x;
  SortResults r(x);
  std::fill(r.row_of_entry.begin(), r.row_of_entry.end(), -1);
  std::vector<std::int32_t> entries;  // of rows
  std::vector<std::int32_t> experts, limits;
  r.offsets.clear();
  for (std::int64_t e = 0; e < x.experts; ++e) {
    r.offsets.push_back(static_cast<std::int32_t>(entries.size()));
    for (std::size_t i = 0; i < problem.entries(); ++i) {
      if (problem.expert_of(i) != x.first_expert + e) continue;
      if (entries.size() % static_cast<std::size_t>(x.tile) == 0) {
        experts.push_back(static_cast<std::int32_t>(e));
        limits.push_back(0);
      }
      r.row_of_entry[i] = static_cast<std::int32_t>(entries.size());
      entries.push_back(static_cast<std::int32_t>(i));
      limits.back() = static_cast<std::int32_t>(entries.size());
    }
    while (entries.size() % static_cast<std::size_t>(x.tile) != 0) entries.push_back(-1);
  }
  r.offsets.push_back(static_cast<std::int32_t>(entries.size()));
  r.padded_rows = {static_cast<std::int32_t>(entries.size())};
  entries.resize(r.entry_of_row.size(), -1);
  r.entry_of_row = r.token_of_row = entries;
  for (std::int32_t& token : r.token_of_row) token = token < 0 ? -1 : token / x.top_k;
  if (x.tile == 1) return r;
  r.tiles = {static_cast<std::int32_t>(experts.size())};
  experts.resize(r.expert_of_tile.size(), -1);
  limits.resize(r.row_limit_of_tile.size(), 0);
  r.expert_of_tile = experts;
  r.row_limit_of_tile = limits;
  return r;
}

}  // namespace blockscale::test
