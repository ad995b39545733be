#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles mistakes.cpp and compares what the compiler says of each mistake with the comment above it.

  check_mistakes.py COMPILER FLAG... mistakes.cpp
"""
import re
import subprocess
import sys


def errors(command):
    result = subprocess.run([*command, "-fsyntax-only", "-fmax-errors=0"], capture_output=True, text=True, check=False)
    return [line for line in result.stderr.splitlines() if "error: " in line or "warning: " in line]


def main():
    command, source = sys.argv[1:-1], sys.argv[-1]
    without = errors([*command, source])
    assert not without, without
    found = errors([*command, "-DWITH_MISTAKES", source])
    with open(source, encoding="utf-8") as file:
        wanted = re.findall(r"^  // (.*)\n", file.read().split("#ifdef WITH_MISTAKES")[1].split("#endif")[0], re.M)
    missing = [text for text in wanted if not any("static assertion failed" in line and text in line for line in found)]
    assert len(wanted) == 11 and not missing, "\n".join(["nothing says:", *missing, "found:", *found])
    twice = [text for text in set(wanted) if sum(text in line for line in found) < wanted.count(text)]
    assert not twice, twice
    print(f"{len(wanted)} mistakes are named")


if __name__ == "__main__":
    main()
