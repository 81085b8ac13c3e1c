// The table of driver functions, devices and tensor maps, against a fake libcuda.so.1.
#include "runtime/cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "blockscale/device.h"
#include "blockscale/system.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/measure_table.h"
#include "runtime/cuda/tensor_map.h"
#include "tests/expect_error.h"
#include "tests/fake_libcuda.h"

#if defined(BLOCKSCALE_HAS_CUDA_HEADERS)
#include <cuda.h>
#endif

namespace blockscale::runtime {
namespace {

using test::expect_error;
using test::expect_invalid;
using test::fake_cuda;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class Driver : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("BLOCKSCALE_LIBCUDA", BLOCKSCALE_FAKE_LIBCUDA, 1); }
  void SetUp() override { fake_.reset(); }
  test::FakeCuda& fake_ = fake_cuda(BLOCKSCALE_FAKE_LIBCUDA);
};

using Devices = Driver;
using TensorMaps = Driver;

TEST_F(Driver, HasEveryFunctionOfTheTable) {
  EXPECT_THAT(driver().missing(), IsEmpty());
  EXPECT_EQ(driver().library().path(), BLOCKSCALE_FAKE_LIBCUDA);
  EXPECT_EQ(&driver(), &driver());
}

TEST_F(Driver, ErrorsHoldTheDriversText) {
  fake_.failures["cuDeviceGetCount"] = 999;
  int count = 0;
  expect_error(ErrorCode::device, "driver",
               "cuDeviceGetCount failed with error 999 (CUDA_ERROR_OF_THE_FAKE): the fake was told "
               "to fail",
               [&] { driver().device_count(&count); });
  EXPECT_EQ(driver().device_count.status(&count), 999);
}

TEST_F(Driver, OneThatIsTooOldIsRefusedAndStillDescribed) {
  const DriverTable old{DynamicLibrary(BLOCKSCALE_OLD_LIBCUDA)};
  EXPECT_THAT(old.missing(), Contains("cuLibraryLoadData"));
  EXPECT_TRUE(old.device_count);
  EXPECT_FALSE(old.launch);
  expect_error(ErrorCode::unsupported, BLOCKSCALE_OLD_LIBCUDA, "has no cuLibraryLoadData",
               [&] { require_usable(old); });
}

/// Expects the error that says that there is no GPU, and why.
template <class Body>
void expect_no_gpu(const std::string& why, Body body) {
  expect_error(ErrorCode::not_found, "", why, [&] {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith("no GPU: "));
      throw;
    }
  });
}

TEST_F(Driver, OneThatIsNotThereIsNoGpu) {
  const DriverTable none{DynamicLibrary("/none/libcuda.so.1")};
  expect_no_gpu("cannot open shared object file", [&] { require_usable(none); });
}

/// What is there and cannot be loaded is an error: a GPU may be, too.
TEST_F(Driver, OneThatCannotBeLoadedSaysWhy) {
  const std::string path = testing::TempDir() + "blockscale_no_library.so.1";
  std::ofstream(path) << "no library";
  const DriverTable damaged{DynamicLibrary(path)};
  std::filesystem::remove(path);
  expect_error(ErrorCode::device, "driver", "cannot be loaded: " + path,
               [&] { require_usable(damaged); });
}

TEST_F(Driver, OneWithoutDevicesIsNoGpu) {
  const DriverTable table{DynamicLibrary(BLOCKSCALE_FAKE_LIBCUDA)};
  fake_.failures["cuInit"] = cu::kNoDevice;
  expect_no_gpu("cuInit failed with error 100", [&] { require_usable(table); });
  fake_.failures.clear();
  fake_.failures["cuDeviceGetCount"] = cu::kNoDevice;
  expect_no_gpu("cuDeviceGetCount failed with error 100", [&] { DeviceList list(table); });
  fake_.failures.clear();
  fake_.devices = 0;
  expect_no_gpu("shows no device", [&] { DeviceList list(table); });
}

TEST_F(Driver, OneThatDoesNotWorkSaysWhy) {
  const DriverTable table{DynamicLibrary(BLOCKSCALE_FAKE_LIBCUDA)};
  fake_.failures["cuInit"] = 999;
  expect_error(ErrorCode::device, "driver", "cuInit failed with error 999",
               [&] { require_usable(table); });
  fake_.failures.clear();
  fake_.failures["cuDeviceGetCount"] = 999;
  expect_error(ErrorCode::device, "driver", "cuDeviceGetCount failed with error 999",
               [&] { DeviceList list(table); });
}

TEST_F(Driver, GpuInfoAsksTheSameTable) {
  const GpuInfo info = gpu_info();
  EXPECT_TRUE(info.driver_library);
  EXPECT_EQ(info.driver_path, BLOCKSCALE_FAKE_LIBCUDA);
  EXPECT_EQ(info.driver_cuda_version, 13000);
  ASSERT_EQ(info.devices.size(), 2u);
  EXPECT_EQ(info.devices[1].name, "Fake H200 number 1");
  EXPECT_EQ(info.devices[1].compute_capability, 90);
  EXPECT_EQ(info.problem, "");
  fake_.failures["cuInit"] = 100;
  EXPECT_THAT(gpu_info().problem, HasSubstr("cuInit failed with error 100"));
  fake_.failures.clear();
  fake_.devices = 0;
  EXPECT_THAT(gpu_info().problem, HasSubstr("shows no device"));
}

TEST_F(Devices, AreDescribedByOrdinal) {
  ASSERT_EQ(cuda::devices().size(), 2u);
  const cuda::DeviceTraits& second = cuda::devices()[1];
  EXPECT_EQ(second.ordinal, 1);
  EXPECT_EQ(second.multiprocessors, 132);
  EXPECT_EQ(second.shared_bytes, 227 << 10);
  EXPECT_EQ(second.l2_bytes, 60 << 20);
}

TEST_F(Devices, ScopeMakesTheDeviceCurrentAndRestores) {
  expect_error(ErrorCode::device, "driver", "no CUDA context is current on this thread",
               [] { cuda::current_device(); });
  {
    const cuda::DeviceScope outer(1);
    EXPECT_EQ(cuda::current_device().ordinal, 1);
    {
      const cuda::DeviceScope inner(0);
      EXPECT_EQ(cuda::current_device().ordinal, 0);
      std::thread([] {
        EXPECT_THROW(cuda::current_device(), Error);
        const cuda::DeviceScope other(1);
        EXPECT_EQ(cuda::current_device().ordinal, 1);
      }).join();
    }
    EXPECT_EQ(cuda::current_device().ordinal, 1);
    const int pushes = fake_.calls["cuCtxPushCurrent_v2"];
    const cuda::DeviceScope same(1);  // current already: nothing to do
    EXPECT_EQ(fake_.calls["cuCtxPushCurrent_v2"], pushes);
  }
  EXPECT_THROW(cuda::current_device(), Error);
}

TEST_F(Devices, ScopeRefusesOneThatIsNotThere) {
  expect_invalid("device", "is 2; this machine has 2", [] { const cuda::DeviceScope scope(2); });
  expect_invalid("device", "is -1", [] { const cuda::DeviceScope scope(-1); });
}

TEST_F(Devices, PointersTellTheirs) {
  const auto pointer = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
  EXPECT_EQ(cuda::device_of(pointer(std::uintptr_t{1} << 32)), 0);
  EXPECT_EQ(cuda::device_of(pointer((std::uintptr_t{2} << 32) + 64)), 1);
  EXPECT_EQ(cuda::device_of(&fake_), -1);
  fake_.failures["cuPointerGetAttribute"] = 201;
  expect_error(ErrorCode::device, "driver", "CUDA_ERROR_INVALID_CONTEXT",
               [&] { cuda::device_of(&fake_); });
}

TensorMapDescription matrix_description() {
  TensorMapDescription d;
  d.address = 4096;
  d.rank = 2;
  d.element = TensorMapElement::bf16;
  d.sizes[0] = 512;
  d.sizes[1] = 300;
  d.strides[0] = 1024;
  d.box[0] = 64;
  d.box[1] = 128;
  d.element_strides[0] = d.element_strides[1] = 1;
  d.swizzle = TensorMapSwizzle::bytes_128;
  return d;
}

TEST_F(TensorMaps, AreEncodedOncePerOperand) {
  TensorMapCache cache(2);
  const TensorMapDescription a = matrix_description();
  TensorMapDescription b = a, c = a;
  b.address = 8192;
  c.sizes[1] = 301;
  EXPECT_EQ(cache.get(a).words[0], 4096u);
  EXPECT_EQ(cache.get(a).words[1], std::uint64_t{9} << 32 | 2);
  EXPECT_EQ(cache.get(b).words[0], 8192u);
  EXPECT_EQ(cache.encoded(), 2u);
  cache.get(a);  // used last, so b makes room
  cache.get(c);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.encoded(), 3u);
  cache.get(a);
  EXPECT_EQ(cache.encoded(), 3u);
  cache.get(b);
  EXPECT_EQ(cache.encoded(), 4u);
  EXPECT_EQ(fake_.calls["cuTensorMapEncodeTiled"], 4);
}

TEST_F(TensorMaps, SurviveManyThreads) {
  TensorMapCache cache(8);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&cache, thread] {
      TensorMapDescription d = matrix_description();
      for (unsigned i = 0; i < 500; ++i) {
        d.address = 4096 + 16 * ((i * 7 + static_cast<unsigned>(thread)) % 32);
        EXPECT_EQ(cache.get(d).words[0], d.address);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.size(), 8u);
}

TEST_F(TensorMaps, RulesAreCheckedBeforeTheDriverIsAsked) {
  const auto expect_refused = [&](const char* reason, auto change) {
    TensorMapDescription d = matrix_description();
    change(d);
    expect_invalid("tensor map", reason, [&] { encode_tensor_map(d); });
  };
  using D = TensorMapDescription;
  expect_refused("rank is 0", [](D& d) { d.rank = 0; });
  expect_refused("rank is 6", [](D& d) { d.rank = 6; });
  expect_refused("address is 0", [](D& d) { d.address = 0; });
  expect_refused("address is 4104; a multiple of 16", [](D& d) { d.address = 4104; });
  expect_refused("sizes[1] is 0", [](D& d) { d.sizes[1] = 0; });
  expect_refused("sizes[0] is 4294967297", [](D& d) { d.sizes[0] = (1ull << 32) + 1; });
  expect_refused("strides[0] is 1032", [](D& d) { d.strides[0] = 1032; });
  expect_refused("strides[0] is 1099511627776", [](D& d) { d.strides[0] = 1ull << 40; });
  expect_refused("box[1] is 257", [](D& d) { d.box[1] = 257; });
  expect_refused("box[0] is 4; a row", [](D& d) { d.box[0] = 4; });
  expect_refused("fit the swizzle's 128 bytes, not take 144", [](D& d) { d.box[0] = 72; });
  expect_refused("element_strides[1] is 9", [](D& d) { d.element_strides[1] = 9; });
  expect_refused("fill is 1; only floating-point", [](D& d) {
    d.element = TensorMapElement::u16;
    d.fill = TensorMapFill::nan;
  });
  expect_refused("a multiple of 32", [](D& d) {
    d.element = TensorMapElement::u6x16_align16b;
    d.address = 4112;
  });
  EXPECT_EQ(fake_.calls["cuTensorMapEncodeTiled"], 0);
}

#if defined(BLOCKSCALE_HAS_CUDA_HEADERS)
/// Whether two function pointer types pass their arguments in the same way: as many, each of the
/// same size and kind.
template <class Ours, class Theirs>
struct SameCall : std::false_type {};
template <class... A, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct SameCall<cu::Result (*)(A...), CUresult (*)(B...)>
    : std::bool_constant<(
          (sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>) && ...)> {};

#define EXPECT_SAME_IN(table, member, function) \
  static_assert(SameCall<decltype(table::member)::Pointer, decltype(&function)>::value)
#define EXPECT_SAME(member, function) EXPECT_SAME_IN(DriverTable, member, function)

TEST(DriverTypes, AreThoseOfCudaH) {
  EXPECT_SAME(init, cuInit);
  EXPECT_SAME(driver_version, cuDriverGetVersion);
  EXPECT_SAME(device_count, cuDeviceGetCount);
  EXPECT_SAME(device_get, cuDeviceGet);
  EXPECT_SAME(device_name, cuDeviceGetName);
  EXPECT_SAME(device_attribute, cuDeviceGetAttribute);
  EXPECT_SAME(device_memory, cuDeviceTotalMem);
  EXPECT_SAME(primary_context_retain, cuDevicePrimaryCtxRetain);
  EXPECT_SAME(context_device, cuCtxGetDevice);
  EXPECT_SAME(context_push, cuCtxPushCurrent);
  EXPECT_SAME(context_pop, cuCtxPopCurrent);
  EXPECT_SAME(pointer_attribute, cuPointerGetAttribute);
  EXPECT_SAME(copy_to_host, cuMemcpyDtoHAsync);
  EXPECT_SAME(stream_synchronize, cuStreamSynchronize);
  EXPECT_SAME(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
  EXPECT_SAME(stream_is_capturing, cuStreamIsCapturing);
  EXPECT_SAME(library_load, cuLibraryLoadData);
  EXPECT_SAME(library_unload, cuLibraryUnload);
  EXPECT_SAME(library_kernel, cuLibraryGetKernel);
  EXPECT_SAME(kernel_attribute, cuKernelGetAttribute);
  EXPECT_SAME(kernel_set_attribute, cuKernelSetAttribute);
  EXPECT_SAME(kernel_function, cuKernelGetFunction);
  EXPECT_SAME(function_load, cuFuncLoad);
  EXPECT_SAME(launch, cuLaunchKernelEx);
  EXPECT_SAME(tensor_map_encode_tiled, cuTensorMapEncodeTiled);
}

TEST(DriverTypes, OfMeasurementsAreThoseOfCudaH) {
  EXPECT_SAME_IN(MeasureTable, allocate, cuMemAlloc_v2);
  EXPECT_SAME_IN(MeasureTable, free, cuMemFree_v2);
  EXPECT_SAME_IN(MeasureTable, fill, cuMemsetD8_v2);
  EXPECT_SAME_IN(MeasureTable, copy_from_host, cuMemcpyHtoD_v2);
  EXPECT_SAME_IN(MeasureTable, copy_to_host, cuMemcpyDtoH_v2);
  EXPECT_SAME_IN(MeasureTable, copy_from_host_in_stream, cuMemcpyHtoDAsync_v2);
  EXPECT_SAME_IN(MeasureTable, context_synchronize, cuCtxSynchronize);
  EXPECT_SAME_IN(MeasureTable, stream_create, cuStreamCreate);
  EXPECT_SAME_IN(MeasureTable, stream_destroy, cuStreamDestroy_v2);
  EXPECT_SAME_IN(MeasureTable, stream_wait, cuStreamSynchronize);
  EXPECT_SAME_IN(MeasureTable, begin_capture, cuStreamBeginCapture_v2);
  EXPECT_SAME_IN(MeasureTable, end_capture, cuStreamEndCapture);
  EXPECT_SAME_IN(MeasureTable, graph_instantiate, cuGraphInstantiateWithFlags);
  EXPECT_SAME_IN(MeasureTable, graph_launch, cuGraphLaunch);
  EXPECT_SAME_IN(MeasureTable, graph_destroy, cuGraphDestroy);
  EXPECT_SAME_IN(MeasureTable, graph_exec_destroy, cuGraphExecDestroy);
  EXPECT_SAME_IN(MeasureTable, event_create, cuEventCreate);
  EXPECT_SAME_IN(MeasureTable, event_record, cuEventRecord);
  EXPECT_SAME_IN(MeasureTable, event_wait, cuEventSynchronize);
  EXPECT_SAME_IN(MeasureTable, event_elapsed, cuEventElapsedTime);
  EXPECT_SAME_IN(MeasureTable, event_destroy, cuEventDestroy_v2);
}

TEST(DriverTypes, HaveTheLayoutOfCudaH) {
  static_assert(sizeof(cu::LaunchConfig) == sizeof(CUlaunchConfig));
  static_assert(offsetof(cu::LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
  static_assert(offsetof(cu::LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));
  static_assert(sizeof(cu::LaunchAttribute) == sizeof(CUlaunchAttribute));
  static_assert(offsetof(cu::LaunchAttribute, cluster) == offsetof(CUlaunchAttribute, value));
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  static_assert(alignof(TensorMap) >= 64);  // CUDA 13 says 128; the hardware asks for 64
  const auto same = [](auto ours, auto theirs) {
    return static_cast<long>(ours) == static_cast<long>(theirs);
  };
  EXPECT_TRUE(same(cu::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT));
  EXPECT_TRUE(same(cu::kNoDevice, CUDA_ERROR_NO_DEVICE));
  EXPECT_TRUE(same(cu::kInvalidImage, CUDA_ERROR_INVALID_IMAGE));
  EXPECT_TRUE(same(cu::kInvalidValue, CUDA_ERROR_INVALID_VALUE));
  EXPECT_TRUE(same(cu::DeviceAttribute::multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  EXPECT_TRUE(same(cu::DeviceAttribute::l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  EXPECT_TRUE(same(cu::DeviceAttribute::compute_capability_major,
                   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_TRUE(same(cu::DeviceAttribute::compute_capability_minor,
                   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  EXPECT_TRUE(same(cu::DeviceAttribute::max_shared_bytes_per_block,
                   CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  EXPECT_TRUE(same(cu::FunctionAttribute::max_dynamic_shared_bytes,
                   CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES));
  EXPECT_TRUE(same(cu::FunctionAttribute::non_portable_cluster_size,
                   CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED));
  EXPECT_TRUE(same(cu::FunctionAttribute::registers, CU_FUNC_ATTRIBUTE_NUM_REGS));
  EXPECT_TRUE(same(cu::FunctionAttribute::local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  EXPECT_TRUE(same(cu::PointerAttribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
  EXPECT_TRUE(same(cu::CaptureMode::thread_local_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_TRUE(same(cu::CaptureMode::relaxed, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_TRUE(same(cu::CaptureStatus::none, CU_STREAM_CAPTURE_STATUS_NONE));
  EXPECT_TRUE(same(cu::CaptureStatus::active, CU_STREAM_CAPTURE_STATUS_ACTIVE));
  EXPECT_TRUE(
      same(cu::LaunchAttributeId::cluster_dimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
  EXPECT_TRUE(same(cu::LaunchAttributeId::programmatic_stream_serialization,
                   CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
  EXPECT_TRUE(same(TensorMapElement::bf16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16));
  EXPECT_TRUE(same(TensorMapElement::u6x16_align16b, CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B));
  EXPECT_TRUE(same(TensorMapElement::u4x16_packed, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B));
  EXPECT_TRUE(same(TensorMapElement::f64, CU_TENSOR_MAP_DATA_TYPE_FLOAT64));
  EXPECT_TRUE(same(TensorMapSwizzle::bytes_128, CU_TENSOR_MAP_SWIZZLE_128B));
  EXPECT_TRUE(same(TensorMapL2Promotion::bytes_256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B));
  EXPECT_TRUE(same(TensorMapFill::nan, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA));
}
#else
TEST(DriverTypes, AreThoseOfCudaH) {
  GTEST_SKIP() << "no CUDA headers: set BLOCKSCALE_CUDA_INCLUDE";
}
#endif

}  // namespace
}  // namespace blockscale::runtime
