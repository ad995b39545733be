#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks `fsdp-ckpt groups` by PyTorch's optimizers: they load what it writes, and their steps are those of an optimizer that
was built with the groups.

    check_groups.py --tool PATH
"""
import argparse
import copy
import os
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import torch
import torch.distributed.checkpoint as dcp

from check_edits import load, same
from tool_run import check, run


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.down(torch.relu(self.norm(self.up(x))))


def net():
    torch.manual_seed(1)
    return Net()


def step(model, optimizer, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()


def is_bias(name):
    return name.endswith(".bias")


def grouped(model, optimizer_class, split, named, **options):
    """An optimizer with one group, or with weights in one and biases in another that has no decay."""
    parameters = list(model.named_parameters())
    pick = (lambda items: items) if named else (lambda items: [parameter for _, parameter in items])
    if not split:
        return optimizer_class(pick(parameters), **options)
    return optimizer_class([{"params": pick([item for item in parameters if not is_bias(item[0])])},
                            {"params": pick([item for item in parameters if is_bias(item[0])]), "weight_decay": 0.0}], **options)


def with_ids(optim, names, order):
    """As the optimizer with these groups numbers its parameters."""
    ids = {name: i for i, name in enumerate(order)}
    state = {ids[names[key]]: item for key, item in optim["state"].items()}
    groups = [{**group, "params": [ids[names[key]] for key in group["params"]]} for group in optim["param_groups"]]
    return {"state": state, "param_groups": groups}


def resumed(model_state, optim, optimizer_class, split, named, **options):
    """The model after two more steps of an optimizer with such groups that loaded the state."""
    model = net()
    model.load_state_dict(model_state)
    optimizer = grouped(model, optimizer_class, split, named, **options)
    optimizer.load_state_dict(copy.deepcopy(optim))
    for seed in (7, 8):
        step(model, optimizer, seed)
    return model.state_dict(), optimizer.state_dict()


def split_and_join(tool, folder):
    count = 0
    for optimizer_class, options in ((torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.3}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.3})):
        for named in (False, True):
            model = net()
            optimizer = grouped(model, optimizer_class, False, named, **options)
            step(model, optimizer, 5)
            state = {"model": dict(model.state_dict()), "optim": optimizer.state_dict(), "step": 1}
            names = [name for name, _ in model.named_parameters()]
            # What PyTorch itself goes on with: the same moments, under an optimizer that has the two groups.
            order = [name for name in names if not is_bias(name)] + [name for name in names if is_bias(name)]
            model_two = net()
            two = grouped(model_two, optimizer_class, True, named, **options)
            template = two.state_dict()
            moved = {order.index(names[key]): item for key, item in state["optim"]["state"].items()}
            want = resumed(state["model"], {"state": moved, "param_groups": template["param_groups"]}, optimizer_class, True, named, **options)
            base = os.path.join(folder, f"{optimizer_class.__name__}{named}")
            torch.save(state, base + ".pt")
            dcp.save(state, checkpoint_id=base)
            run(tool, "rekey", base + ".pt", base + "-names.pt", "--key-by", "name")
            run(tool, "shard", base + "-names.pt", base + "-names", "--world-size", "2")
            for path in (base + ".pt", base, base + "-names.pt", base + "-names"):
                count += 1
                suffix = ".pt" if path.endswith(".pt") else ""
                out, back = f"{base}-out{count}{suffix}", f"{base}-back{count}{suffix}"
                said = run(tool, "groups", path, out, "--split", "**.bias", "weight_decay=0")
                check("optim: 1 group became 2" in said and "group 1: weight_decay: 0.3 -> 0.0" in said, said)
                check("sound" in run(tool, "verify", out), "not sound")
                got = load(out)
                same(got["model"], load(path)["model"])
                optim = got["optim"]
                if "names" in path:
                    loaded = with_ids(optim, {name: name for name in names}, order)
                elif suffix:
                    loaded = optim
                else:
                    loaded = with_ids(optim, {str(i): name for i, name in enumerate(names)} | dict(enumerate(names)), order)
                after = resumed(got["model"], loaded, optimizer_class, True, named, **options)
                same(after[0], want[0])
                same(after[1]["state"], want[1]["state"])
                check([group["weight_decay"] for group in after[1]["param_groups"]] == [0.3, 0.0], str(after[1]["param_groups"]))
                if named and suffix and "names" not in path:
                    check([group["param_names"] for group in optim["param_groups"]] ==
                          [[name for name in names if not is_bias(name)], [name for name in names if is_bias(name)]], "param_names")
                # Joined again, with the first one's decay; the order of parameters is that of the groups.
                err = run(tool, "groups", out, back, "--join", "0,1", expect=2)
                check("error[MISMATCH]" in err and "the groups differ in 'weight_decay'; --options-of N" in err, err)
                run(tool, "groups", out, back, "--join", "0,1", "--options-of", "0")
                joined = load(back)["optim"]
                same(joined["state"], load(path)["optim"]["state"])
                was = load(path)["optim"]["param_groups"][0]
                check(sorted(joined["param_groups"][0]["params"]) == sorted(was["params"]) and len(joined["param_groups"]) == 1, "params")
                same({k: v for k, v in joined["param_groups"][0].items() if not k.startswith("param")},
                     {k: v for k, v in was.items() if not k.startswith("param")})
                run(tool, "groups", out, back, "--join", "1,0", "weight_decay=0.5", "--force")
                check(load(back)["optim"]["param_groups"][0]["weight_decay"] == 0.5, "decay")
    print(f"groups: {count} optimizers go on as those that were built with the groups")


def flattened(tool, folder):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.3)
    step(model, optimizer, 5)
    path, flat, out, back = (os.path.join(folder, name) for name in ("f.pt", "flat", "flat-out", "flat-back"))
    torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, path)
    run(tool, "rekey", path, path + ".names.pt", "--key-by", "name", "--flatten")
    run(tool, "shard", path + ".names.pt", flat, "--world-size", "2")
    err = run(tool, "groups", flat, out, "--split", "**.bias", expect=2)
    check("error[USAGE]" in err and "differ only in their options" in err, err)
    run(tool, "groups", flat, out, "--split", "**.bias", "weight_decay=0")
    was, got = load(flat)["optim"], load(out)["optim"]
    check(set(was) == set(got), "keys")
    for key, item in was.items():
        want = 0.0 if key.endswith(".bias.weight_decay") else item
        same(got[key], want)
    run(tool, "groups", out, back, "--join", "0,1", "--options-of", "0")
    same(dict(sorted(load(back)["optim"].items())), dict(sorted(was.items())))
    print("groups: of a flattened optimizer")


def refusals(tool, folder):
    path, out = os.path.join(folder, "r.pt"), os.path.join(folder, "ro.pt")
    model = net()
    optimizer = grouped(model, torch.optim.AdamW, True, True)
    step(model, optimizer, 5)
    torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, path)
    lost, unclear = os.path.join(folder, "lost.pt"), os.path.join(folder, "unclear.pt")
    numbered = optimizer.state_dict()
    for group in numbered["param_groups"]:
        del group["param_names"]
    torch.save({"optim": numbered}, lost)
    torch.save({"model": model.state_dict(), "optim": numbered}, unclear)
    several = os.path.join(folder, "several.pt")
    torch.save({"optimizers": [optimizer.state_dict(), optimizer.state_dict()]}, several)
    tensor = os.path.join(folder, "tensor.pt")
    rates = torch.optim.AdamW(model.named_parameters(), lr=torch.tensor(0.1), capturable=False, foreach=False)
    torch.save(rates.state_dict(), tensor)
    bare = os.path.join(folder, "bare.pt")
    torch.save({"w": torch.ones(2)}, bare)
    for source, words, says in [
            (path, [], ["error[USAGE]", "give either --split GLOB or --join"]),
            (path, ["--split", "up.*", "--join", "0,1"], ["error[USAGE]"]),
            (path, ["--split", "upp.*"], ["error[NOT_FOUND]", "no parameter of an optimizer matches 'upp.*'"]),
            (path, ["--split", "**.bias"], ["error[USAGE]", "nothing would change"]),
            (path, ["--split", "up.*", "lr=fast"], ["error[TYPE]", "'lr' of group 2 is a float, and 'fast' is a str"]),
            (path, ["--split", "up.*", "lt=1"], ["error[NOT_FOUND]", "no option 'lt'; did you mean 'lr'?"]),
            (path, ["--split", "up.*", "params=1"], ["error[NOT_FOUND]"]),
            (path, ["--split", "up.*", "lr"], ["error[USAGE]", "OPTION=VALUE"]),
            (path, ["--split", "up.*", "--options-of", "0"], ["error[USAGE]", "--options-of is about --join"]),
            (path, ["--join", "0,1"], ["error[MISMATCH]", "'weight_decay'", "--options-of"]),
            (path, ["--join", "0,2"], ["error[NOT_FOUND]", "there is no group 2; the last is 1"]),
            (path, ["--join", "0,0"], ["error[USAGE]", "named twice"]),
            (path, ["--join", "0"], ["error[USAGE]", "two positions"]),
            (path, ["--join", "0,x"], ["error[USAGE]", "'x'"]),
            (path, ["--join", "0,1", "--options-of", "7"], ["error[NOT_FOUND]"]),
            (path, ["--split", "up.*", "--of", "optm"], ["error[NOT_FOUND]", "did you mean 'optim'?"]),
            (lost, ["--split", "up.*"], ["error[KEY]", "their names are unknown", "rekey --key-by name"]),
            (unclear, ["--split", "up.*"], ["error[REKEY_AMBIGUOUS]", "may be 'up.bias' or 'norm.bias'", "rekey --key-by name"]),
            (several, ["--join", "0,1", "--options-of", "0"], ["error[USAGE]", "holds 2 optimizers", "--of KEY"]),
            (tensor, ["--split", "up.*"], ["error[UNSUPPORTED]", "'lr' of group 0 is a tensor"]),
            (bare, ["--split", "up.*"], ["error[KEY]", "holds no optimizer state"])]:
        err = run(tool, "groups", source, out, *words, expect=2)
        for word in says:
            check(word in err, f"{words}: no {word!r} in {err}")
        check(not os.path.exists(out), f"{words}: written")
    run(tool, "groups", several, out, "--join", "0,1", "--options-of", "1", "--of", "optimizers.1")
    got = load(out)["optimizers"]
    check([len(one["param_groups"]) for one in got] == [2, 1] and got[1]["param_groups"][0]["weight_decay"] == 0.0, "one of two")
    print("refusals: groups")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        split_and_join(options.tool, folder)
        flattened(options.tool, folder)
        refusals(options.tool, folder)


if __name__ == "__main__":
    main()
