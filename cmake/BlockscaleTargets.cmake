# Helpers that every target goes through, so that flags are stated once.

# Numerics depend on -ffp-contract=off: a fused multiply-add happens only where the source says so.
# libstdc++ 12's own stable_sort uses what C++17 deprecates, which only clang reports; g++ still warns
# about deprecated names in our sources. g++ 12 sees overlap in every `"..." + std::string` (GCC 105651).
function(blockscale_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
    $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
    -ffp-contract=off -fno-math-errno $<$<BOOL:${BLOCKSCALE_WERROR}>:-Werror>)
  if(BLOCKSCALE_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
endfunction()

# Adds the executable of one source file that links the library, named after the file's path:
# `ops/gemm/gemm_test.cpp` becomes `ops_gemm_gemm_test`. Sets `result` to that name.
# From 12.3 on g++ takes an assigned list of one number for an overflow: in
# programs, most of them tests, that is not worth rewriting lists for.
function(blockscale_add_program source result)
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
  string(REGEX REPLACE "\\.cpp$" "" name ${path})
  string(REPLACE "/" "_" name ${name})
  add_executable(${name} ${source})
  blockscale_compile_options(${name})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.3)
    target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-stringop-overread)
  endif()
  target_link_libraries(${name} PRIVATE blockscale TBB::tbb PkgConfig::HWY
    nlohmann_json::nlohmann_json)
  target_compile_definitions(${name} PRIVATE BLOCKSCALE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set(${result} ${name} PARENT_SCOPE)
endfunction()

# Further arguments are libraries to link. Tests are of four kinds, each with a label for `ctest -L`
# and a target NAME_tests that builds it. `gpu`: `*_gpu_test.cpp`, which say that they are skipped
# without one. `emulated`: kernels on the host. `arithmetic`: numbers that depend on the compiler.
# `logic`: all others.
function(blockscale_add_test source)
  blockscale_add_program(${source} name)
  target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest_main ${ARGN})
  if(name MATCHES "_gpu_test$")
    set(kind gpu)
  elseif("blockscale_emulator" IN_LIST ARGN)
    set(kind emulated)
  elseif(name MATCHES "^(core|ops)_" AND
         NOT name MATCHES "^ops_.*(_cuda_|validate|driver_calls|plans?_test|tuning)")
    set(kind arithmetic)
  else()
    set(kind logic)
  endif()
  blockscale_add_to_group(${kind}_tests ${name})
  if(BLOCKSCALE_SANITIZE AND kind STREQUAL "logic") # half the time to compile, and none to run
    target_compile_options(${name} PRIVATE -O0)
  endif()
  gtest_discover_tests(${name} PROPERTIES TIMEOUT 600 LABELS ${kind} DISCOVERY_TIMEOUT 60)
endfunction()

# A benchmark of GPU code: a program that prints one JSON object, or "no GPU" and exits with 77.
function(blockscale_add_gpu_benchmark source)
  blockscale_add_program(${source} name)
  blockscale_add_to_group(gpu_benchmarks ${name})
endfunction()

function(blockscale_add_to_group group target)
  if(NOT TARGET ${group})
    add_custom_target(${group})
  endif()
  add_dependencies(${group} ${target})
endfunction()

# CUDA's headers for tests that compare with its host conversions: BLOCKSCALE_CUDA_INCLUDE, else the
# installed toolkit's. Without them the tests say that they are skipped.
set(BLOCKSCALE_CUDA_INCLUDE "" CACHE PATH "Folder of cuda_fp8.h, for tests only")
function(blockscale_use_cuda_headers target)
  foreach(folder IN ITEMS "${BLOCKSCALE_CUDA_INCLUDE}" /usr/local/cuda/include)
    if(EXISTS "${folder}/cuda_fp8.h" AND EXISTS "${folder}/cccl/nv/target")
      target_include_directories(${target} SYSTEM PRIVATE ${folder} ${folder}/cccl)
      target_compile_definitions(${target} PRIVATE BLOCKSCALE_HAS_CUDA_HEADERS)
      return()
    endif()
  endforeach()
endfunction()

# A libcuda.so.1 without a GPU for `target`'s tests, which load it; and one that is too old.
function(blockscale_use_fake_driver target)
  foreach(name IN ITEMS fake old)
    if(NOT TARGET blockscale_${name}_libcuda)
      add_library(blockscale_${name}_libcuda MODULE ${PROJECT_SOURCE_DIR}/tests/fake_libcuda.cpp)
      blockscale_compile_options(blockscale_${name}_libcuda)
      target_include_directories(blockscale_${name}_libcuda PRIVATE ${PROJECT_SOURCE_DIR})
      target_compile_features(blockscale_${name}_libcuda PRIVATE cxx_std_20)
    endif()
    string(TOUPPER ${name} upper)
    add_dependencies(${target} blockscale_${name}_libcuda)
    target_compile_definitions(${target} PRIVATE
      BLOCKSCALE_${upper}_LIBCUDA="$<TARGET_FILE:blockscale_${name}_libcuda>")
  endforeach()
  target_compile_definitions(blockscale_old_libcuda PRIVATE BLOCKSCALE_OLD_DRIVER)
endfunction()

# A libFuzzer target. With BLOCKSCALE_FUZZ models/ is instrumented, so that coverage guides it.
function(blockscale_add_fuzzer source)
  blockscale_add_program(${source} name)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  blockscale_add_to_group(fuzzers ${name})
endfunction()

# A test that runs kernels through device/emulator: a test that links it and has the flags under
# which host arithmetic is the GPU's. Further arguments are libraries to link.
function(blockscale_add_emulated_test source)
  blockscale_add_test(${source} blockscale_emulator ${ARGN})
endfunction()
