#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests newest.py with recorded answers of the package index and a recorded report of ctest; installs nothing and needs no network.

    check_newest.py [--build BUILD]     with BUILD: each producer's tests exist there
"""
import json
import os
import subprocess
import sys
import tempfile
import types

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docs"))

import check_compatibility
import newest
import tried
from newest import Producer, Row, Version

# What `pip index versions` printed, shortened.
WARNING = "WARNING: pip index is currently an experimental command. It may be removed/changed in a future release without prior warning.\n"
ANSWERS = {
    ("megatron-core",): WARNING + "megatron-core (0.16.1)\nAvailable versions: 0.16.1, 0.16.0, 0.15.3, 0.2.0\n",
    ("megatron-core", "later"): WARNING + "megatron-core (0.19.2)\nAvailable versions: 0.19.2, 0.19.0, 0.18.2, 0.16.1, 0.16.0\n  INSTALLED: 0.16.1\n  LATEST:    0.19.2\n",
    ("lightning",): WARNING + "lightning (2.6.6)\nAvailable versions: 2.6.6, 2.6.5, 2.5.1.post0, 2.5.1\n",
    # In another order, and with versions that are not released: 2.10 is newer than 2.9, a candidate is not.
    ("lightning", "later"): "lightning (2.10.0)\nAvailable versions: 2.9.9, 2.10.0rc1, 2.10.0.dev20260101, 2.9.10, 2.9.10.post1, 2.6.6\n",
    ("modelopt", "later"): WARNING + "ERROR: No matching distribution found for modelopt\n",
    ("peft", "later"): "WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: Exception:\nTraceback (most recent call last):\n",
}
REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="Linux" tests="4" failures="2" disabled="0" skipped="1">
 <testcase name="interop.maps" classname="interop.maps" time="9" status="fail">
  <failure message="Failed"/>
  <system-out>torchtitan-llama3-hf: 12 tensors
Traceback (most recent call last):
  File "check_maps.py", line 12, in check
    raise Failure(message)
tool_run.Failure: llama3: layers.0.wq.weight differs | here
exit 1
</system-out>
 </testcase>
 <testcase name="interop.export" status="fail"><system-out>killed

</system-out></testcase>
 <testcase name="interop.peft" status="run"><system-out>Error-free</system-out></testcase>
 <testcase name="interop.trainer" status="disabled"/>
</testsuite>
"""


def equal(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


def asked(package, *more):
    return ANSWERS[(package, *(["later"] if more else []))]


def raises(what, call, *arguments):
    try:
        call(*arguments)
    except newest.CannotRun as problem:
        assert what in str(problem), f"found '{problem}', expected '{what}'"
        return
    raise AssertionError(f"nothing was raised, expected '{what}'")


def check_pins():
    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        write("requirements.txt", "# SPDX\ntorch==2.11.0\n\ntorch_checkpointing==0.1.1   # why\n")
        write("requirements-more.txt", "torchtitan==0.10.0\nCertifi==2026.10.18\n")
        write("requirements-old.txt", "torchtitan==0.9.2\ncertifi==2026.10.19.post1\n")
        write("other.txt", "torch==3.0\n")
        equal({name: str(version) for name, version in newest.pins(folder).items()},
              {"torch": "2.11.0", "torch-checkpointing": "0.1.1", "torchtitan": "0.10.0", "certifi": "2026.10.19.post1"})
        write("requirements-range.txt", "peft==0.21.2\ntorch>=2.12\n")
        raises("requirements-range.txt:2: expected NAME==VERSION, found 'torch>=2.12'", newest.pins, folder)
    pinned = newest.pins(tried.SUPPORT)
    equal([producer.package for producer in newest.PRODUCERS if producer.tests and newest.canonicalize_name(producer.package) not in pinned], [])


def check_index():
    equal(newest.newest_of("megatron-core", Version("0.16.1"), asked), (Version("0.19.2"), True))
    equal(newest.newest_of("lightning", Version("2.6.6"), asked), (Version("2.9.10.post1"), True))
    equal(newest.newest_of("lightning", Version("2.9.10.post1"), asked), (Version("2.9.10.post1"), False))
    equal(newest.newest_of("modelopt", None, asked), (None, False))
    raises("ERROR: Exception:", newest.newest_of, "peft", None, asked)
    equal(newest.newest_of("torch", Version("2.11.0"), lambda *_: "torch (2.15.0)\nAvailable versions: 2.15.0, 2.11.0\n"), (Version("2.15.0"), False))


def check_table():
    later = newest.LATER_PYTHON
    rows = [newest.row_of(Producer("megatron-core", "megatron"), Version("0.16.1"), asked), newest.row_of(Producer("modelopt"), None, asked),
            newest.row_of(Producer("lightning"), Version("2.9.10.post1"), asked), newest.row_of(Producer("lightning"), None, asked),
            newest.row_of(Producer("lightning"), Version("2.11.0"), asked), Row(Producer("peft"), Version("1"), Version("2"), differs="a | b")]
    equal([row.newer for row in rows], [True, False, False, False, False, True])
    equal(newest.table(rows),
          "| producer | pinned | newest | what differs |\n|---|---|---|---|\n"
          f"| megatron-core | 0.16.1 | 0.19.2 | newer; needs Python {later} |\n"
          "| modelopt |  |  | not in the package index |\n"
          "| lightning | 2.9.10.post1 | 2.9.10.post1 |  |\n"
          f"| lightning |  | 2.9.10.post1 | not pinned, no test; needs Python {later} |\n"
          f"| lightning | 2.11.0 | 2.9.10.post1 | the index no longer has the pinned version; needs Python {later} |\n"
          "| peft | 1 | 2 | a / b |\n")


def check_outcome():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tests.xml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(REPORT)
        passed, failed = newest.outcome(path)
    why = "tool_run.Failure: llama3: layers.0.wq.weight differs | here"
    equal((passed, failed), (1, [("interop.maps", why), ("interop.export", "killed")]))
    titan = Producer("torchtitan", "maps")
    equal(newest.verdict(titan, Version("0.3.0"), passed, failed, []), (f"fails: interop.maps: {why} (2 of 3 tests)", True))
    equal(newest.verdict(titan, Version("0.3.0"), passed, failed, [("torchtitan", "0.3.1", "", "")])[1], True)
    equal(newest.verdict(titan, Version("0.3.0"), 0, failed[:1], [("torchtitan", "0.3.0", "", "")]),
          (f"fails, as docs/compatibility.md says: interop.maps: {why}", False))
    equal(newest.verdict(titan, Version("0.3.0"), 3, []), ("3 tests pass", False))
    equal(newest.verdict(titan, Version("0.3.0"), 0, []), ("no test ran", True))


def check_page():
    fails = [("torchao", "0.18.0", "`torchtune-llama3-hf`", "cannot be imported")]
    read = {"producer": "peft", "version": "0.9.1", "layout": "a", "ranks": None, "verbs": check_compatibility.READ[0], "what": check_compatibility.READ[1]}
    page = check_compatibility.page_of([
        {"producer": "torchao", "version": "0.15.0", "layout": "a", "verbs": "map", "what": "b", "ranks": None},
        *check_compatibility.failing(fails), {**read, "version": "0.10.1"}, {**read, "layout": "b", "ranks": 3}, {**read, "layout": "b", "ranks": 2}, read,
        {**read, "version": "0.10.1", "layout": "b", "ranks": 2}, {**read, "version": "0.10.1", "layout": "b", "ranks": 3}, {**read, "version": "1.0.0"}])
    columns = "| version | layout (ranks) | what the tests do |\n|---|---|---|\n"
    equal(page.partition("\n## ")[2], "peft\n\n" + columns +
          "| 0.9.1, 0.10.1 | a; b (2, 3) | read |\n| 1.0.0 | a | read |\n"
          "\n## torchao\n\n" + columns +
          "| 0.15.0 | a | map: b |\n| 0.18.0 | `torchtune-llama3-hf` | **fails**: cannot be imported |\n")
    equal([entry for entry in tried.FAILS if len(entry) != 4 or entry[0] not in tried.PRODUCERS], [])


def check_settings():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "CMakeCache.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("//A Python\nFSDP_TEST_PYTHON:FILEPATH=/p/bin/python\nFSDP_TEST_CORPUS:PATH=\nFSDP_TORCH:PATH=/t\nFSDP_TEST_PARITY:UNINITIALIZED=/a=b\n")
        equal(newest.settings_of(path), {"FSDP_TEST_PYTHON": "/p/bin/python", "FSDP_TEST_PARITY": "/a=b"})


def check_patterns(build):
    """Every word of a producer's tests is the name of a test or of a group of them, where the build has the environments that they need."""
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], stdout=subprocess.PIPE, check=True).stdout
    names = [test["name"] for test in json.loads(shown)["tests"]]
    if "interop.compatibility" not in names:
        print("not every interop test is here: the names of tests are not compared")
        return
    missing = [(producer.package, word) for producer in newest.PRODUCERS for word in filter(None, producer.tests.split("|"))
               if not any(newest.re.match(newest.pattern_of(types.SimpleNamespace(tests=word)), name) for name in names)]
    equal(missing, [])


def main():
    check_pins()
    check_index()
    check_table()
    check_outcome()
    check_page()
    check_settings()
    if "--build" in sys.argv:
        check_patterns(sys.argv[sys.argv.index("--build") + 1])
    print("newest.py: pins, versions, table, results and names of tests are right")


if __name__ == "__main__":
    main()
