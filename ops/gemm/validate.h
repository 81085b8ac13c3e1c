// Every check of a GEMM's arguments, shared by all implementations.
#pragma once

#include <cstdint>
#include <string>

#include "blockscale/gemm.h"
#include "ops/quantize/validate.h"

namespace blockscale::gemm_detail {

/// `arguments` with strides filled in; with `quantized`, d is an f32 matrix without memory. Throws
/// invalid_argument, or unsupported for a pair of recipes that gemm does not compute, naming the
/// argument, its value and what is allowed. Reads no data.
GemmArguments validated(const GemmArguments& arguments, const GemmOptions& options);

// Parts of that check, which grouped products have in common with it.

/// Throws unsupported for a pair of recipes that gemm does not compute.
void check_pair(Recipe a, Recipe b);
void check_bias(const void* bias, Format dtype, const char* argument = "bias",
                const char* dtype_argument = "bias_dtype");
/// Whether all rows of D begin and end at multiples of 16 bytes.
bool has_chunks(const MutableMatrixView& d);
/// Fills in d, or `quantized` and d's shape, of arguments whose a and b are resolved; checks what
/// becomes of `quantized`.
void resolve_result(GemmArguments& x);
/// Checks d's columns, `transform` and `quantized` after that. A has rows `meaning_of_rows`.
void check_result(const GemmArguments& x, const char* meaning_of_rows);

/// Whether D is transformed before it is rounded.
bool is_transformed(const GemmArguments& x);

/// The product of validated arguments without what comes behind it, in f32, where those numbers
/// lie: all matrices of the batch, one behind the other.
GemmArguments before_transform(const GemmArguments& validated, float* numbers);
std::int64_t numbers_before_transform(const GemmArguments& validated);

/// How D in f32 becomes d, of validated arguments.
quantize_detail::FusedInput transform_of_result(const GemmArguments& validated);

/// How D becomes `quantized`, of validated arguments that have it.
quantize_detail::QuantizeArguments quantization_of(const GemmArguments& validated);

/// What descriptions of plans say of `transform` and `quantized`; nothing where there is none.
std::string text_of_quantization(const GemmArguments& validated);

/// Checks the workspace of `options` for a product of validated arguments: aligned, of `needed`
/// bytes, apart from all that is read and written.
void check_workspace(const GemmArguments& x, const GemmOptions& options, std::int64_t needed);

/// alpha times its factor, read from the host's memory: exact.
inline double alpha_of(const GemmArguments& x) {
  return double{x.alpha} * (x.alpha_factor == nullptr ? 1.0 : double{*x.alpha_factor});
}

}  // namespace blockscale::gemm_detail
