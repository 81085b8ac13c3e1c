// A layer of some tokens as calls of other operations, in the memory of a workspace: what the CPU
// and CUDA devices run, each with its own implementation of every call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "blockscale/error.h"
#include "blockscale/moe.h"
#include "ops/gemm/kernels/params.h"

namespace blockscale::moe_detail {

/// Row r is weights[entry] x[entry / top_k], where entry is entry_of_row[r], and zeros if that is
/// -1: rounded to f32 and then to the dtype of both.
struct WeighArguments {
  MatrixView x;
  const std::int32_t* entry_of_row = nullptr;
  const float* weights = nullptr;
  int top_k = 1;
  MutableMatrixView rows;
};

/// x of the part, or its weighted rows, for the first product: row r of `out` is of x's row r, or
/// of row_index[r], and stays as it is where that is -1.
struct QuantizeRows {
  MatrixView x;
  const std::int32_t* row_index = nullptr;
  MutableScaledTensorView out;
};

/// Scales of gates and ups that are apart, as those of one tensor of [2I, H] an expert: in
/// row_major and of blocks of fewer rows, where blocks of both do not meet.
struct JoinedScales {
  GemmScales from;             // of a batch of 2E of [I, H]
  std::uint8_t* to = nullptr;  // [2E, rows, columns], of `from`'s type
  std::int64_t matrices = 0;   // 2E
  std::int64_t rows = 0;       // of scales, for a matrix
  std::int64_t columns = 0;
  int block_rows = 1;  // rows that one of `to` is for
};

/// Both products of the shared experts, and x for them, where the others have other rows of it.
struct SharedProducts {
  std::optional<QuantizeRows> quantize;
  GemmArguments up, down;  // batches of shared experts
};

/// y[t] = residual[t] + sum over s of shared[s, t] + sum over j of weights[t, j]
/// rows[row_of_entry[t, j]], each product and each sum rounded to f32, in the order of s and j.
/// Without the last sum (top_k is 0) where the second product adds its rows to that.
struct FinalizeArguments {
  MatrixView shared;      // bf16, a batch of shared experts; without data: none
  ScaledTensorView rows;  // bf16
  const std::int32_t* row_of_entry = nullptr;
  /// In its place, where rows are those of entries: which of these are of `experts` from first_id
  /// on.
  RowEntries entries;
  std::int64_t experts = 0;
  const float* weights = nullptr;  // null: 1
  int top_k = 1;
  MatrixView residual;
  MutableMatrixView y;
};

/// Has the weights of entries sorted with them, for a product that adds rows.
struct RowWeights {
  const float* weights = nullptr;
  float* of_rows = nullptr;  // null: none are asked for
};

/// In the order in which they run; but `finalize` comes before `up` where `down` adds.
struct LayerPart {
  std::optional<JoinedScales> scales;
  std::optional<MoeSortArguments> sort;
  RowWeights row_weights;
  std::optional<WeighArguments> weigh;
  std::optional<QuantizeRows> quantize;
  std::optional<SharedProducts> shared;
  GroupedGemmArguments up;
  GroupedGemmArguments down;
  FinalizeArguments finalize;
};

/// What brings a token's row of x to each of its experts.
enum class Gather : std::uint8_t {
  product,   // the first one, by its index; x is quantized once
  quantize,  // each row is quantized where the product reads it: where that would have to copy it
  entries,   // nothing is sorted: products take entries, whose rows are in their order
};

/// Entries that a layer has at most where nothing is sorted; with 0 everything is.
inline constexpr std::int64_t kMostUnsorted = 32;

/// Whether nothing needs to be sorted where kernels take entries: there are few, and few of them
/// share an expert, whose weights are read for each.
bool may_stay_unsorted(const MoeArguments& validated);

/// Whether the second product adds rows to y: never on the CPU, where `validated` is deterministic.
bool adds_rows(const MoeArguments& validated);

/// Bytes of workspace that a part of so many tokens needs, a multiple of 64.
std::int64_t part_bytes(const MoeArguments& validated, std::int64_t tokens, Gather gather);

/// Tokens [first, first + tokens) of validated arguments; `first` is a multiple of kPartTokens. The
/// memory of what is quantized is that of the second product's rows.
LayerPart part_of(const MoeArguments& validated, std::int64_t first, std::int64_t tokens,
                  void* workspace, Gather gather);

/// The calls of a part that others validate.
enum class PartCall : std::uint8_t {
  quantize,
  first_product,
  second_product,
  first_of_shared,
  second_of_shared
};

/// Throws an error of such a call's arguments by the names that the layer's have.
[[noreturn]] void rethrow_as_layers(PartCall call, const Error& error);

/// body(), of a part's call.
template <class Body>
auto of_part(PartCall call, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    rethrow_as_layers(call, error);
  }
}

/// Throws what the calls would, before any of them runs.
void check_part(const LayerPart& part);

/// Stands for memory where a part is described and no byte of it is touched.
inline void* const kNoMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 56);

/// Scales of x that are swizzled begin anew every 128 rows.
inline constexpr std::int64_t kPartTokens = 128;

/// The most tokens of a part that stays below a limit by `bytes_of`: all, or a multiple of
/// kPartTokens.
std::int64_t tokens_of_part(std::int64_t tokens, std::int64_t limit,
                            const std::function<std::int64_t(std::int64_t tokens)>& bytes_of);

}  // namespace blockscale::moe_detail
