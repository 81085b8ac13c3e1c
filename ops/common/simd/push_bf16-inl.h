// Tells the compiler of AVX-512 BF16 where Highway's target is AVX3_DL, until the includer says
// `#pragma pop_macro("HWY_TARGET_STR")`: stands behind all other includes, once for each target.
// Code then asks the CPU itself whether it has the instructions.
#include "ops/common/simd/target_strings.h"

#pragma push_macro("HWY_TARGET_STR")
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR BLOCKSCALE_TARGET_STR_BF16
#endif
