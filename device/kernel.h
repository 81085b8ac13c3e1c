// What kernel source is written with: qualifiers, and the place of a call.
//
// Kernel source compiles for the GPU (nvcc, NVRTC) and as host C++ against device/emulator. It
// includes core/ and device/ only, and no CUDA header. docs/emulator.md has the rules.
#pragma once

#include "core/config.h"

#if defined(__CUDACC__)
#define BLOCKSCALE_GPU 1
#define BLOCKSCALE_DEVICE __device__ __forceinline__
#define BLOCKSCALE_UNROLL _Pragma("unroll")
#define BLOCKSCALE_NO_UNROLL _Pragma("unroll 1")
#define BLOCKSCALE_UNROLL_BY_4 _Pragma("unroll 4")
#define BLOCKSCALE_ASSUME(condition) __builtin_assume(condition)
#else
#include <source_location>
#define BLOCKSCALE_GPU 0
#define BLOCKSCALE_DEVICE inline
#define BLOCKSCALE_UNROLL
#define BLOCKSCALE_NO_UNROLL
#define BLOCKSCALE_UNROLL_BY_4
// What the compiler may take for granted on the GPU is checked by the emulator.
#define BLOCKSCALE_ASSUME(condition) \
  ::blockscale::emulator::assume(static_cast<bool>(condition), #condition)
#endif

namespace blockscale {

#if BLOCKSCALE_GPU
/// The source line of a call: the last argument of each wrapper. Nothing on the GPU.
struct SourceLocation {
  BLOCKSCALE_HD static constexpr SourceLocation current() { return {}; }
};
#else
using SourceLocation = std::source_location;

namespace emulator {
void assume(bool condition, const char* text, SourceLocation at = SourceLocation::current());
}
#endif

}  // namespace blockscale
