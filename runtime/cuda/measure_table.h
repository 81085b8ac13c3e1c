// The driver's functions that only tests, benchmarks and trials of kernels need, through
// runtime/cuda/measure.h.
#pragma once

#include <cstddef>

#include "runtime/cuda/driver.h"

namespace blockscale::runtime {

/// Handles, opaque as those of driver.h.
using Graph = struct GraphObject*;
using GraphExec = struct GraphExecObject*;

class MeasureTable : public DriverLibrary {
 public:
  using DriverLibrary::DriverLibrary;

  template <class... Arguments>
  using F = DriverFunction<Arguments...>;

  F<cu::DevicePointer*, std::size_t> allocate{*this, "cuMemAlloc_v2"};
  F<cu::DevicePointer> free{*this, "cuMemFree_v2"};
  F<cu::DevicePointer, unsigned char, std::size_t> fill{*this, "cuMemsetD8_v2"};
  F<cu::DevicePointer, const void*, std::size_t> copy_from_host{*this, "cuMemcpyHtoD_v2"};
  F<void*, cu::DevicePointer, std::size_t> copy_to_host{*this, "cuMemcpyDtoH_v2"};
  F<cu::DevicePointer, const void*, std::size_t, cu::Stream> copy_from_host_in_stream{
      *this, "cuMemcpyHtoDAsync_v2"};
  F<> context_synchronize{*this, "cuCtxSynchronize"};
  F<cu::Stream*, unsigned> stream_create{*this, "cuStreamCreate"};
  F<cu::Stream> stream_destroy{*this, "cuStreamDestroy_v2"};
  F<cu::Stream> stream_wait{*this, "cuStreamSynchronize"};
  F<cu::Stream, cu::CaptureMode> begin_capture{*this, "cuStreamBeginCapture_v2"};
  F<cu::Stream, Graph*> end_capture{*this, "cuStreamEndCapture"};
  F<GraphExec*, Graph, unsigned long long> graph_instantiate{*this, "cuGraphInstantiateWithFlags"};
  F<GraphExec, cu::Stream> graph_launch{*this, "cuGraphLaunch"};
  F<Graph> graph_destroy{*this, "cuGraphDestroy"};
  F<GraphExec> graph_exec_destroy{*this, "cuGraphExecDestroy"};
  F<cu::Event*, unsigned> event_create{*this, "cuEventCreate"};
  F<cu::Event, cu::Stream> event_record{*this, "cuEventRecord"};
  F<cu::Event> event_wait{*this, "cuEventSynchronize"};
  F<float*, cu::Event, cu::Event> event_elapsed{*this, "cuEventElapsedTime"};
  F<cu::Event> event_destroy{*this, "cuEventDestroy_v2"};
};

}  // namespace blockscale::runtime
