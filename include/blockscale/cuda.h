// Operations on CUDA devices: the same views and options as on the CPU, with device pointers.
//
// A call validates its arguments, launches kernels on the caller's stream and returns: it takes no
// device memory and does not synchronise, so it may be captured in a graph. The exception is the
// first launch of a kernel on a device: the driver then brings its code there, which takes device
// memory and may wait for work that the device has, and a kernel that only the emulator has run is
// tried: if a small product has other bits than by a plain kernel, or in a capture, where nothing
// can be tried, plain kernels take its place. load_kernels does both beforehand. A call runs on the
// device that holds its output; the stream must belong to that device. The bytes are those of the
// CPU. Kernels are launched with programmatic dependent launch: one may be resident while its
// predecessors in the stream still run, and prefetch, but what came before the call has ended
// before it reads what that may write, or writes. Values on the device are not read back: scales
// that were given are taken as they are.
#pragma once

#include <cstdint>
#include <string>

#include "blockscale/device.h"
#include "blockscale/gemm.h"
#include "blockscale/grouped_gemm.h"
#include "blockscale/moe.h"
#include "blockscale/quantize.h"

namespace blockscale::cuda {

/// Where callers that do not ask for a call's workspace beforehand have it taken from.
class WorkspaceSource {
 public:
  /// Device memory, 16-byte aligned, for a call that is not queued yet.
  virtual void* allocate(std::int64_t bytes) = 0;

 protected:
  ~WorkspaceSource() = default;
};

/// Where a call runs. A workspace is in use until the call has finished: calls of one stream may
/// share one, calls that may run at once may not.
struct Execution {
  void* stream = nullptr;     // a CUstream or cudaStream_t; null: the legacy default stream
  void* workspace = nullptr;  // device memory, 16-byte aligned
  std::int64_t workspace_bytes = 0;
  /// Asked, at most once, by a call that needs a workspace and was given none.
  WorkspaceSource* workspace_source = nullptr;
  /// Kernels may start before what is in front of them in the stream has ended, and wait for it on
  /// the device (programmatic dependent launch).
  bool overlap = true;
  /// The device on which all memory of the call lies, for callers that know it: memory is then not
  /// looked up, which takes a tenth of a microsecond and more a pointer. -1: the driver is asked.
  int device = -1;
};

/// Bytes of workspace that `quantize` needs for these arguments, a multiple of 16: 0 for most
/// recipes. Where a scale depends on the whole tensor up to 2 KiB, or at least 16 bytes for each
/// matrix with a scale of its own. With rms_norm also 4 bytes for each row where a second kernel
/// follows: with scales of whole tensors, of blocks of several rows, or given. Throws as `quantize`
/// does.
std::int64_t quantize_workspace_bytes(const MatrixView& x, const MutableScaledTensorView& out,
                                      const QuantizeOptions& options = {});

/// As blockscale::quantize. Also throws invalid_argument for memory that CUDA does not know or that
/// belongs to another device than out.values, or for a workspace that is too small or overlaps what
/// the call reads or writes; unsupported for a device that there are no kernels for (compute
/// capability 9.0, 10.x and 12.x have them) or for 2^30 rows or columns;
/// and device if the driver refuses.
void quantize(const MatrixView& x, const MutableScaledTensorView& out,
              const QuantizeOptions& options = {}, const Execution& execution = {});

/// What `quantize` launches for these arguments, as text: a line for each kernel (why it is there,
/// its tiles, its grid, how it loads and stores), and the workspace. A pure function that needs no
/// GPU: nothing is read through pointers, but they must be as `quantize` wants them (not null,
/// aligned, apart). The chip is that of the current device unless it is given. Throws as `quantize`
/// does for arguments that are not allowed; device and workspace are not looked at.
std::string describe_quantize(const MatrixView& x, const MutableScaledTensorView& out,
                              const QuantizeOptions& options = {},
                              const Chip& chip = default_chip());

/// Bytes of workspace that `quantize_rows_and_columns` needs: with rms_norm 4 for each row, rounded
/// up to a multiple of 16, else 0. Throws as it does.
std::int64_t quantize_rows_and_columns_workspace_bytes(const MatrixView& x,
                                                       const MutableScaledTensorView& out_rows,
                                                       const MutableScaledTensorView& out_columns,
                                                       const QuantizeOptions& options = {});

/// As blockscale::quantize_rows_and_columns, from one read of x; rms_norm reads it once more.
/// Throws as `quantize` does.
void quantize_rows_and_columns(const MatrixView& x, const MutableScaledTensorView& out_rows,
                               const MutableScaledTensorView& out_columns,
                               const QuantizeOptions& options = {},
                               const Execution& execution = {});

/// As blockscale::dequantize. Throws as `quantize` does; needs no workspace.
void dequantize(const ScaledTensorView& x, const MutableMatrixView& out,
                const Execution& execution = {});

/// As blockscale::absolute_maximum: `out` holds x.batch floats on the device. The workspace has
/// absolute_maximum_workspace_bytes.
std::int64_t absolute_maximum_workspace_bytes(const MatrixView& x, const QuantizeInput& input = {});
void absolute_maximum(const MatrixView& x, const QuantizeInput& input, float* out,
                      const Execution& execution = {});

/// Bytes of workspace that `gemm` needs on default_chip(): none, but of the FP8 kernels a copy of
/// each operand whose values, rows or matrices begin at no multiple of 16 bytes, or, where many
/// rows are multiplied by many, at odd ones (tensor copies then take half as long again), of those
/// of many rows with weights in FP4, MXFP6 or MXFP8 A in bf16 where it is neither that nor f16, and
/// B where it is not in FP4 (docs/numerics.md says which products these are), of the plain ones,
/// and those of 12.x, D in f32 where it is quantized, and of all of them D in f32 where a transform
/// comes before a result that is not. Throws as `gemm` does.
std::int64_t gemm_workspace_bytes(const GemmArguments& arguments);

/// As blockscale::gemm, for every pair that it computes. FP8 recipes of e4m3 on both sides
/// (fp8_tensor, fp8_row, all blocks and kinds of scale) have kernels of their own on devices of
/// compute capability 9.0, and so have pairs with weights in FP4, of few rows in MXFP8, and of many
/// rows in 16 bits, MXFP6 or MXFP8, that docs/numerics.md names; on 12.x two operands with scales
/// have, and few rows in bf16 or f16 beside FP4. The plain kernels compute all else. Sums of
/// products, which tensor cores make, are scaled and added up in f32; docs/numerics.md has the
/// error bounds. The same bits from run to run. A result that is quantized has the bytes of
/// `quantize` of the f32 D of the same plan. Throws as `quantize` does.
void gemm(const GemmArguments& arguments, const Execution& execution = {});

/// As blockscale::check_gemm, with the bound of the tensor cores that default_chip() computes the
/// pair with, of a D that `gemm` computed; everything lies in host memory.
GemmCheck check_gemm(const GemmArguments& arguments, std::int64_t samples = 1024);

/// What `gemm` launches for these arguments, where kernels pass their trials, as text: the kernel,
/// its tiles, how K is divided, and the time that the plan expects. As describe_quantize else.
/// Where something was tuned for a chip of that name (docs/cli.md, "bench gemm --tune") the text
/// names the file.
std::string describe_gemm(const GemmArguments& arguments, const Chip& chip = default_chip());

/// Bytes of workspace that `grouped_gemm` needs on default_chip(): D in f32 where a transform comes
/// before a result that is not quantized, and where it is quantized but not by tiles of FP8 kernels
/// also, unless `owns_rows`, a tensor of all rows; of few rows in FP8, whose kernel transforms,
/// what is quantized in place of D, and none for a transform; rows that an index names, where they
/// go to the tiles of FP4 weights; else none. Throws as it does.
std::int64_t grouped_gemm_workspace_bytes(const GroupedGemmArguments& arguments);

/// As blockscale::grouped_gemm; offsets, lengths, index, destinations, weights and alpha_factors
/// lie on the device, and are not read back: a graph's replays may have others. FP8 recipes of e4m3
/// on both sides, whose rows begin at multiples of 16 bytes, have kernels of their own on devices
/// of compute capability 9.0, and so have groups of rows in bf16 or f16, and of at most 8 rows on
/// average in FP8 of e4m3, with weights in nvfp4 or mxfp4, those of at most 8 rows in bf16 or f16
/// on 12.x as well; the plain kernels compute all else. The same bits from run to run, unless
/// `adds`. Throws as `gemm` does.
void grouped_gemm(const GroupedGemmArguments& arguments, const Execution& execution = {});

/// What `grouped_gemm` launches, as describe_gemm.
std::string describe_grouped_gemm(const GroupedGemmArguments& arguments,
                                  const Chip& chip = default_chip());

/// As blockscale::k_grouped_gemm, by plain kernels. Needs no workspace.
void k_grouped_gemm(const KGroupedGemmArguments& arguments, const Execution& execution = {});

/// As blockscale::check_grouped_gemm, with the bound of the kernels that default_chip() computes
/// the product with. Everything lies in host memory.
GemmCheck check_grouped_gemm(const GroupedGemmArguments& arguments, std::int64_t samples = 1024);

/// As blockscale::check_groups, of numbers on the device: waits for the stream, and reads them
/// back.
void check_groups(const GroupedGemmArguments& arguments, const Execution& execution = {});

/// As blockscale::route: the same bytes. One launch; needs no workspace. Throws as `quantize` does.
void route(const RouteArguments& arguments, const Execution& execution = {});

/// Bytes of workspace that `moe_sort` needs: 0 without padding. Throws as it does.
std::int64_t moe_sort_workspace_bytes(const MoeSortArguments& arguments);

/// As blockscale::moe_sort: the same numbers; all of them stay on the device. One launch, with
/// padding two. Throws as `quantize` does.
void moe_sort(const MoeSortArguments& arguments, const Execution& execution = {});

/// Bytes of workspace that `moe` needs on default_chip(): by shapes alone. Throws as it does.
std::int64_t moe_workspace_bytes(const MoeArguments& arguments, const MoeOptions& options = {});

/// As blockscale::moe. ids and weights lie on the device and are not read back: a graph's replays
/// may have others. With FP8 weights five launches: sort, quantize, the two products, and the sum
/// (of few tokens six: what stands between the products is quantized by itself); where tokens go in
/// parts, each part's. Throws as `gemm` does.
void moe(const MoeArguments& arguments, const MoeOptions& options = {},
         const Execution& execution = {});

/// What `moe` launches, as describe_gemm.
std::string describe_moe(const MoeArguments& arguments, const MoeOptions& options = {},
                         const Chip& chip = default_chip());

/// Operations that have kernels.
enum class KernelsOf : std::uint8_t { all, quantize, dequantize, gemm, grouped_gemm, moe };

/// Loads every kernel that calls of these operations may launch on a device, with its code: their
/// first calls there then wait for nothing, and no graph's capture loads any. For servers, before
/// they serve. How many kernels they are. Those that only the emulator has run are tried, too, in
/// milliseconds together: in a capture none can be, and plain kernels take their place. Where a
/// kernel is in no pack it is compiled by NVRTC, which takes seconds each, unless the cache has it.
/// Throws invalid_argument if there is no such device, not_found without a GPU, unsupported for a
/// chip without kernels or where neither pack nor NVRTC is there, and device.
int load_kernels(KernelsOf operations = KernelsOf::all, int device = 0);

}  // namespace blockscale::cuda
