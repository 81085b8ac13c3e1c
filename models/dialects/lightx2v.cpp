// LightX2V (tools/convert of ModelTC/LightX2V): X.weight and X.weight_scale. FP8 has e4m3 and one
// multiplier a row; NVFP4, MXFP4, MXFP6 (e3m2) and MXFP8 have bytes, whose block scales lie as
// Blackwell's tensor cores read them, in tiles of 128 rows by 4, padded to whole ones. Nothing but
// names, dtypes and shapes says which. NVFP4 also has X.weight_global_scale (2688 / amax) and for
// its inputs X.input_absmax, or X.input_global_scale (2688 / absmax) with X.alpha =
// 1 / (input_global_scale * weight_global_scale), where weight_global_scale may be missing. Written
// are the latter, all three. No configuration says anything of it, and no weight is a stack.
#include <algorithm>
#include <iterator>

#include "models/dialects/dialect.h"
#include "models/safetensors/index_file.h"

namespace blockscale::models {
namespace {

constexpr Recipe kBlocksOf32[] = {Recipe::mxfp4, Recipe::mxfp6_e3m2, Recipe::mxfp8_e4m3};

bool has_diffusers_index(const TensorStore& store) {
  return store.index().filename() == kDiffusersIndex;
}

bool is_plain_dtype(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

/// Others' FP8 has the same names: the index is LightX2V's mark there.
bool recognises_names(const TensorStore& store) {
  const bool has_index = has_diffusers_index(store);
  return std::any_of(store.tensors().begin(), store.tensors().end(), [&](const auto& tensor) {
    const std::string module = without_suffix(tensor.first, ".weight_scale");
    const TensorInfo* values = module.empty() ? nullptr : find_info(store, module + ".weight");
    if (values == nullptr) return false;
    const DType scale = tensor.second.info.dtype;
    if (values->dtype == DType::U8) {
      const bool nvfp4 = find_info(store, module + ".weight_global_scale") != nullptr ||
                         find_info(store, module + ".alpha") != nullptr;
      return scale == DType::F8_E8M0 || (scale == DType::F8_E4M3 && nvfp4);
    }
    return has_index && (values->dtype == DType::F8_E4M3 || values->dtype == DType::I8) &&
           is_plain_dtype(scale);
  });
}

FoundWeight find_weight(const TensorStore& store, const std::string& module,
                        const TensorInfo& scales) {
  FoundWeight found;
  found.name = module + ".weight";
  found.values = find_info(store, found.name);
  found.scales = &scales;
  if (is_plain_dtype(scales.dtype)) return found;
  found.byte_values = true;
  found.scale_layout = ScaleLayout::swizzled_128x4;
  if (scales.dtype != DType::F8_E4M3) return found;
  found.tensor_scale = find_info(store, module + ".weight_global_scale");
  const TensorInfo* const alpha = find_info(store, module + ".alpha");
  found.input_scale = find_info(store, module + ".input_absmax");
  found.input_kind = InputScale::absmax;
  if (found.input_scale == nullptr) {
    found.input_scale = find_info(store, module + ".input_global_scale");
    found.input_kind = InputScale::divisor;
    if (found.tensor_scale == nullptr && found.input_scale != nullptr) {
      found.tensor_scale = alpha;
      found.tensor_scale_is_alpha = alpha != nullptr;
    }
  }
  found.sense = found.tensor_scale_is_alpha ? TensorScaleSense::multiplier  // alpha * divisor
                                            : TensorScaleSense::divisor;
  if (!found.tensor_scale_is_alpha) found.alpha = alpha;
  return found;
}

/// The one recipe that all weights with blocks of 32 fit.
std::vector<Recipe> common_recipe(const std::vector<FoundWeight>& weights) {
  std::vector<Recipe> fitting;
  for (const Recipe recipe : kBlocksOf32) {
    StoredWeight ignored;
    const bool fits =
        !weights.empty() && std::all_of(weights.begin(), weights.end(), [&](const auto& found) {
          return match(found, recipe, ignored).empty();
        });
    if (fits) fitting.push_back(recipe);
  }
  if (fitting.size() > 1) {
    std::string names;
    for (const Recipe recipe : fitting) {
      names += (names.empty() ? "" : " and ") + std::string(recipe_traits(recipe).name);
    }
    throw Error(ErrorCode::unsupported, weights[0].name,
                "is " + names + " alike by its shapes, and nothing else says what it is");
  }
  return fitting.empty() ? std::vector<Recipe>(std::begin(kBlocksOf32), std::end(kBlocksOf32))
                         : fitting;
}

std::vector<StoredWeight> read(const TensorStore& store, const SourceConfig&) {
  static constexpr Recipe kRows[] = {Recipe::fp8_row, Recipe::fp8_tensor};
  static constexpr Recipe kNvfp4[] = {Recipe::nvfp4};
  std::vector<StoredWeight> weights;
  std::vector<FoundWeight> blocks_of_32;
  for (const auto& [name, entry] : store.tensors()) {
    if (const std::string module = without_suffix(name, ".weight_scale"); !module.empty()) {
      const FoundWeight found = find_weight(store, module, entry.info);
      if (found.values != nullptr && found.values->dtype == DType::I8) {
        throw Error(ErrorCode::unsupported, found.name,
                    "holds int8, readable are LightX2V's FP8, NVFP4, MXFP4, MXFP6 and MXFP8");
      }
      if (is_plain_dtype(entry.info.dtype)) {
        weights.push_back(match_any(found, kRows));
      } else if (entry.info.dtype == DType::F8_E4M3) {
        weights.push_back(match_any(found, kNvfp4));
      } else {
        blocks_of_32.push_back(found);
      }
      continue;
    }
    const bool coded = entry.info.dtype == DType::U8 || entry.info.dtype == DType::F8_E4M3;
    if (coded && name.ends_with(".weight") && find_info(store, name + "_scale") == nullptr) {
      throw Error(ErrorCode::corrupt_file, name,
                  "is " + std::string(dtype_name(entry.info.dtype)) + " but has no scales " + name +
                      "_scale in any shard");
    }
  }
  const std::vector<Recipe> recipes = common_recipe(blocks_of_32);
  for (const FoundWeight& found : blocks_of_32) weights.push_back(match_any(found, recipes));
  return weights;
}

std::vector<InputGroup> inputs(const TensorStore&, const SourceConfig&) {
  return {{.activations = Activations::calibrated, .recipes = {Recipe::nvfp4}},
          {.activations = Activations::dynamic}};
}

constexpr Recipe kWritten[] = {Recipe::nvfp4, Recipe::mxfp4, Recipe::mxfp6_e3m2, Recipe::mxfp8_e4m3,
                               Recipe::fp8_row};

bool can_write(Recipe recipe) {
  return std::find(std::begin(kWritten), std::end(kWritten), recipe) != std::end(kWritten);
}

/// Its NVFP4 has scales of inputs that are stored; without them (its converter writes none, and
/// another program of it adds them) inputs are quantized as they come, by who can.
bool can_have(Recipe recipe, Activations activations) {
  return activations == Activations::dynamic ||
         (activations == Activations::calibrated && recipe == Recipe::nvfp4);
}

Activations preset(Recipe recipe) {
  return recipe == Recipe::nvfp4 ? Activations::calibrated : Activations::dynamic;
}

std::vector<PartToWrite> parts(const WeightToWrite& weight) {
  const std::string module = module_of(weight.name) + ".";
  const auto part = [&](Part kind, const char* name, DType dtype, std::vector<std::int64_t> shape) {
    return PartToWrite{kind, tensor_info(module + name, dtype, std::move(shape))};
  };
  if (weight.recipe == Recipe::fp8_row) {
    return {
        {Part::values, tensor_info(weight.name, DType::F8_E4M3, weight.shape)},
        part(Part::scales, "weight_scale", DType::F32, grid_shape(weight.recipe, weight.shape))};
  }
  const bool nvfp4 = weight.recipe == Recipe::nvfp4;
  std::vector<PartToWrite> result = {
      {Part::values,
       tensor_info(weight.name, DType::U8, packed_shape(weight.recipe, weight.shape))},
      part(Part::scales, "weight_scale", nvfp4 ? DType::F8_E4M3 : DType::F8_E8M0,
           padded_shape(weight.recipe, weight.shape))};
  result[1].layout = ScaleLayout::swizzled_128x4;
  if (nvfp4) result.push_back(part(Part::tensor_scale, "weight_global_scale", DType::F32, {}));
  if (weight.activations == Activations::calibrated) {
    result.push_back(part(Part::input_scale, "input_global_scale", DType::F32, {}));
    result.push_back(part(Part::alpha, "alpha", DType::F32, {}));
  }
  return result;
}

/// The user names the recipe to its engine.
void describe(const Contents&, Documents& documents) {
  Json& config = documents["config.json"];
  if (config.empty()) config = nullptr;  // the source had none
  documents["hf_quant_config.json"] = nullptr;
}

}  // namespace

const DialectTraits kLightX2V = {
    .dialect = Dialect::lightx2v,
    .name = "lightx2v",
    .quant_method = "",
    .recognises_names = recognises_names,
    .read = read,
    .can_write = can_write,
    .inputs = inputs,
    .can_have = can_have,
    .preset = preset,
    .has_stacks = false,
    .index_name = kDiffusersIndex.data(),
    .mx_scale_mode = ceil_scales,
    .sense = TensorScaleSense::divisor,
    .parts = parts,
    .describe = describe,
};

}  // namespace blockscale::models
