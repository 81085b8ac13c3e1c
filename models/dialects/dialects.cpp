// The table of dialects, and what they share: matching tensors against a recipe.
#include <algorithm>
#include <limits>

#include "models/dialects/declared.h"
#include "models/dialects/dialect.h"
#include "models/dialects/match.h"
#include "models/json_file.h"

namespace blockscale {

namespace {
/// `Dialect` as an index may come from a caller's cast: refuse what is no enumerator.
const models::DialectTraits* find_dialect(Dialect dialect) {
  for (const models::DialectTraits& traits : models::dialects()) {
    if (traits.dialect == dialect) return &traits;
  }
  return nullptr;
}
}  // namespace

const char* dialect_name(Dialect dialect) {
  const models::DialectTraits* traits = find_dialect(dialect);
  return traits == nullptr ? "unknown" : traits->name;
}

std::optional<Dialect> dialect_from_name(std::string_view name) {
  for (const models::DialectTraits& traits : models::dialects()) {
    if (traits.name == name) return traits.dialect;
  }
  return std::nullopt;
}

const char* activations_name(Activations activations) {
  switch (activations) {
    case Activations::none: return "none";
    case Activations::dynamic: return "dynamic";
    case Activations::calibrated: return "static";
  }
  return "unknown";
}

Dialect default_dialect(Recipe recipe) {
  const bool known = static_cast<int>(recipe) < kRecipeCount;  // convert refuses the others
  if (known && is_plain(recipe)) return Dialect::plain;
  const bool square_blocks = recipe == Recipe::fp8_128x128 || recipe == Recipe::fp8_128x128_pow2 ||
                             recipe == Recipe::fp8_128x128_ue8m0;
  return square_blocks ? Dialect::deepseek : Dialect::compressed_tensors;
}

bool dialect_can_say(Dialect dialect, Recipe recipe) {
  const models::DialectTraits* traits = find_dialect(dialect);
  return traits != nullptr && static_cast<int>(recipe) < kRecipeCount && traits->can_write(recipe);
}

TensorScaleSense dialect_sense(Dialect dialect) {
  return models::dialect_traits(dialect).sense;
}

Recipe input_recipe(Recipe recipe, Activations activations) {
  if (activations == Activations::none || is_plain(recipe)) return Recipe::f32;
  const RecipeTraits& t = recipe_traits(recipe);
  if (t.family == Family::mx && format_traits(t.element).bits == 6) return Recipe::mxfp8_e4m3;
  if (t.family != Family::fp8 || recipe == Recipe::fp8_row) return recipe;
  if (activations == Activations::calibrated) return Recipe::fp8_tensor;
  return t.power_of_two ? Recipe::fp8_1x128_pow2 : Recipe::fp8_1x128;
}

std::vector<StoredPart> stored_parts(Dialect dialect, Recipe recipe, const std::string& name,
                                     const std::vector<std::int64_t>& shape,
                                     Activations activations) {
  if (!dialect_can_say(dialect, recipe) || is_plain(recipe)) {
    const bool known = static_cast<int>(recipe) < kRecipeCount;
    throw Error(ErrorCode::unsupported, "dialect",
                std::string(dialect_name(dialect)) + " stores no " +
                    (known ? recipe_traits(recipe).name : "such recipe"));
  }
  if (shape.size() < 2 || shape.size() > 3) {
    throw Error(ErrorCode::invalid_argument, "shape",
                "has " + std::to_string(shape.size()) + " dimensions, must have 2 or 3");
  }
  const models::DialectTraits& traits = *find_dialect(dialect);
  if (shape.size() == 3 && !traits.has_stacks) {
    throw Error(ErrorCode::invalid_argument, "shape",
                std::string("has 3 dimensions, must have 2 in ") + traits.name);
  }
  models::WeightToWrite weight;
  weight.name = name;
  weight.shape = shape;
  weight.recipe = recipe;
  weight.activations = activations;
  std::vector<StoredPart> result;
  for (const models::PartToWrite& part : traits.parts(weight)) {
    result.push_back({models::part_name(part.part), part.info, part.layout});
  }
  return result;
}

namespace models {
std::string part_name(Part part) {
  switch (part) {
    case Part::values: return "values";
    case Part::scales: return "scales";
    case Part::tensor_scale: return "tensor_scale";
    case Part::input_scale: return "input_scale";
    case Part::alpha: return "alpha";
    case Part::channel_factors: return "channel_factors";
  }
  return "unknown";
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

bool is_value_dtype(Format element, DType dtype, bool byte_values) {
  if (byte_values && element == Format::e4m3 && dtype == DType::U8) return true;
  switch (element) {
    case Format::e2m1: return dtype == DType::U8 || dtype == DType::I8 || dtype == DType::F4;
    case Format::e2m3: return dtype == DType::U8 || dtype == DType::F6_E2M3;
    case Format::e3m2: return dtype == DType::U8 || dtype == DType::F6_E3M2;
    case Format::e4m3: return dtype == DType::F8_E4M3;
    case Format::e5m2: return dtype == DType::F8_E5M2;
    default: return false;
  }
}

bool is_scale_dtype(Format scale, DType dtype, bool byte_scales) {
  if (byte_scales && scale == Format::ue4m3 && dtype == DType::U8) return true;
  switch (scale) {
    case Format::f32: return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
    case Format::ue8m0: return dtype == DType::U8 || dtype == DType::F8_E8M0;
    case Format::ue4m3: return dtype == DType::F8_E4M3;
    default: return false;
  }
}

namespace {

/// Logical k of a stored last dimension, or -1 if no k packs into it.
std::int64_t logical_k(Format element, DType dtype, std::int64_t last) {
  const int bits = format_traits(element).bits;
  if (dtype_bits(dtype) == bits) return last;
  if (last > std::numeric_limits<std::int64_t>::max() / 8) return -1;
  return last * 8 % bits == 0 ? last * 8 / bits : -1;
}

/// Shapes that writers use for one scale a matrix or one a row, besides the grid's own.
bool is_row_major_shape(const std::vector<std::int64_t>& stored, Recipe recipe,
                        const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> expected = grid_shape(recipe, shape);
  if (stored == expected) return true;
  const RecipeTraits& t = recipe_traits(recipe);
  if (t.block_rows > 1 && expected.size() == 2) {  // ModelOpt's, as it takes blocks apart
    return stored == std::vector<std::int64_t>{expected[0], 1, expected[1], 1};
  }
  if (t.block_k != 0) return false;
  const bool one = std::all_of(stored.begin(), stored.end(), [](auto size) { return size == 1; });
  if (one && t.block_rows == 0) return true;  // also where it is that of a whole stack
  expected.pop_back();                        // [.., rows]
  if (stored == expected) return true;
  if (t.block_rows != 0) return false;
  expected.pop_back();  // one scalar a matrix
  return stored == expected;
}

bool is_scale_shape(const FoundWeight& found, Recipe recipe,
                    const std::vector<std::int64_t>& shape) {
  const std::vector<std::int64_t>& stored = found.scales->shape;
  if (found.scale_layout == ScaleLayout::row_major) {
    return is_row_major_shape(stored, recipe, shape);
  }
  return stored == padded_shape(recipe, shape) || stored == padded_shape(recipe, shape, true);
}

std::string match_channel_factors(const FoundWeight& found,
                                  const std::vector<std::int64_t>& shape) {
  if (found.channel_factors == nullptr) return "";
  const TensorInfo& factors = *found.channel_factors;
  std::int64_t count = 1;
  for (const std::int64_t size : factors.shape) count = size == 1 ? count : count * size;
  const std::int64_t stack = shape.size() == 3 ? shape.front() : 1;
  if (is_scale_dtype(Format::f32, factors.dtype) &&
      (count == shape.back() || count == stack * shape.back())) {
    return "";
  }
  return "its factors " + factors.name + " are " + std::string(dtype_name(factors.dtype)) + " " +
         shape_text(factors.shape) + ", must be F32, BF16 or F16 with " +
         std::to_string(shape.back()) + " elements a matrix";
}

/// How far a weight fits a recipe, the best last.
enum class Fit : std::uint8_t { none, values, scale_dtype, scale_shape };

/// Why a weight does not fit a recipe; nothing if `rule` is empty.
struct Mismatch {
  std::string rule;
  Fit fit = Fit::none;
  std::vector<std::int64_t> wanted = {};  // shape of its scales, where that is what is wrong
};

/// Of FP8 with one scale a matrix or a row, which convolutions have.
bool may_have_more_dimensions(const RecipeTraits& t) {
  return t.block_k == 0 && format_traits(t.element).bits == 8;
}

/// Leading dimensions that share a scale, the rest of them having one each: of a convolution
/// [out, in, ..], or of a stack with one scale for all. 0: the scales are others.
std::int64_t matrices_per_scale(const FoundWeight& found, const RecipeTraits& t,
                                const std::vector<std::int64_t>& shape) {
  if (shape.size() < 3 || !may_have_more_dimensions(t)) return 0;
  std::int64_t matrices = 1, scales = 1;
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) matrices *= shape[i];
  for (const std::int64_t size : found.scales->shape) scales *= size;
  if (t.block_rows == 0) return scales == 1 ? matrices : 0;
  const bool one_an_output = !found.scales->shape.empty() && scales == shape.front() &&
                             found.scales->shape.front() == shape.front();
  return one_an_output ? matrices / scales : 0;
}

std::string match_values(const FoundWeight& found, const RecipeTraits& t, StoredWeight& weight) {
  if (found.values == nullptr) return "has scales but no values";
  const TensorInfo& values = *found.values;
  if (!is_value_dtype(t.element, values.dtype, found.byte_values)) {
    return "its values are " + std::string(dtype_name(values.dtype)) + ", which cannot hold " +
           format_traits(t.element).name + " of " + t.name;
  }
  const std::size_t most = may_have_more_dimensions(t) ? 5 : 3;
  if (values.shape.size() < 2 || values.shape.size() > most) {
    return "its values have shape " + shape_text(values.shape) +
           ", must have 2 or 3 dimensions, or up to 5 in FP8 with one scale a tensor or an output";
  }
  if (values.bytes == 0) return "its values of shape " + shape_text(values.shape) + " are empty";
  weight.shape = values.shape;
  weight.shape.back() = logical_k(t.element, values.dtype, values.shape.back());
  const bool divides =
      t.ragged || (weight.shape.back() >= 0 && weight.shape.back() % t.block_k == 0);
  if (weight.shape.back() < 0 || !divides) {
    return "its values have shape " + shape_text(values.shape) + " as " +
           std::string(dtype_name(values.dtype)) + ", which is no multiple of " +
           std::to_string(std::max(1, t.block_k)) + " elements of " + t.name + " in a row";
  }
  return "";
}

/// `narrow`: may also be bf16 or f16.
std::string match_factor(const TensorInfo* factor, const char* what, std::int64_t stack,
                         bool narrow = false) {
  if (factor == nullptr) return "";
  std::int64_t count = 1;
  for (const std::int64_t size : factor->shape) count = size == 1 ? count : count * size;
  const bool fits =
      narrow ? is_scale_dtype(Format::f32, factor->dtype) : factor->dtype == DType::F32;
  if (!fits || (count != 1 && count != stack)) {
    return std::string("its ") + what + " is " + std::string(dtype_name(factor->dtype)) + " " +
           shape_text(factor->shape) + ", must be F32 with " +
           (stack == 1 ? "1 element" : "1 or " + std::to_string(stack) + " elements");
  }
  return "";
}

Mismatch mismatch(const FoundWeight& found, Recipe recipe, StoredWeight& weight) {
  const RecipeTraits& t = recipe_traits(recipe);
  weight = {};
  static_cast<FoundWeight&>(weight) = found;
  weight.recipe = recipe;
  const bool has_dtype =
      found.values == nullptr || is_value_dtype(t.element, found.values->dtype, found.byte_values);
  const std::string broken = match_values(found, t, weight);
  if (!broken.empty()) {
    return {broken, has_dtype ? Fit::values : Fit::none};
  }
  if (found.scales == nullptr) {
    return {std::string("has no scales, which ") + t.name + " needs", Fit::values};
  }
  if (!is_scale_dtype(t.scale, found.scales->dtype, found.byte_scales)) {
    return {"its scales " + found.scales->name + " are " +
                std::string(dtype_name(found.scales->dtype)) + ", which cannot hold " +
                format_traits(t.scale).name + " of " + t.name,
            Fit::scale_dtype};
  }
  if (weight.shape.size() > 3 || !is_scale_shape(found, recipe, weight.shape)) {
    weight.matrices_per_scale = matrices_per_scale(found, t, weight.shape);
    if (weight.matrices_per_scale == 0) {
      const bool padded = found.scale_layout != ScaleLayout::row_major;
      std::vector<std::int64_t> wanted =
          padded ? padded_shape(recipe, weight.shape) : grid_shape(recipe, weight.shape);
      if (weight.shape.size() > 3) {
        wanted.assign(weight.shape.size(), 1);
        if (t.block_rows != 0) wanted[0] = weight.shape[0];
      }
      return {"its scales", Fit::scale_shape, std::move(wanted)};
    }
    if (t.block_rows != 0) weight.recipe = Recipe::fp8_tensor;
  }
  std::string wrong = match_factors(found, recipe, weight.shape);
  if (wrong.empty()) wrong = match_channel_factors(found, weight.shape);
  return {wrong, Fit::scale_shape};
}

/// The shapes that the scales of `found` may have: of each recipe that fits it otherwise.
std::string scale_shapes_text(const FoundWeight& found, std::span<const Recipe> candidates) {
  std::vector<std::vector<std::int64_t>> told;
  std::string text;
  std::vector<std::int64_t> shape;
  for (const Recipe recipe : candidates) {
    StoredWeight weight;
    const Mismatch found_wrong = mismatch(found, recipe, weight);
    const std::vector<std::int64_t>& wanted = found_wrong.wanted;
    if (wanted.empty() || std::find(told.begin(), told.end(), wanted) != told.end()) continue;
    told.push_back(wanted);
    shape = weight.shape;
    text +=
        (text.empty() ? "" : " or ") + shape_text(wanted) + " for " + recipe_traits(recipe).name;
  }
  return "its scales " + found.scales->name + " have shape " + shape_text(found.scales->shape) +
         ", must be " + text + " of " + shape_text(shape);
}

}  // namespace

std::string match_factors(const FoundWeight& found, Recipe recipe,
                          const std::vector<std::int64_t>& shape) {
  const RecipeTraits& t = recipe_traits(recipe);
  const std::int64_t stack = shape.size() == 3 ? shape.front() : 1;
  if (t.tensor_scale && found.tensor_scale == nullptr && !found.no_tensor_scale) {
    return std::string("has no tensor scale, which ") + t.name + " needs";
  }
  if (!t.tensor_scale && found.tensor_scale != nullptr) {
    return "has a tensor scale " + found.tensor_scale->name + ", which " + t.name + " has not";
  }
  const std::string broken = match_factor(found.tensor_scale, "tensor scale", stack);
  return broken.empty() ? match_factor(found.input_scale, "input scale", stack, true) : broken;
}

std::string match(const FoundWeight& found, Recipe recipe, StoredWeight& weight) {
  const Mismatch found_wrong = mismatch(found, recipe, weight);
  return found_wrong.wanted.empty() ? found_wrong.rule
                                    : scale_shapes_text(found, std::span(&recipe, 1));
}

StoredWeight match_any(const FoundWeight& found, std::span<const Recipe> candidates) {
  StoredWeight weight;
  std::optional<Mismatch> best;
  for (const Recipe recipe : candidates) {
    Mismatch wrong = mismatch(found, recipe, weight);
    if (wrong.rule.empty()) return weight;
    if (!best || wrong.fit > best->fit) best = std::move(wrong);
  }
  if (found.values == nullptr) {
    throw Error(ErrorCode::corrupt_file, found.name, "has scales but no values");
  }
  if (const auto form = match_value_form(found, candidates)) return *form;
  // What words say of blocks does not hold for convolutions.
  for (const Recipe recipe : {Recipe::fp8_tensor, Recipe::fp8_row}) {
    if (found.values->shape.size() < 3) break;
    if (mismatch(found, recipe, weight).rule.empty()) return weight;
  }
  if (!best || best->fit == Fit::none) {
    throw Error(ErrorCode::corrupt_file, found.name,
                "its values are " + std::string(dtype_name(found.values->dtype)) +
                    ", which no recipe of the checkpoint's configuration stores");
  }
  // Convolutions in blocks are legal where somebody reads them.
  const bool legal = found.values->shape.size() > 3 && best->fit != Fit::scale_shape;
  throw Error(legal ? ErrorCode::unsupported : ErrorCode::corrupt_file, found.name,
              best->wanted.empty() ? best->rule : scale_shapes_text(found, candidates));
}

std::string SourceConfig::model_type() const {
  const Json& type = member(config, "model_type");
  return type.is_string() ? type.get<std::string>() : "";
}

std::span<const DialectTraits> dialects() {
  static const DialectTraits table[] = {kPlain,   kComfy,    kDeepSeek,          kModelOpt,
                                        kTorchao, kLightX2V, kCompressedTensors, kGptOss};
  return table;
}

const DialectTraits& dialect_traits(Dialect dialect) {
  const DialectTraits* traits = find_dialect(dialect);
  if (traits == nullptr) {
    throw Error(ErrorCode::invalid_argument, "dialect",
                "is " + std::to_string(static_cast<int>(dialect)) + ", must be in 0.." +
                    std::to_string(dialects().size() - 1));
  }
  return *traits;
}

const DialectTraits& detect_dialect(const TensorStore& store, const SourceConfig& config) {
  check_declared(store, config);
  const Json& method = member(config.quantization, "quant_method");
  if (!config.quantization.is_null()) {
    if (method.is_null() && is_word(member(config.quantization, "bits")) &&
        is_word(member(config.quantization, "group_size"))) {
      throw Error(ErrorCode::unsupported, config.config_path,
                  config.quantization_path + " says " + show_json(config.quantization, 100) +
                      ", as MLX does, whose packed weights are not readable");
    }
    if (!method.is_string()) {
      throw Error(ErrorCode::corrupt_file, config.config_path,
                  "quantization_config has no quant_method, must name one as a string");
    }
    // ModelOpt's name may carry the algorithm: modelopt_fp4.
    const std::string name = method.get<std::string>();
    for (const DialectTraits& traits : dialects()) {
      const std::string_view own = traits.quant_method;
      const bool same = name == own || (own == "modelopt" && name.starts_with("modelopt_")) ||
                        (own == "fp8" && name == "fbgemm_fp8");
      if (!own.empty() && same) return traits;
    }
    throw Error(ErrorCode::unsupported, config.config_path,
                "quant_method is " + show_json(method) +
                    ", readable are compressed-tensors, fp8 (DeepSeek), fbgemm_fp8, modelopt, "
                    "mxfp4 and torchao");
  }
  if (!config.hf_quant_config.is_null()) return kModelOpt;
  for (const DialectTraits& traits : dialects()) {
    if (traits.recognises_names(store)) return traits;
  }
  return kPlain;
}

Json targets_of_all(const Contents& contents) {
  Json targets = Json::array({"Linear"});
  for (const WeightToWrite& weight : contents.quantized) {
    if (weight.named) targets.push_back(module_of(weight.name));
  }
  return targets;
}

std::vector<const TensorInfo*> StoredWeight::tensors() const {
  std::vector<const TensorInfo*> result = {values, scales,          tensor_scale, input_scale,
                                           alpha,  channel_factors, derived};
  result.insert(result.end(), integers.parts.begin(), integers.parts.end());
  std::erase(result, nullptr);
  return result;
}

std::string module_of(const std::string& weight) {
  const std::string module = without_suffix(weight, ".weight");
  return module.empty() ? weight : module;
}

std::string without_suffix(const std::string& name, std::string_view suffix) {
  if (name.size() <= suffix.size() || !name.ends_with(suffix)) return "";
  return name.substr(0, name.size() - suffix.size());
}

const TensorInfo* find_info(const TensorStore& store, const std::string& name) {
  const TensorStore::Entry* entry = store.find(name);
  return entry == nullptr ? nullptr : &entry->info;
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::vector<std::int64_t> packed_shape(Recipe recipe, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> packed = shape;
  packed.back() = row_bytes(recipe, shape.back());
  return packed;
}

std::vector<std::int64_t> grid_shape(Recipe recipe, const std::vector<std::int64_t>& shape) {
  const ScaleGrid grid = scale_grid(recipe, shape[shape.size() - 2], shape.back());
  std::vector<std::int64_t> result(shape.begin(), shape.end() - 2);
  result.push_back(grid.rows);
  result.push_back(grid.columns);
  return result;
}

std::vector<std::int64_t> padded_shape(Recipe recipe, const std::vector<std::int64_t>& shape,
                                       bool torchao) {
  std::vector<std::int64_t> result = grid_shape(recipe, shape);
  const std::size_t rows = result.size() - 2;
  const ScaleLayoutTraits& tile = scale_layout_traits(ScaleLayout::swizzled_128x4);
  result[rows] = ceil_div(result[rows], std::int64_t{tile.tile_rows}) * (torchao ? 32 : 128);
  result[rows + 1] = ceil_div(result[rows + 1], std::int64_t{tile.tile_k}) * (torchao ? 16 : 4);
  return result;
}

TensorInfo tensor_info(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  std::uint64_t bits = static_cast<std::uint64_t>(dtype_bits(dtype));
  for (const std::int64_t size : shape) bits *= static_cast<std::uint64_t>(size);
  return {std::move(name), dtype, std::move(shape), bits / 8};
}

}  // namespace models
}  // namespace blockscale
