// DeepSeek's FP8 (transformers: FineGrainedFP8Config): X.weight e4m3 and X.weight_scale_inv, one
// multiplier a 128 x 128 block, in f32, in f32 powers of two (V3.1) or in ue8m0 bytes. Also reads
// V4's names (X.scale) and its experts in MXFP4 (int8, 1 x 32 scales).
#include "models/dialects/dialect.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

bool recognises_names(const TensorStore& store) {
  for (const auto& [name, entry] : store.tensors()) {
    if (name.ends_with("_scale_inv")) return true;
  }
  return false;
}

struct Configuration {
  int block_rows = 0;         // 0: unknown (no configuration)
  bool whole_tensor = false;  // the configuration names no blocks
  bool ue8m0 = false;         // scale_fmt: powers of two
};

[[noreturn]] void fail(const SourceConfig& config, const std::string& message) {
  throw Error(ErrorCode::corrupt_file, config.config_path, "quantization_config." + message);
}

Configuration parse(const SourceConfig& config) {
  Configuration result;
  if (config.quantization.is_null()) return result;
  const Json& fmt = member(config.quantization, "fmt");
  if (!fmt.is_null() && fmt != "e4m3")
    fail(config, "fmt is " + show_json(fmt) + ", must be \"e4m3\"");
  const Json& scale_fmt = member(config.quantization, "scale_fmt");
  if (!scale_fmt.is_null() && scale_fmt != "ue8m0" && scale_fmt != "float") {
    fail(config, "scale_fmt is " + show_json(scale_fmt) + ", must be \"ue8m0\" or \"float\"");
  }
  result.ue8m0 = scale_fmt == "ue8m0";
  const Json& block = member(config.quantization, "weight_block_size");
  if (block.is_null()) {
    result.whole_tensor = true;
    return result;
  }
  const bool two = block.is_array() && block.size() == 2 && block[1] == 128;
  for (const int rows : {1, 32, 64, 128}) {
    if (two && block[0] == rows) result.block_rows = rows;
  }
  if (result.block_rows == 0) {
    fail(config, "weight_block_size is " + show_json(block) +
                     ", must be [128, 128] (or 1, 32 or 64 rows by 128)");
  }
  return result;
}

Recipe block_recipe(int rows, Format scale, bool power_of_two) {
  for (const RecipeTraits& t : kRecipes) {
    if (t.family == Family::fp8 && t.block_rows == rows && t.block_k == 128 && t.scale == scale &&
        t.power_of_two == power_of_two) {
      return t.recipe;
    }
  }
  return Recipe::fp8_128x128;
}

/// Recipes that a weight may be in, the likeliest first.
std::vector<Recipe> candidates(const Configuration& configuration, const TensorInfo& scales) {
  const bool bytes = scales.dtype == DType::F8_E8M0 || scales.dtype == DType::U8;
  const Format scale = bytes ? Format::ue8m0 : Format::f32;
  std::vector<Recipe> result;
  if (configuration.whole_tensor) result = {Recipe::fp8_tensor, Recipe::fp8_row};
  for (const int rows : {128, 64, 32, 1}) {
    if (configuration.whole_tensor) break;
    if (configuration.block_rows != 0 && configuration.block_rows != rows) continue;
    result.push_back(block_recipe(rows, scale, bytes || configuration.ue8m0));
  }
  if (configuration.block_rows == 0 && !configuration.whole_tensor) {
    result.push_back(Recipe::fp8_tensor);
  }
  result.push_back(Recipe::mxfp4);
  return result;
}

bool has_packed_values(const TensorInfo* info) {
  return info != nullptr && info->shape.size() >= 2 &&
         (info->dtype == DType::F8_E4M3 || info->dtype == DType::I8 || info->dtype == DType::U8 ||
          info->dtype == DType::F4);
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig& config) {
  const Configuration configuration = parse(config);
  std::vector<StoredWeight> weights;
  for (const auto& [name, entry] : store.tensors()) {
    FoundWeight found;
    found.name = without_suffix(name, "_scale_inv");
    if (found.name.empty()) {
      // V4's short name, where it cannot be a parameter of its own.
      const std::string module = without_suffix(name, ".scale");
      if (!module.empty() && has_packed_values(find_info(store, module + ".weight"))) {
        found.name = module + ".weight";
      }
    }
    if (!found.name.empty()) {
      found.values = find_info(store, found.name);
      found.scales = &entry.info;
      weights.push_back(match_any(found, candidates(configuration, entry.info)));
    } else if (entry.info.dtype == DType::F8_E4M3 && name.ends_with(".weight") &&
               find_info(store, name + "_scale_inv") == nullptr &&
               find_info(store, module_of(name) + ".scale") == nullptr) {
      throw Error(ErrorCode::corrupt_file, name,
                  "is F8_E4M3 but has no scales " + name + "_scale_inv in any shard");
    }
  }
  return weights;
}

bool can_write(Recipe recipe) {
  return recipe == Recipe::fp8_128x128 || recipe == Recipe::fp8_128x128_pow2 ||
         recipe == Recipe::fp8_128x128_ue8m0;
}

std::vector<PartToWrite> parts(const WeightToWrite& weight) {
  const DType scale = weight.recipe == Recipe::fp8_128x128_ue8m0 ? DType::F8_E8M0 : DType::F32;
  return {{Part::values, tensor_info(weight.name, DType::F8_E4M3, weight.shape)},
          {Part::scales, tensor_info(weight.name + "_scale_inv", scale,
                                     grid_shape(weight.recipe, weight.shape))}};
}

void describe(const Contents& contents, Documents& documents) {
  Json quantization = {{"quant_method", "fp8"},
                       {"fmt", "e4m3"},
                       {"activation_scheme", "dynamic"},
                       {"weight_block_size", {128, 128}},
                       {"modules_to_not_convert", contents.kept_modules}};
  if (!contents.quantised.empty() && recipe_traits(contents.quantised[0].recipe).power_of_two) {
    quantization["scale_fmt"] = "ue8m0";
  }
  documents["config.json"]["quantization_config"] = std::move(quantization);
  documents["hf_quant_config.json"] = nullptr;
}

}  // namespace

const DialectTraits kDeepSeek = {
    .dialect = Dialect::deepseek,
    .name = "deepseek",
    .quant_method = "fp8",
    .recognises_names = recognises_names,
    .read = read,
    .can_write = can_write,
    .can_mix = false,
    .mx_scale_mode = MxScaleMode::ceil,
    .sense = TensorScaleSense::multiplier,
    .parts = parts,
    .describe = describe,
};

}  // namespace blockscale::models
