#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LeRobot's training states: what its functions write is read, and they load what the tool writes, with the same bits.

  python check_lerobot.py --tool PATH
"""
import json
import os
import random
import shutil
import sys
import types
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_model
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

import lerobot_code
import rekey_tool
import tried
from ranks import run_ranks
from rekey_tool import check, load, run, same

optimizers, train_utils = lerobot_code.load()
OPTIMIZER_FILES = ("optimizer_state.safetensors", "optimizer_param_groups.json")


class Net(nn.ModuleDict):
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        super().__init__({"vlm": nn.Linear(3, 4), "soft_prompt": nn.Linear(4, 4), "head": nn.Linear(4, 2)})

    def forward(self, x):
        return self["head"](self["soft_prompt"](self["vlm"](x)))


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()


def adam(net, **options):
    return optimizers.AdamConfig(**options).build([{"params": list(net["vlm"].parameters())},
                                                   {"params": list(net["soft_prompt"].parameters()) + list(net["head"].parameters()), "lr": 1e-5}])


BUILDS = {"adam": adam,
          "adamw": lambda net: optimizers.AdamWConfig().build(net.parameters()),
          "sgd": lambda net: optimizers.SGDConfig(momentum=0.9).build(net.parameters()),
          "sgd_without_states": lambda net: optimizers.SGDConfig().build(net.parameters()),
          "xvla": lambda net: optimizers.XVLAAdamWConfig().build(dict(net.named_parameters()))}


class Policy:
    """Stands for PreTrainedPolicy and its configuration: the file of weights is written as _save_pretrained does."""

    def __init__(self, net):
        self.net, self.peft = net, None

    def save_pretrained(self, folder, state_dict=None):
        folder.mkdir(parents=True, exist_ok=True)
        if self.net is not None:
            save_model(self.net, str(folder / "model.safetensors"))


def trained(build, steps=2):
    net = Net()
    optimizer = build(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(steps):
        step(net, optimizer)
        scheduler.step()
    return types.SimpleNamespace(net=net, optimizer=optimizer, scheduler=scheduler, step=steps)


def saved(folder, run_, **more):
    """A checkpoint by LeRobot's save_checkpoint."""
    torch.manual_seed(7), random.seed(8)
    train_utils.save_checkpoint(Path(folder), run_.step, Policy(None), Policy(run_.net), run_.optimizer, run_.scheduler, num_processes=1, batch_size=2, **more)
    return folder


def untupled(x):
    """JSON has no tuples."""
    if isinstance(x, dict):
        return {k: untupled(v) for k, v in x.items()}
    return [untupled(v) for v in x] if isinstance(x, (list, tuple)) else x


def loads(folder, build, want, whole=False):
    """LeRobot's own loaders put the wanted state into an optimizer that has another."""
    got = trained(build, 1)
    if whole:
        step, _, scheduler = train_utils.load_training_state(Path(folder), got.optimizer, got.scheduler)
        check(step == want.step, f"{folder}: step {step}")
        same(scheduler.state_dict(), want.scheduler.state_dict(), f"{folder}: scheduler")
        rng = torch.get_rng_state(), random.getstate()
        torch.manual_seed(7), random.seed(8)
        check(torch.equal(rng[0], torch.get_rng_state()) and rng[1] == random.getstate(), f"{folder}: random numbers")
    else:
        optimizers.load_optimizer_state(got.optimizer, Path(folder) / "training_state")
    same(got.optimizer.state_dict(), want.optimizer.state_dict(), folder)
    same(load_file(os.path.join(folder, "pretrained_model", "model.safetensors")), dict(want.net.state_dict()), f"{folder}: model")


def reading(tmp):
    for name, build in BUILDS.items():
        want = trained(build)
        folder = saved(os.path.join(tmp, name), want)
        check("sound" in run("verify", folder) and "LeRobot" in run("inspect", folder), folder)
        out = folder + ".pt"
        run("consolidate", folder, out)
        got = load(out)
        same(got["model"], dict(want.net.state_dict()), f"{name}: model")
        same(untupled(got["scheduler"]), untupled(want.scheduler.state_dict()), f"{name}: scheduler")
        same(untupled(got["optimizer"]), untupled(want.optimizer.state_dict()), f"{name}: optimizer")
        check(got["training_step"] == {"step": 2, "num_processes": 1, "batch_size": 2}, f"{name}: {got['training_step']}")
    tried.record("lerobot", "`checkpoints/<step>`", "verify, inspect, consolidate", "bit for bit what its own code reads")


def several(tmp):
    """One folder for each of several optimizers."""
    net = Net()
    config = optimizers.MultiAdamConfig(optimizer_groups={"actor": {"lr": 0.1}, "critic": {"lr": 0.2}})
    both = config.build({"actor": net["vlm"].parameters(), "critic": net["head"].parameters()})
    for optimizer in both.values():
        step(net, optimizer)
    train_utils.save_training_state(Path(tmp), 1, both)
    out = os.path.join(tmp, "out.pt")
    run("consolidate", os.path.join(tmp, "training_state"), out)
    got = load(out)
    for name, optimizer in both.items():
        same(untupled(got[f"optimizer_{name}"]), untupled(optimizer.state_dict()), name)


def writing(tmp):
    """From torch.save and from DCP folders of two ranks; the files have what LeRobot writes itself."""
    for name, build in BUILDS.items():
        want = trained(build)
        file, own = os.path.join(tmp, f"{name}.pt"), saved(os.path.join(tmp, f"{name}-own"), want)
        torch.save({"model": want.net.state_dict(), "optimizer": want.optimizer.state_dict()}, file)
        run("shard", file, file + "-2", "--world-size", "2")
        run("consolidate", own, file + "-read.pt")
        for source in (file, file + "-2", file + "-read.pt", own):
            out = os.path.join(tmp, "out")
            run("convert", source, out, "--to", "lerobot", "--force")
            loads(out, build, want, whole=source in (file + "-read.pt", own))
            for part in OPTIMIZER_FILES:
                paths = [os.path.join(folder, "training_state", part) for folder in (out, own)]
                if part.endswith(".json"):
                    same(*(json.loads(Path(p).read_text()) for p in paths), f"{source}: {part}")
                else:
                    same(*map(load_file, paths), f"{source}: {part}")
    tried.record("lerobot", "`checkpoints/<step>`", "convert", "of a file and of a folder of 2 ranks, its load_optimizer_state and load_training_state take the same bits")


def fsdp(rank, world, folder, read_from):
    """Saves what FSDP trained, or what it loaded, as a DCP folder."""
    net = FSDP(Net(3 if read_from else 0), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = adam(net.module, lr=0.5 if read_from else 0.1)
    step(net, optimizer)
    if read_from:
        train_utils.load_fsdp_optimizer_state(net, optimizer, Path(read_from))
    with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        dcp.save({"model": net.state_dict(), "optimizer": FSDP.optim_state_dict(net, optimizer)}, checkpoint_id=folder)


def names(tmp):
    """FSDP has names, and other numbers of ranks load them."""
    own, out, file, sharded, again = (os.path.join(tmp, name) for name in ("own", "out", "own.pt", "own-dcp", "again"))
    run_ranks(2, fsdp, sharded, None)
    # PyTorch's DCP gathers: gather_fsdp_state_dicts, which LeRobot's loop calls, needs parameters that are not on the CPU.
    gathered = load(sharded)
    want, net = gathered["optimizer"], Net()
    net.load_state_dict(gathered["model"])
    saved(own, types.SimpleNamespace(net=net, optimizer=None, scheduler=None, step=1))
    optimizers.save_optimizer_state(None, Path(own) / "training_state", optim_state_dict=want)
    check("sound" in run("verify", own), own)
    run("consolidate", own, file)
    same(untupled(load(file)["optimizer"]), untupled(want), "read")
    for source in (sharded, file, own):
        run("convert", source, out, "--to", "lerobot-fsdp", "--force")
        same(untupled(optimizers.load_optimizer_state_dict(Path(out) / "training_state")), untupled(want), source)
        same(load_file(os.path.join(out, "pretrained_model", "model.safetensors")), gathered["model"], source)
        run_ranks(3, fsdp, again, out)
        got = load(again)["optimizer"]
        same(got["state"], want["state"], f"{source} on 3 ranks")
        check([group["lr"] for group in got["param_groups"]] == [0.1, 1e-5], f"{source}: rates")
        shutil.rmtree(again)
    tried.record("lerobot", "`checkpoints/<step>` by FSDP1", "verify, consolidate, convert",
                 "of its own folder and of a DCP folder, its load_fsdp_optimizer_state loads the same bits on 3 ranks", ranks=2)


CHECKS = {"reading": reading, "several": several, "writing": writing, "names": names}

if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, lambda: CHECKS))
