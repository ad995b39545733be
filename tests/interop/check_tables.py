#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built-in maps against every table of conversions that transformers has.

  python check_tables.py --tool PATH [NAME...]

The tables are those of the installed transformers: one that changes tensors and has neither a map nor a reason in conversion_tables.py fails the test.  For
models with experts save_pretrained writes a small random one, and `map` must make the same file of what is trained, and the reverse; export chooses the map,
and from_pretrained loads its folder without a tensor too many or too few.  check_made_maps.py has every model and class.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)
sys.path.append(os.path.join(HERE, "architectures"))

import torch
from safetensors.torch import load_file
from transformers.core_model_loading import WeightConverter

import conversions
import rekey_tool
import tiny_models
from check_maps import both_ways
from conversion_tables import COVERED, REASONS
from rekey_tool import check, load, run, same
from write_maps import MARK

# The maps of these were not made of the table, which says less.
BY_HAND = {"kimi_linear", "qwen3_vl_moe"}


def changing():
    """The tables that change tensors, each by one of its names."""
    return {conversions.root_of(name) for name, table in conversions.tables().items() if any(isinstance(entry, WeightConverter) for entry in table)}


def with_maps():
    """The tables that the maps say they were made of."""
    found = set()
    for one in json.loads(run("maps", "transformers", "--json"))["maps"]:
        for line in json.loads(run("maps", "--show", one["name"], "--json"))["rules"].splitlines():
            if line.startswith(MARK):
                found.update(line.partition(" tables ")[2].rstrip(".").split(", "))
    return found


def complete(tmp):
    """Each table has a map or a reason."""
    known = with_maps() | REASONS.keys() | BY_HAND
    check(changing() <= known, f"neither a map nor a reason: {sorted(changing() - known)}")
    for name in sorted(REASONS):
        print(f"  no map for {name}: {REASONS[name]}")
    for model_type, (name, _) in COVERED.items():
        check(model_type in rekey_tool.model_types(name), f"{name} does not name {model_type}")


def trained_and_saved(folder, model):
    """The state dict, and the tensors of the files that save_pretrained writes."""
    model.save_pretrained(folder)
    files = [f for f in os.listdir(folder) if f.endswith(".safetensors")]
    check(files == ["model.safetensors"], files)
    saved = load_file(os.path.join(folder, files[0]))
    if model.config.model_type == "qwen3_vl_moe":   # experts as [inputs, outputs], which from_pretrained takes below
        saved = {k: v.transpose(1, 2).contiguous() if ".mlp.experts." in k else v for k, v in saved.items()}
    return {k: v.contiguous() for k, v in model.state_dict().items()}, saved


def converted(model_type, thorough):
    name, own = COVERED[model_type]

    def work(tmp):
        model = tiny_models.tiny(model_type, own)
        folder = os.path.join(tmp, "saved")
        trained, saved = trained_and_saved(folder, model)
        check(any(k not in saved or not torch.equal(v, saved[k]) for k, v in trained.items()), "nothing to convert")
        if thorough:
            both_ways(tmp, name, trained, saved, "--config", os.path.join(folder, "config.json"))
        # export chooses the map by names and config.json; import takes its folder, as from_pretrained does.
        path, out = os.path.join(tmp, "trained.pt"), os.path.join(tmp, "exported")
        torch.save({"model": trained}, path)
        said = run("export", path, out, "--config", folder)
        check(f"map: {name}, the only one that takes these names" in said, said)
        same(load_file(os.path.join(out, "model.safetensors")), saved, model_type)
        again, info = type(model).from_pretrained(out, output_loading_info=True, dtype=torch.float32)
        check(not any(info.values()), info)
        same(dict(again.state_dict()), dict(model.state_dict()), f"{model_type} by from_pretrained")
        run("import", out, os.path.join(tmp, "back.pt"), "--map", name)
        same(load(os.path.join(tmp, "back.pt")), trained, f"{model_type} backwards")
    return work


def checks():
    out, seen = {"complete": complete}, set()
    for model_type, (name, _) in COVERED.items():
        out[model_type] = converted(model_type, name not in seen)
        seen.add(name)
    return out


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, checks))
