#include "ops/grouped_gemm/validate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/common/checks.h"
#include "ops/common/regions.h"
#include "ops/gemm/validate.h"
#include "ops/grouped_gemm/call_memory.h"

namespace blockscale::grouped_gemm_detail {
namespace {

using checks::check_equal;
using checks::fail;

constexpr std::int64_t kMaxGroups = 65'535;
constexpr std::int64_t kMaxOffset = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void fail_unsupported(const char* argument, const std::string& message) {
  throw Error(ErrorCode::unsupported, argument, message);
}

void check_group_count(const char* argument, std::int64_t groups) {
  if (groups >= 1 && groups <= kMaxGroups) return;
  fail(argument,
       checks::is_but(groups, "the number of groups, in 1.." + std::to_string(kMaxGroups)));
}

/// What offsets point into.
void check_offset_range(const char* argument, std::int64_t size) {
  if (size <= kMaxOffset) return;
  fail(argument, checks::is_but(size, "at most 2^31 - 1: offsets are of 32 bits"));
}

template <class Number>
void check_numbers(const char* argument, const Number* numbers, bool needed = false) {
  checks::check_pointer(argument, "", numbers, needed, alignof(Number));
}

/// Refuses an argument that `reason` says is of no use.
void check_absent(const char* argument, bool is_given, const char* reason) {
  if (is_given) fail(argument, std::string("is given, must not be ") + reason);
}

/// What a call must not hold beside masked groups.
void check_masked(const GroupedGemmArguments& x) {
  constexpr const char* kReason = "with masked groups (without offsets)";
  check_absent("index", x.index != nullptr, kReason);
  check_absent("destinations", x.destinations != nullptr, kReason);
  if (x.lengths == nullptr) fail("lengths", "is null as offsets is, must point to data");
}

void check_groups_of_rows(const GroupedGemmArguments& x) {
  if (is_masked(x)) check_masked(x);
  check_numbers("offsets", x.offsets);
  check_numbers("lengths", x.lengths);
  check_numbers("index", x.index);
  check_numbers("destinations", x.destinations);
  check_numbers("weights", x.weights);
  check_numbers("alpha_factors", x.alpha_factors);
  check_equal("a.batch", x.a.batch, is_masked(x) ? x.b.batch : 1,
              is_masked(x) ? "the groups, which are masked (without offsets)"
                           : "as rows of one matrix are what offsets divide");
}

/// M: of A, each as often as entries have it, or what `rows` says of an index.
std::int64_t rows_of_product(const GroupedGemmArguments& x) {
  const std::int64_t of_a = x.a.rows * repeats_of(x);
  if (x.index != nullptr) {
    checks::check_size("rows", "", x.rows);
  } else if (x.destinations != nullptr || x.rows != 0) {
    check_equal("rows", x.rows, of_a, "the rows of a, as index is null");
  }
  const std::int64_t rows = x.index == nullptr ? of_a : x.rows;
  check_offset_range(x.index == nullptr ? "a.rows" : "rows", rows);
  return rows;
}

const char* meaning_of_rows(const GroupedGemmArguments& x) {
  return x.index == nullptr ? "the rows of a" : "as `rows` is";
}

void check_destinations(const GroupedGemmArguments& x) {
  if (x.destinations == nullptr) {
    constexpr const char* kReason = "without destinations";
    check_absent("weights", x.weights != nullptr, kReason);
    check_absent("adds", x.adds, kReason);
    check_equal("d.rows", x.d.rows, x.rows, meaning_of_rows(x));
    return;
  }
  if (x.quantized) fail_unsupported("quantized", "is given, must not be with destinations");
  if (!x.adds) return;
  if (x.d.dtype != Format::f32 && !gemm_detail::has_chunks(x.d)) {
    fail_unsupported("d", std::string("is ") + format_traits(x.d.dtype).name +
                              " whose rows do not begin and end at multiples of 16 bytes, must be "
                              "f32 or have such rows with `adds`");
  }
  if (is_transformed(x)) fail_unsupported("transform", "is given, must not be with `adds`");
}

void check_batches(const GroupedGemmArguments& x) {
  const std::int64_t batch = x.a.batch;
  const char* const meaning = "the batch of a";
  if (x.quantized) {
    check_equal("quantized.out.batch", x.quantized->out.batch, batch, meaning);
  } else {
    check_equal("d.batch", x.d.batch, batch, meaning);
  }
}

/// Nothing that is written may share a byte with other memory of the call.
template <class Arguments>
void check_aliasing(const Arguments& x) {
  call_regions([&](const auto& visit) { for_each_memory(x, visit); }).check_apart();
}

}  // namespace

bool is_transformed(const GroupedGemmArguments& x) {
  return !std::holds_alternative<Identity>(x.transform);
}

GemmArguments product_of_rows(const GroupedGemmArguments& x) {
  GemmArguments product;
  product.a = x.a;
  product.a.rows = x.rows;
  product.b = x.b;
  product.d = x.d;
  product.alpha = x.alpha;
  product.bias_dtype = x.bias_dtype;
  product.transform = x.transform;
  product.quantized = x.quantized;
  return product;
}

GroupedGemmArguments validated(const GroupedGemmArguments& arguments) {
  if (has_entries(arguments)) {
    fail_unsupported("entries", "is given, must not be: it is for moe alone");
  }
  return validated_of_moe(arguments);
}

GroupedGemmArguments validated_of_moe(const GroupedGemmArguments& arguments) {
  GroupedGemmArguments x = arguments;
  x.a = resolved(arguments.a, "a");
  x.b = resolved(arguments.b, "b");
  check_group_count("b.batch", x.b.batch);
  gemm_detail::check_pair(x.a.recipe, x.b.recipe);
  check_equal("b.k", x.b.k, x.a.k, "the k of a");
  check_groups_of_rows(x);
  x.rows = rows_of_product(x);
  GemmArguments product = product_of_rows(x);
  gemm_detail::resolve_result(product);
  x.d = product.d;
  x.quantized = product.quantized;
  check_destinations(x);
  gemm_detail::check_result(product, meaning_of_rows(x));
  check_batches(x);
  checks::check_size("expected_rows", "", x.expected_rows);
  gemm_detail::check_bias(x.bias, x.bias_dtype);
  if (x.bias != nullptr) (void)checks::product("bias", "", x.b.batch, x.b.rows);
  check_aliasing(x);
  return x;
}

KGroupedGemmArguments validated(const KGroupedGemmArguments& arguments) {
  KGroupedGemmArguments x = arguments;
  x.a = resolved(arguments.a, "a");
  x.b = resolved(arguments.b, "b");
  x.d = resolved(arguments.d, "d");
  check_group_count("d.batch", x.d.batch);
  gemm_detail::check_pair(x.a.recipe, x.b.recipe);
  check_equal("b.k", x.b.k, x.a.k, "the k of a");
  check_offset_range("a.k", x.a.k);
  constexpr const char* kOneMatrix = "as k of one matrix is what offsets divide";
  check_equal("a.batch", x.a.batch, 1, kOneMatrix);
  check_equal("b.batch", x.b.batch, 1, kOneMatrix);
  check_equal("d.rows", x.d.rows, x.a.rows, "the rows of a");
  check_equal("d.columns", x.d.columns, x.b.rows, "the rows of b");
  if (x.d.dtype != Format::f32) {
    fail("d.dtype", std::string("is ") + format_traits(x.d.dtype).name + ", must be f32");
  }
  check_numbers("offsets", x.offsets, true);
  check_aliasing(x);
  return x;
}

GroupRows rows_of_group(const GroupedGemmArguments& x, std::int64_t g) {
  if (is_masked(x)) return group_rows(0, x.lengths[g], x.rows);
  const std::int64_t first = x.offsets[g];
  return group_rows(first, x.lengths == nullptr ? x.offsets[g + 1] : first + x.lengths[g], x.rows);
}

std::vector<FilledGroup> filled_groups(const GroupedGemmArguments& x) {
  std::vector<FilledGroup> groups;
  for (std::int64_t g = 0; g < groups_of(x); ++g) {
    const GroupRows rows = rows_of_group(x, g);
    if (rows.begin < rows.end) groups.push_back({g, rows});
  }
  if (is_masked(x)) return groups;
  std::stable_sort(groups.begin(), groups.end(), [](const FilledGroup& a, const FilledGroup& b) {
    return a.rows.begin < b.rows.begin;
  });
  return groups;
}

const FilledGroup* find_shared(const std::vector<FilledGroup>& groups) {
  for (std::size_t i = 1; i < groups.size(); ++i) {
    if (groups[i].rows.begin < groups[i - 1].rows.end) return &groups[i];
  }
  return nullptr;
}

}  // namespace blockscale::grouped_gemm_detail
