# SPDX-License-Identifier: Apache-2.0
"""Values that hold themselves, by Python's own pickler: PyTorch reads the tool's output back as the same graph.

    check_cycles.py TOOL [PRODUCERS]       PRODUCERS: tests/data/producers, whose other contents PyTorch reads back too

Files and folders, whole and without the key that holds itself; `verify` reports that the key is unknown, and no damage.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")

import torch
import torch.distributed.checkpoint as dcp

failures, checks = [], 0


def check(what, ok, *details):
    global checks
    checks += 1
    if not ok:
        failures.append(what + "".join(f"\n    {d}" for d in details))


def run(tool, *args, status=0):
    done = subprocess.run([tool, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check(f"{' '.join(args)}: exit {done.returncode}", done.returncode == status, done.stderr, done.stdout[-1000:])
    return done.stdout


def graphs():
    """Each holds itself in another way."""
    self_dict = {"n": 1}
    self_dict["self"] = self_dict
    self_list = [1, [2]]
    self_list[1].append(self_list)
    parent = argparse.Namespace(name="parent")
    parent.children = [argparse.Namespace(up=parent, n=n, first=None) for n in range(3)]
    for child in parent.children:
        child.first = parent.children[0]
    shared = {"up": None}
    shared["up"] = outer = {"inner": shared}
    several = {"outer": outer, "shared": shared, "again": shared}
    many = []
    many.append([many, {"k": (many, 5)}])
    return {"self_dict": self_dict, "self_list": self_list, "namespace": parent, "several": several, "many": many}


def shape(value, seen, out):
    """The graph as a list: every container once, then by its number."""
    if isinstance(value, (dict, list, tuple, argparse.Namespace)) and value != ():
        if id(value) in seen:
            out.append(("again", seen[id(value)]))
            return out
        seen[id(value)] = len(seen)
        out.append((type(value).__name__, len(vars(value) if isinstance(value, argparse.Namespace) else value)))
        if isinstance(value, argparse.Namespace):
            value = vars(value)
        for part in value.items() if isinstance(value, dict) else enumerate(value):
            out.append(part[0])
            shape(part[1], seen, out)
    elif isinstance(value, torch.Tensor):
        out.append(value.tolist())
    else:
        out.append(value)
    return out


def same(what, a, b):
    left, right = shape(a, {}, []), shape(b, {}, [])
    check(f"{what}: another graph", left == right, left, right)


def unknown_keys(tool, path):
    report = json.loads(run(tool, "verify", path, "--json"))
    check(f"{path}: verdict {report['verdict']}", report["verdict"] == "unknown", report["findings"])
    check(f"{path}: findings", all(f["severity"] == "unknown" and f["code"] == "CYCLE" for f in report["findings"]), report["findings"])
    return {f["key"] for f in report["findings"]}


def of_graphs(tool, tmp):
    for name, graph in graphs().items():
        state = {"w": torch.arange(6.0).view(2, 3), "state": (graph,), "step": 7}
        source, out = os.path.join(tmp, name + ".pt"), os.path.join(tmp, name + ".out.pt")
        torch.save(state, source)
        keys = unknown_keys(tool, source)
        check(f"{name}: keys", keys and all(k.startswith("state") for k in keys), keys)
        run(tool, "consolidate", source, out)
        # Two keys that share one dict get one each, with cycles or without.
        if name != "several":
            same(name, state, torch.load(out, weights_only=False))
            run(tool, "diff", source, out)
        run(tool, "consolidate", source, out, "--force", "--exclude", "state", "--exclude", "state.**")
        rest = torch.load(out, weights_only=True)
        check(f"{name}: the rest", rest.keys() == {"w", "step"} and rest["step"] == 7 and torch.equal(rest["w"], state["w"]), rest)
        # As one item of a folder.
        folder = os.path.join(tmp, name)
        dcp.save({"w": state["w"], "graph": argparse.Namespace(graph=graph), "step": 7}, checkpoint_id=folder, no_dist=True)
        check(f"{name}: key of the folder", unknown_keys(tool, folder) == {"graph"})
        run(tool, "consolidate", folder, out, "--force")
        same(name + " in a folder", graph, torch.load(out, weights_only=False)["graph"].graph)
        run(tool, "diff", folder, out)
        run(tool, "reshard", folder, folder + "-2", "--world-size", "2")
        run(tool, "diff", folder, folder + "-2")
    # The whole state dict in itself.
    state = {"w": torch.ones(2)}
    state["self"] = state
    source, out = os.path.join(tmp, "whole.pt"), os.path.join(tmp, "whole.out.pt")
    torch.save(state, source)
    check("the whole: keys", unknown_keys(tool, source) == {"self"})
    run(tool, "consolidate", source, out)
    same("the whole", state, torch.load(out, weights_only=True))


def of_producers(tool, tmp, producers):
    """Cases that need only PyTorch."""
    out = os.path.join(tmp, "producer.pt")
    run(tool, "consolidate", os.path.join(producers, "python_objects.pt"), out)
    values = torch.load(out, weights_only=False)
    source = torch.load(os.path.join(producers, "python_objects.pt"), weights_only=False)
    check("python objects", repr(values) == repr(source), values, source)
    run(tool, "consolidate", os.path.join(producers, "jagged.pt"), out, "--force")
    a, b = torch.load(out, weights_only=False)["jagged"], torch.load(os.path.join(producers, "jagged.pt"), weights_only=False)["jagged"]
    check("jagged", a.layout == torch.jagged and [x.tolist() for x in a.unbind()] == [x.tolist() for x in b.unbind()], a, b)
    run(tool, "consolidate", os.path.join(producers, "megatron"), out, "--force")
    state = torch.load(out, weights_only=True)
    check("megatron", torch.equal(state["decoder.w"], torch.arange(32.0).view(8, 4)) and torch.equal(state["decoder.b"], torch.arange(4.0))
          and state["iteration"] == 7 and state["optimizer"] == {"param_groups": [{"lr": 0.5}]}, state)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        of_graphs(sys.argv[1], folder)
        if len(sys.argv) > 2:
            of_producers(sys.argv[1], folder, sys.argv[2])
    print("\n".join(failures))
    print(f"{checks} checks, {len(failures)} failed")
    sys.exit(1 if failures or checks < 60 else 0)
