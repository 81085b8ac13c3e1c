# Helpers that every target goes through, so that flags are stated once.

# Numerics depend on -ffp-contract=off: a fused multiply-add happens only where the source says so.
function(blockscale_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
    -ffp-contract=off -fno-math-errno $<$<BOOL:${BLOCKSCALE_WERROR}>:-Werror>)
  if(BLOCKSCALE_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
endfunction()

# One executable a test file: `ops/gemm/gemm_test.cpp` becomes `ops_gemm_gemm_test`.
function(blockscale_add_test source)
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
  string(REGEX REPLACE "\\.cpp$" "" name ${path})
  string(REPLACE "/" "_" name ${name})
  add_executable(${name} ${source})
  blockscale_compile_options(${name})
  target_link_libraries(${name} PRIVATE blockscale TBB::tbb PkgConfig::HWY
    nlohmann_json::nlohmann_json GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE BLOCKSCALE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(${name} PROPERTIES TIMEOUT 600 DISCOVERY_TIMEOUT 60)
endfunction()

# `models/safetensors_fuzz.cpp` becomes `models_safetensors_fuzz`, a libFuzzer target.
function(blockscale_add_fuzzer source)
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
  string(REGEX REPLACE "\\.cpp$" "" name ${path})
  string(REPLACE "/" "_" name ${name})
  add_executable(${name} ${source})
  blockscale_compile_options(${name})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE blockscale nlohmann_json::nlohmann_json)
endfunction()
