// What `gemm --groups` and `bench grouped_gemm` share.
#pragma once

#include <cstdint>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "products/gemm.h"

namespace blockscale::cli {

/// A product of random normal operands, in memory. Each row belongs to a random group. D is never
/// quantized. Throws as check_memory does.
class RandomGroupedProduct {
 public:
  RandomGroupedProduct(const Groups& groups, std::int64_t n, std::int64_t k, Recipe a, Recipe b,
                       Format d, const QuantizedTo& to, int threads);

  const GroupedGemmArguments& arguments() const { return arguments_; }
  const std::vector<std::int32_t>& offsets() const { return offsets_; }

 private:
  ScaledTensor a_, b_, d_;
  std::vector<std::int32_t> offsets_;
  GroupedGemmArguments arguments_;
};

/// One run to warm up, then `repeats`; with `on_device` of the current CUDA device.
GemmTime time_grouped_gemm(const GroupedGemmArguments& product, int threads, int repeats,
                           bool on_device);

}  // namespace blockscale::cli
