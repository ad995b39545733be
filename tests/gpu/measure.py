#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains and measures on the GPUs of this machine, and writes what came out as JSON for fill_table.py.

  python3 measure.py --build FOLDER --junit FILE --results FILE [--steps N] [--device cuda]

Each part passes, fails or is skipped for a stated reason; one that fails does not end the others. Training is compared with the same
training on the CPU: losses agree to 1e-3. Exit: 0 nothing failed, 1 something did.
"""
import argparse
import datetime
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from launch import launch, must

TOLERANCE = 1e-3
# Beside what differs, the settings of bench_train_step.
SIZES = {
    "hidden 512, 6 layers": dict(width=512, layers=6, vocabulary=8000, length=64, batch=2),
    "hidden 1,024, 24 layers": dict(width=1024, layers=24, vocabulary=32000, length=512, batch=4),
}
WARMUP = 5


def gpus():
    """The GPUs that this process sees: (name, memory in MiB, version of the driver) each."""
    said = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, check=True).stdout
    found = [tuple(word.strip() for word in line.split(",")) for line in said.splitlines() if line.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else found[:len(visible.split(","))]


def machine(found):
    with open("/proc/cpuinfo") as f:
        cpu = re.search(r"model name\s*: (.*)", f.read())
    name, memory, driver = found[0]
    return {"gpu": name, "gpus": len(found), "gpu_mib": int(memory), "driver": driver, "cores": os.cpu_count(), "cpu": cpu[1] if cpu else "",
            "date": datetime.date.today().isoformat()}


class Parts:
    """Results of parts: name, outcome, detail."""

    def __init__(self):
        self.all = []

    def add(self, name, outcome, detail):
        self.all.append({"name": name, "outcome": outcome, "detail": detail})
        print(f"{outcome}: {name}: {detail}", file=sys.stderr, flush=True)

    def run(self, name, body):
        """`body` returns the detail, or throws."""
        try:
            self.add(name, "passed", body())
        except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            self.add(name, "failed", " ".join(str(error).split())[-300:])

    def skip(self, name, reason):
        self.add(name, "skipped", reason)


def count_tests(path, parts):
    name = "tests with the label gpu"
    if not os.path.exists(path):
        parts.add(name, "failed", "ctest left no report")
        return
    cases = xml.parse(path).getroot().iter("testcase")
    outcomes = {"passed": [], "failed": [], "skipped": []}
    for case in cases:
        status = "failed" if case.find("failure") is not None else "skipped" if case.find("skipped") is not None else "passed"
        outcomes[status].append(case.get("name"))
    detail = ", ".join(f"{len(names)} {status}" for status, names in outcomes.items() if names)
    if outcomes["failed"]:
        parts.add(name, "failed", f"{detail}; failed: {', '.join(outcomes['failed'])}")
    elif not outcomes["passed"]:
        parts.add(name, "failed", f"none passed ({detail or 'there are none'})")
    else:
        parts.add(name, "passed", detail)
    if outcomes["skipped"]:
        parts.skip("tests that left themselves out", ", ".join(outcomes["skipped"]))


class Trainer:
    """train_gpt, whose losses on the CPU are those to compare with."""

    def __init__(self, build, device, tmp):
        self.program = os.path.join(os.path.abspath(build), "samples", "train_gpt")
        self.device, self.tmp = device, tmp
        self.tokens = os.path.join(tmp, "tokens.bin")
        with open(self.tokens, "wb") as f:
            f.write(struct.pack("<4000H", *((i * i + 7 * i) % 61 for i in range(4000))))

    def losses(self, world, device, **options):
        metrics = os.path.join(self.tmp, "metrics.jsonl")
        words = {"data": self.tokens, "vocab": 61, "dim": 64, "heads": 4, "seq": 32, "batch": 12 // world, "steps": 10, "device": device,
                 "metrics": metrics, **options}
        must(world, [self.program] + [word for key, value in words.items() for word in ("--" + key.replace("_", "-"), value)])
        with open(metrics) as f:
            return [json.loads(line)["loss"] for line in f]

    def compare(self, world, **options):
        wanted = self.losses(1, "cpu")
        found = self.losses(world, self.device, **options)
        distance = max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
        assert distance <= TOLERANCE, f"losses {found}, on the CPU {wanted}"
        return f"losses as on the CPU, to {distance:.0e}"

    def resume(self):
        """A checkpoint of the GPU goes on on the CPU."""
        saved = os.path.join(self.tmp, "step-5")
        self.losses(1, self.device, steps=5, save=saved)
        found = self.losses(1, "cpu", resume=saved)
        wanted = self.losses(1, "cpu")[5:]
        # The metrics of a run that resumes go behind those of the one before.
        distance = max(abs(a - b) / abs(b) for a, b in zip(found[-len(wanted):], wanted, strict=True))
        assert distance <= TOLERANCE, f"losses {found}, on the CPU {wanted}"
        return f"saved on the GPU, resumed on the CPU, losses to {distance:.0e}"


def measure(build, world, sizes, steps, device, settings):
    """One row of the table: steps of bench_train_step."""
    program = os.path.join(os.path.abspath(build), "tests", "bench", "bench_train_step")
    words = {**sizes, "steps": steps, "warmup": WARMUP, "device": device, **settings}
    statuses, said = launch(world, [program, *(f"{name}={value}" for name, value in words.items())])
    if any(statuses):
        raise RuntimeError(" ".join(text.strip() for text in said))
    found = [json.loads(text.strip().splitlines()[-1]) for text in said]
    mean = lambda name: sum(one[name] for one in found) / len(found)
    tokens = sizes["batch"] * sizes["length"] * world
    return {"ranks": world, "step_ms": mean("median_ms"), "least_ms": min(one["min_ms"] for one in found), "host_ms": mean("cpu_ms"),
            "tokens_per_s": tokens / mean("median_ms") * 1e3, "device_mib": max(one["device_mib"] for one in found)}


def benchmarks(count):
    """Returns what is measured of each size, (name, ranks, settings), and what is not, (name, reason)."""
    runs = [("LibTorch, unsharded", 1, dict(sharded=0)), ("libfsdp, NCCL", 1, {}), ("libfsdp, NCCL, bfloat16", 1, dict(bf16=1))]
    left_out = []
    if count > 1:
        runs += [("libfsdp, NCCL", count, {}), ("libfsdp, NCCL, bfloat16", count, dict(bf16=1))]
    else:
        left_out.append(("NCCL between ranks", "this machine has one GPU, and NCCL needs one for each rank"))
    runs.append(("libfsdp, Gloo", max(2, count), dict(backend="gloo")))
    return runs, left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--junit", required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    found = gpus()
    parts = Parts()
    count_tests(args.junit, parts)
    with tempfile.TemporaryDirectory() as tmp:
        trainer = Trainer(args.build, args.device, tmp)
        parts.run("training, 1 rank, NCCL", lambda: trainer.compare(1))
        parts.run("training, 2 ranks, Gloo", lambda: trainer.compare(2, backend="gloo"))
        parts.run("training, 1 rank, CPU offload", lambda: trainer.compare(1, cpu_offload=1))
        if len(found) > 1:
            parts.run(f"training, {min(len(found), 4)} ranks, NCCL", lambda: trainer.compare(min(len(found), 4)))
        else:
            parts.skip("training, several ranks, NCCL", "this machine has one GPU, and NCCL needs one for each rank")
        parts.run("checkpoint", trainer.resume)
    rows = []
    runs, left_out = benchmarks(len(found))
    for model, sizes in SIZES.items():
        for name, world, settings in runs:
            def one():
                row = {"model": model, "what": name, **measure(args.build, world, sizes, args.steps, args.device, settings)}
                rows.append(row)
                return f"{row['step_ms']:.2f} ms a step"
            parts.run(f"{model}: {name}, {world} rank{'s' if world > 1 else ''}", one)
    for name, reason in left_out:
        parts.skip("measuring: " + name, reason)
    with open(args.results, "w") as f:
        json.dump({"machine": machine(found), "steps": args.steps, "parts": parts.all, "rows": rows}, f, indent=1)
    counts = {outcome: sum(part["outcome"] == outcome for part in parts.all) for outcome in ("passed", "failed", "skipped")}
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
