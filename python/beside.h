// What calls on groups of rows take beside their operands: numbers of 32 bits, and biases.
#pragma once

#include <cstddef>
#include <cstdint>

#include "array.h"
#include "blockscale/tensor.h"

namespace blockscale::python {

/// The numbers of an array of so many dimensions, contiguous. What stands for no number is not
/// null.
const void* numbers_of(const char* argument, const Array& array, std::size_t dimensions);

template <class Number>
const Number* numbers_in(const char* argument, const Array& array, std::size_t dimensions = 1) {
  static_assert(sizeof(Number) == 4);
  return static_cast<const Number*>(numbers_of(argument, array, dimensions));
}

/// Throws where an array has not `count` elements, which have a `meaning`.
void check_count(const char* argument, const Array& array, std::int64_t count, const char* meaning);

/// `count` numbers that are given in a row; null for None.
template <class Number>
const Number* numbers_argument(const char* argument, nb::handle object, std::int64_t count,
                               const char* meaning, const Place& place, Array& array) {
  if (object.is_none()) return nullptr;
  array = input_array(argument, object, place);
  const Number* const numbers = numbers_in<Number>(argument, array);
  check_count(argument, array, count, meaning);
  return numbers;
}

/// What the dimensions of a bias are called, and what they are.
struct BiasShape {
  const char* names;
  std::int64_t groups, n;
  const char* meaning;
};

/// A bias as a pair (array, Format), contiguous.
const void* bias_argument(const char* argument, nb::handle pair, const BiasShape& shape,
                          const Place& place, Array& array);

}  // namespace blockscale::python
