// What the drivers (piece_quantizer.cpp, dequantize.cpp) ask of an instruction set: runs of one
// row.
//
// Every function gives the same bytes on every instruction set and expects the environment of
// ops/common/float_environment.h. Pointers need no alignment beyond their element's.
#pragma once

#include <cstdint>

#include "blockscale/quantize.h"
#include "core/format.h"
#include "core/input_transform.h"
#include "ops/common/simd/scale_factors.h"

namespace blockscale::steps {

/// Magnitudes travel as the bits of a non-negative f32, so they are compared as integers.
using MagnitudeBits = std::uint32_t;
inline constexpr MagnitudeBits kLargestFinite = 0x7F7FFFFFu;
inline constexpr MagnitudeBits kInfinity = 0x7F800000u;

/// What a NaN among the elements does to a block's largest magnitude.
enum class NanRule : std::uint8_t {
  poison,  // the result is above kInfinity
  ignore,  // it does not enter the result
};

/// The largest magnitude of each block of `block` elements of `x` (`count` in all, the last block
/// may be short), folded into what `maxima` holds. An Inf stays kInfinity.
void block_maxima(Format dtype, const void* x, std::int64_t count, std::int64_t block, NanRule rule,
                  MagnitudeBits* maxima);

/// A factor that stands for a block whose codes are all 0, whatever its elements are.
inline constexpr float kZeroCodes = -1.0f;

/// Scales of `count` blocks from their maxima: `bytes` (ue8m0 or ue4m3) are stored, `factors` are
/// what encode_blocks wants. All arrays have kArrayPadding entries of room after `count`.
void mx_scales(Format element, MxScaleMode mode, const MagnitudeBits* maxima, std::int64_t count,
               std::uint8_t* bytes, float* factors);
void nvfp4_scales(float tensor_scale, const MagnitudeBits* maxima, std::int64_t count,
                  std::uint8_t* bytes, float* factors);

/// FP8: `scales` are f32. With `power_of_two` factors are 1 / scale (exact), else the scale itself.
void fp8_scales(Format element, bool power_of_two, float amax_floor, const MagnitudeBits* maxima,
                std::int64_t count, float* scales, float* factors);

/// Blocks of one row whose scales are searched. Element j of block i is x[j * pitch + i]; `pitch`
/// is a multiple of kArrayPadding, so that there is room after the last block.
struct SearchedBlocks {
  Format dtype = Format::f32;
  const void* x = nullptr;
  const float* weights = nullptr;  // of squared errors, laid out as x; nullptr: all 1
  const float* means = nullptr;  // of the columns; `weights` are then as take_variances leaves them
  std::int64_t pitch = 0;
  std::int64_t count = 0;
};

/// Replaces `bytes` and `factors`, which mx_scales or nvfp4_scales made of the same maxima, by
/// those of least error. `amax_errors` and `errors` become the squared errors of either choice, in
/// units of x^2 (MX; below 2^-126 they may be 0) or (x tensor_scale)^2. All arrays have
/// kArrayPadding entries of room after `count`.
void search_mx_scales(Format element, const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                      std::uint8_t* bytes, float* factors, float* amax_errors, float* errors);
/// A block with a larger factor keeps its scale, so that no factor of a candidate overflows.
inline constexpr float kLargestSearchedFactor = 0x1p122f;
/// So does one of zeros or with NaN.
constexpr bool is_searched(float factor) {
  return factor >= 0 && factor <= kLargestSearchedFactor;
}

/// weights[i] less the mean's square, at least 0. Both arrays have kArrayPadding entries of room,
/// or a `count` that is a multiple of it.
void take_variances(const float* means, std::int64_t count, float* weights);

/// What the amax rule's scale of each block would leave (0), and the power of two below it (1; the
/// rule's again where there is none), in quarters of that scale: of errors e the sum of v e^2,
/// where v is the weight, and of the mean times e. All arrays have
/// kArrayPadding entries of room.
struct MxErrors {
  float* squares[2];
  float* products[2];
};
void measure_mx_scales(Format element, const SearchedBlocks& blocks, const MagnitudeBits* maxima,
                       const MxErrors& errors);

/// A row's blocks in turn, of which each adds to what those before it have `left` (unless the sum
/// is not finite): by its second scale where that adds less to the row's error, as difference +
/// slope * left < 0 says.
struct ChoicesAlong {
  // Of what measure_mx_scales found, in the input's units; weigh_choices makes these.
  double* squares[2];
  double* added[2];
  double* difference;
  double* slope;
  // What choose_along makes.
  double* lefts;            // before each block
  std::uint8_t* is_second;  // 1 if so
};
/// `bytes` and `factors` are the amax rule's. All arrays have room up to a multiple of
/// kArrayPadding.
void weigh_choices(std::int64_t count, const MxErrors& errors, const std::uint8_t* bytes,
                   const float* factors, const ChoicesAlong& choices);
void choose_along(std::int64_t count, const ChoicesAlong& choices, double& left);

void search_nvfp4_scales(float tensor_scale, const SearchedBlocks& blocks,
                         const MagnitudeBits* maxima, std::uint8_t* bytes, float* factors,
                         float* amax_errors, float* errors);

/// How elements meet their block's factor.
enum class Scaling : std::uint8_t {
  multiply,
  power_of_two,  // multiply, where every factor is one
  divide,
};

/// Codes of `count` elements of `x`, scaled by their block's factor, packed from the first byte of
/// `codes` on. Only FP8 elements may come with short blocks, NaN, or Scaling::divide. What is read
/// next, so many bytes `ahead` of `x`, is asked for meanwhile by the fast path of AVX-512.
void encode_blocks(Format dtype, Format element, Scaling scaling, const void* x, std::int64_t count,
                   std::int64_t block, const float* factors, std::uint8_t* codes,
                   std::int64_t ahead = 0);

/// Values of `count` packed codes times their block's factor, rounded once to `dtype`: beyond its
/// range to infinity, NaN to its canonical NaN.
void decode_blocks(Format element, Format dtype, const std::uint8_t* codes, std::int64_t count,
                   std::int64_t block, const float* factors, void* out);

/// One row of f32, f16 or bf16 elements.
struct RowOperand {
  Format dtype = Format::f32;
  const std::uint8_t* data = nullptr;
};

/// One row of a fused input (core/input_transform.h). Its operands are in f32, start at the first
/// column that is asked for, and have kArrayPadding numbers of room after the last.
struct TransformedRow {
  InputTransform transform = InputTransform::identity;
  RowOperand x;
  GateOrder gate_order = GateOrder::gate_first;  // swiglu
  std::int64_t gate_group = 1;                   // swiglu
  bool is_clamped = false;                       // swiglu: by these numbers
  SwigluNumbers swiglu = {};                     // swiglu
  const float* scale = nullptr;                  // modulate
  const float* shift = nullptr;                  // modulate
  const float* weight = nullptr;                 // rms_norm
  float factor = 0;                              // rms_norm: 1 / root mean square
};

/// Columns [column, column + count) of the result. `out` has room for kArrayPadding more.
void transform_run(const TransformedRow& row, std::int64_t column, std::int64_t count, float* out);

/// Elements [column, column + count) as f32.
void widen_run(const RowOperand& row, std::int64_t column, std::int64_t count, float* out);

/// The sum of squares of rms_norm.
float sum_of_squares(const RowOperand& x, std::int64_t count);

/// out[c * out_stride + r] = in[r * in_stride + c] for r < rows and c < columns. Elements have
/// 2 or 4 bytes; strides count elements.
void transpose(int element_bytes, const void* in, std::int64_t in_stride, std::int64_t rows,
               std::int64_t columns, void* out, std::int64_t out_stride);

}  // namespace blockscale::steps
