// Whether AMX, Intel's tiles of bf16, is used beside AVX-512 BF16.
#pragma once

namespace blockscale {

/// Whether this CPU has AMX with bf16, and the kernel lets this process use it.
bool has_amx();

/// Whether products use AMX: where there is AMX, unless BLOCKSCALE_SIMD names something else.
bool uses_amx();

/// Decides so, from now on. `use` must be false without AMX.
void use_amx(bool use);

}  // namespace blockscale
