#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the samples and compares their output with what they promise.

  python3 check_samples.py WHAT --samples FOLDER --tool PATH
"""
import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from launch import launch, must

VOCABULARY = 31
COUNT = 997  # tokens


class Samples:
    def __init__(self, folder, tool, tmp):
        self.folder, self.tool, self.tmp = os.path.abspath(folder), os.path.abspath(tool), tmp
        self.tokens = self.token_file("tokens.bin", [(i * i + 7 * i) % VOCABULARY for i in range(COUNT)])

    def at(self, name):
        return os.path.join(self.tmp, name)

    def program(self, name):
        return os.path.join(self.folder, name)

    def token_file(self, name, tokens):
        with open(self.at(name), "wb") as f:
            f.write(struct.pack(f"<{len(tokens)}H", *tokens))
        return self.at(name)

    def gpt(self, world, **options):
        """The metrics' lines of a run of train_gpt."""
        words = {"data": self.tokens, "vocab": VOCABULARY, "dim": 16, "heads": 2, "seq": 8, "batch": 12 // world, "steps": 4,
                 "metrics": self.at("metrics.jsonl"), **options}
        must(world, [self.program("train_gpt")] + [w for k, v in words.items() for w in ("--" + k.replace("_", "-"), v)])
        with open(words["metrics"]) as f:
            return [json.loads(line) for line in f]

    def verify(self, path):
        subprocess.run([self.tool, "verify", path, "--strict", "-q"], check=True)


def losses(lines):
    return [line["loss"] for line in lines]


def near(a, b, tolerance):
    assert len(a) == len(b) and all(abs(x - y) <= tolerance * abs(y) for x, y in zip(a, b)), f"{a} against {b}"


def train_mlp(samples):
    folder = samples.at("mlp")
    said = must(2, [samples.program("train_mlp"), folder])
    lines = re.findall(r"^step (\d+)  loss (\S+)$", said[0], re.M)
    assert [int(step) for step, _ in lines] == [0, 20, 40, 60, 80, 100] and said[1] == "", said
    assert float(lines[-1][1]) < float(lines[0][1]) / 10, lines
    assert sorted(os.listdir(folder)) == [".metadata", "__0_0.distcp", "__1_0.distcp", "fsdp_seal.json", "meta.pt"], os.listdir(folder)
    samples.verify(folder)
    statuses, said = launch(1, [samples.program("train_mlp")])
    assert statuses == [2] and "usage" in said[0], said


def resume(samples):
    folder = samples.at("run")
    found = []
    for world in 2, 3, 1:
        said = must(world, [samples.program("resume_on_another_world_size"), folder])[0]
        found += re.findall(r"^(\d) ranks, step (\d+), loss (\S+)$", said, re.M)
    assert [(int(world), int(step)) for world, step, _ in found] == [(2, 0), (2, 20), (3, 20), (3, 40), (1, 40), (1, 60)], found
    values = [float(loss) for _, _, loss in found]
    near(values[2::2], values[1:-1:2], 1e-5)
    assert values[0] > values[1] > values[3] > values[5], values
    samples.verify(folder)


def wrap_policies(samples):
    said = must(1, [samples.program("wrap_policies")])[0]
    blocks = ["blocks.0", "blocks.1"]
    for title, units in (("by type", blocks), ("by several types", ["emb", "pos", *blocks]), ("by size", blocks),
                         ("marked by hand", ["tower", "tower.2"])):
        line = re.search(rf"^{title}: (.*)$", said, re.M)
        assert line and line.group(1).split() == units, f"{title}: {said}"
    assert "_HYBRID" not in said and "FULL_SHARD" in said, said


def same_losses(samples):
    """Options that do not affect the arithmetic do not change any loss."""
    base = samples.gpt(1)
    assert [line["step"] for line in base] == [0, 1, 2, 3], base
    assert set(base[0]) == {"step", "loss", "grad_norm", "ms", "tokens_per_s"}, base
    assert base[-1]["loss"] < base[0]["loss"] and all(line["tokens_per_s"] > 0 and line["grad_norm"] > 0 for line in base), base
    wanted = losses(base)
    for world in 2, 3, 4:
        near(losses(samples.gpt(world)), wanted, 1e-5)
    near(losses(samples.gpt(2, accumulate=3, batch=2)), wanted, 1e-5)
    for strategy in "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2":
        near(losses(samples.gpt(2, sharding_strategy=strategy)), wanted, 1e-5)
    near(losses(samples.gpt(2, use_orig_params=0, backward_prefetch="none", forward_prefetch=1)), wanted, 1e-5)
    near(losses(samples.gpt(2, backward_prefetch="post", activation_checkpointing=1, cpu_offload=1)), wanted, 1e-5)


def changed_losses(samples):
    """Options that affect it change losses."""
    base = samples.gpt(2)
    low = samples.gpt(2, mixed_precision="bf16")
    near(losses(low), losses(base), 2e-2)
    assert losses(low) != losses(base)
    clipped = samples.gpt(2, clip_grad_norm=base[0]["grad_norm"] / 100, lr=0.1)
    near([clipped[0]["grad_norm"]], [base[0]["grad_norm"]], 1e-5)
    assert losses(samples.gpt(2, seed=1))[0] != losses(base)[0]
    assert losses(samples.gpt(2, weight_decay=0.5))[-1] != losses(base)[-1]
    assert losses(samples.gpt(2, lr=0.01))[1] != losses(base)[1]


def checkpoints(samples):
    whole = losses(samples.gpt(2, steps=6))
    for kind in "sharded", "full":
        saved, metrics = samples.at(kind), samples.at(kind + ".jsonl")
        samples.gpt(2, steps=3, save=saved, state_dict_type=kind, metrics=metrics)
        samples.verify(saved)
        assert os.path.isdir(saved) == (kind == "sharded")
        # To the folder it came from, on other ranks, with the metrics of both runs in one file.
        lines = samples.gpt(3, steps=6, resume=saved, save=saved, state_dict_type=kind, metrics=metrics)
        assert [line["step"] for line in lines] == list(range(6)), lines
        near(losses(lines), whole, 1e-5)
        samples.verify(saved)
        # Only weights: the step starts at 0, the loss is that of the trained weights.
        first = samples.gpt(2, steps=1, init=saved)
        assert first[0]["step"] == 0 and first[0]["loss"] < whole[0], first
    statuses, said = launch(2, [samples.program("train_gpt"), "--data", samples.tokens, "--vocab", VOCABULARY, "--dim", 16, "--heads", 2, "--seq", 8,
                                "--resume", samples.at("full"), "--steps", 5])
    assert statuses == [1, 1] and "at step 6" in said[0], said
    # Sizes that differ from the checkpoint's: an error that names the tensor, on every rank.
    statuses, said = launch(2, [samples.program("train_gpt"), "--data", samples.tokens, "--vocab", VOCABULARY, "--dim", 18, "--heads", 2, "--seq", 8,
                                "--resume", samples.at("full"), "--steps", 9])
    assert statuses == [1, 1] and all("emb.weight" in text and text.count("\n") == 1 for text in said), said


def traces(samples):
    samples.gpt(2, trace=samples.at("trace.json"))
    for rank, name in enumerate(("trace.json", "trace.rank1.json")):
        with open(samples.at(name)) as f:
            events = json.load(f)
        events = events["traceEvents"] if isinstance(events, dict) else events
        assert {event["pid"] for event in events} == {rank}, name
        assert any("blocks.0" in json.dumps(event) for event in events), name


def wrong_options(samples):
    """One line on stderr, exit 2 if no run can work, 1 if this one cannot."""
    odd, high = samples.at("odd.bin"), samples.token_file("high.bin", [0] * 700_000 + [VOCABULARY])
    with open(odd, "wb") as f:
        f.write(b"123")
    short = samples.token_file("short.bin", [1] * 9)
    data = ["--data", samples.tokens, "--vocab", VOCABULARY]
    cases = [
        (2, [], "--data"), (2, [*data, "--dim", 10, "--heads", 3], "--dim 10 is not a multiple of --heads 3"),
        (2, [*data, "--steps", "many"], "--steps"), (2, [*data, "--batch", 0], "--batch"), (2, [*data, "--steps", -1], "--steps"),
        (2, [*data, "--vocab", 65537], "--vocab"), (2, [*data, "--lr", "nan"], "--lr"), (2, [*data, "--lr", -1], "--lr"),
        (2, [*data, "--clip-grad-norm", "inf"], "--clip-grad-norm"), (2, [*data, "--state-dict-type", "local"], "--state-dict-type"),
        (2, [*data, "--sharding-strategy", "FULL"], "--sharding-strategy"), (2, [*data, "--use-orig-params", 2], "--use-orig-params"),
        (2, [*data, "--mixed-precision", "fp16"], "--mixed-precision"), (2, [*data, "--backward-prefetch", "yes"], "--backward-prefetch"),
        (2, [*data, "--accumulate", 0], "--accumulate"), (2, [*data, "--init", "a", "--resume", "b"], "--init"), (2, [*data, "--colour", 1], "--colour"),
        (2, [*data, "more"], "more"),
        (1, ["--data", samples.at("none.bin")], "cannot be opened"), (1, ["--data", samples.tmp], "cannot be read"),
        (1, ["--data", odd], "odd number of bytes"), (1, ["--data", short, "--vocab", VOCABULARY, "--seq", 8], "at least 10"),
        (1, ["--data", high, "--vocab", VOCABULARY], f"token {VOCABULARY} at 700000 is not below"),
        (1, [*data, "--seq", 8, "--resume", samples.at("none")], "none"), (1, [*data, "--seq", 8, "--init", samples.tokens], "tokens.bin"),
        (1, [*data, "--seq", 8, "--metrics", samples.at("no/such/folder")], "cannot be written"),
        (1, [*data, "--seq", 8, "--steps", 1, "--save", samples.at("tokens.bin/step")], "tokens.bin"),
    ]
    for status, options, words in cases:
        done = subprocess.run([samples.program("train_gpt"), *map(str, options)], capture_output=True, text=True, timeout=120)
        assert done.returncode == status, f"{options}: exit {done.returncode}: {done.stderr}"
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("train_gpt: ") and words in lines[0], f"{options}: {done.stderr}"
    said = subprocess.run([samples.program("train_gpt"), "--help"], capture_output=True, text=True)
    assert said.returncode == 0 and "--activation-checkpointing" in said.stdout, said


def devices(samples):
    """--device cpu and auto train alike where there is no GPU, and cuda says what is missing."""
    base = samples.gpt(1)
    assert losses(samples.gpt(1, device="cpu")) == losses(base)
    assert losses(samples.gpt(1, device="cpu", backend="gloo")) == losses(base)
    no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    data = ["--data", samples.tokens, "--vocab", VOCABULARY, "--seq", 8, "--dim", 16, "--heads", 2, "--steps", 1]
    folders = (samples.at(f"folder-{i}") for i in range(99))
    programs = {"train_mlp": lambda: [next(folders)], "resume_on_another_world_size": lambda: [next(folders)], "train_gpt": lambda: data}
    for name, words in programs.items():
        def run(*device):
            command = [samples.program(name), *map(str, words()), *device]
            return subprocess.run(command, capture_output=True, text=True, timeout=120,
                                  env=no_gpu | dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1"))
        for device in "cpu", "auto":
            done = run("--device", device)
            assert done.returncode == 0 and "loss" in done.stdout, f"{name} on {device}: {done.stderr}"
        for device in "cuda", "cuda:0":
            done = run("--device", device)
            assert done.returncode == 1, f"{name} on {device}: exit {done.returncode}"
            assert done.stderr.startswith(f"{name}: --device {device}: this ") and done.stderr.count("\n") == 1, done.stderr
            assert "without CUDA; configure with -DFSDP_CUDA_PROGRAMS=ON" in done.stderr or "shows no CUDA device" in done.stderr, done.stderr
            assert "use --device cpu" in done.stderr, done.stderr
        for device in "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:999", "":
            done = run("--device", device)
            assert done.returncode == 2 and f"expected cpu, cuda, cuda:N or auto, but got '{device}'" in done.stderr, f"{name} on {device}: {done.stderr}"
    for name in "train_mlp", "resume_on_another_world_size":
        done = subprocess.run([samples.program(name), "x", "--device"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2 and "--device: expected" in done.stderr, done.stderr


CHECKS = {f.__name__: f for f in (train_mlp, resume, wrap_policies, same_losses, changed_losses, checkpoints, traces, wrong_options, devices)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CHECKS)
    parser.add_argument("--samples", required=True)
    parser.add_argument("--tool", required=True)
    arguments = parser.parse_args()
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as tmp:
        CHECKS[arguments.what](Samples(arguments.samples, arguments.tool, tmp))
    print(f"{arguments.what}: as it should be")


if __name__ == "__main__":
    main()
