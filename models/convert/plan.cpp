#include "models/convert/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "models/convert/checks/contradictions.h"
#include "models/convert/checks/option_checks.h"
#include "models/convert/checks/staying_dtypes.h"
#include "models/convert/files/shards.h"
#include "models/convert/layers/activation_scales.h"
#include "models/convert/layers/fused_siblings.h"
#include "models/convert/layers/input_choice.h"
#include "models/convert/layers/named_layers.h"
#include "models/convert/layers/scale_groups.h"
#include "models/convert/selection/selection.h"
#include "models/convert/side_plan.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

std::uint64_t bytes_of(const std::vector<PartToWrite>& parts) {
  std::uint64_t bytes = 0;
  for (const PartToWrite& part : parts) bytes += part.info.bytes;
  return bytes;
}

std::int64_t factor_count(const TensorStore::Entry* factor) {
  if (factor == nullptr) return 1;
  return static_cast<std::int64_t>(factor->info.bytes) * 8 / dtype_bits(factor->info.dtype);
}

class Planner {
 public:
  Planner(std::shared_ptr<const StoredCheckpoint> source, const ConvertOptions& options)
      : source_(*source), options_(options) {
    const Dialect dialect = options.dialect.value_or(default_dialect(options.recipe));
    plan_.source = std::move(source);
    plan_.destination = &dialect_traits(dialect);
    if (is_plain(options.recipe) && options.include.empty()) plan_.plain_dtype = options.recipe;
    chooser_ =
        std::make_unique<const InputChooser>(source_, *plan_.destination, options.activations);
  }

  Plan run(const std::string& file_name) {
    decisions_ = select(source_, options_, *plan_.destination);
    check_recipe_options(options_);
    read_activations();
    check_scales();
    plan_tensors();
    if (options_.share_tensor_scales && find_rescaled()) plan_tensors();
    choose_inputs();
    read_channel_weights();
    check_plan_options(options_, plan_);
    const std::vector<std::string> contradicting = contradictions(source_);
    plan_.warnings.insert(plan_.warnings.end(), contradicting.begin(), contradicting.end());
    const std::vector<std::string> of_sides = sides_->warnings();
    plan_.warnings.insert(plan_.warnings.end(), of_sides.begin(), of_sides.end());
    const auto of_siblings = warnings_of(differing_siblings(plan_), plan_);
    plan_.warnings.insert(plan_.warnings.end(), of_siblings.begin(), of_siblings.end());
    const auto of_unnamed = warnings_of_unnamed(plan_);
    plan_.warnings.insert(plan_.warnings.end(), of_unnamed.begin(), of_unnamed.end());
    const auto staying = staying_dtypes(plan_);
    plan_.warnings.insert(plan_.warnings.end(), staying.begin(), staying.end());
    plan_.kept_modules = kept_modules(source_, decisions_);
    check_unique_names(plan_);
    find_groups(plan_, options_);
    fill_shards(plan_, options_.shard_bytes, file_name);
    return std::move(plan_);
  }

 private:
  void read_activations() {
    if (!options_.activation_scales) return;
    const bool taken = std::any_of(decisions_.begin(), decisions_.end(), [&](const Decision& d) {
      return chooser_->takes_scales(d.recipe);
    });
    if (!taken) {
      throw Error(ErrorCode::invalid_argument, "activation_scales",
                  std::string("given for ") + recipe_traits(options_.recipe).name + " in " +
                      plan_.destination->name + ", which stores none" +
                      (options_.activations ? " with these activations" : " by default"));
    }
    const std::map<std::string, float> given = read_activation_scales(*options_.activation_scales);
    // Fused layers have one input, so they get one scale.
    std::map<std::string, float> of_group;
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      if (!chooser_->takes_scales(decisions_[i].recipe)) continue;
      const std::string& name = source_.tensors()[i].name;
      const float* const found = entry_of(given, name);
      if (found == nullptr) {
        throw Error(ErrorCode::invalid_argument, "activation_scales",
                    "has no entry " + quote(name) + ", every weight that becomes " +
                        recipe_traits(decisions_[i].recipe).name +
                        " needs one (engines read garbage else)");
      }
      float& group = of_group[fused_group(name)];
      group = std::max(group, *found);
    }
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      if (!chooser_->takes_scales(decisions_[i].recipe)) continue;
      absmax_[i] = of_group[fused_group(source_.tensors()[i].name)];
      given_.insert(decisions_[i].recipe);
    }
  }

  /// Of every weight whose scales are searched with them.
  void read_channel_weights() {
    if (!options_.calibration) return;
    const CalibratedChannels given = read_calibrated_channels(*options_.calibration);
    for (PlannedTensor& planned : plan_.tensors) {
      if (!searches_scales(options_, planned)) continue;
      const CheckpointTensor& tensor = source_.tensors()[planned.source];
      const std::vector<float>* const found = entry_of(given.mean_squares, tensor.name);
      if (found == nullptr) {
        throw Error(ErrorCode::invalid_argument, "calibration",
                    "has no " + quote(tensor.name + ".input_mean_square") +
                        " (or of its module), every weight that is quantized to " +
                        recipe_traits(planned.recipe).name + " needs one");
      }
      planned.channel_weights = of_channels(*found, tensor);
      const std::vector<float>* const means = entry_of(given.means, tensor.name);
      if (means != nullptr && recipe_traits(planned.recipe).family == Family::mx) {
        planned.channel_means = of_channels(*means, tensor);
      }
    }
  }

  static std::shared_ptr<const std::vector<float>> of_channels(const std::vector<float>& numbers,
                                                               const CheckpointTensor& tensor) {
    const std::int64_t k = tensor.shape.back();
    if (static_cast<std::int64_t>(numbers.size()) != k) {
      throw Error(ErrorCode::invalid_argument, "calibration",
                  "has " + std::to_string(numbers.size()) + " channels for " + quote(tensor.name) +
                      ", must have " + std::to_string(k));
    }
    return std::make_shared<const std::vector<float>>(numbers);
  }

  /// Whether tensor `i` has the recipe and the dialect that it shall have. Factors of its columns
  /// stay only where the words of the configuration stay.
  bool is_there_already(std::size_t i) const {
    const bool new_inputs = sides_->inputs(decisions_[i].recipe) && source_.has_unused_inputs(i);
    const bool alone =  // alpha means nothing without the inputs' scale
        source_.parts(i).tensor_scale_is_alpha && !sides_->inputs(decisions_[i].recipe);
    return would_stay(i) && !new_inputs && !alone &&
           (plan_.all_verbatim || source_.tensors()[i].form.empty());
  }

  bool would_stay(std::size_t i) const {
    const CheckpointTensor& tensor = source_.tensors()[i];
    if (!tensor.quantized) return !decisions_[i].convert;
    if (!tensor.form.empty() && !tensor.column_factors) return false;  // its recipe is another
    return source_.dialect().dialect == plan_.destination->dialect && !absmax_.contains(i) &&
           !rescaled_.contains(i) && stored_recipe(i, decisions_[i].recipe) == decisions_[i].recipe;
  }

  /// How the inputs of quantized weights are described.
  void choose_inputs() {
    if (plan_.all_verbatim) return;
    std::set<std::string> lines;
    std::set<Recipe> lacking;
    for (PlannedTensor& planned : plan_.tensors) {
      if (!planned.quantized) continue;
      InputChoice choice =
          chooser_->choose(source_.tensors()[planned.source], planned.recipe,
                           sides_->inputs(planned.recipe), planned.input_absmax > 0);
      planned.activations = choice.activations;
      planned.input_words = choice.words;
      lines.insert(std::string(recipe_traits(planned.recipe).name) + ": " +
                   activations_name(choice.activations) + ", " + choice.why);
      const bool wanted = !plan_.destination->can_have(planned.recipe, Activations::none) &&
                          plan_.destination->preset(planned.recipe) == Activations::calibrated;
      if (wanted && choice.activations == Activations::dynamic) lacking.insert(planned.recipe);
    }
    plan_.activations.assign(lines.begin(), lines.end());
    for (const Recipe recipe : lacking) {
      plan_.warnings.push_back(
          std::string(recipe_traits(recipe).name) + " has no scales of inputs, which engines of " +
          plan_.destination->name + " read beside it; activation_scales gives them");
    }
  }

  bool changes_nothing() const {
    bool nothing = source_.dialect().dialect == plan_.destination->dialect;
    for (std::size_t i = 0; nothing && i < decisions_.size(); ++i) {
      nothing = would_stay(i) && chooser_->is_as_asked(source_.tensors()[i]) &&
                !source_.has_unused_inputs(i);
    }
    return nothing;
  }

  void check_scales() const {
    for (std::size_t i = 0; i < source_.tensors().size(); ++i) {
      if (const auto problem = source_.scale_problem(i)) {
        throw Error(ErrorCode::corrupt_file, problem->tensor, problem->message);
      }
    }
  }

  void plan_tensors() {
    plan_.all_verbatim = changes_nothing();
    sides_ = std::make_unique<SidePlan>(source_, decisions_, *plan_.destination, plan_.all_verbatim,
                                        given_, chooser_->keeps_scales(), options_.unused_inputs);
    plan_.cache = sides_->cache();
    plan_.tensors.clear();
    for (std::size_t i = 0; i < decisions_.size(); ++i) plan_.tensors.push_back(plan_tensor(i));
  }

  /// Fused weights whose tensor scales would be copied and differ are to be quantized anew.
  bool find_rescaled() {
    for (const Siblings& siblings : differing_siblings(plan_)) {
      const bool wanted = std::all_of(siblings.members.begin(), siblings.members.end(),
                                      [&](std::size_t i) { return decisions_[i].convert; });
      if (!wanted || siblings.same_tensor_scale) continue;
      rescaled_.insert(siblings.members.begin(), siblings.members.end());
    }
    return !rescaled_.empty();
  }

  PlannedTensor plan_tensor(std::size_t i) const {
    const CheckpointTensor& tensor = source_.tensors()[i];
    const Decision& decision = decisions_[i];
    PlannedTensor planned;
    planned.source = i;
    planned.recipe = decision.recipe;
    planned.quantized = !is_plain(decision.recipe);
    planned.converted = decision.convert;
    planned.reason = decision.reason;
    planned.rule = decision.rule;
    const auto absmax = absmax_.find(i);
    if (absmax != absmax_.end()) planned.input_absmax = absmax->second;

    const Recipe stored = stored_recipe(i, decision.recipe);
    if (const auto fate = sides_->fate(i)) {
      plan_side(planned, *fate);
    } else if (is_there_already(i)) {
      take_stored(planned);
      planned.converted = false;
      if (tensor.quantized && planned.reason.empty()) {
        planned.reason = std::string("already ") + recipe_traits(tensor.recipe).name + ", copied";
      }
    } else {
      plan_change(planned, tensor, stored);
    }
    planned.bytes = bytes_of(planned.parts);
    return planned;
  }

  /// A scale that is no weight: dropped, or under another name as f32.
  void plan_side(PlannedTensor& planned, const SidePlan::Fate& fate) const {
    planned.reason = fate.reason;
    planned.converted = false;
    planned.recipe = source_.tensors()[planned.source].recipe;
    planned.method = Method::verbatim;
    if (fate.name.empty()) return;
    // compressed-tensors has [1], ModelOpt a scalar.
    const bool scalar = plan_.destination->dialect == Dialect::modelopt;
    planned.recipe = Recipe::f32;
    planned.method = Method::requantize;
    planned.parts = {{Part::values, tensor_info(fate.name, DType::F32,
                                                scalar ? std::vector<std::int64_t>{}
                                                       : std::vector<std::int64_t>{1})}};
  }

  void take_stored(PlannedTensor& planned) const {
    const WeightParts& parts = source_.parts(planned.source);
    planned.method = Method::verbatim;
    const auto take = [&](Part part, const TensorStore::Entry* entry) {
      if (entry == nullptr) return;
      planned.parts.push_back({part, entry->info});
      planned.stored.push_back(entry);
    };
    take(Part::values, parts.values);
    take(Part::scales, parts.scales);
    take(Part::tensor_scale, parts.tensor_scale);
    if (sides_->inputs(planned.recipe)) {
      take(Part::input_scale, parts.input_scale);
      take(Part::alpha, parts.alpha);
    }
    take(Part::channel_factors, parts.channel_factors);
  }

  /// The source's recipe; where f32 scales turn out to be powers of two, which not every dialect
  /// says, and `wanted` asks for such, the recipe that says so.
  Recipe stored_recipe(std::size_t i, Recipe wanted) const {
    const CheckpointTensor& tensor = source_.tensors()[i];
    const RecipeTraits& have = recipe_traits(tensor.recipe);
    if (!tensor.form.empty()) return tensor.recipe;
    if (!tensor.quantized || have.power_of_two || !recipe_traits(wanted).power_of_two) {
      return tensor.recipe;
    }
    for (const RecipeTraits& t : kRecipes) {
      const bool same = t.family == Family::fp8 && t.scale == Format::f32 && t.power_of_two &&
                        t.element == have.element && t.block_rows == have.block_rows &&
                        t.block_k == have.block_k;
      if (same && can_transfer(t.recipe, wanted) && scales_are_powers_of_two(i)) return t.recipe;
    }
    return tensor.recipe;
  }

  bool scales_are_powers_of_two(std::size_t i) const {
    const ScaledTensorView view = source_.unaligned_view(i);
    const ScaleGrid grid = scale_grid(view.recipe, view.rows, view.k);
    const float* scales = static_cast<const float*>(view.scales);
    return std::all_of(scales, scales + view.batch * grid.rows * grid.columns, [](float scale) {
      return decode<Format::ue8m0>(encode_ue8m0(scale, ScaleRounding::toward_zero)) == scale;
    });
  }

  void plan_change(PlannedTensor& planned, const CheckpointTensor& tensor, Recipe recipe) const {
    const WeightParts& stored = source_.parts(planned.source);
    const bool rescaled = rescaled_.contains(planned.source);
    const bool transfer = tensor.quantized && can_transfer(recipe, planned.recipe) && !rescaled &&
                          tensor.form.empty();
    planned.method = transfer ? Method::transfer : Method::requantize;
    WeightToWrite weight;
    weight.name = tensor.name;
    weight.shape = tensor.shape;
    weight.recipe = planned.recipe;
    const bool inputs = planned.quantized && sides_->inputs(planned.recipe);
    weight.activations = inputs ? Activations::calibrated : Activations::none;
    if (transfer) weight.tensor_scales = factor_count(stored.tensor_scale);
    if (inputs && planned.input_absmax == 0) {
      weight.input_scales = factor_count(stored.input_scale);
    }
    planned.transposed = decisions_[planned.source].transposed;
    if (planned.transposed) std::swap(weight.shape[1], weight.shape[2]);
    planned.parts = planned.quantized ? plan_.destination->parts(weight) : plain_parts(weight);
    if (rescaled) planned.reason = "quantized anew, so that fused weights share a tensor scale";
    if (!tensor.form.empty()) {
      if (planned.reason.empty()) {
        planned.reason = tensor.column_factors ? "factors of its columns applied"
                                               : tensor.form + ", read by its values";
      }
      planned.converted = true;
    }
    if (!transfer || !planned.reason.empty()) return;
    planned.converted = true;
    if (planned.recipe != Recipe::nvfp4) {
      planned.reason = "codes copied, scales copied or stored in another format exactly";
      return;
    }
    const bool one_sense = stored.sense == plan_.destination->sense;
    planned.reason =
        one_sense ? "codes, block scales and tensor scale copied"
        : stored.sense == TensorScaleSense::multiplier
            ? "codes and block scales copied, tensor scale 1 / multiplier, rounded once"
            : "codes and block scales copied, tensor scale 1 / divisor, rounded once";
  }

  const StoredCheckpoint& source_;
  const ConvertOptions& options_;
  std::vector<Decision> decisions_;
  std::unique_ptr<const InputChooser> chooser_;
  std::set<Recipe> given_;               // recipes that they are given for
  std::set<std::size_t> rescaled_;       // tensors that are not to be copied
  std::map<std::size_t, float> absmax_;  // by tensor, where activation scales are given
  std::unique_ptr<const SidePlan> sides_;
  Plan plan_;
};

}  // namespace

bool searches_scales(const ConvertOptions& options, const PlannedTensor& planned) {
  const Family family = recipe_traits(planned.recipe).family;
  return options.scales != ScaleChoice::amax && planned.method == Method::requantize &&
         planned.quantized && (family == Family::mx || family == Family::nvfp4);
}

bool can_transfer(Recipe from, Recipe to) {
  if (from == to) return !is_plain(from);
  const RecipeTraits& a = recipe_traits(from);
  const RecipeTraits& b = recipe_traits(to);
  const bool same_blocks = a.family == Family::fp8 && b.family == Family::fp8 &&
                           a.element == b.element && a.block_rows == b.block_rows &&
                           a.block_k == b.block_k;
  return same_blocks && (a.power_of_two || !b.power_of_two);
}

Plan make_plan(std::shared_ptr<const StoredCheckpoint> source, const ConvertOptions& options,
               const std::string& file_name) {
  return Planner(std::move(source), options).run(file_name);
}

}  // namespace blockscale::models
