#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The maps that tests/interop/architectures/write_maps.py made, against the transformers that they were made of, bit for bit.

  python check_made_maps.py --tool PATH [--jobs N] [TYPE...]

For each class whose tensors transformers converts: a small random model; save_pretrained writes its files, torch.save its state dict with AdamW's states
after a step. One of the maps of the model type must make the tensors of the files of the state dict, and with --reverse the state dict of the files' tensors,
the states of the optimizer moved as transformers moves tensors of these values. For a class without a map conversion_tables.py has the reason. Then models
whose files have the names of their modules: without a configuration export must choose no map for them, and for the others none that is not theirs.

Prints what became of each table of conversions, and the share of them that maps cover. TYPE: only classes of these model types, and no tables.
"""
import argparse
import collections
import contextlib
import functools
import glob
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)
sys.path.append(os.path.join(HERE, "architectures"))

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import revert_weight_conversion
from transformers.initialization import no_init_weights

import conversions
import layouts
import rekey_tool
import small_models
import tiny_models
from conversion_tables import COVERED, REASONS, REFUSED
from rekey_tool import Failure, check, load, run, same
from write_maps import MARK

MOST_ELEMENTS = 40_000_000   # of a model
LEAST_COVERED = 0.9          # of the tables that a class looks up
ALIKE, CONVERTED, WITHOUT, WRONG, UNTRIED = "nothing to convert", "bit for bit", "no map", "WRONG", "not tried"


@functools.cache
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


def candidates(types):
    """Yields (model type, class): all of model types with maps, and those that a table names."""
    for model_type, classes in sorted(layouts.every_class().items()):
        for cls in sorted(classes):
            if types and model_type not in types:
                continue
            if model_type in made_maps()[0] or model_type in conversions.tables() or cls in conversions.tables():
                yield model_type, cls


def on_meta(name, config):
    with torch.device("meta"), no_init_weights(), contextlib.redirect_stdout(None):
        return getattr(transformers, name)(config)


def small_config(model_type, name):
    """Returns a configuration with small sizes, of which the class can be made and saved. Throws: the reason."""
    own, sizes, why = COVERED.get(model_type, (None, {}))[1], small_models.sizes(model_type, name), ""
    for make in (lambda: layouts.config_of(model_type, sizes, name) if sizes else None,
                 lambda: tiny_models.shrink(layouts.config_of(model_type, {}, name), own),
                 lambda: layouts.config_of(model_type, layouts.small(model_type, name)[0], name)):
        try:
            config = make()
            if config is None:
                continue
            count = sum(value.numel() for value in on_meta(name, config).state_dict().values())
            with tempfile.TemporaryDirectory() as folder:
                config.save_pretrained(folder)
        except Exception as error:   # sizes that do not go together
            why = f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:200]
            continue
        if count <= MOST_ELEMENTS:
            return config
        why = f"has {count:,} elements"
    raise Failure(why)


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


def mapped(name, source, way, out, options):
    run("map", name, source, out, *way, *options)
    got = load(out)
    got["optim"]["param_groups"][0]["params"].sort()
    return got


def converted(tmp, names, model, folder):
    """Tries the maps one after the other. Returns what became of the class, and the map that serves it. Throws: Failure if none does."""
    trained, files, written = both_sides(model, folder)
    if trained["model"].keys() == files["model"].keys() and all(torch.equal(value, files["model"][key]) for key, value in trained["model"].items()):
        return ALIKE, None
    left, right, out = (os.path.join(tmp, name) for name in ("trained.pt", "files.pt", "out.pt"))
    torch.save(trained, left)
    torch.save(files, right)
    options = ("--config", os.path.join(folder, "config.json"), "--force", "--no-sync")
    if type(model).__name__ in REFUSED:
        taken = [name for name in names if subprocess.run([rekey_tool.TOOL, "map", name, left, out, *options], capture_output=True).returncode != 2]
        check(not taken, f"{taken} take a class that they are to refuse")
        return WITHOUT, None
    why = []
    for name in names:
        try:
            got = mapped(name, left, (), out, options)
            same({key: got["model"].get(key) for key in written}, written, "forwards")
            same(got, files, "forwards, with the optimizer")
            same(mapped(name, right, ("--reverse",), out, options), trained, "backwards")
            return CONVERTED, name
        except Failure as error:
            why.append(f"{name}: {error}"[:600])
    if not names:
        return WITHOUT, None
    raise Failure("; ".join(why))


def tried(one):
    """What became of a class: {"what", "why", "map", "tables": those whose conversions its model has}."""
    tool, model_type, cls = one
    rekey_tool.TOOL = tool
    torch.manual_seed(len(cls))
    about = {"type": model_type, "class": cls, "tables": [], "map": None, "why": ""}
    try:
        config = small_config(model_type, cls)
    except Failure as error:
        return about | {"what": UNTRIED, "why": str(error)}
    with tempfile.TemporaryDirectory() as tmp:
        try:
            model = random_model(cls, config)
            about["tables"] = conversions.Reverted(model).tables
            about["what"], about["map"] = converted(tmp, made_maps()[0].get(model.config.model_type, []), model, os.path.join(tmp, "saved"))
        except Failure as error:
            about |= {"what": WRONG, "why": str(error)}
        except Exception as error:   # of its own code
            about |= {"what": UNTRIED, "why": f"cannot be saved: {type(error).__name__}: {error}".splitlines()[0][:200]}
    if about["what"] == WITHOUT:
        about["why"] = REFUSED.get(cls) or REASONS.get(model_type, "")
        if not about["why"]:
            about |= {"what": WRONG, "why": "has neither a map nor a reason in conversion_tables.py"}
    return about


def guessed(one):
    """What is wrong with the map that export chooses for the names of a model without a configuration: "" if nothing is, None if there is no model."""
    tool, model_type = one
    rekey_tool.TOOL = tool
    try:
        cls = tiny_models.class_of(model_type)
        state = on_meta(cls.__name__, layouts.config_of(model_type, layouts.small(model_type, cls.__name__)[0], cls.__name__)).state_dict()
    except Exception:   # what a default configuration lacks; check_architectures.py counts them
        return None
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "model.safetensors")
        save_file({name: torch.zeros((1,) * value.dim()) for name, value in state.items()}, path)
        done = subprocess.run([tool, "export", path, os.path.join(tmp, "out"), "--config", "none", "--dry-run"], capture_output=True, text=True)
    if "several maps take these names" in done.stderr:
        return ""
    # What was chosen stands in the report, or in front of what it finds wrong with the shapes here.
    said = next((line for line in done.stdout.splitlines() if line.startswith("map: ")), done.stderr)
    chosen = [name for name in re.findall(r"transformers-[a-z0-9-]+-files", said) if "map: none" not in said]
    # Some model types have a map that is written by hand.
    return "" if all(model_type in rekey_tool.model_types(name) for name in chosen) else f"{model_type} {cls.__name__}: {said}"


def rows(became, version):
    """Yields (table, word, text) for each table of conversions."""
    with_table = collections.defaultdict(list)
    for one in became:
        for table in one["tables"]:
            with_table[table].append(one)
    untried = collections.defaultdict(list)
    for one in became:
        if one["what"] == UNTRIED:
            for name in (one["type"], one["class"]):
                untried[name].append(f"{one['class']}: {one['why']}")
    for table in sorted(conversions.tables()):
        if table == "legacy":
            continue
        found = with_table[table]
        kinds = collections.Counter(one["what"] for one in found)
        maps = ", ".join(sorted({one["map"] for one in found if one["map"]}))
        reasons = "; ".join(sorted({f"{one['class']}: {one['why']}" for one in found if one["what"] in (WITHOUT, WRONG)}))
        if kinds[WRONG]:
            yield table, WRONG, reasons
        elif kinds[CONVERTED]:
            yield table, "covered in part" if kinds[WITHOUT] else "covered", f"{maps} ({kinds[CONVERTED]} classes)" + (f"; not {reasons}" if reasons else "")
        elif kinds[WITHOUT]:
            yield table, "no map", reasons
        elif kinds[ALIKE]:
            yield table, "no map is needed", "files have the names of modules"
        elif untried[table]:
            yield table, UNTRIED, "; ".join(untried[table])
        else:
            yield table, "not looked up", f"{version} has no class that does"


def print_tables(became, version):
    """Prints what became of each table. Returns the share of those that a class looks up and that need maps, or need none, and have them."""
    count = collections.Counter()
    for table, word, text in rows(became, version):
        count[word] += 1
        print(f"{version} {table}: {word}: {text}")
    looked_up = sum(count.values()) - count["not looked up"]
    share = (count["covered"] + count["no map is needed"]) / looked_up
    print(f"{sum(count.values())} tables: " + ", ".join(f"{number} {word}" for word, number in sorted(count.items())) +
          f"; of {looked_up} that a class looks up {share:.1%} are covered or need no map")
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    rekey_tool.TOOL, began = args.tool, time.monotonic()
    version = made_maps()[1]
    check(version == f"transformers {transformers.__version__}",
          f"the maps were made of {version}, and here is {transformers.__version__}: make them anew, as docs/contributing.md says")
    transformers.utils.logging.disable_progress_bar()
    became, guesses = [], []
    with multiprocessing.Pool(args.jobs) as pool:
        for one in pool.imap(tried, [(args.tool, *each) for each in candidates(args.types)], chunksize=4):
            became.append(one)
            if one["what"] in (WRONG, UNTRIED):
                print(f"{one['type']} {one['class']}: {one['what']}: {one['why']}", flush=True)
        for said in pool.imap(guessed, [(args.tool, each) for each in sorted(layouts.every_class()) if not args.types or each in args.types], chunksize=4):
            guesses.append(said)
            if said:
                print(f"{WRONG} {said}", flush=True)
    count = collections.Counter(one["what"] for one in became)
    served = {(one["map"], one["type"]) for one in became}
    idle = [f"{name} ({model_type})" for model_type, names in sorted(made_maps()[0].items()) if not args.types or model_type in args.types
            for name in names if (name, model_type) not in served]
    if idle:
        print(f"served no class of a model type: {', '.join(idle)}")
    print("classes: " + ", ".join(f"{number} {what}" for what, number in sorted(count.items())) +
          f"; model types whose names were exported without a configuration: {sum(said is not None for said in guesses)}")
    share = print_tables(became, version) if not args.types else 1
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if count[WRONG] or not count[CONVERTED] or any(guesses) or share < LEAST_COVERED else 0


if __name__ == "__main__":
    sys.exit(main())
