#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes lerobot/: a run of LeRobot as its own functions save it, and the same states by torch.save.

  python make_lerobot.py [OUT]    needs torch 2.11, safetensors 0.8.0, draccus 0.11.6 and lerobot 0.6.1 (the packages lerobot.optim and
                                  lerobot.utils alone: without its other dependencies)

run/checkpoints/00000{1,2} with `last`, several/ with two optimizers, fsdp/ with a state by name; full.pt and fsdp.pt.
"""
import os
import shutil
import sys
from pathlib import Path

import torch
from lerobot.optim.optimizers import save_optimizer_state
from lerobot.optim.schedulers import save_scheduler_state
from lerobot.utils.io_utils import write_json
from lerobot.utils.random_utils import save_rng_state
from safetensors.torch import save_model

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "lerobot"))


def training(steps):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    groups = [{"params": [net[0].weight, net[1].weight]}, {"params": [net[0].bias, net[1].bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    return net, optimizer, scheduler


def save(folder, net, optimizer, scheduler, step, state=None, rng=False):
    """As lerobot/common/train_utils.py does, whose imports need all of LeRobot."""
    model = folder / "pretrained_model"
    model.mkdir(parents=True)
    save_model(net, str(model / "model.safetensors"))
    write_json({"type": "act"}, model / "config.json")
    training_state = folder / "training_state"
    training_state.mkdir()
    write_json({"step": step, "num_processes": 1, "batch_size": 2}, training_state / "training_step.json")
    torch.manual_seed(step)
    if rng:
        save_rng_state(training_state)
    save_optimizer_state(optimizer, training_state, optim_state_dict=state)
    if scheduler is not None:
        save_scheduler_state(scheduler, training_state)


def by_name(net, optimizer):
    """The form of FSDP.optim_state_dict, whose names save_optimizer_state writes as they are."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    flat = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    state = optimizer.state_dict()
    return {"state": {flat[key]: value for key, value in state["state"].items()},
            "param_groups": [{**group, "params": [flat[key] for key in group["params"]]} for group in state["param_groups"]]}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for step in (1, 2):
        net, optimizer, scheduler = training(step)
        save(OUT / "run" / "checkpoints" / f"{step:06d}", net, optimizer, scheduler, step, rng=step == 2)
    (OUT / "run" / "checkpoints" / "last").symlink_to("000002")
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, OUT / "full.pt")
    save(OUT / "several", net, {"actor": optimizer, "critic": training(1)[1]}, None, 2)
    named = by_name(net, optimizer)
    save(OUT / "fsdp", net, optimizer, None, 2, named)
    torch.save({"model": net.state_dict(), "optimizer": named}, OUT / "fsdp.pt")


if __name__ == "__main__":
    main()
