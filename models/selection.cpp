#include "models/selection.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <set>

#include "models/text.h"

namespace blockscale::models {
namespace {

std::vector<std::string_view> components(std::string_view name) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos;
       dot = name.find('.', begin)) {
    parts.push_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  parts.push_back(name.substr(begin));
  return parts;
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

bool is_embedding(const std::vector<std::string_view>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](std::string_view part) {
    return part.find("embed") != std::string_view::npos ||
           is_one_of(part, {"wte", "wpe", "shared", "relative_attention_bias"});
  });
}

bool is_router(const std::vector<std::string_view>& parts, std::string_view module) {
  return is_one_of(module, {"gate", "router", "shared_expert_gate"}) ||
         std::find(parts.begin(), parts.end(), "router") != parts.end();
}

/// Modules that engines fuse into one, by the last component of their names.
constexpr std::array<std::array<std::string_view, 3>, 12> kFused = {{
    {"q_proj", "k_proj", "v_proj"},
    {"query", "key", "value"},
    {"query_proj", "key_proj", "value_proj"},
    {"q_lin", "k_lin", "v_lin"},
    {"to_q", "to_k", "to_v"},
    {"wq", "wk", "wv"},
    {"q", "k", "v"},
    {"q_a_proj", "kv_a_proj_with_mqa", ""},
    {"gate_proj", "up_proj", ""},
    {"w1", "w3", ""},
    {"wi_0", "wi_1", ""},
    {"linear_q", "linear_k", "linear_v"},
}};

/// Model types whose plain checkpoints keep weights as [.., in, out], so that k is not last:
/// GPT-2's Conv1D, and the stacked experts of Llama 4 and gpt-oss.
bool is_transposed(const std::string& model_type, Role role) {
  if (role == Role::linear) return model_type == "gpt2" || model_type == "openai-gpt";
  return role == Role::experts && (model_type == "gpt_oss" || model_type.starts_with("llama4"));
}

const char* role_reason(Role role) {
  switch (role) {
    case Role::embedding: return "embedding";
    case Role::norm: return "norm";
    case Role::head: return "output head";
    case Role::router: return "router";
    default: return "no weight of a linear layer";
  }
}

std::string dimension_reason(std::size_t rank) {
  return rank == 1 ? "a vector" : "has " + std::to_string(rank) + " dimensions";
}

/// What is asked for by name, whether or not it is possible.
struct Wish {
  bool convert = false;
  Recipe recipe = Recipe::f32;
  std::string reason;  // if not
};

class Selector {
 public:
  Selector(const StoredCheckpoint& source, const ConvertOptions& options,
           const DialectTraits& destination)
      : source_(source),
        options_(options),
        destination_(destination),
        source_is_quantised_(
            std::any_of(source.tensors().begin(), source.tensors().end(),
                        [](const CheckpointTensor& tensor) { return tensor.quantized; })) {}

  Decision decide(const CheckpointTensor& tensor) const {
    const Wish wish = this->wish(tensor);
    if (!wish.convert) return keep(tensor, wish.reason);
    const std::string obstacle = this->obstacle(tensor, wish.recipe);
    if (!obstacle.empty()) return keep(tensor, obstacle);
    if (is_plain(wish.recipe) && !tensor.quantized && tensor.recipe == wish.recipe) {
      return keep(tensor, std::string("already ") + recipe_traits(wish.recipe).name);
    }
    return {wish.recipe, true, ""};
  }

 private:
  Wish wish(const CheckpointTensor& tensor) const {
    for (const std::string& glob : options_.exclude) {
      if (glob_matches(glob, tensor.name)) return {false, {}, "excluded"};
    }
    for (const auto& [glob, recipe] : options_.map) {
      if (glob_matches(glob, tensor.name)) return {true, recipe, ""};
    }
    if (!options_.include.empty()) {
      const bool included =
          std::any_of(options_.include.begin(), options_.include.end(),
                      [&](const std::string& glob) { return glob_matches(glob, tensor.name); });
      return {included, options_.recipe, "not included"};
    }
    if (tensor.quantized) return {true, options_.recipe, ""};
    if (source_is_quantised_) return {false, {}, "plain in the source"};
    const Role role = role_of(tensor.name, tensor.shape);
    if (is_plain(options_.recipe)) {
      const bool matrix = tensor.shape.size() >= 2 && role != Role::router;
      return {matrix, options_.recipe, role == Role::router ? "router" : "a vector"};
    }
    const bool chosen = role == Role::linear || role == Role::experts;
    return {chosen, options_.recipe, role_reason(role)};
  }

  /// Why `tensor` cannot become `recipe`, or "".
  std::string obstacle(const CheckpointTensor& tensor, Recipe recipe) const {
    if (!StoredCheckpoint::has_view(tensor)) {
      return "holds " + std::string(dtype_name(tensor.dtype));
    }
    if (tensor.bytes == 0) return "empty";
    if (is_plain(recipe)) return "";
    const std::size_t rank = tensor.shape.size();
    if (rank < 2 || rank > 3) return dimension_reason(rank);
    const RecipeTraits& t = recipe_traits(recipe);
    if (!t.ragged && tensor.shape.back() % t.block_k != 0) {
      return "k = " + std::to_string(tensor.shape.back()) + " is no multiple of " +
             std::to_string(t.block_k) + ", which " + t.name + " needs";
    }
    const std::string model_type = source_.config().model_type();
    if (!tensor.quantized && is_transposed(model_type, rank == 3 ? Role::experts : Role::linear)) {
      return model_type + " stores it as [in, out], scales run along the last dimension";
    }
    return "";
  }

  /// `tensor` as it is, or in bf16 if it is quantised in a way that the destination cannot hold.
  Decision keep(const CheckpointTensor& tensor, const std::string& reason) const {
    if (!tensor.quantized) return {tensor.recipe, false, reason};
    const bool same = tensor.recipe == options_.recipe;
    if (destination_.can_write(tensor.recipe) && (same || destination_.can_mix)) {
      return {tensor.recipe, false, reason};
    }
    return {Recipe::bf16, true,
            reason + "; as bf16, for " + destination_.name + " cannot hold " +
                recipe_traits(tensor.recipe).name + " beside " +
                recipe_traits(options_.recipe).name};
  }

  const StoredCheckpoint& source_;
  const ConvertOptions& options_;
  const DialectTraits& destination_;
  bool source_is_quantised_;
};

void check_pattern(const StoredCheckpoint& source, const std::string& glob, const char* option) {
  const auto& tensors = source.tensors();
  const bool used = std::any_of(tensors.begin(), tensors.end(), [&](const CheckpointTensor& t) {
    return glob_matches(glob, t.name);
  });
  if (!used) {
    throw Error(ErrorCode::invalid_argument, option,
                quote(glob) + " matches no tensor of the source");
  }
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
  Recipe quantised = options.recipe;
  for (const auto& [glob, recipe] : options.map) {
    check(recipe, "map");
    if (is_plain(recipe)) continue;
    if (!destination.can_mix && !is_plain(quantised) && recipe != quantised) {
      throw Error(ErrorCode::unsupported, "map",
                  std::string(destination.name) + " cannot hold " + recipe_traits(recipe).name +
                      " beside " + recipe_traits(quantised).name +
                      "; compressed-tensors can mix recipes");
    }
    quantised = recipe;
  }
}

}  // namespace

Role role_of(const std::string& name, const std::vector<std::int64_t>& shape) {
  const std::string module_name = module_of(name);
  const std::vector<std::string_view> parts = components(module_name);
  const std::string_view module = parts.back();
  const bool in_experts = std::any_of(parts.begin(), parts.end(), [](std::string_view part) {
    return part == "experts" || part == "local_experts";
  });
  if (shape.size() == 3 && in_experts && !name.ends_with("bias")) return Role::experts;
  if (shape.size() != 2 || !name.ends_with(".weight")) {
    return module.find("norm") != std::string_view::npos ? Role::norm : Role::other;
  }
  if (is_embedding(parts)) return Role::embedding;
  if (module == "lm_head" || name == "output.weight") return Role::head;
  if (is_router(parts, module)) return Role::router;
  if (module.find("norm") != std::string_view::npos) return Role::norm;
  return Role::linear;
}

bool glob_matches(const std::string& glob, const std::string& weight) {
  return ::fnmatch(glob.c_str(), weight.c_str(), 0) == 0 ||
         ::fnmatch(glob.c_str(), module_of(weight).c_str(), 0) == 0;
}

std::vector<Decision> select(const StoredCheckpoint& source, const ConvertOptions& options,
                             const DialectTraits& destination) {
  check_recipes(options, destination);
  if (source.dialect().dialect == Dialect::gpt_oss) {
    throw Error(ErrorCode::unsupported, "source",
                "is gpt-oss, whose experts are stored [experts, out, in] under names and in an "
                "order of rows that no other dialect has; it can be inspected and compared");
  }
  for (const std::string& glob : options.include) check_pattern(source, glob, "include");
  for (const auto& [glob, recipe] : options.map) check_pattern(source, glob, "map");
  const Selector selector(source, options, destination);
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
  std::set<std::string> kept;
  std::set<std::string> quantised;
  bool has_embedding = false;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    const CheckpointTensor& tensor = source.tensors()[i];
    const Role role = role_of(tensor.name, tensor.shape);
    has_embedding |= tensor.name.ends_with("embed_tokens.weight");
    if (!is_plain(decisions[i].recipe)) {
      quantised.insert(module_of(tensor.name));
    } else if (role == Role::linear || role == Role::head || role == Role::router) {
      kept.insert(module_of(tensor.name));
    }
  }
  // A head that shares the embedding's weights is a linear layer without a tensor of its own.
  if (has_embedding && !quantised.contains("lm_head")) kept.insert("lm_head");
  // What the source lists by plain name stays listed: layers may be tied or made at load time.
  for (const char* key : {"ignore", "modules_to_not_convert", "exclude_modules"}) {
    const Json& list = member(source.config().quantization, key);
    if (!list.is_array()) continue;
    for (const Json& name : list) {
      if (!name.is_string()) continue;
      const std::string text = name.get<std::string>();
      const bool pattern = text.find_first_of("*?[]^$\\|(:") != std::string::npos;
      if (!pattern && !quantised.contains(text)) kept.insert(text);
    }
  }
  return {kept.begin(), kept.end()};
}

std::string fused_group(const std::string& weight) {
  const std::string module = module_of(weight);
  const std::size_t dot = module.rfind('.');
  const std::string last = dot == std::string::npos ? module : module.substr(dot + 1);
  for (const auto& names : kFused) {
    if (std::find(names.begin(), names.end(), last) == names.end()) continue;
    return (dot == std::string::npos ? "" : module.substr(0, dot)) + "." + std::string(names[0]) +
           "+";
  }
  return weight;
}

}  // namespace blockscale::models

namespace blockscale {

bool is_linear_weight(const CheckpointTensor& tensor) {
  return models::role_of(tensor.name, tensor.shape) == models::Role::linear &&
         models::StoredCheckpoint::has_view(tensor);
}

bool weight_matches(const std::string& glob, const std::string& weight) {
  return models::glob_matches(glob, weight);
}

}  // namespace blockscale
