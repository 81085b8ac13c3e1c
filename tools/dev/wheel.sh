# ./dev wheel: the Python package as one file for machines with a GPU, which need neither a compiler
# nor NVRTC: the kernels of every architecture are in it.

# make_wheel [--torch]: for the Python that `python3` is, in a folder of its own.
make_wheel() {
  [[ $# == 0 || $* == --torch ]] || die "unknown argument of ./dev wheel: '$*'; --torch is known"
  install_packages "${build_packages[@]}"
  find_python
  version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  wheel_folder=build/wheel-$version
  make_environment "$wheel_folder/venv" tests/requirements-wheel.txt
  has_python_headers "$wheel_folder/venv/bin/python" || install_packages python3-dev
  build_wheel
  try_wheel numpy
  [[ ${1:-} != --torch ]] || make_torch_venv
  if [[ -x build/venv-torch/bin/$version ]]; then
    try_wheel torch
  else
    say "not tried with torch: no build/venv-torch/bin/$version (--torch makes build/venv-torch, if none is there)"
  fi
  say "$wheel_file: $(($(stat --format=%s "$wheel_file") >> 20)) MiB"
}

# Sets wheel_file. Kernels that were packed from the same sources are kept. auditwheel puts in the
# shared libraries that not every machine has, under names that no other package's libraries have,
# and the oldest glibc that will do into the file's name.
build_wheel() {
  say "building (the kernels take minutes the first time)"
  use_nvrtc
  rm -rf "$wheel_folder"/{built,dist}
  mkdir -p build/wheel
  cp -u -t build/wheel build/release/blockscale-*.pack 2>/dev/null || true
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$wheel_folder/venv/bin/pip" wheel . --quiet \
    --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$wheel_folder/built" \
    --config-settings build-dir=build/wheel \
    --config-settings cmake.define.BLOCKSCALE_KERNEL_PACK=ON \
    --config-settings cmake.define.BLOCKSCALE_BUNDLE=OFF \
    --config-settings cmake.define.BLOCKSCALE_WERROR=ON \
    --config-settings cmake.define.CMAKE_CXX_COMPILER=g++-12 \
    --config-settings cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache
  PATH=$PWD/$wheel_folder/venv/bin:$PATH auditwheel repair \
    --wheel-dir "$wheel_folder/dist" "$wheel_folder"/built/*.whl
  wheel_file=$(echo "$wheel_folder"/dist/*.whl)
}

# try_wheel numpy|torch: in a fresh environment, to which torch is lent by build/venv-torch.
try_wheel() {
  local folder=$PWD/$wheel_folder/with-$1 options=()
  say "-- trying it in a fresh environment, beside $1"
  rm -rf "$folder"
  "$python" -m venv "$folder"
  if [[ $1 == torch ]]; then
    options=(--torch)
    echo "$PWD/build/venv-torch/lib/$version/site-packages" \
      >"$folder/lib/$version/site-packages/torch.pth"
  fi
  "$folder/bin/pip" install --quiet --disable-pip-version-check --constraint tests/requirements.txt \
    "$wheel_file"
  local program=$PWD/tools/dev/try_wheel.py
  (cd / && env -i "$folder/bin/python" -I "$program" "$folder" "${options[@]}" &&
    env -i "$folder/bin/blockscale" doctor)
}
