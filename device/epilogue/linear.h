// D = gate * (alpha * sums * scales + bias) + beta * C: what a product's epilogue is launched with.
#pragma once

#include "core/format.h"

namespace blockscale {

/// A batch of matrices of f32, f16 or bf16, or a row of them.
struct EpilogueMatrix {
  uint8_t* data = nullptr;
  Format dtype = Format::f32;
  bool chunks = false;     // of D: rows begin and end at multiples of 16 bytes
  int64_t row_stride = 0;  // in elements
  int64_t batch_stride = 0;
};

/// An f32 for each row of A or of B, that holds for all of K; none, which stands for 1, if there is
/// no data.
struct EpilogueScales {
  const float* data = nullptr;
  int64_t stride = 0;  // 0: one for all rows
  int64_t batch_stride = 0;
  const int32_t* index = nullptr;  // whose scale a row has; null: its own
  uint32_t rows = 0;               // with an index; of a row that is none of them: 0
};

struct LinearEpilogue {
  EpilogueMatrix d, c;                       // c is read with beta != 0
  EpilogueMatrix bias, gate;                 // read where data is not null
  EpilogueScales row_scales, column_scales;  // of A and of B: sums times these, then times alpha
  const float* alpha_factor = nullptr;       // on the device, times alpha; null: 1
  uint32_t alpha_factor_stride = 0;          // between groups, as bias.batch_stride
  float alpha = 1;
  float beta = 0;
  bool keeps_sums = false;  // d is the sums
  uint32_t rows = 0;        // of d
  uint32_t columns = 0;
};

}  // namespace blockscale
