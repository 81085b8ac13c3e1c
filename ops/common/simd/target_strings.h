// What the compiler is told of AVX3_DL beyond what Highway tells it. Always a superset of that:
// what Highway forces inline can only be inlined where the compiler is told of as much.
#pragma once

#ifdef HWY_TARGET_STR_AVX3_DL
#define BLOCKSCALE_TARGET_STR_VNNI HWY_TARGET_STR_AVX3_DL ",avx512vnni"
#else
// Highway 1.0.3 detects AVX-512 VNNI for that target, but does not say so, nor has it a name for
// what it says.
#define BLOCKSCALE_TARGET_STR_VNNI                                                       \
  HWY_TARGET_STR_AVX3                                                                    \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512vnni,avx512bitalg,avx512vpopcn" \
  "tdq"
#endif
// Highway knows no target with AVX-512 BF16 alone, for which code asks the CPU itself.
#define BLOCKSCALE_TARGET_STR_BF16 BLOCKSCALE_TARGET_STR_VNNI ",avx512bf16"
