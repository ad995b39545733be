#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MosaicML Composer's checkpoints: read as Composer and PyTorch read them, and written for Composer to go on from.

  python check_composer.py --tool PATH

Composer's own Trainer saves after two and four batches: one file on one rank, folders by FSDP on two.  It goes on after two from
what the tool made of either, and ends as the run that was not interrupted: with the same bits where the ranks are the same, and close
where gradients are added in another order.
"""
import argparse
import functools
import logging
import os
import sys
import tempfile
import types
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]
sys.modules["mcli"] = types.ModuleType("mcli")   # of MosaicML's platform, for a logger that is not used

import torch
from torch import nn

torch.cuda.current_device = lambda: torch.device("cpu")   # Composer takes it for the device of FSDP
logging.disable(logging.WARNING)

from composer import Trainer
from composer.models import ComposerModel

import rekey_tool
import tried
from ranks import run_ranks
from rekey_tool import check, load, run, same

BATCH = 4


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        self.register_buffer("seen", torch.arange(4))

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return (outputs - batch[1]).square().mean()


def trained(rank, world, folder, sharded, load_path=None):
    """Trains four batches, or goes on from `load_path` up to the fourth."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), NODE_RANK="0")
    torch.manual_seed(3)
    model = Model()
    data = torch.utils.data.TensorDataset(torch.randn(4 * BATCH, 5), torch.randn(4 * BATCH, 3))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=world, rank=rank, shuffle=False)
    fsdp = {"fsdp": {"sharding_strategy": "FULL_SHARD", "state_dict_type": "sharded", "sync_module_states": False}}
    trainer = Trainer(model=model, train_dataloader=torch.utils.data.DataLoader(data, batch_size=BATCH // world, sampler=sampler),
                      optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2), max_duration="4ba", device="cpu", save_folder=folder,
                      save_interval="2ba", save_overwrite=True, progress_bar=False, run_name="run", seed=3, load_path=load_path,
                      parallelism_config=fsdp if sharded else None)
    trainer.fit()
    trainer.close()


def learned(saved):
    """The weights and the state of the optimizer."""
    state = saved["state"]
    return {"model": dict(state["model"]), "optimizer": dict(state["optimizers"]["AdamW"]["state"])}


def close(a, b):
    if isinstance(a, dict):
        return set(a) == set(b) and all(close(a[k], b[k]) for k in a)
    return torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-6)


def read(path):
    return load(path) if os.path.isdir(path) else torch.load(path, weights_only=False)


class Runs:
    """A run on one rank and a sharded one on two, made once for all checks."""

    def __init__(self, tmp):
        self.file, self.folder = os.path.join(tmp, "one"), os.path.join(tmp, "two")
        run_ranks(1, trained, self.file, False)
        run_ranks(2, trained, self.folder, True)
        self.file2, self.file4 = (os.path.join(self.file, f"ep0-ba{n}-rank0.pt") for n in (2, 4))
        self.folder2, self.folder4 = (os.path.join(self.folder, f"ep0-ba{n}") for n in (2, 4))
        check(close(learned(read(self.file4)), learned(read(self.folder4))), "one rank and two train alike")
        check(not close(learned(read(self.file4)), learned(read(self.file2))), "nothing was trained")

    def goes_on(self, world, load_path, like=None):
        """Resumes; the end has the bits of `like`, or is close to the other run's end."""
        tmp = load_path + f".resumed{world}"
        run_ranks(world, trained, tmp, os.path.isdir(load_path), load_path)
        end = learned(read(os.path.join(tmp, "ep0-ba4" + ("" if os.path.isdir(load_path) else "-rank0.pt"))))
        if like:
            same(end, learned(read(like)), load_path)
        else:
            check(close(end, learned(read(self.file4))), f"{load_path}: another end")


def reading(runs, tmp):
    for path in (runs.file2, runs.file4, runs.folder2, runs.folder4):
        check("sound" in run("verify", path), path)
        out = os.path.join(tmp, "read.pt")
        run("consolidate", path, out, "--force")
        want, got = learned(read(path)), read(out)
        same(learned(got), want, path)
        check(set(got) == {"state", "rng"} and got["state"]["timestamp"] == read(path)["state"]["timestamp"], path)
    # Composer points to the newest by a link.
    check("sound" in run("verify", os.path.join(runs.file, "latest-rank0.pt")), "link to a file")
    check("sound" in run("verify", os.path.join(runs.folder, "latest-rank0.pt")), "link to a folder")
    check(run("latest", runs.file).strip() == runs.file4 and run("latest", runs.folder).strip() == runs.folder4, "latest")


def file_to_file(runs, tmp):
    out = os.path.join(tmp, "again.pt")
    run("consolidate", runs.file2, out)
    runs.goes_on(1, out, like=runs.file4)
    tried.record("mosaicml", "`ep<n>-ba<n>-rank0.pt`", "verify, inspect, latest, consolidate", "its Trainer resumes from the copy with the same bits", ranks=1)


def folder_to_other_ranks(runs, tmp):
    for world in (1, 2, 3):
        out = os.path.join(tmp, f"on_{world}")
        run("reshard", runs.folder2, out, "--world-size", str(world))
        run("diff", runs.folder2, out)
        runs.goes_on(2, out, like=runs.folder4)
    tried.record("mosaicml", "`ep<n>-ba<n>/`, sharded by FSDP1", "verify, inspect, latest, reshard, diff",
                 "to 1, 2 and 3 ranks; its Trainer resumes on 2 with the same bits", ranks=2)


def folder_to_file(runs, tmp):
    out = os.path.join(tmp, "whole.pt")
    run("consolidate", runs.folder2, out)
    runs.goes_on(1, out)
    tried.record("mosaicml", "`ep<n>-ba<n>/`, sharded by FSDP1", "consolidate", "its Trainer resumes from the file on 1 rank to the same end", ranks=2)


def file_to_folder(runs, tmp):
    out = os.path.join(tmp, "cut")
    run("shard", runs.file2, out, "--world-size", "2")
    runs.goes_on(2, out)
    tried.record("mosaicml", "`ep<n>-ba<n>-rank0.pt`", "shard", "to 2 ranks; its Trainer resumes from the folder to the same end", ranks=1)


CHECKS = {"reading": reading, "file_to_file": file_to_file, "folder_to_other_ranks": folder_to_other_ranks,
          "folder_to_file": folder_to_file, "file_to_folder": file_to_folder}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        runs = Runs(tmp)
        return 1 if rekey_tool.run_checks(args.tool, {name: functools.partial(body, runs) for name, body in CHECKS.items()}, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
