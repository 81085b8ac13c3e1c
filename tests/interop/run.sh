#!/usr/bin/env bash
# Checks our checkpoints with other people's packages and writes docs/interop.md.
#
#   tests/interop/run.sh [--no-llm-compressor] [--no-vllm] [PYTEST OPTION...]
#
# BLOCKSCALE_CLI: the command line to test (default: build/release/cli/blockscale).
# BLOCKSCALE_PYTHON: a Python with the package blockscale and examples/requirements.txt; without
# one, the example is not checked and the page is left as it is.
# PYTHON: a Python 3.11 to 3.14 to make the environments with (default: python3).
# LIGHTX2V: the absolute path of a checkout of ModelTC/LightX2V. Without one, its own code does not
# run and the page is left as it is.
#
# The packages go to build/venv-interop, build/venv-llm-compressor and build/venv-vllm, 21 GB
# together: PyPI's torch brings CUDA along, though nothing here uses a GPU. They are made once, and
# again when their requirements change. What LightX2V imports goes to build/packages-lightx2v.
# Without one of them, or with pytest options, the page is left as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tests/interop
cli=${BLOCKSCALE_CLI:-build/release/cli/blockscale}
python=${PYTHON:-python3}

# make_environment FOLDER REQUIREMENTS: complete only if the copy of the requirements is there.
make_environment() {
  cmp -s "$2" "$1/installed.txt" && return
  echo "installing $(grep -v '^#' "$2" | sed 's/ *#.*//' | tr '\n' ' ')into $1" >&2
  rm -rf "$1"
  "$python" -m venv "$1"
  "$1/bin/pip" install --quiet --disable-pip-version-check -r "$2"
  cp "$2" "$1/installed.txt"
}

[[ -x $cli ]] || { echo "no command line at $cli: run ./dev build first" >&2; exit 2; }
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
options=(--blockscale "$cli")
[[ -z ${BLOCKSCALE_PYTHON:-} ]] || options+=(--package-python "$BLOCKSCALE_PYTHON")
make_environment build/venv-interop $here/requirements.txt
others=" llm-compressor vllm "
while [[ ${1:-} == --no-llm-compressor || ${1:-} == --no-vllm ]]; do
  others=${others/" ${1#--no-} "/ }
  shift
done
for package in $others; do
  make_environment "build/venv-$package" "$here/requirements-$package.txt"
  options+=("--$package-python" "build/venv-$package/bin/python")
done
if [[ -n ${LIGHTX2V:-} ]]; then
  packages=$PWD/build/packages-lightx2v
  if ! cmp -s $here/requirements-lightx2v.txt "$packages/installed.txt"; then
    rm -rf "$packages"
    build/venv-interop/bin/pip install --quiet --disable-pip-version-check --no-deps \
      --target "$packages" -r $here/requirements-lightx2v.txt
    cp $here/requirements-lightx2v.txt "$packages/installed.txt"
  fi
  export PYTHONPATH=$packages TORCH_EXTENSIONS_DIR=$packages/compiled
  options+=(--lightx2v "$LIGHTX2V")
fi
if [[ $others == " llm-compressor vllm " && $# == 0 && -n ${BLOCKSCALE_PYTHON:-} &&
  -n ${LIGHTX2V:-} ]]; then
  options+=(--report docs/interop.md)
fi
exec build/venv-interop/bin/python -m pytest -q -p no:cacheprovider -c $here/pytest.ini \
  "${options[@]}" "$@" $here
