# SPDX-License-Identifier: Apache-2.0
"""The checks of check_rekey.py for rename, and for selections and prefixes in the other verbs."""
import json
import os
import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import OptimStateKeyType

import models
from rekey_models import Equal, by_pytorch, trained
from rekey_tool import check, digest, inodes, load, refused, run, same, write


def prefixes(tmp):
    """Names that torch.compile and DistributedDataParallel produce."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        plain = models.Net()
        wrapped = nn.parallel.DistributedDataParallel(torch.compile(plain))
        named = {k.replace("module._orig_mod.", ""): v for k, v in wrapped.state_dict().items()}
        check(all(k.startswith("module._orig_mod.") for k in wrapped.state_dict()), "the prefix is another")
        opt = torch.optim.AdamW(list(wrapped.named_parameters()))
        wrapped.module._orig_mod(torch.randn(2, models.IN)).sum().backward()
        opt.step()
        osd = by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, wrapped, opt)
        whole = {"model": wrapped.state_dict(), "optimizer": {**osd, "param_groups": opt.state_dict()["param_groups"]}}
        for g in whole["optimizer"]["param_groups"]:
            g["params"] = list(g["param_names"])
        pt, folder = os.path.join(tmp, "wrapped.pt"), os.path.join(tmp, "wrapped")
        torch.save(whole, pt)
        dcp.save(whole, checkpoint_id=folder)
    finally:
        torch.distributed.destroy_process_group()
    before = digest(folder)
    for path in (pt, folder):
        out = path + "-out" + path[len(folder):]
        did = write("rename", path, out, "--strip-prefix", "auto")
        check(did["wrappers"] == ["_orig_mod.", "module."], f"{path}: {did['wrappers']}")
        got = load(out)
        same(dict(got["model"]), named, path)
        fresh = models.Net()
        fresh.load_state_dict(got["model"], strict=True)
        check(list(got["optimizer"]["param_groups"][0]["params"]) == [n for n, _ in plain.named_parameters()], f"{path}: params")
        check(got["optimizer"]["param_groups"][0]["param_names"] == [n for n, _ in plain.named_parameters()], f"{path}: param_names")
        check(set(got["optimizer"]["state"]) == {n for n, _ in plain.named_parameters()}, f"{path}: state")
        fresh_opt = torch.optim.AdamW(list(fresh.named_parameters()))
        write("rekey", out, out + ".id" + path[len(folder):], "--key-by", "id")
        ids = load(out + ".id" + path[len(folder):])["optimizer"]
        ids["state"] = {int(k): v for k, v in ids["state"].items()}
        fresh_opt.load_state_dict(ids)
    check(hasattr(load(pt + "-out.pt")["model"], "_metadata"), "the OrderedDict's attribute is gone")
    check("blocks.0.norm" in load(pt + "-out.pt")["model"]._metadata, "the modules' names are the old ones")
    # Shared on disk, and separate where it matters.
    shared = inodes(folder)
    for name, inode in inodes(folder + "-out").items():
        check((inode == shared.get(name)) == (name == "__0_0.distcp"), f"{name}: {inode}, {shared}")
    shutil.rmtree(folder + "-out")
    check(digest(folder) == before, "the source is another")
    did = write("rename", folder, folder + "-copy", "--strip-prefix", "auto", "--copy")
    check(not any(f.get("linked") for f in did["files"]) and inodes(folder + "-copy")["__0_0.distcp"] != shared["__0_0.distcp"], "--copy links")


def swaps_and_levels(tmp):
    model = Equal()
    folder = os.path.join(tmp, "levels")
    dcp.save({"state_dict": model.state_dict(), "step": 3, "scalars": [1, 2]}, checkpoint_id=folder)
    old = load(folder)
    write("rename", folder, folder + "1", "--rename", "a=b", "--rename", "b=a")
    got = load(folder + "1")["state_dict"]
    same([got["a.weight"], got["b.weight"], got["c.weight"]], [old["state_dict"][k + ".weight"] for k in "bac"], "swap")
    write("rename", folder, folder + "2", "--rename", "state_dict=model")
    same(load(folder + "2"), {"model": old["state_dict"], "step": 3, "scalars": [1, 2]}, "a level renamed")
    write("rename", folder + "2", folder + "3", "--strip-prefix", "model", "--drop", "step", "--drop", "scalars")
    same(load(folder + "3"), old["state_dict"], "a level taken away")
    write("rename", folder + "3", folder + "4", "--rename", "/=net.")
    same(load(folder + "4"), {"net": old["state_dict"]}, "a level added")
    fresh = {"net": {k: torch.zeros_like(v) for k, v in old["state_dict"].items()}}
    dcp.load(fresh, checkpoint_id=folder + "4")
    same(fresh, {"net": old["state_dict"]}, "dcp.load")
    names = os.path.join(tmp, "map.json")
    with open(names, "w", encoding="utf-8") as f:
        json.dump({"a": "c", "c": "a"}, f)
    write("rename", folder, folder + "5", "--rename-file", names, "--drop", "b.*")
    same(load(folder + "5")["state_dict"], {"a.weight": old["state_dict"]["c.weight"], "c.weight": old["state_dict"]["a.weight"]}, "--map")
    refused("REKEY_COLLISION", "rename", folder, folder + "x", "--rename", "a=b", words=["'state_dict.a.weight'", "'state_dict.b.weight'"])
    refused("REKEY_UNUSED", "rename", folder, folder + "x", "--rename", "d=e", words=["'d'"])
    refused("REKEY_UNUSED", "rename", folder, folder + "x", "--drop", "encoder.**", words=["'encoder.**'"])
    for text, code in (('{"a": "b", "a": "c"}', "JSON"), ('{"a": 1}', "JSON"), ('{"a": "\\ud800"}', "JSON"), ("a b\n", "USAGE"),
                       ("a => b\na => c\n", "REKEY_COLLISION"), ("[" * 200, "USAGE"), ('{"a": ' + "[" * 200, "JSON_DEPTH")):
        with open(names, "w", encoding="utf-8") as f:
            f.write(text)
        refused(code, "rename", folder, folder + "x", "--rename-file", names)
    refused("SAME_PATH", "rename", folder, folder + "/inside", "--rename", "a=b")


def halves(tmp):
    """Rules apply to whole keys as inspect prints them; a rule that would match half of the names is refused, with advice."""
    model, opt = trained()
    names = {k: "model." + k if not k.startswith("out") else k for k in model.state_dict()}   # like LlamaForCausalLM: lm_head beside model
    weights = {names[k]: v for k, v in model.state_dict().items()}
    named = by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, model, opt)
    optim = {"state": {names[k]: v for k, v in named["state"].items()},
             "param_groups": [{**g, "params": [names[k] for k in g["params"]], "param_names": [names[k] for k in g["params"]]} for g in named["param_groups"]]}
    flat, nested = os.path.join(tmp, "flat"), os.path.join(tmp, "nested")
    dcp.save(weights, checkpoint_id=flat)
    dcp.save({"model": weights, "optimizer": optim, "epoch": 1}, checkpoint_id=nested)
    torch.save(weights, flat + ".pt")
    head = next(k for k in weights if not k.startswith("model."))
    for source in (flat, flat + ".pt"):
        for verb in ("consolidate", "convert", "rename"):
            refused("USAGE", verb, source, os.path.join(tmp, "x.pt"), "--strip-prefix", "model", words=[repr("model."), repr(head), "--rename model.="])
            refused("USAGE", verb, source, os.path.join(tmp, "x.pt"), "--strip-prefix", "model", "-k", "model.**", words=[repr(head), "--exclude"])
        for verb in (["inspect", source], ["verify", source], ["stats", source], ["diff", source, source]):
            check("error[USAGE]" in run(*verb, "-k", "model.**", expect=2), verb)
            run(*verb, "-k", "model.**", "--exclude", "out.**")
            check("error[NOT_FOUND]" in run(*verb, "-k", "nothing.**", expect=2), verb)
            check("error[NOT_FOUND]" in run(*verb, "-k", head, "-k", "nothing.**", expect=2), verb)
    # With the full rule, it is done.
    run("consolidate", flat, os.path.join(tmp, "base.pt"), "-k", "model.**", "--exclude", "out.**", "--strip-prefix", "model")
    same(load(os.path.join(tmp, "base.pt")), {k[6:]: v for k, v in weights.items() if k.startswith("model.")}, "a part chosen")
    # In the nested one, `model` is a level, whatever its modules are called; the report maps old names to new ones.
    out = nested + ".pt"
    said = json.loads(run("consolidate", nested, out, "-k", "model.**", "--strip-prefix", "model", "--json"))
    same(load(out), weights, "a level")
    check({(r["from"], r["to"]) for r in said["renames"]} == {("model." + k, k) for k in weights}, said["renames"])
    check(f"  model.{head} -> {head}\n" in run("consolidate", nested, out, "-k", "model.**", "--strip-prefix", "model", "-n", "--force"), "-n")
    # A parameter's whole key: the optimizer follows.  Likewise for names without a prefix.
    first = next(k for k in weights if k.startswith("model."))
    for number, rule in enumerate((f"model.{first}=model.first", f"{first}=first")):
        did = write("rename", nested, f"{nested}-{number}", "--rename", rule)
        got = load(f"{nested}-{number}")
        check("first" in got["model"] and "first" in got["optimizer"]["state"], f"{rule}: {list(got['optimizer']['state'])}")
        check("first" in got["optimizer"]["param_groups"][0]["params"] and "first" in got["optimizer"]["param_groups"][0]["param_names"], rule)
        check({"from": "model." + first, "to": "model.first"} in did["renames"], did["renames"])
    # The prefix is removed from every name, in the model and in the optimizer.
    write("rename", nested, nested + "-bare", "--rename", "model.model.=model.")
    got = load(nested + "-bare")
    want = [n for n, _ in model.named_parameters()]
    check(set(got["optimizer"]["state"]) == set(want) and sorted(got["optimizer"]["param_groups"][0]["params"]) == sorted(want), "the optimizer")
    same(got["model"], dict(model.state_dict()), "the model")
    refused("USAGE", "rename", nested, nested + "-x", "--rename", f"optimizer.state.{first}=optimizer.state.x", words=["only in 'optimizer'"])
    write("rename", nested, nested + "-keys", "--rename", f"/model.{first}=model.first")
    check("first" in load(nested + "-keys")["model"] and first in load(nested + "-keys")["optimizer"]["state"], "keys alone")
    # Dropped keys are named, and their state is dropped too; dropping a whole model keeps its optimizer.
    did = write("rename", nested, nested + "-drop", "--drop", "model." + head)
    check(f"model.{head}" in did["dropped_keys"] and len(did["dropped_keys"]) == did["dropped"] > 1, did["dropped_keys"])
    check(head not in load(nested + "-drop")["optimizer"]["state"] and head not in load(nested + "-drop")["optimizer"]["param_groups"][0]["params"], "its state")
    check(f"  model.{head}\n" in run("rename", nested, nested + "-drop2", "--drop", "model." + head), "named")
    write("rename", nested, nested + "-optim", "--drop", "model.**")
    check(set(load(nested + "-optim")["optimizer"]["state"]) == set(optim["state"]), "the optimizer stays")
    # Two models of one shape: a rule for only one of them is refused.
    twice = os.path.join(tmp, "twice")
    dcp.save({"model": weights, "ema": weights, "optimizer": optim}, checkpoint_id=twice)
    refused("USAGE", "rename", twice, twice + "x", "--rename", f"model.{first}=model.first", words=["ema." + first])
    refused("USAGE", "rename", twice, twice + "x", "--drop", f"model.{first}", words=["ema." + first])
    write("rename", twice, twice + "1", "--rename", f"model.{first}=model.first", "--rename", f"ema.{first}=ema.first")
    got = load(twice + "1")
    check(all("first" in part for part in (got["model"], got["ema"], got["optimizer"]["state"])), "both")


def unreadable_names(tmp):
    """Names that PyTorch saves silently, but that cannot be read unambiguously."""
    names = {"": "part of the key is empty", "a\x1b[31m": "control character at byte 1", "b\0c": "NUL at byte 1", "d\u202ee": "\\u202e", "e\u200b": "\\u200b"}
    for path in (os.path.join(tmp, "odd.pt"), os.path.join(tmp, "odd")):
        state = {"model": {name: torch.ones(2) for name in (*names, "plain", "\u00e4")}}
        if path.endswith(".pt"):
            torch.save(state, path)
        else:
            dcp.save(state, checkpoint_id=path)
        text = run("verify", path)
        check("sound" in text and text.count("warning[NAME]") == len(names), text)
        for symptom in names.values():
            check(symptom in text.replace("byte 7", "byte 1"), f"{symptom}: {text}")
        check(all(ord(c) >= 32 and c not in "\u202e\u200b" for c in text.replace("\n", "")), repr(text))
        run("verify", path, "--strict", expect=1)
        found = json.loads(run("verify", path, "--json"))["findings"]
        check([f["severity"] for f in found] == ["warning"] * len(names), found)
        # As before, a copy keeps them unchanged.
        run("consolidate", path, path + "-full.pt")
        same(load(path + "-full.pt"), state, path)


def neighbours(tmp):
    folder = os.path.join(tmp, "epoch=1.ckpt")
    model = Equal()
    dcp.save({"state_dict": model.state_dict()}, checkpoint_id=folder)
    torch.save({"epoch": 1, "callbacks": {"best": torch.tensor(0.5)}}, os.path.join(folder, "meta.pt"))
    for name in ("config.json", "notes.txt", "__7_0.distcp"):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write("{}")
    did = write("rename", folder, folder + "1", "--rename", "a=x")
    check(did["left_behind"] == ["__7_0.distcp", "notes.txt"], did["left_behind"])
    for name in ("meta.pt", "config.json", "__0_0.distcp"):
        check(inodes(folder)[name] == inodes(folder + "1")[name], f"{name} is not shared")
    write("rename", folder, folder + "2", "--rename", "epoch=epochs", "--drop", "a.weight")
    same(torch.load(os.path.join(folder + "2", "meta.pt")), {"epochs": 1, "callbacks": {"best": torch.tensor(0.5)}}, "meta.pt")


def elsewhere(tmp):
    """Another file system: the tool copies, and damaged data is not copied."""
    if os.stat("/dev/shm").st_dev == os.stat(tmp).st_dev:
        return
    folder = os.path.join(tmp, "here")
    state = {"model": Equal().state_dict()}
    dcp.save(state, checkpoint_id=folder)
    there = tempfile.mkdtemp(dir="/dev/shm")
    try:
        did = write("rename", folder, there + "/out", "--rename", "a=x")
        check(not any(f.get("linked") for f in did["files"]), did["files"])
        same(load(there + "/out")["model"]["x.weight"], state["model"]["a.weight"], "copied")
        with open(os.path.join(folder, "__0_0.distcp"), "r+b") as f:
            at = f.read().find(state["model"]["b.weight"].numpy().tobytes())
            f.seek(at)
            f.write(b"\xff\xff")
        refused("ZIP_CRC", "rename", folder, there + "/out2", "--rename", "a=x")
        check(os.listdir(there) == ["out"], os.listdir(there))
    finally:
        shutil.rmtree(there)
