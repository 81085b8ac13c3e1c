// libFuzzer: ComfyUI's description of quantized layers, whatever its bytes: as a header's metadata,
// and as what a tensor says of one layer.
#include "models/checkpoint/fuzz_stores.h"
#include "models/dialects/comfy.h"
#include "models/json_file.h"

namespace blockscale::models {
namespace {

std::vector<TensorStore> make_stores() {
  using fuzz::make_store;
  const TensorInfo fp8{"a.weight", DType::F8_E4M3, {2, 64}, 0};
  const TensorInfo codes{"a.weight", DType::U8, {2, 32}, 0};
  std::vector<TensorStore> stores;
  stores.push_back(make_store({fp8, {"a.weight_scale", DType::F32, {}, 0}}));
  stores.push_back(make_store(
      {fp8, {"a.weight_scale", DType::BF16, {2, 1}, 0}, {"a.input_scale", DType::F32, {}, 0}}));
  stores.push_back(make_store(
      {{"a.weight", DType::F8_E5M2, {2, 64}, 0}, {"a.weight_scale", DType::F32, {1}, 0}}));
  stores.push_back(make_store({fp8, {"a.weight_scale", DType::F8_E8M0, {128, 4}, 0}}));
  const TensorInfo int8{"a.weight", DType::I8, {4, 256}, 0};
  stores.push_back(make_store({int8, {"a.weight_scale", DType::F32, {}, 0}}));
  stores.push_back(make_store({int8, {"a.weight_scale", DType::BF16, {4, 1}, 0}}));
  stores.push_back(make_store({int8, {"a.weight_scale", DType::F32, {4}, 0}}));  // of 4 bits
  const TensorInfo pairs{"a.weight", DType::I8, {4, 96}, 0};  // 192 codes of 4 bits, 128 of 6
  const TensorInfo of_rows{"a.weight_s_channel", DType::F32, {4}, 0};
  for (const std::int64_t groups : {12, 8}) {
    stores.push_back(
        make_store({pairs, of_rows, {"a.weight_s_rel", DType::F8_E4M3, {4, groups}, 0}}));
  }
  stores.push_back(make_store({pairs,
                               of_rows,
                               {"a.weight_s_rel", DType::BF16, {4, 3}, 0},
                               {"a.weight_codebook", DType::F32, {16}, 0},
                               {"a.weight_correction", DType::F16, {3, 4}, 0}}));
  const TensorInfo of_groups{"a.weight_scale", DType::BF16, {3, 4}, 0};
  stores.push_back(make_store({pairs, of_groups, {"a.weight_zeros", DType::BF16, {3, 4}, 0}}));
  stores.push_back(make_store({pairs,
                               of_groups,
                               {"a.weight_smooth_factor", DType::BF16, {192}, 0},
                               {"a.weight_proj_down", DType::BF16, {192, 2}, 0},
                               {"a.weight_proj_up", DType::BF16, {4, 2}, 0}}));
  for (const DType scale : {DType::U8, DType::F8_E4M3}) {
    stores.push_back(make_store({codes,
                                 {"a.weight_scale", scale, {128, 4}, 0},
                                 {"a.weight_scale_2", DType::F32, {}, 0},
                                 {"a.pre_quant_scale", DType::BF16, {64}, 0}}));
  }
  return stores;
}

void read_layers(const std::map<std::string, ComfyLayer>& layers) {
  static const std::vector<TensorStore> stores = make_stores();
  for (const TensorStore& store : stores) {
    for (const auto& [name, layer] : layers) {
      try {
        const StoredWeight weight = read_comfy_layer(store, name, layer);
        fuzz::check_weight(weight);
        fuzz::require(weight.name == name + ".weight", "the weight is the layer's");
      } catch (const Error& error) {
        const bool known =
            error.argument() == fuzz::kFile || store.find(error.argument()) != nullptr;
        fuzz::require(known, "errors name the file or a tensor");
        fuzz::check_message(error);
      }
    }
  }
}

}  // namespace
}  // namespace blockscale::models

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace blockscale;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    models::read_layers(models::parse_comfy_metadata(text, fuzz::kFile));
  } catch (const Error& error) {
    const bool known =
        error.code() == ErrorCode::corrupt_file || error.code() == ErrorCode::unsupported;
    fuzz::require(known && error.argument() == fuzz::kFile, "refusals name the file");
    fuzz::check_message(error);
  }
  try {
    models::read_layers({{"a", {parse_json(text, fuzz::kFile), fuzz::kFile}}});
  } catch (const Error& error) {
    fuzz::check_refused(error);
  }
  return 0;
}
