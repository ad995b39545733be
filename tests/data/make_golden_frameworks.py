#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes small checkpoints of trainers over into golden/frameworks/, beside those of make_golden_fairscale.py and make_golden_trainer.py, and
writes golden/SHA256SUMS again.

  python make_golden_frameworks.py CORPUS      CORPUS is the output of ../interop/make_frameworks.py
"""
import json
import os
import shutil
import sys

from make_golden import HERE, sums

CASES = ["accelerate_fsdp1_sharded_per_rank_w2", "accelerate_fsdp2_full_w2", "deepspeed_universal2_w2", "deepspeed_universal3_w3",
         "deepspeed_zero2_w2", "deepspeed_zero3_w3", "per_rank_tp_w4", "torch_checkpointing_boxes_w3",
         "torch_checkpointing_safetensors_w2"]


def compact(folder, without=()):
    """Writes truth.json in as few bytes as possible."""
    path = os.path.join(folder, "truth.json")
    with open(path) as f:
        doc = json.load(f)
    for key in without:
        doc.pop(key, None)
    with open(path, "w") as f:
        json.dump(doc, f, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    root = os.path.join(HERE, "golden", "frameworks")
    for case in CASES:
        shutil.rmtree(os.path.join(root, case), ignore_errors=True)
        # Drops the scripts that DeepSpeed puts beside its files; random states are not read, which deserves a warning.
        shutil.copytree(os.path.join(sys.argv[1], case), os.path.join(root, case), ignore=shutil.ignore_patterns("*.py", "random_states_*"))
        compact(os.path.join(root, case), without=["warnings"])
    sums()
