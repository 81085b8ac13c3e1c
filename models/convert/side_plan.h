// What becomes of the scales of activations and of the key and value cache: carried over with their
// meaning, or dropped, all of a kind together, and said so. docs/checkpoints.md has the table.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/side_tensors.h"
#include "models/convert/selection/selection.h"

namespace blockscale::models {

/// What a recipe's input scale is a multiple of: 2688 (NVFP4) or 448 (FP8); 0 of others.
int input_range(Recipe recipe);

class SidePlan {
 public:
  /// `unchanged`: nothing is converted, everything stays. `given`: recipes whose weights are given
  /// scales of their inputs; `keep_inputs`: whether the source's may stay; `unused`: what becomes
  /// of those of 0.
  SidePlan(const StoredCheckpoint& source, const std::vector<Decision>& decisions,
           const DialectTraits& destination, bool unchanged, const std::set<Recipe>& given,
           bool keep_inputs, UnusedInputs unused);

  /// Whether the weights that become `recipe` are written with their input scales: all or none.
  bool inputs(Recipe recipe) const { return inputs_[static_cast<std::size_t>(recipe)]; }

  /// What becomes of tensor `i`, which is no weight: null, it stays what it is.
  struct Fate {
    std::string name;  // in the destination; empty: it is dropped
    std::string reason;
  };
  std::optional<Fate> fate(std::size_t i) const;

  /// What the destination says of the cache.
  const std::optional<CacheScheme>& cache() const { return cache_; }

  /// One sentence a kind of what was dropped or is stored otherwise.
  std::vector<std::string> warnings() const;

 private:
  void decide_inputs(const std::vector<Decision>& decisions, const DialectTraits& destination,
                     const std::set<Recipe>& given, bool keep_inputs, UnusedInputs unused);
  void decide_cache(const DialectTraits& destination, bool any_quantized);
  void drop(const std::string& what, const std::string& why, const std::string& tensor);
  void drop_sides();

  const StoredCheckpoint& source_;
  std::array<bool, kRecipeCount> inputs_{};
  std::optional<CacheScheme> cache_;
  std::map<std::size_t, Fate> fates_;
  struct Dropped {
    int count = 0;
    std::string example;

    void add(const std::string& tensor);
    std::string text() const;
  };
  std::map<std::pair<std::string, std::string>, Dropped> dropped_;  // by what and why
  Dropped stored_as_one_;
};

}  // namespace blockscale::models
