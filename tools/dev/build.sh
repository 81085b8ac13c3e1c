# Configures and builds. build/release: g++ 12, what users get. build/sanitized: clang 19 with ASan,
# UBSan and the fuzzers' instrumentation. Both treat warnings as errors.

export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
jobs=$(nproc)

# configure FOLDER OPTION...: CMake notices by itself when a listed file changed.
configure() {
  local folder=$1
  shift
  cmake -G Ninja -S . -B "$folder" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DBLOCKSCALE_WERROR=ON "$@" >"$folder.log" 2>&1 ||
    { cat "$folder.log" >&2 && die "CMake failed in $folder"; }
}

# build_release TARGET... (all targets, tests included, if none is named)
build_release() {
  mkdir -p build
  configure build/release -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++-12 \
    "$(cuda_option)"
  ninja --quiet -C build/release -j"$jobs" "$@"
}

configure_sanitized() {
  mkdir -p build
  # SIMD code, which is vectors and unrolled already, compiles in two thirds of the time like this.
  local loops="-fno-vectorize -fno-slp-vectorize -fno-unroll-loops"
  configure build/sanitized -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++-19 \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -gline-tables-only -D_GLIBCXX_ASSERTIONS $loops" \
    -DBLOCKSCALE_SANITIZE=ON -DBLOCKSCALE_FUZZ=ON "$(cuda_option)"
}

# build_sanitized TARGET... (all targets if none is named)
build_sanitized() {
  configure_sanitized
  ninja --quiet -C build/sanitized -j"$jobs" "$@"
}

# Tests against CUDA's headers are built once `./dev test` has fetched these.
cuda_option() {
  local folder
  folder=$(cuda_include)
  [[ -d $folder ]] || folder=
  echo "-DBLOCKSCALE_CUDA_INCLUDE=$folder"
}

# The Python package as a folder, build/package, from the same build as the library; and
# build/package-python, an interpreter that has it, with the libraries of the report and the example.
build_package() {
  mkdir -p build
  configure build/release -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++-12 \
    "$(cuda_option)" -DBLOCKSCALE_PYTHON=ON -DPython_EXECUTABLE="$PWD/build/venv/bin/python"
  ninja --quiet -C build/release -j"$jobs" _native _native_stub blockscale_cli
  refresh_kernel_pack
  rm -rf build/package
  cmake --install build/release --component python --prefix build/package >build/package.log
  printf '#!/bin/sh\nPYTHONPATH=%q exec %q "$@"\n' \
    "$PWD/build/package" "$PWD/build/venv/bin/python" >build/package-python
  chmod +x build/package-python
}

# As build_package, and before it all that it needs.
make_package() {
  install_packages "${build_packages[@]}"
  make_venv
  require_python_headers
  build_package
}
