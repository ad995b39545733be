#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many requests it takes to inspect a checkpoint at s3://, and that libcurl is loaded for a URL alone.

    check_requests.py --tool PROGRAM --data FOLDER
"""
import json
import os
import random
import sys
import tempfile

import commands
import inputs
import proxy
import server

MOST = 3
CHECKPOINTS = ("golden/2.15.0/fsdp2/ckpt", "golden/2.11.0/shards/ckpt", "golden/2.11.0/many_files/ckpt", "golden/2.11.0/zip_pt/full.pt",
               "golden/2.11.0/hf_plain/ckpt", "golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors", "large.safetensors", "large.pt",
               "many.safetensors", "many.pt", "many")


def make_many(tool, tree):
    """32 MB in 400 tensors, each further from the next one than what is read beside a request."""
    each = 80_000
    header = {f"layers.{i}.weight": {"dtype": "F32", "shape": [each // 4], "data_offsets": [i * each, (i + 1) * each]} for i in range(400)}
    text = json.dumps(header).encode()
    with open(f"{tree}/many.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + random.Random(1).randbytes(each) * len(header))
    for words in (["convert", "many.safetensors", "many.pt"], ["shard", "many.safetensors", "many", "-w", "4"]):
        done = commands.run(tool, words, server.environment(), tree)
        assert done.returncode == 0, done.stderr


def check_requests(tool, data, tree, running, s3):
    """What was asked, in the order of the requests."""
    make_many(tool, tree)
    commands.upload(s3, commands.BUCKET, tree, "a")
    asked = []
    with proxy.Proxy(running.endpoint, credentials=(server.ACCESS_KEY, server.SECRET_KEY, None), region=server.REGION) as between:
        between.watch = lambda request: asked.append(f"{request.first} {request.fields.get('range', '')}")

        def ask(*words):
            asked.clear()
            done = commands.run(tool, words, server.s3_environment(between.endpoint))
            assert done.returncode == 0, done.stderr
            assert asked, f"{words}: no request"

        for name in CHECKPOINTS:
            for words in (["inspect"], ["inspect", "--json"]):
                ask(*words, f"s3://{commands.BUCKET}/a/{name}")
                assert len(asked) <= MOST, f"{words} {name}: {len(asked)} requests instead of at most {MOST}: {asked}"
            print(f"inspect {name}: {len(asked)} requests: {[first.split(' ')[0] for first in asked]}", flush=True)
        # Where each of many files has a header of its own, nothing is asked for twice.
        for name in commands.fixtures(data):
            ask("inspect", f"s3://{commands.BUCKET}/a/{name}")
            twice = sorted(line for line in {*asked} if asked.count(line) > 1)
            assert not twice, f"inspect {name}: asked for more than once: {twice}"
        assert not between.violations and not between.failures, (between.violations, between.failures)


def check_loading(tool, tree, running):
    """A local checkpoint is read without libcurl."""
    for place, loaded in ((f"{tree}/large.safetensors", False), (f"s3://{commands.BUCKET}/a/large.safetensors", True)):
        done = commands.run(tool, ["inspect", place], dict(server.s3_environment(running.endpoint), LD_DEBUG="files"))
        assert done.returncode == 0 and "calling init" in done.stderr, done.stderr[-1000:]
        assert ("libcurl" in done.stderr) == loaded, f"{place}: libcurl is {'not ' if loaded else ''}loaded"


def main():
    args = commands.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as tree, server.Moto() as running:
        inputs.make(args.tool, args.data, tree)
        check_requests(args.tool, args.data, tree, running, running.client())
        check_loading(args.tool, tree, running)


if __name__ == "__main__":
    sys.exit(main())
