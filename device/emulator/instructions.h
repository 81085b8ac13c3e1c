// What the wrappers of device/ptx call on the host. Each function is one instruction, executed by
// the current fiber's thread; `at` is the line of the kernel that reports name.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/format.h"
#include "core/tensor_map.h"
#include "device/emulator/architecture.h"
#include "device/emulator/meaning/scaled_mma.h"
#include "device/kernel.h"

namespace blockscale::emulator {

/// The special registers of a thread.
struct Identity {
  uint32_t tid_x, tid_y, tid_z;
  uint32_t ntid_x, ntid_y, ntid_z;
  uint32_t ctaid_x, ctaid_y, ctaid_z;
  uint32_t nctaid_x, nctaid_y, nctaid_z;
  uint32_t laneid;
  uint32_t cluster_ctarank, cluster_nctarank;
};
const Identity& identity();

/// Of an instruction that is a pure function: the launch's architecture, if there is a launch, is
/// to have it.
void require(Feature feature, const char* name, SourceLocation at);

// --- Memory ---

enum class LoadKind : uint8_t { weak, read_only, relaxed, acquire };
enum class StoreKind : uint8_t { weak, relaxed, release };

/// Copies `bytes` (1 to 16, `p` aligned to them) between memory and `value`.
void load_global(const void* p, uint32_t bytes, LoadKind kind, void* value, SourceLocation at);
void store_global(void* p, uint32_t bytes, StoreKind kind, const void* value, SourceLocation at);
void load_shared(uint32_t address, uint32_t bytes, void* value, SourceLocation at);
void store_shared(uint32_t address, uint32_t bytes, const void* value, SourceLocation at);
/// Makes bytes that nobody has written 0xFF, and no uninitialized reads.
void accept_any_shared(uint32_t address, uint32_t bytes);
uint32_t shared_base();

template <class T>
T load_global(const T* p, LoadKind kind, SourceLocation at) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  load_global(p, sizeof(T), kind, &value, at);
  return value;
}
template <class T>
void store_global(T* p, const T& value, StoreKind kind, SourceLocation at) {
  static_assert(std::is_trivially_copyable_v<T>);
  store_global(p, sizeof(T), kind, &value, at);
}
template <class T>
T load_shared(uint32_t address, SourceLocation at) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  load_shared(address, sizeof(T), &value, at);
  return value;
}
template <class T>
void store_shared(uint32_t address, const T& value, SourceLocation at) {
  static_assert(std::is_trivially_copyable_v<T>);
  store_shared(address, sizeof(T), &value, at);
}

/// Checks the bounds of a prefetch, which does nothing else.
void prefetch(const void* p, uint32_t bytes, SourceLocation at);

// --- Atomics: each returns the old value ---

enum class ReduceOp : uint8_t {
  kAdd,
  kMin,
  kMax,
  kAnd,
  kOr,
  kXor,
  kExchange,
  kIncrement,
  kDecrement,
};
uint32_t atomic_global(ReduceOp op, uint32_t* p, uint32_t value, SourceLocation at,
                       bool acquire_release = false);
void atomic_global_add(float* p, float value, SourceLocation at);
/// Words of pairs of f16 or bf16, or of one f32, that lie side by side.
void atomic_global_add_words(Format dtype, uint32_t* p, const uint32_t* values, uint32_t words,
                             SourceLocation at);
uint32_t atomic_global_cas(uint32_t* p, uint32_t expected, uint32_t value, SourceLocation at);
uint32_t atomic_shared(ReduceOp op, uint32_t address, uint32_t value, SourceLocation at);

// --- Barriers and fences ---

void bar_sync_all(SourceLocation at);
void bar_sync(uint32_t id, uint32_t threads, SourceLocation at);
void bar_arrive(uint32_t id, uint32_t threads, SourceLocation at);
void bar_warp_sync(uint32_t mask, SourceLocation at);

enum class FenceSpace : uint8_t { all, shared, global };
void fence_acq_rel(SourceLocation at);
void fence_proxy_async(FenceSpace space, SourceLocation at);
void fence_mbarrier_init(SourceLocation at);

void griddepcontrol_wait(SourceLocation at);
void griddepcontrol_launch_dependents(SourceLocation at);

// --- Collectives of a warp ---

enum class Shuffle : uint8_t { bfly, down, up, idx };
uint32_t shfl_sync(Shuffle mode, uint32_t mask, uint32_t value, uint32_t operand, uint32_t control,
                   SourceLocation at);
/// The lanes of `mask` whose predicate holds.
uint32_t vote_sync(uint32_t mask, bool predicate, SourceLocation at);
uint32_t match_any_sync(uint32_t mask, uint32_t value, SourceLocation at);
bool elect_sync(uint32_t mask, SourceLocation at);
uint32_t redux_sync(ReduceOp op, uint32_t mask, uint32_t value, SourceLocation at);
/// d += a * b^T, of the lanes' fragments. `element` is a ptx::MmaElement.
void mma_sync(uint32_t element, float* d, const uint32_t* a, const uint32_t* b, SourceLocation at);
/// The same with elements of 4 to 8 bits and the lanes' scales, of sm_120f.
void scaled_mma_sync(const meaning::ScaledMma& mma, float* d, const uint32_t* a, const uint32_t* b,
                     uint32_t scales_a, uint32_t scales_b, SourceLocation at);
/// The same without scales; `d` is two words of D in f16.
void scaled_mma_sync_f16(const meaning::ScaledMma& mma, uint32_t* d, const uint32_t* a,
                         const uint32_t* b, SourceLocation at);
/// `row` is the address that this lane gives; `words` are its `count` ones.
void ldmatrix(uint32_t row, uint32_t count, bool transposed, uint32_t* words, SourceLocation at);
/// Of rows of 16 numbers of 4 or 6 bits.
void ldmatrix_b8x16(uint32_t row, uint32_t bits, uint32_t count, uint32_t* words,
                    SourceLocation at);
void stmatrix(uint32_t row, uint32_t count, bool transposed, const uint32_t* words,
              SourceLocation at);

// --- mbarrier ---

void mbarrier_init(uint32_t address, uint32_t count, const char* name, SourceLocation at);
void mbarrier_inval(uint32_t address, SourceLocation at);
/// Expects `bytes` more, then arrives `count` times; returns the state before.
uint64_t mbarrier_arrive(uint32_t address, uint32_t count, uint32_t bytes, SourceLocation at);
void mbarrier_expect_tx(uint32_t address, uint32_t bytes, SourceLocation at);
bool mbarrier_test_wait(uint32_t address, uint64_t state, SourceLocation at);
bool mbarrier_test_wait_parity(uint32_t address, uint32_t parity, SourceLocation at);
bool mbarrier_try_wait_parity(uint32_t address, uint32_t parity, SourceLocation at);

// --- Asynchronous copies ---

void cp_async(uint32_t destination, const void* source, uint32_t bytes, uint32_t source_bytes,
              SourceLocation at);
void cp_async_commit_group(SourceLocation at);
void cp_async_wait_group(uint32_t pending, SourceLocation at);
void cp_async_wait_all(SourceLocation at);
void cp_async_mbarrier_arrive(uint32_t mbarrier, SourceLocation at);

void bulk_load(uint32_t destination, const void* source, uint32_t bytes, uint32_t mbarrier,
               SourceLocation at);
void bulk_store(void* destination, uint32_t source, uint32_t bytes, SourceLocation at);
/// `op` is a ptx::BulkReduce.
void bulk_reduce(int op, void* destination, uint32_t source, uint32_t bytes, SourceLocation at);
void bulk_commit_group(SourceLocation at);
void bulk_wait_group(uint32_t pending, bool reads_only, SourceLocation at);

void tensor_load(uint32_t destination, const TensorMap* map, const int32_t* coordinates, int rank,
                 uint32_t mbarrier, SourceLocation at);
/// The box goes to the same place in each block of `mask`, by rank in the cluster.
void tensor_load_multicast(uint32_t destination, const TensorMap* map, const int32_t* coordinates,
                           int rank, uint32_t mbarrier, uint16_t mask, SourceLocation at);
/// Coordinates are a column and four rows.
void tensor_gather(uint32_t destination, const TensorMap* map, const int32_t* coordinates,
                   uint32_t mbarrier, SourceLocation at);
void tensor_store(const TensorMap* map, const int32_t* coordinates, int rank, uint32_t source,
                  SourceLocation at);
/// `op` is a ptx::TensorReduce.
void tensor_reduce(int op, const TensorMap* map, const int32_t* coordinates, int rank,
                   uint32_t source, SourceLocation at);
/// Checks the map, and with rank > 0 that the box's rank is the map's.
void tensor_prefetch(const TensorMap* map, const int32_t* coordinates, int rank, SourceLocation at);

// --- Clusters ---

void barrier_cluster_arrive(bool release, SourceLocation at);
void barrier_cluster_wait(SourceLocation at);
/// Addresses in the shared::cluster window: 1 + the block's rank in the highest byte; none there is
/// the thread's own block.
uint32_t mapa(uint32_t address, uint32_t rank, SourceLocation at);
void load_shared_cluster(uint32_t address, uint32_t bytes, void* value, SourceLocation at);
void store_shared_cluster(uint32_t address, uint32_t bytes, const void* value, SourceLocation at);
void mbarrier_arrive_cluster(uint32_t address, SourceLocation at);
void st_async(uint32_t address, uint32_t bytes, const void* value, uint32_t mbarrier,
              SourceLocation at);

// --- Matrix products of a warpgroup ---

void wgmma_fence();
/// `a_element` and `b_element` are ptx::WgmmaElement. A lies where `a_descriptor` says or, if
/// `a_registers` is not null, in these 4 words.
void wgmma(int a_element, int b_element, int n, float* d, uint64_t a_descriptor,
           const uint32_t* a_registers, uint64_t b_descriptor, bool accumulate, SourceLocation at);
void wgmma_commit_group(SourceLocation at);
void wgmma_wait_group(int pending);
/// The thread touches an accumulator, or A's registers, whose first is at `first`.
void wgmma_access_registers(const void* first, SourceLocation at);
/// A wait says that these registers are free from now on.
void wgmma_release_registers(const void* first);
void setmaxnreg(bool increase, uint32_t registers, SourceLocation at);

}  // namespace blockscale::emulator
