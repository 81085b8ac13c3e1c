// Runs every micro-kernel on the GPU and writes the golden file. README.md says how to build it.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/golden/golden_file.h"
#include "device/golden/hopper_programs.h"
#include "device/golden/tensor_cases.h"

namespace blockscale::golden {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// --- Operations: sums of hash terms, one sum a chunk ---

template <class Term>
__device__ void add_terms(uint64_t first, uint64_t count, uint64_t* sum, const Term& term) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  uint64_t local = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    local += term(first + i);
  }
  for (int lanes = 16; lanes != 0; lanes /= 2) local += __shfl_xor_sync(~0u, local, lanes);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(local));
  }
}

template <class Operation>
__global__ void sum_unary(uint64_t first, uint64_t count, uint64_t* sum) {
  add_terms(first, count, sum,
            [](uint64_t i) { return hash_term(i, Operation::apply(static_cast<uint32_t>(i))); });
}

template <class Operation>
__global__ void sum_random(uint64_t first, uint64_t count, uint64_t* sum) {
  add_terms(first, count, sum, [](uint64_t i) { return random_term<Operation>(i); });
}

std::vector<uint64_t> hashes(uint64_t inputs, uint64_t chunk,
                             void (*kernel)(uint64_t, uint64_t, uint64_t*)) {
  chunk = std::min(chunk, inputs);
  std::vector<uint64_t> result(inputs / chunk);
  uint64_t* sums = nullptr;
  check(cudaMalloc(&sums, result.size() * 8), "cudaMalloc");
  check(cudaMemset(sums, 0, result.size() * 8), "cudaMemset");
  for (std::size_t i = 0; i < result.size(); ++i) kernel<<<528, 256>>>(i * chunk, chunk, sums + i);
  check(cudaMemcpy(result.data(), sums, result.size() * 8, cudaMemcpyDeviceToHost), "hashes");
  check(cudaFree(sums), "cudaFree");
  return result;
}

// --- Programs ---

/// What setmaxnreg divides follows from the number of threads.
template <class Program>
constexpr uint32_t kThreads = static_cast<uint32_t>(product(Program::kShape.block));

template <class Program>
__global__ void __launch_bounds__(kThreads<Program>, 1)
    run_program(const __grid_constant__ ProgramParams params) {
  Program::run(params);
}

struct Buffers {
  uint32_t* in = nullptr;
  uint32_t* out = nullptr;
};

Buffers& buffers() {
  static Buffers made;
  if (made.in != nullptr) return made;
  Buffers buffers;
  std::vector<uint32_t> in(kInWords);
  for (uint32_t i = 0; i < kInWords; ++i) in[i] = static_cast<uint32_t>(mix(i + 1));
  check(cudaMalloc(&buffers.in, kInWords * 4), "cudaMalloc");
  check(cudaMalloc(&buffers.out, kOutWords * 4), "cudaMalloc");
  check(cudaMemcpy(buffers.in, in.data(), kInWords * 4, cudaMemcpyHostToDevice), "in");
  return made = buffers;
}

template <class Program>
std::vector<uint32_t> run(ProgramParams params, uint32_t words, const char* name) {
  std::vector<uint32_t> out(words, kOutFill);
  params.in = buffers().in;
  params.out = buffers().out;
  check(cudaMemcpy(buffers().out, out.data(), words * 4, cudaMemcpyHostToDevice), name);
  const LaunchShape s = Program::kShape;
  check(cudaFuncSetAttribute(run_program<Program>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(s.dynamic_shared_bytes)),
        name);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {s.cluster.x, s.cluster.y, s.cluster.z};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(s.grid.x, s.grid.y, s.grid.z);
  config.blockDim = dim3(s.block.x, s.block.y, s.block.z);
  config.dynamicSmemBytes = s.dynamic_shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = product(s.cluster) > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, run_program<Program>, params), name);
  check(cudaMemcpy(out.data(), buffers().out, words * 4, cudaMemcpyDeviceToHost), name);
  return out;
}

// The prototype of cuTensorMapEncodeTiled, whose enumerations have the values of core/tensor_map.h.
using EncodeTiled = int (*)(void* map, uint32_t element, uint32_t rank, void* address,
                            const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
                            const uint32_t* element_strides, uint32_t interleave, uint32_t swizzle,
                            uint32_t l2_promotion, uint32_t fill);

EncodeTiled find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled");
  return reinterpret_cast<EncodeTiled>(function);
}

// --- Jobs, which a worker process does one after another: one that faults ends its context ---

/// What one job found.
struct Result {
  std::vector<uint32_t> words;
  std::vector<uint64_t> hashes;
  std::string refused;
};

struct Job {
  std::string name;
  std::function<Result()> run;
};

Result tensor_result(const TensorCase& c) {
  ProgramParams params = {};
  void* tensor = is_load(c.mode) ? buffers().in : buffers().out;
  const TensorMapDescription d = description_of(c, reinterpret_cast<uint64_t>(tensor));
  const int status = find_encoder()(
      &params.map, static_cast<uint32_t>(d.element), d.rank, tensor, d.sizes, d.strides, d.box,
      d.element_strides, 0, static_cast<uint32_t>(d.swizzle), 0, static_cast<uint32_t>(d.fill));
  if (status != 0) return {{}, {}, "not encoded: CUresult " + std::to_string(status)};
  for (uint32_t i = 0; i < c.rank; ++i) params.coordinates[i] = c.coordinates[i];
  params.box_bytes = box_bytes(c);
  params.box_offset = c.box_offset;
  Result result;
  visit_program(c, [&](auto* program) {
    using Program = std::remove_pointer_t<decltype(program)>;
    result.words = run<Program>(params, Program::kWords, c.name);
  });
  return result;
}

std::vector<Job> all_jobs() {
  std::vector<Job> jobs;
  for_each(AllPrograms{}, [&](auto* program) {
    using Program = std::remove_pointer_t<decltype(program)>;
    jobs.push_back({std::string("program/") + Program::kName,
                    [] { return Result{run<Program>({}, kOutWords, Program::kName), {}, {}}; }});
  });
  for (const TensorCase& c : kTensorCases) {
    jobs.push_back({std::string("tensor/") + c.name, [&c] { return tensor_result(c); }});
  }
  for_each(RandomOperations{}, [&](auto* operation) {
    using Operation = std::remove_pointer_t<decltype(operation)>;
    jobs.push_back({std::string("random/") + Operation::kName, [] {
                      return Result{
                          {}, hashes(kRandomInputs, kRandomChunk, sum_random<Operation>), {}};
                    }});
  });
  for_each(UnaryOperations{}, [&](auto* operation) {
    using Operation = std::remove_pointer_t<decltype(operation)>;
    jobs.push_back({std::string("unary/") + Operation::kName, [] {
                      constexpr uint64_t kInputs = uint64_t{1} << Operation::kInputBits;
                      return Result{{}, hashes(kInputs, kUnaryChunk, sum_unary<Operation>), {}};
                    }});
  });
  return jobs;
}

/// The GPU and what drives it.
std::string device_text() {
  cudaDeviceProp properties;
  int driver = 0;
  check(cudaGetDeviceProperties(&properties, 0), "no GPU");
  check(cudaDriverGetVersion(&driver), "driver");
  return std::string(properties.name) + ", driver " + std::to_string(driver) + ", nvcc " +
         std::to_string(__CUDACC_VER_MAJOR__) + "." + std::to_string(__CUDACC_VER_MINOR__);
}

void send(int pipe, const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t sent = write(pipe, p, bytes);
    if (sent <= 0) std::exit(1);
    p += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
}

void send(int pipe, const std::string& device, const Result& result) {
  const uint32_t sizes[4] = {
      static_cast<uint32_t>(device.size()), static_cast<uint32_t>(result.words.size()),
      static_cast<uint32_t>(result.hashes.size()), static_cast<uint32_t>(result.refused.size())};
  send(pipe, sizes, sizeof(sizes));
  send(pipe, device.data(), device.size());
  send(pipe, result.words.data(), result.words.size() * 4);
  send(pipe, result.hashes.data(), result.hashes.size() * 8);
  send(pipe, result.refused.data(), result.refused.size());
}

/// Does jobs from `first` on, up to one that faults, and sends their results.
[[noreturn]] void work(const std::vector<Job>& jobs, std::size_t first, int pipe) {
  std::string device;
  try {
    device = device_text();
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(1);
  }
  for (std::size_t i = first; i < jobs.size(); ++i) {
    try {
      send(pipe, device, jobs[i].run());
    } catch (const std::runtime_error& error) {
      send(pipe, device, Result{{}, {}, error.what()});
      std::exit(1);  // the context is of no more use
    }
  }
  std::exit(0);
}

/// False at the end of the pipe, or after a minute without a byte.
bool receive(int pipe, void* data, std::size_t bytes) {
  char* p = static_cast<char*>(data);
  while (bytes != 0) {
    pollfd ready = {pipe, POLLIN, 0};
    if (poll(&ready, 1, 60000) <= 0) return false;
    const ssize_t got = read(pipe, p, bytes);
    if (got <= 0) return false;
    p += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool receive_result(int pipe, GoldenFile& file, const std::string& name) {
  uint32_t sizes[4];
  if (!receive(pipe, sizes, sizeof(sizes))) return false;
  Result result = {std::vector<uint32_t>(sizes[1]), std::vector<uint64_t>(sizes[2]),
                   std::string(sizes[3], ' ')};
  file.device.resize(sizes[0]);
  if (!receive(pipe, file.device.data(), sizes[0]) ||
      !receive(pipe, result.words.data(), sizes[1] * 4) ||
      !receive(pipe, result.hashes.data(), sizes[2] * 8) ||
      !receive(pipe, result.refused.data(), sizes[3])) {
    return false;
  }
  if (!result.refused.empty()) {
    std::printf("%s: %s\n", name.c_str(), result.refused.c_str());
    file.refused[name] = result.refused;
  }
  if (!result.words.empty()) file.words[name] = std::move(result.words);
  if (!result.hashes.empty()) file.hashes[name] = std::move(result.hashes);
  return true;
}

int record(const std::string& path) {
  const std::vector<Job> jobs = all_jobs();
  GoldenFile file;
  for (std::size_t next = 0; next < jobs.size();) {
    int pipes[2];
    if (pipe(pipes) != 0) std::exit(1);
    const pid_t worker = fork();  // before this process has touched CUDA
    if (worker == 0) {
      close(pipes[0]);
      work(jobs, next, pipes[1]);
    }
    close(pipes[1]);
    const std::size_t first = next;
    while (next < jobs.size() && receive_result(pipes[0], file, jobs[next].name)) ++next;
    close(pipes[0]);
    kill(worker, SIGKILL);
    waitpid(worker, nullptr, 0);
    if (next == jobs.size() || next != first) continue;
    if (first == 0) return 1;  // not even one: no GPU
    std::printf("%s: no result\n", jobs[next].name.c_str());
    file.refused[jobs[next].name] = "no result within a minute";
    ++next;
  }
  write_golden(path, file);
  std::printf("%s: %zu lists of words, %zu of hashes, %zu refused; wrote %s\n", file.device.c_str(),
              file.words.size(), file.hashes.size(), file.refused.size(), path.c_str());
  return 0;
}

}  // namespace
}  // namespace blockscale::golden

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: record FILE\n");
    return 2;
  }
  return blockscale::golden::record(argv[1]);
}
