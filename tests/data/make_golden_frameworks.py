#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes small checkpoints of trainers over into golden/frameworks/, and writes golden/SHA256SUMS again.

  python make_golden_frameworks.py CORPUS      CORPUS is what ../interop/make_frameworks.py wrote
"""
import json
import os
import shutil
import sys

from make_golden import HERE, sums

CASES = ["accelerate_fsdp1_sharded_per_rank_w2", "accelerate_fsdp2_full_w2", "deepspeed_universal2_w2", "deepspeed_universal3_w3",
         "deepspeed_zero2_w2", "deepspeed_zero3_w3", "per_rank_tp_w4"]

if __name__ == "__main__":
    root = os.path.join(HERE, "golden", "frameworks")
    shutil.rmtree(root, ignore_errors=True)
    for case in CASES:
        # The scripts that DeepSpeed puts beside its files are its own; random states are not read, which is worth a warning.
        shutil.copytree(os.path.join(sys.argv[1], case), os.path.join(root, case), ignore=shutil.ignore_patterns("*.py", "random_states_*"))
        path = os.path.join(root, case, "truth.json")
        with open(path) as f:
            doc = json.load(f)
        doc.pop("warnings", None)
        with open(path, "w") as f:
            json.dump(doc, f, ensure_ascii=False, separators=(",", ":"))
    sums()
