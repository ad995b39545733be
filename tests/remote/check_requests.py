#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many requests it takes to inspect a checkpoint at s3://, and that libcurl is loaded for a URL alone.

    check_requests.py --tool PROGRAM --data FOLDER
"""
import os
import sys
import tempfile

import commands
import inputs
import proxy
import server

MOST = 3
CHECKPOINTS = ("golden/2.15.0/fsdp2/ckpt", "golden/2.11.0/shards/ckpt", "golden/2.11.0/many_files/ckpt", "golden/2.11.0/zip_pt/full.pt",
               "golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors", "large.safetensors")


def check_requests(tool, tree, running, s3):
    """What was asked, in the order of the requests."""
    commands.upload(s3, commands.BUCKET, tree, "a")
    asked = []
    with proxy.Proxy(running.endpoint, credentials=(server.ACCESS_KEY, server.SECRET_KEY, None), region=server.REGION) as between:
        between.watch = lambda request: asked.append(request.first)
        for name in CHECKPOINTS:
            for words in (["inspect"], ["inspect", "--json"]):
                asked.clear()
                done = commands.run(tool, [*words, f"s3://{commands.BUCKET}/a/{name}"], server.s3_environment(between.endpoint))
                assert done.returncode == 0, done.stderr
                assert 1 <= len(asked) <= MOST, f"{words} {name}: {len(asked)} requests instead of at most {MOST}: {asked}"
            print(f"inspect {name}: {len(asked)} requests: {[first.split(' ')[0] for first in asked]}", flush=True)
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
        check_requests(args.tool, tree, running, running.client())
        check_loading(args.tool, tree, running)


if __name__ == "__main__":
    sys.exit(main())
