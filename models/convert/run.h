// Carries a plan out, shard by shard: reads rows over the mapping, quantizes and writes them piece
// by piece on all threads, in memory that the options bound.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "blockscale/convert.h"
#include "blockscale/files.h"
#include "models/checkpoint/rows.h"
#include "models/convert/layers/exact_blocks.h"
#include "models/convert/plan.h"

namespace blockscale::models {

/// Size of a shard on the disk.
std::uint64_t file_bytes(const PlannedShard& shard);

class ConvertRun {
 public:
  /// Throws invalid_argument (memory_bytes) if the options leave too little for some tensor.
  ConvertRun(const Plan& plan, const ConvertOptions& options);

  /// Writes and publishes one shard in `folder`, with permissions of `mode` that the umask allows.
  /// Throws nonfinite, interrupted, io, corrupt_file.
  void run_shard(std::size_t shard, const Folder& folder, mode_t mode);
  /// Counts a shard that was there already.
  void skip_shard(std::size_t shard);
  /// What was gained by searching the scales of each of the plan's tensors that this run wrote.
  const std::map<std::size_t, ScaleErrors>& scale_errors() const { return scale_errors_; }
  /// How many blocks were kept, of each of the plan's tensors that this run wrote.
  const std::map<std::size_t, BlockCount>& blocks() const { return blocks_; }

 private:
  /// A piece of work for one thread: rows to quantize, or bytes (or scales) of a part to carry
  /// over.
  struct Piece {
    std::size_t weight = 0;  // index into Plan::tensors
    RowRange rows;           // of `requantize`
    std::size_t part = 0;    // of the other methods
    std::uint64_t begin = 0;
    std::uint64_t end = 0;    // bytes, or scales where they change their format
    ScaleErrors errors = {};  // of searched scales
    BlockCount blocks = {};   // of a group that keeps them
  };
  /// Scales of a group: one of NVFP4, one a matrix of fp8_tensor. Empty until they are known.
  using Scales = std::vector<float>;

  MatrixShape piece_shape(const PlannedTensor& planned) const;
  bool keeps_blocks(const PlannedTensor& planned) const;
  int tensor_exponent(const PlannedTensor& planned) const;
  std::int64_t rows_per_piece(const PlannedTensor& planned) const;
  std::int64_t piece_bytes(const PlannedTensor& planned, std::int64_t rows) const;
  std::vector<std::vector<std::size_t>> waves(const PlannedShard& shard) const;

  void find_scales(const std::vector<std::size_t>& wave);
  void check_finite(const PlannedTensor& planned, const RowRange& range, const MatrixView& matrix,
                    const char* after) const;

  std::vector<Piece> cut(std::size_t weight) const;
  void run_piece(Piece& piece, SafetensorsWriter& writer);
  void check_scales(const PlannedTensor& planned, const RowRange& range) const;
  void requantize(Piece& piece, Scratch& scratch, SafetensorsWriter& writer);
  void round_to_plain(const PlannedTensor& planned, const RowRange& range, Scratch& scratch,
                      SafetensorsWriter& writer);
  void carry_over(const Piece& piece, Scratch& scratch, SafetensorsWriter& writer);
  static void write_swapped(std::span<const std::byte> bytes, std::size_t slot,
                            std::uint64_t offset, Scratch& scratch, SafetensorsWriter& writer);
  void write_scales(const PlannedTensor& planned, std::int64_t first, const ScaleGrid& grid,
                    const std::byte* scales, Scratch& scratch, SafetensorsWriter& writer) const;
  void write_factors(const PlannedTensor& planned, SafetensorsWriter& writer) const;
  std::vector<float> factors_of(const PlannedTensor& planned, Part part, std::size_t count) const;
  float alpha_of(const PlannedTensor& planned) const;
  bool changes_scale_format(const PlannedTensor& planned, Part part) const;
  const TensorStore::Entry* stored_part(const PlannedTensor& planned, std::size_t part) const;

  void settle(std::size_t shard);
  void report(std::uint64_t source_bytes, const std::string& tensor);
  const CheckpointTensor& source_tensor(const PlannedTensor& planned) const {
    return source_.tensors()[planned.source];
  }

  const Plan& plan_;
  const StoredCheckpoint& source_;
  const ConvertOptions& options_;
  int workers_ = 1;
  std::int64_t worker_bytes_ = 0;
  ScratchPool scratch_;
  std::vector<Scales> scales_;  // of plan_.groups
  std::map<std::size_t, ScaleErrors> scale_errors_;
  std::map<std::size_t, BlockCount> blocks_;
  std::uint64_t settled_ = 0;  // source bytes of the shards that are done

  std::mutex progress_mutex_;  // guards what follows
  ConvertProgress progress_;
  bool stopped_ = false;
};

}  // namespace blockscale::models
