#include "runtime/cuda/measure.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "blockscale/error.h"
#include "runtime/cuda/measure_table.h"

namespace blockscale::runtime {
namespace {

const MeasureTable& table() {
  static const MeasureTable* const functions = [] {
    const DynamicLibrary library = driver().library();  // throws where there is none that works
    auto functions_found = std::make_unique<MeasureTable>(library);
    if (!functions_found->missing().empty()) {
      throw Error(ErrorCode::unsupported, library.path().string(),
                  "has no " + functions_found->missing().front());
    }
    return functions_found.release();
  }();
  return *functions;
}

cu::Stream stream_of(const DeviceStream& stream) {
  return static_cast<cu::Stream>(stream.handle());
}

class Event {
 public:
  Event() { table().event_create(&event_, 0); }
  ~Event() { (void)table().event_destroy.status(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const DeviceStream& stream) { table().event_record(event_, stream_of(stream)); }
  double seconds_since(const Event& start) const {
    table().event_wait(event_);
    float milliseconds = 0;
    table().event_elapsed(&milliseconds, start.event_, event_);
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cu::Event event_ = nullptr;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) table().allocate(&address_, bytes);
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ != 0) (void)table().free.status(address_);
}

void DeviceBuffer::fill(unsigned char value) {
  if (bytes_ > 0) table().fill(address_, value, bytes_);
  wait_for_device();
}

void DeviceBuffer::copy_from_host(const void* from, std::size_t bytes, std::size_t offset) {
  if (bytes > 0) table().copy_from_host(address_ + offset, from, bytes);
  wait_for_device();
}

void DeviceBuffer::copy_to_host(void* to, std::size_t bytes, std::size_t offset) const {
  if (bytes > 0) table().copy_to_host(to, address_ + offset, bytes);
}

void DeviceBuffer::copy_from_host(const DeviceStream& stream, const void* from, std::size_t bytes) {
  table().copy_from_host_in_stream(address_, from, bytes, stream_of(stream));
  stream.wait();
}

void DeviceBuffer::copy_to_host(const DeviceStream& stream, void* to, std::size_t bytes) const {
  driver().copy_to_host(to, address_, bytes, stream_of(stream));
  stream.wait();
}

void wait_for_device() {
  table().context_synchronize();
}

DeviceStream::DeviceStream() {
  constexpr unsigned kNonBlocking = 1;
  cu::Stream stream = nullptr;
  table().stream_create(&stream, kNonBlocking);
  stream_ = stream;
}

DeviceStream::~DeviceStream() {
  (void)table().stream_destroy.status(stream_of(*this));
}

void DeviceStream::wait() const {
  table().stream_wait(stream_of(*this));
}

DeviceGraph::DeviceGraph(const DeviceStream& stream,
                         const std::function<void(void* stream)>& work) {
  const MeasureTable& t = table();
  Graph graph = nullptr;
  t.begin_capture(stream_of(stream), cu::CaptureMode::thread_local_);
  try {
    work(stream.handle());
  } catch (...) {
    (void)t.end_capture.status(stream_of(stream), &graph);
    if (graph != nullptr) (void)t.graph_destroy.status(graph);
    throw;
  }
  t.end_capture(stream_of(stream), &graph);
  GraphExec executable = nullptr;
  const cu::Result result = t.graph_instantiate.status(&executable, graph, 0);
  (void)t.graph_destroy.status(graph);
  if (result != cu::kSuccess) t.raise(t.graph_instantiate.name(), result);
  graph_ = executable;
}

DeviceGraph::~DeviceGraph() {
  if (graph_ != nullptr) (void)table().graph_exec_destroy.status(static_cast<GraphExec>(graph_));
}

void DeviceGraph::launch(const DeviceStream& stream) const {
  table().graph_launch(static_cast<GraphExec>(graph_), stream_of(stream));
}

std::vector<double> median_seconds(const DeviceStream& stream, const std::vector<TimedWork>& works,
                                   int repeats) {
  if (repeats < 1) {
    throw Error(ErrorCode::invalid_argument, "repeats",
                "is " + std::to_string(repeats) + ", must be at least 1");
  }
  std::vector<DeviceGraph> graphs;
  for (const TimedWork& work : works) {
    work.launch(stream.handle(), 0);  // loads its kernels; what fails, fails outside a capture
    stream.wait();
    graphs.emplace_back(stream, [&](void* captured) {
      for (int i = 0; i < work.parts; ++i) work.launch(captured, i);
    });
  }
  Event start, stop;
  std::vector<std::vector<double>> seconds(works.size());
  for (int turn = -2; turn < repeats; ++turn) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      start.record(stream);
      graphs[i].launch(stream);
      stop.record(stream);
      const double elapsed = stop.seconds_since(start) / works[i].parts;
      if (turn >= 0) seconds[i].push_back(elapsed);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& s : seconds) medians.push_back(median(std::move(s)));
  return medians;
}

}  // namespace blockscale::runtime
