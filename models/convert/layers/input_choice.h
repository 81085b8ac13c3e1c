// How the inputs of each weight are quantized in the result: as the options, the source or the
// destination's preset say.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/convert/selection/pattern.h"

namespace blockscale::models {

/// What the source says of its weights' inputs.
class SourceInputs {
 public:
  explicit SourceInputs(const StoredCheckpoint& source);

  /// Of a quantized weight; null if nothing does. Of groups that fit, one that names the module
  /// wins, then one with a pattern of it, as in compressed-tensors.
  const InputGroup* of(const CheckpointTensor& tensor) const;
  /// Whether a target is the weight's name or a pattern of it, beside others that are classes.
  bool names(const CheckpointTensor& tensor) const;

 private:
  std::vector<InputGroup> groups_;
  std::map<std::string, std::vector<std::size_t>, std::less<>> by_target_;
  std::vector<std::pair<Pattern, std::size_t>> patterns_;
  std::vector<std::size_t> of_all_;  // classes, or no target at all
  bool has_classes_ = false;
};

struct InputChoice {
  Activations activations = Activations::none;
  const Json* words = nullptr;  // the source's, where dialect, recipe and choice are the same
  std::string why;
};

/// Throws invalid_argument for a choice of the options that the destination cannot say or that
/// lacks scales, and where the recipe needs scales and has none.
class InputChooser {
 public:
  InputChooser(const StoredCheckpoint& source, const DialectTraits& destination,
               std::optional<Activations> asked)
      : source_(source), destination_(destination), asked_(asked), said_(source) {}

  /// Whether scales that are given are for weights of this recipe.
  bool takes_scales(Recipe recipe) const;
  /// Whether scales of the source may be kept.
  bool keeps_scales() const { return !asked_ || *asked_ == Activations::calibrated; }
  /// Whether the weight, which stays as it is, has what is asked for.
  bool is_as_asked(const CheckpointTensor& tensor) const;
  /// Of a weight that is quantized to `recipe` in the destination, with scales or without.
  InputChoice choose(const CheckpointTensor& tensor, Recipe recipe, bool has_scales,
                     bool scales_given) const;

 private:
  const StoredCheckpoint& source_;
  const DialectTraits& destination_;
  std::optional<Activations> asked_;
  SourceInputs said_;
};

}  // namespace blockscale::models
