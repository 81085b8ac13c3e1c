// Checkpoints of the ecosystem's dialects: read any, convert to any, compare two.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blockscale/quantize.h"
#include "blockscale/safetensors.h"
#include "blockscale/tensor.h"

namespace blockscale {

/// How quantized weights are named, shaped and described on disk (docs/checkpoints.md).
enum class Dialect : std::uint8_t {
  plain,
  deepseek,
  modelopt,
  compressed_tensors,
  gpt_oss,  // MXFP4 experts of gpt-oss; read only
  lightx2v,
  torchao,  // read only
  comfy,    // ComfyUI's (comfy-kitchen's tensors); read only
};
/// "plain", "deepseek", "modelopt", "compressed-tensors", "gpt-oss", "lightx2v", "torchao",
/// "comfy".
const char* dialect_name(Dialect dialect);
std::optional<Dialect> dialect_from_name(std::string_view name);
/// The dialect a recipe is written in unless the caller says otherwise.
Dialect default_dialect(Recipe recipe);
bool dialect_can_say(Dialect dialect, Recipe recipe);
/// How it stores tensor scales. Throws invalid_argument for what is no dialect.
TensorScaleSense dialect_sense(Dialect dialect);

/// How engines quantize the inputs of quantized layers: not at all, as they come, or with the
/// scales that were calibrated.
enum class Activations : std::uint8_t { none, dynamic, calibrated };
/// "none", "dynamic", "static".
const char* activations_name(Activations activations);
/// What inputs are quantized to beside weights of `recipe`, where nothing else is said of them: by
/// 1 x 128 beside FP8 of a tensor or of blocks, as FP8 beside MXFP6, else as the weights are. f32
/// with `none`: they stay as they are.
Recipe input_recipe(Recipe recipe, Activations activations);

/// How a checkpoint has the inputs of a quantized weight quantized.
struct WeightInputs {
  Activations activations = Activations::none;
  Recipe recipe = Recipe::f32;  // what they become; f32 with `none`
  /// Of calibrated ones, one or one for each matrix of a stack: of NVFP4 tensor scales, in the
  /// sense of the weight's own; of FP8 scales, multipliers.
  std::vector<float> scales;
};

/// A tensor that a dialect stores for a quantized weight.
struct StoredPart {
  std::string part;  // "values", "scales", "tensor_scale", "input_scale" or "alpha" (lightx2v)
  TensorInfo info;
  ScaleLayout layout = ScaleLayout::row_major;  // of the scales
};
/// Those of a weight of this name and shape, packed; `activations` says whether there is an input
/// scale. Throws unsupported for a recipe that the dialect cannot say, invalid_argument for a stack
/// where it has none.
std::vector<StoredPart> stored_parts(Dialect dialect, Recipe recipe, const std::string& name,
                                     const std::vector<std::int64_t>& shape,
                                     Activations activations);

/// A weight as the model knows it: quantized (values, scales, tensor scale gathered from the
/// dialect's tensors) or stored plainly. `shape` is the logical one, in elements.
struct CheckpointTensor {
  std::string name;                 // the weight's name, e.g. "encoder.layer.0.output.dense.weight"
  std::vector<std::int64_t> shape;  // logical
  bool quantized = false;
  Recipe recipe = Recipe::f32;  // of `quantized` tensors, and of plain f32, f16 and bf16 ones
  DType dtype = DType::F32;     // of the stored values
  std::uint64_t bytes = 0;      // stored bytes: values, scales and tensor scales
  /// Values are also multiplied by factors of their columns, which no view can say: AWQ's
  /// pre_quant_scale, or the scales of outputs of FBGEMM's stacks [experts, inputs, outputs].
  bool column_factors = false;
  /// Of a quantized tensor's scales, as they are stored and as a view has them.
  ScaleLayout scale_layout = ScaleLayout::row_major;
  /// What it is stored in, where no view can say it and no recipe is: "factors of columns", "blocks
  /// of 64 x 64", "packed along rows", "int8", "int8, rotated" (`recipe` is fp8_tensor of these, a
  /// byte an element). Conversions read its values. Else empty.
  std::string form;
};

/// A checkpoint in any readable dialect, opened lazily over mmap.
class Checkpoint {
 public:
  static Checkpoint open(const std::filesystem::path& file_or_folder);

  Dialect dialect() const;
  const TensorStore& store() const;
  const std::vector<CheckpointTensor>& tensors() const;  // sorted by name
  const CheckpointTensor* find(std::string_view name) const;
  /// A view over the mapping of a quantized tensor, or of a plain f32, f16 or bf16 one. Tensors
  /// of more than two dimensions are batches of their last two; one dimension is one row. Codes
  /// whose first one is in a byte's high bits (ComfyUI's NVFP4) are viewed in a copy, which is
  /// made once and lives as long as the checkpoint. Throws unsupported for those with a `form`.
  ScaledTensorView view(const CheckpointTensor& tensor) const;
  /// Why `convert` would refuse the scales of `tensor`: "a.weight_scale_2 is nan, must be finite
  /// and above 0", of the tensor, a whole matrix, its activations or the cache. Empty: it would
  /// not.
  std::string problem(const CheckpointTensor& tensor) const;
  /// What the configuration says of the inputs of a quantized weight. Where it asks for scales that
  /// are not stored, or that calibration never set, inputs are `dynamic`; where it says nothing,
  /// scales that are stored hold. Throws unsupported for inputs that no recipe describes.
  WeightInputs inputs(const CheckpointTensor& tensor) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Whether `tensor` is the 2-D weight of a linear layer, by its name and shape: what convert
/// quantizes by default, stacked experts apart.
bool is_linear_weight(const CheckpointTensor& tensor);

/// Those of `weights` that one of `patterns` matches, by their names or their modules', in their
/// order. A pattern is a glob (*, ?, [..]; * matches dots too) of the whole name, or "re:" and a
/// regular expression that matches from its start. Throws invalid_argument, naming `argument`, for
/// one that is no expression or matches nothing, then with near names.
std::vector<std::string> matching_weights(const std::vector<std::string>& weights,
                                          const std::vector<std::string>& patterns,
                                          const char* argument);

/// How a stack of experts [E, .., ..] is stored. Scales run along the inputs, which must be last.
enum class ExpertsLayout : std::uint8_t { out_in, in_out };

/// What becomes of input scales of 0: of experts that no token reached in calibration.
enum class UnusedInputs : std::uint8_t {
  drop,  // engines want those of all weights of a recipe, so the others go as well
  one,   // 1 is stored for them
};

struct ConvertProgress {
  std::uint64_t source_bytes_done = 0;
  std::uint64_t source_bytes_total = 0;
  std::string tensor;  // being converted
};

struct ConvertOptions {
  Recipe recipe = Recipe::nvfp4;     // f32, f16, bf16: dequantize
  std::optional<Dialect> dialect;    // default: default_dialect(recipe)
  std::vector<std::string> include;  // patterns (matching_weights); empty: the default choice
  std::vector<std::string> exclude;
  std::vector<std::pair<std::string, Recipe>> map;  // pattern -> recipe, first match wins
  /// Of stacks of experts that are quantized (anew). Default: as the model type stores them;
  /// unknown ones are refused.
  std::optional<ExpertsLayout> experts_layout;
  /// Quantize weights anew that engines fuse and whose NVFP4 tensor scales would differ.
  bool share_tensor_scales = false;
  std::optional<std::filesystem::path> activation_scales;  // safetensors or JSON: name -> absmax
  /// Default: as the source's weights have them; of a plain source, as llm-compressor's preset of
  /// the recipe, as far as scales are given for it.
  std::optional<Activations> activations;
  UnusedInputs unused_inputs = UnusedInputs::drop;
  /// Which scales blocks take in MX recipes and NVFP4. `weighted` needs `calibration`: a
  /// safetensors file with the mean square of each input channel, and for MX recipes perhaps its
  /// mean (docs/checkpoints.md).
  ScaleChoice scales = ScaleChoice::amax;
  std::optional<std::filesystem::path> calibration;
  std::optional<MxScaleMode> mx_scale_mode;  // default: the dialect's (docs/checkpoints.md)
  float fp8_amax_floor = 0.0f;
  std::uint64_t shard_bytes = 5'000'000'000;
  std::uint64_t memory_bytes = std::uint64_t{2} << 30;  // resident, beyond mapped files
  int threads = 0;
  bool resume = false;           // continue an interrupted conversion with the same options
  bool overwrite = false;        // replace an existing file, or a folder that holds a checkpoint
  bool copy_all = false;         // copy also what `not_copied` of the report lists else
  bool allow_nonfinite = false;  // quantize NaN and Inf by the rules of numerics.md
  bool dry_run = false;          // decide, report, and write nothing
  /// Called from one thread at a time; returning false stops the conversion (interrupted).
  std::function<bool(const ConvertProgress&)> progress;
};

struct ConvertedTensor {
  std::string name;
  Recipe source_recipe = Recipe::f32;
  std::string source_form;  // the tensor's in the source; not empty: no recipe says it
  Recipe recipe = Recipe::f32;
  bool converted = false;
  std::string reason;  // why it was kept, or what was done to its tensor scale
  /// What chose that: an option and its pattern, `map "*.experts.*"`, or what the tensor is, "a
  /// linear layer"; empty of what no option chose and is kept.
  std::string rule;
  std::uint64_t source_bytes = 0;
  std::uint64_t bytes = 0;
  /// Where scales were searched: the squared errors of the values, weighted as the scales are, over
  /// those that the amax rule would have left. Not of shards that `resume` kept.
  std::optional<double> error_ratio;
};

/// What `convert` would do with a weight of a model in memory.
struct PlannedWeight {
  std::string name;
  Recipe recipe = Recipe::f32;  // of the result
  bool converted = false;
  std::string reason;  // ConvertedTensor's, as what follows
  std::string rule;
  WeightInputs inputs = {};
  /// Weights of one number share a tensor scale; -1: it has a scale of its own, or none.
  int group = -1;
  MxScaleMode mx_scale_mode = MxScaleMode::ceil;
  std::vector<float> channel_weights, channel_means;  // of searched scales; empty: none
};

/// One for each of `tensors`, the plain ones of a model in memory, sorted by name; `config` is its
/// config.json, or "". Throws as `convert` does.
std::vector<PlannedWeight> plan_weights(const std::vector<TensorInfo>& tensors,
                                        const std::string& config, const ConvertOptions& options);

/// Name patterns and what becomes of the weights that match, in the order of a file: YAML (a flat
/// mapping) or JSON (an object), by its extension. Throws corrupt_file, of YAML
/// with the line, and invalid_argument for another extension.
std::vector<std::pair<std::string, Recipe>> read_recipe_file(const std::filesystem::path& path);

/// A file beside the source's weights that was left behind.
struct NotCopied {
  std::string path;         // within the source's folder; ends with a slash if it is a folder
  std::uint64_t bytes = 0;  // with all that is below
  std::string reason;
};

struct ConvertReport {
  Dialect source_dialect = Dialect::plain;
  Dialect dialect = Dialect::plain;
  std::vector<ConvertedTensor> tensors;
  /// How inputs are quantized and why, one line for each recipe: "fp8_row: dynamic, as in the
  /// source". Empty where nothing changes.
  std::vector<std::string> activations;
  std::vector<std::string> warnings;  // what was dropped, and what engines may take otherwise
  std::uint64_t source_bytes = 0;
  std::uint64_t bytes = 0;
  /// Blocks of MXFP4 that became NVFP4 without loss, of all that became NVFP4. Not of shards that
  /// `resume` kept.
  std::int64_t exact_blocks = 0;
  std::int64_t blocks = 0;
  int shards_reused = 0;           // by resume
  bool partial_discarded = false;  // an unfinished conversion was found, and not resumed
  std::vector<NotCopied> not_copied;
  std::uint64_t disk_bytes = 0;  // that all files of the result need, in whole blocks of 4 KiB
  std::uint64_t free_bytes = 0;  // `dry_run`: that the destination's file system has free
  double seconds = 0;
};

/// Converts the checkpoint at `source` (file or folder) into `destination` (file if the source is
/// one, else folder). Nothing appears at `destination` before it is complete. Throws NoSpaceError
/// (blockscale/files.h) if the disk is or becomes full; what is finished then stays for `resume`.
ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ConvertOptions& options);

enum class ComparisonStatus : std::uint8_t {
  equal,    // every value is; NaN equals NaN
  differs,  // by a finite SQNR
  /// SQNR is NaN or minus infinity: NaN or infinity on one side only, or values instead of zeros.
  ruined,
  not_compared,  // other bytes, of a dtype that cannot be read as numbers (packed FP4 and FP6, ...)
};
/// "equal", "differs", "ruined", "not_compared".
const char* comparison_status_name(ComparisonStatus status);

struct TensorComparison {
  std::string name;
  std::string recipe_a, recipe_b;  // or the dtype of what has no recipe: "F64"
  std::vector<std::int64_t> shape;
  ComparisonStatus status = ComparisonStatus::equal;
  /// Stored in another recipe or dtype, or with other values: counts in the total.
  bool converted = false;
  /// 10 log10(signal / noise); infinity if equal, NaN or -infinity if ruined, NaN if not compared.
  double sqnr_db = 0;
  double signal = 0;      // sum a^2, without what is not finite and equal
  double noise = 0;       // sum (a - b)^2
  double max_error = 0;   // largest |a - b|
  double mean_error = 0;  // mean |a - b|
  std::uint64_t bytes_a = 0, bytes_b = 0;
};

struct CompareReport {
  /// In both, of the same shape: the ruined ones first, then by name.
  std::vector<TensorComparison> tensors;
  std::int64_t converted = 0;  // how many of them are
  TensorComparison total;      // over these
  std::vector<std::string> only_a, only_b, different_shape;
};

/// Compares two checkpoints value by value (dequantized in f32, sums in f64 or wider). A is the
/// reference. `tensors`: patterns (matching_weights) of what is compared; empty: everything. Throws
/// invalid_argument if they have no tensor of one name and shape among it.
CompareReport compare(const std::filesystem::path& a, const std::filesystem::path& b,
                      int threads = 0, const std::vector<std::string>& tensors = {});

}  // namespace blockscale
