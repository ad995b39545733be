#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks how fsdp-ckpt treats optimizers in FairScale's shards that contradict each other or the metadata.

  python check_shards.py GOLDEN --tool PATH      GOLDEN is tests/data/golden

check_consolidate.py checks the same folders without damage.
"""
import argparse
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
import torch

CASES = {"fairscale_trainer_w3": ("checkpoint_last-shard{}.pt", "last_optimizer_state", 3), "fairscale_parameters_w2": ("ckpt_rank{}.pt", "optimizer", 2)}


class Folder:
    """A copy of a case, edited rank by rank."""

    def __init__(self, golden, name, tmp, tool):
        self.file, self.key, self.world = CASES[name]
        self.tool, self.tmp = tool, tmp
        self.path = os.path.join(tmp, name)
        shutil.copytree(os.path.join(golden, "frameworks", name, "ckpt"), self.path)

    def edit(self, change, ranks=None):
        for rank in range(self.world) if ranks is None else ranks:
            path = os.path.join(self.path, self.file.format(rank))
            saved = torch.load(path, weights_only=False)
            change(saved)
            torch.save(saved, path)

    def run(self, *args):
        done = subprocess.run([self.tool, *args], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def refused(self, *said):
        """verify reports damage, and nothing is written."""
        status, text = self.run("verify", self.path)
        assert status == 1 and all(s in text for s in said), (status, text)
        out = os.path.join(self.tmp, "none.pt")
        status, text = self.run("consolidate", self.path, out)
        assert status == 2 and not os.path.exists(out), (status, text)

    def left_out(self, said):
        """verify warns, and the output has everything except the optimizer."""
        status, text = self.run("verify", self.path, "--json")
        found = json.loads(text)["findings"]
        assert status == 0 and any(f["code"] == "EXTRA_FILE" and said in f["message"] for f in found), (status, text)
        out = os.path.join(self.tmp, "out.pt")
        status, text = self.run("consolidate", self.path, out, "--force")
        assert status == 0, text
        saved = torch.load(out)
        assert self.key not in saved and "inp.weight" in saved["model"], list(saved)

    def whole(self):
        out = os.path.join(self.tmp, "out.pt")
        status, text = self.run("consolidate", self.path, out, "--force")
        assert status == 0, text
        return torch.load(out)[self.key]


def shorter(folder):
    def change(saved):
        state = saved[folder.key]["state"][0]
        state["exp_avg"] = state["exp_avg"][:-1].clone()
    folder.edit(change, [1])
    folder.refused("damage[SHAPE]", "elements")


def another_type_on_one_rank(folder):
    def change(saved):
        state = saved[folder.key]["state"][0]
        state["exp_avg"] = state["exp_avg"].double()
    folder.edit(change, [1])
    folder.refused("damage[DTYPE]", "ranks differ in type")


def in_rows(folder):
    def change(saved):
        state = saved[folder.key]["state"][0]
        state["exp_avg_sq"] = state["exp_avg_sq"].reshape(1, -1)
    folder.edit(change, [0])
    folder.refused("damage[SHAPE]", "is not flat")


def lost_on_one_rank(folder):
    folder.edit(lambda saved: saved.pop(folder.key), [1])
    folder.refused("damage[META_TYPE]", "is not an optimizer state like those of other ranks")


def another_optimizer_on_one_rank(folder):
    def change(saved):
        saved[folder.key]["param_groups"][0]["params"].pop()
    folder.edit(change, [1])
    folder.refused("damage[META_TYPE]", "is not an optimizer state like those of other ranks")


def a_state_lost_on_one_rank(folder):
    folder.edit(lambda saved: saved[folder.key]["state"].pop(0), [1])
    folder.refused("damage[HOLE]", f"'{folder.key}.state.inp.weight.exp_avg'")


def half_a_state_lost_on_one_rank(folder):
    rank = 1 if folder.world == 3 else 0
    folder.edit(lambda saved: saved[folder.key]["state"][0].pop("exp_avg_sq"), [rank])
    folder.refused("damage[HOLE]", f"'{folder.key}.state.inp.weight.exp_avg_sq'")


def several_groups(folder):
    def change(saved):
        group = saved[folder.key]["param_groups"][0]
        other = copy.deepcopy(group)
        other["params"] = [group["params"].pop()]
        saved[folder.key]["param_groups"].append(other)
    folder.edit(change)
    folder.left_out("2 parameter groups")


def other_parameters(folder):
    folder.edit(lambda saved: saved[folder.key]["param_groups"][0]["params"].append(len(saved[folder.key]["param_groups"][0]["params"])))
    folder.left_out("parameters, and the metadata are of")


def names_for_numbers(folder):
    def change(saved):
        params = saved[folder.key]["param_groups"][0]["params"]
        saved[folder.key]["param_groups"][0]["params"] = [f"p{i}" for i in params]
    folder.edit(change)
    folder.left_out("its parameters are not numbered")


def a_state_of_no_parameter(folder):
    folder.edit(lambda saved: saved[folder.key]["state"].update({99: {"step": 1}}))
    folder.left_out("a state of a parameter that it does not list")


def more_entries_than_any_optimizer_has(folder):
    """Each would apply to every parameter."""
    folder.edit(lambda saved: saved[folder.key]["state"][0].update({f"k{i}": i for i in range(1000)}), [0])
    folder.refused("damage[LIMIT_NODES]", "more than 64 entries")


def never_stepped(folder):
    """No state at all: an optimizer with only its group."""
    folder.edit(lambda saved: saved[folder.key]["state"].clear())
    optimizer = folder.whole()
    assert list(optimizer["param_groups"][0]["params"])[0] == "inp.weight" and not optimizer.get("state"), optimizer


def parameters_without_a_gradient(folder):
    """They have no state; the others keep theirs under their own names."""
    before = folder.whole()["state"]
    folder.edit(lambda saved: saved[folder.key]["state"].pop(0))
    after = folder.whole()["state"]
    gone = set(before) - set(after)
    assert "inp.weight" in gone and "scale.one" in after, gone
    assert all(torch.equal(after[n]["exp_avg"], before[n]["exp_avg"]) for n in after)


def values_beside_the_states(folder):
    """Like fairseq's loss scale: the lowest rank's value."""
    def change(saved):
        saved[folder.key]["loss_scale"] = 128.0
        saved[folder.key]["param_groups"][0]["lr"] = torch.tensor(0.5)
    folder.edit(change)
    optimizer = folder.whole()
    assert optimizer["loss_scale"] == 128.0 and optimizer["param_groups"][0]["lr"] == torch.tensor(0.5), optimizer


def steps_that_are_integers(folder):
    """The form of before PyTorch 1.12."""
    def change(saved):
        for state in saved[folder.key]["state"].values():
            state["step"] = 2
    folder.edit(change)
    assert all(state["step"] == 2 and isinstance(state["step"], int) for state in folder.whole()["state"].values())


CHECKS = [shorter, another_type_on_one_rank, in_rows, lost_on_one_rank, another_optimizer_on_one_rank, a_state_lost_on_one_rank,
          half_a_state_lost_on_one_rank, several_groups, other_parameters, names_for_numbers, a_state_of_no_parameter,
          more_entries_than_any_optimizer_has, never_stepped, parameters_without_a_gradient, values_beside_the_states, steps_that_are_integers]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("golden")
    ap.add_argument("--tool", required=True)
    args = ap.parse_args()
    passed = True
    for check in CHECKS:
        for case in CASES:
            with tempfile.TemporaryDirectory() as tmp:
                try:
                    check(Folder(args.golden, case, tmp, args.tool))
                    print(f"PASS  {check.__name__} {case}", flush=True)
                except Exception as why:
                    passed = False
                    print(f"FAIL  {check.__name__} {case}: {type(why).__name__}: {why}", flush=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
