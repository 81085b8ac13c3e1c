// In which stream calls on a GPU run, and calls of many threads at once: every byte equal to the
// CPU's. Skipped, and says so, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/test/gpu_support.h"
#include "ops/quantize/test/random_blocks.h"
#include "tests/gpu.h"
#include "tests/stream_gate.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using runtime::DeviceStream;
using test::Case;
using test::GpuCall;
using test::Operands;
using test::OutputBytes;
using test::random_blocks;
using test::size_of;
using test::StreamGate;

using CudaGpuStreams = test::OnGpu;

void* const kLegacy = reinterpret_cast<void*>(1);     // CU_STREAM_LEGACY
void* const kPerThread = reinterpret_cast<void*>(2);  // CU_STREAM_PER_THREAD

struct Memory {
  const std::byte* data;
  std::size_t bytes;
};

/// A call of the library.
struct Work {
  std::string name;
  std::function<void(void* stream)> launch;
  std::function<void()> restart;  // fills with garbage what it writes
  std::vector<Memory> written;
  std::function<void()> expect_bytes_of_cpu;
};

/// Memory on the device, of garbage.
std::shared_ptr<DeviceBuffer> garbage(std::int64_t bytes) {
  auto buffer = std::make_shared<DeviceBuffer>(size_of(bytes));
  buffer->fill(OutputBytes::kGarbage);
  return buffer;
}

std::shared_ptr<DeviceBuffer> copied(const void* data, std::int64_t bytes) {
  auto buffer = std::make_shared<DeviceBuffer>(size_of(bytes));
  buffer->copy_from_host(data, buffer->bytes());
  return buffer;
}

Memory memory_of(const DeviceBuffer& buffer) {
  return {buffer.data(), buffer.bytes()};
}

void expect_equal(const DeviceBuffer& actual, const void* expected, const std::string& text) {
  std::vector<std::uint8_t> bytes(actual.bytes());
  actual.copy_to_host(bytes.data(), bytes.size());
  EXPECT_EQ(std::memcmp(bytes.data(), expected, bytes.size()), 0) << text;
}

/// `operands` are kept, since the case points to them.
Work quantizing(const Case& c, const std::shared_ptr<Operands>& operands = nullptr) {
  const auto call = std::make_shared<GpuCall>(c, random_blocks(c, 1));
  const auto workspace = garbage(call->workspace_bytes());
  Work work;
  work.name = "quantize " + describe(c);
  work.launch = [=](void* stream) { call->run(stream, *workspace); };
  work.restart = [=] {
    call->restart();
    workspace->fill(OutputBytes::kGarbage);
  };
  work.written = {{call->values().device(), call->values().bytes()}, memory_of(*workspace)};
  work.expect_bytes_of_cpu = [call, operands] { call->expect_bytes_of_cpu(); };
  return work;
}

/// Of a recipe whose scales are read from their own memory.
Work dequantizing() {
  const Case c{Recipe::fp8_1x128, Format::bf16, 256, 1024};
  const std::vector<std::uint8_t> x = random_blocks(c, 2);
  const auto quantized = std::make_shared<ScaledTensor>(c.recipe, c.rows, c.k);
  quantize({x.data(), c.dtype, c.rows, c.k}, quantized->view());
  const auto expected = std::make_shared<std::vector<std::uint8_t>>(x.size());
  dequantize(quantized->view(), {expected->data(), c.dtype, c.rows, c.k});
  const auto there =
      std::make_shared<test::TensorOnDevice>(quantized->view(), value_bytes(c.recipe, c.rows, c.k),
                                             scale_bytes(c.recipe, c.layout, c.rows, c.k));
  const auto out = garbage(c.rows * c.k * 2);
  Work work;
  work.name = "dequantize";
  work.launch = [=](void* stream) {
    cuda::dequantize(there->view(), {out->data(), c.dtype, c.rows, c.k}, {stream, nullptr, 0});
  };
  work.restart = [=] { out->fill(OutputBytes::kGarbage); };
  work.written = {memory_of(*out)};
  work.expect_bytes_of_cpu = [=] { expect_equal(*out, expected->data(), "dequantize"); };
  return work;
}

Work finding_maxima() {
  const Case c{Recipe::fp8_tensor, Format::bf16, 300, 1000, 3};
  const std::vector<std::uint8_t> x = random_blocks(c, 3);
  const auto expected = std::make_shared<std::vector<float>>(3);
  absolute_maximum({x.data(), c.dtype, c.rows, c.k, 0, c.batch}, expected->data());
  const auto there = copied(x.data(), static_cast<std::int64_t>(x.size()));
  const MatrixView view{there->data(), c.dtype, c.rows, c.k, 0, c.batch};
  const auto out = garbage(12);
  const auto workspace = garbage(cuda::absolute_maximum_workspace_bytes(view));
  Work work;
  work.name = "absolute_maximum";
  work.launch = [=](void* stream) {
    (void)there;  // kept
    cuda::absolute_maximum(
        view, {}, reinterpret_cast<float*>(out->data()),
        {stream, workspace->data(), static_cast<std::int64_t>(workspace->bytes())});
  };
  work.restart = [=] {
    out->fill(OutputBytes::kGarbage);
    workspace->fill(OutputBytes::kGarbage);
  };
  work.written = {memory_of(*out), memory_of(*workspace)};
  work.expect_bytes_of_cpu = [=] { expect_equal(*out, expected->data(), "absolute_maximum"); };
  return work;
}

/// In several parts, and so launches.
Work quantizing_rows_and_columns() {
  const Case c{Recipe::fp8_1x128, Format::bf16, 4096, 7168};
  const std::vector<std::uint8_t> x = random_blocks(c, 4);
  const auto rows = std::make_shared<ScaledTensor>(c.recipe, c.rows, c.k);
  const auto columns = std::make_shared<ScaledTensor>(c.recipe, c.k, c.rows);
  quantize_rows_and_columns({x.data(), c.dtype, c.rows, c.k}, rows->view(), columns->view());
  const auto there = copied(x.data(), static_cast<std::int64_t>(x.size()));
  const MatrixView view{there->data(), c.dtype, c.rows, c.k};
  std::vector<std::shared_ptr<DeviceBuffer>> outputs;
  const auto placed = [&](const ScaledTensor& tensor) {
    MutableScaledTensorView v = const_cast<ScaledTensor&>(tensor).view();
    v.values = outputs.emplace_back(garbage(value_bytes(v.recipe, v.rows, v.k)))->data();
    v.scales = outputs.emplace_back(garbage(scale_bytes(v.recipe, v.layout, v.rows, v.k)))->data();
    return v;
  };
  const MutableScaledTensorView rows_there = placed(*rows), columns_there = placed(*columns);
  const auto workspace = outputs.emplace_back(
      garbage(cuda::quantize_rows_and_columns_workspace_bytes(view, rows_there, columns_there)));
  Work work;
  work.name = "quantize_rows_and_columns";
  work.launch = [=](void* stream) {
    (void)there;  // kept
    cuda::quantize_rows_and_columns(
        view, rows_there, columns_there, {},
        {stream, workspace->data(), static_cast<std::int64_t>(workspace->bytes())});
  };
  work.restart = [=] {
    for (const auto& output : outputs) output->fill(OutputBytes::kGarbage);
  };
  for (const auto& output : outputs) work.written.push_back(memory_of(*output));
  work.expect_bytes_of_cpu = [=] {
    expect_equal(*outputs[0], rows->view().values, "values of rows");
    expect_equal(*outputs[1], rows->view().scales, "scales of rows");
    expect_equal(*outputs[2], columns->view().values, "values of columns");
    expect_equal(*outputs[3], columns->view().scales, "scales of columns");
  };
  return work;
}

/// rms_norm with blocks of 128 rows.
Case norm_case(const Operands& weight, Format dtype, std::int64_t rows, std::int64_t k) {
  Case c{Recipe::fp8_128x128, dtype, rows, k};
  weight.use(c, InputTransform::rms_norm);
  return c;
}

/// Calls of one launch, of two, and of several; all kernels are loaded.
std::vector<Work> all_kinds_of_work() {
  std::vector<Work> works;
  for (const Recipe recipe :
       {Recipe::mxfp4, Recipe::nvfp4, Recipe::fp8_tensor, Recipe::fp8_row, Recipe::fp8_128x128}) {
    works.push_back(quantizing({recipe, Format::bf16, 300, 1024}));
  }
  const auto weight = std::make_shared<Operands>(Format::bf16, 1, 8192);
  works.push_back(quantizing(norm_case(*weight, Format::bf16, 512, 8192), weight));
  works.push_back(dequantizing());
  works.push_back(finding_maxima());
  works.push_back(quantizing_rows_and_columns());
  for (const Work& work : works) {
    work.launch(nullptr);
    runtime::wait_for_device();
    work.expect_bytes_of_cpu();
  }
  return works;
}

/// Whether nothing of what a call writes has been written.
bool is_untouched(const Work& work, const test::Peephole& peephole) {
  return std::all_of(work.written.begin(), work.written.end(), [&](const Memory& memory) {
    const std::vector<std::uint8_t> bytes = peephole.read(memory.data, memory.bytes);
    return std::all_of(bytes.begin(), bytes.end(),
                       [](std::uint8_t byte) { return byte == OutputBytes::kGarbage; });
  });
}

/// Time for what is held back to show that it is not.
void wait_a_little() {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// Work that runs in another stream would be done, or begun, before its own is let go.
TEST_F(CudaGpuStreams, WorkWaitsForWhatItsStreamWaitsFor) {
  const DeviceStream own;
  const test::Peephole peephole;
  for (const Work& work : all_kinds_of_work()) {
    for (void* const stream : {static_cast<void*>(nullptr), kLegacy, kPerThread, own.handle()}) {
      work.restart();
      StreamGate gate(stream);
      work.launch(stream);
      wait_a_little();
      EXPECT_TRUE(is_untouched(work, peephole)) << work.name << " in " << stream;
      ASSERT_TRUE(gate.has_held()) << work.name << " in " << stream;
      gate.open();
      cuda::synchronize(stream);
      work.expect_bytes_of_cpu();
    }
  }
}

/// Whether compute-sanitizer runs this program (`./dev gpu-test --sanitizer`): its launches wait
/// for what is in flight.
bool runs_under_sanitizer() {
  return std::getenv("BLOCKSCALE_SANITIZER") != nullptr;
}

/// The default streams differ: the legacy one waits for streams that block, the one of the thread
/// does not.
TEST_F(CudaGpuStreams, OnlyTheLegacyStreamWaitsForOthers) {
  if (runs_under_sanitizer()) GTEST_SKIP() << "compute-sanitizer makes launches wait";
  const DeviceStream own;
  const test::BlockingStream other;
  const test::Peephole peephole;
  for (const Work& work : all_kinds_of_work()) {
    for (void* const stream : {static_cast<void*>(nullptr), kLegacy, kPerThread, own.handle()}) {
      const bool legacy = stream == nullptr || stream == kLegacy;
      work.restart();
      StreamGate gate(other.handle());
      work.launch(stream);
      if (legacy) {
        wait_a_little();
      } else {
        cuda::synchronize(stream);
      }
      EXPECT_EQ(is_untouched(work, peephole), legacy) << work.name << " in " << stream;
      ASSERT_TRUE(gate.has_held()) << work.name << " in " << stream;
      gate.open();
      runtime::wait_for_device();
      work.expect_bytes_of_cpu();
    }
  }
}

/// The per-thread default stream is that of the thread that calls.
TEST_F(CudaGpuStreams, ThePerThreadStreamIsTheCallers) {
  if (runs_under_sanitizer()) GTEST_SKIP() << "compute-sanitizer makes launches wait";
  const test::Peephole peephole;
  for (const Work& work : all_kinds_of_work()) {
    work.restart();
    StreamGate gate(kPerThread);
    std::thread([&] {
      const cuda::DeviceScope device(0);
      work.launch(kPerThread);
      cuda::synchronize(kPerThread);
    }).join();
    EXPECT_FALSE(is_untouched(work, peephole)) << work.name;
    ASSERT_TRUE(gate.has_held()) << work.name;
    gate.open();
    runtime::wait_for_device();
    work.expect_bytes_of_cpu();
  }
}

/// Calls of one thread, which share a workspace.
struct Calls {
  std::vector<GpuCall> calls;
  DeviceBuffer workspace;

  void add(const Case& c, std::uint64_t seed) { calls.emplace_back(c, random_blocks(c, seed)); }
  void make_workspace() {
    std::int64_t bytes = 0;
    for (const GpuCall& call : calls) bytes = std::max(bytes, call.workspace_bytes());
    workspace = DeviceBuffer(size_of(bytes));
    workspace.fill(0xFF);
  }
};

/// Each thread runs its calls, again and again, in a stream of its own; with `one_at_a_time` it
/// waits after each.
void run_at_once(const std::vector<Calls>& threads, int repeats, bool one_at_a_time) {
  runtime::wait_for_device();
  std::latch start(static_cast<std::ptrdiff_t>(threads.size()));
  std::vector<std::thread> running;
  for (const Calls& mine : threads) {
    running.emplace_back([&, repeats, one_at_a_time] {
      start.arrive_and_wait();
      try {
        const cuda::DeviceScope device(0);
        const DeviceStream stream;
        for (int repeat = 0; repeat < repeats; ++repeat) {
          for (const GpuCall& call : mine.calls) {
            call.run(stream.handle(), mine.workspace);
            if (one_at_a_time) stream.wait();
          }
        }
        stream.wait();
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  for (const Calls& mine : threads) {
    for (const GpuCall& call : mine.calls) call.expect_bytes_of_cpu();
  }
}

/// Kernels of one launch and of two, of the same shapes in all threads, with other elements.
TEST_F(CudaGpuStreams, ManyThreadsCallAtOnce) {
  const Operands operands(Format::bf16, 1, 1024);
  std::vector<Calls> threads(8);
  std::uint64_t seed = 10;
  for (Calls& mine : threads) {
    for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor, Recipe::fp8_row, Recipe::mxfp4,
                                Recipe::fp8_1x128, Recipe::fp8_128x128}) {
      for (int t = 0; t < kInputTransformCount; ++t) {
        Case c{recipe, Format::bf16, t % 2 == 0 ? 300 : 1024, 1024};
        operands.use(c, static_cast<InputTransform>(t));
        mine.add(c, seed++);
      }
    }
    mine.make_workspace();
  }
  run_at_once(threads, 40, false);
}

}  // namespace
}  // namespace blockscale
