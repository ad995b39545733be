#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys with every odd character, buckets with dots, and folders of more files than one answer lists, through the check of signatures.

    check_odd_names.py --tool PROGRAM --commands PROGRAM --data FOLDER
"""
import difflib
import os
import shutil
import sys
import tempfile
import time

import commands
import proxy
import server

MINIMAL = "golden/2.11.0/minimal/ckpt"
SAFETENSORS = "golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors"
BUCKET = "bucket.with.dots"
# What no server may spell otherwise.
KEYS = ("a b", "a+b", "a=b", "a*b", "(a)b", "a%41%2Fb", "a#b", "a?b", "a&b=c", "a;b,c:d@e!f$g'h", 'a"b<c>d', "a~b_c.d-e", "[a]{b}|c^d`e",
        "\u00e9\u4e2d\U0001f600", "e\u0301", "a\\b", " a", "a ", "+", "...", "a..b", "%", "%25", "a%", "/a", "a//b", "year=2026/month=01/x")
# rclone and SeaweedFS keep files and folders, in which names like these are others.
NOT_IN_FOLDERS = ("/a", "a//b")
FILES = 1100


def places(kind):
    """All keys for moto, which answers soonest; every other one for the others, which check signatures themselves."""
    if kind is server.Moto:
        return KEYS
    return [key for key in KEYS if key not in NOT_IN_FOLDERS][kind is server.Rclone::2]


def between_of(running):
    return proxy.Proxy(running.endpoint, credentials=(server.ACCESS_KEY, server.SECRET_KEY, None), region=server.REGION)


def check_keys(args, running, kind, work):
    """What boto3 wrote is read, and boto3 finds what was written, all in a few processes."""
    s3 = running.client()
    server.make_bucket(s3, BUCKET)
    folder, file = os.path.join(args.data, MINIMAL), os.path.join(args.data, SAFETENSORS)
    (expected,) = commands.run_all(args.commands, [["stats", "@" + MINIMAL]], args.data, server.environment(), work, processes=1)
    assert expected[0] == 0, expected
    place, keys, failures = f"s3://{BUCKET}", places(kind), []
    commands.upload_all(s3, BUCKET, {f"read/{key}/ckpt/{name}": os.path.join(folder, name) for key in keys for name in os.listdir(folder)})
    with between_of(running) as between:
        def answers(lines):
            return commands.run_all(args.commands, lines, place, server.s3_environment(between.endpoint), work, out=place)
        for key, (status, text, _) in zip(keys, answers([["stats", f"@read/{key}/ckpt"] for key in keys])):
            if (status, text.replace(f"@read/{key}/ckpt", "@" + MINIMAL)) != expected[:2]:
                failures.append(f"{running.name}: reading {key!r}: {status} {text}")
        for key, (status, text, _) in zip(keys, answers([["latest", f"@read/{key}"] for key in keys])):
            if (status, text) != (0, f"out @read/{key}/ckpt"):
                failures.append(f"{running.name}: latest {key!r}: {status} {text}")
        lines = [["convert", file, f"@write/{key}.pt"] for key in keys] + [["reshard", folder, f"@write/{key}/d", "-w", "2"] for key in keys]
        for line, (status, text, _) in zip(lines, answers(lines)):
            if status != 0:
                failures.append(f"{running.name}: writing {line[2]!r}: {status} {text}")
        expected_keys = {f"write/{key}{made}" for key in keys for made in (".pt", "/d/.metadata", "/d/__0_0.distcp", "/d/__1_0.distcp")}
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="write/")
        found = {entry["Key"] for page in pages for entry in page.get("Contents", []) if not entry["Key"].endswith("/")}
        if found != expected_keys:
            failures.append(f"{running.name}: written {sorted(found - expected_keys)}, missing {sorted(expected_keys - found)}")
        failures += [f"{running.name}: {violation}" for violation in between.violations]
        assert not between.failures, between.failures
    return failures


def check_pages(args, running, work):
    """A run of many checkpoints, and a checkpoint beside many other files: nothing is lost between two pages of a list."""
    # rclone serves a folder: nothing has to be sent.
    server.make_bucket(running.client(), "paged")
    bucket = os.path.join(running.folder, "data", "paged")
    source = os.path.join(args.data, MINIMAL)
    for step in range(1, FILES + 1):
        shutil.copytree(source, os.path.join(bucket, "run", f"step-{step}"))
    os.remove(os.path.join(bucket, "run", f"step-{FILES}", ".metadata"))
    shutil.copytree(source, os.path.join(bucket, "many"))
    for number in range(FILES):
        path = os.path.join(bucket, "many", f"__{number + 5}_0.distcp")
        with open(path, "wb") as file:
            file.write(b"x")
        os.utime(path, (0, 0))   # a later time is told of, in the order of times, which stores round
    here = os.path.join(work, "here")
    os.symlink(bucket, here)
    with between_of(running) as between:
        environment = server.s3_environment(between.endpoint)
        for words in (["latest", "@run"], ["inspect", "@run", "--json"], ["verify", "@many", "--json"], ["inspect", "@many", "--json"]):
            between.reset_counts()
            answers = []
            for place, which in ((here, server.environment()), ("s3://paged", environment)):
                done = commands.run(args.tool, [word.replace("@", place + "/") for word in words], which)
                text = (done.stdout + done.stderr).replace(place, "@")
                answers.append((done.returncode, "\n".join(line for line in text.splitlines() if '"seconds"' not in line)))
            other = list(difflib.unified_diff(answers[0][1].splitlines(), answers[1][1].splitlines(), "here", "there", lineterm=""))
            assert answers[0] == answers[1], f"{words}: {answers[1][0]} instead of {answers[0][0]}\n" + "\n".join(other[:40])
            print(f"{' '.join(words)} of {FILES}: {dict(between.counts)}", flush=True)
            # The steps are listed together, a thousand files an answer.
            assert between.counts["list"] <= FILES * len(os.listdir(source)) / 1000 + 6, between.counts
        assert between.counts.total() and not between.violations and not between.failures, (between.violations, between.failures)


def main():
    args = commands.arguments(__doc__).parse_args()
    failures = []
    for kind in server.ALL:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as work, kind() as running:
            failures += check_keys(args, running, kind, work)
            if kind is server.Rclone:
                check_pages(args, running, work)
        print(f"{kind.name}: {len(places(kind))} keys, {time.monotonic() - begin:.1f} s", flush=True)
    print("\n".join(failures[:30]))
    print(f"{len(failures)} failures")
    return len(failures) != 0


if __name__ == "__main__":
    sys.exit(main())
