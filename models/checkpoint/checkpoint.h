// A checkpoint as the library itself sees it: the store, and for each weight the tensors that hold
// its parts. `Checkpoint` of the public API wraps it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/convert.h"
#include "models/checkpoint/side_tensors.h"
#include "models/dialects/dialect.h"

namespace blockscale::models {

/// The parts of one weight; of a plain tensor only `values`. Pointers go into the store.
struct WeightParts {
  const TensorStore::Entry* values = nullptr;
  const TensorStore::Entry* scales = nullptr;
  const TensorStore::Entry* tensor_scale = nullptr;
  const TensorStore::Entry* input_scale = nullptr;
  const TensorStore::Entry* alpha = nullptr;  // FoundWeight's
  const TensorStore::Entry* channel_factors = nullptr;
  TensorScaleSense sense = TensorScaleSense::divisor;
  InputScale input_kind = InputScale::factor;
  ScaleLayout scale_layout = ScaleLayout::row_major;
  bool tensor_scale_is_alpha = false;  // FoundWeight's
  bool high_nibble_first = false;
  BlockSize factor_block = {};     // of channel_factors
  bool packed_along_rows = false;  // StoredWeight's
  IntegerForm integers = {};       // likewise, and its parts:
  std::array<const TensorStore::Entry*, std::tuple_size_v<decltype(IntegerForm::parts)>>
      integer_parts = {};
  /// Index into `copies` of scales that cannot be used in place, or -1.
  int scale_copy = -1;
  int tensor_scale_copy = -1;
  int channel_copy = -1;

  /// Each part that is stored.
  std::vector<const TensorStore::Entry*> stored() const;
};

/// A tensor scale that means nothing.
struct ScaleProblem {
  std::string tensor;   // the tensor that holds it
  std::string message;  // "is nan, must be finite and above 0"
};

class StoredCheckpoint {
 public:
  static std::shared_ptr<const StoredCheckpoint> open(const std::filesystem::path& file_or_folder);
  /// Of a store that is open, or that has no data (header_store).
  static std::shared_ptr<const StoredCheckpoint> of(TensorStore opened, SourceConfig config);

  const TensorStore& store() const { return store_; }
  const SourceConfig& config() const { return config_; }
  const DialectTraits& dialect() const { return *dialect_; }
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  const WeightParts& parts(std::size_t tensor) const { return parts_[tensor]; }
  const CheckpointTensor* find(std::string_view name) const;
  std::size_t index_of(const CheckpointTensor& tensor) const;

  /// Whether `tensor` has floating-point values that `view` can show.
  static bool has_view(const CheckpointTensor& tensor);
  /// Whether `read_rows` reads its values: those, and plain ones in 8-bit floats.
  static bool has_values(const CheckpointTensor& tensor);
  /// Throws unsupported if it has not, or is in another form, or if its values are misaligned in
  /// the file. Scales are as they are stored. Codes with the first one in the high bits are in a
  /// copy.
  ScaledTensorView view(std::size_t tensor) const;
  /// The same whatever the alignment of the values, and without the factors of columns: for
  /// readers that go through `read_rows`, which alone reads what is packed along rows. Scales are
  /// row_major, in a copy that lives until `drop` where they are stored otherwise. Codes are as
  /// they are stored (`high_nibble_first`).
  ScaledTensorView unaligned_view(std::size_t tensor) const;
  /// One, or one for each matrix; empty if the weight has none.
  std::span<const float> tensor_scales(std::size_t tensor) const;
  /// Of the blocks of matrix `batch` (one row of the k columns, if a factor is a column's); empty
  /// if the weight has none.
  std::span<const float> channel_factors(std::size_t tensor, std::int64_t batch) const;
  /// Whether an input scale of `tensor` is that of inputs that calibration never saw: an absmax of
  /// 0, or what was never written.
  bool has_unused_inputs(std::size_t tensor) const;
  /// Input scales as a dialect of this sense stores them; 1 for those of unused inputs.
  std::vector<float> input_factors(std::size_t tensor, TensorScaleSense sense) const;

  /// What `tensor` is for the quantization of others. None of a plain checkpoint, and scales of
  /// activations only beside a weight: a model may have parameters of such names.
  SideTensor side(std::size_t tensor) const;
  /// Values of a tensor of factors (f32, bf16 or f16), in f32.
  std::vector<float> factors(const TensorStore::Entry& entry) const;
  /// The first scale of a whole matrix, tensor or activation of this weight that is not finite and
  /// above 0.
  std::optional<ScaleProblem> scale_problem(std::size_t tensor) const;

  /// Gives the mapped pages of the tensor's parts, and its view's copy of scales, back.
  void drop(std::size_t tensor) const;

 private:
  void add_weight(const StoredWeight& weight);
  void add_plain(const TensorStore::Entry& entry);
  int copy_of_factors(const TensorStore::Entry* entry, bool widen);
  int add_copy(std::vector<float> values);
  ScaledTensorView stored_view(std::size_t tensor) const;
  const std::byte* row_major_scales(std::size_t tensor) const;
  const std::byte* low_nibble_first(std::size_t tensor) const;

  TensorStore store_;
  SourceConfig config_;
  const DialectTraits* dialect_ = nullptr;
  std::vector<CheckpointTensor> tensors_;  // sorted by name
  std::vector<WeightParts> parts_;         // of tensors_
  std::vector<std::vector<float>> copies_;

  mutable std::mutex row_major_mutex_;  // guards what follows
  mutable std::map<std::size_t, std::vector<std::byte>> row_major_scales_;
  mutable std::map<std::size_t, std::vector<std::byte>> low_nibble_first_;  // of views
};

/// What the two documents, null where absent, say of quantization. Throws corrupt_file naming
/// `config_path`.
SourceConfig make_source_config(Json config, Json hf_quant_config, std::string config_path);

/// The configuration files beside a checkpoint, parsed with every limit of json_file.h.
SourceConfig read_source_config(const std::filesystem::path& folder);

/// Shape as a batch of matrices: the last two dimensions are rows and k, one is a row, none a
/// number.
struct MatrixShape {
  std::int64_t batch = 1;
  std::int64_t rows = 1;
  std::int64_t k = 1;
};
MatrixShape matrix_shape(const std::vector<std::int64_t>& shape);

}  // namespace blockscale::models
