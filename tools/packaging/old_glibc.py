#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes libraries to link against, in place of the C library's: shared objects then run with an older one than that of this machine.

    old_glibc.py FOLDER COMPILER VERSION     -L FOLDER goes to the linker

The libraries have no code: each function of this machine's C library in the newest version that glibc VERSION has.  A function that is
younger stays undefined; old_glibc.cpp has those that are needed.  Some functions were in libpthread and libdl before glibc 2.34: whoever
loads the object has both, as Python does.
"""
import os
import re
import subprocess
import sys


def number(version):
    return tuple(int(part) for part in version.split("."))


def symbols(library, most):
    """Returns {version: [(name, type)]}: each name in its newest version up to `most`."""
    newest = {}
    for line in subprocess.run(["readelf", "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True).stdout.splitlines():
        found = re.match(r"\s*\d+: \w+\s+\w+ (FUNC|OBJECT|IFUNC)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ (\w+)@@?GLIBC_([0-9.]+)$", line)
        if found and number(found[3]) <= most:
            newest[found[2]] = max(newest.get(found[2], ((0,), "", "")), (number(found[3]), found[3], found[1]))
    versions = {}
    for name, (_, version, kind) in sorted(newest.items()):
        versions.setdefault(version, []).append((name, "object" if kind == "OBJECT" else "function"))
    return versions


def make(folder, compiler, soname, versions):
    path = os.path.join(folder, soname)
    with open(path + ".s", "w", encoding="ascii") as file:
        for name, kind in (row for rows in versions.values() for row in rows):
            file.write(f".globl {name}\n.type {name},%{kind}\n{name}: .byte 0\n.size {name},1\n")
        file.write('.section .note.GNU-stack,"",%progbits\n')
    with open(path + ".map", "w", encoding="ascii") as file:
        for version, rows in versions.items():
            file.write(f"GLIBC_{version} {{ {' '.join(name + ';' for name, _ in rows)} }};\n")
    subprocess.run([compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname},--version-script={path}.map", path + ".s", "-o", path], check=True)
    return path


def main():
    folder, compiler, limit = sys.argv[1:]
    folder = os.path.abspath(folder)
    os.makedirs(folder, exist_ok=True)

    def place(name):
        return subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()

    made = {name: make(folder, compiler, name, symbols(place(name), number(limit))) for name in ("libc.so.6", "libm.so.6")}
    loader, = re.findall(r"\[(/\S+/)?(ld-linux\S+)\]", subprocess.run(["readelf", "--dynamic", "--wide", place("libc.so.6")], capture_output=True, text=True, check=True).stdout)
    made["loader"] = make(folder, compiler, loader[1], symbols(place(loader[1]), number(limit)))
    with open(os.path.join(folder, "libc.so"), "w", encoding="utf-8") as file:
        file.write(f"GROUP ( {made['libc.so.6']} {place('libc_nonshared.a')} AS_NEEDED ( {made['loader']} ) )\n")
    with open(os.path.join(folder, "libm.so"), "w", encoding="utf-8") as file:
        file.write(f"GROUP ( {made['libm.so.6']} )\n")


if __name__ == "__main__":
    main()
