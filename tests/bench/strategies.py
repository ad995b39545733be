#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost and the savings of each strategy with train_gpt; prints a table.

  python3 strategies.py --train-gpt PATH [--worlds 2,4] [--rounds N]

Every rank is a process of one thread, by Gloo over loopback.  Memory is the largest rank's peak resident set minus that of a run with a
negligible model.  A step's time is the median over its steps, and the minimum over rounds.  All kinds must reach the same loss.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from launch import free_port

MODEL = dict(dim=512, layers=8, heads=8, vocab=8000, seq=64)
SEQUENCES = 8  # of all ranks
STEPS = 8
KINDS = {
    "`kFullShard`": {},
    "`kShardGradOp`": dict(sharding_strategy="shard_grad_op"),
    "`kNoShard`": dict(sharding_strategy="no_shard"),
    "`kFullShard`, activation checkpointing": dict(activation_checkpointing=1),
    "`kFullShard`, bf16": dict(mixed_precision="bf16"),
}


def run(program, world, options, tmp):
    """(peak MiB of the largest rank, losses, median ms)"""
    metrics = os.path.join(tmp, "metrics.jsonl")
    words = [w for k, v in {**options, "metrics": metrics}.items() for w in ("--" + k.replace("_", "-"), str(v))]
    port, ranks = str(free_port()), []
    for rank in range(world):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        ranks.append(subprocess.Popen([program, *words], env=env, stdout=subprocess.DEVNULL))
    peaks = []
    for process in ranks:
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            raise SystemExit(f"{words}: status {status}")
        peaks.append(usage.ru_maxrss / 1024)
    with open(metrics) as f:
        lines = [json.loads(line) for line in f]
    return max(peaks), [line["loss"] for line in lines], statistics.median(line["ms"] for line in lines[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-gpt", required=True)
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.train_gpt)
    print("| ranks | strategy | memory MiB | step ms |\n|---:|---|---:|---:|")
    with tempfile.TemporaryDirectory() as tmp:
        tokens = os.path.join(tmp, "tokens.bin")
        with open(tokens, "wb") as f:
            f.write(b"".join((i * i % 7919 % MODEL["vocab"]).to_bytes(2, "little") for i in range(100_000)))
        for world in map(int, arguments.worlds.split(",")):
            common = dict(MODEL, data=tokens, batch=SEQUENCES // world, steps=STEPS)
            small = run(program, world, {**common, "dim": 8, "layers": 1, "vocab": 8000, "heads": 1}, tmp)[0]
            found = {}
            for _ in range(arguments.rounds):
                for kind, options in KINDS.items():
                    peak, losses, ms = run(program, world, {**common, **options}, tmp)
                    least = found.get(kind, (0, losses, float("inf")))
                    found[kind] = (max(peak, least[0]), losses, min(ms, least[2]))
            for kind, (peak, losses, ms) in found.items():
                wanted = found["`kFullShard`"][1][-1]
                if abs(losses[-1] - wanted) > (2e-2 if "bf16" in kind else 1e-5) * wanted:
                    raise SystemExit(f"{kind}: loss {losses[-1]}, expected {wanted}")
                print(f"| {world} | {kind} | {peak - small:,.0f} | {ms:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
