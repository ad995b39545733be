#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `inspect --globals` with the names that CPython's own pickletools find in the same pickles.

    check_globals.py TOOL FOLDER...        every .../ckpt and .../full.pt below the folders

Archives and their records are taken apart by zipfile.
"""
import glob
import io
import json
import os
import pickletools
import subprocess
import sys
import zipfile

LEGACY_PICKLES = 5
PYTHON_3 = {"__builtin__": "builtins", "copy_reg": "copyreg"}
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"


def names(stream):
    """module.name of each GLOBAL and STACK_GLOBAL of the pickle that begins here."""
    found, strings, memo = set(), [], {}
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name == "GLOBAL":
            module, name = argument.split(" ", 1)
            found.add(f"{PYTHON_3.get(module, module)}.{name}")
        elif opcode.name == "STACK_GLOBAL":
            found.add(".".join(strings[-2:]))
        elif "UNICODE" in opcode.name:
            strings.append(argument)
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = strings[-1] if strings else None
        elif opcode.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = strings[-1] if strings else None
        elif opcode.name in ("BINGET", "LONG_BINGET") and isinstance(memo.get(argument), str):
            strings.append(memo[argument])
    return found


def names_of_file(data):
    """Names of a torch.save file, new or old, or a bare pickle."""
    if data[:4] == b"PK\x03\x04":
        found = set()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for record in archive.namelist():
                if record.endswith(".pkl"):
                    found |= names(io.BytesIO(archive.read(record)))
        return found
    if data.startswith(LEGACY_MAGIC):
        stream, found = io.BytesIO(data), set()
        for _ in range(LEGACY_PICKLES):
            found |= names(stream)
        return found
    if data[:1] == b"\x80" and data[1:2] in b"\2\3\4\5" and data.endswith(b"."):
        return names(io.BytesIO(data))
    return set()


def names_of_folder(folder):
    found = set()
    for base, _, files in os.walk(folder):
        central = ".metadata" in files
        for name in files:
            with open(os.path.join(base, name), "rb") as file:
                data = file.read()
            if name == ".metadata" or (name.endswith(".metadata") and not central):
                found |= names(io.BytesIO(data))
            elif name.endswith(".distcp"):
                # Archives follow one another: each ends where the next begins.
                for part in split_archives(data):
                    found |= names_of_file(part)
            elif not name.endswith(".metadata"):
                found |= names_of_file(data)
    return found


def split_archives(data):
    """Each archive ends with its end record, PK 5 6, of 22 bytes (torch.save writes no comment)."""
    begin, parts = 0, []
    while begin < len(data) and data[begin:begin + 4] == b"PK\x03\x04":
        end = data.find(b"PK\x05\x06", begin)
        while end >= 0:
            part = data[begin:end + 22]
            try:
                zipfile.ZipFile(io.BytesIO(part)).close()
                break
            except zipfile.BadZipFile:
                end = data.find(b"PK\x05\x06", end + 1)
        if end < 0:
            break
        parts.append(part)
        begin = end + 22
    return parts


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    tool, roots = sys.argv[1], sys.argv[2:]
    passed, failed = 0, 0
    for root in roots:
        for path in sorted(glob.glob(os.path.join(root, "**/ckpt"), recursive=True) +
                           glob.glob(os.path.join(root, "**/full.pt"), recursive=True)):
            if "zstd" in path or "nocrc" in path:
                continue  # zipfile cannot read it
            done = subprocess.run([tool, "inspect", path, "--globals", "--json"], stdout=subprocess.PIPE, check=False)
            report = json.loads(done.stdout)
            listed = {entry["name"] for entry in report["globals"]}
            if os.path.isdir(path):
                expected = names_of_folder(path)
            else:
                with open(path, "rb") as file:
                    expected = names_of_file(file.read())
            # Otherwise names that getattr takes from a class, which begin with that of the class.
            listed = {name for name in listed
                      if name in expected or "builtins.getattr" not in expected or not any(name.startswith(cls + ".") for cls in expected)}
            if done.returncode == 0 and listed == expected and report["complete"]:
                passed += 1
                continue
            failed += 1
            print(f"{path}: status {done.returncode}, more: {sorted(listed - expected)}, fewer: {sorted(expected - listed)}, "
                  f"unread: {report['unread'][:2]}")
    print(f"{passed} checkpoints agree, {failed} do not")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
