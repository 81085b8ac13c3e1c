#include "models/checkpoint/rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "models/checkpoint/codes.h"
#include "models/checkpoint/integers.h"

namespace blockscale::models {

std::int64_t scale_bytes_of(Recipe recipe) {
  return format_traits(recipe_traits(recipe).scale).bits / 8;
}
namespace {

std::int64_t element_bytes(Recipe plain) {
  return plain == Recipe::f32 ? 4 : 2;
}

bool is_aligned(const void* pointer, std::int64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(alignment) == 0;
}

/// Whether some of `Count` numbers has all exponent bits set. Adding the exponent's lowest bit to
/// the magnitude carries into the sign bit exactly then; plain integer lanes, so it vectorises.
template <class Word, Word kMagnitude, Word kLowestExponentBit, std::int64_t kCount>
bool any_nonfinite(const Word* words) {
  Word carries = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    carries = static_cast<Word>(carries |
                                static_cast<Word>((words[i] & kMagnitude) + kLowestExponentBit));
  }
  return (carries & static_cast<Word>(~kMagnitude)) != 0;
}

template <class Word, Word kMagnitude, Word kLowestExponentBit>
std::int64_t find_nonfinite(const void* data, std::int64_t count) {
  constexpr std::int64_t kBlock = 256;
  const Word* words = static_cast<const Word*>(data);
  std::int64_t i = 0;
  while (i + kBlock <= count &&
         !any_nonfinite<Word, kMagnitude, kLowestExponentBit, kBlock>(words + i)) {
    i += kBlock;
  }
  for (; i < count; ++i) {
    if (any_nonfinite<Word, kMagnitude, kLowestExponentBit, 1>(words + i)) return i;
  }
  return -1;
}

}  // namespace

namespace {

/// Rows of a plain tensor of 8-bit floats.
MatrixView read_narrow(const StoredCheckpoint& checkpoint, std::size_t tensor,
                       const RowRange& range, std::vector<std::byte>& buffer) {
  const CheckpointTensor& t = checkpoint.tensors()[tensor];
  const MatrixShape shape = matrix_shape(t.shape);
  const std::byte* const codes = checkpoint.store().data(*checkpoint.parts(tensor).values).data() +
                                 (range.batch * shape.rows + range.begin) * shape.k;
  const auto& values = narrow_values(t.dtype);
  const std::int64_t count = range.count * shape.k;
  auto* const out = reinterpret_cast<float*>(Scratch::room(buffer, 4 * count));
  for (std::int64_t i = 0; i < count; ++i) out[i] = values[static_cast<std::size_t>(codes[i])];
  return {out, Format::f32, range.count, shape.k};
}

}  // namespace

std::byte* Scratch::room(std::vector<std::byte>& buffer, std::int64_t bytes) {
  if (buffer.size() < static_cast<std::size_t>(bytes)) {
    buffer = {};  // nothing is kept, so never hold both
    buffer.resize(static_cast<std::size_t>(bytes));
  }
  return buffer.data();
}

std::unique_ptr<Scratch> ScratchPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

void ScratchPool::give(std::unique_ptr<Scratch> scratch) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    free_.push_back(std::move(scratch));
  } catch (const std::bad_alloc&) {
    scratch.reset();  // the next worker allocates its own
  }
}

ScaledTensorView slice(const ScaledTensorView& view, const RowRange& range) {
  const RecipeTraits& t = recipe_traits(view.recipe);
  const std::int64_t row = row_bytes(view.recipe, view.k);
  ScaledTensorView result = view;
  result.batch = 1;
  result.rows = range.count;
  result.values =
      static_cast<const std::byte*>(view.values) + (range.batch * view.rows + range.begin) * row;
  if (view.scales != nullptr) {
    const ScaleGrid grid = scale_grid(view.recipe, view.rows, view.k);
    const std::int64_t grid_row = t.block_rows == 0 ? 0 : range.begin / t.block_rows;
    const std::int64_t scale = scale_bytes_of(t.recipe);
    result.scales = static_cast<const std::byte*>(view.scales) +
                    (range.batch * grid.rows + grid_row) * grid.columns * scale;
  }
  if (view.tensor_scale != nullptr) {
    result.tensor_scale = view.tensor_scale + range.batch * view.tensor_scale_batch_stride;
    result.tensor_scale_batch_stride = 0;
  }
  return result;
}

namespace {

/// Multiplies rows of a matrix by the factors of its blocks.
void apply_factors(const StoredCheckpoint& checkpoint, std::size_t tensor, const RowRange& range,
                   std::int64_t k, float* values) {
  const std::span<const float> factors = checkpoint.channel_factors(tensor, range.batch);
  if (factors.empty()) return;
  const BlockSize block = checkpoint.parts(tensor).factor_block;
  const std::int64_t columns = ceil_div(k, block.columns);
  for (std::int64_t i = 0; i < range.count; ++i, values += k) {
    const std::int64_t row = block.rows == 0 ? 0 : (range.begin + i) / block.rows;
    const float* const of_row = factors.data() + row * columns;
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t end = std::min(k, (j + 1) * block.columns);
      for (std::int64_t c = j * block.columns; c < end; ++c) values[c] *= of_row[j];
    }
  }
}

/// Whole blocks of rows that hold `range`, of a matrix that is packed along them.
RowRange whole_blocks(const RowRange& range, std::int64_t block) {
  const std::int64_t begin = range.begin / block * block;
  const std::int64_t end = ceil_div(range.begin + range.count, block) * block;
  return {range.batch, begin, end - begin};
}

/// Rows of a matrix whose codes and scales lie along its columns: turned, so that they are those of
/// a recipe, dequantized and turned back.
MatrixView read_packed_along_rows(const StoredCheckpoint& checkpoint, std::size_t tensor,
                                  const RowRange& range, std::vector<std::byte>& buffer) {
  ScaledTensorView view = checkpoint.unaligned_view(tensor);
  const RecipeTraits& t = recipe_traits(view.recipe);
  const std::int64_t columns = view.k, rows = view.rows;
  const RowRange whole = whole_blocks(range, t.block_k);
  const std::int64_t per_byte = 8 / format_traits(t.element).bits;
  const std::int64_t codes = whole.count / per_byte, scales = whole.count / t.block_k;

  auto* const values =
      reinterpret_cast<float*>(Scratch::room(buffer, columns * (8 * whole.count + codes + scales)));
  float* const turned = values + whole.count * columns;
  auto* const code_bytes = reinterpret_cast<std::byte*>(turned + whole.count * columns);
  std::byte* const scale_bytes = code_bytes + codes * columns;
  const auto turn = [&](const void* from, std::int64_t first, std::int64_t count, std::byte* to) {
    const std::byte* line = static_cast<const std::byte*>(from) + first * columns;
    for (std::int64_t i = 0; i < count; ++i, line += columns) {
      for (std::int64_t c = 0; c < columns; ++c) to[c * count + i] = line[c];
    }
  };
  turn(view.values, (range.batch * rows + whole.begin) / per_byte, codes, code_bytes);
  turn(view.scales, (range.batch * rows + whole.begin) / t.block_k, scales, scale_bytes);

  view.values = code_bytes;
  view.scales = scale_bytes;
  view.rows = columns;
  view.k = whole.count;
  view.batch = 1;
  if (view.tensor_scale != nullptr) {
    view.tensor_scale += range.batch * view.tensor_scale_batch_stride;
    view.tensor_scale_batch_stride = 0;
  }
  dequantize(view, {turned, Format::f32, columns, whole.count}, 1);
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t i = 0; i < whole.count; ++i) {
      values[i * columns + c] = turned[c * whole.count + i];
    }
  }
  return {values + (range.begin - whole.begin) * columns, Format::f32, range.count, columns};
}

}  // namespace

MatrixView read_rows(const StoredCheckpoint& checkpoint, std::size_t tensor, const RowRange& range,
                     bool as_f32, std::vector<std::byte>& buffer) {
  const CheckpointTensor& t = checkpoint.tensors()[tensor];
  if (!t.quantized && is_narrow_float(t.dtype)) {
    return read_narrow(checkpoint, tensor, range, buffer);
  }
  if (checkpoint.parts(tensor).packed_along_rows) {
    return read_packed_along_rows(checkpoint, tensor, range, buffer);
  }
  if (checkpoint.parts(tensor).integers.bits != 0) {
    return read_integers(checkpoint, tensor, range, buffer);
  }
  ScaledTensorView rows = slice(checkpoint.unaligned_view(tensor), range);
  MatrixView matrix;
  matrix.rows = rows.rows;
  matrix.columns = rows.k;
  const std::int64_t count = rows.rows * rows.k;
  if (is_plain(rows.recipe)) {
    const std::int64_t size = element_bytes(rows.recipe);
    const bool widen = as_f32 && rows.recipe != Recipe::f32;
    if (!is_aligned(rows.values, size)) {
      // Behind the place of the widened values, so that one buffer serves both.
      std::byte* copy = Scratch::room(buffer, widen ? (4 + size) * count : size * count);
      if (widen) copy += 4 * count;
      std::memcpy(copy, rows.values, static_cast<std::size_t>(size * count));
      rows.values = copy;
    }
    if (!widen) {
      matrix.data = rows.values;
      matrix.dtype = recipe_traits(rows.recipe).element;
      return matrix;
    }
  }
  const bool swap = checkpoint.parts(tensor).high_nibble_first;
  const std::int64_t codes = swap ? rows.rows * row_bytes(rows.recipe, rows.k) : 0;
  std::byte* values = Scratch::room(buffer, 4 * count + codes);
  if (swap) {
    std::byte* const swapped = values + 4 * count;
    swap_nibbles({static_cast<const std::byte*>(rows.values), static_cast<std::size_t>(codes)},
                 swapped);
    rows.values = swapped;
  }
  const MutableMatrixView widened{values, Format::f32, rows.rows, rows.k};
  dequantize(rows, widened, 1);
  apply_factors(checkpoint, tensor, range, rows.k, reinterpret_cast<float*>(values));
  return widened;
}

MatrixView read_transposed(const StoredCheckpoint& checkpoint, std::size_t tensor,
                           const RowRange& range, Scratch& scratch) {
  ScaledTensorView view = checkpoint.unaligned_view(tensor);
  const RecipeTraits& t = recipe_traits(view.recipe);
  view = slice(view, {range.batch, 0, view.rows});
  // Codes and scales of these columns, packed; then their values behind them.
  const std::int64_t width = row_bytes(view.recipe, range.count);
  const std::int64_t scales = range.count / t.block_k * scale_bytes_of(t.recipe);
  const auto gather = [&](const void* from, std::int64_t whole, std::int64_t part, std::byte* to) {
    const std::int64_t offset = whole * range.begin / view.k;
    for (std::int64_t row = 0; row < view.rows; ++row) {
      std::memcpy(to + row * part, static_cast<const std::byte*>(from) + row * whole + offset,
                  static_cast<std::size_t>(part));
    }
  };
  std::byte* const values = Scratch::room(scratch.rows[0], view.rows * (width + scales));
  gather(view.values, row_bytes(view.recipe, view.k), width, values);
  gather(view.scales, view.k / t.block_k * scale_bytes_of(t.recipe), scales,
         values + view.rows * width);
  view.values = values;
  view.scales = values + view.rows * width;
  view.k = range.count;

  std::byte* const buffer = Scratch::room(scratch.rows[1], 8 * view.rows * range.count);
  auto* const rows = reinterpret_cast<float*>(buffer);
  float* const columns = rows + view.rows * range.count;
  dequantize(view, {rows, Format::f32, view.rows, view.k}, 1);
  for (std::int64_t row = 0; row < view.rows; ++row) {
    for (std::int64_t k = 0; k < view.k; ++k) columns[k * view.rows + row] = rows[row * view.k + k];
  }
  return {columns, Format::f32, view.k, view.rows};
}

std::int64_t transposed_bytes_per_row(const StoredCheckpoint& checkpoint, std::size_t tensor) {
  const MatrixShape shape = matrix_shape(checkpoint.tensors()[tensor].shape);
  return shape.rows * (8 + 2);  // values twice; a byte at most of codes, and less of scales
}

std::int64_t buffer_bytes_per_row(const StoredCheckpoint& checkpoint, std::size_t tensor,
                                  bool as_f32) {
  const CheckpointTensor& t = checkpoint.tensors()[tensor];
  const std::int64_t k = matrix_shape(t.shape).k;
  // Values twice; a byte at most of codes, and less of scales.
  if (checkpoint.parts(tensor).packed_along_rows) return (8 + 2) * k;
  if (t.quantized) {
    return 4 * k + (checkpoint.parts(tensor).high_nibble_first ? row_bytes(t.recipe, k) : 0);
  }
  if (is_narrow_float(t.dtype)) return 4 * k;
  const std::int64_t size = element_bytes(t.recipe);
  const bool widen = as_f32 && t.recipe != Recipe::f32;
  const bool copy = !is_aligned(checkpoint.unaligned_view(tensor).values, size);
  return (widen ? 4 * k : 0) + (copy ? size * k : 0);
}

std::int64_t first_nonfinite(const MatrixView& matrix) {
  const std::int64_t count = matrix.rows * matrix.columns;
  switch (matrix.dtype) {
    case Format::f32:
      return find_nonfinite<std::uint32_t, 0x7FFFFFFFu, 0x00800000u>(matrix.data, count);
    case Format::bf16: return find_nonfinite<std::uint16_t, 0x7FFF, 0x0080>(matrix.data, count);
    default: return find_nonfinite<std::uint16_t, 0x7FFF, 0x0400>(matrix.data, count);
  }
}

std::vector<RowRange> cut_rows(const MatrixShape& shape, std::int64_t rows_per_piece) {
  std::vector<RowRange> ranges;
  // Any number of empty rows or matrices costs a file no byte.
  if (shape.rows == 0 || shape.k == 0) return ranges;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t row = 0; row < shape.rows; row += rows_per_piece) {
      ranges.push_back({b, row, std::min(rows_per_piece, shape.rows - row)});
    }
  }
  return ranges;
}

}  // namespace blockscale::models
