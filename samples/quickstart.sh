#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a bare Debian 12 or Ubuntu machine to a checkpoint that was looked into, joined, laid out anew and trained on:
# installs, builds, trains, inspects, verifies, consolidates, reshards, compares.
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

say "# 1. A C++ compiler, CMake and five small libraries from the distribution; PyTorch for the training."
need_packages tool python
need_cmake
need_python

say; say "# 2. The tool itself is one native binary that needs neither Python nor PyTorch."
build() { cmake --preset tools >/dev/null && cmake --build --preset tools -j "$(nproc)"; }
step "build" build
TOOL=$ROOT/build/tools/tools/fsdp-ckpt

say; say "# 3. Two ranks train a small GPT with fully_shard and save model, AdamW state and step: one file a rank."
rm -rf "$OUT"
mkdir -p "$OUT"
step "training" "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node 2 samples/train_gpt_fsdp.py "$OUT/step-40"
ls -Al "$OUT/step-40" >&2

cd "$OUT"
say; say "# 4. What is in it: read from .metadata alone."
show "$TOOL" inspect step-40 --depth 2
show "$TOOL" inspect step-40 --fold --keys 'model.**'

say; say "# 5. Is it whole?  Every byte range, every shape, every checksum."
show "$TOOL" verify step-40

say; say "# 6. One full state dict, and one file of the model's weights for other programs."
show "$TOOL" consolidate step-40 full.pt
show "$TOOL" consolidate step-40 model.safetensors --keys 'model.**'

say; say "# 7. Plain torch.load(weights_only=True) opens it; PyTorch's own reading of the folder is the judge."
step "comparison" "$PYTHON" "$ROOT/samples/compare_with_pytorch.py" step-40 full.pt
say; say "# 8. The same checkpoint laid out for three ranks, as FSDP itself would have saved it there; nothing else differs."
show "$TOOL" reshard step-40 step-40-of-3 --world-size 3
show "$TOOL" diff step-40 step-40-of-3
step "training goes on, on three ranks" "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node 3 \
  "$ROOT/samples/train_gpt_fsdp.py" step-80 --resume step-40-of-3

say; say "# 9. What training changed, and a gate for CI: no NaN, no infinity."
show "$TOOL" diff step-40 step-80 --keys 'model.**' --limit 5 || [ $? = 1 ]   # 1: they differ
show "$TOOL" stats step-80 --keys 'model.**' --fail-on nan,inf
show "$TOOL" inspect step-80 --html step-80.html
say; say "# Done: $OUT holds step-40/, step-40-of-3/, step-80/, full.pt, model.safetensors and step-80.html."
