#include "beside.h"

#include <string>

#include "arrays.h"
#include "blockscale/error.h"

namespace blockscale::python {
namespace {

[[noreturn]] void fail(const char* argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

}  // namespace

const void* numbers_of(const char* argument, const Array& array, std::size_t dimensions) {
  static constexpr std::int32_t kNone = 0;
  if (array.ndim() != dimensions || array.itemsize() != sizeof(kNone)) {
    fail(argument, std::string("must have ") +
                       (dimensions == 1 ? "one dimension" : "two dimensions") +
                       ", and elements of 4 bytes");
  }
  if (array.size() == 0) return &kNone;
  std::int64_t packed = 1;
  for (std::size_t axis = dimensions; axis-- > 0; packed *= array.shape(axis)) {
    if (array.shape(axis) > 1 && array.stride(axis) != packed) {
      fail(argument, "its elements must be contiguous; copy it first");
    }
  }
  return array.data();
}

void check_count(const char* argument, const Array& array, std::int64_t count,
                 const char* meaning) {
  if (array.size() == count) return;
  fail(argument, "has " + std::to_string(array.size()) + " elements, must have " +
                     std::to_string(count) + ", " + meaning);
}

const void* bias_argument(const char* argument, nb::handle pair, const BiasShape& shape,
                          const Place& place, Array& array) {
  array = input_array(argument, pair[0], place);
  const MatrixView view = matrix_view(argument, array, nb::cast<Format>(pair[1]));
  if (array.ndim() != 2 || view.rows != shape.groups || view.columns != shape.n) {
    fail(argument, std::string("must be ") + shape.names + " = (" + std::to_string(shape.groups) +
                       ", " + std::to_string(shape.n) + "), " + shape.meaning);
  }
  if (shape.groups > 1 && view.row_stride != shape.n) {
    fail(argument, "must be contiguous; copy it first");
  }
  return view.data;
}

}  // namespace blockscale::python
