#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rename on file systems with reflinks: shares the data, and stays whole when the source is overwritten.

    check_reflinks.py TOOL GOLDEN

Makes an XFS and a Btrfs in a file each and mounts them, which needs root, a loop device and mkfs; missing parts are reported, and if
nothing could be tested the exit status is 77.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

KINDS = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}
IMAGE_BYTES = 512 << 20  # sparse


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout


def expect(condition, *what):
    if not condition:
        raise SystemExit(" ".join(map(str, ("wrong:", *what))))


def used(folder):
    os.sync()
    info = os.statvfs(folder)
    return (info.f_blocks - info.f_bfree) * info.f_frsize


def check(tool, golden, mounted):
    source, out = os.path.join(mounted, "source"), os.path.join(mounted, "out")
    shutil.copytree(golden, source)
    # Large enough that a copy would show: 48 MiB that no item needs follow the last one.
    data = os.path.join(source, "__0_0.distcp")
    with open(data, "ab") as file:
        file.write(os.urandom(48 << 20))
    before = used(mounted)
    did = json.loads(run(tool, "rename", source, out, "--rename", "app.model=model", "--json"))
    grown = used(mounted) - before
    expect(any(f.get("linked") for f in did["files"]), "nothing is shared", did["files"])
    expect(os.stat(data).st_ino != os.stat(os.path.join(out, "__0_0.distcp")).st_ino, "is a hard link")
    expect(grown < 16 << 20, "sharing took", grown, "bytes")
    expect(not os.path.exists(os.path.join(out, "fsdp_shared.json")), "a record of what nobody can change")
    sealed = os.path.join(mounted, "sealed")
    run(tool, "rename", source, sealed, "--rename", "app.model=model", "--seal")
    # In place, like a save into the same folder.
    with open(data, "r+b") as file:
        file.write(b"\0" * os.path.getsize(data))
    expect(subprocess.run([tool, "verify", source], capture_output=True).returncode == 1, "the source is sound")
    expect("sound" in run(tool, "verify", out), "the output is not")
    expect("matches its seal" in run(tool, "verify", sealed), "the sealed output does not match")


def main():
    tool, golden = sys.argv[1], os.path.join(sys.argv[2], "2.15.0/fsdp2/ckpt")
    done = []
    for kind, mkfs in KINDS.items():
        if shutil.which(mkfs[0]) is None:
            print(f"SKIP {kind}: {mkfs[0]} is not installed")
            continue
        with tempfile.TemporaryDirectory() as work:
            image, mounted = os.path.join(work, "image"), os.path.join(work, "mounted")
            os.mkdir(mounted)
            with open(image, "wb") as file:
                file.truncate(IMAGE_BYTES)
            run(*mkfs, image)
            mount = subprocess.run(["mount", "-o", "loop", image, mounted], capture_output=True, text=True)
            if mount.returncode != 0:
                print(f"SKIP {kind}: {mount.stderr.strip()}")
                continue
            try:
                check(tool, golden, mounted)
            finally:
                run("umount", mounted)
            done.append(kind)
            print(f"{kind}: data shared, and whole after the source was overwritten")
    return 0 if done else 77


if __name__ == "__main__":
    sys.exit(main())
