#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has libfsdp ignore its options, one after the other, and expects the test of that option to notice.

  options.py PROGRAM...

PROGRAM: test programs built with FSDP_LEAVE_OUT_CALLS.  The test of an option has its name (tests/libfsdp/options_test.cpp), in a
suite that has the name of the struct (options_of_calls_test.cpp).  It passes, and fails with FSDP_IGNORE_OPTION; what it skips on the CPU it does
on simulated devices.  Every member of the structs below has one, or a reason in EXCEPTIONS.
Exit: 0 as expected, 1 not.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXCEPTIONS = {
    "FsdpOptions::process_group": "nothing works without it",
    "FsdpOptions::mixed_precision": "its members count",
    "CPUOffload::offload_params": "it is all of FsdpOptions::cpu_offload",
    "FullyShardOptions::process_group": "nothing works without it",
    "FullyShardOptions::mp_policy": "its members count",
    "StrategyOptions::cluster_environment": "its members count",
    "StrategyOptions::fsdp": "its members count",
}
# Tests that some machines skip.
SKIPPED = {"SaveOptions::page_cache": "file systems other than ext4 and XFS know no other way"}
STRUCTS = {
    "options.h": ("MixedPrecision", "FsdpOptions"),
    "fully_shard.h": ("MixedPrecisionPolicy", "FullyShardOptions"),
    "fully_sharded.h": ("SummonOptions",),
    "state_dict.h": ("StateDictConfig", "FullStateDictConfig", "OptimStateDictConfig", "FullOptimStateDictConfig"),
    "strategy.h": ("StrategyOptions",),
    "fairscale_options.h": ("DDPFullyShardedOptions",),
    "checkpoint.h": ("SaveOptions", "LoadOptions", "TrainingLoadOptions"),
    "process_group.h": ("ProcessGroupOptions",),
}


def options():
    """(struct, member)"""
    names = []
    for header, structs in STRUCTS.items():
        text = (ROOT / "libfsdp" / "include" / "libfsdp" / header).read_text()
        for struct in structs:
            body = re.search(rf"^struct {struct}(?: : \w+)? {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL).group(1)
            body = re.sub(r"//.*", "", body)
            members = [re.search(r"(\w+)(?: = [^;]*)?$", part.strip()).group(1) for part in body.split(";") if part.strip()]
            names += [(struct, member) for member in members if f"{struct}::{member}" not in EXCEPTIONS]
    return names


def test_of(programs, struct, member):
    """(program, the test's full name)"""
    others = {name for structs in STRUCTS.values() for name in structs} - {struct}
    for program in programs:
        listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter=*.{member}"], capture_output=True, text=True,
                                check=True, env={**os.environ, "FSDP_TEST_DEVICE": "sim"}).stdout
        suites = [suite for suite in re.findall(r"^(\w+)\.$", listed, re.MULTILINE) if suite not in others]
        if struct not in STRUCTS["options.h"]:
            suites = [suite for suite in suites if suite == struct]
        if suites:
            return program, f"{suites[0]}.{member}"
    return None


def run(program, test, device, **more):
    done = subprocess.run([program, f"--gtest_filter={test}"], capture_output=True, text=True, errors="replace",
                          env={**os.environ, "OMP_NUM_THREADS": "1", "FSDP_TEST_DEVICE": device, **more})
    return done.returncode == 0, "[  SKIPPED ]" in done.stdout, done.stdout[-600:]


def wrong(programs, struct, member):
    """Returns what is wrong, or None."""
    found = test_of(programs, struct, member)
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
        if run(*found, device, FSDP_IGNORE_OPTION=f"{struct}::{member}")[0]:
            return f"{found[1]} passes on {device} where the option is ignored"
        return None
    return None if f"{struct}::{member}" in SKIPPED else f"{found[1]} is skipped everywhere"


def main():
    programs = sys.argv[1:]
    failures = 0
    names = options()
    for struct, member in names:
        said = wrong(programs, struct, member)
        if said:
            failures += 1
            print(f"FAILED {struct}::{member}: {said}", flush=True)
    print(f"{len(names)} options; {failures} failed")
    return 1 if failures or len(names) < 80 else 0


if __name__ == "__main__":
    sys.exit(main())
