// A small kernel in a source tree of its own, for tests of what compiles, stores and loads kernels.
#pragma once

#include <string>

#include "runtime/kernels/kernel_sources.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::test {

struct ScaleParameters {
  const float* x;
  float* out;
  float factor;
  int count;
};

inline constexpr std::string_view kSampleParameters = R"(#pragma once
#include "core/config.h"
namespace sample {
struct ScaleParameters {
  const float* x;
  float* out;
  float factor;
  int count;
};
}  // namespace sample
)";

inline constexpr std::string_view kSampleKernel = R"(#pragma once
#include "sample/parameters.h"
namespace sample {
template <int kItems>
__device__ __forceinline__ void scale(const ScaleParameters& p) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = (blockIdx.x * kItems + i) * blockDim.x + threadIdx.x;
    if (at < p.count) p.out[at] = p.factor * p.x[at];
  }
}
}  // namespace sample
)";

/// It indexes an array by what it reads, which therefore lies in local memory.
inline constexpr std::string_view kLocalMemoryKernel = R"(#pragma once
#include "sample/parameters.h"
namespace sample {
template <int kItems> __device__ void scale(const ScaleParameters& p) {
  float local[64];
  for (int i = 0; i < p.count; ++i) local[i & 63] = p.x[i];
  __syncthreads();
  p.out[threadIdx.x] = local[static_cast<int>(p.x[threadIdx.x]) & 63];
}
}  // namespace sample
)";

/// It keeps 64 values, all in use until its end: more than a thread has registers where a
/// multiprocessor is to run 2048 of them. No array is indexed by what is not known.
inline constexpr std::string_view kSpillingKernel = R"(#pragma once
#include "sample/parameters.h"
namespace sample {
template <int kItems> __device__ __forceinline__ void scale(const ScaleParameters& p) {
  float values[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i] = p.x[i * blockDim.x + threadIdx.x];
  for (int round = 0; round < p.count; ++round) {
#pragma unroll
    for (int i = 0; i < 64; ++i) values[i] = values[i] * p.factor + values[(i + 17) % 64];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) p.out[i * blockDim.x + threadIdx.x] = values[i];
}
}  // namespace sample
)";

/// The embedded sources, and sample/kernel.cuh with sample/parameters.h.
inline runtime::SourceTree sample_sources(std::string_view kernel = kSampleKernel,
                                          std::string_view parameters = kSampleParameters) {
  runtime::SourceTree tree = runtime::embedded_sources();
  tree.add("sample/kernel.cuh", kernel);
  tree.add("sample/parameters.h", parameters);
  return tree;
}

/// out = factor * x, `items` elements a thread.
inline runtime::KernelSpec sample_spec(int items = 4) {
  return runtime::with_parameters<ScaleParameters>(
      {.name = "sample_scale_" + std::to_string(items),
       .header = "sample/kernel.cuh",
       .call = "sample::scale<" + std::to_string(items) + ">",
       .threads = 128},
      "sample::ScaleParameters");
}

}  // namespace blockscale::test
