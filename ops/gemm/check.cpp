// check_gemm: a sample of D against the float64 reference and the error bounds.
#include <algorithm>
#include <cstdint>
#include <string>

#include "blockscale/cuda.h"
#include "blockscale/gemm.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/error_bound.h"
#include "ops/gemm/reference.h"
#include "ops/gemm/validate.h"

namespace blockscale {
namespace {

using namespace gemm_detail;

/// `path_of(validated arguments)` says where D is from.
template <class PathOf>
GemmCheck check(const GemmArguments& arguments, std::int64_t samples, const PathOf& path_of) {
  check_samples(samples);
  if (arguments.quantized) {
    throw Error(ErrorCode::unsupported, "quantized",
                "is given, must not be: the bound is of D's elements");
  }
  const GemmArguments x = validated(arguments, {});
  if (is_transformed(x)) {
    throw Error(ErrorCode::unsupported, "transform",
                "is given, must not be: the bound is of D before it");
  }
  const std::int64_t matrix = x.d.rows * x.d.columns;
  GemmCheck result;
  result.elements = std::min(samples, matrix * x.d.batch);
  const GemmPath path = path_of(x);
  const ErrorLimit usual = usual_error(path, x.a.k);
  result.proven_error = proven_error(path, x.a.recipe, x.b.recipe, x.a.k);
  OperandRows a(x.a), b(x.b);
  for (std::int64_t i = 0; i < result.elements; ++i) {
    const std::int64_t element = sampled_element(i, samples, matrix * x.d.batch);
    const std::int64_t index = element / matrix;
    const std::int64_t m = element % matrix / x.d.columns;
    const std::int64_t n = element % x.d.columns;
    const ReferenceElement reference =
        reference_element(x, index, m, n, a.get(index, m), b.get(index, n));
    const double ratio = error_ratio(x.d.dtype, matrix_element(x.d, index, m, n), reference);
    result.largest_error = std::max(result.largest_error, ratio);
    if (ratio > 0) result.of_usual = std::max(result.of_usual, ratio / usual(reference));
  }
  return result;
}

}  // namespace

GemmCheck check_gemm(const GemmArguments& arguments, std::int64_t samples) {
  return check(arguments, samples, [](const GemmArguments&) { return cpu_path(); });
}

GemmCheck cuda::check_gemm(const GemmArguments& arguments, std::int64_t samples) {
  return check(arguments, samples,
               [](const GemmArguments& x) { return plan_product(x, cuda::default_chip()).path(); });
}

}  // namespace blockscale
