// What a dialect is: how it names, shapes and describes quantized weights. One file a dialect; the
// table of them is in dialects.cpp. See docs/checkpoints.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockscale/convert.h"

namespace blockscale::models {

/// Keys come out sorted, as transformers writes config.json too.
using Json = nlohmann::json;

// ---- Reading ------------------------------------------------------------------------------------

/// What an input scale of NVFP4 is.
enum class InputScale : std::uint8_t {
  factor,   // absmax / 2688 or its inverse, as the tensor scale's sense says
  divisor,  // 2688 / absmax, whatever that sense is
  absmax,
};

/// Rows and columns of a matrix that share a number.
struct BlockSize {
  std::int64_t rows = 0;  // 0: all
  std::int64_t columns = 1;
  bool operator==(const BlockSize&) const = default;
};

/// Tensors of a store that may make up one quantized weight, found by name only.
struct FoundWeight {
  std::string name;  // the weight's, e.g. "encoder.layer.0.output.dense.weight"
  const TensorInfo* values = nullptr;
  const TensorInfo* scales = nullptr;
  const TensorInfo* tensor_scale = nullptr;
  /// Of calibrated activations: of NVFP4 in `sense`, of FP8 a multiplier, amax / 448.
  const TensorInfo* input_scale = nullptr;
  TensorScaleSense sense = TensorScaleSense::divisor;  // of tensor_scale and input_scale
  InputScale input_kind = InputScale::factor;
  /// tensor_scale is LightX2V's alpha, 1 / (the inputs' divisor * the weight's).
  bool tensor_scale_is_alpha = false;
  /// LightX2V's alpha beside the two scales that it follows from.
  const TensorInfo* alpha = nullptr;
  bool byte_values = false;  // e4m3 stored as U8
  bool byte_scales = false;  // e4m3 scales may be stored as U8
  /// Of two 4-bit codes in a byte the first is in the high bits; elsewhere it is in the low ones.
  bool high_nibble_first = false;
  /// NVFP4 without a tensor scale, which is 1 then.
  bool no_tensor_scale = false;
  /// Of the scales. Swizzled ones are padded to whole tiles.
  ScaleLayout scale_layout = ScaleLayout::row_major;
  const TensorInfo* derived = nullptr;  // what follows from the others, or describes them
  /// Each value is also multiplied by that of its block; of columns [k], or [E, .., k] of a stack.
  const TensorInfo* channel_factors = nullptr;
  BlockSize factor_block = {};
  /// Sizes of FP8 blocks that the configuration names and no recipe has.
  std::vector<BlockSize> odd_blocks = {};
};

/// Tensors that make values of whole numbers, beside the factor of a row.
enum class IntegerPart : std::uint8_t {
  group_scales,  // [N, K / group]
  levels,        // [16]: what codes stand for, instead of numbers
  offsets,       // [K / group, N]
  divisors,      // [K]
  down,          // [K, R], and
  up,            // [N, R]: a product of rank R that is added
};

/// Weights [N, K] of whole numbers, which no recipe has. Row n, column k of group g = k / group is,
/// in f32 and in this order, without the parts that are not there:
///   v = number or level of the code * group_scale(n, g)
///   v = the whole number nearest to v, of -127 to 127          if `whole`
///   v = v * factor(n) + offset(g, n)                           factors are FoundWeight's
///   v = v / divisor(k) + sum over r of down(k, r) * up(n, r)
/// and of each row, `rotated_columns` at a time are multiplied by the Hadamard matrix of
/// rotation.h, which is its own inverse.
struct IntegerForm {
  int bits =
      0;  // of a code: 8; 4, two in a byte, the first in its low bits; or 6, of each row first
          // the low 4 bits like those, then the high ones, four in a byte, the first lowest
  bool biased = false;        // 2^(bits - 1) stands for 0; otherwise two's complement
  bool groups_first = false;  // group_scales are [K / group, N]
  bool whole = false;
  std::int64_t group = 0;            // columns that share numbers; 0: all
  std::int64_t rotated_columns = 0;  // 0: none
  std::array<const TensorInfo*, 6> parts = {};

  const TensorInfo* operator[](IntegerPart part) const {
    return parts[static_cast<std::size_t>(part)];
  }
  void set(IntegerPart part, const TensorInfo* info) {
    parts[static_cast<std::size_t>(part)] = info;
  }
};

/// A quantized weight whose parts agree with its recipe.
struct StoredWeight : FoundWeight {
  Recipe recipe = Recipe::f32;
  std::vector<std::int64_t> shape;  // logical: rows and k last, in elements
  /// So many matrices, one after the other, share a scale of fp8_tensor: those of a convolution.
  std::int64_t matrices_per_scale = 1;
  /// A stack [E, in, out] whose blocks and codes lie along `in`: [E, in / 2, out] of FP4.
  bool packed_along_rows = false;
  /// Where it has bits, what the recipe, fp8_tensor, says of elements does not hold.
  IntegerForm integers = {};

  /// Each tensor that belongs to the weight.
  std::vector<const TensorInfo*> tensors() const;
};

/// Checks dtypes and shapes of `found` against `recipe`. Returns the rule that is broken, or "" and
/// fills `weight`.
std::string match(const FoundWeight& found, Recipe recipe, StoredWeight& weight);

/// `found` as the first of `candidates` that it matches, else in a form that is read by its values
/// only (match.h). Throws corrupt_file, or unsupported for what is legal elsewhere, naming the
/// tensor and the rule that the candidate breaks which fits it best.
StoredWeight match_any(const FoundWeight& found, std::span<const Recipe> candidates);

/// What config.json (and hf_quant_config.json) say; null where absent.
struct SourceConfig {
  Json config;                     // the whole config.json
  Json quantization;               // its quantization_config, wherever it stands
  std::string quantization_path;   // where: "text_config.quantization_config"
  Json hf_quant_config;            // the whole hf_quant_config.json
  std::string config_path;         // for messages
  std::string model_type() const;  // "" if not said
};

/// How the inputs of some weights are quantized, as a configuration says.
struct InputGroup {
  Activations activations = Activations::none;
  std::vector<Recipe> recipes = {};  // that its weights may have; empty: any
  std::vector<std::string> targets =
      {};                       // modules, "re:" and a pattern, or classes; empty: all weights
  const Json* words = nullptr;  // of the dialect; null: none
  std::optional<Recipe> recipe = {};  // that the words describe
};

/// How keys and values are cached, as a configuration says.
struct CacheScheme {
  /// e4m3 with a scale a tensor, a multiplier: the one scheme that dialects share.
  bool fp8 = false;
  Json words;  // of the dialect, for a destination in the same one; null: they are not carried over
};

// ---- Writing ------------------------------------------------------------------------------------

enum class Part : std::uint8_t {
  values,
  scales,
  tensor_scale,
  input_scale,
  alpha,            // 1 / (input scale * tensor scale), both divisors; last of the parts
  channel_factors,  // read only
};

/// "values", "scales", ...
std::string part_name(Part part);

/// A quantized weight to be written.
struct WeightToWrite {
  std::string name;
  std::vector<std::int64_t> shape;  // logical
  Recipe recipe = Recipe::f32;
  Activations activations = Activations::none;
  const Json* input_words = nullptr;  // of the same dialect and recipe, for the configuration
  std::int64_t tensor_scales = 1;     // 1, or one for each matrix of a stack
  std::int64_t input_scales = 1;      // likewise
  /// The configuration names it: a head, say, which the class of linear layers does not stand for
  /// in every engine.
  bool named = false;
};

/// A tensor that a dialect stores for a weight. Everything is packed.
struct PartToWrite {
  Part part;
  TensorInfo info;
  /// Of scales, which are the second part. In tiles they are bytes of one matrix, padded with 0.
  ScaleLayout layout = ScaleLayout::row_major;
};

/// All that the configuration files of a destination must tell.
struct Contents {
  std::vector<WeightToWrite> quantized;   // sorted by name
  std::vector<std::string> kept_modules;  // linear layers left plain, sorted
  std::optional<Recipe> plain_dtype;      // all weights are in this plain format
  std::optional<CacheScheme> cache;
};

/// Targets of a configuration that describes all of `quantized` alike: the class of linear layers,
/// and what must be named beside it.
Json targets_of_all(const Contents& contents);

/// Configuration files of a destination by name. A null value stands for a file to leave out.
using Documents = std::map<std::string, Json>;

// ---- The table ----------------------------------------------------------------------------------

struct DialectTraits {
  Dialect dialect;
  const char* name;
  /// quant_method of config.json, "" for plain.
  const char* quant_method;
  /// Whether the names in a store without configuration belong to this dialect.
  bool (*recognises_names)(const TensorStore& store);
  /// The quantized weights of a store; every tensor that belongs to none of them is plain.
  std::vector<StoredWeight> (*read)(const TensorStore& store, const SourceConfig& config);
  bool (*can_write)(Recipe recipe);
  /// What a configuration says of inputs; the first group that fits a weight holds. Null: nothing.
  std::vector<InputGroup> (*inputs)(const TensorStore& store, const SourceConfig& config) = nullptr;
  /// What can be said of the inputs of a weight of this recipe, and what is said by default if
  /// there are scales for it.
  bool (*can_have)(Recipe recipe, Activations activations);
  Activations (*preset)(Recipe recipe);
  /// The cache's scheme in a configuration, if there is one; null: the dialect cannot say any.
  std::optional<CacheScheme> (*cache)(const SourceConfig& config) = nullptr;
  /// What follows the attention's name in the names of its cache's scales; null: never written.
  const char* key_scale = nullptr;
  const char* value_scale = nullptr;
  /// Whether different quantized recipes may stand in one checkpoint.
  bool can_mix = false;
  /// Whether a weight may be a stack of matrices.
  bool has_stacks = true;
  /// A name under which a result in a folder always has its index, too; null: none.
  const char* index_name = nullptr;
  MxScaleMode (*mx_scale_mode)(Recipe recipe);
  TensorScaleSense sense;  // of the tensor and input scales that it stores
  /// The tensors stored for `weight`, in a fixed order of parts.
  std::vector<PartToWrite> (*parts)(const WeightToWrite& weight) = nullptr;
  /// Edits the documents (config.json is present) to describe `contents`.
  void (*describe)(const Contents& contents, Documents& documents) = nullptr;
};

std::span<const DialectTraits> dialects();
const DialectTraits& dialect_traits(Dialect dialect);

/// Which dialect a source is in. Throws unsupported for a quantization method nobody here reads.
const DialectTraits& detect_dialect(const TensorStore& store, const SourceConfig& config);

extern const DialectTraits kPlain;
extern const DialectTraits kDeepSeek;
extern const DialectTraits kModelOpt;
extern const DialectTraits kCompressedTensors;
extern const DialectTraits kGptOss;
extern const DialectTraits kLightX2V;
extern const DialectTraits kTorchao;
extern const DialectTraits kComfy;

// ---- Shared by the dialects
// -----------------------------------------------------------------------

/// "a.b" of "a.b.weight"; a parameter that is not named weight is its own module.
std::string module_of(const std::string& weight);

/// `name` without `suffix`, or "" if it does not end so (or is nothing else).
std::string without_suffix(const std::string& name, std::string_view suffix);

/// The tensor of this name, or null.
const TensorInfo* find_info(const TensorStore& store, const std::string& name);

/// The size of blocks that [64, 64] or "64x64" says; nothing if it says none.
std::optional<BlockSize> block_size(const Json& words);

/// A member of a JSON object, or null: never throws, whatever `object` is.
const Json& member(const Json& object, const char* key);

/// Where the dialect's own quantizer rounds MX scales up.
inline MxScaleMode ceil_scales(Recipe) {
  return MxScaleMode::ceil;
}

/// Shape of the packed values: the last dimension counts bytes.
std::vector<std::int64_t> packed_shape(Recipe recipe, const std::vector<std::int64_t>& shape);
/// Shape of the scale grid, leading (stack) dimensions included.
std::vector<std::int64_t> grid_shape(Recipe recipe, const std::vector<std::int64_t>& shape);
/// The same in whole tiles of 128 x 4; torchao has the four of a row of tiles in one row.
std::vector<std::int64_t> padded_shape(Recipe recipe, const std::vector<std::int64_t>& shape,
                                       bool torchao = false);

/// The one tensor that a plain (f32, f16, bf16) weight is stored as, in every dialect.
std::vector<PartToWrite> plain_parts(const WeightToWrite& weight);

/// A TensorInfo with its bytes filled in.
TensorInfo tensor_info(std::string name, DType dtype, std::vector<std::int64_t> shape);

}  // namespace blockscale::models
