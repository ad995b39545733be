#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden/frameworks/bin_shards: weights in several torch.save files with an index, as Accelerate's save_model leaves them.

  python make_golden_shards.py      with torch==2.11.0 and accelerate==1.15.0; writes golden/SHA256SUMS again

The truth is what Accelerate's load_checkpoint_in_model loads into a model with another initialization.
"""
import os
import shutil
import sys
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", DS_ACCELERATOR="cpu")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(os.path.dirname(HERE), "support"), os.path.join(os.path.dirname(HERE), "interop")]

import torch
from accelerate import Accelerator, load_checkpoint_in_model
from torch import nn

from make_frameworks import write_truth
from make_golden import sums
from make_golden_frameworks import compact


class Net(nn.Module):
    """Layers of different types, a buffer, a tied weight; in shards of at most a kilobyte."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(11))
        self.low = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.register_buffer("seen", torch.arange(4))
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.layers[3].weight


def main():
    folder = os.path.join(HERE, "golden", "frameworks", "bin_shards")
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)
    saved = Net()
    Accelerator(cpu=True).save_model(saved, os.path.join(folder, "ckpt"), max_shard_size="1KB", safe_serialization=False)
    torch.manual_seed(1)
    loaded = Net()
    load_checkpoint_in_model(loaded, os.path.join(folder, "ckpt"))
    state = loaded.state_dict()
    assert all(torch.equal(state[k], v) for k, v in saved.state_dict().items())
    files = sorted(f for f in os.listdir(os.path.join(folder, "ckpt")) if f.endswith(".bin"))
    order = [k for f in files for k in torch.load(os.path.join(folder, "ckpt", f))]
    write_truth(folder, {k: state[k] for k in order})
    compact(folder)
    sums()
    print(len(files), "files,", len(order), "keys of", len(state))


if __name__ == "__main__":
    main()
