// benchmark_moe on CUDA devices.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/cuda/cold_calls.h"
#include "ops/moe/call_memory.h"
#include "ops/moe/cuda/launch.h"
#include "ops/moe/validate.h"

namespace blockscale::cuda {
namespace {

MoeArguments checked(const MoeArguments& arguments, int repeats) {
  if (repeats < 1) {
    throw Error(ErrorCode::invalid_argument, "repeats",
                "is " + std::to_string(repeats) + ", must be at least 1");
  }
  const MoeArguments host = moe_detail::validated(arguments, {});
  require_kernels_for(moe_detail::kernels(), current_device(), "device");
  return host;
}

/// ids that name the expert `by` behind, and the first ones in place of the last.
std::vector<std::int32_t> turned_ids(const MoeArguments& x, std::int64_t by) {
  const std::int64_t experts = moe_detail::experts_of(x);
  std::vector<std::int32_t> ids(x.ids, x.ids + x.x.rows * x.top_k);
  for (std::int32_t& id : ids) {
    const std::int64_t expert = std::int64_t{id} - x.first_expert;
    if (expert < 0 || expert >= experts) continue;
    id = static_cast<std::int32_t>((expert + by) % experts + x.first_expert);
  }
  return ids;
}

/// A layer's memory on the current device as often, and as many ids, as find caches cold.
class ColdLayers {
 public:
  explicit ColdLayers(const MoeArguments& host) {
    const auto memory = [](MoeArguments& x, const auto& visit) {
      moe_detail::for_each_memory(x, visit);
    };
    layers_.emplace_back(host, memory);
    const std::size_t calls = count_of(static_cast<std::size_t>(moe_work(host).bytes));
    const std::size_t copies = std::min(calls, count_of(layers_[0].bytes()));
    while (layers_.size() < copies) layers_.emplace_back(host, memory);
    const std::int64_t step =
        std::max<std::int64_t>(1, moe_detail::experts_of(host) / std::int64_t(calls));
    const std::size_t bytes = static_cast<std::size_t>(host.x.rows * host.top_k) * 4;
    for (std::size_t i = 0; i < calls; ++i) {
      runtime::DeviceBuffer& ids = ids_.emplace_back(std::max<std::size_t>(bytes, 4));
      if (bytes == 0) continue;
      ids.copy_from_host(turned_ids(host, static_cast<std::int64_t>(i) * step).data(), bytes);
    }
  }

  std::size_t calls() const { return ids_.size(); }
  MoeArguments arguments(std::size_t call) const {
    MoeArguments x = layers_[call % layers_.size()].arguments();
    x.ids = reinterpret_cast<const std::int32_t*>(ids_[call].data());
    return x;
  }
  /// Of the first copy.
  void copy_results() const { layers_[0].copy_results(); }

 private:
  static std::size_t count_of(std::size_t bytes) {
    constexpr std::size_t kMost = 64;
    const auto cold = static_cast<std::size_t>(3 * current_device().l2_bytes);
    return std::clamp<std::size_t>(cold / std::max<std::size_t>(1, bytes) + 1, 1, kMost);
  }

  std::vector<DeviceArguments<MoeArguments>> layers_;
  std::vector<runtime::DeviceBuffer> ids_;
};

}  // namespace

double benchmark_moe(const MoeArguments& arguments, int repeats) {
  const MoeArguments host = checked(arguments, repeats);
  const ColdLayers layers(host);
  const std::int64_t needed = moe_workspace_bytes(host);
  const runtime::DeviceBuffer workspace(
      static_cast<std::size_t>(std::max<std::int64_t>(needed, 1)));
  const runtime::DeviceStream stream;
  const auto launch = [&](void* at, std::size_t call) {
    moe(layers.arguments(call), {}, {at, workspace.data(), needed});
  };
  launch(stream.handle(), 0);  // loads its kernels: no graph may
  const runtime::TimedWork work = {
      [&](void* at, int call) { launch(at, static_cast<std::size_t>(call)); },
      static_cast<int>(layers.calls())};
  const double seconds = runtime::median_seconds(stream, {work}, repeats).front();
  launch(stream.handle(), 0);
  stream.wait();
  layers.copy_results();
  return seconds;
}

}  // namespace blockscale::cuda
