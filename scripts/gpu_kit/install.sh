#!/usr/bin/env bash
# On the GPU machine, at the start of every call: keep the slices that came with it in /tmp/kit, unpack each pack that is
# whole into /tmp/site, and write /tmp/kit/env:   bash .gpu/base/install.sh && . /tmp/kit/env && python3 …
set -euo pipefail
kit=/tmp/kit site=${SITE:-/tmp/site}
mkdir -p $kit "$site"
for part in .gpu/*/*.tar.xz.*; do [ -e "$part" ] && [ ! -e "$kit/$(basename "$part")" ] && cp "$part" $kit/; done
cp .gpu/base/* $kit/
for sums in $kit/*.sums; do
  name=$(basename "$sums" .sums)
  [ -e "$kit/$name.done" ] && continue
  missing=$(while read -r _ part; do [ -e "$kit/$part" ] || echo "$part"; done <"$sums")
  if [ -n "$missing" ]; then echo "pack $name: waits for" $missing; continue; fi
  (cd $kit && sha256sum --quiet -c "$name.sums")
  if command -v xz >/dev/null; then cat $kit/"$name".tar.xz.* | xz -dc -T0 | tar -x -C "$site"
  else
    cat $kit/"$name".tar.xz.* | SITE=$site python3 -c 'import os, sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz").extractall(os.environ["SITE"], filter="fully_trusted")'
  fi
  rm $kit/"$name".tar.xz.* && touch "$kit/$name.done"
  echo "pack $name: unpacked after $SECONDS s, $(du -sm "$site" | cut -f1) MiB in $site"
done
cat >$kit/env <<X
export PYTHONPATH=$site:$PWD
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0 RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 PYTHONUNBUFFERED=1
# torch 2.13 was built for cuDNN 9.20, the machine has 9.19; FlashInfer's sampler would be compiled by nvcc at the first reply.
export PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK=1 VLLM_USE_FLASHINFER_SAMPLER=\${VLLM_USE_FLASHINFER_SAMPLER:-0}
X
# CUDA 13's libraries are the machine's: torch 2.13 looks for them beside itself, faiss-gpu under CUDA 12's names.
env -u PYTHONPATH SITE="$site" python3 - <<'P'
import os, pathlib, nvidia
own = pathlib.Path(os.environ["SITE"], "nvidia")
there = next(path for path in map(pathlib.Path, nvidia.__path__) if (path / "cu13" / "lib").is_dir())
lib = there / "cu13" / "lib"
links = {own / name: there / name for name in ("cu13", "cudnn", "cusparselt", "nvshmem")}  # not nccl: pack b brings its own
links |= {own / "cublas/lib" / name: lib / name.replace(".12", ".13") for name in ("libcublas.so.12", "libcublasLt.so.12")}
links |= {own / "cublas/lib/libcublasLt.so.13": lib / "libcublasLt.so.13", own / "curand/lib/libcurand.so.10": lib / "libcurand.so.10"}
for link, target in links.items():
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(target)
P
