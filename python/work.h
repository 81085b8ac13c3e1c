// Where the arrays of a call lie, and where its work is done.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "array.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "blockscale/error.h"

namespace blockscale::python {

/// Whether products and quantizers of this thread are rehearsed: arguments are checked as ever, and
/// no element is read or written. What torch.compile's fake tensors ask for.
inline thread_local bool is_rehearsal = false;

/// cuda::Execution::overlap of all calls from Python.
inline std::atomic<bool> overlap = true;

/// Of one call: `()` for the CPU, or (device, stream, make_workspace) of _device.py. For a call
/// that needs a workspace, make_workspace(bytes) gives an array.
class Work final : public cuda::WorkspaceSource {
 public:
  explicit Work(const nb::tuple& where);
  /// On torch's current stream; torch's own allocator is asked first. `place` is a Device.
  Work(int device, nb::handle place);
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const Place& place() const { return place_; }
  bool is_cuda() const { return place_.cuda; }
  const cuda::Execution& execution() const { return execution_; }

  void* allocate(std::int64_t bytes) override;

 private:
  void set_device(int device, std::uintptr_t stream);

  Place place_;
  nb::object make_workspace_;
  bool of_torch_ = false;
  TorchBytes bytes_{nullptr, nullptr};
  Array workspace_;
  cuda::Execution execution_;
};

/// Where the arrays of a call lie that came as the caller gave them: numpy's own, or on a device
/// those of torch. What is here takes them as they are, or says that Python has to look at them.
class TakenPlace {
 public:
  /// Of a plain array: where it lies, and its format. Nothing for what is not taken as it is.
  static std::optional<TakenPlace> of(nb::handle array);

  Format format() const { return format_; }
  nb::handle place() const { return place_; }  // "numpy", or a Device

  /// The format of a plain array that lies here, with its dimensions; nothing for others.
  std::optional<Format> format_of(nb::handle array, int& dimensions) const;
  /// Makes the pair (array, Format) of a plain array that lies here; None stays None. False for
  /// others.
  bool pair(nb::object& array) const;
  /// Whether it is an array of int32, or of f32, and lies here.
  bool has_int32(nb::handle array) const;
  bool has_f32(nb::handle array) const;
  /// Whether it is a ScaledTensor, and lies here.
  bool has(nb::handle scaled_tensor) const;
  /// body(the work of a call here).
  template <class Body>
  auto run(const Body& body) const {
    return is_cuda_ ? body(Work(device_, place_)) : body(Work(nb::tuple()));
  }
  /// An operand of a product as operand_argument takes it; null if it is not taken as it is.
  nb::object operand(nb::handle x) const;

 private:
  Format format_ = Format::f32;
  nb::object place_;
  bool is_cuda_ = false;
  int device_ = 0;
};

/// The work of a call whose arrays are torch's, on the CPU or a CUDA device.
std::unique_ptr<Work> work_of_torch(nb::dlpack::device device);

/// What plans are described for: the chip of that name, else the default one.
inline cuda::Chip described_chip(const std::optional<std::string>& name) {
  return name ? cuda::chip_named(*name) : cuda::default_chip();
}

/// use(make()); false where make refuses an argument, for Python to say why.
template <class Make, class Use>
bool taken(const Make& make, const Use& use) {
  bool is_made = false;
  try {
    const auto call = make();
    is_made = true;
    return use(call);
  } catch (const Error&) {
    if (is_made) throw;
    return false;
  }
}

}  // namespace blockscale::python
