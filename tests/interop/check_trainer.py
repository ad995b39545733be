#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the Hugging Face Trainer: read, and written for the Trainer to resume from with the same losses.

  python check_trainer.py --tool PATH

The Trainer itself trains and saves, on one rank without FSDP and on one and two with it (hf_trainer.py).
"""
import argparse
import functools
import glob
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import hf_trainer
import rekey_tool
import tried
from ranks import run_ranks
from rekey_tool import check, load, run, same

import torch
from accelerate.utils.fsdp_utils import merge_fsdp_weights
from safetensors.torch import load_file

KINDS = {"plain": (1, None, None), "full": (1, 1, "FULL"), "fsdp1": (2, 1, "SHARDED"), "fsdp2": (2, 2, "SHARDED")}


class Runs:
    """One run of each kind, made once for all checks."""

    def __init__(self, tmp):
        self.saved, self.resumed = {}, {}
        for kind, (world, *how) in KINDS.items():
            folder = os.path.join(tmp, kind)
            losses = run_ranks(world, hf_trainer.trained, folder, *how)[0]
            self.saved[kind] = os.path.join(folder, "checkpoint-2")
            self.resumed[kind] = run_ranks(world, hf_trainer.trained, folder + "-resumed", *how, self.saved[kind])[0]
            # With FSDP1 on two ranks the Trainer itself goes on a little differently after it has resumed.
            check(kind == "fsdp1" or self.resumed[kind] == losses[2:], f"{kind}: {losses}, resumed {self.resumed[kind]}")
            check(len(set(losses)) == 4, "nothing was trained")

    def resumes(self, folder, kind, like):
        """The Trainer goes on from `folder`, which was made of a checkpoint of the kind `like`, as from its own of `kind`: with the same losses."""
        for beside in ("trainer_state.json", "scheduler.pt"):
            shutil.copy(os.path.join(self.saved[like], beside), folder)
        world, *how = KINDS[kind]
        got, want = run_ranks(world, hf_trainer.trained, folder + "-run", *how, folder)[0], self.resumed[kind]
        off = max(abs(a - b) for a, b in zip(got, want))
        check(len(got) == len(want) == 2 and off <= (0 if kind == like else 2e-6), f"{folder}: losses {got}, expected {want}")


def write_names(tmp):
    """The names of the parameters in the order in which the Trainer's optimizer numbers them: decayed ones first."""
    model = hf_trainer.model()
    decayed = hf_trainer.Trainer(model, hf_trainer.TrainingArguments(tmp, use_cpu=True)).get_decay_parameter_names(model)
    path, names = os.path.join(tmp, "names.txt"), [n for n, _ in model.named_parameters()]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([n for n in names if n in decayed] + [n for n in names if n not in decayed]))
    return path


def reading(runs, tmp):
    for kind, folder in runs.saved.items():
        text = run("verify", folder)
        check("sound" in text and "trainer_state.json" not in text, text)
        check(run("latest", os.path.dirname(folder)).split("\n")[0] == os.path.dirname(folder) + "/checkpoint-4", kind)
        out = os.path.join(tmp, f"{kind}.pt")
        run("consolidate", folder, out)
        got = torch.load(out, weights_only=False)
        if kind in ("fsdp1", "fsdp2"):
            merged = os.path.join(tmp, f"{kind}-merged")
            merge_fsdp_weights(os.path.join(folder, "pytorch_model_fsdp_0"), merged, safe_serialization=False)
            model = torch.load(os.path.join(merged, "pytorch_model.bin"))
            optimizer = load(os.path.join(folder, "optimizer_0"))["optimizer"]
        else:
            weights, states = ("model.safetensors", "optimizer.pt") if kind == "plain" else ("pytorch_model_fsdp.bin", "optimizer.bin")
            path = os.path.join(folder, weights)
            model = load_file(path) if kind == "plain" else torch.load(path)
            optimizer = torch.load(os.path.join(folder, states))
        same(dict(got["model"]), dict(model), f"{kind}: model")
        same(got["optimizer"], optimizer, f"{kind}: optimizer")
        same(got["scheduler"], torch.load(os.path.join(folder, "scheduler.pt")), f"{kind}: scheduler")
        for path in glob.glob(os.path.join(folder, "rng_state*.pth")):
            want = torch.load(path, weights_only=False)
            same(got[os.path.basename(path)[:-4]]["cpu"], want["cpu"], path)
    # The Trainer's own class, which only loading by Python could run.
    text = run("verify", os.path.join(runs.saved["plain"], "training_args.bin"), expect=1)
    check("'transformers.training_args.TrainingArguments'" in text, text)
    for kind, layout in (("plain", "Trainer"), ("full", "Trainer, FSDP1, `FULL_STATE_DICT`"), ("fsdp1", "Trainer, FSDP1, `SHARDED_STATE_DICT`"),
                         ("fsdp2", "Trainer, FSDP2, `SHARDED_STATE_DICT`")):
        tried.record("transformers", layout, "verify, latest, consolidate", "bit for bit what PyTorch and Accelerate read", ranks=KINDS[kind][0])
    tried.record("transformers", "`training_args.bin`", "verify", "unsafe: its class is named")


def to_other_ranks(runs, tmp):
    for kind in ("fsdp1", "fsdp2"):
        for world in (1, 2, 3):
            out = os.path.join(tmp, f"{kind}-{world}")
            run("convert", runs.saved[kind], out, "--to", "accelerate", "--world-size", str(world), "--drop-values")
            run("verify", out)
            runs.resumes(out, kind, kind)
        tried.record("transformers", f"Trainer, FSDP{kind[-1]}, `SHARDED_STATE_DICT`", "convert, verify",
                     "to 1, 2 and 3 ranks; the Trainer resumes on 2 with exactly the same losses", ranks=2)


def keeps_its_layout(runs, tmp):
    for kind in ("fsdp1", "fsdp2"):
        source, out = runs.saved[kind], os.path.join(tmp, kind)
        text = run("reshard", source, out, "--world-size", "4")
        check("rng_state_2.pth, rng_state_3.pth: is not there" in text, text)
        run("verify", out)
        for name in ("trainer_state.json", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
            paths = [os.path.join(folder, name) for folder in (source, out)]
            check(open(paths[0], "rb").read() == open(paths[1], "rb").read(), name)
        check(set(os.listdir(out)) == set(os.listdir(source)), f"{os.listdir(out)}, expected {os.listdir(source)}")
        # Four ranks have half the rows each: the sums are others.
        got, want = run_ranks(4, hf_trainer.trained, out + "-run", *KINDS[kind][1:], out)[0], runs.resumed[kind]
        check(len(got) == len(want) == 2 and max(abs(a - b) for a, b in zip(got, want)) <= 2e-5, f"{kind}: losses {got}, expected {want}")
        tried.record("transformers", f"Trainer, FSDP{kind[-1]}, `SHARDED_STATE_DICT`", "reshard, verify",
                     "to 4 ranks, with all that lies beside; the Trainer resumes with the same losses", ranks=2)


def from_full(runs, tmp):
    for kind in ("fsdp1", "fsdp2"):
        out = os.path.join(tmp, kind)
        run("convert", runs.saved["full"], out, "--to", "accelerate", "--world-size", "2", "--drop-values")
        runs.resumes(out, kind, "full")
    tried.record("transformers", "Trainer, FSDP1, `FULL_STATE_DICT`", "convert", "to 2 ranks; the Trainer resumes with FSDP1 and FSDP2, with the same losses", ranks=1)


def between_versions(runs, tmp):
    for kind, other in (("fsdp1", "fsdp2"), ("fsdp2", "fsdp1")):
        out = os.path.join(tmp, kind)
        run("convert", runs.saved[kind], out, "--to", "accelerate", "--world-size", "2", "--drop-values")
        runs.resumes(out, other, kind)
        tried.record("transformers", f"Trainer, FSDP{kind[-1]}, `SHARDED_STATE_DICT`", "convert",
                     f"the Trainer resumes with FSDP{other[-1]} and the same losses", ranks=2)


def to_plain(runs, tmp):
    for kind in ("fsdp1", "fsdp2"):
        out, by_id = os.path.join(tmp, kind), os.path.join(tmp, kind + "-by-id")
        os.makedirs(out)
        run("consolidate", runs.saved[kind], os.path.join(out, "model.safetensors"), "-k", "model.**", "--strip-prefix", "model")
        run("rekey", os.path.join(runs.saved[kind], "optimizer_0"), by_id, "--key-by", "id", "--names", write_names(tmp))
        run("consolidate", by_id, os.path.join(out, "optimizer.pt"), "--strip-prefix", "optimizer")
        runs.resumes(out, "plain", kind)
        tried.record("transformers", f"Trainer, FSDP{kind[-1]}, `SHARDED_STATE_DICT`", "consolidate, rekey",
                     "the Trainer resumes without FSDP on 1 rank, with the same losses", ranks=2)


def from_plain(runs, tmp):
    source, joined = runs.saved["plain"], os.path.join(tmp, "joined")
    os.makedirs(joined)
    for beside in ("model.safetensors", "scheduler.pt"):
        shutil.copy(os.path.join(source, beside), joined)
    run("rekey", os.path.join(source, "optimizer.pt"), os.path.join(joined, "optimizer.pt"), "--key-by", "name", "--names", write_names(tmp),
        "--model", os.path.join(source, "model.safetensors"))
    for kind in ("fsdp1", "fsdp2"):
        out = os.path.join(tmp, kind)
        run("convert", joined, out, "--to", "accelerate", "--world-size", "2")
        runs.resumes(out, kind, "plain")
    tried.record("transformers", "Trainer", "rekey, convert", "to 2 ranks; the Trainer resumes with FSDP1 and FSDP2, with the same losses", ranks=1)


def accelerated(rank, world, folder, load_from=None):
    """Accelerate without the Trainer, FSDP2: trains and saves by save_state, or loads into another start by load_state.  Returns weights and states,
    and the random state and the count of steps."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    hf_trainer.shard_on_cpu()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT", auto_wrap_policy="transformer_based_wrap",
                                            transformer_cls_names_to_wrap=["LlamaDecoderLayer"], sync_module_states=False)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = hf_trainer.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5 if load_from else 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    torch.manual_seed(7 if load_from else 1000 + rank)
    ids = torch.arange(6)[None] + rank
    accelerator.backward(model(input_ids=ids, labels=ids).loss)
    optimizer.step()
    scheduler.step()
    if load_from:
        accelerator.load_state(load_from)
    else:
        accelerator.step = 5
        accelerator.save_state(folder, safe_serialization=True)
    names = {id(p): n for n, p in model.named_parameters()}
    states = {names[id(p)]: {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in s.items()} for p, s in optimizer.optimizer.state.items()}
    return {n: p.full_tensor() for n, p in model.named_parameters()}, states, optimizer.param_groups[0]["lr"], scheduler.state_dict()["last_epoch"], \
        (torch.get_rng_state(), accelerator.step)


def save_state(_, tmp):
    folder = os.path.join(tmp, "saved")
    want = run_ranks(2, accelerated, folder)[0]
    text = run("verify", folder)
    check("sound" in text and "random_states_0.pkl" in text, text)
    for world in (1, 3):
        out = os.path.join(tmp, f"on_{world}")
        run("convert", folder, out, "--to", "accelerate", "--world-size", str(world))
        for got in run_ranks(2, accelerated, folder, out):
            same(got[:4], want[:4], f"load_state from {world}")
    tried.record("accelerate", "FSDP2, `save_state`", "convert, verify", "to 1 and 3 ranks; its load_state loads the same bits on 2", ranks=2)


def save_state_on_other_ranks(_, tmp):
    for before, after in ((2, 3), (4, 2)):
        folder, out = os.path.join(tmp, f"saved_on_{before}"), os.path.join(tmp, f"on_{after}")
        was = run_ranks(before, accelerated, folder)
        text = run("reshard", folder, out, "--world-size", str(after))
        run("verify", out)
        check(("random_states_2.pkl: is new: holds step" in text) == (after > before), text)
        for rank, got in enumerate(run_ranks(after, accelerated, folder, out)):
            same(got[:4], was[0][:4], f"{before} to {after}, rank {rank}")
            check(got[4][1] == 5, f"rank {rank}: step {got[4][1]}")
            if rank < before:
                check(torch.equal(got[4][0], was[rank][4][0]), f"rank {rank}: its random state is another")
            else:
                check(all(not torch.equal(got[4][0], other[4][0]) for other in was), f"rank {rank} got another's random state")
        tried.record("accelerate", "FSDP2, `save_state`", "reshard, verify", f"{before} to {after} ranks; its load_state loads the same bits", ranks=before)


CHECKS = {"reading": reading, "to_other_ranks": to_other_ranks, "keeps_its_layout": keeps_its_layout, "from_full": from_full, "between_versions": between_versions,
          "to_plain": to_plain, "from_plain": from_plain, "save_state": save_state, "save_state_on_other_ranks": save_state_on_other_ranks}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        runs = Runs(tmp)
        return 1 if rekey_tool.run_checks(args.tool, {name: functools.partial(body, runs) for name, body in CHECKS.items()}, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
