#include "models/safetensors/header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <utility>

#include "models/json_file.h"
#include "models/text.h"

namespace blockscale {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";
constexpr std::size_t kLengthBytes = 8;

/// A tensor as the header states it: `info.bytes` is derived from dtype and shape, the offsets
/// count from the start of the data.
struct StatedTensor {
  TensorInfo info;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// SAX handler that accepts the header's grammar and nothing else:
///   {"__metadata__": {string: string...}, name: {"dtype": string, "shape": [integer...],
///    "data_offsets": [integer, integer]}...}
/// in any order. Nesting is bounded by the grammar itself.
class HeaderHandler {
 public:
  explicit HeaderHandler(const std::string& file) : file_(file) {}

  std::vector<StatedTensor> tensors;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t) {
    switch (where_) {
      case Where::start: where_ = Where::names; return true;
      case Where::names:
        where_ = in_metadata_ ? Where::metadata : Where::tensor;
        field_ = Field::none;
        seen_ = 0;
        return true;
      default: return unexpected("an object");
    }
  }

  bool key(std::string& name) {
    switch (where_) {
      case Where::names: return start_entry(name);
      case Where::metadata: metadata_key_ = std::move(name); return true;
      default: return start_field(name);
    }
  }

  bool end_object() {
    if (where_ == Where::names) {
      where_ = Where::end;
      return true;
    }
    if (where_ == Where::tensor) finish_tensor();
    where_ = Where::names;
    return true;
  }

  bool start_array(std::size_t) {
    if (where_ == Where::tensor && field_ == Field::shape) {
      where_ = Where::shape;
    } else if (where_ == Where::tensor && field_ == Field::data_offsets) {
      where_ = Where::data_offsets;
      offset_count_ = 0;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    if (where_ == Where::data_offsets && offset_count_ != 2) fail_tensor("data_offsets needs two");
    where_ = Where::tensor;
    return true;
  }

  bool string(std::string& value) {
    if (where_ == Where::metadata) {
      if (!metadata.emplace(metadata_key_, std::move(value)).second) {
        fail(quote(kMetadataName) + " names " + quote(metadata_key_) + " more than once");
      }
      return true;
    }
    if (where_ != Where::tensor || field_ != Field::dtype) return unexpected("a string");
    const std::optional<DType> dtype = dtype_from_name(value);
    if (!dtype) fail_tensor("dtype " + quote(value) + " is unknown");
    tensors.back().info.dtype = *dtype;
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (where_ == Where::shape) return add_dimension(value);
    if (where_ != Where::data_offsets) return unexpected("a number");
    if (offset_count_ == 2) fail_tensor("data_offsets has more than two numbers");
    (offset_count_ == 0 ? tensors.back().begin : tensors.back().end) = value;
    ++offset_count_;
    return true;
  }

  bool number_integer(std::int64_t) { return unexpected("a negative number"); }
  bool number_float(double, const std::string& text) {
    return unexpected("the number " + quote(text, 40));
  }
  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool binary(nlohmann::json::binary_t&) { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) {
    fail_json_syntax(file_, position + kLengthBytes, error);
  }

 private:
  enum class Where { start, names, metadata, tensor, shape, data_offsets, end };
  enum class Field { none, dtype, shape, data_offsets };

  bool start_entry(std::string& name) {
    in_metadata_ = name == kMetadataName;
    if (in_metadata_) {
      if (std::exchange(seen_metadata_, true)) fail(quote(kMetadataName) + " appears twice");
      return true;
    }
    if (has_control_character(name)) {
      fail("tensor name " + quote(name) + " holds a control character");
    }
    if (name.size() > kMaxNameBytes) {
      fail("tensor name " + quote(name) + " has more than " + std::to_string(kMaxNameBytes) +
           " bytes");
    }
    tensors.emplace_back().info.name = std::move(name);
    return true;
  }

  bool start_field(const std::string& name) {
    field_ = name == "dtype"          ? Field::dtype
             : name == "shape"        ? Field::shape
             : name == "data_offsets" ? Field::data_offsets
                                      : Field::none;
    if (field_ == Field::none) {
      fail_tensor("unknown field " + quote(name) + "; dtype, shape and data_offsets are allowed");
    }
    const unsigned bit = 1u << static_cast<unsigned>(field_);
    if ((seen_ & bit) != 0) fail_tensor("field " + quote(name) + " appears twice");
    seen_ |= bit;
    return true;
  }

  bool add_dimension(std::uint64_t value) {
    std::vector<std::int64_t>& shape = tensors.back().info.shape;
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail_tensor("dimension " + std::to_string(value) + " exceeds 2^63 - 1");
    }
    if (shape.size() == kMaxRank) {
      fail_tensor("shape has more than " + std::to_string(kMaxRank) + " dimensions");
    }
    shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  void finish_tensor() {
    constexpr unsigned kAllFields = 1u << static_cast<unsigned>(Field::dtype) |
                                    1u << static_cast<unsigned>(Field::shape) |
                                    1u << static_cast<unsigned>(Field::data_offsets);
    if (seen_ != kAllFields) fail_tensor("dtype, shape and data_offsets are all needed");
    StatedTensor& tensor = tensors.back();
    try {
      tensor.info.bytes = tensor_bytes(tensor.info.dtype, tensor.info.shape);
    } catch (const Error& error) {
      fail_tensor(error.what());
    }
    const std::string offsets =
        "data_offsets [" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) + "]";
    if (tensor.begin > tensor.end) fail_tensor(offsets + " run backwards");
    if (tensor.end - tensor.begin != tensor.info.bytes) {
      fail_tensor(offsets + " do not hold the " + std::to_string(tensor.info.bytes) +
                  " bytes of dtype and shape");
    }
  }

  bool unexpected(const std::string& what) const {
    switch (where_) {
      case Where::start:
      case Where::end: fail("the header must be one JSON object, found " + what);
      case Where::metadata:
        fail(quote(kMetadataName) + " must map strings to strings, found " + what);
      case Where::names:
        if (in_metadata_) fail(quote(kMetadataName) + " must be an object, found " + what);
        fail_tensor("must be an object, found " + what);
      case Where::shape: fail_tensor("shape must hold non-negative integers, found " + what);
      case Where::data_offsets:
        fail_tensor("data_offsets must hold non-negative integers, found " + what);
      case Where::tensor: break;
    }
    fail_tensor(field_ == Field::dtype   ? "dtype must be a string, found " + what
                : field_ == Field::shape ? "shape must be an array, found " + what
                                         : "data_offsets must be an array, found " + what);
  }

  [[noreturn]] void fail_tensor(const std::string& reason) const {
    fail("tensor " + quote(tensors.back().info.name) + ": " + reason);
  }
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorCode::corrupt_file, file_, reason);
  }

  const std::string& file_;
  Where where_ = Where::start;
  Field field_ = Field::none;
  unsigned seen_ = 0;  // fields of the current tensor, one bit each
  int offset_count_ = 0;
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
  std::string metadata_key_;
};

/// The JSON text of the header; the data starts right behind it.
std::string_view header_text(std::span<const std::byte> file, const std::string& name) {
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorCode::corrupt_file, name, reason);
  };
  if (file.size() < kLengthBytes) {
    fail("a safetensors file starts with 8 bytes of header length, this one has " +
         std::to_string(file.size()));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::uint64_t{std::to_integer<std::uint8_t>(file[i])} << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    fail("header length " + std::to_string(length) + " exceeds the limit of " +
         std::to_string(kMaxHeaderBytes) + " bytes (not a safetensors file?)");
  }
  if (length > file.size() - kLengthBytes) {
    fail("header length " + std::to_string(length) + " exceeds the file, which holds " +
         std::to_string(file.size() - kLengthBytes) + " bytes after it (truncated?)");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  if (!text.starts_with('{')) fail("the header does not start with '{'");
  return text;
}

/// Refuses overlaps, holes and a last byte that is not the file's.
void check_tiling(const std::vector<StatedTensor>& sorted, std::uint64_t data_bytes,
                  const std::string& file) {
  std::uint64_t position = 0;
  const StatedTensor* previous = nullptr;
  for (const StatedTensor& tensor : sorted) {
    if (tensor.begin != position) {
      const std::string before =
          previous == nullptr ? "the start of the data" : quote(previous->info.name);
      throw Error(ErrorCode::corrupt_file, file,
                  "tensor " + quote(tensor.info.name) + ": starts at byte " +
                      std::to_string(tensor.begin) + " of the data, " +
                      (tensor.begin < position ? "overlapping " : "leaving a hole after ") +
                      before + ", which ends at " + std::to_string(position));
    }
    position = tensor.end;
    previous = &tensor;
  }
  if (position != data_bytes) {
    throw Error(ErrorCode::corrupt_file, file,
                "the tensors take " + std::to_string(position) + " bytes of data, the file holds " +
                    std::to_string(data_bytes) + (position > data_bytes ? " (truncated?)" : ""));
  }
}

/// Indices sorted by name; `fail` is called with a name that appears twice.
template <class NameOf, class Fail>
std::vector<std::uint32_t> sorted_by_name(std::size_t count, NameOf name_of, Fail fail) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name_of(a) < name_of(b); });
  for (std::size_t i = 1; i < count; ++i) {
    if (name_of(order[i - 1]) == name_of(order[i])) fail(name_of(order[i]));
  }
  return order;
}

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump();
}

void check_text(const std::string& text, const std::string& what) {
  if (!is_utf8(text)) {
    throw Error(ErrorCode::invalid_argument, what, quote(text) + " is not valid UTF-8");
  }
}

}  // namespace

SafetensorsHeader parse_header(std::span<const std::byte> file, const std::string& name) {
  const std::string_view text = header_text(file, name);
  check_json_text(text, name, kMaxHeaderBytes);
  HeaderHandler handler(name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);

  std::vector<StatedTensor>& stated = handler.tensors;
  std::sort(stated.begin(), stated.end(), [](const StatedTensor& a, const StatedTensor& b) {
    return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
  });
  const std::uint64_t data_start = kLengthBytes + text.size();

  SafetensorsHeader header;
  header.by_name = sorted_by_name(
      stated.size(), [&](std::uint32_t i) -> const std::string& { return stated[i].info.name; },
      [&](const std::string& twice) {
        throw Error(ErrorCode::corrupt_file, name,
                    "tensor " + quote(twice) + ": the name appears twice");
      });
  check_tiling(stated, file.size() - data_start, name);
  header.tensors.reserve(stated.size());
  header.offsets.reserve(stated.size());
  for (StatedTensor& tensor : stated) {
    header.tensors.push_back(std::move(tensor.info));
    header.offsets.push_back(data_start + tensor.begin);
  }
  header.metadata = std::move(handler.metadata);
  return header;
}

std::string make_header(std::span<const TensorInfo> tensors,
                        const std::map<std::string, std::string>& metadata) {
  for (const TensorInfo& tensor : tensors) {
    check_text(tensor.name, "tensors.name");
    if (has_control_character(tensor.name) || tensor.name == kMetadataName ||
        tensor.name.size() > kMaxNameBytes) {
      throw Error(ErrorCode::invalid_argument, "tensors.name",
                  quote(tensor.name) + " cannot name a tensor: no control characters, at most " +
                      std::to_string(kMaxNameBytes) + " bytes, not __metadata__");
    }
    if (tensor.shape.size() > kMaxRank) {
      throw Error(ErrorCode::invalid_argument, "tensors.shape",
                  quote(tensor.name) + " has " + std::to_string(tensor.shape.size()) +
                      " dimensions, at most " + std::to_string(kMaxRank) + " are allowed");
    }
  }
  sorted_by_name(
      tensors.size(), [&](std::uint32_t i) -> const std::string& { return tensors[i].name; },
      [](const std::string& twice) {
        throw Error(ErrorCode::invalid_argument, "tensors.name", quote(twice) + " appears twice");
      });

  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      check_text(key, "metadata");
      check_text(value, "metadata");
      json += json_string(key) + ":" + json_string(value) + ",";
    }
    json.back() = '}';
    json += ',';
  }
  std::uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    json += json_string(tensor.name) + ":{\"dtype\":\"" + std::string(dtype_name(tensor.dtype)) +
            "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      json += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
    }
    json += "],\"data_offsets\":[" + std::to_string(offset) + ",";
    offset += tensor.bytes;
    json += std::to_string(offset) + "]},";
  }
  if (json.size() > 1) json.pop_back();
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw Error(ErrorCode::invalid_argument, "tensors",
                "their header takes " + std::to_string(json.size()) + " bytes, at most " +
                    std::to_string(kMaxHeaderBytes) + " are allowed");
  }
  std::string header;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    header += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  }
  return header + json;
}

}  // namespace blockscale
