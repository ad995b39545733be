#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nanotron's folders, against what its own code makes of them (tests/data/make_nanotron.py), bit for bit.

  python check_nanotron.py DATA --tool PATH
"""
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import rekey_tool
from rekey_tool import check, load, run, same

DATA = sys.argv.pop(1)
LLAMA, QWEN = (os.path.join(DATA, name) for name in ("llama", "qwen2"))
LAYER = "model/model/decoder/0/pp_block/"
O_PROJ = LAYER + "attn/o_proj/model_weight_pp-rank-0-of-2_tp-rank-{}-of-2.safetensors"


def config(folder):
    return "--config", os.path.join(folder, "model_config.json")


def to_hugging_face(tmp):
    """Two stages of the pipeline and two ranks of tensor parallelism; rotary embeddings interleaved; tied embeddings."""
    out, whole = os.path.join(tmp, "out.pt"), os.path.join(tmp, "whole.pt")
    for name, folder, published in (("nanotron-llama-hf", LLAMA, "llama"), ("nanotron-interleaved-hf", LLAMA, "interleaved"),
                                    ("nanotron-llama-hf", QWEN, "qwen2")):
        want = load_file(os.path.join(DATA, published + ".safetensors"))
        run("map", name, folder, out, "--force", "--drop-optimizer", "--exclude", "lr_scheduler.**", *config(folder))
        same(load(out), {"model": want}, f"{published}: forwards")
        run("map", name, os.path.join(DATA, published + ".safetensors"), whole, "--reverse", "--force", *config(folder))
        run("consolidate", folder, whole + ".pt", "--force", "--keys", "model.**")
        same(load(whole), load(whole + ".pt")["model"], f"{published}: backwards")


def export(tmp):
    for name, folder in (("llama", LLAMA), ("qwen2", QWEN)):
        out, options = os.path.join(tmp, name), ("--config", os.path.join(DATA, name + ".json"))
        said = run("export", folder, out, *options, expect=2)   # names do not tell rope_interleaved
        check("nanotron-interleaved-hf" in said and "nanotron-llama-hf" in said and "--map" in said, said)
        run("export", folder, out, *options, "--map", "nanotron-llama-hf")
        same(load_file(os.path.join(out, "model.safetensors")), load_file(os.path.join(DATA, name + ".safetensors")), name)


def interleaved(tmp):
    """Only the configuration tells."""
    def change(copy):
        path = os.path.join(copy, "model_config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config | {"rope_interleaved": True}, file)
    copy = spoiled(tmp, change)
    check("only nanotron-interleaved-hf fits" in run("inspect", copy), "inspect does not say which map fits")
    check("interleaved" not in run("inspect", LLAMA), "nothing is interleaved")


def biases(tmp):
    """Divided as the weights are."""
    own, out = os.path.join(tmp, "own.pt"), os.path.join(tmp, "hf.pt")
    run("map", "nanotron-llama-hf", os.path.join(DATA, "qwen2.safetensors"), own, "--reverse", *config(QWEN))
    state = load(own)
    state |= {f"model.decoder.{i}.pp_block.attn.qkv_proj.bias": torch.arange(16.0) + i for i in range(2)}
    torch.save(state, own)
    run("map", "nanotron-llama-hf", own, out, *config(QWEN))
    for i in range(2):
        got = [load(out)[f"model.layers.{i}.self_attn.{part}_proj.bias"].tolist() for part in "qkv"]
        check(got == [[x + i for x in range(*ends)] for ends in ((0, 8), (8, 12), (12, 16))], got)


def read(tmp):
    for folder in (LLAMA, QWEN):
        check("sound" in run("verify", folder), folder)
        said = json.loads(run("inspect", folder, "--json"))
        check((said["format"], said["layout"], said["version"]) == ("trainer", "nanotron", "1.5"), said)
    check(json.loads(run("inspect", LLAMA, "--json"))["ranks"] == 4, "of four ranks")
    out = os.path.join(tmp, "all.pt")
    run("consolidate", QWEN, out)
    for name in ("optimizer", "lr_scheduler"):
        path = os.path.join(QWEN, name, name + "_pp-0-of-1_tp-0-of-1_exp-0-of-1.pt")
        same(load(out)[name], torch.load(path, weights_only=True), name)
    dcp = os.path.join(tmp, "dcp")
    run("shard", LLAMA, dcp, "-w", "3")
    run("consolidate", LLAMA, out, "--force")
    same(load(dcp), load(out), "through a folder of three ranks")


def spoiled(tmp, work, folder=LLAMA):
    copy = os.path.join(tmp, "copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    work(copy)
    return copy


def again(path, change_metadata=lambda m: m, change_data=lambda t: t, name="data"):
    with safe_open(path, "pt") as file:
        metadata, tensor = file.metadata(), file.get_tensor("data")
    save_file({name: change_data(tensor)}, path, change_metadata(metadata))


def damage(tmp):
    first, second = O_PROJ.format(0), O_PROJ.format(1)

    def on(path, **changes):
        return spoiled(tmp, lambda copy: again(os.path.join(copy, path), **changes))

    def pairs(text):
        return lambda metadata: metadata | {"local_global_slices_pairs": text}
    lost = spoiled(tmp, lambda copy: os.remove(os.path.join(copy, second)))
    said = run("verify", lost, expect=1)
    check("SHARD_MISSING" in said and "HOLE" in said and "ranks are missing: 1" in said.replace("the files of other ", ""), said)
    check("SHARD_MISSING" in run("consolidate", lost, os.path.join(tmp, "never.pt"), expect=2), "a hole is written")
    for code, words, copy in (
            ("INDEX", "two saves", spoiled(tmp, lambda c: os.rename(os.path.join(c, second), os.path.join(c, second.replace("of-2.", "of-4."))))),
            ("DTYPE", "expected bfloat16", lambda: on(second, change_data=lambda t: t.float())),
            ("SHAPE", "[8, 10]", lambda: on(second, change_metadata=lambda m: m | {"unsharded_shape": "(8, 10)"})),
            ("ST_METADATA", "expected whole numbers", lambda: on(second, change_metadata=lambda m: m | {"unsharded_shape": "(8, x)"})),
            ("ST_METADATA", "has no 'unsharded_shape'", lambda: on(second, change_metadata=lambda m: {"version": "1.5"})),
            ("ST_METADATA", "is not inside [8, 8]", lambda: on(second, change_metadata=pairs("None,None,None|None,None,None#None,None,None|4,9,None"))),
            ("ST_METADATA", "another size", lambda: on(second, change_metadata=pairs("None,None,None|None,None,None#None,None,None|4,7,None"))),
            ("ST_METADATA", "steps other than 1", lambda: on(second, change_metadata=pairs("None,None,None|None,None,2#None,None,None|4,8,None"))),
            ("KEY", "expected 'data' alone", lambda: on(second, name="other"))):
        said = run("inspect", copy() if callable(copy) else copy, expect=2)
        check(f"error[{code}]" in said and words in said and "o_proj" in said, f"{code}: {said}")
    said = run("verify", on(second, change_metadata=pairs("None,None,None|None,None,None#None,None,None|2,6,None")), expect=1)
    check("OVERLAP" in said, said)
    numpy = on(first, change_metadata=lambda m: m | {"unsharded_shape": "(np.int64(8), 8)"})   # of numpy 2
    check("sound" in run("verify", numpy), "numbers of numpy 2")


def states_of_ranks(tmp):
    """They are named, and in no output."""
    def two(copy):
        front = os.path.join(copy, "optimizer", "optimizer_pp-0-of-1_tp-")
        os.rename(front + "0-of-1_exp-0-of-1.pt", front + "0-of-2_exp-0-of-1.pt")
        shutil.copy(front + "0-of-2_exp-0-of-1.pt", front + "1-of-2_exp-0-of-1.pt")
    said = run("inspect", spoiled(tmp, two, QWEN))
    check("in no output" in said and "optimizer_pp-0-of-1_tp-1-of-2_exp-0-of-1.pt" in said, said)


def checks():
    return {work.__name__: work for work in (to_hugging_face, export, interleaved, biases, read, damage, states_of_ranks)}


if __name__ == "__main__":
    sys.exit(rekey_tool.main(__doc__, checks))
