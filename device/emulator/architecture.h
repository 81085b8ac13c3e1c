// What a launch is compiled for, and what not every architecture has.
#pragma once

#include <cstdint>

namespace blockscale::emulator {

enum class Architecture : uint8_t { sm_90a, sm_100f, sm_120f };
const char* name_of(Architecture architecture);
/// The one whose code runs on devices of compute capability `capability` / 10: 90, 103, 120.
/// Throws std::invalid_argument where there is none.
Architecture architecture_of(int capability);

/// Instructions that some architectures lack, or have in a form that no kernel should use. All
/// others of device/ptx are on each of them.
enum class Feature : uint8_t {
  wgmma,               // ptxas refuses it for all but sm_90a
  tensor_multicast,    // for sm_120f ptxas makes a call into the system of it
  tensor_gather,       // tile::gather4: refused for sm_90a
  narrow_conversions,  // FP4, FP6 and ue8m0: refused for sm_90a
  packed_f32,          // .f32x2: likewise
  padded_elements,     // FP4 and FP6 in ldmatrix and tensor copies: likewise
  scaled_mma,          // mma.sync of FP4 and FP6, with or without scales: sm_120f alone
};
bool has(Architecture architecture, Feature feature);
/// "sm_90a", "sm_100f and sm_120f": those that have it.
const char* owners_of(Feature feature);

/// The most dynamic shared memory of a block, in bytes.
uint32_t max_shared_bytes(Architecture architecture);

/// The most blocks of a cluster. A device takes clusters of several for sm_120f as well, where no
/// copy serves more than one of them: kernels are to do without.
uint32_t max_cluster_blocks(Architecture architecture);

}  // namespace blockscale::emulator
