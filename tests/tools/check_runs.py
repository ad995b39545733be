#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes folders of runs at random, loses and mixes parts of their steps, and asks verify, latest and prune.

    check_runs.py --tool FSDP_CKPT --data tests/data [--count N] [--seconds N] [--seed N]

A run has a scheme of names (step_20, checkpoint-20, epoch=1-step=20.ckpt, 00000020, ...) and of parts (one folder of a layout, or
several folders and files), with other runs, links, logs and single files beside it. Every run is made from real checkpoints
(tests/data/golden). Some steps then lose a file, a part, or bytes; what was done is known, and nothing of the tool's code is used:

- verify calls a step sound only if no file of it was changed or lost, and lists each part;
- latest prints the whole newest step that has everything, never a part of a step;
- prune --keep N leaves the N newest of these, removes no step of another series, nothing newer, and nothing that a link leads to.

Prints a line of counts. Exit: 0 all held, 1 some did not; the folder of the first is kept.
"""
import argparse
import collections
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import sample  # noqa: E402

# Of the steps of a series: the number goes in.
NAMES = ["step_{n}", "step-{n}", "global_step{n}", "checkpoint-{n}", "iter_{n:07d}", "{n:08d}", "epoch_{n}", "ep{n}-ba{n}", "run7_step{n}",
         "model-{n}", "ckpt_{n}", "seed3-step{n}", "weird{n}x"]
FILE_NAMES = ["step_{n}.pt", "epoch={n}-step={n}.ckpt", "epoch={n}-val_loss=0.{n}.ckpt", "model_7B_step{n}.pt", "model-{n}.pt", "checkpoint_{n}.pth"]
# Parts: a name in the step, and what is there. The model comes first.
DCP, FILE = "golden/2.11.0/minimal/ckpt", "golden/2.11.0/zip_pt/full.pt"
PARTS = [
    {"model": DCP, "optimizer": DCP},
    {"policy/weights": DCP, "policy/optimizer": DCP, "train_dataloader.pt": FILE},
    {"model_and_optim": DCP, "train/rank0.pt": FILE, "train/rank1.pt": FILE},
    {"model": "golden/2.11.0/hf_plain/ckpt", "optim": DCP, "scheduler.pt": FILE},
    {"model": DCP, "optim": DCP, "trainer": DCP, "rng_state_0.pth": FILE},
    {"actor/model": DCP, "critic/model": DCP, "data.pt": FILE},
    {"model.pt": FILE, "optimizer.pt": FILE},
    {"net": DCP, "net_ema": DCP, "training_state.pt": FILE},
    {"weights.safetensors": None, "optimizer": DCP},
    {"unit_a": DCP, "unit_b": DCP, "optimizer.pt": FILE},
]
LAYOUTS = ["golden/2.11.0/minimal/ckpt", "golden/2.11.0/nested/ckpt", "golden/2.11.0/hf_plain/ckpt", "golden/2.11.0/hf_sharded/ckpt",
           "golden/2.11.0/many_files/ckpt", "golden/frameworks/accelerate_fsdp2_full_w2/ckpt",
           "golden/frameworks/accelerate_fsdp1_sharded_per_rank_w2/ckpt", "golden/frameworks/bin_shards/ckpt",
           "golden/frameworks/deepspeed_zero2_w2/ckpt", "golden/frameworks/deepspeed_zero3_w3/ckpt", "golden/frameworks/deepspeed_universal2_w2/ckpt",
           "golden/frameworks/per_rank_tp_w4/ckpt", "golden/frameworks/trainer_bin/ckpt", "golden/frameworks/trainer_safetensors/ckpt",
           "golden/frameworks/torch_checkpointing_boxes_w3/ckpt", "golden/frameworks/torch_checkpointing_safetensors_w2/ckpt"]
# Losing one of these leaves a sound checkpoint, as far as its producer's code goes.
NEEDED_NOT = ("config.json", "generation_config.json", "trainer_state.json", "training_args.bin", "latest", "zero_to_fp32.py", "README.md")


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)
    for path in [target, *target.rglob("*")] if target.is_dir() else [target]:
        path.chmod(0o755 if path.is_dir() else 0o644)


class Run:
    """One folder, and what has to be said of it."""

    def __init__(self, root, data, rng):
        self.root, self.data, self.rng = root, data, rng
        self.steps = {}     # path -> number
        self.damage = {}    # path -> what was done to it
        self.silent = set()  # lost so that nothing inside tells
        self.links = set()
        kind = rng.choice(["file", "layout", "parts", "parts"])
        self.names = rng.choice(FILE_NAMES if kind == "file" else NAMES)
        self.parts = {"": FILE} if kind == "file" else {"": rng.choice(LAYOUTS)} if kind == "layout" else rng.choice(PARTS)
        below = rng.choice(["", "", "results", "a/checkpoints"])
        numbers = sorted(rng.sample(range(1, 300), rng.randint(2, 4)))
        for number in numbers:
            self.make(root / below / self.names.format(n=number), number)
        self.kind, self.below, self.numbers = kind, below, numbers
        self.tells = "weird" not in self.names
        self.around()
        self.harm()

    def make(self, path, number):
        for part, source in self.parts.items():
            if source is None:
                source = "golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors"
            copy(self.data / source, path / part if part else path)
        self.steps[path] = number

    def around(self):
        """What lies beside steps in a run's folder, and is none of them."""
        rng = self.rng
        if rng.random() < 0.4:
            (self.root / "logs").mkdir(exist_ok=True)
            (self.root / "logs" / "events.out").write_bytes(b"x" * 100)
            (self.root / "config.yaml").write_text("lr: 1\n")
        if rng.random() < 0.3:
            target = rng.choice(sorted(self.steps))
            deep = self.root / "best/of/all"
            deep.mkdir(parents=True)
            (deep / "link").symlink_to(target)
            self.links.add(target)

    def harm(self):
        rng = self.rng
        for path in sorted(self.steps):
            if rng.random() < 0.55:
                continue
            files = [f for f in ([path] if path.is_file() else sorted(path.rglob("*"))) if f.is_file()]
            files = [f for f in files if f.name not in NEEDED_NOT and f.stat().st_size > 0]
            how = rng.choice(["cut", "lose", "part"])
            if how == "part" and len(self.parts) > 1:
                part = rng.choice(sorted(self.parts))
                self.silent.add(path)
                self.damage[path] = f"part {part}"
                target = path / part
                shutil.rmtree(target) if target.is_dir() else target.unlink()
            elif how == "lose" and path.is_dir() and self.kind == "parts":
                data = [f for f in files if f.suffix == ".distcp"]
                if data:
                    lost = rng.choice(data)
                    lost.unlink()
                    self.damage[path] = f"lost {lost.relative_to(path)}"
            else:
                data = [f for f in files if f.suffix in (".distcp", ".pt", ".pth", ".bin", ".safetensors", ".ckpt")]
                if data:
                    cut = rng.choice(data)
                    with open(cut, "r+b") as f:
                        f.truncate(f.seek(0, 2) - rng.randint(1, 40))
                    self.damage[path] = f"cut {cut.relative_to(path)}"

    def whole(self):
        """Steps that have everything, the newest first; a lost part is known by the step before, if that has it."""
        return [path for path in sorted(self.steps, key=self.steps.get, reverse=True) if path not in self.damage]


class Check:
    def __init__(self, tool):
        self.tool = tool
        self.counts = collections.Counter()

    def run(self, *words):
        done = subprocess.run([self.tool, *map(str, words)], capture_output=True, text=True, timeout=60)
        self.counts[words[0]] += 1
        return done.returncode, done.stdout, done.stderr

    def verify(self, run):
        for path in run.steps:
            status, out, err = self.run("verify", path)
            harmed = path in run.damage and path not in run.silent
            if harmed and status == 0:
                return f"verify calls {path} sound: {run.damage[path]}"
            if path not in run.damage and status != 0:
                return f"verify {path}: {out}{err}"
            if path not in run.damage and len(run.parts) > 1:
                for part in run.parts:
                    # Files beside the folders may be one checkpoint of a layout.
                    own = "part .: sound\n" in out and "/" not in part and "." in part
                    if f"part {part}: sound\n" not in out and not own:
                        return f"verify {path} does not list {part}: {out}"
        return None

    def latest(self, run):
        status, out, err = self.run("latest", run.root)
        if status == 2:
            self.counts["refused"] += 1
            return None if not run.tells or run.kind == "file" or "LIMIT" in err or run.damage else f"latest refuses: {err}"
        said = out.strip()
        whole = run.whole()
        if status == 1:
            return None if not whole else f"latest finds nothing, {whole[0]} is whole: {err}"
        if pathlib.Path(said) not in run.steps:
            return f"latest prints what is no step: {said}"
        if pathlib.Path(said) in run.damage and pathlib.Path(said) not in run.silent:
            return f"latest prints {said}: {run.damage[pathlib.Path(said)]}"
        silent = pathlib.Path(said) in run.silent
        if silent and any(run.steps[p] < run.steps[pathlib.Path(said)] for p in whole[:1] if self.before(run, pathlib.Path(said)) == p):
            return f"latest prints {said}, which lost a part that the step before it has"
        if not silent and whole and pathlib.Path(said) != whole[0]:
            return f"latest prints {said}, {whole[0]} is whole: {err}"
        return None

    @staticmethod
    def before(run, path):
        older = [p for p in run.steps if run.steps[p] < run.steps[path]]
        return max(older, key=run.steps.get) if older else None

    def prune(self, run):
        other = None
        if run.kind != "file":
            other = run.root / "other_run" / run.names.format(n=1)
            copy(run.data / DCP, other)
        keep = run.rng.randint(1, 2)
        whole = run.whole()
        status, out, err = self.run("prune", run.root, "--keep", keep, "--whole-folders")
        left = {p for p in run.steps if p.exists()}
        gone = set(run.steps) - left
        if other is not None and not other.exists():
            return f"prune removed another run's {other}"
        for path in gone:
            newer = [p for p in whole if run.steps[p] > run.steps[path]]
            if len(newer) < min(keep, len(whole)) and not any(run.steps[p] > run.steps[path] for p in run.silent):
                return f"prune --keep {keep} removed {path}, only {newer} are newer and whole: {out}{err}"
            if path in run.links:
                return f"prune removed {path}, to which a link leads"
        if whole and not any(p in left for p in whole):
            return f"prune left nothing whole: {out}{err}"
        if status == 2:
            self.counts["refused"] += 1
            if gone:
                return f"prune refused and removed {gone}: {err}"
        self.counts["removed"] += len(gone)
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=sample.count(400))
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    check = Check(options.tool)
    begun = time.monotonic()
    failed = made = 0
    seed = options.seed
    while made < options.count or time.monotonic() - begun < options.seconds:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-runs-"))
        run = Run(folder / "run", options.data, random.Random(seed))
        for question in (check.verify, check.latest, check.prune):
            wrong = question(run)
            if wrong is not None:
                failed += 1
                print(f"seed {seed}, {run.kind} {run.names} {sorted(run.parts)}, {({str(p.name): d for p, d in run.damage.items()})}: {wrong}", flush=True)
                break
        made += 1
        if wrong is None or failed > 1:
            shutil.rmtree(folder)
        else:
            print(f"kept {folder}")
        seed += 1
    print(f"{made} runs from seed {options.seed}, {dict(check.counts)}, {failed} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
