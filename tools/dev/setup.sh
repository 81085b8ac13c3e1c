# Sets up what the other parts need: Debian packages, a Python environment, CUDA headers.

say() { printf '%s\n' "$*"; }
die() {
  printf 'dev: %s\n' "$*" >&2
  exit 1
}

# tracked PATTERN...: files of the tree, new ones included, build products not.
tracked() { git ls-files --cached --others --exclude-standard "$@"; }

# Debian 12 and 13 have all of these under the same names, and so has Ubuntu 24.04 (with its updates:
# clang 19).
build_packages=(g++-12 cmake ninja-build ccache pkg-config libhwy-dev libtbb-dev
  nlohmann-json3-dev libspdlog-dev libxxhash-dev libre2-dev libcli11-dev libgtest-dev
  libgmock-dev libboost-context-dev)
check_packages=(clang-19 libclang-rt-19-dev llvm-19 clang-format-19 shellcheck git jq)
python_packages=(python3 python3-venv)

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "neither root nor sudo: as root, run: $*"
  fi
}

# Installs those of the packages that are missing.
install_packages() {
  command -v dpkg-query >/dev/null ||
    die "this is neither Debian nor Ubuntu; install what corresponds to: $*"
  local installed missing=() package
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qx "$package installed" <<<"$installed" || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  say "installing Debian packages: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

python_suffices() {
  command -v "$1" >/dev/null &&
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Sets `python` to a Python of at least 3.11 that can make virtual environments.
find_python() {
  for python in python3 /usr/bin/python3; do
    python_suffices "$python" && return
  done
  install_packages "${python_packages[@]}"
  python_suffices "$python" || die "Python 3.11 or newer is needed; $python is older"
}

# The Python module needs the headers of the Python in build/venv.
require_python_headers() {
  has_python_headers build/venv/bin/python || install_packages python3-dev
}

has_python_headers() { # PYTHON
  "$1" -c 'import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}

# make_environment FOLDER REQUIREMENTS: again only when that file changed.
make_environment() {
  find_python
  cmp -s "$2" "$1/requirements.txt" && return
  say "installing Python packages into $1:" "$(grep -v '^#' "$2" | tr '\n' ' ')"
  rm -rf "$1"
  "$python" -m venv "$1"
  "$1/bin/pip" install --quiet --disable-pip-version-check --no-compile -r "$2"
  cp "$2" "$1/requirements.txt"
}

make_venv() { make_environment build/venv tests/requirements.txt; }
make_torch_venv() { make_environment build/venv-torch tests/requirements-torch.txt; }

# Prints the folder of cuda_fp8.h and libnvrtc's path, from CUDA's PyPI packages in build/venv: the
# same pinned version on every machine, whether a toolkit is installed or not.
cuda_include() { echo "$PWD"/build/venv/lib/python3*/site-packages/nvidia/cu13/include; }
nvrtc_library() { echo "$PWD"/build/venv/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13; }
