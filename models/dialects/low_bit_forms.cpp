#include "models/dialects/low_bit_forms.h"

#include <array>

namespace blockscale::models {
namespace {

/// Ends of names that one producer's quantized weights have, and no model's own parameters.
struct Mark {
  std::string_view suffix;
  const char* producer;
};
constexpr std::array kMarks = {
    Mark{".weights_scaling_factor", "TensorRT-LLM"},
    Mark{".weights_scaling_factor_2", "TensorRT-LLM"},
    Mark{".prequant_scaling_factor", "TensorRT-LLM"},
    Mark{".activation_scaling_factor", "TensorRT-LLM"},
    Mark{".qweight", "GPTQ, AWQ or Nunchaku"},
    Mark{".qzeros", "GPTQ or AWQ"},
    Mark{".wscales", "Nunchaku"},
    Mark{".weight._data", "optimum-quanto"},
    Mark{".weight._scale", "optimum-quanto"},
    Mark{".W_q", "HQQ"},
    Mark{".SCB", "bitsandbytes"},
    Mark{".weight.absmax", "bitsandbytes"},
    Mark{".weight.quant_map", "bitsandbytes"},
    Mark{".qscale_weight", "Mistral"},
    Mark{".weight_packed", "compressed-tensors"},
    Mark{"_weight_qdata", "torchao"},
};

[[noreturn]] void refuse(const std::string& name, const std::string& message) {
  throw Error(ErrorCode::unsupported, name, message);
}

std::string holds(const TensorInfo& info) {
  return "holds " + std::string(dtype_name(info.dtype));
}

bool is_fp8(DType dtype) {
  return dtype == DType::F8_E4M3 || dtype == DType::F8_E5M2 || dtype == DType::F8_E4M3FNUZ ||
         dtype == DType::F8_E5M2FNUZ;
}

/// Whether numbers of this dtype, in a matrix, are codes: nobody's layers are whole numbers.
bool is_code(DType dtype) {
  switch (dtype) {
    case DType::I8:
    case DType::U8:
    case DType::U16:
    case DType::U32:
    case DType::F4:
    case DType::F6_E2M3:
    case DType::F6_E3M2:
    case DType::F8_E8M0: return true;
    default: return false;
  }
}

/// Something beside a weight or parameter that is called a scale, or null.
const TensorInfo* scale_beside(const TensorStore& store, const std::string& name) {
  const std::string module = without_suffix(name, ".weight");
  for (const std::string& prefix : {module.empty() ? name + "." : module + ".", name + "_"}) {
    for (auto entry = store.tensors().lower_bound(prefix);
         entry != store.tensors().end() && entry->first.starts_with(prefix); ++entry) {
      const std::string_view rest = std::string_view(entry->first).substr(prefix.size());
      const bool own = rest.find('.') == std::string_view::npos;
      if (own && rest.find("scal") != std::string_view::npos) return &entry->second.info;
    }
  }
  return nullptr;
}

void check_marks(const TensorInfo& info) {
  for (const Mark& mark : kMarks) {
    if (info.name.ends_with(mark.suffix)) {
      refuse(info.name, std::string("is a part of a weight as ") + mark.producer +
                            " quantizes it, which is not readable");
    }
  }
}

void check_codes(const TensorStore& store, const TensorInfo& info) {
  if (info.bytes == 0) return;
  if (is_fp8(info.dtype)) {
    const TensorInfo* const scale = scale_beside(store, info.name);
    if (scale == nullptr) return;
    refuse(scale->name, "scales " + info.name + " (" + std::string(dtype_name(info.dtype)) +
                            ") in a way that is not known here");
  }
  if (!info.name.ends_with(".weight") || info.shape.size() < 2 || !is_code(info.dtype)) return;
  const std::string module = without_suffix(info.name, ".weight");
  if (info.dtype == DType::U32 && find_info(store, module + ".scales") != nullptr) {
    refuse(info.name, "and " + module + ".scales are a weight as MLX quantizes it, which is not " +
                          "readable");
  }
  refuse(info.name, holds(info) + ", codes of a quantized weight, and nothing says what they mean");
}

}  // namespace

void check_low_bit_forms(const TensorStore& store, const std::set<std::string_view>& claimed) {
  // What names a producer says more than what only looks like codes.
  for (const auto& [name, entry] : store.tensors()) {
    if (!claimed.contains(name)) check_marks(entry.info);
  }
  for (const auto& [name, entry] : store.tensors()) {
    if (!claimed.contains(name)) check_codes(store, entry.info);
  }
}

}  // namespace blockscale::models
