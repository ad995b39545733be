#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training saved by PyTorch continues in C++, and from there in PyTorch again, for every layout.

  python check_training.py --program load_training [--corpus FOLDER]
"""
import argparse
import os
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "../../interop"))

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from models import Net, one_step

CORPUS = "fsdp1_w3 fsdp1_hsdp_w4 fsdp1_no_shard_w2 fsdp1_orig_w2 fsdp2_flat_optim_w3 fsdp2_hsdp_w4 fsdp2_w4 fsdp2_zstd_w2".split()


def trained():
    torch.manual_seed(3)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    one_step(net, opt)
    return net, opt


def by_name(net, opt_state):
    names = [name for name, _ in net.named_parameters()]
    return {names[i]: state for i, state in opt_state["state"].items()}


def check(args, source, want_model, want_state, want_options, ranks, folder):
    out = os.path.join(folder, "out.pt")
    if os.path.exists(out):
        os.unlink(out)
    done = subprocess.run([args.program, source, out, str(ranks)], capture_output=True, text=True)
    what = f"{source} at {ranks} ranks"
    if done.returncode != 0:
        sys.exit(f"{what}: status {done.returncode}: {done.stdout[:2000]}")
    got = torch.load(out, weights_only=True)
    net = Net()
    net.load_state_dict(got["state_dict"])
    opt = torch.optim.AdamW(net.parameters())
    opt.load_state_dict(got["optimizer_states"][0])
    for name, tensor in net.state_dict().items():
        if not torch.equal(tensor, want_model[name]):
            sys.exit(f"{what}: {name} differs")
    states = by_name(net, opt.state_dict())
    if states.keys() != want_state.keys():
        sys.exit(f"{what}: states of {sorted(states)}, expected {sorted(want_state)}")
    for name, state in states.items():
        for slot, value in want_state[name].items():
            if not torch.equal(state[slot], value):
                sys.exit(f"{what}: {slot} of {name}: {state[slot]}, expected {value}")
    options = opt.param_groups[0]
    for key, value in want_options.items():
        if options[key] != value:
            sys.exit(f"{what}: {key} is {options[key]}, expected {value}")
    one_step(net, opt)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--corpus")
    args = parser.parse_args()
    torch.set_num_threads(1)
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        net, opt = trained()
        model, states = net.state_dict(), by_name(net, opt.state_dict())
        options = {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.01}
        made = {
            "ids": {"model": model, "optimizer": opt.state_dict(), "epoch": 4},
            "lightning": {"state_dict": model, "optimizer_states": [opt.state_dict()], "pytorch-lightning_version": "2.5.5"},
        }
        for name, state in made.items():
            path = os.path.join(folder, f"{name}.pt")
            torch.save(state, path)
            for ranks in (1, 2, 3, 4):
                check(args, path, model, states, options, ranks, folder)
                count += 1
        for i, name in enumerate(CORPUS if args.corpus else []):
            source = os.path.join(args.corpus, name, "ckpt")
            whole = os.path.join(folder, "whole.pt")
            dcp_to_torch_save(source, whole)
            truth = torch.load(whole, weights_only=True)
            states = truth.get("optimizer", truth.get("optim"))
            if "state" in states:
                states = states["state"]
            else:
                keys = [key.removeprefix("state.").rpartition(".") for key in states if key.startswith("state.")]
                states = {name: {slot: states[f"state.{n}.{slot}"] for n, _, slot in keys if n == name} for name, _, _ in keys}
            for ranks in (i % 4 + 1, (i + 1) % 4 + 1):
                check(args, source, truth["model"], states, options, ranks, folder)
                count += 1
    print(f"{count} checkpoints went on in C++, and from there in PyTorch")


main()
