// Groups of rows, each times a matrix of its own, in one call: the experts of a mixture, adapters
// of many requests. And the gradients of their weights, where groups divide k.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "blockscale/gemm.h"

namespace blockscale {

/// Entries of a mixture of experts (moe.h), as rows of a product.
struct RowEntries {
  const std::int32_t* ids = nullptr;  // [M]; null: rows are no entries
  std::int32_t first_id = 0;
  int top_k = 1;
};

/// Row r of group g: D[r, :] = alpha * alpha_factors[g] * A[r, :] B[g]^T + bias[g, :].
///
/// Which rows a group has is known where the data is, on the device for `cuda`, and not looked at
/// by the host. Groups may be empty, may come in any order, and may leave rows out: those of D are
/// not touched, nor is D behind the last group. Numbers that are no rows are cut to [0, M): nothing
/// outside of a buffer is read or written. Rows of two groups have the result of one of them;
/// check_groups says so.
struct GroupedGemmArguments {
  ScaledTensorView a;   // [M, K]; masked: a batch of G of [M, K]
  ScaledTensorView b;   // a batch of G of [N, K], G from 1 to 65,535
  MutableMatrixView d;  // [M, N], with Swiglu [M, N / 2]; f32, f16 or bf16; masked: a batch of G

  /// [G + 1]: group g has the rows from offsets[g] to offsets[g + 1]. With `lengths`, [G], it has
  /// lengths[g] rows from offsets[g] on. Null where groups are masked: then lengths[g] are the rows
  /// of matrix g of A and D, from its first on.
  const std::int32_t* offsets = nullptr;
  const std::int32_t* lengths = nullptr;

  float alpha = 1.0f;
  const float* alpha_factors = nullptr;  // [G], where the data is; null: 1. Tensor scales of seeds
  const void* bias = nullptr;            // [G, N]; null: none
  Format bias_dtype = Format::f32;

  /// Rows of A are index[r], r in [0, M), where M is `rows`: A may have any number of them. A row
  /// of zeros where index[r] is no row of A. Null: row r.
  const std::int32_t* index = nullptr;
  /// M where `index` or `destinations` is given.
  std::int64_t rows = 0;
  /// Row r goes to row destinations[r] of D, times weights[r], which null stands for 1 of; nowhere
  /// if that is no row of D. Null: row r. Two rows of one destination: one of them, unless `adds`.
  const std::int32_t* destinations = nullptr;
  const float* weights = nullptr;
  /// D has rows added to it: each is rounded to D's dtype, and so is each sum. In any order on a
  /// GPU: not the same bits from run to run. D is f32, or its rows begin and end at multiples of 16
  /// bytes.
  bool adds = false;

  /// Identity, Gelu, Silu or Swiglu of all that in f32, before it is rounded to d's dtype.
  QuantizeInput transform = {};
  /// Rows that a group is expected to have, for the choice of tiles on a GPU: whatever it is, D is
  /// right. 0: as many as if groups shared all rows out. With masked groups most have fewer.
  std::int64_t expected_rows = 0;
  /// The bits of a row of D depend neither on the rows of its group nor on other groups. May cost
  /// time.
  bool batch_invariant = false;
  /// Rows of the result that no group has may be written too: all of it belongs to the call. Saves
  /// a copy where no epilogue quantizes.
  bool owns_rows = false;
  /// In place of offsets, lengths and index, for `moe` alone, whose few entries need no sort so:
  /// row r is that of group entries.ids[r] - entries.first_id, or none where that is no group, and
  /// of row r / entries.top_k of A. Kernels of few rows have it, and nothing else: calls refuse it
  /// (unsupported).
  RowEntries entries = {};
  /// In place of `d`, which then is not looked at. Not with `destinations`.
  std::optional<QuantizedResult> quantized = {};
};

struct GroupedGemmOptions {
  int threads = 0;  // 0: all of the machine's
};

/// The pairs of gemm. The bits of a row are those of a product of its group alone (the same with
/// `batch_invariant`, if that is), and the bound of its error is gemm's (docs/numerics.md); the
/// same from run to run and for any number of threads. Throws invalid_argument or unsupported
/// before D is touched.
void grouped_gemm(const GroupedGemmArguments& arguments, const GroupedGemmOptions& options = {});

/// How grouped_gemm computes each group here, as text. Throws as it does; reads no element.
std::string describe_grouped_gemm(const GroupedGemmArguments& arguments);

/// Reads offsets, lengths, index and destinations, and throws invalid_argument, naming the group or
/// row, where they are not what they say: offsets that descend or lie outside of [0, M], lengths
/// below 0 or beyond the end, groups that share rows, an index from a.rows on, a destination from
/// d.rows on. (Negative indices and destinations stand for nothing.) Throws as grouped_gemm does.
void check_groups(const GroupedGemmArguments& arguments);

/// As check_gemm, of the rows that groups have. The rows of groups must be as check_groups wants
/// them; unsupported with a transform, `quantized` or `destinations`.
GemmCheck check_grouped_gemm(const GroupedGemmArguments& arguments, std::int64_t samples = 1024);

/// Weight gradients: D[g] = alpha * A[:, k of g] B[:, k of g]^T, of k from offsets[g] to
/// offsets[g + 1], or that added to D[g]. Scales are those of all of A and B: a group may begin and
/// end anywhere in a block of them.
struct KGroupedGemmArguments {
  ScaledTensorView a;                     // [M, K]
  ScaledTensorView b;                     // [N, K]
  MutableMatrixView d;                    // a batch of G of [M, N], f32
  const std::int32_t* offsets = nullptr;  // [G + 1] where the data is, cut to [0, K]
  float alpha = 1.0f;
  bool adds = false;
};

/// The pairs of gemm; as grouped_gemm else. D of an empty group is 0, or as it was with `adds`.
void k_grouped_gemm(const KGroupedGemmArguments& arguments, const GroupedGemmOptions& options = {});

}  // namespace blockscale
