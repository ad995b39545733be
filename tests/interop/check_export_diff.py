#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""diff of a checkpoint with its export, both written by PyTorch, transformers and torchtitan's adapters.

  python check_export_diff.py --tool PATH

Equal pairs are equal through the way that diff finds, whichever side comes first; one element that PyTorch changes is found under
the names of both sides, at the place that the producer's own code moves it to; what is no export stays different.
"""
import argparse
import glob
import json
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, save_file

import rekey_tool
import titan_adapters
from check_export import llama
from rekey_tool import check, run


def diff(a, b, *options, expect=0):
    return json.loads(run("diff", a, b, "--json", *options, expect=expect))


def titan_of(model, kv=2):
    cls = titan_adapters.adapter("llama3", "Llama3StateDictAdapter")
    adapter = cls(titan_adapters.config([0] * 3, 24, n_heads=4, n_kv_heads=kv, head_dim=6), None)
    return adapter, {k: v.contiguous() for k, v in adapter.from_hf(dict(model.state_dict())).items()}


def published(tmp, model, name="hf", **options):
    folder = os.path.join(tmp, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **options)
    return folder


def saved(tmp, state, name="ckpt"):
    """A folder by PyTorch itself."""
    folder = os.path.join(tmp, name)
    shutil.rmtree(folder, ignore_errors=True)
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def changed(folder, key, at):
    """Changes one element of a published folder of one file."""
    path = os.path.join(folder, "model.safetensors")
    state = load_file(path)
    state[key][at] += 1
    save_file(state, path, {"format": "pt"})
    return state


def places(one, other):
    """The elements that differ, by key."""
    check(one.keys() == other.keys(), one.keys() ^ other.keys())
    return {key: [place.tolist() for place in (one[key] != other[key]).nonzero()] for key in one if not torch.equal(one[key], other[key])}


def by_map(tmp):
    """torchtitan's folder beside its optimizer, and the folder that transformers writes, in one file and in several."""
    model = llama()
    adapter, titan = titan_of(model)
    source = saved(tmp, titan | {"optimizer": {"state": {}, "param_groups": []}, "train_state": {"step": 5}})
    for options in ({}, {"max_shard_size": "9KB"}):
        folder = published(tmp, model, **options)
        check(len(glob.glob(os.path.join(folder, "*.safetensors"))) > (3 if options else 0), os.listdir(folder))
        said = run("diff", source, folder)
        check("; map torchtitan-llama3-hf, undone: keys are A's" in said and "are the same" in said, said)
        for a, b, origin in ((source, folder, "a"), (folder, source, "b")):
            found = diff(a, b)
            through = found["through"]
            check(found["same"] and found["tensors"] == len(titan) and found["values"] == 0, found)
            check(through["origin"] == through["keys_of"] == origin and through["map"] == "torchtitan-llama3-hf", through)
            check(through["beside_" + origin] > 0 and through["beside_" + ("b" if origin == "a" else "a")] == 0, through)
    # Where the adapter moves a changed element to, diff finds it.
    folder = published(tmp, model)
    for key, at in (("model.layers.1.self_attn.q_proj.weight", (4, 7)), ("model.layers.2.self_attn.k_proj.weight", (8, 1)),
                    ("model.norm.weight", (3,)), ("lm_head.weight", (36, 23))):
        folder = published(tmp, model)
        want = places(titan, adapter.from_hf(changed(folder, key, at)))
        found = diff(source, folder, expect=1)
        check([(d["what"], d["key"], d["first"], d["different"], d["names"]) for d in found["differences"]] ==
              [("tensor", name, at[0], 1, [key]) for name, at in want.items()], (want, found["differences"]))
        said = run("diff", folder, source, expect=1)
        check(f"is '{key}' in A" in said and next(iter(want)) in said, said)


def experts(tmp):
    """Tensors that a map stacks: the names of all of them."""
    torch.manual_seed(1)
    config = transformers.MixtralConfig(hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
                                        num_key_value_heads=1, num_local_experts=3, vocab_size=23, tie_word_embeddings=False)
    model = transformers.MixtralForCausalLM(config).eval()
    source = saved(tmp, {"model": dict(model.state_dict()), "step": 3})
    folder = published(tmp, model)
    files = load_file(os.path.join(folder, "model.safetensors"))
    check(files.keys() != model.state_dict().keys(), "save_pretrained keeps the names of modules")
    found = diff(source, folder)
    check(found["same"] and found["through"]["map"].endswith("-files"), found)
    key = next(k for k in sorted(files) if ".experts.1." in k)
    changed(folder, key, (2, 3))
    found = diff(source, folder, expect=1)
    check(len(found["differences"]) == 1 and found["differences"][0]["different"] == 1, found)
    check(key in found["differences"][0]["names"] and len(found["differences"][0]["names"]) >= 3, found)
    # The element is that of the model that transformers loads.
    loaded = type(model).from_pretrained(folder).state_dict()
    want = places(dict(model.state_dict()), dict(loaded))
    check(want == {found["differences"][0]["key"]: [found["differences"][0]["first"]]}, (want, found))


def prefixes(tmp):
    model = llama()
    folder = published(tmp, model)
    state = dict(model.state_dict())
    path = os.path.join(tmp, "w.pt")
    for front, place, said in (("_orig_mod._fsdp_wrapped_module.", "state_dict", None), ("module.", "model", None),
                               ("base_model.model.", "", None), ("net.", "app", None)):
        names = {front + key: tensor for key, tensor in state.items()}
        torch.save({place: names, "epoch": 4} if place else names, path)
        for a, b in ((path, folder), (folder, path)):
            found = diff(a, b)
            side = "a" if a == path else "b"
            check(found["same"] and found["tensors"] == len(state), found)
            check(found["through"]["origin"] == side and found["through"]["model_" + side] == place, found["through"])
            check("".join(sorted(found["through"]["prefixes_" + side])) == "".join(sorted(re.findall(r"[^.]+\.", front)))
                  or "".join(found["through"]["prefixes_" + side]) == front, found["through"])
        check(diff(path, folder, "--map", "none", expect=1)["through"] is None, "--map none")
    # A wrapper inside of names.
    torch.save({key.replace("layers.1.", "layers.1._checkpoint_wrapped_module."): tensor for key, tensor in state.items()}, path)
    check(diff(path, folder)["same"], "inside")
    changed(folder, "model.layers.1.mlp.up_proj.weight", (1, 2))
    found = diff(path, folder, expect=1)
    check([(d["key"], d["first"]) for d in found["differences"]] == [("model.layers.1.mlp.up_proj.weight", [1, 2])], found)


def rounded(tmp):
    """What --dtype changes: PyTorch rounds."""
    model = llama()
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    _, titan = titan_of(model)
    folder = published(tmp, llama().to(torch.bfloat16))
    for source in (saved(tmp, {"model": state}, "model"), saved(tmp, state, "flat"), saved(tmp, titan, "titan")):
        found = diff(source, folder)
        check(found["same"] and found["through"]["rounded"] == [{"from": "float32", "to": "bfloat16", "tensors": len(state)}], found)
        check(f"rounded: {len(state)} tensors of A, float32 to bfloat16" in run("diff", source, folder), "text")
        # Numbers are compared as they are if the user asks for it.
        check(diff(source, folder, "--ignore-dtype", expect=1)["through"]["rounded"] == [], "--ignore-dtype")
        check(diff(source, folder, "--close")["same"], "--close")
    # Bits that rounding drops, and one that it keeps.
    key = "model.layers.0.mlp.up_proj.weight"
    bits = state[key].view(torch.int32)
    near, same = bits.clone(), state[key].to(torch.bfloat16)
    near[5, 6] ^= 1
    check(torch.equal(near.view(torch.float32).to(torch.bfloat16), same), "the last bit is dropped")
    source = saved(tmp, {"model": state | {key: near.view(torch.float32)}}, "near")
    check(diff(source, folder)["same"], "near")
    near[5, 6] ^= 1 << 17
    check(not torch.equal(near.view(torch.float32).to(torch.bfloat16), same), "this bit is kept")
    source = saved(tmp, {"model": state | {key: near.view(torch.float32)}}, "far")
    found = diff(source, folder, expect=1)
    check([(d["key"], d["first"], d["a"], d["b"]) for d in found["differences"]] == [(key, [5, 6], "float32", "bfloat16")], found)


def ties(tmp):
    tied, path = llama(tied=True), os.path.join(tmp, "t.pt")
    folder = published(tmp, tied)
    check("lm_head.weight" not in load_file(os.path.join(folder, "model.safetensors")), "save_pretrained writes the head")
    state = dict(tied.state_dict())
    _, titan = titan_of(tied)
    for name, one in (("shared", state), ("copied", state | {"lm_head.weight": state["lm_head.weight"].clone()}), ("titan", titan)):
        torch.save({"model": one}, path)
        for a, b in ((path, folder), (folder, path)):
            found = diff(a, b)
            check(found["same"] and found["through"]["tied"] == "lm_head.weight" and found["tensors"] == len(state) - 1, (name, found))
    torch.save(state, path)   # at the top level, where only the head differs
    check(diff(path, folder)["through"]["tied"] == "lm_head.weight", "flat")
    for head in state["lm_head.weight"] + 1, torch.zeros(2, 2):
        torch.save({"model": state | {"lm_head.weight": head}}, path)
        found = diff(path, folder, expect=1)
        check([(d["what"], d["key"]) for d in found["differences"]] == [("only_a", "lm_head.weight")], found)
    # Without a word of it in the configuration a missing head is one.
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config | {"tie_word_embeddings": False}, file)
    torch.save({"model": state}, path)
    found = diff(path, folder, expect=1)
    check(found["through"] is None and "lm_head.weight" in found["no_way"], found)


def none(tmp):
    """What is no export, and says why."""
    model, path = llama(), os.path.join(tmp, "n.pt")
    folder = published(tmp, model)
    state = dict(model.state_dict())
    adapter, titan = titan_of(model)
    # A tensor less, and one more, on either side.
    lost = "layers.1.feed_forward.w1.weight"
    torch.save({k: v for k, v in titan.items() if k != lost}, path)
    found = diff(path, folder, expect=1)
    check(found["through"] is None and found["counts"]["only_b"] == len(state) - 1, found)
    check("torchtitan-llama3-hf" in found["no_way"], found["no_way"])
    check("note: neither is an export of the other: " in run("diff", path, folder, expect=1), "note")
    torch.save({"model": {"module." + k: v for k, v in state.items() if k != "model.layers.2.mlp.up_proj.weight"}, "step": 1}, path)
    found = diff(path, folder, expect=1)
    check("'model.layers.2.mlp.up_proj.weight'" in found["no_way"] and "B alone" in found["no_way"], found["no_way"])
    torch.save({"model": {"x." + k: v for k, v in (state | {"model.extra.weight": torch.ones(3)}).items()}}, path)
    found = diff(path, folder, expect=1)
    check("'model.extra.weight'" in found["no_way"] and "A alone" in found["no_way"], found["no_way"])
    # Other shapes are found by name.
    torch.save({"model": state | {"model.norm.weight": torch.ones(25)}}, path)
    found = diff(path, folder, expect=1)
    check([(d["what"], d["key"]) for d in found["differences"]] == [("shape", "model.norm.weight")], found)
    # Two checkpoints of training with the same model under other keys: neither is an export.
    other = os.path.join(tmp, "m.pt")
    optimizer = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"params": [0], "lr": 0.1}]}
    torch.save({"model": state, "optim": optimizer}, path)
    torch.save({"net": state, "optim2": optimizer}, other)
    found = diff(path, other, expect=1)
    check(found["through"] is None and "holds more than a model" in found["no_way"], found)
    check(diff(path, other, "--model", "net")["through"]["beside_b"] > 0, "--model")
    # Several models that fit: the average is not meant, and of two others --model names one.
    torch.save({"net": state, "ema": {k: v + 1 for k, v in state.items()}}, path)
    check(diff(path, folder)["through"]["model_a"] == "net", "ema")
    check(diff(path, folder, "--model", "ema", expect=1)["counts"]["tensor"] == len(state), "--model ema")
    torch.save({"student": state, "teacher": {k: v + 1 for k, v in state.items()}}, path)
    found = diff(path, folder, expect=1)
    check(found["through"] is None and "'student'" in found["no_way"] and "--model" in found["no_way"], found["no_way"])
    check(diff(path, folder, "--model", "student")["same"], "--model student")
    check("neither" in run("diff", path, folder, "--model", "pupil", expect=2), "--model pupil")
    # A map by name; selected keys, another model's map, and parameters that nothing tells.
    torch.save(titan, path)
    check(diff(path, folder, "--map", "torchtitan-llama3-hf")["same"], "--map")
    check("error[USAGE]" in run("diff", path, folder, "--map", "torchtitan-llama3-hf", "-k", "norm.*", expect=2), "-k")
    check("error[KEY]" in run("diff", path, folder, "--map", "nanogpt-gpt2", expect=2), "another map")
    bare = os.path.join(tmp, "bare.safetensors")
    save_file({k: v.contiguous() for k, v in state.items()}, bare)
    found = diff(path, bare, expect=1)
    check("n_heads" in found["no_way"], found["no_way"])
    check(diff(path, bare, "--set", "n_heads=4", "--set", "n_kv_heads=2")["same"], "--set")
    check(diff(path, bare, "--config", os.path.join(folder, "config.json"))["same"], "--config")
    # With wrong numbers of heads rows stand elsewhere.
    check(diff(path, bare, "--set", "n_heads=2", "--set", "n_kv_heads=2", expect=1)["counts"]["tensor"] > 0, "other heads")
    # Damage is no difference.
    source = saved(tmp, titan)
    data = glob.glob(os.path.join(source, "*.distcp"))[0]
    with open(data, "r+b") as file:
        raw = file.read()
        at = raw.index(titan["norm.weight"].numpy().tobytes())
        file.seek(at + 2)
        file.write(bytes([raw[at + 2] ^ 1]))
    check("error[ZIP_CRC]" in run("diff", source, folder, expect=2), "damage")


def computed(tmp):
    """A map that computes: its result is compared."""
    path, out = os.path.join(tmp, "a.pt"), os.path.join(tmp, "b.pt")
    with open(os.path.join(tmp, "r.toml"), "w", encoding="utf-8") as file:
        file.write('[[rule]]\nfrom = "w"\nto = "v"\ndo = [{ op = "scale", by = 2 }]\n[[rule]]\nfrom = "x.{i:int}"\nto = "all"\nover = "i"\ndo = ["stack"]\n')
    w, xs = torch.randn(4, 3), [torch.randn(5) for _ in range(3)]
    torch.save({"w": w} | {f"x.{i}": x for i, x in enumerate(xs)}, path)
    torch.save({"v": w * 2, "all": torch.stack(xs)}, out)
    rules = ("--map", os.path.join(tmp, "r.toml"))
    found = diff(path, out, *rules)
    check(found["same"] and found["through"]["keys_of"] == "b", found)
    wrong = torch.stack(xs)
    wrong[1, 4] += 1
    torch.save({"v": w * 2, "all": wrong}, out)
    found = diff(path, out, *rules, expect=1)
    check([(d["key"], d["first"], d["names"]) for d in found["differences"]] == [("all", [1, 4], ["x.0", "x.1", "x.2"])], found)


CHECKS = {"by_map": by_map, "experts": experts, "prefixes": prefixes, "rounded": rounded, "ties": ties, "none": none, "computed": computed}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    return 1 if rekey_tool.run_checks(args.tool, CHECKS, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
