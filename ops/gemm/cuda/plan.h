// How a product becomes kernel launches: a pure function of shapes, recipes, strides and the chip,
// so it is tested without a GPU.
//
// problem.h says what is read off the arguments, a file of a chip's folder how its kernels are
// launched (sm90/fp8_launch.h, by the model of sm90/fp8_model.h), and this what comes in which
// order.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/gemm.h"
#include "core/launch_shape.h"
#include "ops/gemm/cuda/sm90/fp8_model.h"
#include "ops/gemm/cuda/specs.h"
#include "ops/gemm/cuda/tensor_maps.h"
#include "ops/gemm/kernels/align_rows.cuh"
#include "ops/gemm/kernels/gemv_fp8.cuh"
#include "ops/gemm/kernels/sm90/fp8_params.h"

namespace blockscale::gemm_detail {

/// One launch: a kernel of fp8_gemm_kernel_specs() with the parameters of its family.
struct GemmStep {
  std::size_t kernel = 0;
  LaunchShape shape;
  std::variant<AlignRowsParams, Fp8GemvParams, Fp8GemmParams> params;  // but for the tensor maps
  TensorMapDescriptions maps;                                          // of params.maps
  // Of Fp8GemmParams:
  Fp8LaunchConfig config;
  std::int64_t columns = 0;  // of D

  /// The parameters if they are of this family, else null.
  template <class Params>
  const Params* of() const {
    return std::get_if<Params>(&params);
  }
};

struct Fp8GemmPlan {
  int architecture = 0;         // of the chip that it is for
  std::vector<GemmStep> steps;  // in order; none where D has no element
  std::int64_t workspace_bytes = 0;
  std::string quantization;  // what becomes of D, as text
  double expected_seconds = 0;
  bool batch_invariant = false;
  double batch_invariant_seconds = 0;  // what that is expected to cost

  std::string str() const;
};

/// What the model of FP8 kernels asks of a product.
Fp8GemmSize size_of(const GemmArguments& validated);

/// The plan of a product of FP8 operands, the one that is expected to be fastest, or one launch of
/// tiles by `config`. Operands whose rows begin where tensor copies cannot read are copied to
/// `workspace`, which is not looked at. Throws `unsupported` for recipes and chips without a
/// kernel, and for sizes beyond 2^31.
Fp8GemmPlan plan_fp8_gemm(const GemmArguments& validated, const cuda::Chip& chip,
                          const std::optional<Fp8LaunchConfig>& config = std::nullopt,
                          void* workspace = nullptr);

}  // namespace blockscale::gemm_detail
