#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fast-LLM's folders, against what its own code makes of them (tests/data/make_fast_llm.py), bit for bit.

  python check_fast_llm.py DATA --tool PATH
"""
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
from safetensors.torch import load_file, save_file

import rekey_tool
import tried
from rekey_tool import check, load, run, same

DATA = sys.argv.pop(1)
MODELS = {"llama": "llama", "mistral": "llama", "qwen2": "llama", "mixtral": "mixtral"}   # and the map of each
VERSION = "0.4.0"   # that wrote the data
STATES = {"exp_avgs": "exp_avg", "exp_avgs_sq": "exp_avg_sq"}


def data(name):
    return os.path.join(DATA, name)


def stored(folder):
    """The model and the optimizer that the files hold."""
    model, states = {}, {}
    for file in sorted(os.listdir(folder)):
        for key, tensor in load_file(os.path.join(folder, file)).items() if file.endswith(".safetensors") else ():
            name, shard = key.split("/")
            if shard == "weights":
                model[name] = tensor
            else:
                states.setdefault(name, {"step": 2})[STATES[shard]] = tensor
    return {"model": model, "optimizer": {"state": states, "param_groups": [{"params": sorted(states)}]}}


def opened(path):
    state = load(path)
    state["optimizer"]["param_groups"][0]["params"].sort()
    return state


def read(tmp):
    for name in MODELS:
        said = json.loads(run("inspect", data(name), "--json"))
        check((said["format"], said["layout"], said["version"]) == ("trainer", "fast-llm", VERSION), said)
        check("sound" in run("verify", data(name)), name)
        check("Fast-LLM's checkpoint" in run("inspect", data(name)), name)
        out = os.path.join(tmp, name + ".pt")
        run("consolidate", data(name), out)
        same(opened(out), stored(data(name)), name)
        dcp = os.path.join(tmp, name)
        run("shard", data(name), dcp, "-w", "3")
        same(load(dcp), load(out), f"{name}: through a folder of three ranks")
        tried.record("fast-llm", "`fast_llm`", "verify, inspect, consolidate", "bit for bit what its own code reads", ranks=4 if name == "llama" else 1, version=VERSION)


def to_hugging_face(tmp):
    """And back, with the optimizer."""
    for name, rules in MODELS.items():
        rules, out, back = f"fast-llm-{rules}-hf", os.path.join(tmp, name + ".pt"), os.path.join(tmp, name + "-back.pt")
        run("map", rules, data(name), out)
        state = opened(out)
        same(state["model"], load_file(data(name + ".safetensors")), f"{name}: forwards")
        states = state["optimizer"]["state"]
        same({key: one["exp_avg"] for key, one in states.items()}, load_file(data(name + "-exp_avg.safetensors")), f"{name}: states")
        check(all(one["step"] == 2 for one in states.values()) and sorted(states) == state["optimizer"]["param_groups"][0]["params"], name)
        run("map", rules, out, back, "--reverse")
        same(opened(back), stored(data(name)), f"{name}: backwards")
        run("map", rules, data(name + ".safetensors"), back, "--reverse", "--force", "--config", data(name + ".json"))
        same(load(back), stored(data(name))["model"], f"{name}: backwards from the published file")


def export(tmp):
    """The map is found by names."""
    for name, rules in MODELS.items():
        out = os.path.join(tmp, name)
        said = run("export", data(name), out, "--config", data(name + ".json"))
        check(f"fast-llm-{rules}-hf" in said, said)
        same(load_file(os.path.join(out, "model.safetensors")), load_file(data(name + ".safetensors")), name)
        tried.record("fast-llm", f"`fast-llm-{rules}-hf`", "map, export", "bit for bit what its converters make, both ways, with the state of AdamW", version=VERSION)


def distributed(tmp):
    """Refused with the command that converts it."""
    for verb in ("inspect", "verify"):
        said = run(verb, data("distributed"), expect=2)
        command = f"fast-llm convert gpt input.format=distributed input.path={data('distributed')} output.format=fast_llm output.path=OUT use_cpu=True"
        check("error[UNSUPPORTED]" in said and command in said, said)
    tried.record("fast-llm", "`distributed`", "verify, inspect", "refused with its own command that converts it", version=VERSION)


def spoiled(tmp, work, name="llama"):
    copy = os.path.join(tmp, "copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data(name), copy)
    work(copy)
    return copy


def text_changed(old, new):
    def work(copy):
        path = os.path.join(copy, "metadata.yaml")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        check(old in text, old)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new, 1))
    return work


def tensors_changed(change):
    def work(copy):
        path = os.path.join(copy, "model_1_0.safetensors")
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
    return work


def put(key, value):
    return tensors_changed(lambda tensors: tensors.update({key: value}))


def damage(tmp):
    one = "decoder.0.mlp.layer_2.weight"
    line = f"    {one}/weights: model_1_0.safetensors\n"
    for code, words, work in (
            ("SHARD_MISSING", "names it for 42 tensors", lambda copy: os.remove(os.path.join(copy, "model_1_0.safetensors"))),
            ("SHAPE", f"'{one}/exp_avgs' is of shape [4, 6], expected [6, 4]", put(one + "/exp_avgs", torch.zeros(4, 6))),
            ("INDEX", "more", put("more/weights", torch.zeros(1))),
            ("INDEX", one + "/weights", tensors_changed(lambda tensors: tensors.pop(one + "/weights"))),
            ("INDEX", "expected model_0.safetensors", text_changed(line, f"    {one}/weights: ../model_1_0.safetensors\n")),
            ("INDEX", "is there twice", text_changed(line, line + line)),
            ("INDEX", "expected 'key: value'", text_changed(line, "    nothing\n")),
            ("INDEX", "blanks, expected 4", text_changed(line, "  " + line)),
            ("INDEX", "line ", text_changed(line, f"    {one}/weights: &a model_1_0.safetensors\n")),
            ("INDEX", "no file follows", text_changed(line, f"    ? {one}/weights\n")),
            ("INDEX", "is cut off", text_changed("model: gpt\nshards:\n- weights\n- exp_avgs\n- exp_avgs_sq\n", "model: g")),
            ("INDEX", "the file ends without 'shards'", text_changed("shards:\n- weights\n- exp_avgs\n- exp_avgs_sq\n", "")),
            ("INDEX", "has no 'state_index'", text_changed("  state_index:\n", "  other:\n")),
            ("INDEX", "current_step", text_changed("current_step: 2", "current_step: -2")),
            ("KEY", "exp_avgs_sq', expected <name>/<shard> with one of weights, exp_avgs", text_changed("- exp_avgs_sq\n", "")),
            ("UNSUPPORTED", "format is 'other'", text_changed("format: fast_llm", "format: other"))):
        said = run("inspect", spoiled(tmp, work), expect=2)
        check(f"error[{code}]" in said and words in said, f"{code}, {words}: {said}")
    long = spoiled(tmp, text_changed(line, f"    ? {one}/weights\n    : model_1_0.safetensors\n"))   # as PyYAML writes names above 128 bytes
    check("sound" in run("verify", long), "a name on a line of its own")
    said = run("inspect", spoiled(tmp, lambda copy: shutil.copy(os.path.join(copy, "model_1_0.safetensors"), os.path.join(copy, "model_2.safetensors"))))
    check("EXTRA_FILE" in said and "model_2.safetensors" in said, said)


def checks():
    return {work.__name__: work for work in (read, to_hugging_face, export, distributed, damage)}


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, checks))
