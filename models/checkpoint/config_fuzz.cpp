// libFuzzer: config.json (and the same text as hf_quant_config.json), whatever its bytes, over
// small checkpoints of every dialect.
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/dialects/config_keys.h"
#include "models/fuzzing.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

using fuzz::require;

/// A store of these tensors, all zero. Its file is gone; the mapping stays.
TensorStore make_store(const std::vector<TensorInfo>& tensors,
                       const std::map<std::string, std::string>& metadata = {}) {
  std::string folder = std::filesystem::temp_directory_path() / "blockscale-XXXXXX";
  require(::mkdtemp(folder.data()) != nullptr, "mkdtemp works");
  const std::filesystem::path path = std::filesystem::path(folder) / "model.safetensors";
  SafetensorsWriter writer(path, tensors, metadata);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<std::byte> zeros(tensor_bytes(tensors[i].dtype, tensors[i].shape));
    writer.write(i, 0, zeros);
  }
  writer.publish();
  TensorStore store = TensorStore::open(path);
  std::filesystem::remove_all(folder);
  return store;
}

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
  // Forms that are read by their values: convolutions, odd blocks, packed along rows.
  const TensorInfo convolution{"c.weight", DType::F8_E4M3, {6, 4, 3, 3}, 0};
  stores.push_back(make_store({convolution, {"c.weight_scale", DType::F32, {6, 1, 1, 1}, 0}}));
  stores.push_back(make_store({convolution, {"c.weight_scale_inv", DType::BF16, {1}, 0}}));
  stores.push_back(make_store({fp8, {"a.weight_scale_inv", DType::F32, {1, 4}, 0}}));
  stores.push_back(make_store({fp8, {"a.weight_scale", DType::F32, {1, 4}, 0}}));
  stores.push_back(make_store({{"p", DType::U8, {2, 16, 3}, 0},
                               {"p_weight_scale", DType::F8_E4M3, {2, 2, 3}, 0},
                               {"p_weight_scale_2", DType::F32, {1}, 0}}));
  stores.push_back(
      make_store({{"p_packed", DType::U8, {2, 16, 3}, 0}, {"p_scale", DType::U8, {2, 1, 3}, 0}}));
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
  return stores;
}

/// What goes into a destination says nothing of the source's quantization any more.
void check_erased(Json config) {
  erase_quantization(config);
  require(find_quantization(config).empty(), "what is erased is found nowhere");
}

/// A weight that was accepted has the bytes that its recipe says, so that no view leaves the file.
void check_weight(const StoredWeight& weight) {
  const MatrixShape shape = matrix_shape(weight.shape);
  require(weight.values != nullptr, "values are there");
  require(weight.scales != nullptr || weight.channel_factors != nullptr, "scales are there");
  const RecipeTraits& t = recipe_traits(weight.recipe);
  const std::int64_t elements = shape.batch * shape.rows * shape.k;
  const std::int64_t values = weight.packed_along_rows
                                  ? elements * format_traits(t.element).bits / 8
                                  : shape.batch * value_bytes(weight.recipe, shape.rows, shape.k);
  require(weight.values->bytes == static_cast<std::uint64_t>(values), "values fill their tensor");
  if (weight.scales == nullptr) {
    const auto& [rows, columns] = weight.factor_block;
    const std::int64_t grid =
        (rows == 0 ? 1 : ceil_div(shape.rows, rows)) * ceil_div(shape.k, columns);
    const std::uint64_t bits =
        static_cast<std::uint64_t>(dtype_bits(weight.channel_factors->dtype));
    const std::uint64_t factors = weight.channel_factors->bytes * 8 / bits;
    require(factors == static_cast<std::uint64_t>(grid) ||
                factors == static_cast<std::uint64_t>(shape.batch * grid),
            "every block has a factor");
    return;
  }
  const std::int64_t scales =
      weight.packed_along_rows
          ? elements / t.block_k
          : shape.batch * scale_bytes(weight.recipe, weight.scale_layout, shape.rows, shape.k);
  const bool narrow = weight.scales->dtype == DType::BF16 || weight.scales->dtype == DType::F16;
  require(weight.scales->bytes * static_cast<std::uint64_t>(weight.matrices_per_scale) ==
              static_cast<std::uint64_t>(narrow ? scales / 2 : scales),
          "scales fill their tensor");
  require((weight.tensor_scale != nullptr || weight.no_tensor_scale) ==
              recipe_traits(weight.recipe).tensor_scale,
          "a tensor scale where the recipe has one");
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
    // Tensors that the configuration does not describe are named instead of the file.
    const bool known = error.argument() == fuzz::kFile || store.find(error.argument()) != nullptr ||
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
