#include "ops/grouped_gemm/cpu/waves.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ops/gemm/cpu/plan.h"

namespace blockscale::grouped_gemm_detail {
namespace {

class Waves {
 public:
  Waves(const GroupedGemmArguments& x, std::int64_t most_rows) : x_(x), most_rows_(most_rows) {}

  /// Cut where bands of the dense product begin.
  void add(const FilledGroup& filled) {
    const std::int64_t rows = filled.rows.end - filled.rows.begin;
    const std::int64_t band = gemm_detail::cpu_plan(rows, x_.b.rows, x_.a.k).band_rows;
    const std::int64_t most = rows <= most_rows_ ? rows : std::max(band, most_rows_ / band * band);
    for (std::int64_t begin = filled.rows.begin; begin < filled.rows.end; begin += most) {
      const std::int64_t end = std::min(filled.rows.end, begin + most);
      if (waves_.empty() || waves_.back().rows + end - begin > most_rows_) end_wave();
      RowWave& wave = waves_.back();
      wave.parts.push_back({filled.group, rows, {begin, end}, wave.rows});
      wave.rows += end - begin;
    }
  }
  /// What is added next begins another wave.
  void end_wave() {
    if (waves_.empty() || waves_.back().rows > 0) waves_.emplace_back();
  }
  std::vector<RowWave> take() {
    if (!waves_.empty() && waves_.back().rows == 0) waves_.pop_back();
    return std::move(waves_);
  }

 private:
  const GroupedGemmArguments& x_;
  std::int64_t most_rows_;
  std::vector<RowWave> waves_;
};

}  // namespace

std::vector<RowWave> row_waves(const GroupedGemmArguments& x, std::int64_t most_rows) {
  std::vector<FilledGroup> groups = filled_groups(x);
  const bool is_shared = !is_masked(x) && find_shared(groups) != nullptr;
  if (is_shared) {
    std::sort(groups.begin(), groups.end(),
              [](const FilledGroup& a, const FilledGroup& b) { return a.group < b.group; });
  }
  Waves waves(x, most_rows);
  for (const FilledGroup& filled : groups) {
    if (is_shared) waves.end_wave();
    waves.add(filled);
  }
  return waves.take();
}

std::vector<std::int32_t> owners_of_shared_rows(const GroupedGemmArguments& x) {
  if (is_masked(x) || find_shared(filled_groups(x)) == nullptr) return {};
  std::vector<std::int32_t> owners(static_cast<std::size_t>(x.rows), -1);
  for (std::int64_t g = 0; g < groups_of(x); ++g) {
    const GroupRows rows = rows_of_group(x, g);
    std::fill(owners.begin() + rows.begin, owners.begin() + rows.end, static_cast<std::int32_t>(g));
  }
  return owners;
}

}  // namespace blockscale::grouped_gemm_detail
