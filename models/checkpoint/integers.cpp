#include "models/checkpoint/integers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>

#include "models/checkpoint/rotation.h"

namespace blockscale::models {
namespace {

/// The numbers of a tensor, wherever it begins: f32, f16, bf16, or e4m3 of any dtype of a byte.
class Floats {
 public:
  Floats(const StoredCheckpoint& checkpoint, const TensorStore::Entry* entry) {
    if (entry == nullptr) return;
    dtype_ = entry->info.dtype;
    bytes_ = checkpoint.store().data(*entry).data();
  }
  explicit operator bool() const { return bytes_ != nullptr; }

  float operator[](std::int64_t i) const {
    if (dtype_ == DType::F32) return read<float>(i);
    if (dtype_ == DType::BF16) return decode(Format::bf16, read<std::uint16_t>(i));
    if (dtype_ == DType::F16) return decode(Format::f16, read<std::uint16_t>(i));
    return decode(Format::e4m3, read<std::uint8_t>(i));
  }
  /// All `count` of them; none of a tensor that is not there.
  std::vector<float> all(std::int64_t count) const {
    std::vector<float> result;
    for (std::int64_t i = 0; *this && i < count; ++i) result.push_back((*this)[i]);
    return result;
  }

 private:
  template <class T>
  T read(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_ + i * static_cast<std::int64_t>(sizeof value), sizeof value);
    return value;
  }
  const std::byte* bytes_ = nullptr;
  DType dtype_ = DType::F32;
};

/// What the codes of a form stand for.
std::array<float, 256> levels_of(const IntegerForm& form, const Floats& stored) {
  const int codes = 1 << form.bits, middle = codes / 2;
  std::array<float, 256> levels = {};
  for (int code = 0; code < codes; ++code) {
    const int number = form.biased ? code - middle : code < middle ? code : code - codes;
    levels[static_cast<std::size_t>(code)] = stored ? stored[code] : static_cast<float>(number);
  }
  return levels;
}

/// The levels of a row's `count` codes.
void unpack(const std::byte* row, int bits, std::int64_t count,
            const std::array<float, 256>& levels, float* out) {
  const auto byte = [row](std::int64_t i) { return std::to_integer<std::size_t>(row[i]); };
  if (bits == 8) {
    for (std::int64_t c = 0; c < count; ++c) out[c] = levels[byte(c)];
    return;
  }
  for (std::int64_t c = 0; c < count; ++c) {
    const std::size_t low = byte(c / 2) >> c % 2 * 4 & 15;
    const std::size_t high = bits == 6 ? byte(count / 2 + c / 4) >> c % 4 * 2 & 3 : 0;
    out[c] = levels[high << 4 | low];
  }
}

/// The nearest one of -127 to 127, ties to even: added to 1.5 * 2^23, no bit is left behind the
/// point.
float whole_number(float value) {
  constexpr float kNoFraction = 0x1.8p23f;
  return std::clamp(value, -127.0f, 127.0f) + kNoFraction - kNoFraction;
}

}  // namespace

MatrixView read_integers(const StoredCheckpoint& checkpoint, std::size_t tensor,
                         const RowRange& range, std::vector<std::byte>& buffer) {
  const WeightParts& parts = checkpoint.parts(tensor);
  const IntegerForm& form = parts.integers;
  const auto part = [&](IntegerPart kind) {
    return Floats(checkpoint, parts.integer_parts[static_cast<std::size_t>(kind)]);
  };
  const auto [batch, all_rows, k] = matrix_shape(checkpoint.tensors()[tensor].shape);
  const std::array<float, 256> levels = levels_of(form, part(IntegerPart::levels));
  const Floats scales = part(IntegerPart::group_scales), offsets = part(IntegerPart::offsets);
  const Floats up = part(IntegerPart::up);
  const std::vector<float> divisors = part(IntegerPart::divisors).all(k);
  const TensorInfo* const down = form[IntegerPart::down];
  const std::int64_t rank = down == nullptr ? 0 : down->shape[1];
  const std::vector<float> down_values = part(IntegerPart::down).all(k * rank);
  std::vector<float> up_values(static_cast<std::size_t>(rank));
  const std::span<const float> factors = checkpoint.channel_factors(tensor, range.batch);
  const std::int64_t group = form.group == 0 ? k : form.group, groups = k / group;

  const std::byte* codes = checkpoint.store().data(*parts.values).data();
  auto* const out = reinterpret_cast<float*>(Scratch::room(buffer, 4 * range.count * k));
  float* v = out;
  for (std::int64_t row = range.begin; row < range.begin + range.count; ++row, v += k) {
    unpack(codes + row * (k * form.bits / 8), form.bits, k, levels, v);
    const float factor =
        factors.empty() ? 1.0f : factors[static_cast<std::size_t>(row) % factors.size()];
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t i = form.groups_first ? g * all_rows + row : row * groups + g;
      const float scale = scales ? scales[i] : 1.0f;
      const float offset = offsets ? offsets[g * all_rows + row] : 0.0f;
      for (std::int64_t c = g * group; c < (g + 1) * group; ++c) {
        const float scaled = v[c] * scale;
        v[c] = (form.whole ? whole_number(scaled) : scaled) * factor + offset;
      }
    }
    for (std::int64_t r = 0; float& value : up_values) value = up[row * rank + r++];
    for (std::int64_t c = 0; const float divisor : divisors) v[c++] /= divisor;
    for (std::int64_t c = 0; rank > 0 && c < k; ++c) {
      v[c] += std::inner_product(up_values.begin(), up_values.end(), down_values.begin() + c * rank,
                                 0.0f);
    }
  }
  if (form.rotated_columns != 0) rotate(out, range.count * k, form.rotated_columns);
  return {out, Format::f32, range.count, k};
}

}  // namespace blockscale::models
