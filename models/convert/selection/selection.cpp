#include "models/convert/selection/selection.h"

#include <algorithm>
#include <set>

#include "models/checkpoint/codes.h"
#include "models/convert/selection/experts_layout.h"
#include "models/convert/selection/layer_roles.h"
#include "models/convert/selection/pattern.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

bool has_embedding(const StoredCheckpoint& source) {
  return std::any_of(
      source.tensors().begin(), source.tensors().end(),
      [](const CheckpointTensor& t) { return t.name.ends_with("embed_tokens.weight"); });
}

std::string dimension_reason(std::size_t rank) {
  return rank == 1 ? "a vector" : "has " + std::to_string(rank) + " dimensions";
}

/// What is asked for by name, whether or not it is possible.
struct Wish {
  bool convert = false;
  Recipe recipe = Recipe::f32;
  std::string reason;       // if not
  const char* option = "";  // that asks for it
  std::string pattern;      // of that option
  bool plain = false;       // quantized, of a layer that engines do not quantize
};

/// The dtype that config.json states for the weights, bf16 where it states none.
Recipe stated_dtype(const Json& config) {
  for (const Json* part : {&config, &member(config, "text_config")}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const Json& dtype = member(*part, key);
      if (dtype == "float16" || dtype == "torch.float16") return Recipe::f16;
      if (dtype == "float32" || dtype == "torch.float32") return Recipe::f32;
      if (!dtype.is_null()) return Recipe::bf16;
    }
  }
  return Recipe::bf16;
}

class Selector {
 public:
  Selector(const StoredCheckpoint& source, const ConvertOptions& options,
           const DialectTraits& destination)
      : source_(source),
        options_(options),
        destination_(destination),
        roles_(source),
        model_type_(source.config().model_type()),
        stated_dtype_(stated_dtype(source.config().config)),
        include_(compiled(options.include, "include")),
        exclude_(compiled(options.exclude, "exclude")),
        source_is_quantized_(
            std::any_of(source.tensors().begin(), source.tensors().end(),
                        [](const CheckpointTensor& tensor) { return tensor.quantized; })) {
    for (const auto& [text, recipe] : options.map) map_.emplace_back(text, "map");
  }

  void check_patterns() const {
    std::vector<std::string> weights;
    for (const CheckpointTensor& tensor : source_.tensors()) weights.push_back(tensor.name);
    for (const Pattern& pattern : include_) require_match(pattern, "include", weights);
    for (const Pattern& pattern : map_) require_match(pattern, "map", weights);
    // A tied head has no tensor, but is a layer that a user may name.
    if (has_embedding(source_)) weights.emplace_back("lm_head.weight");
    for (const Pattern& pattern : exclude_) require_match(pattern, "exclude", weights);
  }

  Decision decide(const CheckpointTensor& tensor) const {
    const Wish wish = this->wish(tensor);
    Decision decision = decide(tensor, wish);
    if (decision.convert || !wish.pattern.empty()) decision.rule = rule(tensor, wish);
    decision.transposed = decision.convert && is_plain(decision.recipe) && is_turned(tensor);
    return decision;
  }

 private:
  Decision decide(const CheckpointTensor& tensor, const Wish& wish) const {
    if (wish.plain) return as_plain(tensor, wish.reason);
    if (!wish.convert) return keep(tensor, wish.reason);
    if (const std::string obstacle = this->obstacle(tensor, wish.recipe); !obstacle.empty()) {
      return keep(tensor, obstacle);
    }
    if (const std::string lies = lies_across(tensor, wish.recipe); !lies.empty()) {
      return tensor.quantized ? as_plain(tensor, lies) : keep(tensor, lies);
    }
    if (is_plain(wish.recipe) && !tensor.quantized && tensor.recipe == wish.recipe &&
        StoredCheckpoint::has_view(tensor)) {
      return keep(tensor, std::string("already ") + recipe_traits(wish.recipe).name);
    }
    check_is_linear(tensor, wish);
    return {wish.recipe, true, "", ""};
  }

  Wish wish(const CheckpointTensor& tensor) const {
    if (const Pattern* excluded = first_match(exclude_, tensor.name)) {
      return {false, {}, "excluded", "exclude", excluded->text()};
    }
    if (const Pattern* mapped = first_match(map_, tensor.name)) {
      return {true, options_.map[static_cast<std::size_t>(mapped - map_.data())].second, "", "map",
              mapped->text()};
    }
    if (!include_.empty()) {
      const Pattern* included = first_match(include_, tensor.name);
      return {included != nullptr, options_.recipe, "not included", "include",
              included != nullptr ? included->text() : ""};
    }
    if (tensor.quantized) return wish_of_quantized(tensor);
    if (is_third_dtype(tensor)) return {true, options_.recipe, "", "", ""};
    if (source_is_quantized_) return {false, {}, "plain in the source", "", ""};
    const Role role = roles_.of(tensor);
    if (is_plain(options_.recipe)) {
      const bool left_alone = role == Role::router || role == Role::sensitive;
      return {tensor.shape.size() >= 2 && !left_alone, options_.recipe,
              left_alone ? role_reason(role) : "a vector", "", ""};
    }
    const bool chosen = role == Role::linear || role == Role::experts;
    return {chosen, options_.recipe, role_reason(role), "", ""};
  }

  /// By default what is quantized stays so, but for layers to which engines give no scheme: those
  /// are quantized no further.
  Wish wish_of_quantized(const CheckpointTensor& tensor) const {
    const Wish quantized{true, options_.recipe, "", "", ""};
    if (is_plain(options_.recipe) || stays(tensor, options_.recipe)) return quantized;
    const Role role = roles_.of(tensor);
    const bool matrix = tensor.shape.size() == 2;
    const bool left_out = role == Role::embedding || role == Role::norm || role == Role::router ||
                          role == Role::sensitive || (role == Role::other && matrix) ||
                          (role == Role::embedder && is_called_a_table(tensor.name));
    if (!left_out) return quantized;
    return {false, {}, role_reason(role), "", "", true};
  }

  /// Whether the weight is in this recipe and dialect already, so that nothing is quantized anew.
  bool stays(const CheckpointTensor& tensor, Recipe recipe) const {
    return tensor.quantized && tensor.recipe == recipe &&
           source_.dialect().dialect == destination_.dialect;
  }

  /// Of a checkpoint that becomes f16 or bf16, what is in the other of them; of one that becomes
  /// f32, what is in either; and 8-bit floats. Only f32 is kept beside the dtype that config.json
  /// states.
  bool is_third_dtype(const CheckpointTensor& tensor) const {
    const bool narrow = tensor.dtype == DType::F16 || tensor.dtype == DType::BF16;
    return is_plain(options_.recipe) &&
           (is_bare_fp8(tensor) || (narrow && tensor.recipe != options_.recipe));
  }

  /// FP8 that nothing scales: numbers in a narrow dtype, as f16 is.
  static bool is_bare_fp8(const CheckpointTensor& tensor) {
    return !tensor.quantized && is_narrow_float(tensor.dtype);
  }

  std::string rule(const CheckpointTensor& tensor, const Wish& wish) const {
    if (!wish.pattern.empty()) return std::string(wish.option) + " " + quote(wish.pattern);
    if (!wish.convert) return "";
    if (tensor.quantized) return "quantized in the source";
    if (is_plain(wish.recipe)) {
      return is_bare_fp8(tensor)      ? "in 8-bit floats without scales"
             : is_third_dtype(tensor) ? "in another 16-bit dtype"
                                      : "a matrix";
    }
    return roles_.of(tensor) == Role::experts ? "a stack of experts" : "a linear layer";
  }

  /// Why `tensor` cannot become `recipe`, or "".
  std::string obstacle(const CheckpointTensor& tensor, Recipe recipe) const {
    if (!StoredCheckpoint::has_values(tensor)) {
      return "holds " + std::string(dtype_name(tensor.dtype));
    }
    if (tensor.bytes == 0) return "empty";
    if (is_plain(recipe)) return "";
    const std::size_t rank = tensor.shape.size();
    if (rank < 2 || rank > 3) return dimension_reason(rank);
    if (is_new_stack(tensor)) {
      return std::string("has 3 dimensions, and ") + destination_.name + " has matrices only";
    }
    const RecipeTraits& t = recipe_traits(recipe);
    if (!t.ragged && tensor.shape.back() % t.block_k != 0) {
      return "k = " + std::to_string(tensor.shape.back()) + " is no multiple of " +
             std::to_string(t.block_k) + ", which " + t.name + " needs";
    }
    if (!outputs_are_columns(tensor)) return "";
    return "is stored as [in, out], scales run along the last dimension";
  }

  /// Whether `tensor` is a stack of matrices that a destination which has none does not have yet.
  bool is_new_stack(const CheckpointTensor& tensor) const {
    return tensor.shape.size() == 3 && !destination_.has_stacks &&
           (!tensor.quantized || source_.dialect().dialect != destination_.dialect);
  }

  /// Why scales of `recipe` would run along the outputs of the weight, or "". What stays as it is
  /// is not asked.
  std::string lies_across(const CheckpointTensor& tensor, Recipe recipe) const {
    if (is_plain(recipe) || stays(tensor, recipe)) return "";
    if (tensor.shape.size() == 3) return stack_obstacle(tensor, recipe);
    if (!is_transposed(model_type_, tensor.name)) return "";
    return model_type_ + " stores it as [in, out], scales run along the last dimension";
  }

  /// Stacks that are packed along their rows; FBGEMM's, which have scales of their columns only.
  bool outputs_are_columns(const CheckpointTensor& tensor) const {
    const auto index = static_cast<std::size_t>(&tensor - source_.tensors().data());
    const WeightParts& parts = source_.parts(index);
    return parts.packed_along_rows || (tensor.column_factors && parts.scales == nullptr);
  }

  std::string stack_obstacle(const CheckpointTensor& tensor, Recipe recipe) const {
    // MXFP4 of gpt-oss is [experts, out, in] by its format, whatever its plain stacks are.
    if (tensor.quantized && source_.dialect().dialect == Dialect::gpt_oss) return "";
    const std::optional<ExpertsLayout> known = experts_layout_of(model_type_);
    const std::optional<ExpertsLayout> layout =
        options_.experts_layout ? options_.experts_layout : known;
    const bool experts = roles_.of(tensor) == Role::experts;
    if (!layout && tensor.quantized && tensor.recipe == recipe) return "";  // codes are copied
    if (!layout && !experts) return "has 3 dimensions and no name of experts";
    if (!layout) {
      refuse_stack(tensor, model_type_.empty()
                               ? "no model type says how"
                               : "how " + quote(model_type_) + " stores them is not known");
    }
    if (!options_.experts_layout) check_hidden_size(tensor, *layout);
    if (*layout == ExpertsLayout::out_in) return "";
    return (options_.experts_layout ? "experts_layout says that it is"
                                    : model_type_ + " stores it as") +
           " [in, out], scales run along the last dimension";
  }

  void check_hidden_size(const CheckpointTensor& tensor, ExpertsLayout layout) const {
    const std::int64_t size = hidden_size();
    if (size <= 0 || !contradicts(layout, tensor.name, tensor.shape, size)) return;
    refuse_stack(tensor, "hidden_size " + std::to_string(size) + " stands elsewhere than " +
                             quote(model_type_) + " has it");
  }

  /// Whether a quantized stack is [experts, out, in] where the model type has plain ones the other
  /// way round: gpt-oss's own MXFP4, and what was made of it.
  bool is_turned(const CheckpointTensor& tensor) const {
    if (!tensor.quantized || tensor.shape.size() != 3) return false;
    if (source_.dialect().dialect == Dialect::gpt_oss) return true;
    if (tensor.column_factors || experts_layout_of(model_type_) != ExpertsLayout::in_out) {
      return false;
    }
    if (!options_.experts_layout) check_hidden_size(tensor, ExpertsLayout::in_out);
    if (options_.experts_layout != ExpertsLayout::out_in) return false;
    const RecipeTraits& t = recipe_traits(tensor.recipe);
    if (t.block_rows == 1 && t.block_k > 1) return true;
    throw Error(ErrorCode::unsupported, tensor.name,
                std::string("is ") + t.name + " [experts, out, in], and plain stacks of " +
                    model_type_ + " are [experts, in, out]; only blocks of one row can be turned");
  }

  [[noreturn]] static void refuse_stack(const CheckpointTensor& tensor, const std::string& why) {
    std::string shape;
    for (const std::int64_t size : tensor.shape) {
      shape += (shape.empty() ? "[" : ", ") + std::to_string(size);
    }
    throw Error(ErrorCode::invalid_argument, "experts_layout",
                "is not given, and must be for " + quote(tensor.name) + " " + shape +
                    "], a stack of experts: " + why +
                    "; out-in means [experts, out, in], in-out [experts, in, out]");
  }

  std::int64_t hidden_size() const {
    const Json& config = source_.config().config;
    for (const Json* part : {&config, &member(config, "text_config")}) {
      const Json& size = member(*part, "hidden_size");
      if (size.is_number_integer()) return size.get<std::int64_t>();
    }
    return 0;
  }

  /// Every dialect that says a quantized recipe says it of linear layers, and engines quantize no
  /// other ones.
  void check_is_linear(const CheckpointTensor& tensor, const Wish& wish) const {
    const Role role = roles_.of(tensor);
    if (is_plain(wish.recipe) || stays(tensor, wish.recipe)) return;
    if (role != Role::embedding && role != Role::norm) return;
    throw Error(ErrorCode::invalid_argument, wish.option,
                quote(wish.pattern) + " reaches " + quote(tensor.name) + ", an " +
                    (role == Role::norm ? "element of a norm" : "embedding") + "; in " +
                    destination_.name +
                    " only linear layers are quantized: exclude it, or narrow the pattern");
  }

  /// A quantized weight that the result has in the dtype of its plain ones.
  Decision as_plain(const CheckpointTensor& tensor, const std::string& reason) const {
    return {stated_dtype_, true,
            reason + "; as " + recipe_traits(stated_dtype_).name +
                (tensor.column_factors ? ", with the factors of its columns applied" : ""),
            ""};
  }

  /// `tensor` as it is, or in the stated dtype if it is quantized in a way that the destination
  /// cannot hold.
  Decision keep(const CheckpointTensor& tensor, const std::string& reason) const {
    // FP8 without scales is damage to whoever reads a quantized checkpoint.
    if (is_bare_fp8(tensor) && destination_.dialect != Dialect::plain && tensor.bytes > 0) {
      return {Recipe::bf16, true,
              reason + "; as bf16, for " + destination_.name + " has no " +
                  std::string(dtype_name(tensor.dtype)) + " without scales",
              ""};
    }
    if (!tensor.quantized) return {tensor.recipe, false, reason, ""};
    if (tensor.column_factors) return as_plain(tensor, reason);
    if (!tensor.form.empty())
      return as_plain(tensor, reason + ", for it is stored as " + tensor.form);
    if (tensor.shape.size() > 3 || is_new_stack(tensor)) return as_plain(tensor, reason);
    const bool same = tensor.recipe == options_.recipe;
    const auto index = static_cast<std::size_t>(&tensor - source_.tensors().data());
    const bool has_inputs = destination_.can_have(tensor.recipe, Activations::none) ||
                            destination_.can_have(tensor.recipe, Activations::dynamic) ||
                            options_.activation_scales ||
                            source_.parts(index).input_scale != nullptr;
    const bool can_hold = destination_.can_write(tensor.recipe) && (same || destination_.can_mix);
    if (can_hold && (same || has_inputs)) return {tensor.recipe, false, reason, ""};
    const std::string what_lacks =
        can_hold ? " without scales of inputs"
                 : std::string(" beside ") + recipe_traits(options_.recipe).name;
    Decision plain = as_plain(tensor, reason);
    plain.reason += std::string(", for ") + destination_.name + " cannot hold " +
                    recipe_traits(tensor.recipe).name + what_lacks;
    return plain;
  }

  const StoredCheckpoint& source_;
  const ConvertOptions& options_;
  const DialectTraits& destination_;
  LayerRoles roles_;
  std::string model_type_;
  Recipe stated_dtype_;
  std::vector<Pattern> include_, exclude_, map_;
  bool source_is_quantized_;
};

/// The head, without a tensor of its own, whose bias `bias` is; or "".
std::string tied_head(const StoredCheckpoint& source, const std::string& bias) {
  std::string module = without_suffix(bias, ".bias");
  if (module.empty()) return "";
  const bool bert = module.ends_with("predictions");
  const bool roberta = module == "lm_head" && source.find("lm_head.dense.weight") != nullptr;
  if (bert || roberta) module += ".decoder";
  const std::string weight = module + ".weight";
  const bool head = role_of(weight, {1, 1}) == Role::head;
  return head && source.find(weight) == nullptr ? module : "";
}

/// Modules and patterns of them that the source's configuration leaves plain, by every key that a
/// dialect has for them.
std::vector<std::string> listed_as_kept(const SourceConfig& config) {
  std::vector<std::string> names;
  for (const Json* object : {&config.quantization, &member(config.quantization, "quantization"),
                             &member(config.hf_quant_config, "quantization")}) {
    for (const char* key :
         {"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"}) {
      const Json& list = member(*object, key);
      if (!list.is_array()) continue;
      for (const Json& name : list) {
        if (name.is_string()) names.push_back(name.get<std::string>());
      }
    }
  }
  return names;
}

std::string writable(const DialectTraits& dialect) {
  std::string names;
  for (const RecipeTraits& t : kRecipes) {
    if (dialect.can_write(t.recipe)) names += (names.empty() ? "" : ", ") + std::string(t.name);
  }
  return names;
}

void check_recipes(const ConvertOptions& options, const DialectTraits& destination) {
  if (destination.parts == nullptr) {
    throw Error(ErrorCode::unsupported, "dialect",
                std::string(destination.name) + " can be read, not written");
  }
  const auto check = [&](Recipe recipe, const char* option) {
    if (static_cast<int>(recipe) >= kRecipeCount) {
      throw Error(ErrorCode::invalid_argument, option,
                  "is " + std::to_string(static_cast<int>(recipe)) + ", must be in 0.." +
                      std::to_string(kRecipeCount - 1));
    }
    if (is_plain(recipe) || destination.can_write(recipe)) return;
    throw Error(ErrorCode::unsupported, option,
                std::string(recipe_traits(recipe).name) + " cannot be said in " + destination.name +
                    ", which has " + writable(destination));
  };
  check(options.recipe, "recipe");
  Recipe quantized = options.recipe;
  for (const auto& [glob, recipe] : options.map) {
    check(recipe, "map");
    if (is_plain(recipe)) continue;
    if (!destination.can_mix && !is_plain(quantized) && recipe != quantized) {
      throw Error(ErrorCode::unsupported, "map",
                  std::string(destination.name) + " cannot hold " + recipe_traits(recipe).name +
                      " beside " + recipe_traits(quantized).name +
                      "; compressed-tensors can mix recipes");
    }
    quantized = recipe;
  }
}

}  // namespace

std::vector<Decision> select(const StoredCheckpoint& source, const ConvertOptions& options,
                             const DialectTraits& destination) {
  check_recipes(options, destination);
  const Selector selector(source, options, destination);
  selector.check_patterns();
  std::vector<Decision> decisions;
  bool any = false;
  for (const CheckpointTensor& tensor : source.tensors()) {
    decisions.push_back(selector.decide(tensor));
    any |= decisions.back().convert;
  }
  if (!any) {
    std::string example;
    for (std::size_t i = 0; i < decisions.size() && example.empty(); ++i) {
      const std::string& reason = decisions[i].reason;
      if (source.tensors()[i].shape.size() < 2 || reason.starts_with("not included")) continue;
      example = "; for example " + quote(source.tensors()[i].name) + ": " + reason;
    }
    throw Error(ErrorCode::invalid_argument, "source",
                std::string("holds no tensor to convert to ") + recipe_traits(options.recipe).name +
                    example);
  }
  return decisions;
}

std::vector<std::string> kept_modules(const StoredCheckpoint& source,
                                      const std::vector<Decision>& decisions) {
  const LayerRoles roles(source);
  std::set<std::string> kept;
  std::set<std::string> quantized;
  std::set<std::string> experts;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    const CheckpointTensor& tensor = source.tensors()[i];
    const Role role = roles.of(tensor);
    if (!is_plain(decisions[i].recipe)) {
      quantized.insert(module_of(tensor.name));
    } else if (role == Role::experts) {
      const std::string module = module_of(tensor.name);  // of the layer's parameter
      experts.insert(module.substr(0, module.rfind('.')));
    } else if (role != Role::embedding && role != Role::norm && role != Role::other) {
      kept.insert(module_of(tensor.name));
    }
    // Of a tied head only the bias may be there.
    const std::string head = tied_head(source, tensor.name);
    if (!head.empty()) kept.insert(head);
  }
  for (const std::string& layer : experts) {
    const auto next = quantized.lower_bound(layer + ".");
    if (next == quantized.end() || !next->starts_with(layer + ".")) kept.insert(layer);
  }
  // A head that shares the embedding's weights is a linear layer without a tensor of its own.
  if (has_embedding(source) && !quantized.contains("lm_head")) kept.insert("lm_head");
  // What the source lists by plain name stays listed: layers may be tied or made at load time.
  for (const std::string& name : listed_as_kept(source.config())) {
    const bool pattern = name.find_first_of("*?[]^$\\|(:") != std::string::npos;
    if (!pattern && !quantized.contains(name)) kept.insert(name);
  }
  return {kept.begin(), kept.end()};
}

}  // namespace blockscale::models

namespace blockscale {

bool is_linear_weight(const CheckpointTensor& tensor) {
  return models::role_of(tensor.name, tensor.shape) == models::Role::linear &&
         models::StoredCheckpoint::has_view(tensor);
}

}  // namespace blockscale
