# GPU kernels: compiling the pack, and testing and measuring on a machine with a GPU, which may have
# no network and none of Debian's packages: build/bundle, made beforehand, then stands in for them.

bundle=build/bundle
bundle_root=$bundle/sysroot
bundle_limit=$((40 << 20))
gpu_results=bench/results
exit_no_gpu=77

# --- the kernel pack -------------------------------------------------------------------------------

# Lets the library find NVRTC where it would not by itself: in build/venv, or in a toolkit that is
# neither the default one nor of version 13.0. One that is installed is as good as the pinned one;
# where there is none, that is fetched from PyPI.
use_nvrtc() {
  if [[ -n ${BLOCKSCALE_NVRTC:-} ]]; then return; fi
  local path
  path=$(nvrtc_library)
  if [[ ! -e $path ]]; then
    if loader_has_nvrtc; then return; fi
    path=$(toolkit_nvrtc)
    if [[ -z $path ]]; then
      make_venv
      path=$(nvrtc_library)
    fi
  fi
  export BLOCKSCALE_NVRTC=$path
}

loader_has_nvrtc() { [[ $(ldconfig -p 2>/dev/null) == *libnvrtc.so.13* ]]; }

# The first of the toolkits in the library's own order, then any other; nothing if there is none.
toolkit_nvrtc() {
  local root
  for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-*; do
    if [[ -n $root && -e $root/lib64/libnvrtc.so.13 ]]; then
      printf '%s\n' "$root/lib64/libnvrtc.so.13"
      return
    fi
  done
}

build_kernel_pack() { # FOLDER OPTION...
  use_nvrtc
  "$1/cli/blockscale" kernels build --output "$1" "${@:2}"
}

# A pack that was built once follows its sources: the library refuses one that does not.
refresh_kernel_pack() {
  if ! compgen -G 'build/release/blockscale-*.pack' >/dev/null; then return; fi
  build_kernel_pack build/release --quiet >/dev/null
}

# --- the bundle ------------------------------------------------------------------------------------

# Debian packages that hold headers and libraries of the build, without those that every machine
# with a compiler has.
bundle_packages() {
  local package
  for package in "${build_packages[@]}"; do
    case $package in
      g++-* | cmake | ninja-build | ccache | libboost-*) ;;
      *) printf '%s\n' "$package" ;;
    esac
  done
}

# Their own dependencies among libraries and their parts; boost's headers are 138 MB, and are taken
# by the files that are included.
with_dependencies() {
  local seen=' ' pending=("$@") package needed
  while ((${#pending[@]} > 0)); do
    package=${pending[0]} pending=("${pending[@]:1}")
    [[ $seen != *" $package "* ]] || continue
    seen+="$package "
    printf '%s\n' "$package"
    while read -r needed; do pending+=("$needed"); done < <(
      dpkg-query -W -f '${Depends}\n' "$package" | sed 's/[,|] */\n/g' | sed 's/[ (:].*//' |
        grep -E '^(lib(hwy|tbb|re2|spdlog|fmt|gtest|gmock|pkgconf|hwloc|xxhash)|pkgconf)' || true
    )
  done
}

bundle_files() {
  local package packages
  mapfile -t packages < <(bundle_packages)
  while read -r package; do dpkg -L "$package"; done < <(with_dependencies "${packages[@]}") | grep -vE '^/usr/share/(doc|man|lintian|bash-completion|bug|aclocal|perl)|^/usr/src|^/etc|^/\.$' |
    grep -E '\.|/pkgconf$' | grep -vE '/lib(hwy_(contrib|test)|xxhash)\.'
  boost_files
}

# The headers of boost that the emulator includes, and the static library.
boost_files() {
  printf '#include <boost/context/fiber.hpp>\n#include <boost/context/stack_context.hpp>\n' |
    g++-12 -std=c++20 -M -x c++ - | grep -oE '/usr/include/boost/[^ ]+'
  find /usr/lib -name 'libboost_context.a'
}

make_bundle() {
  say "collecting what a machine without network and Debian packages lacks into $bundle"
  install_packages "${build_packages[@]}"
  make_venv
  rm -rf "$bundle"
  mkdir -p "$bundle_root" "$bundle/python" "$bundle/model"
  bundle_files | sort -u | while read -r path; do
    if [[ -f $path || -L $path ]]; then printf '%s\n' "${path#/}"; fi
  done >"$bundle/files"
  tar -C / --no-recursion -cf - -T "$bundle/files" | tar -C "$bundle_root" -xf -
  write_pkg_config
  bundle_python
  make_model_weights "$bundle/model/model.safetensors"
  tree_commit >"$bundle/commit" || die "git does not tell the commit that goes into $bundle"
  tree_hash >"$bundle/tree" || die "git does not tell the hash of the tree that goes into $bundle"
  local bytes
  bytes=$(du -sb "$bundle" | cut -f1)
  ((bytes <= bundle_limit)) || die "$bundle has $bytes bytes; at most $bundle_limit are allowed"
  say "$bundle: $((bytes >> 10)) KiB"
}

# A pkg-config that knows the bundle alone, wherever that is copied to.
write_pkg_config() {
  cat >"$bundle/pkg-config" <<'SH'
#!/bin/sh
root=$(cd "$(dirname "$0")/sysroot" && pwd)
lib=$root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH="$lib" PKG_CONFIG_SYSROOT_DIR="$root"
export PKG_CONFIG_LIBDIR="$lib/pkgconfig:$root/usr/share/pkgconfig"
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
exec "$root/usr/bin/pkgconf" "$@"
SH
  chmod +x "$bundle/pkg-config"
}

# What the module's build and the tests need besides torch and numpy: pure Python, any version.
bundle_python() {
  local requirement requirements=()
  for requirement in nanobind pytest; do
    requirements+=("$(grep "^$requirement==" tests/requirements.txt)")
  done
  build/venv/bin/pip install --quiet --disable-pip-version-check --no-compile \
    --target "$bundle/python" "${requirements[@]}"
  rm -rf "$bundle"/python/bin
}

# --- on the machine with a GPU ---------------------------------------------------------------------

# Only a machine that has none is without a GPU: a driver that fails is an error.
require_gpu() {
  command -v python3 >/dev/null || die "python3 is needed to look for a GPU"
  local status=0
  python3 tools/dev/find_gpu.py || status=$?
  ((status != exit_no_gpu)) || say "no GPU"
  ((status == 0)) || exit "$status"
  find_gpu_python
}

# Sets gpu_python: one whose torch sees the GPU, else one that has torch, else python3.
find_gpu_python() {
  local code
  for code in 'import sys, torch; sys.exit(not torch.cuda.is_available())' 'import torch'; do
    for gpu_python in python3 build/venv-torch/bin/python; do
      if "$gpu_python" -c "$code" 2>/dev/null; then return; fi
    done
  done
  gpu_python=python3
}

# Builds into build/gpu, with the bundle where there is one and with what is installed elsewhere.
build_gpu() { # [--line-info] TARGET...
  local options=() pack_options=(--quiet) root=$PWD/$bundle_root/usr
  if [[ $1 == --line-info ]]; then
    pack_options+=(--line-info)
    shift
  fi
  if [[ -d $bundle ]]; then
    export PYTHONPATH=$PWD/$bundle/python${PYTHONPATH:+:$PYTHONPATH}
    options=("-DCMAKE_PREFIX_PATH=$root" "-DPKG_CONFIG_EXECUTABLE=$PWD/$bundle/pkg-config"
      "-DBLOCKSCALE_PKG_CONFIG=$PWD/$bundle/pkg-config"
      "-DCMAKE_EXE_LINKER_FLAGS=-L$root/lib/x86_64-linux-gnu"
      "-DCMAKE_BUILD_RPATH=$root/lib/x86_64-linux-gnu"
      -DCMAKE_POLICY_VERSION_MINIMUM=3.5)
  else
    install_packages "${build_packages[@]}"
    make_venv
    export PYTHONPATH
    PYTHONPATH=$(echo "$PWD"/build/venv/lib/python3*/site-packages)
  fi
  if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p build
  local start=$SECONDS
  if has_python_headers "$gpu_python"; then options+=(-DBLOCKSCALE_PYTHON=ON); fi
  cmake -G Ninja -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release \
    "-DPython_EXECUTABLE=$(command -v "$gpu_python")" "${options[@]}" >build/gpu.log 2>&1 ||
    { cat build/gpu.log >&2 && die "CMake failed in build/gpu"; }
  ninja --quiet -C build/gpu -j"$jobs" "$@"
  build_kernel_pack build/gpu "${pack_options[@]}"
  say "built in $((SECONDS - start)) s on $jobs threads"
}

# The Python package of that build, in build/gpu-package.
install_gpu_package() {
  rm -rf build/gpu-package
  cmake --install build/gpu --component python --prefix build/gpu-package >build/gpu-package.log
}

# Those of the bundle; where there is none, made as a bundle's are.
model_weights() {
  local weights=$PWD/$bundle/model/model.safetensors
  if [[ ! -d $bundle ]]; then
    weights=$PWD/build/gpu-weights.safetensors
    if [[ ! -e $weights ]]; then
      { make_model_weights "$weights.new" && mv "$weights.new" "$weights"; } >&2 ||
        die "the model's weights cannot be made"
    fi
  fi
  echo "$weights"
}

# The demo model's linear layers, in bf16.
make_model_weights() { # FILE
  fetch_demo_model
  build/venv/bin/python tools/linear_weights.py "$demo/model/model.safetensors" "$1"
}

# The commit of this tree, with -dirty if it holds anything else but new results.
tree_commit() {
  local commit changes
  commit=$(git rev-parse HEAD 2>/dev/null) || return
  changes=$(git status --porcelain -- . ":!$gpu_results") || return
  printf '%s\n' "$commit${changes:+-dirty}"
}

# git's hash of this tree's files, but for results.
tree_hash() {
  local index status=0
  index=$(mktemp -u)
  { GIT_INDEX_FILE=$index git add --all -- . ":!$gpu_results" &&
    GIT_INDEX_FILE=$index git write-tree; } || status=$?
  rm -f "$index"
  return "$status"
}

# The commit that is tested. A copy of the tree may have no history, or another one than the tree
# that it was made from: its bundle then tells, if that is of these files.
tested_commit() {
  local commit=''
  if [[ -e .git ]]; then commit=$(tree_commit) || commit=''; fi
  if [[ $commit == *-dirty && "$(tree_hash 2>/dev/null)" == "$(cat "$bundle/tree" 2>/dev/null)" ]]; then
    commit=''
  fi
  if [[ -n $commit ]]; then echo "$commit"; else cat "$bundle/commit" 2>/dev/null || echo unknown; fi
}

sanitizer_tools=(memcheck racecheck synccheck initcheck)

# Tests of so many values that a sanitizer would not end, each with a smaller one beside it.
sanitizer_leaves_out='*EveryNumber.*:CudaGpuRandom*:CudaGpuWeights.*:MathOnGpu.*:*.*EverySixteenBit*'
sanitizer_leaves_out+=':*.FusesFunctionsWithManyElements:*.LargeProducts:*.TakeLargeMatrices:*.AreTakenByLargeInputs'

# run_gpu_tests [--sanitizer TOOL [PROGRAM] [GTEST OPTION...]]
run_gpu_tests() {
  require_gpu_test_arguments "$@"
  require_gpu
  if [[ ${1:-} == --sanitizer ]]; then
    run_compute_sanitizer "${@:2}"
  else
    run_all_gpu_tests
  fi
}

require_gpu_test_arguments() {
  local option
  (($# > 0)) || return 0
  [[ $1 == --sanitizer ]] || die "unknown argument '$1' of ./dev gpu-test; --sanitizer TOOL is known"
  [[ -n ${2:-} && " ${sanitizer_tools[*]} " == *" $2 "* ]] ||
    die "--sanitizer is followed by '${2:-}'; one of ${sanitizer_tools[*]} is needed"
  [[ ${3:-} == -* || -n $(gpu_test_programs "${3:-}") ]] ||
    die "'$3' after --sanitizer $2 is in no program's name: $(gpu_test_programs '' | tr '\n' ' ')"
  for option in "${@:3}"; do
    [[ $option == "$3" && $3 != -* || $option == --gtest_* ]] ||
      die "unknown argument '$option' after --sanitizer $2; part of a program's name, then GoogleTest's --gtest_... are known"
  done
}

# The programs that need a GPU, those with PART in their names.
gpu_test_programs() { # PART
  find ops runtime -name '*_gpu_test.cpp' | sed 's|\.cpp$||; s|/|_|g' | sort | grep -F -- "$1" || true
}

run_all_gpu_tests() {
  local targets=(blockscale_cli gpu_tests)
  if has_python_headers "$gpu_python"; then
    build_gpu "${targets[@]}" _native _native_stub
    install_gpu_package
  else
    rm -rf build/gpu-package
    build_gpu "${targets[@]}"
  fi
  export BLOCKSCALE_REQUIRE_GPU=1 BLOCKSCALE_MODEL BLOCKSCALE_CLI=$PWD/build/gpu/cli/blockscale
  BLOCKSCALE_MODEL=$(model_weights)
  local failed=0
  ctest --test-dir build/gpu -L gpu -j1 --output-on-failure --no-tests=error || failed=1
  if [[ ! -d build/gpu-package ]]; then
    say "$gpu_python has no headers (python3-dev): the Python package was not tested"
    failed=1
  else
    PYTHONPATH=$PWD/build/gpu-package:$PYTHONPATH "$gpu_python" -m pytest tests/gpu -q -rs \
      -p no:cacheprovider --basetemp=build/pytest-gpu || failed=1
  fi
  say "gpu-test in ${SECONDS} s: $( ((failed)) && echo failed || echo passed)"
  ((failed == 0))
}

# One of sanitizer_tools over the C++ tests, with source lines in its reports.
run_compute_sanitizer() { # TOOL [PROGRAM] GTEST-OPTION...
  command -v compute-sanitizer >/dev/null || die "compute-sanitizer, of the CUDA toolkit, is needed"
  local tool=$1 part='' programs program list ran=0 failed=0
  shift
  if [[ -n ${1:-} && $1 != -* ]]; then
    part=$1
    shift
  fi
  if [[ " $*" != *" --gtest_filter="* ]]; then
    set -- "$@" "--gtest_filter=-$sanitizer_leaves_out"
    say "left out, unless --gtest_filter names them: $sanitizer_leaves_out"
  fi
  mapfile -t programs < <(gpu_test_programs "$part")
  build_gpu --line-info blockscale_cli "${programs[@]}"
  for program in "${programs[@]/#/build/gpu/}"; do
    list=$("$program" "$@" --gtest_list_tests) || die "$program does not list its tests"
    [[ $list == *$'\n  '* ]] || continue
    ran=$((ran + 1))
    say "-- $program under $tool"
    sanitize "$tool" "$program" "$@" || failed=1
  done
  ((ran > 0)) || die "no test has a name that $* asks for"
  say "$tool over $ran programs in $SECONDS s: $( ((failed)) && echo failed || echo passed)"
  ((failed == 0))
}

sanitize() { # TOOL PROGRAM GTEST-OPTION...
  local options=()
  case $1 in
    # Tests provoke errors of the driver; those that are not expected fail the tests.
    memcheck) options=(--report-api-errors no) ;;
    # A thread block's mbarriers, of which synccheck by itself counts too few: launches then fail.
    synccheck) options=(--num-cuda-barriers 64) ;;
  esac
  export BLOCKSCALE_MODEL
  if [[ $2 == *weights* ]]; then BLOCKSCALE_MODEL=$(model_weights); fi
  BLOCKSCALE_REQUIRE_GPU=1 BLOCKSCALE_SANITIZER=$1 compute-sanitizer --tool "$1" --error-exitcode 1 "${options[@]}" "${@:2}"
}

# run_gpu_benchmarks [OPTION...]: the programs; run_gpu_benchmarks gemm [OPTION...]: products, in
# turns with torch's; gemm_sweep: of any number of rows; weights: with FP4 weights; grouped_gemm: of
# groups of rows; moe: layers of experts; decode: a step of 36 layers; offload: blocks whose weights
# are copied as they run; first_calls: of a process; host: CPU time of calls from Python.
run_gpu_benchmarks() {
  case ${1:-} in
    gemm | gemm_sweep | weights | grouped_gemm | moe | decode | offload | first_calls | host)
      run_python_benchmark "$@"
      return
      ;;
  esac
  require_gpu
  build_gpu blockscale_cli gpu_benchmarks
  mkdir -p "$gpu_results"
  # Each prints one JSON object; what was measured, where and how stands around it.
  "$gpu_python" tools/bench/record.py programs --build build/gpu --commit "$(tested_commit)" \
    --output "$gpu_results" "$@"
}

run_python_benchmark() { # NAME OPTION...: tools/bench/NAME.py
  require_gpu
  "$gpu_python" -c 'import torch' 2>/dev/null || die "a Python with torch is needed; $gpu_python has none"
  has_python_headers "$gpu_python" || die "$gpu_python has no headers (python3-dev) to build the Python package with"
  build_gpu blockscale_cli _native _native_stub
  install_gpu_package
  PYTHONPATH=$PWD/build/gpu-package:$PYTHONPATH "$gpu_python" tools/bench/record.py "$1" \
    --commit "$(tested_commit)" --output "$gpu_results" "${@:2}"
}
