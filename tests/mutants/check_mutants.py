#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a copy of the tree with the defects of mutants.py, and runs a tier of the tests with each: a test has to fail.

    check_mutants.py --build build/ci [--tier default] [--work FOLDER] [--jobs N] [NUMBER...]
    check_mutants.py --check    only that each text of mutants.py stands once in its file

BUILD: where tests/run.sh built; its settings are used. Tests end at the first failure, unit tests run first. Prints a line for each
defect with the test that noticed it. Exit: 0 all were noticed, 1 some were not. By hand: a build, and minutes for each defect.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

from mutants import MUTANTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = """#pragma once
#ifdef __cplusplus
#include <cstdlib>
inline bool MUTANT(int number) {
  static const char* const text = std::getenv("FSDP_MUTANT");
  static const int chosen = text == nullptr ? 0 : std::atoi(text);
  return number == chosen;
}
#endif
"""


def make_tree(work):
    tree = work / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    (tree / "mutant.h").write_text(HEADER)
    for (file, text, defect), source in zip(MUTANTS, sources(tree)):
        (tree / file).write_text(source.replace(text, defect))
    return tree


def sources(tree):
    """Returns the file of each defect as text."""
    found = [(tree / file).read_text() for file, _, _ in MUTANTS]
    for (file, text, _), source in zip(MUTANTS, found):
        if source.count(text) != 1:
            sys.exit(f"mutants.py: {file} has {source.count(text)} times: {text}")
    return found


def build_tree(tree, build, jobs):
    """Configures with the paths that the other build was given."""
    settings = [line for line in (build / "CMakeCache.txt").read_text().splitlines()
                if re.match(r"FSDP_(TEST_\w+|TORCH|WITH_TORCH):\w+=.", line)]
    subprocess.run(["cmake", "--preset", "ci", *(f"-D{line}" for line in settings), f"-DCMAKE_CXX_FLAGS=-include {tree}/mutant.h"],
                   cwd=tree, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "--preset", "ci", "-j", str(jobs)], cwd=tree, check=True, stdout=subprocess.DEVNULL)


def noticed_by(tree, number, tier, jobs):
    """Returns the first test that failed, or None."""
    for part in dict.fromkeys(["quick", tier]):
        run = subprocess.run([sys.executable, "tests/support/run_tiers.py", "run", part, "--build", "build/ci", "--jobs", str(jobs), "--stop"],
                             cwd=tree, env={**os.environ, "FSDP_MUTANT": str(number)}, capture_output=True, text=True)
        failed = re.findall(r"^failed \S+ s (\S+)", run.stdout, re.M)
        if failed:
            return failed[0]
        if run.returncode != 0:
            sys.exit(run.stdout[-2000:] + run.stderr[-2000:])
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tier", default="default")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.check:
        print(f"{len(sources(ROOT))} defects")
        return 0
    if options.build is None:
        parser.error("--build is missing")
    tree = make_tree(options.work)
    build_tree(tree, options.build, options.jobs)
    missed = 0
    for number, (file, _, _) in enumerate(MUTANTS, 1):
        if options.numbers and number not in options.numbers:
            continue
        test = noticed_by(tree, number, options.tier, options.jobs)
        missed += test is None
        print(f"{number:2} {file}: {test or 'nothing fails'}", flush=True)
    print(f"{missed} not noticed")
    return missed != 0


if __name__ == "__main__":
    sys.exit(main())
