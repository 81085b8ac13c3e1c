// BLOCKSCALE_SIMD: a lower instruction set than the machine's best, for tests and comparisons.
#pragma once

namespace blockscale {

/// Obeys BLOCKSCALE_SIMD, once a process, before anything is dispatched: operations then run as on
/// a CPU that has nothing better than what it names (one of simd_targets_compiled(), in upper or
/// lower case; AMX: the best, with AMX). Throws invalid_argument for another name, unsupported for
/// one that this CPU lacks.
void use_requested_simd();

}  // namespace blockscale
