#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The maps that tests/interop/architectures/write_maps.py made, against transformers, bit for bit.

  python check_made_maps.py --tool PATH [--part I/N] [TYPE...]

For each model type that they name, a small random model of each class whose tensors save_pretrained changes: it writes files; torch.save writes the state
dict, with AdamW's states after a step. One of the maps of the model type must make the tensors of the files of the state dict, and with --reverse the state
dict of the files' tensors, the states of the optimizer moved as transformers moves tensors of these values. A map that did so for none of a model type's
classes is printed; each must refuse a model of Llama, which has nothing to convert. Counted are model types that this transformers lacks, and classes of which no small model can be made. TYPE: only these model types.
"""
import argparse
import collections
import glob
import json
import os
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)
sys.path.append(os.path.join(HERE, "architectures"))

import torch
import transformers
from safetensors.torch import load_file
from transformers.core_model_loading import revert_weight_conversion

import conversions
import layouts
import rekey_tool
import tiny_models
from conversion_tables import COVERED
from rekey_tool import Failure, check, load, run, same
from write_maps import MARK

MOST_ELEMENTS = 30_000_000   # of a model
ALIKE, CONVERTED = "nothing to convert", "bit for bit"
# Model types whose conversions changed between the transformers that the maps were made of and the older one that the tests have.
CHANGED_SINCE = {"5.23.0": set()}


def made_maps():
    """Returns {model type: names of maps}, and the version of transformers that they were made of."""
    found, versions = collections.defaultdict(list), set()
    for one in json.loads(run("maps", "--json"))["maps"]:
        if MARK in json.loads(run("maps", "--show", one["name"], "--json"))["rules"]:
            versions |= set(one["versions"])
            for model_type in one["model_types"]:
                found[model_type].append(one["name"])
    check(len(versions) == 1, versions)
    return found, versions.pop()


def small_config(model_type, name):
    """A configuration with small sizes, of which the class can be made, else the default one with few layers; none if both have too many elements."""
    own = COVERED.get(model_type, (None, {}))[1]
    for make in (lambda: tiny_models.shrink(layouts.config_of(model_type, {}, name), own),
                 lambda: layouts.config_of(model_type, layouts.small(model_type, name)[0], name)):
        try:
            config = make()
            with torch.device("meta"):
                state = getattr(transformers, name)(config).state_dict()
        except Exception:   # sizes that do not go together
            continue
        if sum(value.numel() for value in state.values()) <= MOST_ELEMENTS:
            return config
    return None


def random_model(name, config):
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape))
    return model


def stepped(model, state):
    """AdamW's state by the names of the parameters in the state dict, after a step."""
    parameters = {name: p for name, p in model.named_parameters() if name in state and p.is_floating_point()}
    for parameter in parameters.values():
        parameter.requires_grad_(True)
        parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3)
    optimizer.step()
    return {name: optimizer.state[p] for name, p in parameters.items()}


def content(state, step, moments):
    """A checkpoint of a state dict, and of an optimizer whose states are those tensors of `moments` that belong to parameters."""
    names = sorted(moments["exp_avg"])
    return {"model": state, "optim": {"state": {name: {"step": step, **{kind: values[name] for kind, values in moments.items()}} for name in names},
                                      "param_groups": [{"lr": 1e-3, "params": names}]}}


def own_memory(state):
    return {key: value.detach().contiguous().clone() for key, value in state.items()}


def both_sides(model, folder):
    """Returns the checkpoint as it is trained, that of its files, and the tensors that save_pretrained wrote."""
    states = stepped(model, model.state_dict())
    model.save_pretrained(folder)
    written = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        written |= load_file(path)
    state = own_memory(model.state_dict())
    turn = lambda values: own_memory(revert_weight_conversion(model, {**state, **values}))
    files = turn({})
    check(written and written.keys() <= files.keys(), "save_pretrained writes what revert_weight_conversion does not give")
    moments = {kind: own_memory({name: one[kind] for name, one in states.items()}) for kind in ("exp_avg", "exp_avg_sq")}
    theirs = {name for sources, _, targets, _ in conversions.Reverted(model).moves(state) if set(sources) <= set(states) for name in targets}
    turned = {kind: {name: value for name, value in turn(values).items() if name in theirs} for kind, values in moments.items()}
    step = torch.tensor(1.0)
    return content(state, step, moments), content(files, step, turned), written


def converted(tmp, names, model_type, cls):
    """Tries the maps one after the other. Returns what became of the class and the map that serves it. Throws: Failure if none does."""
    config = small_config(model_type, cls)
    if config is None:
        return "no small model", None
    torch.manual_seed(len(cls))
    folder = os.path.join(tmp, "saved")
    try:
        trained, files, written = both_sides(random_model(cls, config), folder)
    except Failure:
        raise
    except Exception as error:   # of its own code
        return f"cannot be saved ({type(error).__name__})", None
    if trained["model"].keys() == files["model"].keys() and all(torch.equal(value, files["model"][key]) for key, value in trained["model"].items()):
        return ALIKE, None
    left, right, out = (os.path.join(tmp, name) for name in ("trained.pt", "files.pt", "out.pt"))
    torch.save(trained, left)
    torch.save(files, right)
    options = ("--config", os.path.join(folder, "config.json"), "--force", "--no-sync")
    why = []
    for name in names:
        try:
            run("map", name, left, out, *options)
            got = load(out)
            got["optim"]["param_groups"][0]["params"].sort()
            same({key: got["model"].get(key) for key in written}, written, "forwards")
            same(got, files, "forwards, with the optimizer")
            run("map", name, right, out, "--reverse", *options)
            got = load(out)
            got["optim"]["param_groups"][0]["params"].sort()
            same(got, trained, "backwards")
            return CONVERTED, name
        except Failure as error:
            why.append(f"{name}: {error}")
    raise Failure("; ".join(text[:600] for text in why))


def refused(tmp, names):
    """Prints the maps that take a model of Llama, in which they have nothing to change. Returns how many there are."""
    config = tiny_models.shrink(layouts.config_of("llama", {}, "LlamaForCausalLM"), {})
    path, wrong = os.path.join(tmp, "llama.pt"), 0
    torch.save(own_memory(random_model("LlamaForCausalLM", config).state_dict()), path)
    for name in names:
        for way in (), ("--reverse",):
            try:
                said = run("map", name, path, os.path.join(tmp, "never.pt"), *way, expect=2)
                check("error[KEY]" in said or "error[REKEY_UNUSED]" in said, said)
            except Failure as error:
                wrong += 1
                print(f"WRONG {name} {way} on Llama: {error}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--part", default="1/1")
    args = parser.parse_args()
    rekey_tool.TOOL, began = args.tool, time.monotonic()
    maps, version = made_maps()
    part, parts = map(int, args.part.split("/"))
    became, served, wrong = collections.Counter(), set(), 0
    types = sorted(args.types or maps)[part - 1::parts]
    changed = CHANGED_SINCE.get(transformers.__version__, set())
    for model_type in types:
        classes = layouts.every_class().get(model_type, {})
        if not classes or model_type in changed:
            became["model types that this transformers lacks or converts otherwise"] += 1
            served |= {(name, model_type) for name in maps[model_type]}
        for cls in sorted(classes) if model_type not in changed else ():
            with tempfile.TemporaryDirectory() as tmp:
                try:
                    what, name = converted(tmp, maps[model_type], model_type, cls)
                except Failure as error:
                    what, name, wrong = "WRONG", None, wrong + 1
                    print(f"WRONG {model_type} {cls}: {error}", flush=True)
            became[what] += 1
            if what not in (CONVERTED, ALIKE, "WRONG"):
                print(f"{model_type} {cls}: {what}", flush=True)
            served.add((name, model_type))
    with tempfile.TemporaryDirectory() as tmp:
        wrong += refused(tmp, sorted({name for model_type in types for name in maps[model_type]}))
    idle = sorted((name, model_type) for model_type in types for name in maps[model_type] if (name, model_type) not in served)
    for name, model_type in idle:
        print(f"{name}: served no class of {model_type}")
    print(f"{len(types)} model types; classes: " + ", ".join(f"{count} {what}" for what, count in sorted(became.items())) +
          f"; maps of {version}, transformers {transformers.__version__} here; {time.monotonic() - began:.0f} s")
    return 1 if wrong or not became[CONVERTED] else 0


if __name__ == "__main__":
    sys.exit(main())
