#include "models/convert/layers/input_choice.h"

#include <algorithm>

#include "models/text.h"

namespace blockscale::models {
namespace {

std::string choices_of(const DialectTraits& dialect, Recipe recipe) {
  std::string names;
  for (const Activations each :
       {Activations::none, Activations::dynamic, Activations::calibrated}) {
    if (!dialect.can_have(recipe, each)) continue;
    names += (names.empty() ? "" : " or ") + std::string(activations_name(each));
  }
  return names;
}

int element_bits(Recipe recipe) {
  return format_traits(recipe_traits(recipe).element).bits;
}

std::string in_dialect(Recipe recipe, const DialectTraits& dialect) {
  return std::string(recipe_traits(recipe).name) + " in " + dialect.name;
}

}  // namespace

SourceInputs::SourceInputs(const StoredCheckpoint& source) {
  if (source.dialect().inputs == nullptr) return;
  groups_ = source.dialect().inputs(source.store(), source.config());
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].targets.empty()) of_all_.push_back(i);
    for (const std::string& target : groups_[i].targets) {
      by_target_[target].push_back(i);
      const bool is_class = target.find_first_of(".:") == std::string::npos &&
                            source.find(target) == nullptr &&
                            source.find(target + ".weight") == nullptr;
      if (is_class) of_all_.push_back(i);
      has_classes_ |= is_class;
      if (target.starts_with("re:")) {
        try {
          patterns_.emplace_back(Pattern(target, "targets"), i);
        } catch (const Error&) {  // lookaround: its weights fall to the groups of all
          of_all_.push_back(i);
        }
      }
    }
  }
}

const InputGroup* SourceInputs::of(const CheckpointTensor& tensor) const {
  const auto fits = [&](std::size_t i) {
    const std::vector<Recipe>& recipes = groups_[i].recipes;
    return recipes.empty() ||
           std::find(recipes.begin(), recipes.end(), tensor.recipe) != recipes.end();
  };
  const auto first = [&](const std::vector<std::size_t>& groups) -> const InputGroup* {
    const auto found = std::find_if(groups.begin(), groups.end(), fits);
    return found == groups.end() ? nullptr : &groups_[*found];
  };
  if (const auto named = by_target_.find(module_of(tensor.name)); named != by_target_.end()) {
    if (const InputGroup* group = first(named->second)) return group;
  }
  for (const auto& [pattern, i] : patterns_) {
    if (fits(i) && pattern.matches(tensor.name)) return &groups_[i];
  }
  return first(of_all_);
}

bool SourceInputs::names(const CheckpointTensor& tensor) const {
  if (!has_classes_) return false;
  return by_target_.contains(module_of(tensor.name)) ||
         std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const auto& pattern) { return pattern.first.matches(tensor.name); });
}

bool InputChooser::takes_scales(Recipe recipe) const {
  if (is_plain(recipe) || !destination_.can_have(recipe, Activations::calibrated)) return false;
  return asked_.value_or(destination_.preset(recipe)) == Activations::calibrated;
}

bool InputChooser::is_as_asked(const CheckpointTensor& tensor) const {
  if (!asked_ || !tensor.quantized) return true;
  const InputGroup* said = said_.of(tensor);
  return said != nullptr && said->activations == *asked_;
}

InputChoice InputChooser::choose(const CheckpointTensor& tensor, Recipe recipe, bool has_scales,
                                 bool scales_given) const {
  const InputGroup* said = tensor.quantized ? said_.of(tensor) : nullptr;
  const bool same = source_.dialect().dialect == destination_.dialect && tensor.recipe == recipe;
  const auto words_for = [&](Activations activations) {
    return said != nullptr && same && said->activations == activations ? said->words : nullptr;
  };
  if (has_scales) {
    return {Activations::calibrated, words_for(Activations::calibrated),
            scales_given ? "from activation_scales" : "as in the source"};
  }
  if (asked_) {
    if (!destination_.can_have(recipe, *asked_)) {
      throw Error(ErrorCode::invalid_argument, "activations",
                  std::string("is ") + activations_name(*asked_) + ", must be " +
                      choices_of(destination_, recipe) + " for " +
                      in_dialect(recipe, destination_));
    }
    if (*asked_ == Activations::calibrated) {
      throw Error(ErrorCode::invalid_argument, "activations",
                  "is static, but " + quote(tensor.name) +
                      " has no scale for its input; activation_scales gives them");
    }
    return {*asked_, words_for(*asked_), "as asked for"};
  }
  Activations choice = said != nullptr ? said->activations : destination_.preset(recipe);
  const char* why = said != nullptr ? "as in the source" : "by default";
  if (choice == Activations::calibrated) {
    choice = Activations::none;
    why = said != nullptr ? "static in the source, whose scales are dropped"
                          : "static ones need activation_scales";
  }
  if (said != nullptr && choice == Activations::dynamic &&
      element_bits(tensor.recipe) != element_bits(recipe)) {
    choice = Activations::none;  // 8-bit inputs are no reason for 4-bit ones
    why = "dynamic in the source, in other bits";
  }
  if (destination_.can_have(recipe, choice)) return {choice, words_for(choice), why};
  for (const Activations other : {Activations::none, Activations::dynamic}) {
    if (!destination_.can_have(recipe, other)) continue;
    return {other, nullptr, "all that the dialect has"};
  }
  throw Error(ErrorCode::invalid_argument, "activation_scales",
              "is not given, and must be for " + in_dialect(recipe, destination_) +
                  ", whose inputs have static scales, and " + quote(tensor.name) + " has none");
}

}  // namespace blockscale::models
