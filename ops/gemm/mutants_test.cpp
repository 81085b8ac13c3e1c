// The error bound is tight enough: for every pair it rejects a GEMM that drops one block of k, that
// uses one neighbour's scale, or that rounds one partial sum to bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "blockscale/gemm.h"
#include "core/sanitizer_test_share.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/error_bound.h"
#include "ops/gemm/reference.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using gemm_detail::operand_row;
using test::InputFamily;
using test::Random;
using test::TestMatrix;
using test::TestOperand;

constexpr std::int64_t kFew = 3;    // rows of A that take the path of few rows
constexpr std::int64_t kMany = 15;  // and that do not
constexpr std::int64_t kColumns = 10;
constexpr std::int64_t kDepth = 512;
constexpr std::int64_t kBatch = 2;  // so that a scale of a whole matrix has a neighbour

/// Block of k of a mutant: what shares a scale, or 128.
std::int64_t k_block(Recipe recipe) {
  const int block = recipe_traits(recipe).block_k;
  return block == 0 ? 128 : block;
}

/// sum_k a b of one element, computed wrongly.
using MutantSum = std::function<double(const std::vector<double>& a, const std::vector<double>& b)>;

double sum_range(const std::vector<double>& a, const std::vector<double>& b, std::size_t begin,
                 std::size_t end) {
  double sum = 0;
  for (std::size_t k = begin; k < end; ++k) sum += a[k] * b[k];
  return sum;
}

/// One problem of a pair: operands, the arguments, and D as the library computes it.
class Problem {
 public:
  Problem(Recipe recipe_a, Recipe recipe_b, std::int64_t rows)
      : random_(3),
        a_(random_, recipe_a, rows, kDepth, InputFamily::normal, options()),
        b_(random_, recipe_b, kColumns, kDepth, InputFamily::normal, options()),
        d_(Format::f32, rows, kColumns, kBatch) {
    x_.a = a_.view();
    x_.b = b_.view();
    x_.d = resolved(d_.view(), "d");
    gemm(x_);
  }

  TestOperand& a() { return a_; }
  TestOperand& b() { return b_; }

  /// Share of the elements of D that the bound rejects.
  double rejected() {
    const test::ErrorReport report =
        test::compare(x_, gemm_detail::usual_error(gemm_detail::cpu_path()));
    return static_cast<double>(report.violations) / static_cast<double>(report.elements);
  }

  /// Overwrites D with what `mutant` makes of the operands.
  void set_d(const MutantSum& mutant) {
    float* d = static_cast<float*>(x_.d.data);
    for (std::int64_t index = 0; index < kBatch; ++index) {
      std::vector<std::vector<double>> b_rows;
      for (std::int64_t n = 0; n < kColumns; ++n) b_rows.push_back(operand_row(x_.b, index, n));
      for (std::int64_t m = 0; m < x_.d.rows; ++m) {
        const std::vector<double> a_row = operand_row(x_.a, index, m);
        for (const std::vector<double>& b_row : b_rows) {
          const double sum = gemm_detail::apply_tensor_scale(x_.a, index, mutant(a_row, b_row));
          *d++ = static_cast<float>(gemm_detail::apply_tensor_scale(x_.b, index, sum));
        }
      }
    }
  }

 private:
  static test::OperandOptions options() {
    test::OperandOptions result;
    result.batch = kBatch;
    return result;
  }

  Random random_;
  TestOperand a_;
  TestOperand b_;
  TestMatrix d_;
  GemmArguments x_;
};

double correct_sum(const std::vector<double>& a, const std::vector<double>& b) {
  return sum_range(a, b, 0, a.size());
}

/// Gives one scale of `operand` its neighbour's value: the next block of k's, else the next row's,
/// else the next matrix's. False if the recipe has no scales.
bool take_neighbours_scale(TestOperand& operand) {
  const MutableScaledTensorView x = operand.mutable_view();
  if (is_plain(x.recipe)) return false;
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  const std::int64_t step = grid.columns > 1 ? scale_offset(x.layout, 0, 1, x.scale_leading_stride)
                            : grid.rows > 1  ? scale_offset(x.layout, 1, 0, x.scale_leading_stride)
                                             : x.scale_batch_stride;
  const std::int64_t size = format_traits(recipe_traits(x.recipe).scale).bits / 8;
  std::uint8_t* scale = static_cast<std::uint8_t*>(x.scales);
  // The first pair that differs, along k (or rows, or matrices).
  while (std::equal(scale, scale + size, scale + step * size)) scale += step * size;
  std::copy(scale + step * size, scale + (step + 1) * size, scale);
  return true;
}

template <class Body>
void for_each_pair(Body body) {
  Random random(7);
  for (const RecipeTraits& a : kRecipes) {
    for (const RecipeTraits& b : kRecipes) {
      if (!gemm_supports(a.recipe, b.recipe)) continue;
      if (test::kIsSanitized && !test::chance(random, 0.1)) continue;
      for (const std::int64_t rows : {kFew, kMany}) {
        SCOPED_TRACE(std::string(a.name) + " x " + b.name + ", rows: " + std::to_string(rows));
        body(a.recipe, b.recipe, rows);
      }
    }
  }
}

TEST(GemmMutants, TheGemmItselfIsAccepted) {
  for_each_pair([](Recipe a, Recipe b, std::int64_t rows) {
    Problem problem(a, b, rows);
    EXPECT_EQ(problem.rejected(), 0);
    problem.set_d(correct_sum);
    EXPECT_EQ(problem.rejected(), 0);
  });
}

TEST(GemmMutants, DroppedBlockOfKIsRejected) {
  for_each_pair([](Recipe a, Recipe b, std::int64_t rows) {
    Problem problem(a, b, rows);
    const std::size_t block = static_cast<std::size_t>(std::min(k_block(a), k_block(b)));
    problem.set_d([&](const std::vector<double>& x, const std::vector<double>& y) {
      return sum_range(x, y, 0, block) + sum_range(x, y, 2 * block, x.size());
    });
    EXPECT_GT(problem.rejected(), 0.9);
  });
}

TEST(GemmMutants, NeighboursScaleIsRejected) {
  for_each_pair([](Recipe a, Recipe b, std::int64_t rows) {
    for (const bool of_a : {true, false}) {
      Problem problem(a, b, rows);
      // D stays what the unchanged operands give; the reference sees one scale replaced.
      if (!take_neighbours_scale(of_a ? problem.a() : problem.b())) continue;
      // One row (or column) of one matrix is wrong, or more where rows share the scale.
      EXPECT_GT(problem.rejected(), 0.9 / static_cast<double>(kBatch * (of_a ? rows : kColumns)));
    }
  });
}

TEST(GemmMutants, PartialSumInBf16IsRejected) {
  for_each_pair([](Recipe a, Recipe b, std::int64_t rows) {
    Problem problem(a, b, rows);
    problem.set_d([](const std::vector<double>& x, const std::vector<double>& y) {
      const double partial = sum_range(x, y, 0, x.size() / 2);
      const std::uint32_t rounded = encode<Format::bf16>(static_cast<float>(partial));
      return double{decode<Format::bf16>(rounded)} + sum_range(x, y, x.size() / 2, x.size());
    });
    // Sums of MXFP4 products have few bits: many partial sums are bf16 values.
    EXPECT_GT(problem.rejected(), 0.5);
  });
}

}  // namespace
}  // namespace blockscale
