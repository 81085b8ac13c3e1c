// The floating-point environment that kernels are specified in: round to nearest even, no flush of
// subnormals, no traps. A caller may run with another (torch.set_flush_denormal, -ffast-math).
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace blockscale {

/// Sets the default environment for the current thread and restores the caller's at the end of the
/// scope. Put one into the body of every piece of parallel work.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() : saved_(read()) { write(kDefault); }
  ~DefaultFloatEnvironment() { write(saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr std::uint64_t kDefault = 0x1F80;  // MXCSR: all exceptions masked, nearest
  static std::uint64_t read() { return _mm_getcsr(); }
  static void write(std::uint64_t value) { _mm_setcsr(static_cast<unsigned int>(value)); }
#elif defined(__aarch64__)
  static constexpr std::uint64_t kDefault = 0;  // FPCR
  static std::uint64_t read() {
    std::uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#else
  static constexpr std::uint64_t kDefault = 0;
  static std::uint64_t read() { return 0; }
  static void write(std::uint64_t) {}
#endif

  std::uint64_t saved_;
};

}  // namespace blockscale
