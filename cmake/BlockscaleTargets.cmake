# Helpers that every target goes through, so that flags are stated once.

# Numerics depend on -ffp-contract=off: a fused multiply-add happens only where the source says so.
# libstdc++ 12's own stable_sort uses what C++17 deprecates, which only clang reports; g++ still warns
# about deprecated names in our sources. g++ 12 sees overlap in every `"..." + std::string` (GCC 105651).
# It also takes sources that are compiled together for headers, and members of their types in unnamed
# namespaces for a fault.
function(blockscale_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
    $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-subobject-linkage>
    -ffp-contract=off -fno-math-errno $<$<BOOL:${BLOCKSCALE_WERROR}>:-Werror>)
  if(BLOCKSCALE_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
endfunction()

# The path of a source or of its folder as a name: `ops/gemm/gemm_test.cpp` is `ops_gemm_gemm_test`.
function(blockscale_name_of path result)
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${path})
  string(REGEX REPLACE "\\.cpp$" "" name ${name})
  string(REPLACE "/" "_" name ${name})
  set(${result} ${name} PARENT_SCOPE)
endfunction()

# The sources of a folder are compiled as one, at most `most` at a time: most of a source's time is its
# headers'. So their names differ, those without linkage too. What includes Highway stays alone: it
# compiles itself again for each instruction set, and another Highway compiles it, too (./dev test).
function(blockscale_compile_folders target most)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source IN LISTS sources)
    file(STRINGS ${source} alone REGEX "^#include <hwy/" LIMIT_COUNT 1)
    if(alone)
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE folder)
    cmake_path(GET folder PARENT_PATH folder)
    blockscale_name_of(${folder} name)
    list(APPEND members_${name} ${source})
    list(LENGTH members_${name} count)
    math(EXPR part "(${count} - 1) / ${most}")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${name}_${part})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# Adds an executable that links the library.
# From 12.3 on g++ takes an assigned list of one number for an overflow: in
# programs, most of them tests, that is not worth rewriting lists for.
function(blockscale_add_program name)
  add_executable(${name} ${ARGN})
  blockscale_compile_options(${name})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.3)
    target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-stringop-overread)
  endif()
  target_link_libraries(${name} PRIVATE blockscale TBB::tbb PkgConfig::HWY
    nlohmann_json::nlohmann_json)
  target_compile_definitions(${name} PRIVATE BLOCKSCALE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
endfunction()

# Tests are of four kinds, each with a label for `ctest -L` and a target KIND_tests that builds it.
# `gpu`: `*_gpu_test.cpp`, which say that they are skipped without one. `emulated`: kernels on the
# host. `arithmetic`: numbers that depend on the compiler. `logic`: all others.
function(blockscale_kind_of_test source result)
  blockscale_name_of(${source} name)
  if(name MATCHES "_gpu_test$")
    set(kind gpu)
  elseif(name MATCHES "^device_|_emulated_test$")
    set(kind emulated)
  elseif(name MATCHES "^(core|ops)_" AND
         NOT name MATCHES "^ops_.*(_cuda_|validate|driver_calls|plans?_test|tuning)")
    set(kind arithmetic)
  else()
    set(kind logic)
  endif()
  set(${result} ${kind} PARENT_SCOPE)
endfunction()

# The tests of a folder that are of one kind are one program, FOLDER_KIND_tests; but each source of
# those that need a GPU is one, named after it. Emulated ones link the emulator, and those below
# ops/NAME the kernels that plans of that operation have. Further arguments: `LIBRARIES` of all.
function(blockscale_add_tests)
  cmake_parse_arguments(PARSE_ARGV 0 all "" "" "SOURCES;LIBRARIES")
  set(programs)
  foreach(source IN LISTS all_SOURCES)
    blockscale_kind_of_test(${source} kind)
    cmake_path(GET source PARENT_PATH folder)
    if(kind STREQUAL "gpu")
      blockscale_name_of(${source} name)
    else()
      blockscale_name_of(${folder} name)
      string(APPEND name _${kind}_tests)
    endif()
    list(APPEND programs ${name})
    list(APPEND sources_of_${name} ${source})
    set(kind_of_${name} ${kind})
  endforeach()
  list(REMOVE_DUPLICATES programs)
  foreach(name IN LISTS programs)
    set(kind ${kind_of_${name}})
    blockscale_add_program(${name} ${sources_of_${name}})
    target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest_main ${all_LIBRARIES})
    if(kind STREQUAL "emulated")
      target_link_libraries(${name} PRIVATE blockscale_emulator)
      if(name MATCHES "^ops_(quantize|gemm|grouped_gemm|moe)_")
        target_link_libraries(${name} PRIVATE blockscale_emulated_${CMAKE_MATCH_1})
      endif()
    elseif(kind STREQUAL "logic")
      blockscale_compile_folders(${name} 8)
      if(BLOCKSCALE_SANITIZE) # half the time to compile, and none to run
        target_compile_options(${name} PRIVATE -O0)
      endif()
    endif()
    blockscale_add_to_group(${kind}_tests ${name})
    gtest_discover_tests(${name} PROPERTIES TIMEOUT 600 LABELS ${kind} DISCOVERY_TIMEOUT 60)
  endforeach()
endfunction()

# A benchmark of GPU code: a program that prints one JSON object, or "no GPU" and exits with 77.
function(blockscale_add_gpu_benchmark source)
  blockscale_name_of(${source} name)
  blockscale_add_program(${name} ${source})
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
  blockscale_name_of(${source} name)
  blockscale_add_program(${name} ${source})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  blockscale_add_to_group(fuzzers ${name})
endfunction()
