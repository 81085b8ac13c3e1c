// Streams that have a part of a GPU.
#pragma once

#include "runtime/driver.h"

namespace blockscale::test {

/// A stream of a green context, which may use `multiprocessors` of device 0.
class GreenStream {
 public:
  explicit GreenStream(unsigned multiprocessors) {
    namespace cu = runtime::cu;
    constexpr auto kType = cu::ResourceType::multiprocessors;
    cu::Device device = 0;
    runtime::driver().device_get(&device, 0);
    cu::Resource all{}, part{};
    call<cu::Device, cu::Resource*, cu::ResourceType>("cuDeviceGetDevResource", device, &all,
                                                      kType);
    unsigned groups = 1;
    call<cu::Resource*, unsigned*, const cu::Resource*, cu::Resource*, unsigned, unsigned>(
        "cuDevSmResourceSplitByCount", &part, &groups, &all, nullptr, 0u, multiprocessors);
    void* description = nullptr;
    call<void**, cu::Resource*, unsigned>("cuDevResourceGenerateDesc", &description, &part, 1u);
    constexpr unsigned kDefaultStream = 1, kNonBlocking = 1;
    call<cu::GreenContext*, void*, cu::Device, unsigned>("cuGreenCtxCreate", &context_, description,
                                                         device, kDefaultStream);
    call<cu::Stream*, cu::GreenContext, unsigned, int>("cuGreenCtxStreamCreate", &stream_, context_,
                                                       kNonBlocking, 0);
  }
  ~GreenStream() {
    (void)status<runtime::cu::Stream>("cuStreamDestroy_v2", stream_);
    (void)status<runtime::cu::GreenContext>("cuGreenCtxDestroy", context_);
  }
  GreenStream(const GreenStream&) = delete;
  GreenStream& operator=(const GreenStream&) = delete;

  void* handle() const { return stream_; }

 private:
  template <class... Arguments>
  static runtime::cu::Result status(const char* name, Arguments... arguments) {
    runtime::cu::Result (*function)(Arguments...) = nullptr;
    const bool found = runtime::driver().library().load(name, function);
    return found ? function(arguments...) : runtime::cu::kInvalidValue;
  }
  template <class... Arguments>
  static void call(const char* name, Arguments... arguments) {
    const runtime::cu::Result result = status<Arguments...>(name, arguments...);
    if (result != runtime::cu::kSuccess) runtime::driver().raise(name, result);
  }

  runtime::cu::GreenContext context_ = nullptr;
  runtime::cu::Stream stream_ = nullptr;
};

}  // namespace blockscale::test
