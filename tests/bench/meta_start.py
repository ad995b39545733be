# SPDX-License-Identifier: Apache-2.0
"""The measurement of tests/bench/meta_start.sh: the memory of ranks that shard a module of the meta device."""
import argparse
import json
import os
import socket
import subprocess
import sys

LIMIT = 1.05  # of the shards and the largest unit


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(program, ranks, *arguments):
    port = free_port()
    processes = []
    for rank in range(ranks):
        variables = dict(RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1",
                         MASTER_PORT=port, OMP_NUM_THREADS=1)
        processes.append(subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True,
                                          env={**os.environ, **{key: str(value) for key, value in variables.items()}}))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("a rank failed")
    return [json.loads(output) for output in outputs]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="bench_meta_start")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--blocks", type=int, default=10)
    options = parser.parse_args()
    model = 12 * options.width**2 * options.blocks * 4
    print(f"A model of {model / 1e9:.2f} GB, {options.blocks} units, {options.ranks} ranks\n")
    print("| | shards of a rank MiB | largest unit MiB | peak MiB, of the ranks | of both together | seconds |")
    print("|---|---:|---:|---:|---:|---:|")
    worst = 0
    for title, sync in (("each rank initializes", "0"), ("`sync_module_states`", "1")):
        ranks = start(options.program, options.ranks, str(options.width), str(options.blocks), sync)
        mib = [(rank["peak"] - rank["before"]) / 2**20 for rank in ranks]
        ratios = [(rank["peak"] - rank["before"]) / (rank["shards"] + rank["largest_unit"]) for rank in ranks]
        worst = max(worst, *ratios)
        print(f"| {title} | {ranks[0]['shards'] / 2**20:,.0f} | {ranks[0]['largest_unit'] / 2**20:,.0f} "
              f"| {min(mib):,.0f} - {max(mib):,.0f} | {min(ratios):.3f} - {max(ratios):.3f} "
              f"| {max(rank['seconds'] for rank in ranks):.0f} |", flush=True)
    if worst > LIMIT:
        sys.exit(f"expected at most {LIMIT} of the shards and the largest unit, but got {worst:.3f}")


if __name__ == "__main__":
    main()
