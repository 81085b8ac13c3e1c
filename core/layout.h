// Layouts: functions from coordinates to offsets, written shape:stride as in CuTe.
//
// A shape is an integer or a Tuple of shapes, a stride has the structure of its shape, and
// ((32,4),2):((16,4),1024) sends coordinate ((a,b),c) to 16 a + 4 b + 1024 c. An integer stands for
// any nested coordinate: its leftmost mode varies fastest, its rightmost has no end. A stride of 0
// broadcasts. Integers are Int<N>, known to the compiler, or int or int64_t, known at run time;
// arithmetic keeps what is known, so a static layout folds into constants in a kernel.
//
// Contract: extents, strides and coordinates are >= 0, static extents are >= 1, and offsets fit the
// type that C++ arithmetic gives (int64_t as soon as one integer of a term is).
//
// core/scale_layout.h states the layouts of scales with it, core/layout_print.h prints them.
#pragma once

#include "core/config.h"

namespace blockscale {

/// An integer known at compile time.
template <int N>
struct Int {
  static constexpr int value = N;
  BLOCKSCALE_HD constexpr operator int() const { return N; }
};

template <int A, int B>
BLOCKSCALE_HD constexpr Int<A + B> operator+(Int<A>, Int<B>) {
  return {};
}
template <int A, int B>
BLOCKSCALE_HD constexpr Int<A - B> operator-(Int<A>, Int<B>) {
  return {};
}
template <int A, int B>
BLOCKSCALE_HD constexpr Int<A * B> operator*(Int<A>, Int<B>) {
  return {};
}
template <int A, int B>
BLOCKSCALE_HD constexpr Int<(A + B - 1) / B> ceil_div(Int<A>, Int<B>) {
  return {};
}

/// A sequence of values of any types. An aggregate, so that layouts are constexpr values.
template <class... Ts>
struct Tuple {};
template <class First, class... Rest>
struct Tuple<First, Rest...> {
  First first;
  Tuple<Rest...> rest;
};

namespace detail {

template <class T>
inline constexpr bool kIsStatic = false;
template <int N>
inline constexpr bool kIsStatic<Int<N>> = true;

template <class T>
inline constexpr bool kIsZero = false;
template <>
inline constexpr bool kIsZero<Int<0>> = true;

template <class T>
inline constexpr bool kIsTuple = false;
template <class... Ts>
inline constexpr bool kIsTuple<Tuple<Ts...>> = true;

template <class T>
inline constexpr int kRank = 1;
template <class... Ts>
inline constexpr int kRank<Tuple<Ts...>> = static_cast<int>(sizeof...(Ts));

template <class T>
inline constexpr int kLeafCount = 1;
template <class... Ts>
inline constexpr int kLeafCount<Tuple<Ts...>> = (kLeafCount<Ts> + ... + 0);

/// Whether a stride has the structure of its shape.
template <class Shape, class Stride>
inline constexpr bool kCongruent = !kIsTuple<Shape> && !kIsTuple<Stride>;
template <>
inline constexpr bool kCongruent<Tuple<>, Tuple<>> = true;
template <class First, class... Rest, class StrideFirst, class... StrideRest>
inline constexpr bool kCongruent<Tuple<First, Rest...>, Tuple<StrideFirst, StrideRest...>> =
    kCongruent<First, StrideFirst> && kCongruent<Tuple<Rest...>, Tuple<StrideRest...>>;

template <class First, class... Rest>
BLOCKSCALE_HD constexpr Tuple<First, Rest...> prepend(const First& first,
                                                      const Tuple<Rest...>& rest) {
  return {first, rest};
}

/// Of operands that are >= 0, as unsigned integers: their division is cheaper.
template <class A, class B>
BLOCKSCALE_HD constexpr auto quotient(const A& a, const B& b) {
  using Signed = decltype(a * b);
  if constexpr (kIsStatic<A> && kIsStatic<B>) {
    return Int<A::value / B::value>{};
  } else {
    using Unsigned = UnsignedOf<8 * sizeof(Signed)>;
    return static_cast<Signed>(static_cast<Unsigned>(a) / static_cast<Unsigned>(b));
  }
}

template <class A, class B>
BLOCKSCALE_HD constexpr auto remainder(const A& a, const B& b) {
  using Signed = decltype(a * b);
  if constexpr (kIsStatic<A> && kIsStatic<B>) {
    return Int<A::value % B::value>{};
  } else {
    using Unsigned = UnsignedOf<8 * sizeof(Signed)>;
    return static_cast<Signed>(static_cast<Unsigned>(a) % static_cast<Unsigned>(b));
  }
}

}  // namespace detail

BLOCKSCALE_HD constexpr Tuple<> make_tuple() {
  return {};
}
template <class First, class... Rest>
BLOCKSCALE_HD constexpr Tuple<First, Rest...> make_tuple(First first, Rest... rest) {
  return {first, make_tuple(rest...)};
}

/// Element `I` of a tuple.
template <int I, class First, class... Rest>
BLOCKSCALE_HD constexpr auto get(const Tuple<First, Rest...>& tuple) {
  static_assert(0 <= I && I <= static_cast<int>(sizeof...(Rest)));
  if constexpr (I == 0) {
    return tuple.first;
  } else {
    return get<I - 1>(tuple.rest);
  }
}

/// `tuple` with `last` behind its elements.
template <class... Ts, class Last>
BLOCKSCALE_HD constexpr auto append(const Tuple<Ts...>& tuple, const Last& last) {
  if constexpr (sizeof...(Ts) == 0) {
    return make_tuple(last);
  } else {
    return detail::prepend(tuple.first, append(tuple.rest, last));
  }
}

/// Number of coordinates of a shape.
template <class Shape>
BLOCKSCALE_HD constexpr auto size(const Shape& shape) {
  if constexpr (!detail::kIsTuple<Shape>) {
    return shape;
  } else if constexpr (detail::kRank<Shape> == 0) {
    return Int<1>{};
  } else {
    return size(shape.first) * size(shape.rest);
  }
}

namespace detail {

template <class Coordinate, class Shape, class Stride>
BLOCKSCALE_HD constexpr auto offset(const Coordinate& c, const Shape& shape, const Stride& stride) {
  if constexpr (kIsTuple<Coordinate>) {
    static_assert(kRank<Coordinate> == kRank<Shape>, "one coordinate for each mode");
    if constexpr (kRank<Coordinate> == 0) {
      return Int<0>{};
    } else {
      return offset(c.first, shape.first, stride.first) + offset(c.rest, shape.rest, stride.rest);
    }
  } else if constexpr (!kIsTuple<Shape>) {
    return c * stride;
  } else if constexpr (kRank<Shape> == 1) {
    return offset(c, shape.first, stride.first);
  } else {
    const auto extent = size(shape.first);
    return offset(remainder(c, extent), shape.first, stride.first) +
           offset(quotient(c, extent), shape.rest, stride.rest);
  }
}

}  // namespace detail

/// A function from coordinates to offsets.
template <class Shape, class Stride>
struct Layout {
  static_assert(detail::kCongruent<Shape, Stride>, "a stride has the structure of its shape");
  static constexpr int kRank = detail::kRank<Shape>;

  Shape shape;
  Stride stride;

  /// The offset of a coordinate: one integer, or one integer or nested tuple for each mode.
  template <class... Coordinates>
  BLOCKSCALE_HD constexpr auto operator()(const Coordinates&... c) const {
    if constexpr (sizeof...(Coordinates) == 1) {
      return detail::offset(c..., shape, stride);
    } else {
      return detail::offset(make_tuple(c...), shape, stride);
    }
  }
};

template <class Shape, class Stride>
BLOCKSCALE_HD constexpr Layout<Shape, Stride> make_layout(const Shape& shape,
                                                          const Stride& stride) {
  return {shape, stride};
}

/// Mode `I` as a layout of its own.
template <int I, class Shape, class Stride>
BLOCKSCALE_HD constexpr auto mode(const Layout<Shape, Stride>& layout) {
  return make_layout(get<I>(layout.shape), get<I>(layout.stride));
}

/// `layout` with one more mode, such as a batch or pipeline stages.
template <class Shape, class Stride, class Extent, class ModeStride>
BLOCKSCALE_HD constexpr auto append_mode(const Layout<Shape, Stride>& layout, const Extent& extent,
                                         const ModeStride& stride) {
  return make_layout(append(layout.shape, extent), append(layout.stride, stride));
}

/// Number of coordinates.
template <class Shape, class Stride>
BLOCKSCALE_HD constexpr auto size(const Layout<Shape, Stride>& layout) {
  return size(layout.shape);
}

namespace detail {

template <class Shape, class Stride>
BLOCKSCALE_HD constexpr auto last_offset(const Shape& shape, const Stride& stride) {
  if constexpr (kIsZero<Stride> || kRank<Shape> == 0) {
    return Int<0>{};
  } else if constexpr (!kIsTuple<Shape>) {
    return (shape - Int<1>{}) * stride;
  } else {
    return last_offset(shape.first, stride.first) + last_offset(shape.rest, stride.rest);
  }
}

template <class Shape, class Stride>
BLOCKSCALE_HD constexpr auto filtered_shape(const Shape& shape, const Stride& stride) {
  if constexpr (kIsTuple<Shape>) {
    if constexpr (kRank<Shape> == 0) {
      return shape;
    } else {
      return prepend(filtered_shape(shape.first, stride.first),
                     filtered_shape(shape.rest, stride.rest));
    }
  } else if constexpr (kIsZero<Stride>) {
    return Int<1>{};
  } else {
    return shape;
  }
}

}  // namespace detail

/// Elements of memory that the layout spans: its largest offset + 1, or 0 where it has none.
template <class Shape, class Stride>
BLOCKSCALE_HD constexpr auto cosize(const Layout<Shape, Stride>& layout) {
  const auto last = detail::last_offset(layout.shape, layout.stride);
  using Last = decltype(detail::last_offset(layout.shape, layout.stride));
  if constexpr (detail::kIsStatic<Last>) {
    return last + Int<1>{};
  } else {
    return size(layout) == 0 ? Last{0} : last + 1;
  }
}

/// The layout with every broadcast mode (static stride 0) shrunk to extent 1: one coordinate for
/// each element of memory.
template <class Shape, class Stride>
BLOCKSCALE_HD constexpr auto filter_zeros(const Layout<Shape, Stride>& layout) {
  return make_layout(detail::filtered_shape(layout.shape, layout.stride), layout.stride);
}

namespace detail {

/// Product of the repeats whose place in the order is before `Place`.
template <int Place>
BLOCKSCALE_HD constexpr auto repeats_before(const Tuple<>&, const Tuple<>&) {
  return Int<1>{};
}
template <int Place, class Repeats, int First, class... Rest>
BLOCKSCALE_HD constexpr auto repeats_before(const Repeats& repeats,
                                            const Tuple<Int<First>, Rest...>& order) {
  const auto rest = repeats_before<Place>(repeats.rest, order.rest);
  if constexpr (First < Place) {
    return repeats.first * rest;
  } else {
    return rest;
  }
}

/// Strides of the repeats of a tile that fills `tile` elements of memory.
template <class Cosize, class Repeats, int... Places>
BLOCKSCALE_HD constexpr auto repeat_strides(const Cosize& tile, const Repeats& repeats,
                                            const Tuple<Int<Places>...>& order) {
  return make_tuple(tile * repeats_before<Places>(repeats, order)...);
}

/// How often each mode of a tile goes into the modes of `shape`, the last one filled up.
template <class TileShape, class Shape>
BLOCKSCALE_HD constexpr auto repeats_of(const TileShape& tile, const Shape& shape) {
  if constexpr (kRank<Shape> == 0) {
    return shape;
  } else {
    return prepend(ceil_div(shape.first, size(tile.first)), repeats_of(tile.rest, shape.rest));
  }
}

/// ((a0,b0),(a1,b1),...) of (a0,a1,...) and (b0,b1,...).
template <class A, class B>
BLOCKSCALE_HD constexpr auto zip(const A& a, const B& b) {
  if constexpr (kRank<A> == 0) {
    return a;
  } else {
    return prepend(make_tuple(a.first, b.first), zip(a.rest, b.rest));
  }
}

}  // namespace detail

/// Repeats `atom` until each mode is at least as long as that of `shape` (longer at a ragged edge):
/// mode i is (atom mode i, repeats). Copies follow each other in memory along the mode that is
/// lowest in `order` first; `order` is a permutation as Int<>s. An atom of lower rank than `shape`
/// gets modes 1:0. The atom fills its memory: every offset below its cosize has a coordinate.
template <class AtomShape, class AtomStride, class Shape, class Order>
BLOCKSCALE_HD constexpr auto tile_to_shape(const Layout<AtomShape, AtomStride>& atom,
                                           const Shape& shape, const Order& order) {
  static_assert(detail::kRank<Shape> == detail::kRank<Order>);
  static_assert(detail::kRank<AtomShape> <= detail::kRank<Shape>);
  if constexpr (detail::kRank<AtomShape> < detail::kRank<Shape>) {
    return tile_to_shape(append_mode(atom, Int<1>{}, Int<0>{}), shape, order);
  } else {
    const auto repeats = detail::repeats_of(atom.shape, shape);
    const auto strides = detail::repeat_strides(cosize(atom), repeats, order);
    return make_layout(detail::zip(atom.shape, repeats), detail::zip(atom.stride, strides));
  }
}

/// The coordinate that linear index `index` stands for, with the structure of `shape`.
template <class Shape>
BLOCKSCALE_HD constexpr auto coordinate(int64_t index, const Shape& shape) {
  if constexpr (!detail::kIsTuple<Shape>) {
    return index;
  } else if constexpr (detail::kRank<Shape> == 0) {
    return shape;
  } else if constexpr (detail::kRank<Shape> == 1) {
    return make_tuple(coordinate(index, shape.first));
  } else {
    const int64_t extent = size(shape.first);
    return detail::prepend(coordinate(detail::remainder(index, extent), shape.first),
                           coordinate(detail::quotient(index, extent), shape.rest));
  }
}

namespace detail {

/// An innermost mode. `weight` is what a step along it adds to a linear index.
struct Leaf {
  int64_t extent;
  int64_t stride;
  int64_t weight;

  /// Whether it reaches memory of its own.
  BLOCKSCALE_HD constexpr bool spreads() const { return extent > 1 && stride > 0; }
};

/// Writes the leaves of shape:stride from `leaf` on; returns the weight behind the last one.
template <class Shape, class Stride>
BLOCKSCALE_HD constexpr int64_t collect(Leaf* leaf, int64_t weight, const Shape& shape,
                                        const Stride& stride) {
  if constexpr (!kIsTuple<Shape>) {
    *leaf = {shape, stride, weight};
    return weight * shape;
  } else if constexpr (kRank<Shape> == 0) {
    return weight;
  } else {
    using First = decltype(shape.first);
    const int64_t next = collect(leaf, weight, shape.first, stride.first);
    return collect(leaf + kLeafCount<First>, next, shape.rest, stride.rest);
  }
}

/// The leaves of a layout that spread, widest stride first.
template <int Count>
struct SortedLeaves {
  Leaf leaf[Count];
  int count;
};

template <class Shape, class Stride>
BLOCKSCALE_HD constexpr auto sorted_leaves(const Layout<Shape, Stride>& layout) {
  constexpr int kCount = kLeafCount<Shape>;
  Leaf leaves[kCount] = {};
  collect(leaves, 1, layout.shape, layout.stride);
  SortedLeaves<kCount> sorted = {};
  for (int i = 0; i < kCount; ++i) {
    if (!leaves[i].spreads()) continue;
    int wider = 0;
    for (int j = 0; j < kCount; ++j) {
      const bool before =
          leaves[j].stride > leaves[i].stride || (leaves[j].stride == leaves[i].stride && j < i);
      wider += leaves[j].spreads() && before;
    }
    sorted.leaf[wider] = leaves[i];
    ++sorted.count;
  }
  return sorted;
}

}  // namespace detail

/// Whether `inverse` holds for `layout`: broadcast modes aside, each stride is beyond all that the
/// modes with narrower strides reach together. Every layout of scales is of this kind, with any
/// leading stride that keeps its lines apart.
template <class Shape, class Stride>
BLOCKSCALE_HD constexpr bool is_invertible(const Layout<Shape, Stride>& layout) {
  const auto leaves = detail::sorted_leaves(layout);
  int64_t reach = 0;
  for (int i = leaves.count - 1; i >= 0; --i) {
    if (leaves.leaf[i].stride <= reach) return false;
    reach += (leaves.leaf[i].extent - 1) * leaves.leaf[i].stride;
  }
  return size(layout) > 0;
}

/// The linear index whose offset is `offset`, the one with 0 in broadcast modes; -1 where no
/// coordinate has that offset (padding). Requires is_invertible(layout).
template <class Shape, class Stride>
BLOCKSCALE_HD constexpr int64_t inverse(const Layout<Shape, Stride>& layout, int64_t offset) {
  const auto leaves = detail::sorted_leaves(layout);
  int64_t index = 0;
  for (int i = 0; i < leaves.count; ++i) {
    const int64_t steps = offset / leaves.leaf[i].stride;
    if (steps >= leaves.leaf[i].extent) return -1;
    offset -= steps * leaves.leaf[i].stride;
    index += steps * leaves.leaf[i].weight;
  }
  return offset == 0 ? index : -1;
}

}  // namespace blockscale
