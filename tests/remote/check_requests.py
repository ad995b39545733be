# SPDX-License-Identifier: Apache-2.0
"""How many requests it takes to inspect a checkpoint at s3://, and that libcurl is loaded for a URL alone.  check_reading.py runs it."""
import json
import os
import random
import re
import tempfile

import commands
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


def check_requests(tool, data, place, running):
    """`place`: where the tree of inputs.py is on a server.  What was asked is printed in the order of the requests."""
    with tempfile.TemporaryDirectory() as tree:
        make_many(tool, tree)
        prefix = place[len(f"s3://{commands.BUCKET}/"):]
        commands.upload_all(running.client(), commands.BUCKET,
                            {f"{prefix}/{os.path.relpath(os.path.join(at, name), tree)}": os.path.join(at, name)
                             for at, _, names in os.walk(tree) for name in names})
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
                ask(*words, f"{place}/{name}")
                assert len(asked) <= MOST, f"{words} {name}: {len(asked)} requests instead of at most {MOST}: {asked}"
            print(f"inspect {name}: {len(asked)} requests: {[first.split(' ')[0] for first in asked]}", flush=True)
        # Where each of many files has a header of its own, nothing is asked for twice.
        for name in commands.fixtures(data):
            ask("inspect", f"{place}/{name}")
            twice = sorted(line for line in {*asked} if asked.count(line) > 1)
            assert not twice, f"inspect {name}: asked for more than once: {twice}"
        assert not between.violations and not between.failures, (between.violations, between.failures)


def check_ending(tool, place, running):
    """What one request has failed by is told at once, however long others stand still."""
    def fault(request):
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.fields.get("range", ""))
        # What lies before is looked at first.
        if not asked or int(asked[1]) < 2 << 20:
            return None
        return "forbidden" if int(asked[1]) < 4 << 20 else "stalled"
    environment = dict(FSDP_CKPT_STALL_SECONDS="300", FSDP_CKPT_NETWORK_SECONDS="600")
    with proxy.Proxy(running.endpoint, plan=fault, credentials=(server.ACCESS_KEY, server.SECRET_KEY, None), region=server.REGION) as between:
        done = commands.run(tool, ["stats", f"{place}/large.safetensors"],
                            server.s3_environment(between.endpoint, **environment), seconds=60)
        assert between.faults["stalled"] and between.faults["forbidden"], between.faults
        assert done.returncode == 2 and "error[ACCESS]" in done.stderr, done.stderr


def check_loading(tool, tree, place, running):
    """A local checkpoint is read without libcurl, which a static program has in it."""
    if "statically linked" in commands.run(tool, ["--version"], server.environment()).stdout:
        return
    for at, loaded in ((f"{tree}/large.safetensors", False), (f"{place}/large.safetensors", True)):
        done = commands.run(tool, ["inspect", at], dict(server.s3_environment(running.endpoint), LD_DEBUG="files"))
        assert done.returncode == 0 and "calling init" in done.stderr, done.stderr[-1000:]
        assert ("libcurl" in done.stderr) == loaded, f"{at}: libcurl is {'not ' if loaded else ''}loaded"
