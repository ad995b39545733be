#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built-in maps against every table of conversions that transformers has.

  python check_tables.py --tool PATH [NAME...]

The tables are those of the installed transformers: one that has neither a map nor a reason in conversion_tables.py fails the test.  For
one with a map, save_pretrained writes a small random model, and `map` must make the same file of what is trained, and the reverse;
from_pretrained loads it without a tensor too many or too few.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
from safetensors.torch import load_file
from transformers import conversion_mapping
from transformers.core_model_loading import WeightConverter

import rekey_tool
import tiny_models
from check_maps import both_ways
from conversion_tables import COVERED, REASONS
from rekey_tool import check, load, run, same


def tables():
    """Names of those that change tensors: of a model_type, or of a class."""
    every = conversion_mapping._build_checkpoint_conversion_mapping()
    return {name for name, table in every.items() if any(isinstance(entry, WeightConverter) for entry in table)}


def complete(tmp):
    """Each table has a map or a reason, and nothing has both or is left of an older transformers."""
    known = COVERED.keys() | REASONS.keys()
    check(len(known) == len(COVERED) + len(REASONS), sorted(COVERED.keys() & REASONS.keys()))
    check(tables() <= known, f"neither a map nor a reason: {sorted(tables() - known)}")
    check(known <= tables(), f"not in transformers: {sorted(known - tables())}")
    for name in sorted(REASONS):
        print(f"  no map for {name}: {REASONS[name]}")
    # What a map says of its models is what was checked.
    for name in sorted({name for name, _ in COVERED.values()}):
        types = rekey_tool.model_types(name)
        check(set(types) == {t for t, (m, _) in COVERED.items() if m == name}, f"{name}: {types}")


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
