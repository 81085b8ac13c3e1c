// Names and sizes of the safetensors element types.
#include <array>
#include <limits>
#include <string>

#include "blockscale/safetensors.h"

namespace blockscale {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array kDTypes{
    DTypeRow{DType::BOOL, "BOOL", 8},
    DTypeRow{DType::F4, "F4", 4},
    DTypeRow{DType::F6_E2M3, "F6_E2M3", 6},
    DTypeRow{DType::F6_E3M2, "F6_E3M2", 6},
    DTypeRow{DType::U8, "U8", 8},
    DTypeRow{DType::I8, "I8", 8},
    DTypeRow{DType::F8_E5M2, "F8_E5M2", 8},
    DTypeRow{DType::F8_E4M3, "F8_E4M3", 8},
    DTypeRow{DType::F8_E8M0, "F8_E8M0", 8},
    DTypeRow{DType::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
    DTypeRow{DType::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
    DTypeRow{DType::I16, "I16", 16},
    DTypeRow{DType::U16, "U16", 16},
    DTypeRow{DType::F16, "F16", 16},
    DTypeRow{DType::BF16, "BF16", 16},
    DTypeRow{DType::I32, "I32", 32},
    DTypeRow{DType::U32, "U32", 32},
    DTypeRow{DType::F32, "F32", 32},
    DTypeRow{DType::C64, "C64", 64},
    DTypeRow{DType::F64, "F64", 64},
    DTypeRow{DType::I64, "I64", 64},
    DTypeRow{DType::U64, "U64", 64},
};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_follow_the_enum());

const DTypeRow& row(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  if (index >= kDTypes.size()) {
    throw Error(ErrorCode::invalid_argument, "dtype",
                "no safetensors element type has the code " + std::to_string(index));
  }
  return kDTypes[index];
}

[[noreturn]] void fail_shape(const std::string& reason) {
  throw Error(ErrorCode::invalid_argument, "shape", reason);
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  return row(dtype).name;
}

int dtype_bits(DType dtype) {
  return row(dtype).bits;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& candidate : kDTypes) {
    if (candidate.name == name) return candidate.dtype;
  }
  return std::nullopt;
}

std::uint64_t tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  // Dimensions of 0 count as 1 for the overflow check, so that strides of an empty tensor, which
  // are products of its other dimensions, are in range too.
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) fail_shape("dimension " + std::to_string(dimension) + " is negative");
    empty |= dimension == 0;
    if (dimension != 0 && __builtin_mul_overflow(count, dimension, &count)) {
      fail_shape("the number of elements exceeds 2^63 - 1");
    }
  }
  std::int64_t bits = 0;
  if (__builtin_mul_overflow(count, std::int64_t{dtype_bits(dtype)}, &bits)) {
    fail_shape("the number of bits exceeds 2^63 - 1");
  }
  if (empty) return 0;
  if (bits % 8 != 0) {
    fail_shape(std::to_string(count) + " elements of " + std::string(dtype_name(dtype)) +
               " are not a whole number of bytes");
  }
  return static_cast<std::uint64_t>(bits) / 8;
}

}  // namespace blockscale
