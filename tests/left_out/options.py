#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has libfsdp ignore its options, one after the other, and expects the test of that option to notice.

  options.py PROGRAM...

PROGRAM: test programs built with FSDP_LEAVE_OUT_CALLS.  The test of an option has its name (tests/libfsdp/options_test.cpp).  It passes, and fails with
FSDP_IGNORE_OPTION; what it skips on the CPU it does on simulated devices.  Every member of FsdpOptions and of its MixedPrecision has one.
Exit: 0 as expected, 1 not.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIRED = {"process_group", "mixed_precision"}   # nothing works without the first; the second is a struct, whose members count


def options():
    text = (ROOT / "libfsdp" / "options.h").read_text()
    names = []
    for struct in ("MixedPrecision", "FsdpOptions"):
        body = re.search(rf"^struct {struct} {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL).group(1)
        body = re.sub(r"//.*", "", body)
        names += [re.search(r"(\w+)(?: = [^;]*)?$", part.strip()).group(1) for part in body.split(";") if part.strip()]
    return [name for name in names if name not in REQUIRED]


def test_of(programs, option):
    """(program, the test's full name)"""
    for program in programs:
        listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter=*.{option}"], capture_output=True, text=True,
                                check=True, env={**os.environ, "FSDP_TEST_DEVICE": "sim"}).stdout
        suite = re.search(rf"^(\w+)\.\n(?: .*\n)*? {{2}}{option}$", listed, re.MULTILINE)
        if suite:
            return program, f"{suite.group(1)}.{option}"
    return None


def run(program, test, device, **more):
    done = subprocess.run([program, f"--gtest_filter={test}"], capture_output=True, text=True, errors="replace",
                          env={**os.environ, "OMP_NUM_THREADS": "1", "FSDP_TEST_DEVICE": device, **more})
    return done.returncode == 0, "[  SKIPPED ]" in done.stdout, done.stdout[-600:]


def wrong(programs, option):
    """Returns what is wrong, or None."""
    found = test_of(programs, option)
    if found is None:
        return "no test has its name"
    for device in ("cpu", "sim"):
        passed, skipped, said = run(*found, device)
        if not passed and device == "cpu" and "_scene" in found[0]:
            continue   # a program for simulated devices alone
        if not passed:
            return f"{found[1]} fails on {device}: {said}"
        if skipped:
            continue
        if run(*found, device, FSDP_IGNORE_OPTION=option)[0]:
            return f"{found[1]} passes on {device} where the option is ignored"
        return None
    return f"{found[1]} is skipped everywhere"


def main():
    programs = sys.argv[1:]
    failures = 0
    names = options()
    for option in names:
        said = wrong(programs, option)
        if said:
            failures += 1
            print(f"FAILED {option}: {said}", flush=True)
    print(f"{len(names)} options; {failures} failed")
    return 1 if failures or len(names) < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
