#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares two builds of fsdp-ckpt: start-up and throughput, run by turns, as the ratio of each pair's processor time.
#
#   tests/bench/packages.sh STATIC DYNAMIC [FOLDER]     FOLDER: where 3 GiB may lie for a while; /tmp without it
set -euo pipefail
static=$(realpath "${1:?}") dynamic=$(realpath "${2:?}")
work=$(mktemp -d -p "${3:-/tmp}")
trap 'rm -rf "$work"' EXIT
exec python3 - "$static" "$dynamic" "$work" <<'PYTHON'
import json, os, random, resource, shutil, statistics, subprocess, sys, time

static, dynamic, work = sys.argv[1:]
EACH, COUNT = 16 << 20, 64


def run(*command):
    """Returns processor and wall seconds of the command, which must succeed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=work)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - begin


header = {f"layers.{i}.weight": {"dtype": "F32", "shape": [2048, 2048], "data_offsets": [i * EACH, (i + 1) * EACH]} for i in range(COUNT)}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(os.path.join(work, "x.safetensors"), "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    block = random.Random(1).randbytes(EACH)
    for _ in range(COUNT):
        file.write(block)
run(static, "shard", "x.safetensors", "folder", "--world-size", "4")
cases = {"start (--version)": ["--version"], "inspect": ["inspect", "folder"], "verify, 1 GiB": ["verify", "folder"],
         "stats, 1 GiB": ["stats", "folder"],
         "consolidate, 1 GiB": ["consolidate", "folder", "out.pt", "--force", "--no-sync"]}
print("| command | static, s | dynamic, s | ratio of processor time |\n|---|---|---|---|")
for name, words in cases.items():
    rounds = 21 if words[0] in ("--version", "inspect") else 9
    run(static, *words), run(dynamic, *words)
    pairs = [(run(static, *words), run(dynamic, *words)) for _ in range(rounds)]
    ratio = statistics.median(a[0] / b[0] for a, b in pairs if b[0] > 0)
    print(f"| {name} | {statistics.median(a[1] for a, _ in pairs):.4f} | {statistics.median(b[1] for _, b in pairs):.4f} | {ratio:.2f} |")
shutil.rmtree(work)
PYTHON
