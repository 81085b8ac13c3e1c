#include "models/convert/run.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "blockscale/parallel.h"
#include "models/checkpoint/codes.h"
#include "models/checkpoint/factors.h"
#include "models/convert/layers/tiled_scales.h"
#include "models/safetensors/header.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

/// Bytes of values that a piece reads: small enough for a second-level cache, large enough that
/// a system call to write its result costs little.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
constexpr std::uint64_t kCopyBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kScalesPerPiece = std::uint64_t{1} << 18;
constexpr std::size_t kSwapBytes = std::size_t{1} << 18;
/// Source bytes between two barriers of the workers. NVFP4 reads them twice, the second time from
/// the page cache.
constexpr std::uint64_t kWaveBytes = std::uint64_t{256} << 20;

/// Starts reading pages that will be needed soon; a hint, so failures do not matter.
void prefetch(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t into_page = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  void* const begin = const_cast<std::byte*>(bytes.data() - into_page);
  ::madvise(begin, bytes.size() + into_page, MADV_WILLNEED);
}

/// Of the scales in the result.
ScaleLayout layout_of(const PlannedTensor& planned) {
  return planned.parts.size() > 1 ? planned.parts[1].layout : ScaleLayout::row_major;
}

const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};

}  // namespace

std::uint64_t file_bytes(const PlannedShard& shard) {
  std::uint64_t bytes = make_header(shard.tensors, kMetadata).size();
  for (const TensorInfo& tensor : shard.tensors) bytes += tensor.bytes;
  return bytes;
}

ConvertRun::ConvertRun(const Plan& plan, const ConvertOptions& options)
    : plan_(plan), source_(*plan.source), options_(options), scales_(plan.groups.size()) {
  // The other half is for what grows with the number of tensors, not with their size.
  const std::int64_t budget = static_cast<std::int64_t>(
      std::min<std::uint64_t>(options.memory_bytes / 2, std::uint64_t{1} << 50));
  std::int64_t largest = 1;
  const PlannedTensor* needs_most = nullptr;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.method != Method::requantize) continue;
    const std::int64_t rows = std::min<std::int64_t>(128, piece_shape(planned).rows);
    const std::int64_t bytes = piece_bytes(planned, rows);
    if (bytes > largest) needs_most = &planned;
    largest = std::max(largest, bytes);
  }
  if (largest > budget) {
    throw Error(ErrorCode::invalid_argument, "memory_bytes",
                "is " + std::to_string(options.memory_bytes) + ", must be at least " +
                    std::to_string(2 * largest) + " for " + quote(source_tensor(*needs_most).name));
  }
  workers_ = static_cast<int>(
      std::min<std::int64_t>(effective_threads(options.threads), budget / largest));
  worker_bytes_ = budget / workers_;
  progress_.source_bytes_total = plan.source_bytes;
}

/// The matrices that are cut into pieces by rows: the source's, or those of a transposed result.
MatrixShape ConvertRun::piece_shape(const PlannedTensor& planned) const {
  MatrixShape shape = matrix_shape(source_tensor(planned).shape);
  if (planned.transposed) std::swap(shape.rows, shape.k);
  return shape;
}

bool ConvertRun::keeps_blocks(const PlannedTensor& planned) const {
  return planned.group >= 0 && plan_.groups[static_cast<std::size_t>(planned.group)].keeps_blocks;
}

/// Of the tensor scale, a power of two, of a group that keeps its blocks.
int ConvertRun::tensor_exponent(const PlannedTensor& planned) const {
  const int exponent = std::ilogb(scales_[static_cast<std::size_t>(planned.group)][0]);
  return plan_.destination->sense == TensorScaleSense::multiplier ? exponent : -exponent;
}

/// Memory of a worker for a piece of this many rows.
std::int64_t ConvertRun::piece_bytes(const PlannedTensor& planned, std::int64_t rows) const {
  const std::int64_t k = piece_shape(planned).k;
  const ScaleGrid grid = scale_grid(planned.recipe, rows, k);
  const std::int64_t read = planned.transposed
                                ? transposed_bytes_per_row(source_, planned.source)
                                : buffer_bytes_per_row(source_, planned.source, false);
  const ScaleLayout layout = layout_of(planned);
  return rows * read + rows * row_bytes(planned.recipe, k) +
         grid.rows * grid.columns * scale_bytes_of(planned.recipe) +
         (is_swizzled(layout) ? tiled_bytes(layout, grid.rows, grid.columns) : 0);
}

/// A multiple of the rows that share a scale, in the source or the result, or a tile of scales.
std::int64_t ConvertRun::rows_per_piece(const PlannedTensor& planned) const {
  const CheckpointTensor& tensor = source_tensor(planned);
  const std::int64_t k = std::max<std::int64_t>(1, piece_shape(planned).k);
  const RecipeTraits& from = recipe_traits(tensor.recipe);
  const bool along_rows = planned.transposed || source_.parts(planned.source).packed_along_rows;
  const std::int64_t step = std::max({along_rows ? from.block_k : from.block_rows,
                                      recipe_traits(planned.recipe).block_rows,
                                      scale_layout_traits(layout_of(planned)).tile_rows});
  const std::int64_t per_row = std::max<std::int64_t>(1, piece_bytes(planned, step) / step);
  const std::int64_t wanted = std::min(kPieceBytes / (4 * k), worker_bytes_ / per_row);
  return std::max(step, wanted / step * step);
}

std::vector<std::vector<std::size_t>> ConvertRun::waves(const PlannedShard& shard) const {
  std::vector<std::vector<std::size_t>> result;
  std::uint64_t filled = 0;
  for (const std::size_t weight : shard.weights) {
    const std::uint64_t bytes = source_tensor(plan_.tensors[weight]).bytes;
    if (result.empty() || filled + bytes > kWaveBytes) {
      result.emplace_back();
      filled = 0;
    }
    result.back().push_back(weight);
    filled += bytes;
  }
  return result;
}

void ConvertRun::run_shard(std::size_t shard, const Folder& folder, mode_t mode) {
  const PlannedShard& planned = plan_.shards[shard];
  SafetensorsWriter writer(folder, planned.file, planned.tensors, kMetadata, mode);
  const auto all_waves = waves(planned);
  const auto prefetch_wave = [&](std::size_t wave) {
    if (wave >= all_waves.size()) return;
    for (const std::size_t weight : all_waves[wave]) {
      const WeightParts& parts = source_.parts(plan_.tensors[weight].source);
      prefetch(source_.store().data(*parts.values));
    }
  };
  prefetch_wave(0);
  for (std::size_t wave = 0; wave < all_waves.size(); ++wave) {
    prefetch_wave(wave + 1);
    find_scales(all_waves[wave]);
    std::vector<Piece> pieces;
    for (const std::size_t weight : all_waves[wave]) {
      write_factors(plan_.tensors[weight], writer);
      const std::vector<Piece> more = cut(weight);
      pieces.insert(pieces.end(), more.begin(), more.end());
    }
    parallel_for(static_cast<std::int64_t>(pieces.size()), 1, workers_,
                 [&](std::int64_t i, std::int64_t) {
                   run_piece(pieces[static_cast<std::size_t>(i)], writer);
                 });
    // In the order of pieces: the same sums for any number of threads.
    for (const Piece& piece : pieces) {
      if (keeps_blocks(plan_.tensors[piece.weight])) {
        BlockCount& count = blocks_[piece.weight];
        count.exact += piece.blocks.exact;
        count.all += piece.blocks.all;
      }
      if (!searches_scales(options_, plan_.tensors[piece.weight])) continue;
      ScaleErrors& sums = scale_errors_[piece.weight];
      sums.amax += piece.errors.amax;
      sums.chosen += piece.errors.chosen;
    }
    for (const std::size_t weight : all_waves[wave]) source_.drop(plan_.tensors[weight].source);
  }
  writer.publish();
  settle(shard);
}

void ConvertRun::skip_shard(std::size_t shard) {
  settle(shard);
}

/// Counts what is left of a shard's source bytes: factors, and what division by rows dropped.
void ConvertRun::settle(std::size_t shard) {
  const std::vector<std::size_t>& weights = plan_.shards[shard].weights;
  if (weights.empty()) return;
  for (const std::size_t weight : weights) settled_ += source_tensor(plan_.tensors[weight]).bytes;
  report(settled_ - progress_.source_bytes_done, source_tensor(plan_.tensors[weights.back()]).name);
}

/// The first pass over the groups of a wave whose scales are not known yet: amax of every member,
/// those in other shards included.
void ConvertRun::find_scales(const std::vector<std::size_t>& wave) {
  struct Task {
    std::size_t group, weight;
    RowRange rows;
    float amax = 0;
    std::optional<int> exponent = {};  // the largest, of a group that keeps its blocks
  };
  std::vector<Task> tasks;
  for (const std::size_t weight : wave) {
    const int group = plan_.tensors[weight].group;
    if (group < 0 || !scales_[static_cast<std::size_t>(group)].empty()) continue;
    const std::size_t g = static_cast<std::size_t>(group);
    const PlannedTensor& first = plan_.tensors[weight];
    const MatrixShape shape = matrix_shape(source_tensor(first).shape);
    const bool one = first.recipe == Recipe::nvfp4;
    scales_[g].assign(one ? 1 : static_cast<std::size_t>(shape.batch), 0.0f);
    for (const std::size_t member : plan_.groups[g].members) {
      const PlannedTensor& planned = plan_.tensors[member];
      const MatrixShape member_shape = matrix_shape(source_tensor(planned).shape);
      for (const RowRange& rows : cut_rows(member_shape, rows_per_piece(planned))) {
        tasks.push_back({g, member, rows});
      }
    }
  }
  parallel_for(static_cast<std::int64_t>(tasks.size()), 1, workers_,
               [&](std::int64_t i, std::int64_t) {
                 Task& task = tasks[static_cast<std::size_t>(i)];
                 const PlannedTensor& planned = plan_.tensors[task.weight];
                 ScratchPool::Lease scratch(scratch_);
                 const MatrixView rows =
                     read_rows(source_, planned.source, task.rows, false, (*scratch).rows[0]);
                 check_finite(planned, task.rows, rows, "");
                 if (keeps_blocks(planned)) {
                   task.exponent =
                       largest_exponent(slice(source_.unaligned_view(planned.source), task.rows));
                 } else {
                   absolute_maximum(rows, &task.amax, 1);
                 }
                 report(0, source_tensor(planned).name);
               });
  std::vector<std::size_t> found;
  std::map<std::size_t, std::optional<int>> exponents;
  for (const Task& task : tasks) {
    Scales& scales = scales_[task.group];
    float& amax = scales[scales.size() == 1 ? 0 : static_cast<std::size_t>(task.rows.batch)];
    amax = std::max(amax, task.amax);
    exponents[task.group] = std::max(exponents[task.group], task.exponent);
    if (found.empty() || found.back() != task.group) found.push_back(task.group);
  }
  for (const std::size_t group : found) {
    const Recipe recipe = plan_.tensors[plan_.groups[group].members[0]].recipe;
    if (plan_.groups[group].keeps_blocks) {
      const int exponent = exact_tensor_exponent(exponents[group]);
      const bool inverse = plan_.destination->sense == TensorScaleSense::divisor;
      scales_[group][0] = std::ldexp(1.0f, inverse ? -exponent : exponent);
      continue;
    }
    for (float& scale : scales_[group]) {
      scale = recipe == Recipe::nvfp4 ? nvfp4_factor(scale, plan_.destination->sense)
                                      : fp8_scale(scale, options_.fp8_amax_floor);
    }
  }
}

void ConvertRun::check_finite(const PlannedTensor& planned, const RowRange& range,
                              const MatrixView& matrix, const char* after) const {
  if (options_.allow_nonfinite) return;
  const std::int64_t index = first_nonfinite(matrix);
  if (index < 0) return;
  const CheckpointTensor& tensor = source_tensor(planned);
  std::string where = tensor.shape.size() > 2 ? std::to_string(range.batch) + ", " : "";
  std::int64_t row = range.begin + index / matrix.columns, column = index % matrix.columns;
  if (planned.transposed) std::swap(row, column);
  where += std::to_string(row) + ", " + std::to_string(column);
  throw Error(ErrorCode::nonfinite, tensor.name,
              "holds NaN or infinity at [" + where + "]" + after +
                  "; allow_nonfinite converts it by the rules of docs/numerics.md");
}

std::vector<ConvertRun::Piece> ConvertRun::cut(std::size_t weight) const {
  const PlannedTensor& planned = plan_.tensors[weight];
  std::vector<Piece> pieces;
  if (planned.method == Method::requantize) {
    for (const RowRange& rows : cut_rows(piece_shape(planned), rows_per_piece(planned))) {
      pieces.push_back({.weight = weight, .rows = rows});
    }
    return pieces;
  }
  for (std::size_t part = 0; part < planned.parts.size(); ++part) {
    const TensorStore::Entry* stored = stored_part(planned, part);
    if (stored == nullptr) continue;  // written by write_factors
    const bool scales = changes_scale_format(planned, planned.parts[part].part);
    const std::uint64_t size = static_cast<std::uint64_t>(scale_bytes_of(planned.recipe));
    std::uint64_t count = scales ? planned.parts[part].info.bytes / size : stored->info.bytes;
    std::uint64_t step = scales ? kScalesPerPiece : kCopyBytes;
    if (scales && is_swizzled(layout_of(planned))) {  // whole rows of tiles
      const MatrixShape shape = matrix_shape(source_tensor(planned).shape);
      const ScaleGrid grid = scale_grid(planned.recipe, shape.rows, shape.k);
      const auto row = static_cast<std::uint64_t>(
          scale_layout_traits(layout_of(planned)).tile_rows * grid.columns);
      count = static_cast<std::uint64_t>(grid.rows * grid.columns);
      step = std::max<std::uint64_t>(1, step / row) * row;
    }
    for (std::uint64_t begin = 0; begin < count; begin += step) {
      pieces.push_back({weight, {}, part, begin, std::min(count, begin + step)});
    }
  }
  return pieces;
}

/// The source of a part that is carried over, or null if the part is a converted factor.
const TensorStore::Entry* ConvertRun::stored_part(const PlannedTensor& planned,
                                                  std::size_t part) const {
  if (planned.method == Method::verbatim) return planned.stored[part];
  const WeightParts& parts = source_.parts(planned.source);
  switch (planned.parts[part].part) {
    case Part::values: return parts.values;
    case Part::scales: return parts.scales;
    default: return nullptr;
  }
}

/// Whether scales are stored in other bytes than the source's: ue8m0 and f32, widened from bf16, or
/// in another order.
bool ConvertRun::changes_scale_format(const PlannedTensor& planned, Part part) const {
  if (planned.method != Method::transfer || part != Part::scales) return false;
  const WeightParts& parts = source_.parts(planned.source);
  return parts.scale_copy >= 0 || parts.scale_layout != ScaleLayout::row_major ||
         layout_of(planned) != ScaleLayout::row_major ||
         recipe_traits(source_tensor(planned).recipe).scale != recipe_traits(planned.recipe).scale;
}

void ConvertRun::run_piece(Piece& piece, SafetensorsWriter& writer) {
  const PlannedTensor& planned = plan_.tensors[piece.weight];
  const CheckpointTensor& tensor = source_tensor(planned);
  ScratchPool::Lease scratch(scratch_);
  if (planned.method != Method::requantize) {
    carry_over(piece, *scratch, writer);
    const bool counts_bytes = !changes_scale_format(planned, planned.parts[piece.part].part);
    report(counts_bytes ? piece.end - piece.begin : 0, tensor.name);
    return;
  }
  if (!planned.transposed) check_scales(planned, piece.rows);
  if (planned.quantized) {
    requantize(piece, *scratch, writer);
  } else {
    round_to_plain(planned, piece.rows, *scratch, writer);
  }
  const MatrixShape shape = piece_shape(planned);
  const std::uint64_t row = tensor.bytes / static_cast<std::uint64_t>(shape.batch * shape.rows);
  report(row * static_cast<std::uint64_t>(piece.rows.count), tensor.name);
}

/// Block scales of rows of a quantized source.
void ConvertRun::check_scales(const PlannedTensor& planned, const RowRange& range) const {
  const WeightParts& parts = source_.parts(planned.source);
  if (parts.factor_block.rows != 0) {
    const std::span<const float> factors = source_.channel_factors(planned.source, range.batch);
    check_not_negative(factors.data(), Format::f32, 0, std::ssize(factors),
                       parts.channel_factors->info.name);
  }
  const TensorStore::Entry* const scales = parts.scales;
  if (scales == nullptr) return;
  if (parts.packed_along_rows) {
    const ScaledTensorView view = source_.unaligned_view(planned.source);
    const RecipeTraits& t = recipe_traits(view.recipe);
    const std::int64_t first = (range.batch * view.rows + range.begin) / t.block_k;
    check_not_negative(view.scales, t.scale, first * view.k, range.count / t.block_k * view.k,
                       scales->info.name);
    return;
  }
  const ScaledTensorView rows = slice(source_.unaligned_view(planned.source), range);
  const ScaleGrid grid = scale_grid(rows.recipe, rows.rows, rows.k);
  check_not_negative(rows.scales, recipe_traits(rows.recipe).scale, 0, grid.rows * grid.columns,
                     scales->info.name);
}

void ConvertRun::requantize(Piece& piece, Scratch& scratch, SafetensorsWriter& writer) {
  const PlannedTensor& planned = plan_.tensors[piece.weight];
  const RowRange& range = piece.rows;
  const MatrixView rows = read_rows(source_, planned.source, range, false, scratch.rows[0]);
  const MatrixShape shape = matrix_shape(source_tensor(planned).shape);
  const RecipeTraits& t = recipe_traits(planned.recipe);
  const ScaleGrid grid = scale_grid(planned.recipe, range.count, shape.k);
  const std::int64_t row = row_bytes(planned.recipe, shape.k);
  const std::int64_t scale = scale_bytes_of(planned.recipe);

  MutableScaledTensorView out;
  out.recipe = planned.recipe;
  out.rows = range.count;
  out.k = shape.k;
  out.values = Scratch::room(scratch.values, range.count * row);
  out.scales = Scratch::room(scratch.scales, grid.rows * grid.columns * scale);
  QuantizeOptions options;
  options.mx_scale_mode =
      options_.mx_scale_mode.value_or(plan_.destination->mx_scale_mode(planned.recipe));
  options.fp8_amax_floor = options_.fp8_amax_floor;
  options.threads = 1;
  if (searches_scales(options_, planned)) {
    options.scale_choice = options_.scales;
    options.scale_errors = &piece.errors;
    if (planned.channel_weights) options.channel_weights = planned.channel_weights->data();
    if (planned.channel_means) options.channel_means = planned.channel_means->data();
  }
  float factor = 0;
  if (planned.group >= 0) {
    const Scales& scales = scales_[static_cast<std::size_t>(planned.group)];
    factor = scales[scales.size() == 1 ? 0 : static_cast<std::size_t>(range.batch)];
    options.scale_source = ScaleSource::given;
    if (t.tensor_scale) {
      out.tensor_scale = &factor;
      out.sense = plan_.destination->sense;
    } else {
      std::memcpy(out.scales, &factor, sizeof factor);
    }
  } else {
    check_finite(planned, range, rows, "");
  }
  quantize(rows, out, options);
  if (keeps_blocks(planned)) {
    piece.blocks = keep_exact_blocks(slice(source_.unaligned_view(planned.source), range),
                                     tensor_exponent(planned), static_cast<std::byte*>(out.values),
                                     static_cast<std::byte*>(out.scales));
  }

  const std::int64_t first_row = range.batch * shape.rows + range.begin;
  const auto bytes = [](const void* data, std::int64_t size) {
    return std::span(static_cast<const std::byte*>(data), static_cast<std::size_t>(size));
  };
  writer.write(planned.slots[0], static_cast<std::uint64_t>(first_row * row),
               bytes(out.values, range.count * row));
  if (t.block_rows == 0) return;  // a scale a matrix: written by write_factors
  const ScaleGrid whole = scale_grid(planned.recipe, shape.rows, shape.k);
  write_scales(planned, range.batch * whole.rows + range.begin / t.block_rows, grid,
               static_cast<const std::byte*>(out.scales), scratch, writer);
}

/// Rows of scales, as many as `grid` has, of which the first is row `first` of the weight's; in
/// tiles it begins a row of them.
void ConvertRun::write_scales(const PlannedTensor& planned, std::int64_t first,
                              const ScaleGrid& grid, const std::byte* scales, Scratch& scratch,
                              SafetensorsWriter& writer) const {
  const ScaleLayout layout = layout_of(planned);
  const auto write = [&](std::int64_t offset, const std::byte* data, std::int64_t bytes) {
    writer.write(planned.slots[1], static_cast<std::uint64_t>(offset),
                 std::span(data, static_cast<std::size_t>(bytes)));
  };
  if (!is_swizzled(layout)) {
    const std::int64_t row = grid.columns * scale_bytes_of(planned.recipe);
    write(first * row, scales, grid.rows * row);
    return;
  }
  const std::int64_t bytes = tiled_bytes(layout, grid.rows, grid.columns);
  std::byte* const tiles = Scratch::room(scratch.tiles, bytes);
  fill_tiles(layout, scales, grid.rows, grid.columns, tiles);
  write(tiled_bytes(layout, first, grid.columns), tiles, bytes);
}

void ConvertRun::round_to_plain(const PlannedTensor& planned, const RowRange& range,
                                Scratch& scratch, SafetensorsWriter& writer) {
  const MatrixShape shape = piece_shape(planned);
  const std::int64_t row = row_bytes(planned.recipe, shape.k);
  const MatrixView rows = planned.transposed
                              ? read_transposed(source_, planned.source, range, scratch)
                              : read_rows(source_, planned.source, range, false, scratch.rows[0]);
  check_finite(planned, range, rows, "");
  MutableMatrixView out;
  out.data = Scratch::room(scratch.values, range.count * row);
  out.dtype = recipe_traits(planned.recipe).element;
  out.rows = range.count;
  out.columns = shape.k;
  dequantize(as_scaled(rows), out, 1);
  check_finite(planned, range, out, " once rounded");
  writer.write(planned.slots[0],
               static_cast<std::uint64_t>((range.batch * shape.rows + range.begin) * row),
               std::span(static_cast<const std::byte*>(out.data),
                         static_cast<std::size_t>(range.count * row)));
}

/// Bytes with their 4-bit codes exchanged, through little memory.
void ConvertRun::write_swapped(std::span<const std::byte> bytes, std::size_t slot,
                               std::uint64_t offset, Scratch& scratch, SafetensorsWriter& writer) {
  while (!bytes.empty()) {
    const std::span<const std::byte> some = bytes.first(std::min(bytes.size(), kSwapBytes));
    std::byte* const out = Scratch::room(scratch.values, static_cast<std::int64_t>(some.size()));
    swap_nibbles(some, out);
    writer.write(slot, offset, std::span(out, some.size()));
    offset += some.size();
    bytes = bytes.subspan(some.size());
  }
}

void ConvertRun::carry_over(const Piece& piece, Scratch& scratch, SafetensorsWriter& writer) {
  const PlannedTensor& planned = plan_.tensors[piece.weight];
  const TensorStore::Entry& stored = *stored_part(planned, piece.part);
  const Recipe from = source_tensor(planned).recipe;
  if (!changes_scale_format(planned, planned.parts[piece.part].part)) {
    const std::span<const std::byte> data = source_.store().data(stored);
    if (planned.method == Method::transfer && planned.parts[piece.part].part == Part::scales) {
      const std::int64_t size = scale_bytes_of(from);
      check_not_negative(source_.unaligned_view(planned.source).scales, recipe_traits(from).scale,
                         static_cast<std::int64_t>(piece.begin) / size,
                         static_cast<std::int64_t>(piece.end - piece.begin) / size,
                         stored.info.name);
    }
    const std::span<const std::byte> bytes = data.subspan(piece.begin, piece.end - piece.begin);
    const bool swap = planned.method == Method::transfer &&
                      planned.parts[piece.part].part == Part::values &&
                      source_.parts(planned.source).high_nibble_first;
    if (swap) {
      write_swapped(bytes, planned.slots[piece.part], piece.begin, scratch, writer);
    } else {
      writer.write(planned.slots[piece.part], piece.begin, bytes);
    }
    return;
  }
  const std::uint64_t size = static_cast<std::uint64_t>(scale_bytes_of(planned.recipe));
  const std::uint64_t bytes = (piece.end - piece.begin) * size;
  std::byte* out = Scratch::room(scratch.scales, static_cast<std::int64_t>(bytes));
  convert_scales(source_.unaligned_view(planned.source).scales, recipe_traits(from).scale,
                 recipe_traits(planned.recipe).scale, static_cast<std::int64_t>(piece.begin),
                 static_cast<std::int64_t>(piece.end), stored.info.name, out);
  if (is_swizzled(layout_of(planned))) {
    const MatrixShape shape = matrix_shape(source_tensor(planned).shape);
    ScaleGrid rows = scale_grid(planned.recipe, shape.rows, shape.k);
    rows.rows = static_cast<std::int64_t>(piece.end - piece.begin) / rows.columns;
    write_scales(planned, static_cast<std::int64_t>(piece.begin) / rows.columns, rows, out, scratch,
                 writer);
    return;
  }
  writer.write(planned.slots[piece.part], piece.begin * size,
               std::span(out, static_cast<std::size_t>(bytes)));
}

void ConvertRun::report(std::uint64_t source_bytes, const std::string& tensor) {
  if (!options_.progress) return;
  const std::lock_guard lock(progress_mutex_);
  progress_.source_bytes_done += source_bytes;
  progress_.tensor = tensor;
  stopped_ = stopped_ || !options_.progress(progress_);
  if (stopped_) {
    throw Error(ErrorCode::interrupted, "convert", "was stopped at " + quote(tensor));
  }
}

}  // namespace blockscale::models
