// check_groups and check_grouped_gemm: groups that are what they say, and a sample of D against the
// float64 reference and the error bounds.
#include "ops/grouped_gemm/check.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "ops/common/checks.h"
#include "ops/gemm/cpu/path.h"
#include "ops/gemm/error_bound.h"
#include "ops/gemm/reference.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale {
namespace grouped_gemm_detail {
namespace {

std::string text(std::int64_t number) {
  return std::to_string(number);
}

using checks::fail;

void check_offset(const GroupedGemmArguments& x, std::int64_t g) {
  const std::int64_t offset = x.offsets[g];
  if (offset >= 0 && offset <= x.rows) return;
  fail("offsets",
       "is " + text(offset) + " for group " + text(g) + ", must be in 0.." + text(x.rows));
}

void check_offsets(const GroupedGemmArguments& x) {
  for (std::int64_t g = 0; g <= groups_of(x); ++g) {
    check_offset(x, g);
    if (g == 0 || x.offsets[g] >= x.offsets[g - 1]) continue;
    fail("offsets", "descends from " + text(x.offsets[g - 1]) + " to " + text(x.offsets[g]) +
                        " at the end of group " + text(g - 1) + ", must not");
  }
}

void check_lengths(const GroupedGemmArguments& x) {
  for (std::int64_t g = 0; g < groups_of(x); ++g) {
    if (!is_masked(x)) check_offset(x, g);
    const std::int64_t most = x.rows - (is_masked(x) ? 0 : x.offsets[g]);
    if (x.lengths[g] >= 0 && x.lengths[g] <= most) continue;
    fail("lengths", "is " + text(x.lengths[g]) + " for group " + text(g) + ", must be in 0.." +
                        text(most) + ", the rows from its first on");
  }
}

void check_apart(const std::vector<FilledGroup>& groups) {
  const FilledGroup* const shared = find_shared(groups);
  if (shared == nullptr) return;
  const std::int64_t g = shared->group, h = (shared - 1)->group;
  fail("lengths", "gives row " + text(shared->rows.begin) + " to groups " + text(std::min(g, h)) +
                      " and " + text(std::max(g, h)) + ", must give it to one");
}

/// Rows that `numbers` names, of the rows that a group has: below 0 is nothing.
void check_named_rows(const char* argument, const std::int32_t* numbers, const GroupRows& rows,
                      std::int64_t end, const char* meaning) {
  for (std::int64_t r = rows.begin; numbers != nullptr && r < rows.end; ++r) {
    if (numbers[r] < end) continue;
    fail(argument, "is " + text(numbers[r]) + " for row " + text(r) + ", must be less than " +
                       text(end) + ", " + meaning);
  }
}

/// Where element `sample` of all groups' rows is.
struct Element {
  std::int64_t group, row, column;
};

/// The rows that elements are products of.
class Factors {
 public:
  explicit Factors(const GroupedGemmArguments& x)
      : index_(x.index),
        rows_(x.a.rows),
        a_(x.a),
        b_(x.b),
        none_(static_cast<std::size_t>(x.a.k)) {}

  /// Zeros where the index names no row.
  const std::vector<double>& of_a(const Element& e) {
    const std::int64_t row = index_ == nullptr ? e.row : index_[e.row];
    return row < 0 || row >= rows_ ? none_ : a_.get(e.group, row);
  }

  const std::vector<double>& of_b(const Element& e) { return b_.get(e.group, e.column); }

 private:
  const std::int32_t* index_;
  std::int64_t rows_;
  gemm_detail::OperandRows a_, b_;
  std::vector<double> none_;
};

/// The product of group g, as the reference takes it.
GemmArguments product_of_group(const GroupedGemmArguments& x, std::int64_t g) {
  GemmArguments product;
  product.a = x.a;
  product.b = x.b;
  product.alpha = x.alpha;
  product.alpha_factor = x.alpha_factors == nullptr ? nullptr : x.alpha_factors + g;
  product.bias_dtype = x.bias_dtype;
  if (x.bias != nullptr) {
    const std::int64_t size = format_traits(x.bias_dtype).bits / 8;
    product.bias = static_cast<const std::uint8_t*>(x.bias) + g * x.b.rows * size;
  }
  return product;
}

double error_of(const GroupedGemmArguments& x, const Element& e, Factors& factors,
                gemm_detail::ReferenceElement& reference) {
  reference = gemm_detail::reference_element(product_of_group(x, e.group), e.group, e.row, e.column,
                                             factors.of_a(e), factors.of_b(e));
  const std::int64_t matrix = is_masked(x) ? e.group : 0;
  return gemm_detail::error_ratio(
      x.d.dtype, gemm_detail::matrix_element(x.d, matrix, e.row, e.column), reference);
}

}  // namespace

void check_groups(const GroupedGemmArguments& x) {
  if (x.lengths == nullptr) {
    check_offsets(x);
  } else {
    check_lengths(x);
  }
  const std::vector<FilledGroup> groups = filled_groups(x);
  if (!is_masked(x)) check_apart(groups);
  for (const auto& [g, rows] : groups) {
    check_named_rows("index", x.index, rows, x.a.rows, "the rows of a");
    check_named_rows("destinations", x.destinations, rows, x.d.rows, "the rows of d");
  }
}

void check_is_plain(const GroupedGemmArguments& x) {
  const auto refuse = [](const char* argument, const char* reason) {
    throw Error(ErrorCode::unsupported, argument,
                std::string("is given, must not be: the bound is of D's elements") + reason);
  };
  if (x.quantized) refuse("quantized", "");
  if (is_transformed(x)) refuse("transform", " before it");
  if (x.destinations != nullptr) refuse("destinations", " where the product has them");
}

GemmCheck check_elements(const GroupedGemmArguments& x, std::int64_t samples,
                         gemm_detail::GemmPath path) {
  // Rows of groups, one group behind the other: where those of each begin.
  const std::vector<FilledGroup> groups = filled_groups(x);
  std::vector<std::int64_t> begins;
  std::int64_t rows = 0;
  for (const FilledGroup& filled : groups) {
    begins.push_back(rows);
    rows += filled.rows.end - filled.rows.begin;
  }
  const gemm_detail::ErrorLimit usual = gemm_detail::usual_error(path);
  const std::int64_t elements = rows * x.d.columns;
  GemmCheck result;
  result.elements = std::min(samples, elements);
  result.proven_error = gemm_detail::proven_error(path, x.a.recipe, x.b.recipe, x.a.k);
  Factors factors(x);
  for (std::int64_t i = 0; i < result.elements; ++i) {
    const std::int64_t element = gemm_detail::sampled_element(i, samples, elements);
    const std::int64_t row = element / x.d.columns;
    const auto group = std::upper_bound(begins.begin(), begins.end(), row) - begins.begin() - 1;
    const auto index = static_cast<std::size_t>(group);
    const FilledGroup& filled = groups[index];
    const Element at{filled.group, filled.rows.begin + row - begins[index], element % x.d.columns};
    gemm_detail::ReferenceElement reference;
    const double error = error_of(x, at, factors, reference);
    result.largest_error = std::max(result.largest_error, error);
    if (error > 0) result.of_usual = std::max(result.of_usual, error / usual(reference));
  }
  return result;
}

}  // namespace grouped_gemm_detail

void check_groups(const GroupedGemmArguments& arguments) {
  grouped_gemm_detail::check_groups(grouped_gemm_detail::validated(arguments));
}

GemmCheck check_grouped_gemm(const GroupedGemmArguments& arguments, std::int64_t samples) {
  using namespace grouped_gemm_detail;
  gemm_detail::check_samples(samples);
  check_is_plain(arguments);
  const GroupedGemmArguments x = validated(arguments);
  grouped_gemm_detail::check_groups(x);
  return check_elements(x, samples, gemm_detail::cpu_path());
}

}  // namespace blockscale
