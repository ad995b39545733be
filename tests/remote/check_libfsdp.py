#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libfsdp's load from URLs: the tensors are those of the local checkpoint, and each rank asks for its own part alone.

    check_libfsdp.py --program copy_checkpoint --tool PROGRAM --data FOLDER
"""
import os
import re
import subprocess
import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp

import commands
import files
import proxy
import server

CHECKPOINTS = ("golden/2.15.0/fsdp2/ckpt", "golden/2.11.0/shards/ckpt", "golden/2.11.0/zip_pt/full.pt", "golden/2.11.0/hf_plain/ckpt")
RANKS = 4
ROWS, COLUMNS = 4096, 1024
MATRICES = 6
# copy_checkpoint leaves every third tensor whole.
WHOLE = MATRICES // 3
SIZE = ROWS * COLUMNS * 4
# Heads of records, gaps that are read rather than asked around, and what is asked for again: here all ranks share one memory.
SLACK = 0.1


def copied(program, place, to, environment, ranks):
    """The bytes that libfsdp saves of what it has loaded from `place`."""
    done = subprocess.run([program, place, to, str(ranks), "1"], env=dict(environment, OMP_NUM_THREADS="1"), capture_output=True, text=True,
                          errors="replace", timeout=commands.MOST_SECONDS, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{place}: {done.stdout}{done.stderr}"
    with open(to, "rb") as file:
        return file.read()


def check_tensors(args, tree, url, environment):
    for name in CHECKPOINTS:
        local = copied(args.program, os.path.join(args.data, name), os.path.join(tree, "local.pt"), environment, 3)
        remote = copied(args.program, f"{url}/{name}", os.path.join(tree, "remote.pt"), environment, 3)
        assert local == remote, f"{url}/{name}: other bytes than those of the local checkpoint"
        print(f"{url.split(':')[0]} {name}: {len(local)} bytes are equal", flush=True)


def check_ranges(args, tree, s3, running):
    """Of a folder that PyTorch has written."""
    state = {f"layer.{i}": torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS) + i for i in range(MATRICES)}
    folder = os.path.join(tree, "big")
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    server.upload_tree(s3, commands.BUCKET, folder, "big")
    asked = []

    def note(request):
        if proxy.kind_of(request) == "range" and request.decoded_path.endswith(".distcp"):
            first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", request.fields["range"]).groups())
            asked.append(last + 1 - first)
    with proxy.Proxy(running.endpoint, credentials=(server.ACCESS_KEY, server.SECRET_KEY, None), region=server.REGION) as between:
        between.watch = note
        copied(args.program, f"s3://{commands.BUCKET}/big", os.path.join(tree, "big.pt"), server.s3_environment(between.endpoint), RANKS)
        assert not between.violations and not between.failures, (between.violations, between.failures)
    loaded = torch.load(os.path.join(tree, "big.pt"), weights_only=True)
    assert loaded.keys() == state.keys() and all(torch.equal(loaded[key], state[key]) for key in state)
    # Ranks are threads here, and may share what one of them has asked for.
    wanted = (MATRICES - WHOLE) * SIZE + WHOLE * SIZE * RANKS
    assert MATRICES * SIZE <= sum(asked) <= wanted * (1 + SLACK), f"{sum(asked)} bytes were asked for instead of {wanted}"
    print(f"{RANKS} ranks: {sum(asked)} bytes asked for, {wanted} wanted, {len(asked)} requests")


def main():
    parser = commands.arguments(__doc__)
    parser.add_argument("--program", required=True, help="copy_checkpoint")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tree, server.Seaweed() as running:
        s3 = running.client()
        server.make_bucket(s3, commands.BUCKET)
        for name in CHECKPOINTS:
            path = os.path.join(args.data, name)
            if os.path.isdir(path):
                server.upload_tree(s3, commands.BUCKET, path, name)
            else:
                s3.upload_file(path, commands.BUCKET, name)
        check_tensors(args, tree, f"s3://{commands.BUCKET}", server.s3_environment(running.endpoint))
        with files.Files(args.data) as plain:
            check_tensors(args, tree, plain.endpoint, server.environment())
        check_ranges(args, tree, s3, running)


if __name__ == "__main__":
    sys.exit(main())
