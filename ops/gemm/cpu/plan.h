// How the CPU GEMM is divided: a pure function of the shape, so that results do not depend on the
// number of threads.
#pragma once

#include <cstdint>
#include <string>

namespace blockscale::gemm_detail {

/// Products of one element that are summed in f32 before f64 takes over; a multiple of every
/// recipe's block of k.
inline constexpr std::int64_t kSlab = 256;
/// The same where A has few rows: a sum of so many products is that of many lanes, each of a chain
/// of blocks, so rounding errors do not grow beyond a slab's. A multiple of kSlab.
inline constexpr std::int64_t kSpan = 4096;
/// Rows of A up to which rows of B are read as they lie (few_rows-inl.h), where the instruction set
/// can: above, decoding B into panels is shared by enough rows.
inline constexpr std::int64_t kFewRows = 14;
/// The same where what takes over has more to gain from each row: FP4 on both sides as integers;
/// tiles of AMX, or pairs of bf16 where few rows go in f32.
inline constexpr std::int64_t kFewRowsBesideIntegers = 8;
inline constexpr std::int64_t kFewRowsBesidePairs = 4;
/// Columns of D of one task; a multiple of every register tile's.
inline constexpr std::int64_t kTileColumns = 64;

/// The ways to multiply. All of them fall back to `panels` where f32 could not hold the sums.
enum class CpuKernel : std::uint8_t {
  panels,     // B is decoded into f32 panels (panel-inl.h, word_panel-inl.h)
  few_rows,   // rows of B are read as they lie (few_rows-inl.h)
  integers,   // FP4 on both sides: blocks are summed as integers (integers-inl.h)
  pairs,      // bf16 holds all elements: rows of B times panels of A (bf16-inl.h)
  bf16_rows,  // few rows of A in bf16 (bf16_rows-inl.h)
};

/// A is decoded once into f32, `band_rows` rows at a time; then tasks of `task_rows` rows and
/// kTileColumns columns of D run in parallel, each over all of K, decoding B as they go.
struct CpuPlan {
  std::int64_t band_rows = 0;
  std::int64_t task_rows = 0;  // divides band_rows, but for its last task
  std::int64_t slabs = 0;      // of k

  std::string to_string() const;

  /// The same as a sentence, with the reason for `kernel`, of operands with these recipes.
  std::string describe(const std::string& a, const std::string& b, CpuKernel kernel) const;
};

CpuPlan cpu_plan(std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace blockscale::gemm_detail
