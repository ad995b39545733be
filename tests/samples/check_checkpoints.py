#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses train_gpt's checkpoints with PyTorch's converter, Lightning's consolidations and fsdp-ckpt, and resumes from their output.

  python check_checkpoints.py --train-gpt PATH --tool PATH
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))

import numpy
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

import truth
from launch import must

SIZES = ["--vocab", 31, "--dim", 18, "--heads", 2, "--seq", 8, "--batch", 3]


class Work:
    def __init__(self, program, tool, tmp):
        self.program, self.tool, self.tmp = program, tool, tmp
        self.tokens = self.at("tokens.bin")
        numpy.random.default_rng(3).integers(0, 31, 500).astype("<u2").tofile(self.tokens)

    def at(self, name):
        return os.path.join(self.tmp, name)

    def train(self, world, *options):
        must(world, [self.program, "--data", self.tokens, *SIZES, *options])

    def run(self, *words):
        done = subprocess.run([self.tool, *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: exit {done.returncode}: {done.stdout}{done.stderr}"

    def same_as_before(self, checkpoint):
        """The checkpoint, resumed without a step and saved by three ranks, equals the first folder."""
        back = self.at("back")
        self.train(3, "--resume", checkpoint, "--steps", 4, "--save", back)
        self.run("diff", self.at("folder"), back)


def same(what, wanted, found):
    lines = truth.diff(truth.describe(plain(wanted)), truth.describe(plain(found)))
    assert not lines, f"{what}: {lines[:8]}"


def plain(x):
    """Order and kinds of containers are ignored."""
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in sorted(x.items(), key=lambda item: str(item[0]))}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    return x.detach() if isinstance(x, torch.Tensor) else x


def pytorch_converts(work, folder):
    full = work.at("by_torch.pt")
    dcp_to_torch_save(folder, full)
    by_torch = torch.load(full, weights_only=True)
    ours = work.at("ours.pt")
    work.run("consolidate", folder, ours)
    loaded = torch.load(ours, weights_only=True)
    for key in "model", "optimizer_0":
        same(key, by_torch[key], loaded[key])
    assert set(by_torch) == {"model", "optimizer_0"} and by_torch["model"]["head.weight"].shape == (31, 18)
    work.same_as_before(ours)
    # Back to a folder by PyTorch alone; the step is that of the optimizer.
    again = work.at("by_torch")
    torch_save_to_dcp(full, again)
    work.train(2, "--resume", again, "--steps", 4, "--save", work.at("from_torch"))
    work.run("diff", folder, work.at("from_torch"))


def lightning_consolidates(work, folder):
    from lightning.fabric.utilities.load import _load_distributed_checkpoint
    from lightning.pytorch.utilities.consolidate_checkpoint import _format_checkpoint
    loaded = _load_distributed_checkpoint(pathlib.Path(folder))
    assert loaded["global_step"] == 4 and "pytorch-lightning_version" in loaded, list(loaded)
    file = work.at("lightning.ckpt")
    torch.save(_format_checkpoint(loaded), file)
    state = torch.load(file, weights_only=True)
    by_torch = work.at("weights.pt")
    dcp_to_torch_save(folder, by_torch)
    same("weights", torch.load(by_torch, weights_only=True)["model"], state["state_dict"])
    assert len(state["optimizer_states"]) == 1 and state["optimizer_states"][0]["state"], list(state)
    work.same_as_before(file)


def a_full_file_is_the_folder(work, folder):
    full = work.at("full.ckpt")
    work.train(2, "--resume", folder, "--steps", 4, "--save", full, "--state-dict-type", "full")
    state = torch.load(full, weights_only=True)
    assert state["global_step"] == 4 and list(state["state_dict"])[0] == "emb.weight", list(state)
    # PARAM_ID: PyTorch's own optimizer takes it.
    optimizer = torch.optim.AdamW([torch.nn.Parameter(t.clone()) for t in state["state_dict"].values()], lr=1.0)
    optimizer.load_state_dict(state["optimizer_states"][0])
    assert optimizer.param_groups[0]["lr"] == 1e-3 and len(optimizer.state) == len(state["state_dict"])
    work.same_as_before(full)


def the_tool_reshards(work, folder):
    work.run("verify", folder, "--strict")
    other = work.at("of_3")
    work.run("reshard", folder, other, "--world-size", 3)
    work.run("diff", folder, other)
    work.same_as_before(other)
    named, weights = work.at("model.safetensors"), work.at("weights.safetensors")
    work.run("consolidate", folder, named, "--keys", "model.**")
    work.run("rename", named, weights, "--strip-prefix", "model")
    for init in named, weights:
        out = work.at("from_" + os.path.basename(init))
        work.train(2, "--init", init, "--steps", 0, "--save", out)
        work.run("diff", folder, out, "--keys", "model.**")


CHECKS = [pytorch_converts, lightning_consolidates, a_full_file_is_the_folder, the_tool_reshards]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-gpt", required=True)
    parser.add_argument("--tool", required=True)
    arguments = parser.parse_args()
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as tmp:
            work = Work(os.path.abspath(arguments.train_gpt), os.path.abspath(arguments.tool), tmp)
            work.train(2, "--steps", 4, "--save", work.at("folder"))
            check(work, work.at("folder"))
            print(f"PASS  {check.__name__}", flush=True)


if __name__ == "__main__":
    main()
