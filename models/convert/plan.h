// What a conversion will write, before anything is written: a pure function of the source and the
// options. Neither threads nor memory enter, so that the result does not depend on them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blockscale/convert.h"
#include "models/checkpoint/checkpoint.h"
#include "models/dialects/dialect.h"

namespace blockscale::models {

/// How the bytes of one weight come about.
enum class Method : std::uint8_t {
  verbatim,  // every stored part as it is
  transfer,  // codes as they are; scales as they are or exactly in another format; tensor scale in
             // the destination's sense, with one rounding
  requantize,  // values in f32, then quantized (or rounded to a plain format)
};

struct PlannedTensor {
  std::size_t source = 0;  // index into StoredCheckpoint::tensors()
  Method method = Method::verbatim;
  Recipe recipe = Recipe::f32;
  bool quantized = false;  // in the destination
  bool converted = false;
  std::string reason;
  std::string rule;
  bool transposed = false;  // the result is [.., k, rows]: Decision::transposed
  int group = -1;           // of NVFP4 and fp8_tensor: index into Plan::groups
  std::size_t shard = 0;
  std::vector<PartToWrite> parts;
  std::vector<std::size_t> slots;  // of each part in its shard's tensors
  /// Part of the source for each part, in `verbatim`.
  std::vector<const TensorStore::Entry*> stored;
  Activations activations = Activations::none;
  const Json* input_words = nullptr;  // the source's, for the same recipe and dialect
  float input_absmax = 0;             // of calibrated activations; 0: none, or that of the source
  /// Where scales are searched with weights: of each of the k columns.
  std::shared_ptr<const std::vector<float>> channel_weights;
  /// The same for MX recipes, if the calibration has them.
  std::shared_ptr<const std::vector<float>> channel_means;
  std::uint64_t bytes = 0;
};

/// Weights that share a tensor scale.
struct ScaleGroup {
  std::vector<std::size_t> members;  // indices into Plan::tensors
  /// All are MXFP4 that becomes NVFP4: blocks are kept where that is exact.
  bool keeps_blocks = false;
};

struct PlannedShard {
  std::string file;                  // name within the destination
  std::vector<TensorInfo> tensors;   // in file order
  std::vector<std::size_t> weights;  // indices into Plan::tensors, in order
};

struct Plan {
  std::shared_ptr<const StoredCheckpoint> source;
  const DialectTraits* destination = nullptr;
  std::vector<PlannedTensor> tensors;  // in the order of the source's
  std::vector<ScaleGroup> groups;
  std::vector<PlannedShard> shards;
  std::vector<std::string> kept_modules;
  std::optional<CacheScheme> cache;      // of keys and values, as the destination says it
  std::vector<std::string> warnings;     // ConvertReport's
  std::vector<std::string> activations;  // likewise
  bool all_verbatim = false;             // nothing changes: configuration files are copied as well
  std::optional<Recipe> plain_dtype;  // of a conversion of the whole checkpoint to a plain format
  std::uint64_t source_bytes = 0;
  std::uint64_t bytes = 0;
};

/// `file_name`: the destination's, if it is one file; else empty.
Plan make_plan(std::shared_ptr<const StoredCheckpoint> source, const ConvertOptions& options,
               const std::string& file_name);

/// The files beside the shards that are not copied, by name: config.json and its kind (unless
/// `all_verbatim`) and, for several shards or `with_index`, the index; also, or alone, under the
/// name that the dialect has for it.
std::map<std::string, std::string> configuration_files(const Plan& plan, bool with_index = false);

/// Whether the scales of a tensor are searched (ConvertOptions::scales).
bool searches_scales(const ConvertOptions& options, const PlannedTensor& planned);

/// Whether codes of `from` can be kept in `to`: scales differ in how they are stored only.
bool can_transfer(Recipe from, Recipe to);

}  // namespace blockscale::models
