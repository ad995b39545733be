#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# For the tool alone, `pip install .` is enough (docs/install.md).  This script shows the rest.
#
# Starts on a bare Debian 12 or Ubuntu machine: trains a model with libfsdp on two ranks, inspects, consolidates and reshards
# the checkpoint, and continues the training on three ranks.
#
#   samples/quickstart.sh [OUT]      OUT: where the checkpoints go (default build/quickstart)
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUT=$(realpath -m "${1:-$ROOT/build/quickstart}")
. "$ROOT/tests/support/provision.sh"
cd "$ROOT"

show() {
  say
  say "$ $(basename "$1") ${*:2}"
  "$@"
}

say "# fsdp-ckpt alone is a 'pip install .' away; this trains a model as well."
say; say "# 1. A C++ compiler, CMake and small libraries from the distribution; LibTorch is the one inside PyTorch's package."
need_packages tool python torch
need_cmake
begin need_python

say; say "# 2. fsdp-ckpt, which needs neither Python nor LibTorch; then a program that trains a GPT with libfsdp."
# build TARGETS OPTION...
build() { configure torch "${@:2}" >/dev/null && cmake --build --preset torch -j "$JOBS" --target $1; }
step "build of fsdp-ckpt" build fsdp-ckpt -DFSDP_WITH_TORCH=OFF
TOOL=$ROOT/build/torch/tools/fsdp-ckpt
show "$TOOL" --version
await "PyTorch"
need_python
# `installed`: all that `cmake --install build/torch` takes.
step "build of libfsdp and train_gpt" build "train_gpt installed" -DFSDP_WITH_TORCH=ON -DFSDP_TORCH="$("$PYTHON" -c 'import torch; print(torch.__path__[0])')"
PATH=$ROOT/build/torch/samples:$PATH

rm -rf "$OUT"
mkdir -p "$OUT"
cd "$OUT"
say; say "# 3. Something to read: the project's own documents, a token a byte."
cat "$ROOT"/README.md "$ROOT"/docs/*.md | iconv -f latin1 -t utf-16le >tokens.bin

# train RANKS OPTION...: trains with twelve sequences a step on any number of ranks.
train() {
  say
  say "$ torchrun --no-python --nproc-per-node $1 train_gpt --data tokens.bin --batch $((12 / $1)) ${*:2}"
  "$PYTHON" -m torch.distributed.run --standalone --no-python --nproc-per-node "$1" \
    train_gpt --data tokens.bin --batch $((12 / $1)) "${@:2}"
}
say; say "# 4. Two ranks train; model, AdamW's state and the step are saved, a file a rank."
step "training" train 2 --steps 40 --lr 0.003 --metrics losses.jsonl --save step-40
ls -Al step-40 >&2

say; say "# 5. What is in it: read from .metadata alone.  PyTorch's torch.distributed.checkpoint reads it too."
show "$TOOL" inspect step-40 --depth 2
show "$TOOL" inspect step-40 --fold --keys 'model.**'

say; say "# 6. Is it whole?  Every byte range, every shape, every checksum."
show "$TOOL" verify step-40

say; say "# 7. One full state dict, and one file of the model's weights for other programs."
show "$TOOL" consolidate step-40 full.pt
show "$TOOL" consolidate step-40 model.safetensors --keys 'model.**'

say; say "# 8. Plain torch.load(weights_only=True) opens it; PyTorch's own reading of the folder is the judge."
step "comparison" "$PYTHON" "$ROOT/samples/compare_with_pytorch.py" step-40 full.pt

say; say "# 9. The same checkpoint laid out for three ranks, as FSDP would have saved it there; nothing else differs."
show "$TOOL" reshard step-40 step-40-of-3 --world-size 3
show "$TOOL" diff step-40 step-40-of-3

say; say "# 10. Three ranks go on from it.  (They would from step-40, from full.pt, or from PyTorch's own folder.)"
step "training goes on, on three ranks" train 3 --steps 60 --resume step-40-of-3 --metrics losses.jsonl --save step-60
step "for comparison: two ranks that were never interrupted" train 2 --steps 60 --lr 0.003 --metrics uninterrupted.jsonl
say; say "step   interrupted   uninterrupted"
loss='{"step":\([0-9]*\),"loss":\([^,]*\),.*'
paste <(sed "s/$loss/\1 \2/" losses.jsonl) <(sed "s/$loss/\2/" uninterrupted.jsonl) |
  awk '$1 % 10 == 0 || $1 == 39 || $1 == 59 { printf "%4d   %.6f      %.6f\n", $1, $2, $3 }
       { worst = ($2 - $3) ^ 2 > worst ^ 2 ? $2 - $3 : worst }
       END { printf "the largest difference of %d steps: %.1e\n", NR, worst < 0 ? -worst : worst; exit NR != 60 || worst ^ 2 > 1e-8 }'

say; say "# 11. What training changed, and a gate for CI: no NaN, no infinity."
show "$TOOL" diff step-40 step-60 --keys 'model.**' --limit 5 || [ $? = 1 ]   # 1: they differ
show "$TOOL" stats step-60 --keys 'model.**' --fail-on nan,inf
show "$TOOL" inspect step-60 --html step-60.html
say; say "# Done: $OUT holds step-40/, step-40-of-3/, step-60/, full.pt, model.safetensors and step-60.html."
