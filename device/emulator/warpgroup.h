// The products of a warpgroup that have been issued: what each thread says, until all have said the
// same. Internal to the emulator.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "device/emulator/clock.h"
#include "device/emulator/meaning/wgmma.h"
#include "device/kernel.h"

namespace blockscale::emulator {

struct Thread;

/// The operands of wgmma.mma_async that all threads share.
struct WgmmaOperands {
  int a_element = 0;  // a ptx::WgmmaElement
  int b_element = 0;
  uint32_t n = 0;
  bool a_in_registers = false;
  uint64_t a_descriptor = 0;
  uint64_t b_descriptor = 0;
  bool accumulate = false;

  friend bool operator==(const WgmmaOperands&, const WgmmaOperands&) = default;
};

/// What the threads bring to one product.
struct WgmmaProduct {
  std::array<float*, meaning::kWgmmaThreads> d;
  std::array<std::array<uint32_t, 4>, meaning::kWgmmaThreads> a;
  /// What the threads know when they issue it, each once: seen, and published.
  std::vector<std::array<ClockPointer, 2>> known;
};

/// One instruction that all threads of a warpgroup execute, each in its own time.
struct WgmmaStep {
  enum class Kind : uint8_t { fence, product, commit, wait };
  Kind kind = Kind::fence;
  uint32_t parameter = 0;  // of a product and a commit the group, of a wait the groups left pending
  SourceLocation at;       // of a product and a commit
  WgmmaOperands operands = {};  // of a product
  uint32_t arrived = 0;         // threads
  const Thread* first = nullptr;
  std::unique_ptr<WgmmaProduct> product = nullptr;
};

/// Four warps of a block. Steps end in order: a product is done when the last thread issues it.
struct Warpgroup {
  uint32_t index = 0;              // in its block
  const Thread* exited = nullptr;  // the first of its threads that has
  uint64_t ended = 0;              // steps that all threads have executed
  std::deque<WgmmaStep> steps;     // that only some have
  uint32_t completed_group = 0;
  std::vector<Thread*> waiting;
  std::vector<std::unique_ptr<WgmmaProduct>> free_products;
};

/// What a thread has to do with its warpgroup's products.
struct WgmmaThread {
  /// Registers of an accumulator or of A, by the address of their first.
  struct Registers {
    const void* first = nullptr;
    uint32_t group = 0;  // of the newest product that uses them; 0: none
    uint32_t n = 0;      // of that product, if it began since the last fence and they are its D
    SourceLocation product;
    bool accessed = false;  // by the thread, since the last fence
    SourceLocation access;
  };
  uint64_t steps = 0;  // that it has executed
  bool has_fenced = false;
  uint32_t open_group = 1;
  uint32_t waited_group = 0;
  SourceLocation at;                 // of the newest product or commit
  std::vector<Registers> registers;  // that are pending, or used since the last fence
};

}  // namespace blockscale::emulator
