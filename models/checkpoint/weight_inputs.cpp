#include "models/checkpoint/weight_inputs.h"

#include <array>

namespace blockscale::models {
namespace {

bool is_fp8(Recipe recipe) {
  return recipe_traits(recipe).family == Family::fp8;
}

/// What inputs in `said` become beside weights of `weight`, so that both have a product: FP8 beside
/// FP8 as `input_recipe` has it, a scale a row elsewhere.
Recipe beside(Recipe weight, Recipe said, Activations activations) {
  if (!is_fp8(said)) return said;
  if (is_fp8(weight)) return input_recipe(weight, activations);
  const bool dynamic = activations == Activations::dynamic;
  return dynamic && said == Recipe::fp8_tensor ? Recipe::fp8_row : said;
}

}  // namespace

WeightInputs inputs_of(const StoredCheckpoint& source, const SourceInputs& said, std::size_t i) {
  const CheckpointTensor& tensor = source.tensors()[i];
  WeightInputs inputs;
  if (!tensor.quantized) return inputs;
  const WeightParts& parts = source.parts(i);
  const bool has_scales = parts.input_scale != nullptr && !tensor.column_factors &&
                          tensor.form.empty() && !source.has_unused_inputs(i);
  const InputGroup* group = said.of(tensor);
  if (group != nullptr) {
    inputs.activations = group->activations;
  } else if (has_scales) {
    inputs.activations = Activations::calibrated;
  }
  if (inputs.activations == Activations::none) return inputs;
  if (group != nullptr && group->words != nullptr && !group->recipe) {
    throw Error(ErrorCode::unsupported, tensor.name,
                "has inputs in " + group->words->dump() + ", which no recipe says");
  }
  if (inputs.activations == Activations::calibrated && !has_scales) {
    inputs.activations = Activations::dynamic;
  }
  const Recipe usual = input_recipe(tensor.recipe, inputs.activations);
  const Recipe asked = group != nullptr ? group->recipe.value_or(usual) : usual;
  inputs.recipe = beside(tensor.recipe, asked, inputs.activations);
  if (inputs.activations != Activations::calibrated) return inputs;
  // What a scale means follows from the weight's recipe.
  const bool as_meant = is_fp8(tensor.recipe) ? is_fp8(inputs.recipe)
                                              : inputs.recipe == tensor.recipe &&
                                                    recipe_traits(inputs.recipe).tensor_scale;
  if (!as_meant) {
    throw Error(ErrorCode::unsupported, tensor.name,
                std::string("is ") + recipe_traits(tensor.recipe).name + " with static inputs in " +
                    recipe_traits(inputs.recipe).name + ", whose scales nobody here reads");
  }
  inputs.scales = source.input_factors(i, parts.sense);
  return inputs;
}

}  // namespace blockscale::models
