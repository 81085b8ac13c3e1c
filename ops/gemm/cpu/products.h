// Products on the CPU as their callers see them: rows of A times B, one after the other in a
// caller's memory, or many at the same time.
#pragma once

#include <cstdint>
#include <span>

#include "ops/gemm/cpu/epilogue.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/cpu/methods.h"
#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"

namespace blockscale::gemm_detail {

/// Rows [first_row, first_row + rows) of A times B: all rows of a product, or some that begin a
/// multiple of its plan's band_rows behind its first. The bits of D are those of `product_rows`
/// rows in either case.
struct Piece {
  OperandMatrix a;
  OperandMatrix b;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t product_rows = 0;
  Epilogue epilogue = {};
  OutputMatrix out = {};  // its first row is first_row's
  bool batch_invariant = false;
};

/// With the tensor scales of `a` and `b`, and no C.
Epilogue epilogue_of(double alpha, const OperandMatrix& a, const OperandMatrix& b, Format d_dtype);

/// Bytes of a Memory that `rows` rows of A in a band take at most.
std::int64_t band_bytes(std::int64_t rows, std::int64_t k, Recipe a, Recipe b,
                        const CpuMethod& method);

/// One piece, band by band of A, which take band_bytes of `memory`. Without `slots`, tasks have
/// their threads' scratch.
void multiply_piece(const Piece& piece, int threads, const Memory& memory, const Slots& slots);

/// All pieces, so that no thread waits at the end of one. No two may have a row of D in common. Not
/// empty: neither rows of A nor of B.
void multiply_pieces(std::span<const Piece> pieces, int threads);

// What gemm.cpp has for each instruction set.

/// How this machine's multiplies `m` rows: by panels, the last method, where no sum may depend on
/// other rows.
const CpuMethod& cpu_method(std::int64_t m, Recipe a, Recipe b, bool batch_invariant);

/// Bytes of scratch of a task of `rows` rows.
std::int64_t task_scratch_bytes(std::int64_t rows);

void run_task(const Piece& piece, PackedBand& band, const CpuMethod& method, const Task& task,
              std::uint8_t* scratch);

/// Values of k in [begin, begin + count) of rows [first, first + rows) as products read them,
/// `count` from row to row.
void decode_values(const OperandMatrix& x, std::int64_t first, std::int64_t rows,
                   std::int64_t begin, std::int64_t count, float* out);

}  // namespace blockscale::gemm_detail
