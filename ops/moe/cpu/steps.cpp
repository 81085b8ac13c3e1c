#include "ops/moe/cpu/steps.h"

#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

#include "blockscale/parallel.h"
#include "ops/common/float_environment.h"
#include "ops/gemm/cpu/transform.h"

namespace blockscale::moe_detail {
namespace {

template <class Scale>
void join_row(const JoinedScales& x, std::int64_t row) {
  const auto* const from =
      reinterpret_cast<const Scale*>(x.from.data) + row / x.rows * x.from.batch_stride +
      x.from.row_offset(static_cast<std::uint32_t>(row % x.rows * x.block_rows));
  auto* const to = reinterpret_cast<Scale*>(x.to) + row * x.columns;
  for (std::int64_t j = 0; j < x.columns; ++j) {
    to[j] = from[x.from.k_offset(static_cast<std::uint32_t>(j))];
  }
}

float value_of_bf16(std::uint16_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

/// sums += weight * row, each product rounded before it is added.
void add_row(const std::uint16_t* row, float weight, std::int64_t columns, float* sums) {
  for (std::int64_t c = 0; c < columns; ++c) sums[c] += weight * value_of_bf16(row[c]);
}

void read_row(const MatrixView& x, std::int64_t row, float* to) {
  const std::int64_t first = row * x.row_stride;
  for (std::int64_t c = 0; c < x.columns; ++c) {
    switch (x.dtype) {
      case Format::f32: to[c] = static_cast<const float*>(x.data)[first + c]; break;
      case Format::f16:
        to[c] = f16_to_f32(static_cast<const std::uint16_t*>(x.data)[first + c]);
        break;
      default: to[c] = value_of_bf16(static_cast<const std::uint16_t*>(x.data)[first + c]);
    }
  }
}

/// How rows of f32 become rows of `d`.
gemm_detail::ResultRows results_in(const MutableMatrixView& d) {
  GemmArguments sums;
  sums.d = d;
  sums.b.rows = d.columns;
  return gemm_detail::ResultRows(sums);
}

std::uint8_t* row_in(const MutableMatrixView& d, std::int64_t row) {
  return static_cast<std::uint8_t*>(d.data) +
         row * d.row_stride * (format_traits(d.dtype).bits / 8);
}

}  // namespace

void join_scales(const JoinedScales& x, int threads) {
  constexpr std::int64_t kRows = 64;  // of a task
  const auto join = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (x.from.bytes) {
        join_row<std::uint8_t>(x, row);
      } else {
        join_row<float>(x, row);
      }
    }
  };
  parallel_for(x.matrices * x.rows, kRows, threads, std::cref(join));
}

void weigh(const WeighArguments& x, int threads) {
  constexpr std::int64_t kRows = 16;  // of a task
  const gemm_detail::ResultRows results = results_in(x.rows);
  const auto weigh_rows = [&](std::int64_t begin, std::int64_t end) {
    const DefaultFloatEnvironment environment;
    std::vector<float> row(static_cast<std::size_t>(x.rows.columns));
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t entry = x.entry_of_row[r];
      float weight = 1.0f;
      if (entry < 0) {
        row.assign(row.size(), 0.0f);
      } else {
        read_row(x.x, entry / x.top_k, row.data());
        weight = x.weights[entry];
      }
      results.store(row.data(), weight, row_in(x.rows, r));
    }
  };
  parallel_for(x.rows.rows, kRows, threads, std::cref(weigh_rows));
}

void finalize(const FinalizeArguments& x, int threads) {
  constexpr std::int64_t kTokens = 4;  // of a task
  const gemm_detail::ResultRows results = results_in(x.y);
  const std::int64_t columns = x.y.columns;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    const DefaultFloatEnvironment environment;
    std::vector<float> sum(static_cast<std::size_t>(columns));
    for (std::int64_t t = begin; t < end; ++t) {
      if (x.residual.data == nullptr) {
        sum.assign(sum.size(), 0.0f);
      } else {
        read_row(x.residual, t, sum.data());
      }
      for (std::int64_t s = 0; x.shared.data != nullptr && s < x.shared.batch; ++s) {
        const auto* const of_expert = static_cast<const std::uint16_t*>(x.shared.data);
        add_row(of_expert + s * x.shared.batch_stride + t * x.shared.row_stride, 1.0f, columns,
                sum.data());
      }
      for (std::int64_t entry = t * x.top_k; entry < (t + 1) * x.top_k; ++entry) {
        const std::int64_t row = x.row_of_entry[entry];
        if (row < 0) continue;
        const auto* const from = reinterpret_cast<const std::uint16_t*>(
            static_cast<const std::uint8_t*>(x.rows.values) + row * x.rows.value_row_stride);
        add_row(from, x.weights == nullptr ? 1.0f : x.weights[entry], columns, sum.data());
      }
      results.store(sum.data(), 1.0f, row_in(x.y, t));
    }
  };
  parallel_for(x.y.rows, kTokens, threads, std::cref(add));
}

}  // namespace blockscale::moe_detail
