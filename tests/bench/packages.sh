#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares builds of fsdp-ckpt: start-up and throughput, run by turns, as ratios of processor and wall time to the first one's.
#
#   tests/bench/packages.sh NAME=PROGRAM NAME=PROGRAM...     FOLDER (/tmp): where 3 GiB may lie for a while
#
# docs/performance.md has a run with the dynamic program first, the static one and the wheel's beside it.
set -euo pipefail
: "${2:?two programs}"
work=$(mktemp -d -p "${FOLDER:-/tmp}")
trap 'rm -rf "$work"' EXIT
python3 - "$work" "$@" <<'PYTHON'
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time

work, *pairs = sys.argv[1:]
programs = {name: os.path.realpath(path) for name, path in (pair.split("=", 1) for pair in pairs)}
first, *others = programs
EACH, COUNT = 16 << 20, 64


def run(program, words):
    """Returns processor and wall seconds of the command, which must succeed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL, cwd=work)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


header = {f"layers.{i}.weight": {"dtype": "F32", "shape": [2048, 2048], "data_offsets": [i * EACH, (i + 1) * EACH]} for i in range(COUNT)}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(os.path.join(work, "x.safetensors"), "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    block = random.Random(1).randbytes(EACH)
    for _ in range(COUNT):
        file.write(block)
run(programs[first], ["shard", "x.safetensors", "folder", "--world-size", "4"])
cases = {"start (--version)": ["--version"], "inspect": ["inspect", "folder"], "verify, 1 GiB": ["verify", "folder"],
         "stats, 1 GiB": ["stats", "folder"],
         "consolidate, 1 GiB": ["consolidate", "folder", "out.pt", "--force", "--no-sync"]}
print("| command | " + " | ".join(f"{name}, s" for name in programs)
      + "".join(f" | {name}: processor, wall time" for name in others) + " |")
print("|---" * (1 + len(programs) + len(others)) + "|")
for case, words in cases.items():
    rounds = 41 if case.startswith("start") or words[0] == "inspect" else 11
    for program in programs.values():
        run(program, words)
    times = [{name: run(program, words) for name, program in programs.items()} for _ in range(rounds)]

    def ratio(name, what):
        return statistics.median(time[name][what] / time[first][what] for time in times if time[first][what] > 0)

    print(f"| {case} | " + " | ".join(f"{statistics.median(time[name][1] for time in times):.4f}" for name in programs)
          + "".join(f" | {ratio(name, 0):.2f}, {ratio(name, 1):.2f}" for name in others) + " |", flush=True)
PYTHON
