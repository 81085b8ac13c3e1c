// Matrix products of a warpgroup (128 threads, warps 4i to 4i + 3). PTX ISA "Asynchronous Warpgroup
// Level Matrix Instructions".
//
// D (64 x N, f32) = A (64 x K) * B (N x K)^T, or that added to D; K is 32 bytes of a row. A lies in
// registers or, like B, in shared memory, with k contiguous. All threads of the warpgroup execute
// each instruction here, at the same line with the same operands.
//
// wgmma_mma_async begins a product that reads shared memory by the asynchronous proxy and owns its
// accumulator (and A's registers) until a wgmma_wait_group. Products of one accumulator run in
// order. Between any other access to an accumulator, or to A's registers, and the product stands a
// wgmma_fence; what threads wrote to shared memory is read only behind fence_proxy_async.
#pragma once

#include "core/tensor_map.h"
#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#if !BLOCKSCALE_GPU
#include "device/emulator/instructions.h"
#endif

namespace blockscale::ptx {

/// What A and B hold. e4m3 and e5m2 may meet; f16 meets f16, bf16 bf16.
enum class WgmmaElement : uint8_t { e4m3, e5m2, f16, bf16 };

/// This thread's part of D. Value i of lane l of warp w of the warpgroup is D[row][column] with
/// row = 16 w + l / 4 + 8 (i / 2 % 2), column = 8 (i / 4) + 2 (l % 4) + i % 2.
template <int kN>
struct WgmmaAccumulator {
  static_assert(kN % 8 == 0 && 8 <= kN && kN <= 256);
  static constexpr int kValues = kN / 2;

  float value[kValues];

  BLOCKSCALE_DEVICE float get(int i, SourceLocation at = SourceLocation::current()) const {
#if !BLOCKSCALE_GPU
    emulator::wgmma_access_registers(value, at);
#endif
    return value[i];
  }
  BLOCKSCALE_DEVICE void set(int i, float x, SourceLocation at = SourceLocation::current()) {
#if !BLOCKSCALE_GPU
    emulator::wgmma_access_registers(value, at);
#endif
    value[i] = x;
  }
};

/// This thread's part of A, 64 rows of 32 bytes. Word i of lane l of warp w has the 4 bytes of row
/// 16 w + l / 4 + 8 (i % 2) that begin at byte 4 (l % 4) + 16 (i / 2).
struct WgmmaFragmentA {
  uint32_t value[4];

  BLOCKSCALE_DEVICE void set(int i, uint32_t x, SourceLocation at = SourceLocation::current()) {
#if !BLOCKSCALE_GPU
    emulator::wgmma_access_registers(value, at);
#endif
    value[i] = x;
  }
};

/// Where a K-major operand lies in shared memory. PTX ISA "Matrix Descriptor Format".
struct WgmmaDescriptor {
  uint64_t bits;
};

/// An operand whose rows have `swizzle`'s span of bytes (128, 64 or 32) with k contiguous, as a
/// tensor copy with this swizzle leaves it; groups of 8 rows follow each other without a gap.
/// `start` is the first byte of the 32 of a row that are multiplied; the rows begin at a multiple
/// of 8 times the span.
BLOCKSCALE_HD constexpr WgmmaDescriptor wgmma_descriptor(SharedAddress start,
                                                         TensorMapSwizzle swizzle) {
  const uint64_t span = swizzle_span(swizzle);
  const uint64_t mode = swizzle == TensorMapSwizzle::bytes_128  ? 1
                        : swizzle == TensorMapSwizzle::bytes_64 ? 2
                                                                : 3;
  constexpr uint64_t kLeading = 1;  // not used with a swizzle
  return {(start.value & 0x3FFFFu) >> 4 | kLeading << 16 | (8 * span >> 4) << 32 | mode << 62};
}

/// The operand `bytes` further along k, within the same span. (Only the low word changes, which
/// saves a carry.)
BLOCKSCALE_HD constexpr WgmmaDescriptor operator+(WgmmaDescriptor descriptor, uint32_t bytes) {
  const uint32_t low = static_cast<uint32_t>(descriptor.bits) + (bytes >> 4);
  return {descriptor.bits >> 32 << 32 | low};
}

/// wgmma.fence: orders all accesses to the warpgroup's accumulators and A registers before the
/// products that follow; `fragments` are those that they use.
template <class... Fragments>
BLOCKSCALE_DEVICE void wgmma_fence(Fragments&... fragments);

/// wgmma.mma_async, both operands in shared memory. With `accumulate` false D's old values are not
/// used.
template <WgmmaElement kA, WgmmaElement kB, int kN>
BLOCKSCALE_DEVICE void wgmma_mma_async(WgmmaAccumulator<kN>& d, WgmmaDescriptor a,
                                       WgmmaDescriptor b, bool accumulate,
                                       SourceLocation at = SourceLocation::current());

/// The same with A in registers.
template <WgmmaElement kA, WgmmaElement kB, int kN>
BLOCKSCALE_DEVICE void wgmma_mma_async(WgmmaAccumulator<kN>& d, const WgmmaFragmentA& a,
                                       WgmmaDescriptor b, bool accumulate,
                                       SourceLocation at = SourceLocation::current());

/// wgmma.commit_group: the products begun since the last one are a group.
BLOCKSCALE_DEVICE void wgmma_commit_group(SourceLocation at = SourceLocation::current()) {
#if BLOCKSCALE_GPU
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
#else
  emulator::wgmma_commit_group(at);
#endif
}

/// wgmma.wait_group: all groups but the newest kPending have ended. `fragments` are the
/// accumulators and A registers that are free from now on.
template <int kPending, class... Fragments>
BLOCKSCALE_DEVICE void wgmma_wait_group(Fragments&... fragments);

#if BLOCKSCALE_GPU

namespace detail {

/// The compiler may not move an access to these registers across.
template <int kN>
BLOCKSCALE_DEVICE void pin_registers(WgmmaAccumulator<kN>& d) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < d.kValues; ++i) asm volatile("" : "+f"(d.value[i]) : : "memory");
}
BLOCKSCALE_DEVICE void pin_registers(WgmmaFragmentA& a) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a.value[i]) : : "memory");
}

/// The element's name, the number of them in 32 bytes, and the operands that follow scale-d: the
/// signs of A and B, and of 16-bit elements which operand is transposed.
template <WgmmaElement kElement>
struct WgmmaText;
template <>
struct WgmmaText<WgmmaElement::e4m3> {
  static constexpr char kName[] = "e4m3";
  static constexpr char kShared[] = "1, 1", kRegisters[] = "1, 1";
  static constexpr int kElements = 32;
};
template <>
struct WgmmaText<WgmmaElement::e5m2> {
  static constexpr char kName[] = "e5m2";
  static constexpr char kShared[] = "1, 1", kRegisters[] = "1, 1";
  static constexpr int kElements = 32;
};
template <>
struct WgmmaText<WgmmaElement::f16> {
  static constexpr char kName[] = "f16";
  static constexpr char kShared[] = "1, 1, 0, 0", kRegisters[] = "1, 1, 0";
  static constexpr int kElements = 16;
};
template <>
struct WgmmaText<WgmmaElement::bf16> {
  static constexpr char kName[] = "bf16";
  static constexpr char kShared[] = "1, 1, 0, 0", kRegisters[] = "1, 1, 0";
  static constexpr int kElements = 16;
};

}  // namespace detail

template <class... Fragments>
BLOCKSCALE_DEVICE void wgmma_fence(Fragments&... fragments) {
  (detail::pin_registers(fragments), ...);
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

template <int kPending, class... Fragments>
BLOCKSCALE_DEVICE void wgmma_wait_group(Fragments&... fragments) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
  (detail::pin_registers(fragments), ...);
}

// D's registers as text (%0 to %(N/2 - 1)) and as operands, four at a time.
#define BLOCKSCALE_R8 "%0, %1, %2, %3"
#define BLOCKSCALE_R16 BLOCKSCALE_R8 ", %4, %5, %6, %7"
#define BLOCKSCALE_R24 BLOCKSCALE_R16 ", %8, %9, %10, %11"
#define BLOCKSCALE_R32 BLOCKSCALE_R24 ", %12, %13, %14, %15"
#define BLOCKSCALE_R40 BLOCKSCALE_R32 ", %16, %17, %18, %19"
#define BLOCKSCALE_R48 BLOCKSCALE_R40 ", %20, %21, %22, %23"
#define BLOCKSCALE_R56 BLOCKSCALE_R48 ", %24, %25, %26, %27"
#define BLOCKSCALE_R64 BLOCKSCALE_R56 ", %28, %29, %30, %31"
#define BLOCKSCALE_R72 BLOCKSCALE_R64 ", %32, %33, %34, %35"
#define BLOCKSCALE_R80 BLOCKSCALE_R72 ", %36, %37, %38, %39"
#define BLOCKSCALE_R88 BLOCKSCALE_R80 ", %40, %41, %42, %43"
#define BLOCKSCALE_R96 BLOCKSCALE_R88 ", %44, %45, %46, %47"
#define BLOCKSCALE_R104 BLOCKSCALE_R96 ", %48, %49, %50, %51"
#define BLOCKSCALE_R112 BLOCKSCALE_R104 ", %52, %53, %54, %55"
#define BLOCKSCALE_R120 BLOCKSCALE_R112 ", %56, %57, %58, %59"
#define BLOCKSCALE_R128 BLOCKSCALE_R120 ", %60, %61, %62, %63"
#define BLOCKSCALE_R136 BLOCKSCALE_R128 ", %64, %65, %66, %67"
#define BLOCKSCALE_R144 BLOCKSCALE_R136 ", %68, %69, %70, %71"
#define BLOCKSCALE_R152 BLOCKSCALE_R144 ", %72, %73, %74, %75"
#define BLOCKSCALE_R160 BLOCKSCALE_R152 ", %76, %77, %78, %79"
#define BLOCKSCALE_R168 BLOCKSCALE_R160 ", %80, %81, %82, %83"
#define BLOCKSCALE_R176 BLOCKSCALE_R168 ", %84, %85, %86, %87"
#define BLOCKSCALE_R184 BLOCKSCALE_R176 ", %88, %89, %90, %91"
#define BLOCKSCALE_R192 BLOCKSCALE_R184 ", %92, %93, %94, %95"
#define BLOCKSCALE_R200 BLOCKSCALE_R192 ", %96, %97, %98, %99"
#define BLOCKSCALE_R208 BLOCKSCALE_R200 ", %100, %101, %102, %103"
#define BLOCKSCALE_R216 BLOCKSCALE_R208 ", %104, %105, %106, %107"
#define BLOCKSCALE_R224 BLOCKSCALE_R216 ", %108, %109, %110, %111"
#define BLOCKSCALE_R232 BLOCKSCALE_R224 ", %112, %113, %114, %115"
#define BLOCKSCALE_R240 BLOCKSCALE_R232 ", %116, %117, %118, %119"
#define BLOCKSCALE_R248 BLOCKSCALE_R240 ", %120, %121, %122, %123"
#define BLOCKSCALE_R256 BLOCKSCALE_R248 ", %124, %125, %126, %127"
#define BLOCKSCALE_D4(i) \
  "+f"(d.value[i]), "+f"(d.value[i + 1]), "+f"(d.value[i + 2]), "+f"(d.value[i + 3])
#define BLOCKSCALE_D8 BLOCKSCALE_D4(0)
#define BLOCKSCALE_D16 BLOCKSCALE_D8, BLOCKSCALE_D4(4)
#define BLOCKSCALE_D24 BLOCKSCALE_D16, BLOCKSCALE_D4(8)
#define BLOCKSCALE_D32 BLOCKSCALE_D24, BLOCKSCALE_D4(12)
#define BLOCKSCALE_D40 BLOCKSCALE_D32, BLOCKSCALE_D4(16)
#define BLOCKSCALE_D48 BLOCKSCALE_D40, BLOCKSCALE_D4(20)
#define BLOCKSCALE_D56 BLOCKSCALE_D48, BLOCKSCALE_D4(24)
#define BLOCKSCALE_D64 BLOCKSCALE_D56, BLOCKSCALE_D4(28)
#define BLOCKSCALE_D72 BLOCKSCALE_D64, BLOCKSCALE_D4(32)
#define BLOCKSCALE_D80 BLOCKSCALE_D72, BLOCKSCALE_D4(36)
#define BLOCKSCALE_D88 BLOCKSCALE_D80, BLOCKSCALE_D4(40)
#define BLOCKSCALE_D96 BLOCKSCALE_D88, BLOCKSCALE_D4(44)
#define BLOCKSCALE_D104 BLOCKSCALE_D96, BLOCKSCALE_D4(48)
#define BLOCKSCALE_D112 BLOCKSCALE_D104, BLOCKSCALE_D4(52)
#define BLOCKSCALE_D120 BLOCKSCALE_D112, BLOCKSCALE_D4(56)
#define BLOCKSCALE_D128 BLOCKSCALE_D120, BLOCKSCALE_D4(60)
#define BLOCKSCALE_D136 BLOCKSCALE_D128, BLOCKSCALE_D4(64)
#define BLOCKSCALE_D144 BLOCKSCALE_D136, BLOCKSCALE_D4(68)
#define BLOCKSCALE_D152 BLOCKSCALE_D144, BLOCKSCALE_D4(72)
#define BLOCKSCALE_D160 BLOCKSCALE_D152, BLOCKSCALE_D4(76)
#define BLOCKSCALE_D168 BLOCKSCALE_D160, BLOCKSCALE_D4(80)
#define BLOCKSCALE_D176 BLOCKSCALE_D168, BLOCKSCALE_D4(84)
#define BLOCKSCALE_D184 BLOCKSCALE_D176, BLOCKSCALE_D4(88)
#define BLOCKSCALE_D192 BLOCKSCALE_D184, BLOCKSCALE_D4(92)
#define BLOCKSCALE_D200 BLOCKSCALE_D192, BLOCKSCALE_D4(96)
#define BLOCKSCALE_D208 BLOCKSCALE_D200, BLOCKSCALE_D4(100)
#define BLOCKSCALE_D216 BLOCKSCALE_D208, BLOCKSCALE_D4(104)
#define BLOCKSCALE_D224 BLOCKSCALE_D216, BLOCKSCALE_D4(108)
#define BLOCKSCALE_D232 BLOCKSCALE_D224, BLOCKSCALE_D4(112)
#define BLOCKSCALE_D240 BLOCKSCALE_D232, BLOCKSCALE_D4(116)
#define BLOCKSCALE_D248 BLOCKSCALE_D240, BLOCKSCALE_D4(120)
#define BLOCKSCALE_D256 BLOCKSCALE_D248, BLOCKSCALE_D4(124)

// Both operands in shared memory. The numbers are those of the operands behind D's registers.
#define BLOCKSCALE_WGMMA(n, a_, b_, accumulate_, k_, a_type, b_type, tail)                      \
  if constexpr (kN == n) {                                                                      \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #accumulate_                            \
                 ", 0;\n"                                                                       \
                 " wgmma.mma_async.sync.aligned.m64n" #n "k%" #k_ ".f32.%" #a_type ".%" #b_type \
                 " {" BLOCKSCALE_R##n "}, %" #a_ ", %" #b_ ", p, %" #tail ";\n}"                \
                 : BLOCKSCALE_D##n                                                              \
                 : "l"(a.bits), "l"(b.bits), "r"(static_cast<int32_t>(accumulate)),             \
                   "n"(A::kElements), "C"(A::kName), "C"(B::kName), "C"(A::kShared)             \
                 : "memory");                                                                   \
  }
template <WgmmaElement kA, WgmmaElement kB, int kN>
BLOCKSCALE_DEVICE void wgmma_mma_async(WgmmaAccumulator<kN>& d, WgmmaDescriptor a,
                                       WgmmaDescriptor b, bool accumulate, SourceLocation) {
  using A = detail::WgmmaText<kA>;
  using B = detail::WgmmaText<kB>;
  BLOCKSCALE_WGMMA(8, 4, 5, 6, 7, 8, 9, 10)
  BLOCKSCALE_WGMMA(16, 8, 9, 10, 11, 12, 13, 14)
  BLOCKSCALE_WGMMA(24, 12, 13, 14, 15, 16, 17, 18)
  BLOCKSCALE_WGMMA(32, 16, 17, 18, 19, 20, 21, 22)
  BLOCKSCALE_WGMMA(40, 20, 21, 22, 23, 24, 25, 26)
  BLOCKSCALE_WGMMA(48, 24, 25, 26, 27, 28, 29, 30)
  BLOCKSCALE_WGMMA(56, 28, 29, 30, 31, 32, 33, 34)
  BLOCKSCALE_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
  BLOCKSCALE_WGMMA(72, 36, 37, 38, 39, 40, 41, 42)
  BLOCKSCALE_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
  BLOCKSCALE_WGMMA(88, 44, 45, 46, 47, 48, 49, 50)
  BLOCKSCALE_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
  BLOCKSCALE_WGMMA(104, 52, 53, 54, 55, 56, 57, 58)
  BLOCKSCALE_WGMMA(112, 56, 57, 58, 59, 60, 61, 62)
  BLOCKSCALE_WGMMA(120, 60, 61, 62, 63, 64, 65, 66)
  BLOCKSCALE_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
  BLOCKSCALE_WGMMA(136, 68, 69, 70, 71, 72, 73, 74)
  BLOCKSCALE_WGMMA(144, 72, 73, 74, 75, 76, 77, 78)
  BLOCKSCALE_WGMMA(152, 76, 77, 78, 79, 80, 81, 82)
  BLOCKSCALE_WGMMA(160, 80, 81, 82, 83, 84, 85, 86)
  BLOCKSCALE_WGMMA(168, 84, 85, 86, 87, 88, 89, 90)
  BLOCKSCALE_WGMMA(176, 88, 89, 90, 91, 92, 93, 94)
  BLOCKSCALE_WGMMA(184, 92, 93, 94, 95, 96, 97, 98)
  BLOCKSCALE_WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
  BLOCKSCALE_WGMMA(200, 100, 101, 102, 103, 104, 105, 106)
  BLOCKSCALE_WGMMA(208, 104, 105, 106, 107, 108, 109, 110)
  BLOCKSCALE_WGMMA(216, 108, 109, 110, 111, 112, 113, 114)
  BLOCKSCALE_WGMMA(224, 112, 113, 114, 115, 116, 117, 118)
  BLOCKSCALE_WGMMA(232, 116, 117, 118, 119, 120, 121, 122)
  BLOCKSCALE_WGMMA(240, 120, 121, 122, 123, 124, 125, 126)
  BLOCKSCALE_WGMMA(248, 124, 125, 126, 127, 128, 129, 130)
  BLOCKSCALE_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)
}
#undef BLOCKSCALE_WGMMA

// A in registers.
#define BLOCKSCALE_WGMMA(n, a0, a1, a2, a3, b_, accumulate_, k_, a_type, b_type, tail)          \
  if constexpr (kN == n) {                                                                      \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #accumulate_                            \
                 ", 0;\n"                                                                       \
                 " wgmma.mma_async.sync.aligned.m64n" #n "k%" #k_ ".f32.%" #a_type ".%" #b_type \
                 " {" BLOCKSCALE_R##n "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_      \
                                      ", p, %" #tail ";\n}"                                     \
                 : BLOCKSCALE_D##n                                                              \
                 : "r"(a.value[0]), "r"(a.value[1]), "r"(a.value[2]), "r"(a.value[3]),          \
                   "l"(b.bits), "r"(static_cast<int32_t>(accumulate)), "n"(A::kElements),       \
                   "C"(A::kName), "C"(B::kName), "C"(A::kRegisters)                             \
                 : "memory");                                                                   \
  }
template <WgmmaElement kA, WgmmaElement kB, int kN>
BLOCKSCALE_DEVICE void wgmma_mma_async(WgmmaAccumulator<kN>& d, const WgmmaFragmentA& a,
                                       WgmmaDescriptor b, bool accumulate, SourceLocation) {
  using A = detail::WgmmaText<kA>;
  using B = detail::WgmmaText<kB>;
  BLOCKSCALE_WGMMA(8, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
  BLOCKSCALE_WGMMA(16, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)
  BLOCKSCALE_WGMMA(24, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
  BLOCKSCALE_WGMMA(32, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)
  BLOCKSCALE_WGMMA(40, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29)
  BLOCKSCALE_WGMMA(48, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33)
  BLOCKSCALE_WGMMA(56, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37)
  BLOCKSCALE_WGMMA(64, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41)
  BLOCKSCALE_WGMMA(72, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45)
  BLOCKSCALE_WGMMA(80, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49)
  BLOCKSCALE_WGMMA(88, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53)
  BLOCKSCALE_WGMMA(96, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57)
  BLOCKSCALE_WGMMA(104, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61)
  BLOCKSCALE_WGMMA(112, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65)
  BLOCKSCALE_WGMMA(120, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69)
  BLOCKSCALE_WGMMA(128, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73)
  BLOCKSCALE_WGMMA(136, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77)
  BLOCKSCALE_WGMMA(144, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81)
  BLOCKSCALE_WGMMA(152, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85)
  BLOCKSCALE_WGMMA(160, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89)
  BLOCKSCALE_WGMMA(168, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93)
  BLOCKSCALE_WGMMA(176, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97)
  BLOCKSCALE_WGMMA(184, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101)
  BLOCKSCALE_WGMMA(192, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105)
  BLOCKSCALE_WGMMA(200, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109)
  BLOCKSCALE_WGMMA(208, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113)
  BLOCKSCALE_WGMMA(216, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117)
  BLOCKSCALE_WGMMA(224, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121)
  BLOCKSCALE_WGMMA(232, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125)
  BLOCKSCALE_WGMMA(240, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129)
  BLOCKSCALE_WGMMA(248, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133)
  BLOCKSCALE_WGMMA(256, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137)
}
#undef BLOCKSCALE_WGMMA
#undef BLOCKSCALE_D4
#undef BLOCKSCALE_R8
#undef BLOCKSCALE_D8
#undef BLOCKSCALE_R16
#undef BLOCKSCALE_D16
#undef BLOCKSCALE_R24
#undef BLOCKSCALE_D24
#undef BLOCKSCALE_R32
#undef BLOCKSCALE_D32
#undef BLOCKSCALE_R40
#undef BLOCKSCALE_D40
#undef BLOCKSCALE_R48
#undef BLOCKSCALE_D48
#undef BLOCKSCALE_R56
#undef BLOCKSCALE_D56
#undef BLOCKSCALE_R64
#undef BLOCKSCALE_D64
#undef BLOCKSCALE_R72
#undef BLOCKSCALE_D72
#undef BLOCKSCALE_R80
#undef BLOCKSCALE_D80
#undef BLOCKSCALE_R88
#undef BLOCKSCALE_D88
#undef BLOCKSCALE_R96
#undef BLOCKSCALE_D96
#undef BLOCKSCALE_R104
#undef BLOCKSCALE_D104
#undef BLOCKSCALE_R112
#undef BLOCKSCALE_D112
#undef BLOCKSCALE_R120
#undef BLOCKSCALE_D120
#undef BLOCKSCALE_R128
#undef BLOCKSCALE_D128
#undef BLOCKSCALE_R136
#undef BLOCKSCALE_D136
#undef BLOCKSCALE_R144
#undef BLOCKSCALE_D144
#undef BLOCKSCALE_R152
#undef BLOCKSCALE_D152
#undef BLOCKSCALE_R160
#undef BLOCKSCALE_D160
#undef BLOCKSCALE_R168
#undef BLOCKSCALE_D168
#undef BLOCKSCALE_R176
#undef BLOCKSCALE_D176
#undef BLOCKSCALE_R184
#undef BLOCKSCALE_D184
#undef BLOCKSCALE_R192
#undef BLOCKSCALE_D192
#undef BLOCKSCALE_R200
#undef BLOCKSCALE_D200
#undef BLOCKSCALE_R208
#undef BLOCKSCALE_D208
#undef BLOCKSCALE_R216
#undef BLOCKSCALE_D216
#undef BLOCKSCALE_R224
#undef BLOCKSCALE_D224
#undef BLOCKSCALE_R232
#undef BLOCKSCALE_D232
#undef BLOCKSCALE_R240
#undef BLOCKSCALE_D240
#undef BLOCKSCALE_R248
#undef BLOCKSCALE_D248
#undef BLOCKSCALE_R256
#undef BLOCKSCALE_D256

#else

template <class... Fragments>
BLOCKSCALE_DEVICE void wgmma_fence(Fragments&...) {
  emulator::wgmma_fence();
}

template <int kPending, class... Fragments>
BLOCKSCALE_DEVICE void wgmma_wait_group(Fragments&... fragments) {
  emulator::wgmma_wait_group(kPending);
  (emulator::wgmma_release_registers(fragments.value), ...);
}

template <WgmmaElement kA, WgmmaElement kB, int kN>
BLOCKSCALE_DEVICE void wgmma_mma_async(WgmmaAccumulator<kN>& d, WgmmaDescriptor a,
                                       WgmmaDescriptor b, bool accumulate, SourceLocation at) {
  emulator::wgmma(static_cast<int>(kA), static_cast<int>(kB), kN, d.value, a.bits, nullptr, b.bits,
                  accumulate, at);
}

template <WgmmaElement kA, WgmmaElement kB, int kN>
BLOCKSCALE_DEVICE void wgmma_mma_async(WgmmaAccumulator<kN>& d, const WgmmaFragmentA& a,
                                       WgmmaDescriptor b, bool accumulate, SourceLocation at) {
  emulator::wgmma(static_cast<int>(kA), static_cast<int>(kB), kN, d.value, 0, a.value, b.bits,
                  accumulate, at);
}

#endif

}  // namespace blockscale::ptx
