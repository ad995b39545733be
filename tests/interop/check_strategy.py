#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that Lightning and fsdp::Strategy continue from each other's checkpoints.

  python check_strategy.py --program PATH            PATH is lightning_steps, whose module, data and optimizer are those below
"""
import argparse
import contextlib
import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))

import lightning as L
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import truth

IN, WIDTH, BATCH, STEPS = 6, 7, 5, 3


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(IN, WIDTH), nn.Tanh(), nn.Linear(WIDTH, IN))
        self.losses = []
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.sin(torch.arange(parameter.numel(), dtype=torch.float) + 1).view(parameter.shape) / 2)

    def forward(self, batch):
        return self.net(batch)

    def training_step(self, batch, index=0):
        loss = self(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train_dataloader(self):
        # The Trainer asks again every epoch; an epoch is one step.
        return torch.utils.data.DataLoader([batch_of(self.trainer.current_epoch)], batch_size=None)


def batch_of(step):
    return torch.cos(torch.arange(BATCH * IN, dtype=torch.float) + step).view(BATCH, IN)


def trainer(epochs):
    return L.Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
                     enable_checkpointing=False, max_epochs=epochs, reload_dataloaders_every_n_epochs=1)


def environment(rank, world, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(program, world, *args):
    """The losses that rank 0 of the C++ program prints."""
    port = free_port()
    ranks = [subprocess.Popen([program, *args], env={**os.environ, **environment(rank, world, port)}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for rank in range(world)]
    ends = [rank.communicate(timeout=120) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), f"{args} on {world} ranks: " + " | ".join(err for _, err in ends)
    losses = [float(line) for line in ends[0][0].split()]
    assert len(losses) == STEPS, ends[0]
    return losses


def agree(what, want, got):
    assert len(want) == len(got) and all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(want, got)), f"{what}: {got} instead of {want}"


def consolidated(folder, tmp):
    """Both of Lightning's consolidations give the content that PyTorch reads from the folder, and meta.pt. Returns the Trainer's."""
    dcp_to_torch_save(folder, f"{tmp}/whole.pt")
    meta = torch.load(f"{folder}/meta.pt", weights_only=True)
    want = {**torch.load(f"{tmp}/whole.pt", weights_only=True), **meta}
    assert (meta["epoch"], meta["global_step"]) == (STEPS, STEPS), meta
    for package in ("fabric", "pytorch"):
        out = f"{tmp}/{package}.ckpt"
        subprocess.run([sys.executable, "-m", f"lightning.{package}.utilities.consolidate_checkpoint", folder, "--output_file", out],
                       check=True, capture_output=True)
        if package == "pytorch":
            want["state_dict"], want["optimizer_states"] = want.pop("model"), [want.pop("optimizer_0")]
        lines = truth.diff(truth.describe(want), truth.describe(torch.load(out, weights_only=True)))
        assert not lines, f"consolidation of lightning.{package}: " + "\n  ".join(lines[:10])
    return out


def resume_in_trainer(path, what, want):
    module = Module()
    trainer(2 * STEPS).fit(module, ckpt_path=path)
    agree(what, want, module.losses)


def fsdp_rank(rank, world, port, path, want):
    """Loads with Lightning's own FSDPStrategy; it needs GPUs to train by itself, so this test has its own loop."""
    from lightning.fabric.plugins.environments import TorchElasticEnvironment
    from lightning.fabric.strategies import FSDPStrategy

    os.environ.update(environment(rank, world, port), TORCHELASTIC_RUN_ID="none")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module = Module()
    sharded = FullyShardedDataParallel(module, use_orig_params=True, auto_wrap_policy=ModuleWrapPolicy([nn.Linear]),
                                       device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    strategy = FSDPStrategy(parallel_devices=[torch.device("cpu")] * world, cluster_environment=TorchElasticEnvironment())
    rest = strategy.load_checkpoint(path, {"model": sharded, "optimizer_0": optimizer}, weights_only=True)
    assert (rest["epoch"], rest["global_step"]) == (STEPS, STEPS), rest
    losses = []
    for step in range(STEPS, 2 * STEPS):
        optimizer.zero_grad()
        loss = sharded(batch_of(step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    agree(f"FSDPStrategy on {world} ranks", want, losses)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    program = parser.parse_args().program
    logging.getLogger("lightning").setLevel(logging.ERROR)

    module = Module()
    trainer(2 * STEPS).fit(module)
    want = module.losses[STEPS:]
    with tempfile.TemporaryDirectory() as tmp:
        folder, file, theirs = f"{tmp}/sharded.ckpt", f"{tmp}/full.ckpt", f"{tmp}/theirs.ckpt"
        agree("fsdp::Strategy, sharded", want, run(program, 2, "train", folder, "sharded"))
        agree("fsdp::Strategy, full", want, run(program, 3, "train", file, "full"))
        resume_in_trainer(consolidated(folder, tmp), "the Trainer from a consolidated folder", want)
        resume_in_trainer(file, "the Trainer from a file", want)
        for world in (1, 2, 3):
            mp.spawn(fsdp_rank, (world, free_port(), folder, want), world)

        early = trainer(STEPS)
        early.fit(Module())
        early.save_checkpoint(theirs)
        for world in (1, 2):
            agree("fsdp::Strategy from the Trainer's file", want, run(program, world, "resume", theirs, "sharded"))
    print("ok")


if __name__ == "__main__":
    main()
