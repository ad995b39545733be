#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every verb that writes, with OUT at s3://: the objects have the bytes of the local output, what exists stays, and failures leave nothing.

    check_writing.py --tool PROGRAM --commands PROGRAM --data FOLDER [--every]

SeaweedFS takes all commands; without --every, rclone and moto a sixth each, and only some are repeated in a place where something is.
"""
import concurrent.futures
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import commands
import inputs
import proxy
import server

FSDP2 = inputs.FSDP2
SHARDS = "@golden/2.11.0/shards/ckpt"
FULL = "@golden/2.11.0/zip_pt/full.pt"
WRITING = [
    ["consolidate", FSDP2, "{}/full.pt", "--seal"], ["consolidate", FSDP2, "{}/full.safetensors", "--drop-values"],
    ["consolidate", FSDP2, "{}/folder", "--drop-values", "--to", "safetensors", "--max-shard-size", "2K", "--seal"],
    ["consolidate", FSDP2, "{}/full.h5"], ["convert", FSDP2, "{}/last.ckpt", "--to", "lightning-ckpt"],
    ["convert", FULL, "{}/folder", "--to", "dcp", "-w", "2"], ["convert", FSDP2, "{}/folder", "--to", "accelerate", "--drop-values"],
    ["convert", FSDP2, "{}/folder", "--to", "lightning"], ["convert", FSDP2, "{}/folder", "--to", "torch-checkpointing", "-w", "2"],
    ["convert", FSDP2, "{}/half.pt", "--dtype", "bf16"], ["shard", FULL, "{}/folder", "-w", "3"], ["reshard", FSDP2, "{}/folder", "-w", "3", "--seal"],
    ["rename", FSDP2, "{}/folder", "--rename", "blocks=layers", "--copy"], ["rename", FULL, "{}/renamed.pt", "--rename", "tied=knot"],
    ["rekey", FSDP2, "{}/folder", "--key-by", "id", "--copy"],
    ["groups", FSDP2, "{}/folder", "--split", "**.bias", "weight_decay=0", "--copy"], ["set", FSDP2, "{}/folder", "step=4", "--copy"],
    ["resize-vocab", FSDP2, "{}/larger.pt", "--size", "40", "--table", "app.model.emb.*"],
    ["map", "@rules/shards.toml", SHARDS, "{}/mapped.pt"], ["export", FSDP2, "{}/folder", "--config", "@published"],
    ["import", "@golden/2.11.0/hf_plain/ckpt", "{}/folder", "--map", "none", "-w", "2"],
    ["average", FSDP2, FSDP2, "{}/mean.pt", "--optimizer"], ["merge-lora", FSDP2, "@adapters/blocks", "{}/merged.pt"],
    ["extract-lora", FSDP2, "@tuned.pt", "{}/folder", "--rank", "2"], ["extract", SHARDS, "*row*", "{}/folder", "--to", "npy"],
    ["extract", SHARDS, "grid", "{}/grid.npy"],
    # Uploads of several parts.
    ["convert", "@large.pt", "{}/large.safetensors", "--drop-values"], ["convert", "@large.safetensors", "{}/large.pt"],
    ["convert", "@large.pt", "{}/large.h5"], ["shard", "@large.pt", "{}/folder", "-w", "2"],
]

# What is done in a place, and every how manieth command does it.
# Both are drawn so that each server sees every kind of place, and an upload of several parts.
CHOSEN = ((0, 2), (4, 6))   # of rclone, of moto
ROUNDS = (([], 1), ([], 3), (["--force"], 2), (["--force"], 4))


def objects(s3, number):
    """The digest of each object below the place of a command, by its name there."""
    prefix = f"out/{number}/"
    found = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=commands.BUCKET, Prefix=prefix):
        for entry in page.get("Contents", []):
            if not entry["Key"].endswith("/"):   # a marker of a folder, as rclone and SeaweedFS list them
                body = s3.get_object(Bucket=commands.BUCKET, Key=entry["Key"])["Body"].read()
                found[entry["Key"][len(prefix):]] = hashlib.sha256(body).hexdigest()
    return found


def uploads(s3):
    return [upload["Key"] for upload in s3.list_multipart_uploads(Bucket=commands.BUCKET).get("Uploads") or []]


class Writing:
    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.inputs = os.path.join(folder, "in")
        os.mkdir(self.inputs)
        inputs.make(args.tool, args.data, self.inputs)

    def rounds(self, label, chosen, environment, out=None, s3=None):
        """Each command to a new place; some of them to what exists, and twice with --force; the answers by command, each with the digests.

        In a store the data files of a DCP folder that is replaced get another number, and the first one again when that is replaced.
        """
        begin = time.monotonic()
        folder = os.path.join(self.folder, label)
        os.mkdir(folder)
        found = []
        for more, share in ROUNDS:
            again = [i for i in chosen if self.args.every or i % share == 0]
            answers = commands.run_all(self.args.commands, [WRITING[i] + more for i in again], self.inputs, environment, folder, out, again)
            if s3:
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    written = list(pool.map(lambda number: objects(s3, number), again))
                answers = [(status, text, files) for (status, text, _), files in zip(answers, written)]
            found.append(dict(zip(again, answers)))
        shutil.rmtree(folder)
        print(f"{label}: {', '.join(str(len(answers)) for answers in found)} commands, {time.monotonic() - begin:.1f} s", flush=True)
        return found

    def same(self):
        """Returns what differs."""
        failures = []
        every = range(len(WRITING))
        expected = self.rounds("here", every, server.environment())
        for number, first in expected[0].items():
            assert first[0] == 0 and first[2], (WRITING[number], first)
        for number, second in expected[1].items():
            assert second[0] == 2 and "error[EXISTS]" in second[1], (WRITING[number], second)
        for number, third in expected[2].items():
            assert third[0] == 0, (WRITING[number], third)
        for part, kind in enumerate(server.ALL):
            chosen = [i for i in every if part == 0 or self.args.every or i % 12 in CHOSEN[part - 1]]
            with kind() as running:
                s3 = running.client()
                server.make_bucket(s3, commands.BUCKET)
                found = self.rounds(kind.name, chosen, server.s3_environment(running.endpoint), f"s3://{commands.BUCKET}/out", s3)
                for here, there, which in zip(expected, found, ("new", "again", "--force", "--force again")):
                    names = list(there)
                    answers = [there[i] for i in names]
                    if which == "--force":
                        answers = [(status, text, here[i][2]) for i, (status, text, _) in zip(names, answers)]
                    failures += [f"{kind.name}, {which}: {text}"
                                 for text in commands.differing([WRITING[i] for i in names], [here[i] for i in names], answers)]
                if uploads(s3):
                    failures.append(f"{kind.name}: uploads that were not completed: {uploads(s3)}")
                if part == 0:
                    self.failing(running, s3)
        return failures

    def at(self, word):
        return f"{self.inputs}/{word[1:]}" if word.startswith("@") else word

    # ---- failures

    def failing(self, running, s3):
        """What cannot be done, or is stopped, leaves no object and no upload."""
        place = f"s3://{commands.BUCKET}/out/failed"

        def check(what, done, code):
            assert done.returncode != 0 and code in done.stderr, f"{what}: {done.returncode} {done.stdout}{done.stderr}"
            assert not objects(s3, "failed") and not uploads(s3), f"{what}: {objects(s3, 'failed')} {uploads(s3)}"
            assert server.SECRET_KEY not in done.stdout + done.stderr, what

        damaged = os.path.join(self.folder, "damaged.pt")
        shutil.copy(os.path.join(self.inputs, "large.pt"), damaged)
        with open(damaged, "r+b") as file:
            file.seek(os.path.getsize(damaged) - 3_000_000)
            file.write(b"\xff" * 1000)
        environment = server.s3_environment(running.endpoint)
        for out in ("full.safetensors", "full.pt", "full.h5"):
            done = commands.run(self.args.tool, ["convert", damaged, f"{place}/{out}", "--drop-values"], environment)
            check(f"a source that is damaged to {out}", done, "error[ZIP_CRC]")
        check("a source that is damaged to a folder", commands.run(self.args.tool, ["shard", damaged, f"{place}/f", "-w", "2"], environment),
              "error[ZIP_CRC]")
        for bucket in ("no-such-bucket", "checkpoints-2"):
            done = commands.run(self.args.tool, ["convert", self.at(FSDP2), f"s3://{bucket}/out.pt"], environment)
            check("a bucket that is not there", done, f"s3://{bucket}/out.pt")
        done = commands.run(self.args.tool, ["convert", self.at(FSDP2), f"{place}/out.pt"], dict(environment, AWS_SECRET_ACCESS_KEY="another"))
        check("a wrong key", done, "error[ACCESS]")

        credentials = (server.ACCESS_KEY, server.SECRET_KEY, None)
        with proxy.Proxy(running.endpoint, credentials=credentials, region=server.REGION) as between:
            environment = server.s3_environment(between.endpoint)
            for kind in ("create", "part", "complete", "put"):
                between.plan = lambda request, kind=kind: "forbidden" if proxy.kind_of(request) == kind else None
                for words in (["convert", "@large.pt", f"{place}/f.safetensors", "--drop-values"], ["shard", "@large.pt", f"{place}/f", "-w", "2"]):
                    before = between.faults.total()
                    done = commands.run(self.args.tool, [self.at(word) for word in words], environment)
                    if between.faults.total() == before:
                        assert kind == "put" and words[0] == "convert", f"{words}: no request of the kind {kind}: {between.counts}"
                        s3.delete_object(Bucket=commands.BUCKET, Key="out/failed/f.safetensors")
                        continue
                    check(f"{words[0]}, {kind} is refused", done, "error[ACCESS]")
            self.stopped(between, check, environment, place)
            assert not between.violations and not between.failures, (between.violations, between.failures)

    def stopped(self, between, check, environment, place):
        """A signal while parts are sent, and when data become visible."""
        for number, kind, words, out in ((signal.SIGTERM, "part", ("convert",), "f.pt"), (signal.SIGINT, "part", ("convert",), "f.pt"),
                                         (signal.SIGTERM, "complete", ("shard", "-w", "2"), "f")):
            process = None

            def plan(request, number=number, kind=kind):
                if proxy.kind_of(request) == kind:
                    process.send_signal(number)
            between.plan = None
            between.watch = plan
            process = subprocess.Popen([self.args.tool, words[0], self.at("@large.pt"), f"{place}/{out}", *words[1:]], env=environment, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
            out, err = process.communicate(timeout=60)
            between.watch = None
            assert process.returncode == 128 + number, f"{number}: {process.returncode} {err}"
            check(f"signal {number}, {kind}", subprocess.CompletedProcess([], process.returncode, out, err), "")


def main():
    parser = commands.arguments(__doc__)
    parser.add_argument("--every", action="store_true", help="all commands on rclone and moto too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        failures = Writing(args, folder).same()
    print("\n".join(failures[:20]))
    print(f"{len(failures)} differ")
    return len(failures) != 0


if __name__ == "__main__":
    sys.exit(main())
