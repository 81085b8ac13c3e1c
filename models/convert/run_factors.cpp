// What ConvertRun writes of a weight beside its values and the scales of rows and blocks.
#include <algorithm>
#include <cmath>

#include "models/checkpoint/factors.h"
#include "models/convert/run.h"

namespace blockscale::models {

/// Tensor scales, input scales and scales of whole matrices: everything that no piece writes.
void ConvertRun::write_factors(const PlannedTensor& planned, SafetensorsWriter& writer) const {
  if (planned.method == Method::verbatim) return;
  for (std::size_t part = 0; part < planned.parts.size(); ++part) {
    const Part kind = planned.parts[part].part;
    const bool of_blocks =
        planned.method == Method::transfer || recipe_traits(planned.recipe).block_rows != 0;
    const bool written_by_pieces = kind == Part::values || (kind == Part::scales && of_blocks);
    if (written_by_pieces) continue;
    const std::vector<float> factors =
        factors_of(planned, kind, planned.parts[part].info.bytes / sizeof(float));
    writer.write(planned.slots[part], 0, std::as_bytes(std::span(factors)));
  }
}

/// The numbers of such a part.
std::vector<float> ConvertRun::factors_of(const PlannedTensor& planned, Part part,
                                          std::size_t count) const {
  const TensorScaleSense sense = plan_.destination->sense;
  std::vector<float> factors(count);
  switch (part) {
    case Part::values:
    case Part::channel_factors: break;
    case Part::scales: return scales_[static_cast<std::size_t>(planned.group)];
    case Part::tensor_scale: {
      if (planned.method == Method::requantize) {
        std::ranges::fill(factors, scales_[static_cast<std::size_t>(planned.group)][0]);
        break;
      }
      const std::span<const float> stored = source_.tensor_scales(planned.source);
      for (std::size_t i = 0; i < factors.size(); ++i) {
        factors[i] = in_sense(stored[i], source_.parts(planned.source).sense, sense,
                              source_tensor(planned).name);
      }
      break;
    }
    case Part::input_scale:
      if (planned.input_absmax == 0) return source_.input_factors(planned.source, sense);
      std::ranges::fill(factors, planned.recipe == Recipe::nvfp4
                                     ? nvfp4_factor(planned.input_absmax, sense)
                                     : fp8_scale(planned.input_absmax, 0));
      break;
    case Part::alpha: std::ranges::fill(factors, alpha_of(planned)); break;
  }
  return factors;
}

/// 1 / (input scale * tensor scale), each step rounded, as LightX2V computes it.
float ConvertRun::alpha_of(const PlannedTensor& planned) const {
  const float product =
      factors_of(planned, Part::input_scale, 1)[0] * factors_of(planned, Part::tensor_scale, 1)[0];
  const float alpha = 1.0f / product;
  if (std::isfinite(alpha) && alpha > 0) return alpha;
  throw Error(ErrorCode::unsupported, source_tensor(planned).name,
              "has a tensor scale and an input scale whose product is " + std::to_string(product) +
                  ", which " + plan_.destination->name + " divides 1 by");
}

}  // namespace blockscale::models
