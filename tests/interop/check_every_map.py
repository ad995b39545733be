#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What holds for each built-in map that was written by hand, whatever it converts; check_made_maps.py has the others.

  python check_every_map.py --tool PATH [NAME...]

The maps are those that `maps --json` lists, and their models those that they name: a small random one of each model_type, as
save_pretrained writes it.  Backwards and forwards again gives the same bits, and so do forwards and backwards; with the state of an
optimizer and through folders of three ranks as well.  A map refuses the models of the others, and names what it does not find.
"""
import functools
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)
sys.path.append(os.path.join(HERE, "architectures"))

import torch
from safetensors.torch import load_file

import rekey_tool
import tiny_models
from conversion_tables import COVERED
from megatron_bridge import families
from rekey_tool import Failure, check, load, run, same
from write_maps import MARK

# Sizes of models that have no table of conversions.
OWN = {
    "llama4": {"vision_config": {"vision_output_dim": 8, "projector_input_dim": 8, "projector_output_dim": 8, "intermediate_size": 64}},
}


# The maps of trainers' own models, and the sources of check_trainer_maps.py: what is published of a model is what the trainer makes of it.
TRAINERS = ("titan", "automodel", "olmo")


@functools.cache
def trainers_files():
    """A folder with the files of all trainers' models."""
    folder = tempfile.TemporaryDirectory()
    for source in TRAINERS:   # in a process of its own, since some need another transformers
        subprocess.run([sys.executable, os.path.join(HERE, "check_trainer_maps.py"), source, "--tool", rekey_tool.TOOL, "--files", folder.name], check=True)
    return folder


def files_of(tmp, name, model_type):
    """The tensors of the files that save_pretrained writes, or a trainer, and the folder with config.json."""
    folder = os.path.join(trainers_files().name, name, model_type)
    if not os.path.exists(folder):
        folder = os.path.join(tmp, model_type)
    if not os.path.exists(folder):
        tiny_models.tiny(model_type, COVERED[model_type][1] if model_type in COVERED else OWN.get(model_type, {})).save_pretrained(folder)
    return load_file(os.path.join(folder, "model.safetensors")), folder


def with_optimizer(state):
    return {"model": state, "optim": {
        "state": {n: {"step": torch.tensor(3.0), "exp_avg": t * 2, "exp_avg_sq": t * t} for n, t in state.items() if t.is_floating_point()},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": sorted(n for n, t in state.items() if t.is_floating_point())}]}}


def in_order(state):
    state["optim"]["param_groups"][0]["params"].sort()
    return state


def round_trips(name):
    def work(tmp):
        for model_type in rekey_tool.model_types(name):
            files, folder = files_of(tmp, name, model_type)
            options = ("--config", os.path.join(folder, "config.json"), "--force")
            right, left, again = (os.path.join(tmp, n) for n in ("right.pt", "left.pt", "again.pt"))
            torch.save(files, right)
            said = json.loads(run("map", name, right, left, "--reverse", "--json", *options))
            lost = {one["key"] for step in said["steps"] if not step["to"] for one in step["from"]}
            files = {k: v for k, v in files.items() if k not in lost}
            check(files, f"{name}: {model_type} is all left out")
            run("map", name, left, again, *options)
            same(load(again), files, f"{name}: {model_type} backwards and forwards")
            run("map", name, again, again + ".pt", "--reverse", *options)
            trained = load(left)
            same(load(again + ".pt"), trained, f"{name}: {model_type} forwards and backwards")
            if 'op = "add"' in run("maps", "--show", name):
                continue   # states of what is added to are refused
            # With an optimizer, through folders.
            for state, way, back in ((files, ("--reverse",), ()), (trained, (), ("--reverse",))):
                torch.save(with_optimizer(state), right)
                run("map", name, right, left + "-dcp", "--to", "dcp", "-w", "3", *way, *options)
                run("map", name, left + "-dcp", again, *back, *options)
                same(in_order(load(again)), with_optimizer(state), f"{name}: {model_type} with an optimizer {way}")
    return work


def refusals(tmp):
    """Each map, both ways, on each model of the others."""
    maps, sources, taken = names(), [], []
    for name in maps:
        types = rekey_tool.model_types(name)
        _, folder = files_of(tmp, name, types[0])
        right, left = os.path.join(folder, "model.safetensors"), os.path.join(tmp, name + ".pt")
        run("map", name, right, left, "--reverse", "--config", os.path.join(folder, "config.json"))
        sources += [(set(types), right, ("--reverse",), folder, name), (set(types), left, (), folder, name)]
    for name in maps:
        types, by_type = set(rekey_tool.model_types(name)), 0
        for others, path, way, folder, source in sources:
            if types & others:
                continue
            out = os.path.join(tmp, "never.pt")
            alike = (name, source, *way) in ALIKE
            if alike or not by_type:   # refused before names are looked at
                said, by_type = run("map", name, path, out, *way, "--config", os.path.join(folder, "config.json"), expect=2), by_type + 1
                check("error[KEY]" in said and "model_type" in said, said)
            if not alike:
                try:
                    said = run("map", name, path, out, *way, expect=2)
                except Failure:
                    taken.append((name, source, *way))
                    os.remove(out)
                    continue
                check(any(f"error[{code}]" in said for code in ("KEY", "REKEY_UNUSED")) and name in said and "'" in said, f"{source}: {said}")
            check(not os.path.exists(out), f"{name} on {source}: refused, and wrote")
        check(by_type, f"{name} was not tried")
    check(not taken, f"taken by names: {taken}")


# A map, whose model, and the way: its names do not tell it from those of the map, only config.json does.
ALIKE = {
    ("automodel-hy-hf", "automodel-ernie4-5-hf"), ("automodel-hy-hf", "automodel-ling-v2-hf"),
    ("automodel-kimi-k2-5-hf", "automodel-kimi-vl-hf"), ("automodel-kimi-vl-hf", "automodel-kimi-k2-5-hf"),
    ("automodel-laguna-hf", "automodel-ernie4-5-hf"), ("automodel-laguna-hf", "automodel-hy-hf"), ("automodel-laguna-hf", "automodel-ling-v2-hf"),
    ("automodel-ling-v2-hf", "automodel-hy-hf"), ("automodel-mimo-v2-5-hf", "automodel-mimo-v2-flash-hf"),
    ("automodel-mimo-v2-5-hf", "automodel-mimo-v2-flash-hf", "--reverse"), ("automodel-mistral4-hf", "automodel-moe-hf"),
    ("automodel-moe-hf", "automodel-ernie4-5-hf"), ("automodel-moe-hf", "automodel-hy-hf"), ("automodel-moe-hf", "automodel-ling-v2-hf"),
    ("automodel-moe-hf", "automodel-minimax-m2-hf"), ("automodel-moe-hf", "automodel-mistral4-hf"),
    ("olmo-core-llama-hf", "olmo-core-olmo-hf"),
    ("torchtitan-llama4-hf", "torchtitan-llama4-multimodal-hf"), ("torchtitan-llama4-multimodal-hf", "torchtitan-llama4-hf"),
    ("torchtune-llama3-hf", "torchtune-phi3-hf"), ("torchtune-phi3-hf", "torchtune-llama3-hf"),
    # Files of layers without experts have Llama's names.
    *(("automodel-mimo-v2-5-hf", f"{source}-hf", "--reverse") for source in (
        "fast-llm-llama", "megatron-local-llama", "nanotron-interleaved", "nanotron-llama", "olmo-core-llama", "torchtitan-0.2-llama3", "torchtitan-llama3", "torchtune-llama3")),
}


# They change dtypes, whatever the model: check_map.py compares them with the code that does the same.
ANY_MODEL = {"fp8-to-bf16", "mxfp4-to-bf16"}
# What config.json has no model_type for: diffusers.  check_trainer_maps.py compares them.
UNTYPED = {"torchtitan-flux-diffusers"}
# check_megatron_bridge.py does the same with each of them and the models of Megatron-Bridge, of which transformers does not have all.
BRIDGED = {f"megatron-{name}-hf" for name in families.by_map()}


def names():
    every = {m["name"]: rekey_tool.model_types(m["name"]) for m in json.loads(run("maps", "--json"))["maps"]}
    by_name = {f"megatron-{family.map}-hf" for family in families.FAMILIES if family.by_name}
    check({name for name, types in every.items() if not types} == ANY_MODEL | UNTYPED | by_name, "maps without a model_type are others")
    return [name for name, types in every.items() if types and name not in BRIDGED and MARK not in run("maps", "--show", name)]


def checks():
    return {name: round_trips(name) for name in names()} | {"refusals": refusals}


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, checks))
