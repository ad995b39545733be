#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models with experts, which transformers converts while it saves them: by map, by export and import, and by from_pretrained.

  python check_tables.py --tool PATH [NAME...]

save_pretrained writes a small random model, and `map` must make the same file of what is trained, and the reverse; export chooses the map, and
from_pretrained loads its folder without a tensor too many or too few.  check_made_maps.py has every class and every table of conversions.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
from safetensors.torch import load_file

import rekey_tool
import tiny_models
from check_maps import both_ways
from conversion_tables import COVERED
from rekey_tool import check, load, run, same


def named(tmp):
    """The maps name the model types."""
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
    out, seen = {"named": named}, set()
    for model_type, (name, _) in COVERED.items():
        out[model_type] = converted(model_type, name not in seen)
        seen.add(name)
    return out


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, checks))
