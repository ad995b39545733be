#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built-in maps of Megatron-Core's models against Megatron-Bridge, bit for bit.

  python check_megatron_bridge.py --tool PATH [MAP...]

Megatron-Core saves a small random model of each family that Megatron-Bridge has (megatron_bridge/families.py); `map` must make of the folder
what Megatron-Bridge makes of the model.  Backwards, Megatron-Core must load of the folder that `map` writes what Megatron-Bridge makes of the
Hugging Face files.  States of AdamW go along.  `export` must find the map by config.json.  Prints a row for each family.
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
import transformers
from safetensors.torch import load_file, save_file

import rekey_tool
import tried
from megatron_bridge import engine, families, samples
from rekey_tool import check, load, run, same


def parameters(model):
    """The tensors of a model that folders hold."""
    return {k: v.detach() for k, v in model.state_dict().items() if isinstance(v, torch.Tensor) and not k.endswith("_extra_state")}


def with_optimizer(tmp, name, modules, hf, *options):
    """States are those of the parameters: by what the rules do with tensors, compared above."""
    def saved(state):
        kept = {n: t for n, t in state.items() if t.is_floating_point()}
        return {"model": state, "optim": {"state": {n: {"step": torch.tensor(7.0), "exp_avg": t * 2, "exp_avg_sq": t * 4} for n, t in kept.items()},
                                          "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": sorted(kept)}]}}
    def in_order(state):
        state["optim"]["param_groups"][0]["params"].sort()
        return state
    there, out, back = (os.path.join(tmp, n) for n in ("trained.pt", "trained-hf.pt", "trained-back.pt"))
    torch.save(saved(modules), there)
    # Norms around 0 instead of 1; one gate for each column of a head.
    done = json.loads(run("maps", "--show", name, "--json"))["rules"]
    changes = next((op for op in ("add", "every") if f'op = "{op}"' in done), None)
    if changes:
        said = run("map", name, there, out, "--force", *options, expect=2)
        check(f"goes through {changes}, which cannot be applied to its optimizer state" in said, said)
        return
    run("map", name, there, out, "--force", *options)
    same(in_order(load(out)), saved(hf), f"{name} with an optimizer")
    run("map", name, out, back, "--reverse", "--force", *options)
    same(in_order(load(back)), saved(modules), f"{name} with an optimizer, and back")


def one(tmp, family, variant):
    """Returns the numbers of tensors on both sides."""
    name, sample = f"megatron-{family.map}-hf", samples.Sample(family, variant)
    folder, files, config = (os.path.join(tmp, n) for n in ("folder", "files.safetensors", "config.json"))
    sample.write_config(config)
    options = ("--config", config)
    sample.save(folder)
    run("verify", folder)
    # To Hugging Face.
    want, out = {k: v for k, v in sample.exported().items() if k not in family.left_out}, os.path.join(tmp, "out.safetensors")
    run("map", name, folder, out, "--drop-values", *options)
    same(load_file(out), want, f"{name}: {family.architecture} to Hugging Face")
    # And back: a folder that Megatron-Core loads.
    save_file({k: v.contiguous() for k, v in sample.files.items()}, files)
    run("map", name, files, os.path.join(tmp, "back"), "--reverse", "--to", "torch_dist", *options)
    same(parameters(sample.loaded(os.path.join(tmp, "back"))), parameters(sample.model), f"{name}: {family.architecture} from Hugging Face")
    # The names of modules, as every map has them.
    run("map", name, files, os.path.join(tmp, "back.pt"), "--reverse", *options)
    modules = load(os.path.join(tmp, "back.pt"))
    with_optimizer(tmp, name, modules, {k: v for k, v in sample.files.items() if k not in family.left_out}, *options)
    # Found by config.json.  Of layers after the last transformers' models pass over those alone whose numbers published files have, and without its
    # model export takes them for the only whole ones.  Nor does it know of layers without a part.
    after = f"model.layers.{getattr(sample.config, 'num_hidden_layers', None)}."
    refused = any(n.startswith(after) for n in want) or "block_configs" in family.options or bool(family.refused)
    why = family.refused or (f"has no '{after}" if hasattr(transformers, family.architecture) else "the model is incomplete, it lacks")
    by_name = ("--map", name) if family.refused or family.by_name else ()
    exported = run("export", folder, os.path.join(tmp, "hf"), *options, *by_name, expect=2 if refused else 0)
    check((why if refused else f"{name}: " if family.by_name else f"map: {name}") in exported, exported)
    return len(modules), len(want)


def every_family(_):
    """Each family that Megatron-Bridge has is tried, or left out for a reason."""
    from megatron.bridge.models.conversion import model_bridge
    found = {key if isinstance(key, str) else key.__name__ for key in model_bridge.get_model_bridge._exact_types}
    found = {families.OTHER_NAMES.get(name, name) for name in found}
    covered, left = {family.architecture for family in families.FAMILIES}, families.LEFT_OUT
    for name in sorted(found):
        print(f"{name:45} {'covered' if name in covered else left.get(name, 'UNKNOWN')}")
    print(f"{len(covered & found)} of {len(found)} families are covered")
    check(found == covered | set(left) and not covered & set(left), f"unknown {sorted(found - covered - set(left))}, gone {sorted((covered | set(left)) - found)}")


def checks():
    engine.start()
    rows = {"every_family": every_family}
    def work(name, members):
        def run_all(tmp):
            for family in members:
                for variant in family.variants:
                    inner = tempfile.mkdtemp(dir=tmp)
                    left, right = one(inner, family, variant)
                    print(f"{family.architecture:45} {name:35} {left} tensors, {right} in Hugging Face", flush=True)
            tried.record("megatron-bridge", f"`{name}`", "map, export, verify", "of a folder by Megatron-Core what Megatron-Bridge makes of the model, "
                         "and back a folder that Megatron-Core loads, with the state of AdamW")
        return run_all
    for name, members in families.by_map().items():
        rows[name] = work(f"megatron-{name}-hf", members)
    return rows


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, checks))
