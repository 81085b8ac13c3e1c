# ./dev test: steps in order, each with its own log, and one true closing line over all of them.
# A step is a function `step_NAME`; a failed step does not stop the others.

all_steps=(static release sanitized lint highway python package install fuzz)
logs=build/test
with_torch=0
kernels_checked=0
passed=0 failed=0 skipped=0

cpp_sources() { tracked '*.h' '*.cpp' '*.cuh' '*.cu'; }

run_tests() {
  local steps=()
  while (($# > 0)); do
    case "$1" in
      --exhaustive) export BLOCKSCALE_EXHAUSTIVE=1 ;;
      --torch) with_torch=1 ;;
      -*) die "unknown option '$1' of ./dev test" ;;
      *)
        [[ " ${all_steps[*]} " == *" $1 "* ]] || die "no test step '$1': ${all_steps[*]}"
        steps+=("$1")
        ;;
    esac
    shift
  done
  ((${#steps[@]} > 0)) || steps=("${all_steps[@]}")
  run_test_steps "${steps[@]}"
}

run_test_steps() {
  install_packages "${build_packages[@]}" "${check_packages[@]}"
  make_venv
  rm -rf "$logs"
  mkdir -p "$logs"
  local name
  for name in "$@"; do "step_$name"; done
  say "all in ${SECONDS} s; logs in $logs/"
  say "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0))
}

# check NAME COMMAND...: runs it in a subshell with `set -e` and counts it. A command that leaves
# JUnit XML in $logs/NAME.xml counts as the tests listed there, any other one as one test.
check() {
  local name=$1 log=$logs/$1.log xml=$logs/$1.xml start=$SECONDS status=0 failures=0 skips=0 total=1
  shift
  set +e
  (set -e && "$@") >"$log" 2>&1 </dev/null
  status=$?
  set -e
  if [[ -s $xml ]]; then
    total=$(junit_count tests "$xml")
    failures=$(($(junit_count failures "$xml") + $(junit_count errors "$xml")))
    skips=$(($(junit_count skipped "$xml") + $(junit_count disabled "$xml")))
  fi
  if ((status != 0 && failures == 0)); then
    failures=1
    [[ -s $xml ]] && total=$((total + 1))
  fi
  if ((total == 0)); then total=1 failures=1; fi # a suite that found no test
  passed=$((passed + total - failures - skips)) failed=$((failed + failures)) skipped=$((skipped + skips))
  printf '%-26s %5d passed %3d failed %3d skipped  %4d s\n' \
    "$name" $((total - failures - skips)) "$failures" "$skips" $((SECONDS - start))
  grep -E '\*\*\*(Skipped|Not Run)|^SKIPPED' "$log" || true
  ((failures == 0)) || { tail -n 60 "$log" && say "-- the whole log: $log"; }
}

junit_count() { # ATTRIBUTE FILE: of the first element that has it
  local value
  value=$(grep -oE "\b$1=\"[0-9]+\"" "$2" | head -n 1 | tr -dc 0-9)
  echo "${value:-0}"
}

# --- static: seconds, nothing is built ------------------------------------------------------------
step_static() {
  check clang-format format_is_kept
  check layering "$python" tools/check_layering.py
  check ruff ruff_is_content
  check shellcheck shellcheck_is_content
}

format_is_kept() { cpp_sources | xargs -r clang-format-19 --dry-run --Werror; }
ruff_is_content() { build/venv/bin/ruff format --check && build/venv/bin/ruff check; }
shellcheck_is_content() {
  tracked '*.sh' dev .ci/run | xargs shellcheck --external-sources --shell=bash \
    --exclude=SC2034,SC2154,SC2119,SC2120 # what another part sets, reads or passes
}

# --- release and sanitized: the C++ tests, by their kinds (cmake/BlockscaleTargets.cmake) ------------
# Release: what g++ makes of arithmetic, and what needs a GPU; sanitized: all that need none.
step_release() {
  check build-release build_release arithmetic_tests gpu_tests cpu_benchmarks gpu_benchmarks \
    blockscale_cli
  check_kernels
  check ctest-release run_ctest release 'arithmetic|gpu'
}

step_sanitized() {
  check build-sanitized build_sanitized arithmetic_tests emulated_tests logic_tests fuzzers
  check ctest-sanitized run_ctest sanitized 'arithmetic|emulated|logic'
}

# Once for all steps, and outside any test's time limit: minutes on a machine that is busy.
check_kernels() {
  ((kernels_checked)) && return
  check kernels build_pack_with_pinned_nvrtc
  grep -s '^sm_' "$logs/kernels.log" || true # the size of each architecture's pack, and its time
  kernels_checked=1
}

# Packs are kept for other checkouts, as ccache keeps objects: a kernel of the same sources, flags and
# compiler is not compiled again.
build_pack_with_pinned_nvrtc() {
  local kept=${XDG_CACHE_HOME:-${HOME:-build}/.cache}/blockscale-dev pack
  use_pinned_nvrtc
  mkdir -p "$kept"
  for pack in "$kept"/*.pack; do
    if [[ -e $pack && ! -e build/release/${pack##*/} ]]; then cp "$pack" build/release; fi
  done
  build_kernel_pack build/release --quiet
  for pack in build/release/*.pack; do
    cp "$pack" "$kept/new.$$" && mv "$kept/new.$$" "$kept/${pack##*/}"
  done
}

# The same compiler on every machine, whatever else is installed.
use_pinned_nvrtc() {
  export BLOCKSCALE_NVRTC
  BLOCKSCALE_NVRTC=$(nvrtc_library)
}

run_ctest() { # BUILD KINDS
  export ASAN_SYMBOLIZER_PATH=/usr/lib/llvm-19/bin/llvm-symbolizer
  export UBSAN_OPTIONS=print_stacktrace=1
  use_pinned_nvrtc
  ctest --test-dir "build/$1" -L "^($2)\$" -j"$jobs" --output-on-failure --no-tests=error \
    --output-junit "$PWD/$logs/ctest-$1.xml"
}

# --- lint: clang-tidy over the library, the emulator, the command line and their headers -----------
# As they are compiled: a folder's sources at once, whose headers are most of the time.
step_lint() {
  mkdir -p build
  check clang-tidy lint_sources
}

lint_sources() {
  local headers # of sanitizers: clang's, which its tools alone come without
  headers=$(clang++-19 -print-resource-dir)/include
  [[ -f build/sanitized/compile_commands.json ]] || configure_sanitized
  jq -r '.[] | select(.command | test(" -o (cli/)?CMakeFiles/blockscale(_[a-z_]+)?[.]dir/")) | .file' \
    build/sanitized/compile_commands.json | grep -vE '/(tests|generated)/' |
    xargs -P "$jobs" -n 1 build/venv/bin/clang-tidy -p build/sanitized --quiet \
      --extra-arg="-idirafter$headers" --warnings-as-errors='*'
}

# --- highway: the SIMD code with a newer Highway than the system's ----------------------------------
step_highway() {
  check fetch-highway fetch_newer_highway
  check build-highway compile_with_newer_highway
}

# Leaves its headers, which the sources of a Python package hold, in build/highway/hwy.
fetch_newer_highway() {
  local pinned=tests/requirements-highway.txt folder=$PWD/build/highway
  cmp -s "$pinned" "$folder/requirements.txt" && return
  rm -rf "$folder"
  mkdir -p "$folder/backend"
  # pip asks the package's build system for its name; this one knows it without configuring a build.
  cat >"$folder/backend/mesonpy.py" <<'TEXT'
import email, pathlib
def prepare_metadata_for_build_wheel(folder, settings=None):
    text = pathlib.Path("PKG-INFO").read_text()
    name = "numpy-" + email.message_from_string(text)["Version"] + ".dist-info"
    (pathlib.Path(folder) / name).mkdir()
    (pathlib.Path(folder) / name / "METADATA").write_text(text)
    return name
TEXT
  PYTHONPATH=$folder/backend build/venv/bin/pip download --quiet --disable-pip-version-check \
    --no-deps --no-binary :all: --no-build-isolation --require-hashes --dest "$folder" -r "$pinned"
  tar -xzf "$folder"/*.tar.gz -C "$folder" --strip-components=5 --wildcards '*/src/highway/hwy'
  rm -r "$folder"/*.tar.gz "$folder/backend"
  cp "$pinned" "$folder/requirements.txt"
}

# Without tests, and optimized as little as shows what cannot be inlined.
compile_with_newer_highway() {
  local units
  mapfile -t units < <(tracked 'ops/*.cpp' | grep -vE '_(test|bench|fuzz)\.cpp$' |
    xargs grep -l '^#include <hwy/')
  units=("${units[@]/#/CMakeFiles/blockscale.dir/}")
  configure build/newer-highway -DCMAKE_CXX_COMPILER=g++-12 \
    -DCMAKE_CXX_FLAGS="-O1 -isystem $PWD/build/highway" -DBLOCKSCALE_TESTS=OFF -DBLOCKSCALE_CLI=OFF
  ninja --quiet -C build/newer-highway -j"$jobs" "${units[@]/%/.o}"
}

# --- python: oracles from other people's packages, the command line, kill -9 -----------------------
step_python() {
  check build-cli build_release blockscale_cli tests_oracles_format_tables \
    tests_oracles_quantize_tensor blockscale_fake_libcuda blockscale_old_libcuda
  check_kernels
  check fetch-model fetch_demo_model # for its weights
  check pytest run_pytest
}

run_pytest() {
  use_pinned_nvrtc
  BLOCKSCALE_CLI=$PWD/build/release/cli/blockscale BLOCKSCALE_BUILD=$PWD/build/release \
    BLOCKSCALE_MODEL=$PWD/$demo/model/model.safetensors \
    pytest_in build/venv pytest tests/python "${on_all_cores[@]}"
}

# A file's tests run one after another: they share what it makes once.
on_all_cores=(-n "$jobs" --dist=loadfile)

pytest_in() { # ENVIRONMENT NAME PATH-OR-OPTION...
  "$1/bin/pytest" "${@:3}" -q -rs -p no:cacheprovider --basetemp="build/$2" \
    --junitxml="$logs/$2.xml"
}

# --- package: the Python package ---------------------------------------------------------------------
step_package() {
  require_python_headers
  check build-package build_package
  check pytest-package run_package_pytest
  if ((with_torch)); then
    check install-torch make_torch_venv
    check pytest-torch run_torch_pytest
  fi
}

# What needs torch says here that it is skipped, and runs in an environment of its own with --torch.
run_package_pytest() {
  package_pytest build/venv pytest-package tests/package "${on_all_cores[@]}"
}
run_torch_pytest() { # whose tests are on all cores each: two at once are slower
  fetch_demo_model # for its weights
  BLOCKSCALE_MODEL=$PWD/$demo/model/model.safetensors \
    package_pytest build/venv-torch pytest-torch tests/package/{compat,nn,test_torch*.py,test_calibrator.py}
}

package_pytest() { PYTHONPATH=$PWD/build/package pytest_in "$@"; }

# --- install: what a user of the installed library does --------------------------------------------
step_install() {
  check find_package build_installed_example
}

build_installed_example() {
  build_release blockscale blockscale_cli
  rm -rf build/installed build/example
  cmake --install build/release --prefix build/installed
  cmake -G Ninja -S examples/find_package -B build/example -DCMAKE_CXX_COMPILER=g++-12 \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/build/installed;$(dirname "$(cuda_include)")"
  ninja -C build/example
  build/example/example
  build/example/cuda_example
  build/installed/bin/blockscale --version
}

# --- fuzz: libFuzzer over the committed corpora ----------------------------------------------------
step_fuzz() {
  local name
  check build-fuzzers build_sanitized fuzzers
  run_fuzzers "-max_total_time=${BLOCKSCALE_FUZZ_SECONDS:-30}"
  for name in $(fuzzer_names); do check "fuzz-$name" fuzzer_result "$name"; done
}

fuzzer_names() { tracked '*_fuzz.cpp' | sed 's|\.cpp$||; s|/|_|g'; }

# run_fuzzers OPTION...: all of them, as many at a time as there are cores.
run_fuzzers() {
  local name
  mkdir -p build/fuzz
  for name in $(fuzzer_names); do
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
    run_fuzzer "$name" "$@" &
  done
  wait
}

# New inputs go to build/fuzz/NAME/corpus; the committed seeds are only read.
run_fuzzer() {
  local name=$1 folder=build/fuzz/$1
  rm -rf "$folder"
  mkdir -p "$folder/corpus"
  local status=0
  "build/sanitized/$name" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$folder/" "${@:2}" "$folder/corpus" "tests/corpus/$name" \
    >"$folder/log" 2>&1 </dev/null || status=$?
  echo "$status" >"$folder/status"
}

fuzzer_result() {
  grep -vE '^#|^INFO' "build/fuzz/$1/log"
  return "$(<"build/fuzz/$1/status")"
}
