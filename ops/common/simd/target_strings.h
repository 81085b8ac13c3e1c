// What the compiler is told of AVX3_DL beyond what Highway 1.0.3 tells it: it detects AVX-512 VNNI
// for that target, but does not say so, and knows no target with AVX-512 BF16, for which code asks
// the CPU itself.
#pragma once

#define BLOCKSCALE_TARGET_STR_VNNI                                                       \
  HWY_TARGET_STR_AVX3                                                                    \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512vnni,avx512bitalg,avx512vpopcn" \
  "tdq"
#define BLOCKSCALE_TARGET_STR_BF16 BLOCKSCALE_TARGET_STR_VNNI ",avx512bf16"
