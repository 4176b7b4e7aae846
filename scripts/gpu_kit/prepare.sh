#!/usr/bin/env bash
# Make packs for a GPU machine that has no package registry, in slices below .gpu/ of this checkout (ignored by git).
#   scripts/gpu_kit/prepare.sh [bare] [vllm] [ray]        # on a machine with a registry, before the GPU machine is asked for
# Wheels for Python 3.12, of their CUDA libraries only what an H100 or H200 runs. bare: five minutes; vllm: 4 GB of downloads, 8 GB in
# $WORK, half an hour on two busy cores. A pack that is there stays. README.md says what each visit carries.
set -euo pipefail
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) work=${WORK:-/tmp/gpu_kit} limit=$((64 * 1024 * 1024))
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
export PIP_DISABLE_PIP_VERSION_CHECK=1
platforms=$(printf -- '--platform manylinux_2_%d_x86_64 ' $(seq 39 -1 5))
platforms+='--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64'
mkdir -p .gpu/base "$work"
exclude=$(git rev-parse --git-path info/exclude)
grep -qx /.gpu/ "$exclude" 2>/dev/null || echo /.gpu/ >>"$exclude"
# What travels beside a slice: the tracked files. 3 MiB stay free for what is added to them.
tracked=$(git ls-files -z | xargs -0 du -cb | tail -1 | cut -f1)
slice=${SLICE:-$(((limit - tracked - 3 * 1024 * 1024) / 1024 / 1024))M}

# Only for other machines than an H100 or H200, for building, or for what nothing here calls: a third of the bytes.
declare -A unneeded=(
  [bare]='bin nvidia/cuda_runtime/include'
  [ray]='bin ray/jars ray/rllib ray/dashboard/client pymupdf/layout pymupdf/mupdf-devel nvidia/cuda_runtime/include'
  [vllm]='bin torch/test triton/_C/libproton.so triton/backends/nvidia/bin/ptxas-blackwell triton/backends/nvidia/lib/cupti
    vllm/vllm-rs vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so vllm/_qutlass_C.abi3.so vllm/third_party/fmha_sm100 pycountry/locales
    mistral_common/data nvidia/nccl/include')

pack() {
  local name=$1 tree=$work/$1 n=0 part
  [ -f ".gpu/base/$name.sums" ] && return
  rm -rf "$tree" && mkdir -p "$tree"
  # shellcheck disable=SC2086
  "$python" -m pip install --quiet --no-deps --no-compile --only-binary=:all: --python-version 3.12 --implementation cp \
    $platforms --target "$tree" -r "$kit/packages_$name.txt"
  (cd "$tree" && rm -rf ${unneeded[$name]})
  "$python" "$kit/for_hopper.py" "$tree"
  rm -rf .gpu/"$name"[0-9]*
  tar -C "$tree" --owner=0 --group=0 -c . | nice -n 10 xz -3 -T0 | split -b "$slice" -d - "$work/$name.tar.xz."
  (cd "$work" && sha256sum "$name".tar.xz.*) >"$work/$name.sums"
  for part in "$work/$name".tar.xz.*; do mkdir -p ".gpu/$name$n" && mv "$part" ".gpu/$name$n/" && n=$((n + 1)); done
  mv "$work/$name.sums" .gpu/base/
}

for name in "${@:-bare}"; do pack "$name"; done
cp "$kit/install.sh" "$kit/check.py" .gpu/base/
for folder in .gpu/*; do
  size=$(du -sb "$folder" | cut -f1)
  awk -v name="$folder" -v size="$size" -v tree="$tracked" \
    'BEGIN {printf "%-14s %6.1f MiB, with the tracked files %6.1f of 64\n", name, size / 2^20, (size + tree) / 2^20}'
done
