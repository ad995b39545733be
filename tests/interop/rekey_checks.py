# SPDX-License-Identifier: Apache-2.0
"""The checks of check_rekey.py for rekey: optimizer states by name and by number."""
import copy
import json
import os

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import OptimStateKeyType

from rekey_models import Equal, by_pytorch, losses, named_order, takes, trained, unordered, with_text_keys
from rekey_tool import check, load, refused, run, same, write


def as_pytorch(tmp):
    for number, (optimizer, groups, unused) in enumerate([
            ("adamw", "one", False), ("adamw", "two", False), ("adamw", "two", True), ("adamw", "named", True), ("amsgrad", "two", False),
            ("momentum", "two", True), ("adafactor", "one", False), ("tensor_lr", "two", False)]):
        model, opt = trained(optimizer, groups, unused=unused)
        osd = opt.state_dict()
        named = by_pytorch(osd, OptimStateKeyType.PARAM_NAME, model, opt)
        pt, folder = os.path.join(tmp, f"{number}.pt"), os.path.join(tmp, f"{number}")
        whole = {"model": model.state_dict(), "optimizer": osd, "epoch": 3}
        torch.save(whole, pt)
        dcp.save(whole, checkpoint_id=folder)
        for path in (pt, folder):
            what = f"{optimizer} {groups} {path}"
            out, back = path.replace(str(number), f"{number}-name", 1) if path == folder else path[:-3] + "-name.pt", None
            out = os.path.join(tmp, f"{number}-name") + (".pt" if path == pt else "")
            back = os.path.join(tmp, f"{number}-back") + (".pt" if path == pt else "")
            write("rekey", path, out, "--key-by", "name")
            ours = load(out)
            same(unordered(ours["optimizer"]), unordered(named), what)
            same(ours["model"], dict(whole["model"]), what)
            check(ours["epoch"] == 3, what)
            order = [n for g in opt.param_groups for p in g["params"] for n, q in model.named_parameters() if p is q]
            check([n for g in ours["optimizer"]["param_groups"] for n in g["params"]] == order, f"{what}: the order of names")
            # names -> ids -> names
            write("rekey", out, back, "--key-by", "id")
            ids = load(back)["optimizer"]
            same(ids, with_text_keys(osd) if path == folder else osd, what + " back")
            same(unordered(by_pytorch(named, OptimStateKeyType.PARAM_ID, model, opt)), unordered(osd), what + " PyTorch")
            if path == pt:
                check(all(isinstance(k, int) for k in ids["state"]), f"{what}: ids are {list(ids['state'])}")
                write("rekey", back, back[:-3] + "-again.pt", "--key-by", "name")
                same(load(back[:-3] + "-again.pt"), ours, what + " again")
    # A bare optimizer, with names from elsewhere; and input that has the form already.
    torch.save(osd, os.path.join(tmp, "bare.pt"))
    refused("KEY", "rekey", os.path.join(tmp, "bare.pt"), os.path.join(tmp, "x.pt"), "--key-by", "name", words=["--names"])
    write("rekey", os.path.join(tmp, "bare.pt"), os.path.join(tmp, "bare-id.pt"), "--key-by", "id")
    same(load(os.path.join(tmp, "bare-id.pt")), osd, "already by id")
    write("rekey", os.path.join(tmp, "bare.pt"), os.path.join(tmp, "bare-model.pt"), "--key-by", "name", "--names-from", pt)
    same(unordered(load(os.path.join(tmp, "bare-model.pt"))), unordered(named), "--model")


def going_on(tmp):
    """Losses after a detour equal those without it."""
    for groups in ("one", "two"):
        model, opt = trained("adamw", groups)
        pt = os.path.join(tmp, groups + ".pt")
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, pt)
        write("rekey", pt, pt + ".name.pt", "--key-by", "name")
        write("rekey", pt + ".name.pt", pt + ".id.pt", "--key-by", "id")
        got = load(pt + ".id.pt")
        other, other_opt = trained("adamw", groups, seed=1)
        other.load_state_dict(got["model"])
        other_opt.load_state_dict(got["optimizer"])
        check(losses(model, opt, 3) == losses(other, other_opt, 3), f"{groups}: other losses")


def consolidated(tmp):
    """Folders hold all keys as text; AdamW loads consolidate's output of a state by id."""
    for groups in ("one", "two"):
        model, opt = trained("adamw", groups)
        osd = opt.state_dict()
        named = by_pytorch(osd, OptimStateKeyType.PARAM_NAME, model, opt)
        order = {id(p): n for n, p in model.named_parameters()}
        for g, params in zip(named["param_groups"], opt.param_groups):
            g["params"] = [order[id(p)] for p in params["params"]]
        folders = {"by PyTorch": {"model": model.state_dict(), "optimizer": osd}, "bare": osd,
                   "nested": {"app": {"model": model.state_dict(), "optim": osd}}, "named": {"model": model.state_dict(), "optimizer": named}}
        for name, whole in folders.items():
            folder = os.path.join(tmp, f"{groups}-{name}".replace(" ", "-"))
            dcp.save(whole, checkpoint_id=folder)
            if name == "named":
                write("rekey", folder, folder + "-id", "--key-by", "id")
                folder += "-id"
            for suffix in (".pt", ".h5"):
                run("consolidate", folder, folder + suffix)
            run("convert", folder + ".h5", folder + "-h5.pt")
            for path in (folder + ".pt", folder + "-h5.pt"):
                got = load(path)
                got = got.get("app", got)
                fresh, fresh_opt = trained("adamw", groups, seed=1)
                takes(got.get("optimizer", got.get("optim", got)), fresh, fresh_opt, osd, path)
                if "model" in got:
                    fresh.load_state_dict(got["model"])
                    other, other_opt = trained("adamw", groups)
                    check(losses(fresh, fresh_opt, 3) == losses(other, other_opt, 3), f"{path}: other losses")
            run("diff", folder, folder + ".pt")
    # Parameters in no group do not belong to the optimizer, and keys of other dicts stay text.
    folder = os.path.join(tmp, "text")
    dcp.save({"names": {"0": torch.zeros(1)}, "optimizer": osd}, checkpoint_id=folder)
    run("consolidate", folder, folder + ".pt")
    check(list(load(folder + ".pt")["names"]) == ["0"], "another dict")


def lightning(tmp):
    """Ids in the model's order with any groups, as Lightning writes them; several optimizers."""
    model, opt = trained("adamw", "two")
    named = by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, model, opt)
    by_model = FSDP.rekey_optim_state_dict(copy.deepcopy(named), OptimStateKeyType.PARAM_ID, model)
    path = os.path.join(tmp, "lightning.ckpt")
    torch.save({"state_dict": model.state_dict(), "optimizer_states": [by_model], "epoch": 1, "pytorch-lightning_version": "2.6.6"}, path)
    write("rekey", path, os.path.join(tmp, "name.ckpt"), "--key-by", "name")
    ours = load(os.path.join(tmp, "name.ckpt"))
    same(unordered(ours["optimizer_states"][0]), unordered(named), "Lightning")
    # With an order given, ids are its positions, like PyTorch's by model.parameters().
    write("rekey", os.path.join(tmp, "name.ckpt"), os.path.join(tmp, "id.ckpt"), "--key-by", "id", "--names", named_order(model, tmp))
    same(unordered(load(os.path.join(tmp, "id.ckpt"))["optimizer_states"][0]), unordered(by_model), "by the model's order")


def flattened(tmp):
    for groups in ("one", "two"):
        model, opt = trained("adamw", groups)
        flat = get_optimizer_state_dict(model, opt, options=StateDictOptions(flatten_optimizer_state_dict=True))
        named = get_optimizer_state_dict(model, opt)
        pt = os.path.join(tmp, f"flat-{groups}.pt")
        torch.save({"model": model.state_dict(), "optimizer": flat}, pt)
        write("rekey", pt, pt + ".name.pt", "--key-by", "name")
        same(load(pt + ".name.pt")["optimizer"], named, f"flattened {groups}")
        write("rekey", pt + ".name.pt", pt + ".flat.pt", "--key-by", "name", "--flatten")
        same(load(pt + ".flat.pt")["optimizer"], flat, f"to flattened {groups}")
        write("rekey", pt, pt + ".id.pt", "--key-by", "id")
        same(load(pt + ".id.pt")["optimizer"], opt.state_dict(), f"flattened to ids {groups}")
        folder = os.path.join(tmp, f"flat-{groups}")
        dcp.save({"model": model.state_dict(), "optimizer": flat}, checkpoint_id=folder)
        write("rekey", folder, folder + "-name", "--key-by", "name")
        same(load(folder + "-name")["optimizer"], named, f"flattened folder {groups}")
        write("rekey", folder + "-name", folder + "-flat", "--key-by", "name", "--flatten")
        same(load(folder + "-flat")["optimizer"], flat, f"folder to flattened {groups}")


def uncertain(tmp):
    model = Equal()
    opt = torch.optim.AdamW([{"params": [model.c.weight, model.b.weight], "lr": 0.1}, {"params": [model.a.weight]}])
    model(torch.randn(2, 3)).sum().backward()
    opt.step()
    pt, out = os.path.join(tmp, "equal.pt"), os.path.join(tmp, "out.pt")
    whole = {"model": model.state_dict(), "optimizer": opt.state_dict()}
    torch.save(whole, pt)
    refused("REKEY_AMBIGUOUS", "rekey", pt, out, "--key-by", "name", words=["'a.weight'", "'b.weight'", "--names"])
    names = os.path.join(tmp, "order.json")
    with open(names, "w", encoding="utf-8") as f:
        json.dump(["c.weight", "b.weight", "a.weight"], f)
    write("rekey", pt, out, "--key-by", "name", "--names", names)
    same(load(out)["optimizer"], {**by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, model, opt),
                                  "param_groups": load(out)["optimizer"]["param_groups"]}, "--names")
    check(load(out)["optimizer"]["param_groups"][0]["params"] == ["c.weight", "b.weight"], "the order of the group")
    # PyTorch's own rekey sorts the names: their order is lost.
    lost = by_pytorch(opt.state_dict(), OptimStateKeyType.PARAM_NAME, model, opt)
    check(lost["param_groups"][0]["params"] == ["b.weight", "c.weight"], "PyTorch sorts")
    torch.save({"optimizer": lost}, pt + ".lost.pt")
    refused("REKEY_AMBIGUOUS", "rekey", pt + ".lost.pt", out + "2.pt", "--key-by", "id", words=["sorted", "'b.weight'", "'c.weight'"])
    write("rekey", pt + ".lost.pt", out + "2.pt", "--key-by", "id", "--names", names)
    check([g["params"] for g in load(out + "2.pt")["optimizer"]["param_groups"]] == [[0, 1], [2]], "the order of --names comes back")
    # Numbers count through groups: without shapes, names in the model's order would give a bias the state of a weight.
    model = torch.nn.Sequential(torch.nn.Linear(7, 7), torch.nn.Linear(7, 7))
    opt = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": [p for p in model.parameters() if p.dim() == 1]}])
    model(torch.randn(2, 7)).sum().backward()
    opt.step()
    torch.save(opt.state_dict(), pt + ".groups.pt")
    torch.save(model.state_dict(), pt + ".model.pt")
    in_model = [n for n, _ in model.named_parameters()]
    in_groups = [n for n in in_model if n.endswith("weight")] + [n for n in in_model if n.endswith("bias")]
    words = ["rekey", pt + ".groups.pt", out + "5.pt", "--key-by", "name", "--names", names]
    for order, code in ((in_model, "SHAPE"), (in_groups, None)):
        with open(names, "w", encoding="utf-8") as f:
            json.dump(order, f)
        refused("REKEY_AMBIGUOUS", *words, words=["2 groups", "--model PATH"])
        if code:
            refused(code, *words, "--model", pt + ".model.pt", words=["parameter 1", "'0.bias'"])
    write(*words, "--model", pt + ".model.pt")
    by_name = load(out + "5.pt")["state"]
    check(all(torch.equal(by_name[n]["exp_avg"], opt.state_dict()["state"][i]["exp_avg"]) for i, n in enumerate(in_groups)), "several groups")
    with open(names, "w", encoding="utf-8") as f:
        json.dump(["c.weight", "b.weight", "a.weight"], f)
    # A list for another optimizer.
    with open(names, "w", encoding="utf-8") as f:
        f.write("c.weight\nb.weight\n")
    refused("KEY", "rekey", pt, out + "3.pt", "--key-by", "name", "--names", names, words=["3 parameters"])
    # Shapes that contradict the order.
    model, opt = trained("adamw", "one")
    wrong = [n for n, _ in model.named_parameters()][::-1]
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, pt)
    with open(names, "w", encoding="utf-8") as f:
        json.dump(wrong, f)
    refused("SHAPE", "rekey", pt, out + "4.pt", "--key-by", "name", "--names", names, words=["parameter 0", "[1]", "'out.weight'", "[6, 7]"])
    # Names that occur twice in JSON maps, and invalid text.
    with open(names, "w", encoding="utf-8") as f:
        f.write('["a", 3]')
    refused("JSON", "rekey", pt, out + "6.pt", "--key-by", "name", "--names", names, words=["name 2"])
