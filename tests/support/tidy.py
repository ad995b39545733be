#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the translation units of the three libraries.

    tidy.py --build BUILD --tidy CLANG_TIDY --record FOLDER [--jobs N] [--all-checks] [FOLDER...]

A folder of the tree is one unit, as in a unity build. A unit that passed is not read again until one of the files of the
tree that it includes, its command, the checks or clang-tidy change: RECORD holds an empty file for each pass.
Exit: 0 nothing found, 1 findings.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
# The analyzer takes twice the time of all others; the last finds the unity files themselves.
LEFT_OUT = "-clang-analyzer-*"
UNITY = "-bugprone-suspicious-include"


def units(build, folders):
    """(source, its command) of each unit that holds a file of the folders."""
    with open(os.path.join(build, "compile_commands.json")) as file:
        entries = json.load(file)
    for entry in entries:
        source = entry["file"]
        if "/Unity/unity_fsdp" not in source and not source.startswith(tuple(
                os.path.join(ROOT, top, "") for top in ("formats", "tools", "libfsdp"))):
            continue
        files = sources_of(source)
        if not folders or any(os.path.relpath(file, ROOT).startswith(folder.rstrip("/") + "/")
                              for file in files for folder in folders):
            yield source, entry["command"]


def included(path):
    """The names between quotes in the includes of a file."""
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE)


def sources_of(source):
    return [name for name in included(source) if name.endswith(".cpp")] or [source]


def read_files(source):
    """A unit's files of the tree, found through their includes."""
    found, new = set(), [source]
    while new:
        path = new.pop()
        if path in found:
            continue
        found.add(path)
        new += [other for other in (os.path.join(ROOT, name) for name in included(path)) if os.path.exists(other)]
    return sorted(found)


def key_of(source, command, version, checks):
    digest = hashlib.sha256(f"{version}\n{checks}\n{command}\n".encode())
    for path in [os.path.join(ROOT, ".clang-tidy"), *read_files(source)]:
        with open(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()[:32]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--tidy", required=True)
    parser.add_argument("--record", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--all-checks", action="store_true")
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args()
    os.makedirs(options.record, exist_ok=True)
    version = subprocess.run([options.tidy, "--version"], check=True, capture_output=True, text=True).stdout
    checks = UNITY if options.all_checks else f"{LEFT_OUT},{UNITY}"

    def check(unit):
        source, command = unit
        stamp = os.path.join(options.record, key_of(source, command, version, checks))
        if os.path.exists(stamp):
            return source, None, 0
        begin = time.monotonic()
        result = subprocess.run([options.tidy, "-p", options.build, "--quiet", f"--checks={checks}", source],
                                capture_output=True, text=True)
        seconds = time.monotonic() - begin
        if result.returncode == 0:
            open(stamp, "w").close()
            return source, "", seconds
        return source, result.stdout or result.stderr, seconds

    every = list(units(options.build, options.folders))
    known, failed = 0, 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for source, findings, seconds in pool.map(check, every):
            known += findings is None
            failed += bool(findings)
            if findings is not None:
                name = os.path.relpath(source, ROOT)
                print(f"{'FAIL' if findings else 'ok  '} {os.path.basename(name)} {seconds:.0f} s", flush=True)
            if findings:
                print(findings.replace(ROOT + "/", ""), flush=True)
    print(f"clang-tidy: {len(every)} units, {known} of them known from before, {failed} with findings")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
