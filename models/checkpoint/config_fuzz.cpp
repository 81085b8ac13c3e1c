// libFuzzer: config.json (and the same text as hf_quant_config.json), whatever its bytes, over
// small checkpoints of every dialect.
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/fuzz_stores.h"
#include "models/dialects/config_keys.h"
#include "models/fuzzing.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

using fuzz::check_weight;
using fuzz::make_store;
using fuzz::require;

std::vector<TensorStore> make_stores() {
  const TensorInfo plain{"norm.weight", DType::F32, {8}, 0};
  const TensorInfo fp8{"a.weight", DType::F8_E4M3, {2, 256}, 0};
  std::vector<TensorStore> stores;
  stores.push_back(make_store({plain}));
  stores.push_back(make_store({plain, fp8, {"a.weight_scale_inv", DType::F32, {1, 2}, 0}}));
  stores.push_back(make_store({fp8, {"a.weight_scale_inv", DType::U8, {1, 2}, 0}}));
  stores.push_back(make_store({fp8, {"a.weight_scale", DType::F32, {1}, 0}}));
  stores.push_back(make_store({fp8, {"a.weight_scale", DType::BF16, {2, 1}, 0}}));
  stores.push_back(make_store({fp8,
                               {"a.weight_scale", DType::F32, {}, 0},
                               {"a.input_scale", DType::BF16, {1}, 0},
                               {"l.k_scale", DType::F32, {1}, 0}}));
  stores.push_back(make_store({fp8,
                               {"a.weight_scale_inv", DType::BF16, {}, 0},
                               {"a.activation_scale", DType::BF16, {}, 0}}));
  stores.push_back(make_store({fp8, {"a.weight_scale", DType::U8, {2, 8}, 0}}));
  stores.push_back(make_store({{"a.weight_packed", DType::U8, {2, 16}, 0},
                               {"a.weight_scale", DType::F8_E4M3, {2, 2}, 0},
                               {"a.weight_global_scale", DType::F32, {1}, 0},
                               {"a.input_global_scale", DType::F32, {1}, 0}}));
  stores.push_back(make_store(
      {{"a.weight_packed", DType::U8, {2, 16}, 0}, {"a.weight_scale", DType::U8, {2, 1}, 0}}));
  stores.push_back(make_store({{"a.weight", DType::U8, {2, 16}, 0},
                               {"a.weight_scale", DType::F8_E4M3, {2, 2}, 0},
                               {"a.weight_scale_2", DType::F32, {}, 0},
                               {"a.input_scale", DType::F32, {}, 0}}));
  stores.push_back(make_store(
      {{"p_blocks", DType::U8, {2, 3, 1, 16}, 0}, {"p_scales", DType::U8, {2, 3, 1}, 0}}));
  stores.push_back(make_store({{"a.weight", DType::U8, {2, 16}, 0},
                               {"a.weight_scale", DType::F8_E4M3, {2, 2}, 0},
                               {"a.weight_scale_2", DType::F32, {}, 0},
                               {"a.pre_quant_scale", DType::BF16, {32}, 0}}));
  stores.push_back(
      make_store({{"p", DType::F8_E4M3, {2, 3, 5}, 0}, {"p_scale", DType::F32, {2, 1, 5}, 0}}));
  stores.push_back(make_store({{"a.weight", DType::U8, {2, 16}, 0},
                               {"a.weight_scale", DType::F8_E4M3, {128, 4}, 0},
                               {"a.weight_global_scale", DType::F32, {}, 0},
                               {"a.input_absmax", DType::F32, {}, 0}}));
  stores.push_back(make_store(
      {{"a.weight", DType::U8, {2, 128}, 0}, {"a.weight_scale", DType::F8_E8M0, {128, 8}, 0}}));
  stores.push_back(
      make_store({{"a._weight_qdata", DType::U8, {2, 16}, 0},
                  {"a._weight_scale", DType::F8_E4M3, {32, 16}, 0}},
                 {{"tensor_names", R"(["a.weight"])"},
                  {"a.weight", R"({"_type": "NVFP4Tensor", "_data": {"is_swizzled_scales": true},
                        "_tensor_data_names": ["qdata", "scale"]})"}}));
  stores.push_back(
      make_store({{"a.weight", DType::U8, {2, 16}, 0},
                  {"a.weight_scale", DType::F8_E4M3, {128, 4}, 0},
                  {"a.weight_scale_2", DType::F32, {}, 0}},
                 {{"_quantization_metadata",
                   R"({"format_version": "1.0", "layers": {"a": {"format": "nvfp4"}}})"}}));
  stores.push_back(make_store({fp8,
                               {"a.scale_weight", DType::F32, {}, 0},
                               {"a.scale_input", DType::F32, {}, 0},
                               {"scaled_fp8", DType::F8_E4M3, {2}, 0}}));
  stores.push_back(make_store(
      {fp8, {"a.qscale_weight", DType::BF16, {}, 0}, {"a.qscale_act", DType::BF16, {}, 0}}));
  stores.push_back(make_store({fp8}));
  stores.push_back(make_store({{"a.weight", DType::U32, {2, 16}, 0},
                               {"a.scales", DType::BF16, {2, 1}, 0},
                               {"a.biases", DType::BF16, {2, 1}, 0}}));
  stores.push_back(make_store({fp8, {"a.weights_scaling_factor", DType::F32, {1}, 0}}));
  stores.push_back(make_store({plain}, {{"quantization_config", R"({"method": "svdquant"})"}}));
  return stores;
}

/// What goes into a destination says nothing of the source's quantization any more.
void check_erased(Json config) {
  erase_quantization(config);
  require(find_quantization(config).empty(), "what is erased is found nowhere");
}

void read_checkpoint(const TensorStore& store, const SourceConfig& config) {
  try {
    const DialectTraits& dialect = detect_dialect(store, config);
    for (const StoredWeight& weight : dialect.read(store, config)) check_weight(weight);
    if (dialect.cache == nullptr) return;
    const std::optional<CacheScheme> cache = dialect.cache(config);
    require(!cache || config.quantization.is_object() || config.hf_quant_config.is_object(),
            "a cache has a configuration that says so");
  } catch (const Error& error) {
    // Tensors that the configuration does not describe are named instead of the file, and so is the
    // file whose header says something else.
    const bool known = error.argument() == fuzz::kFile ||
                       error.argument() == store.files()[0].path().string() ||
                       store.find(error.argument()) != nullptr ||
                       store.find(error.argument() + "_packed") != nullptr ||
                       store.find(error.argument() + "_scale") != nullptr ||
                       store.find(error.argument() + "_weight_scale") != nullptr;
    require(known, "errors name the file or a tensor");
    fuzz::check_message(error);
  }
}

}  // namespace
}  // namespace blockscale::models

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace blockscale;
  static const std::vector<TensorStore> stores = models::make_stores();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const models::Json json = parse_json(text, fuzz::kFile);
    if (!json.is_object()) return 0;
    models::check_erased(json);
    for (const bool hf_quant_config : {false, true}) {
      const models::SourceConfig config =
          models::make_source_config(json, hf_quant_config ? json : models::Json(), fuzz::kFile);
      for (const TensorStore& store : stores) models::read_checkpoint(store, config);
    }
  } catch (const Error& error) {
    // Two descriptions that differ are no fault of the file.
    if (error.code() != ErrorCode::unsupported) fuzz::check_refused(error);
    fuzz::check_message(error);
  }
  return 0;
}
