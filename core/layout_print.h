// Layouts as text, shape:stride, as CuTe prints them.
#pragma once

#include "core/layout.h"

namespace blockscale {

enum class Notation : uint8_t {
  plain,    // ((32,4),2):((16,4),1024), as CuTeDSL prints
  cutlass,  // ((_32,_4),2):((_16,_4),1024): integers known at compile time are marked
};

namespace detail {

/// Decimal digits of `value` >= 0.
template <class Sink>
BLOCKSCALE_HD constexpr void print_digits(int64_t value, Sink& sink) {
  if (value >= 10) print_digits(value / 10, sink);
  sink(static_cast<char>('0' + value % 10));
}

}  // namespace detail

/// Writes a shape, stride or coordinate. `sink(c)` takes one character after the other, so that
/// nothing is allocated here and the caller chooses the string.
template <class Value, class Sink>
BLOCKSCALE_HD constexpr void print(const Value& value, Notation notation, Sink& sink);

namespace detail {

template <class Sink>
BLOCKSCALE_HD constexpr void print_elements(const Tuple<>&, Notation, Sink&) {}

template <class First, class... Rest, class Sink>
BLOCKSCALE_HD constexpr void print_elements(const Tuple<First, Rest...>& tuple, Notation notation,
                                            Sink& sink) {
  print(tuple.first, notation, sink);
  if constexpr (sizeof...(Rest) > 0) sink(',');
  print_elements(tuple.rest, notation, sink);
}

}  // namespace detail

template <class Value, class Sink>
BLOCKSCALE_HD constexpr void print(const Value& value, Notation notation, Sink& sink) {
  if constexpr (detail::kIsTuple<Value>) {
    sink('(');
    detail::print_elements(value, notation, sink);
    sink(')');
  } else {
    if constexpr (detail::kIsStatic<Value>) {
      if (notation == Notation::cutlass) sink('_');
    }
    detail::print_digits(value, sink);
  }
}

/// Writes a layout as shape:stride.
template <class Shape, class Stride, class Sink>
BLOCKSCALE_HD constexpr void print(const Layout<Shape, Stride>& layout, Notation notation,
                                   Sink& sink) {
  print(layout.shape, notation, sink);
  sink(':');
  print(layout.stride, notation, sink);
}

}  // namespace blockscale
