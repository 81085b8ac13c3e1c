#include "models/checkpoint/numbers.h"

#include <cstring>
#include <limits>
#include <string>

#include "blockscale/error.h"
#include "blockscale/tensor.h"
#include "models/checkpoint/codes.h"

namespace blockscale::models {
namespace {

static_assert(std::numeric_limits<long double>::digits >= 64);

template <class T>
void widen_as(const std::byte* data, std::span<long double> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    out[i] = static_cast<long double>(value);
  }
}

template <class Code, Format kFormat>
void widen_format(const std::byte* data, std::span<long double> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Code code;
    std::memcpy(&code, data + i * sizeof code, sizeof code);
    out[i] = decode(kFormat, code);
  }
}

template <DType kDType>
void widen_narrow(const std::byte* data, std::span<long double> out) {
  const auto& values = narrow_values(kDType);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = values[static_cast<std::size_t>(data[i])];
}

using Reader = void (*)(const std::byte*, std::span<long double>);

Reader reader_of(DType dtype) {
  switch (dtype) {
    case DType::BOOL:
    case DType::U8: return widen_as<std::uint8_t>;
    case DType::I8: return widen_as<std::int8_t>;
    case DType::U16: return widen_as<std::uint16_t>;
    case DType::I16: return widen_as<std::int16_t>;
    case DType::U32: return widen_as<std::uint32_t>;
    case DType::I32: return widen_as<std::int32_t>;
    case DType::U64: return widen_as<std::uint64_t>;
    case DType::I64: return widen_as<std::int64_t>;
    case DType::F32: return widen_as<float>;
    case DType::F64: return widen_as<double>;
    case DType::F16: return widen_format<std::uint16_t, Format::f16>;
    case DType::BF16: return widen_format<std::uint16_t, Format::bf16>;
    case DType::F8_E4M3: return widen_narrow<DType::F8_E4M3>;
    case DType::F8_E5M2: return widen_narrow<DType::F8_E5M2>;
    case DType::F8_E4M3FNUZ: return widen_narrow<DType::F8_E4M3FNUZ>;
    case DType::F8_E5M2FNUZ: return widen_narrow<DType::F8_E5M2FNUZ>;
    case DType::F8_E8M0: return widen_format<std::uint8_t, Format::ue8m0>;
    default: return nullptr;
  }
}

}  // namespace

bool has_numbers(DType dtype) {
  return reader_of(dtype) != nullptr;
}

void widen(DType dtype, const std::byte* data, std::int64_t first, std::span<long double> out) {
  const Reader reader = reader_of(dtype);
  if (reader == nullptr) {
    throw Error(ErrorCode::unsupported, std::string(dtype_name(dtype)),
                "cannot be read as numbers");
  }
  reader(data + first * dtype_bits(dtype) / 8, out);
}

}  // namespace blockscale::models
