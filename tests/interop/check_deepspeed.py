#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed's engine: laid out for other ranks, from which its engine goes on.

  python check_deepspeed.py --tool PATH

The engine itself saves and loads, on CPUs; what it then holds is compared with what it held, and its own save on so many ranks with our files.
"""
import functools
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]
os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", TORCH_CPP_LOG_LEVEL="ERROR")

import rekey_tool
import tried
from make_frameworks import TwoGroups, make_universal
from ranks import run_ranks
from rekey_tool import check, run

import deepspeed
import deepspeed.comm.torch
import torch
from deepspeed.checkpoint import ds_to_universal  # noqa: F401, before ranks are forked
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

import models

TAG = "global_step2"


def engine_on(rank, world, seed, stage, half=False, universal=False, **zero):
    """Returns an engine with two parameter groups, a tied weight where the stage allows it, a frozen block, and a scheduler."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), LOCAL_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None   # it would be compiled; the attribute deepspeed.comm.torch is PyTorch
    deepspeed.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", verbose=False, auto_mpi_discovery=False)
    torch.manual_seed(seed)
    model = models.freeze(TwoGroups(tied=stage < 3))
    names = {id(p): n for n, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.groups(), lr=1e-2)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage, **zero}, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": half}, "checkpoint": {"load_universal": universal}}
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config,
                                                   lr_scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5))
    return engine, optimizer, names


def step(engine, half):
    """The same batch on each rank, so that the mean of the gradients does not depend on their number."""
    torch.manual_seed(3)
    loss = engine(torch.randn(4, models.IN, dtype=torch.bfloat16 if half else torch.float32)).float().square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()


def contents(engine, optimizer, stage):
    """Whole weights in full precision and states of the optimizer, by name; frozen weights and buffers; numbers of steps, options, the scheduler."""
    if stage < 3:   # linked after the first group's step, when the second group has no state yet
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    out = {n: b.clone() for n, b in engine.module.named_buffers()}
    for n, p in engine.module.named_parameters():
        if p.requires_grad:
            out[n] = safe_get_full_fp32_param(p).clone()
            for kind in ("exp_avg", "exp_avg_sq"):
                out[f"{n}.{kind}"] = safe_get_full_optimizer_state(p, kind).clone()
        elif stage == 3:
            with deepspeed.zero.GatheredParameters([p]):
                out[n] = p.data.clone()
        else:
            out[n] = p.data.clone()
    base = optimizer.optimizer
    out["steps"] = sorted({float(s["step"]) for s in base.state.values()})
    out["groups"] = [{k: v for k, v in g.items() if k != "params"} for g in base.param_groups]
    out["scheduler"] = engine.lr_scheduler.state_dict()
    out["global_steps"] = engine.global_steps
    return out


def alike(a, b, where, found):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            found.append(f"{where}: {a.dtype} {tuple(a.shape)} {a.flatten()[:4].tolist()}, {b.dtype} {tuple(b.shape)} {b.flatten()[:4].tolist()}")
    elif type(a) is not type(b):
        found.append(f"{where}: {type(a)} {type(b)}")
    elif isinstance(a, dict):
        if list(a) != list(b):
            found.append(f"{where}: keys {list(a)} {list(b)}")
        for key in a:
            alike(a[key], b.get(key), f"{where}.{key}", found)
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            found.append(f"{where}: {len(a)} {len(b)}")
        for i, (x, y) in enumerate(zip(a, b)):
            alike(x, y, f"{where}[{i}]", found)
    elif hasattr(a, "__dict__") and not callable(a):
        alike(vars(a), vars(b), where, found)
    elif a != b:
        found.append(f"{where}: {a!r} {b!r}")


def saved(rank, world, folder, how):
    engine, optimizer, _ = engine_on(rank, world, 1, **how)
    for _ in range(2):
        step(engine, how.get("half"))
    engine.save_checkpoint(folder, tag=TAG, client_state={"epoch": 3, "note": ["a", {"b": 1.5}]})
    return contents(engine, optimizer, how["stage"]), step(engine, how.get("half"))


def loaded(rank, world, folder, again, how):
    """Loads into another start, saves again, goes on."""
    engine, optimizer, _ = engine_on(rank, world, 2, **how)
    step(engine, how.get("half"))
    path, client = engine.load_checkpoint(folder)
    now = contents(engine, optimizer, how["stage"])
    if again:
        engine.save_checkpoint(again, tag=TAG, client_state={k: client[k] for k in ("epoch", "note")})
    return now, client["epoch"], client["note"], step(engine, how.get("half"))


def same_files(ours, own):
    """DeepSpeed's own save of what it loaded from our files has the same files with the same objects."""
    names = sorted(os.listdir(os.path.join(ours, TAG)))
    check(names == sorted(os.listdir(os.path.join(own, TAG))), f"{names}")
    for name in names:
        a, b = (torch.load(os.path.join(f, TAG, name), weights_only=False) for f in (ours, own))
        found = []
        for root in (a, b):   # a frozen weight's last part ends in whatever was in memory
            for key, value in (root.get("frozen_param_fragments") or {}).items():
                numel, parts = root["frozen_param_shapes"][key].numel(), root["dp_world_size"]
                rank = int(name.split("_rank_")[1].split("_")[0]) if name.startswith("zero_pp") else 0
                if value.dim() == 1 and parts > 1 and name.startswith("zero_pp"):
                    root["frozen_param_fragments"][key] = value[:max(0, min(len(value), numel - rank * len(value)))]
        alike(a, b, name, found)
        check(not found, "\n".join(found[:20]))


def goes_on(tmp, before, after, **how):
    folder, out, own = (os.path.join(tmp, name) for name in ("saved", "out", "own"))
    was = run_ranks(before, saved, folder, how)
    for name, text in (("trainer_state.json", "{}"), ("merges.txt", "a b\n")):
        open(os.path.join(folder, name), "w", encoding="utf-8").write(text)
    for rank in range(before):
        torch.save({"cpu": torch.arange(4) + rank}, os.path.join(folder, f"rng_state_{rank}.pth"))
    run("reshard", folder, out, "--world-size", str(after))
    run("verify", out)
    run("diff", folder, out, "-k", "model.**", "-k", "optimizer.state.**" if "sub_group_size" in how else "optimizer.**")
    program = ["zero_to_fp32.py"] if os.path.exists(os.path.join(folder, "zero_to_fp32.py")) else []
    states = ["rng_state.pth"] if after == 1 else [f"rng_state_{r}.pth" for r in range(min(before, after))]   # as the Trainer names them
    expected = sorted([TAG, "latest", "trainer_state.json", "merges.txt", *program, *states])
    check(sorted(os.listdir(out)) == expected, f"{sorted(os.listdir(out))}, expected {expected}")
    for name, other in [(n, n) for n in ("latest", "merges.txt", *program)] + [("rng_state_0.pth", states[0])]:
        check(open(os.path.join(folder, name), "rb").read() == open(os.path.join(out, other), "rb").read(), name)
    now = run_ranks(after, loaded, out, own, how)
    for rank, (got, epoch, note, loss) in enumerate(now):
        found = []
        alike(was[0][0], got, f"{before} to {after}, rank {rank}", found)
        check(not found, "\n".join(found[:20]))
        check((epoch, note) == (3, ["a", {"b": 1.5}]), f"{epoch} {note}")
        check(abs(loss - was[0][1]) <= 1e-6, f"rank {rank}: the next loss is {loss}, expected {was[0][1]}")
    same_files(out, own)
    if how["stage"] > 1 or not how.get("half"):
        weights = [get_fp32_state_dict_from_zero_checkpoint(f) for f in (folder, out)]
        found = []
        alike(dict(weights[0]), dict(weights[1]), "zero_to_fp32", found)
        check(not found, "\n".join(found[:20]))
    # What describes the partitions is right for ds_to_universal, too.
    make_universal(os.path.join(out, TAG), os.path.join(tmp, "u", "universal"))
    run("diff", out, os.path.join(tmp, "u", "universal"), "-k", "model.**", "-k", "optimizer.state.**")
    # The tag folder alone, and the other way.
    run("reshard", os.path.join(folder, TAG), os.path.join(tmp, "tag"), "--world-size", str(after))
    check(sorted(os.listdir(os.path.join(tmp, "tag"))) == sorted(os.listdir(os.path.join(out, TAG))), "the tag folder alone")
    run("reshard", folder, os.path.join(tmp, "dcp"), "--world-size", str(after), "--layout", "dcp")
    check(os.path.exists(os.path.join(tmp, "dcp", ".metadata")), "--layout dcp")
    tried.record("deepspeed", f"ZeRO stage {how['stage']}", "reshard, verify", f"{before} to {after} ranks; its own engine loads the same bits", ranks=before)


def universal_stays(tmp, stage):
    folder, out = os.path.join(tmp, "saved"), os.path.join(tmp, "out")
    how = {"stage": stage}
    was = run_ranks(2, saved, folder, how)
    make_universal(os.path.join(folder, TAG), os.path.join(folder, TAG + "_universal"))
    open(os.path.join(folder, "latest_universal"), "w", encoding="utf-8").write(TAG + "_universal")
    os.remove(os.path.join(folder, "latest"))
    shutil.rmtree(os.path.join(folder, TAG))
    text = run("reshard", folder, out, "--world-size", "3")
    check("any number of ranks" in text, text)
    for root, _, files in os.walk(folder):
        for name in [n for n in files if n == "zero_to_fp32.py" or not n.endswith(".py")]:
            path = os.path.join(root, name)
            other = os.path.join(out, os.path.relpath(path, folder))
            check(open(path, "rb").read() == open(other, "rb").read(), other)
    now = run_ranks(3, loaded, out, None, {**how, "universal": True})
    for rank, (got, epoch, _, loss) in enumerate(now):
        found = []
        skip = ("scheduler", "groups")   # of the engine's own start: DeepSpeed's loader of these is not the matter here
        alike({k: v for k, v in was[0][0].items() if k not in skip and not k.startswith("blocks.0") and k not in ("seen", "mean")},
              {k: v for k, v in got.items() if k not in skip and not k.startswith("blocks.0") and k not in ("seen", "mean")}, f"rank {rank}", found)
        check(not found and epoch == 3, "\n".join(found[:20]))
    tried.record("deepspeed", "universal checkpoints", "reshard", "as they are, which its engine loads on 3 ranks", ranks=2)


def contradictions(tmp):
    """What no other number of ranks can be given is refused, and named."""
    folder, out = os.path.join(tmp, "saved"), os.path.join(tmp, "out")
    run_ranks(2, saved, folder, {"stage": 2})

    def changed(name, edit, said, *args):
        path = os.path.join(folder, TAG, name)
        good = open(path, "rb").read()
        root = torch.load(path, weights_only=False)
        edit(root)
        torch.save(root, path)
        text = run("reshard", folder, out, "--world-size", "3", *args, expect=2)
        check(said in text and "--layout dcp" in text, text)
        check(not os.path.exists(out), "something was written")
        open(path, "wb").write(good)

    model, optimizer = "mp_rank_00_model_states.pt", "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    changed(model, lambda r: r["ds_config"]["zero_optimization"].update(round_robin_gradients=True), "round_robin_gradients")
    changed(model, lambda r: r.update(dp_world_size=4), "dp_world_size")
    changed(optimizer.format(1), lambda r: r["optimizer_state_dict"].update(clip_grad=7.0), "holds something else than zero_pp_rank_0")
    text = run("reshard", folder, out, "--world-size", "3", "-k", "model.**", expect=2)
    check("-k and --exclude" in text, text)
    shutil.rmtree(folder)
    run_ranks(2, saved, folder, {"stage": 3})
    changed("zero_pp_rank_0_mp_rank_00_model_states.pt", lambda r: r["ds_config"]["zero_optimization"].update(sub_group_size=60), "of the lengths")


CHECKS = {
    "stage1_2_to_3": functools.partial(goes_on, before=2, after=3, stage=1),
    "stage2_3_to_2": functools.partial(goes_on, before=3, after=2, stage=2, half=True),
    "stage2_aligned_2_to_5": functools.partial(goes_on, before=2, after=5, stage=2, parameter_alignment=True),
    "stage3_2_to_3": functools.partial(goes_on, before=2, after=3, stage=3, half=True),
    "stage3_sub_groups_4_to_1": functools.partial(goes_on, before=4, after=1, stage=3, sub_group_size=60),
    "stage3_sub_groups_1_to_2": functools.partial(goes_on, before=1, after=2, stage=3, sub_group_size=60),
    "universal_of_stage2": functools.partial(universal_stays, stage=2),
    "universal_of_stage3": functools.partial(universal_stays, stage=3),
    "contradictions": contradictions,
}


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, lambda: CHECKS))
