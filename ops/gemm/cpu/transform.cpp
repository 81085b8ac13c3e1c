// From D in f32 to what a transform makes of it: a row of D at a time, which is in a cache then.
#include "ops/common/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/cpu/transform.cpp"
#include <hwy/foreach_target.h>  // must come before the other Highway headers
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "blockscale/parallel.h"
#include "core/packing.h"
#include "ops/common/float_environment.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/cpu/transform.h"
#include "ops/gemm/validate.h"
#include "ops/quantize/cpu/steps.h"
// Toggled per target.
#include "ops/common/simd/encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace codes = blockscale::HWY_NAMESPACE;

template <Format kDtype>
void round_run_to(const float* values, std::int64_t count, std::uint8_t* out) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  constexpr std::int64_t kSize = format_traits(kDtype).bits / 8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (; i + lanes <= count; i += lanes) {
    codes::store_values<kDtype>(d, hn::LoadU(d, values + i), out + i * kSize);
  }
#endif
  for (; i < count; ++i) {
    store_code<kDtype>(out, i, encode<kDtype>(values[i], Overflow::propagate));
  }
}

void round_run(Format dtype, const float* values, std::int64_t count, std::uint8_t* out) {
  switch (dtype) {
    case Format::f16: return round_run_to<Format::f16>(values, count, out);
    case Format::bf16: return round_run_to<Format::bf16>(values, count, out);
    default: return round_run_to<Format::f32>(values, count, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockscale::gemm_detail {

HWY_EXPORT(round_run);

namespace {

/// Columns that are transformed before they are rounded: a level-1 cache holds them.
constexpr std::int64_t kRun = 1024;

/// Writes d from the numbers before the transform.
void apply_transform(const GemmArguments& x, const float* numbers, int threads) {
  const ResultRows rows(x);
  const std::int64_t size = format_traits(x.d.dtype).bits / 8;
  const auto transform = [&](std::int64_t r, std::int64_t) {
    const DefaultFloatEnvironment environment;
    const std::int64_t offset = r / x.d.rows * x.d.batch_stride + r % x.d.rows * x.d.row_stride;
    rows.store(numbers + r * x.b.rows, 1.0f, static_cast<std::uint8_t*>(x.d.data) + offset * size);
  };
  parallel_for(x.d.batch * x.d.rows, 1, threads, std::cref(transform));
}

template <Format kDtype>
void add_run(const float* values, std::int64_t column, std::int64_t count, std::uint8_t* d) {
  const auto rounded = [](float value) { return encode<kDtype>(value, Overflow::propagate); };
  for (std::int64_t i = 0; i < count; ++i) {
    const float old = decode<kDtype>(load_code<kDtype>(d, column + i));
    store_code<kDtype>(d, column + i, rounded(old + decode<kDtype>(rounded(values[i]))));
  }
}

}  // namespace

ResultRows::ResultRows(const GemmArguments& x)
    : input_(transform_of_result(x)), columns_(x.d.columns), dtype_(x.d.dtype) {}

template <class Body>
void ResultRows::for_each_run(const float* numbers, float weight, const Body& body) const {
  steps::TransformedRow row;
  row.transform = input_.transform;
  row.gate_order = input_.gate_order;
  row.gate_group = input_.gate_group;
  row.is_clamped = input_.is_clamped;
  row.swiglu = input_.swiglu;
  row.x = {Format::f32, reinterpret_cast<const std::uint8_t*>(numbers)};
  alignas(64) float values[kRun + steps::kArrayPadding];
  for (std::int64_t c = 0; c < columns_; c += kRun) {
    const std::int64_t count = std::min(kRun, columns_ - c);
    steps::transform_run(row, c, count, values);
    if (weight != 1.0f) {
      for (std::int64_t i = 0; i < count; ++i) values[i] *= weight;
    }
    body(c, count, values);
  }
}

void ResultRows::store(const float* numbers, float weight, std::uint8_t* d) const {
  const std::int64_t size = format_traits(dtype_).bits / 8;
  for_each_run(numbers, weight, [&](std::int64_t column, std::int64_t count, const float* values) {
    HWY_DYNAMIC_DISPATCH(round_run)(dtype_, values, count, d + column * size);
  });
}

void ResultRows::add(const float* numbers, float weight, std::uint8_t* d) const {
  for_each_run(numbers, weight, [&](std::int64_t column, std::int64_t count, const float* values) {
    switch (dtype_) {
      case Format::f16: return add_run<Format::f16>(values, column, count, d);
      case Format::bf16: return add_run<Format::bf16>(values, column, count, d);
      default: return add_run<Format::f32>(values, column, count, d);
    }
  });
}

std::int64_t transform_bytes(const GemmArguments& x) {
  Memory memory(nullptr);
  (void)memory.take<float>(numbers_before_transform(x));
  return memory.taken();
}

void multiply_and_transform(const GemmArguments& x, const GemmOptions& options) {
  auto* const workspace = static_cast<std::uint8_t*>(options.workspace);
  GemmOptions rest = options;
  Memory memory;
  if (workspace != nullptr) {
    check_workspace(x, options, gemm_workspace_bytes(x, options.threads));
    memory = Memory(workspace);
    rest.workspace = workspace + transform_bytes(x);
    rest.workspace_bytes -= transform_bytes(x);
  }
  const auto d = memory.take<float>(numbers_before_transform(x));
  gemm(before_transform(x, d.get()), rest);
  apply_transform(x, d.get(), options.threads);
}

}  // namespace blockscale::gemm_detail
#endif  // HWY_ONCE
