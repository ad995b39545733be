#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of verl: laid out for other ranks, from which verl's own manager goes on.

  python check_verl.py --tool PATH

verl itself saves and loads (FSDPCheckpointManager).  Its package imports Ray and engines for rollouts; here only the modules of the manager are
loaded, and what they import of others for annotations alone is replaced by empty modules.
"""
import functools
import importlib.util
import json
import os
import random
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TORCH_CPP_LOG_LEVEL="ERROR", TRANSFORMERS_VERBOSITY="error")

import rekey_tool
import tried
from ranks import run_ranks
from rekey_tool import check, run, same

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM


def manager_class():
    root = importlib.util.find_spec("verl").submodule_search_locations[0]
    for name in ("verl", "verl.utils", "verl.utils.checkpoint", "verl.models", "verl.plugin"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [os.path.join(root, *name.split(".")[1:])]
    for name, member in (("omegaconf", "DictConfig"), ("tensordict", "TensorDict"), ("tensordict.tensorclass", "NonTensorData"),
                         ("verl.trainer", "main"), ("verl.trainer.config", "CheckpointConfig")):
        module = sys.modules[name] = types.ModuleType(name)
        setattr(module, member, type(member, (), {}))
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    return FSDPCheckpointManager


MANAGER = manager_class()


def trainer_on(rank, world):
    """Returns a model on FSDP2, its optimizer and scheduler, and verl's manager of them."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
                                         max_position_embeddings=16))
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))   # as verl's create_device_mesh
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    manager = MANAGER(model, optimizer, scheduler, checkpoint_config={"save_contents": ["model", "optimizer", "extra"]})
    return model, optimizer, scheduler, manager


def step(model, optimizer, scheduler):
    ids = torch.arange(6)[None] % 11   # the same on each rank, so that the mean of the gradients does not depend on their number
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.item()


def whole(value):
    return value.full_tensor().clone() if hasattr(value, "full_tensor") else value


def contents(model, optimizer, scheduler):
    state = optimizer.state_dict()
    return ({n: whole(v) for n, v in model.state_dict().items()}, {i: {k: whole(v) for k, v in s.items()} for i, s in state["state"].items()},
            [{k: v for k, v in g.items()} for g in state["param_groups"]], scheduler.state_dict())


def random_state():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def saved(rank, world, folder):
    """verl saves after two steps; returns what it saved, and the loss of the next step."""
    model, optimizer, scheduler, manager = trainer_on(rank, world)
    for _ in range(2):
        step(model, optimizer, scheduler)
    torch.manual_seed(100 + rank), np.random.seed(200 + rank), random.seed(300 + rank)
    manager.save_checkpoint(folder, global_step=2)
    return contents(model, optimizer, scheduler), random_state(), step(model, optimizer, scheduler)


def loaded(rank, world, folder):
    """verl loads into another start; returns what it then has, whether random numbers go on as they would have without, and the loss of the next step."""
    model, optimizer, scheduler, manager = trainer_on(rank, world)
    step(model, optimizer, scheduler)
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    before = random_state()
    manager.load_checkpoint(folder)
    return contents(model, optimizer, scheduler), random_state(), random_state() == before, step(model, optimizer, scheduler)


def goes_on(tmp, before, after):
    folder, out = os.path.join(tmp, f"on_{before}"), os.path.join(tmp, f"on_{after}")
    was = run_ranks(before, saved, folder)
    open(os.path.join(folder, "huggingface", "merges.txt"), "w", encoding="utf-8").write("#version: 0.2\na b\n")
    for rank in range(before):
        torch.save({"epoch": 3}, os.path.join(folder, f"data_{rank}.pt"))
    text = run("reshard", folder, out, "--world-size", str(after))
    run("verify", out)
    check(json.load(open(os.path.join(out, "fsdp_config.json"), encoding="utf-8")) == {"FSDP_version": 2, "world_size": after}, "fsdp_config.json")
    for name in ("config.json", "merges.txt"):
        paths = [os.path.join(f, "huggingface", name) for f in (folder, out)]
        check(open(paths[0], "rb").read() == open(paths[1], "rb").read(), name)
    expected = sorted([f"{part}_world_size_{after}_rank_{r}.pt" for part in ("model", "optim", "extra_state") for r in range(after)] +
                      [f"data_{r}.pt" for r in range(after)] + ["fsdp_config.json", "huggingface"])
    check(sorted(os.listdir(out)) == expected, f"{sorted(os.listdir(out))}, expected {expected}")
    now = run_ranks(after, loaded, out)
    for rank, (got, state, own, loss) in enumerate(now):
        same(got, was[0][0], f"{before} to {after}, rank {rank}")
        if rank < before:
            check(state == was[rank][1], f"rank {rank}: its random state is another")
        else:
            check(own, f"rank {rank} did not exist, but got a random state")
            check(f"extra_state_world_size_{after}_rank_{rank}.pt" in text, text)
        check(abs(loss - was[0][2]) <= 1e-6, f"rank {rank}: the next loss is {loss}, expected {was[0][2]}")
    # The same content as verl's own save on so many ranks: names, types, placements.
    own = os.path.join(tmp, "own")
    run_ranks(after, saved, own)
    check(not run_ranks(after, differences, out, own)[0], f"{before} to {after}: not as verl saves it")
    # The other way is open.
    run("reshard", folder, out + "-dcp", "--world-size", str(after), "--layout", "dcp")
    check(os.path.exists(os.path.join(out + "-dcp", ".metadata")), "--layout dcp")
    tried.record("verl", "FSDP2", "reshard, verify", f"{before} to {after} ranks; its own manager loads the same bits", ranks=before)


def a_step_goes_on(tmp):
    """verl's step: actor/ and critic/, and the state of the data loader beside them."""
    step, out = os.path.join(tmp, "global_step_2"), os.path.join(tmp, "out")
    was = {part: run_ranks(2, saved, os.path.join(step, part)) for part in ("actor", "critic")}
    torch.save({"_num_yielded": 7, "rng": torch.get_rng_state()}, os.path.join(step, "data.pt"))
    run("reshard", step, out, "--world-size", "3")
    run("verify", out)
    check(sorted(os.listdir(out)) == ["actor", "critic", "data.pt"], f"{os.listdir(out)}")
    check(open(os.path.join(step, "data.pt"), "rb").read() == open(os.path.join(out, "data.pt"), "rb").read(), "data.pt")
    for part, before in was.items():
        for rank, (got, _, _, loss) in enumerate(run_ranks(3, loaded, os.path.join(out, part))):
            same(got, before[0][0], f"{part}, rank {rank}")
            check(abs(loss - before[0][2]) <= 1e-6, f"{part}: the next loss is {loss}, expected {before[0][2]}")
    tried.record("verl", "FSDP2, a step of actor and critic", "reshard, verify", "2 to 3 ranks; its own manager loads the same bits of both", ranks=2)


def differences(rank, world, a, b):
    """Returns what differs in form between the files of this rank."""
    found = []

    def walk(x, y, where):
        if type(x) is not type(y):
            found.append(f"{where}: {type(x)} {type(y)}")
        elif isinstance(x, dict):
            if list(x) != list(y):
                found.append(f"{where}: keys {list(x)} {list(y)}")
            for key in x:
                walk(x[key], y.get(key), f"{where}.{key}")
        elif hasattr(x, "device_mesh"):
            forms = [(t.device_mesh, t.placements, t.shape, t.stride(), t.dtype, t.device, t._local_tensor.shape, t._spec, hash(t._spec) is not None,
                      t.device_mesh.get_coordinate(), t.device_mesh.mesh.tolist()) for t in (x, y)]
            if forms[0] != forms[1]:
                found.append(f"{where}: {forms[0]} {forms[1]}")
    for part in ("model", "optim"):
        name = f"{part}_world_size_{world}_rank_{rank}.pt"
        walk(*(torch.load(os.path.join(folder, name), weights_only=False) for folder in (a, b)), part)
    every = [None] * world
    torch.distributed.all_gather_object(every, found)
    return [text for texts in every for text in texts]


def contradictions(tmp):
    """What no other number of ranks can be given is refused, and named."""
    folder = os.path.join(tmp, "saved")
    run_ranks(2, saved, folder)
    path = os.path.join(folder, "optim_world_size_2_rank_1.pt")
    good = torch.load(path, weights_only=False)
    other = {**good, "own": 1}
    torch.save(other, path)
    first = os.path.join(folder, "optim_world_size_2_rank_0.pt")
    torch.save({**torch.load(first, weights_only=False), "own": 0}, first)
    text = run("reshard", folder, os.path.join(tmp, "out"), "--world-size", "3", expect=2)
    check("'own'" in text and "rank_1" in text and "--layout dcp" in text, text)
    torch.save(good, path)
    # FSDP1 keeps flat parts of parameters.
    for rank in range(2):
        torch.save({"state": {0: {"exp_avg": torch.full((5,), float(rank))}}}, os.path.join(folder, f"optim_world_size_2_rank_{rank}.pt"))
    text = run("reshard", folder, os.path.join(tmp, "out"), "--world-size", "3", expect=2)
    check("optim_world_size_2_rank_0.pt" in text and "FSDP1" in text, text)
    check(not os.path.exists(os.path.join(tmp, "out")), "something was written")


CHECKS = {"2_to_3": functools.partial(goes_on, before=2, after=3), "4_to_2": functools.partial(goes_on, before=4, after=2), "step": a_step_goes_on, "contradictions": contradictions}


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, lambda: CHECKS))
