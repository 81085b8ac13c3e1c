// Mixture of experts: each token's rows go through the experts that a router chose for it, and come
// back weighted and added up. The whole layer in one call, and each of its steps alone.
//
//   logits -> route -> ids, weights
//                       ids -> moe_sort -> rows of each expert
//   x -> quantized rows of each expert -> w13 -> SwiGLU, quantize -> w2 -> rows -> weights, y
//
// Words: T tokens, H numbers of each; E experts on this device; I numbers between the two products;
// `top_k` experts of each token. Entry token * top_k + j is token's j-th choice ("expanded" index
// in TensorRT-LLM's words); entries sorted by expert are rows ("permuted").
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "blockscale/grouped_gemm.h"
#include "blockscale/quantize.h"
#include "blockscale/tensor.h"

namespace blockscale {

/// What a router's logits become: softmax over all experts, or each one's sigmoid.
enum class RouterScore : std::uint8_t { softmax, sigmoid };

/// Each token's experts are those of the largest score + correction_bias, the largest first, and
/// of equal ones the lower expert; NaN counts as less than any number. With `groups` above 1
/// experts are so many groups of equal size, side by side, and only those of the `top_groups`
/// groups are chosen from whose `best_of_group` best experts have the largest sum (DeepSeek-V3: 8
/// groups, 4 of them, by their best 2). Weights are scores, without the bias; `renormalize` divides
/// a token's by their sum + 1e-20; then they are multiplied by `scale`.
///
/// In f32, in a fixed order: the same bits on every CPU and GPU (docs/numerics.md, "Routing").
struct RouteArguments {
  MatrixView logits;                       // [T, experts] of f32, f16 or bf16; 1 to 1,024 experts
  const float* correction_bias = nullptr;  // [experts]; null: 0
  int top_k = 1;                           // 1 to 16, at most the experts of top_groups groups
  RouterScore score = RouterScore::softmax;
  int groups = 1;  // 1 to 32, dividing the experts
  int top_groups = 1;
  int best_of_group = 2;  // 1, or 2 where groups have as many
  bool renormalize = true;
  float scale = 1.0f;
  /// So many experts more, numbered behind the others, that every token goes to with weight 1: they
  /// come behind its top_k. With these at most 16.
  int shared_experts = 0;

  std::int32_t* ids = nullptr;  // [T, top_k + shared_experts]
  float* weights = nullptr;     // the same
};

/// Throws invalid_argument before anything is written. T is at most 2^20.
void route(const RouteArguments& arguments, int threads = 0);

/// Sorts entries by expert; those of one expert stay in their order. An entry whose id names no
/// expert of this device is dropped: ids may be -1, or any other number, and may repeat.
///
/// With `tile` above 1 each expert's rows are padded to whole tiles of so many rows: TensorRT-LLM's
/// moe_sort, whose names of the results are in brackets. Results that are null are not made.
struct MoeSortArguments {
  const std::int32_t* ids = nullptr;  // [T, top_k]
  std::int64_t tokens = 0;            // T, at most 2^20
  int top_k = 1;                      // 1 to 16
  std::int64_t experts = 0;       // E, 1 to 1,024: those of ids [first_expert, first_expert + E)
  std::int32_t first_expert = 0;  // (local_expert_offset)
  /// Id i is read as expert_map[i], for i in [0, mapped_ids): where experts lie elsewhere than
  /// their numbers say, or more than once. Every other id is dropped. Null: ids are as they are.
  const std::int32_t* expert_map = nullptr;
  std::int64_t mapped_ids = 0;
  int tile = 1;  // 1: no padding; or 8 to 256

  std::int32_t* offsets = nullptr;       // [E + 1]: where each expert's rows begin, and the end
  std::int32_t* row_of_entry = nullptr;  // [T top_k]: -1 if dropped (expanded_idx_to_permuted_idx)
  std::int32_t* entry_of_row = nullptr;  // [rows]: -1 in padding (permuted_idx_to_expanded_idx)
  std::int32_t* token_of_row = nullptr;  // [rows]: entry / top_k, -1 in padding
  std::int32_t* expert_of_tile = nullptr;  // [tiles], -1 behind the last (tile_idx_to_expert_idx)
  std::int32_t* row_limit_of_tile = nullptr;  // [tiles]: the row behind the last entry of the tile,
                                              // 0 behind the last tile (tile_idx_to_mn_limit)
  std::int32_t* padded_rows = nullptr;        // [1] of all experts (total_num_padded_tokens)
  std::int32_t* tiles = nullptr;              // [1] that there are (num_non_exiting_tiles)
};

/// The most rows, padding included, that so many entries can need: what entry_of_row and
/// token_of_row hold; their rows behind the last are -1. A multiple of `tile`; over `tile` the most
/// tiles. Throws invalid_argument as moe_sort does.
std::int64_t moe_sort_rows(std::int64_t tokens, int top_k, std::int64_t experts, int tile = 1);

/// Throws invalid_argument before anything is written.
void moe_sort(const MoeSortArguments& arguments, int threads = 0);

/// Experts that every token goes to with weight 1, in tensors of their own, of any recipes that
/// pair with the activations. They have neither alphas nor biases.
struct SharedExperts {
  ScaledTensorView w13;  // a batch of S, 1 to 16, of [2I', H], where the transform is Swiglu; else
                         // of [I', H]
  ScaledTensorView w2;   // a batch of S of [H, I']
};

/// y[t] = residual[t] + sum over s of shared(s)(x[t])
///      + sum over j of weights[t, j] expert(ids[t, j])(x[t]), where
/// expert(x) = transform(x w13^T alpha + bias) w2^T alpha + bias.
///
/// Between the products stands what `activations` says: with FP8 the first product's result is
/// quantized from its f32 sums, and what the second one gives is rounded to bf16, and added up in
/// f32 in the order of s and then of j. Entries are dropped as moe_sort drops them: without experts
/// a token has y = residual, or 0.
struct MoeArguments {
  /// [T, H]: plain, or in a recipe that gemm pairs with the weights'. T is at most 2^20.
  ScaledTensorView x;
  /// A batch of E of [2I, H], where the transform is Swiglu; else of [I, H]. Or of 2E of [I, H]:
  /// gates and ups of an expert, one behind the other, each with scales of its own (so blocks begin
  /// anew with the ups where no block divides the I of a shard; a tensor scale is one for all).
  /// Where blocks of gates and ups do not meet, or scales are mn_major, each call copies the scales
  /// of all experts into one grid; FP8 then is of blocks of fewer rows. Which is first the
  /// transform's order says; its group is then 0.
  ScaledTensorView w13;
  ScaledTensorView w2;  // a batch of E of [H, I]
  /// [T, top_k]
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;  // null: 1
  int top_k = 1;                   // 1 to 16
  /// Weights are on the other side (Llama 4): y[t] = residual[t] + sum over j of
  /// expert(ids[t, j])(weights[t, j] x[t]). x is plain then; each product of a weight and an
  /// element is rounded to f32 and then to x's dtype, and is what is quantized, or taken as it is.
  /// Nothing without weights. Each entry has a row of H numbers in memory.
  bool weights_on_input = false;
  std::int32_t first_expert = 0;             // id of w13's first expert
  const std::int32_t* expert_map = nullptr;  // [mapped_ids]: as moe_sort's
  std::int64_t mapped_ids = 0;

  std::optional<SharedExperts> shared;
  QuantizeInput transform = Swiglu{};  // of the first product's result; or Gelu, Silu, Identity
  /// What x, where it is plain, and the first product's result become: fp8_1x128 (of any kind of
  /// scale), fp8_row or mxfp8_e4m3; or bf16: then x is taken as it is. Unset: fp8_1x128 if the
  /// weights are of an FP8 recipe, else bf16.
  std::optional<Recipe> activations;

  const float* w13_alphas = nullptr;  // [E]; null: 1
  const float* w2_alphas = nullptr;   // [E]
  const void* w13_bias = nullptr;     // [E, 2I] or [E, I]; null: none
  const void* w2_bias = nullptr;      // [E, H]
  Format bias_dtype = Format::f32;    // of both

  /// Experts that ids are spread over, here and on other devices, for the choice of tiles on a GPU:
  /// whatever it is, y is right. 0: those of w2.
  std::int64_t all_experts = 0;
  /// The bits of a token's y depend neither on T nor on the other tokens. May cost time.
  bool batch_invariant = false;
  /// False: rows of the second product may be added to y as they come, each rounded to y's dtype
  /// and each sum too: not the same bits from run to run. On a GPU that saves the [T top_k, H] rows
  /// in memory, and time, where it is done: with 64 entries or more an expert, on average over
  /// all_experts, w2.k of 512 or more, and y in f32 or of rows that begin and end at multiples of
  /// 16 bytes. Not with `batch_invariant`.
  bool deterministic = true;

  MatrixView residual;  // [T, H] of y's dtype, may be y; without data: none
  MutableMatrixView y;  // [T, H] of f32, f16 or bf16
};

struct MoeOptions {
  int threads = 0;  // 0: all of the machine's
  /// Tokens go through the layer in parts that need no more memory than this, of 128 at least. On
  /// the CPU an expert's rows in a part are those that its products are chosen by, as everywhere
  /// the tokens of a part are for shared experts, so that bits may depend on it without
  /// `batch_invariant`; and products take memory of their own there.
  std::int64_t workspace_limit = std::int64_t{2} << 30;  // bytes
};

/// The bound of each product is gemm's; the same bits from run to run and for any number of
/// threads. Throws invalid_argument or unsupported before y is touched.
void moe(const MoeArguments& arguments, const MoeOptions& options = {});

/// How moe computes the layer here, as text, a line for each step. Throws as it does; reads no
/// element.
std::string describe_moe(const MoeArguments& arguments, const MoeOptions& options = {});

}  // namespace blockscale
