// Plans that a thread keeps of its last calls: a call that comes again, as those of a model's every
// step do, is not planned anew.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "blockscale/quantize.h"
#include "blockscale/tensor.h"
#include "runtime/hash.h"

namespace blockscale::cuda {

/// Every bit of a call's arguments, of which its plan is a function on one device. Structs are
/// taken apart by structured bindings, so that a member that is new to one does not compile before
/// it has a name here; that each name is added is for tests to show.
template <std::size_t kMostWords>
class CallKey {
 public:
  std::size_t hash() const {
    return runtime::hash_bytes(std::as_bytes(std::span(words_).first(count_))).low;
  }
  friend bool operator==(const CallKey&, const CallKey&) = default;

 protected:
  template <class... Members>
  void add(const Members&... members) {
    (add_member(members), ...);
  }

 private:
  template <class Number>
    requires(std::is_integral_v<Number> || std::is_enum_v<Number>)
  void add_member(Number x) {
    words_.at(count_++) = static_cast<std::uint64_t>(x);
  }
  void add_member(float x) { add_member(std::bit_cast<std::uint32_t>(x)); }
  void add_member(const void* x) { add_member(reinterpret_cast<std::uintptr_t>(x)); }
  void add_member(const ScaledTensorView& x) {
    const auto& [recipe, rows, k, batch, values, row_stride, batch_stride, scales, layout, leading,
                 scale_batch_stride, factor, sense, factor_batch_stride] = x;
    add(recipe, rows, k, batch, values, row_stride, batch_stride, scales, layout, leading,
        scale_batch_stride, factor, sense, factor_batch_stride);
  }
  void add_member(const MatrixView& x) {
    const auto& [data, dtype, rows, columns, row_stride, batch, batch_stride] = x;
    add(data, dtype, rows, columns, row_stride, batch, batch_stride);
  }
  void add_member(Identity) {}
  void add_member(Silu) {}
  void add_member(const Gelu& x) { add(x.form); }
  void add_member(const Swiglu& x) {
    const auto& [order, group, limit, alpha, up_shift] = x;
    add(order, group, limit, alpha, up_shift);
  }
  void add_member(const Modulate& x) { add(x.scale, x.shift); }
  void add_member(const RmsNorm& x) { add(x.weight, x.epsilon); }
  void add_member(const QuantizeInput& x) {
    add(x.index());
    std::visit([&](const auto& alternative) { add(alternative); }, x);
  }
  template <class Member>
  void add_member(const std::optional<Member>& x) {
    add(x.has_value());
    if (x) add(*x);
  }

  std::array<std::uint64_t, kMostWords> words_{};
  std::size_t count_ = 0;
};

/// A thread's plans of calls, at most one for each hash modulo kSlots.
template <std::size_t kSlots, class Key, class Plan>
class KeptPlans {
 public:
  static KeptPlans& of_thread() {
    thread_local KeptPlans plans;
    return plans;
  }

  /// That of calls with these arguments; null if there is none.
  Plan* find(const Key& key) {
    const auto& slot = slot_of(key);
    return slot && slot->key == key ? &slot->plan : nullptr;
  }
  /// Keeps a plan, maybe in another's place.
  void keep(const Key& key, Plan plan) {
    slot_of(key) = std::make_unique<Kept>(Kept{key, std::move(plan)});
  }

 private:
  struct Kept {
    Key key;
    Plan plan;
  };

  std::unique_ptr<Kept>& slot_of(const Key& key) { return slots_[key.hash() % kSlots]; }

  std::vector<std::unique_ptr<Kept>> slots_ = std::vector<std::unique_ptr<Kept>>(kSlots);
};

}  // namespace blockscale::cuda
