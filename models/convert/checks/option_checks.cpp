#include "models/convert/checks/option_checks.h"

#include <algorithm>

#include "blockscale/error.h"

namespace blockscale::models {
namespace {

bool asks_for(const ConvertOptions& options, Family family) {
  return recipe_traits(options.recipe).family == family ||
         std::any_of(options.map.begin(), options.map.end(), [&](const auto& entry) {
           return recipe_traits(entry.second).family == family;
         });
}

[[noreturn]] void refuse(const char* argument, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, argument, why);
}

}  // namespace

void check_recipe_options(const ConvertOptions& options) {
  const auto require = [&](bool given, Family family, const char* argument, const char* what) {
    if (!given || asks_for(options, family)) return;
    refuse(argument, std::string("given for ") + recipe_traits(options.recipe).name + ", " + what);
  };
  require(options.mx_scale_mode.has_value(), Family::mx, "mx_scale_mode",
          "which has no choice of it: only MX recipes do");
  const bool searched = options.scales != ScaleChoice::amax;
  if (searched && !asks_for(options, Family::mx) && !asks_for(options, Family::nvfp4)) {
    refuse("scales", std::string("given for ") + recipe_traits(options.recipe).name +
                         ", which has no choice of them: only MX recipes and nvfp4 do");
  }
  if (searched && options.mx_scale_mode) {
    refuse("mx_scale_mode",
           "is given, but scales are searched: both powers of two that it could give are tried");
  }
  if ((options.scales == ScaleChoice::weighted) != options.calibration.has_value()) {
    refuse("calibration", options.calibration
                              ? "is given, but scales is not weighted"
                              : "is not given, but scales is weighted: it needs the mean square "
                                "of each input channel");
  }
  require(options.fp8_amax_floor != 0, Family::fp8, "fp8_amax_floor",
          "which has none: only FP8 recipes do");
  require(options.share_tensor_scales, Family::nvfp4, "share_tensor_scales",
          "only nvfp4 has scales that can differ");
}

void check_plan_options(const ConvertOptions& options, const Plan& plan) {
  const auto& tensors = plan.source->tensors();
  if (options.experts_layout &&
      std::none_of(tensors.begin(), tensors.end(), [&](const CheckpointTensor& tensor) {
        const bool known = tensor.quantized && plan.source->dialect().dialect == Dialect::gpt_oss;
        return !known && tensor.shape.size() == 3;
      })) {
    refuse("experts_layout", "is given, but the source has no stack of experts that it could say");
  }
  if (options.unused_inputs != UnusedInputs::drop) {
    bool any = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) any |= plan.source->has_unused_inputs(i);
    if (!any) refuse("unused_inputs", "is one, but no input scale of the source is 0");
  }
  if (options.scales != ScaleChoice::amax &&
      std::none_of(plan.tensors.begin(), plan.tensors.end(),
                   [&](auto& planned) { return searches_scales(options, planned); })) {
    refuse("scales", "is given, but no tensor is quantized to an MX recipe or nvfp4");
  }
  if (options.allow_nonfinite &&
      std::none_of(plan.tensors.begin(), plan.tensors.end(),
                   [](auto& planned) { return planned.method == Method::requantize; })) {
    refuse("allow_nonfinite", "is given, but no tensor is quantized or rounded, all are copied");
  }
}

}  // namespace blockscale::models
