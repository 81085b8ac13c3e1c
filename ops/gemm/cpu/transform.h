// GELU, SiLU or SwiGLU between a product and its result on the CPU: D in f32 first, then what it
// becomes.
#pragma once

#include <cstdint>

#include "blockscale/gemm.h"
#include "ops/gemm/validate.h"

namespace blockscale::gemm_detail {

/// How a row of D in f32, without its transform, becomes a row of d. Callers have a
/// DefaultFloatEnvironment.
class ResultRows {
 public:
  explicit ResultRows(const GemmArguments& validated);

  /// Its transform times `weight`, in f32, and then rounded.
  void store(const float* numbers, float weight, std::uint8_t* d) const;
  /// The same, rounded, added to what d is, and rounded.
  void add(const float* numbers, float weight, std::uint8_t* d) const;

 private:
  template <class Body>
  void for_each_run(const float* numbers, float weight, const Body& body) const;

  quantize_detail::FusedInput input_;
  std::int64_t columns_ = 0;
  Format dtype_ = Format::f32;
};

/// Bytes that D in f32 takes of a workspace, which it begins.
std::int64_t transform_bytes(const GemmArguments& validated);

/// `gemm` of validated arguments with a transform.
void multiply_and_transform(const GemmArguments& validated, const GemmOptions& options);

}  // namespace blockscale::gemm_detail
