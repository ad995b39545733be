#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the translation units of the three libraries.

    tidy.py --build BUILD --tidy CLANG_TIDY --record FOLDER [--jobs N] [--all-checks] [--update] [FOLDER...]
    tidy.py --changed        prints the folders with other files than when all passed

The units are those of a unity build, each with files of several folders. A unit that passed is not read again until one of the files of the
tree that it includes, its command, the checks or clang-tidy change: RECORD holds an empty file for each pass.
tidied.txt, beside this file, has a digest of each folder's own files; --update writes it after all passed.
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
LIBRARIES = ("formats", "tools", "libfsdp")
INCLUDES = ("", "libfsdp/include")   # where a name between quotes is looked for
TIDIED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "tidied.txt")


def units(build, folders):
    """(source, its command) of each unit that holds a file of the folders."""
    with open(os.path.join(build, "compile_commands.json")) as file:
        entries = json.load(file)
    for entry in entries:
        source = entry["file"]
        if "/Unity/unity_fsdp" not in source and not source.startswith(tuple(
                os.path.join(ROOT, top, "") for top in LIBRARIES)):
            continue
        files = sources_of(source)
        if not folders or any(os.path.dirname(os.path.relpath(file, ROOT)) == folder.rstrip("/")
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
        names = included(path)
        new += [other for top in INCLUDES for name in names if os.path.exists(other := os.path.join(ROOT, top, name))]
    return sorted(found)


def folder_digests():
    """Folder of the three libraries -> digest of its own files and of the checks."""
    with open(os.path.join(ROOT, ".clang-tidy"), "rb") as file:
        checks = file.read()
    digests = {}
    for top in LIBRARIES:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            sources = sorted(name for name in names if name.endswith((".h", ".cpp")))
            digest = hashlib.sha256(checks)
            for name in sources:
                with open(os.path.join(folder, name), "rb") as file:
                    digest.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
            if sources:
                digests[os.path.relpath(folder, ROOT)] = digest.hexdigest()[:16]
    return digests


def changed_folders():
    with open(TIDIED, encoding="utf-8") as file:
        tidied = dict(line.split() for line in file if not line.startswith("#"))
    return [folder for folder, digest in sorted(folder_digests().items()) if tidied.get(folder) != digest]


def write_tidied():
    with open(TIDIED, "w", encoding="utf-8") as file:
        file.write("# Folders as they were when clang-tidy found nothing in them: tests/lint.sh tidy --update\n")
        file.writelines(f"{folder} {digest}\n" for folder, digest in sorted(folder_digests().items()))


def key_of(source, command, version, checks):
    digest = hashlib.sha256(f"{version}\n{checks}\n{command}\n".encode())
    for path in [os.path.join(ROOT, ".clang-tidy"), *read_files(source)]:
        with open(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()[:32]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build")
    parser.add_argument("--tidy")
    parser.add_argument("--record")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--all-checks", action="store_true")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args()
    if options.changed:
        print("\n".join(changed_folders()))
        return 0
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
    if options.update and not failed and not options.folders:
        write_tidied()
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
