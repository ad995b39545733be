#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the newest versions of producers with the pinned ones, and runs the interop tests with what is newer.  tests/newest.sh calls it.

    newest.py [--list] [--only PRODUCER]...     with --list: asks the package index alone

What is newer is installed into an environment of its own below build/newest, in which it precedes the pinned packages; nothing else
changes.  build/newest is configured like build/ci and never built: its tests run the fsdp-ckpt of build/ci.
Exit: 0; 1 if a test fails that tests/interop/tried.py does not list in FAILS; 2 if something could not run.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pip._vendor.packaging.utils import canonicalize_name
from pip._vendor.packaging.version import Version

import tried

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# The index hides from a Python what needs a later one: it is asked for this one.
LATER_PYTHON = "{}.{}".format(*max(sys.version_info[:2], (3, 12)))


@dataclass(frozen=True)
class Producer:
    package: str
    tests: str = ""     # of the tests that concern it, without interop. before it; empty: there are none
    corpora: tuple = ()   # of CORPORA, made anew


# The variable of CMake that names the folder, the script that makes it, and the variable of the Python that runs the script.
CORPORA = {"checkpoints": ("FSDP_TEST_CORPUS", "make_checkpoints.py", "FSDP_TEST_PYTHON"),
           "frameworks": ("FSDP_TEST_FRAMEWORKS_CORPUS", "make_frameworks.py", "FSDP_TEST_TRAINERS_PYTHON")}

FRAMEWORKS = ("frameworks",)
PRODUCERS = [
    Producer("torch", "golden|made|edits|vocabulary|groups|lora|arithmetic|values|pickles|cycles|shards|convert|keys|self_diff|seals|"
             "reshard|rekey|map", ("checkpoints",)),
    Producer("transformers", "vocabulary_transformers|maps|export|trainer|peft"),
    Producer("accelerate", "frameworks|trainer", FRAMEWORKS),
    Producer("peft", "peft|trainer"),
    Producer("deepspeed", "frameworks|deepspeed", FRAMEWORKS),
    Producer("megatron-core", "megatron|maps"),
    Producer("megatron-bridge"),
    Producer("nemo-automodel"),
    Producer("torchtitan", "maps|export"),
    Producer("torchtune", "torchtune"),
    Producer("mosaicml", "composer"),
    Producer("lightning", "frameworks", FRAMEWORKS),
    Producer("torchao", "torchtune"),
    Producer("safetensors", "golden|made|arithmetic|edits|convert|lora|maps|export"),
    Producer("compressed-tensors"),
    Producer("nvidia-modelopt"),
    Producer("torch_checkpointing", "frameworks|torch_checkpointing", FRAMEWORKS),
    Producer("ai2-olmo-core", "maps"),
    Producer("verl", "verl"),
]


class CannotRun(Exception):
    pass


def run(*command, **options):
    """Returns what the command printed on both streams, and its exit status."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    return done.stdout, done.returncode


def must(*command, **options):
    said, status = run(*command, **options)
    if status != 0:
        raise CannotRun(reason_of(said) or f"{command[0]}: exit {status}")


# ---- versions

def pins(folder):
    """Returns the pinned version of each package by its canonical name: of several files' versions the highest."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "requirements*.txt"))):
        if path.endswith(("-models.txt", "-torches.txt")):   # other versions than the interop tests run with
            continue
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                line = line.partition("#")[0].strip()
                if not line:
                    continue
                pin = re.fullmatch(r"([\w.-]+)==([\w.!+-]+)", line)
                if not pin:
                    raise CannotRun(f"{path}:{number}: expected NAME==VERSION, found '{line:.80}'")
                found.setdefault(canonicalize_name(pin[1]), []).append(Version(pin[2]))
    return {name: max(versions) for name, versions in found.items()}


def versions_of(answer):
    """Returns the released versions that `pip index versions` lists; none where the index does not have the package."""
    listed = re.search(r"^Available versions: (.*)$", answer, re.MULTILINE)
    if not listed:
        if "No matching distribution found" in answer:
            return []
        raise CannotRun(reason_of(answer) or "the package index did not answer")
    versions = [Version(word.strip()) for word in listed[1].split(",")]
    return [version for version in versions if not version.is_prerelease]


def ask(package, *more):
    """Returns the answer of the package index."""
    return run(sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check", *more)[0]


def newest_of(package, pinned, asked=ask):
    """Returns the newest version, and whether the index hides it from this Python."""
    newest = max(versions_of(asked(package, "--python-version", LATER_PYTHON)), default=None)
    return newest, newest not in (None, pinned) and newest not in versions_of(asked(package))


# ---- the table

@dataclass
class Row:
    producer: Producer
    pinned: Version = None
    newest: Version = None
    hidden: bool = False   # from the Python that runs this
    differs: str = ""

    @property
    def newer(self):
        return bool(self.pinned and self.newest and self.newest > self.pinned)


def row_of(producer, pinned, asked=ask):
    """Returns the row with what can be said without a test."""
    newest, hidden = newest_of(producer.package, pinned, asked)
    row = Row(producer, pinned, newest, hidden)
    if not newest:
        row.differs = "not in the package index"
    elif not pinned:
        row.differs = "not pinned, no test"
    elif row.newer:
        row.differs = "newer"
    elif newest < pinned:
        row.differs = "the index no longer has the pinned version"
    if hidden:
        row.differs += f"; needs Python {LATER_PYTHON}"
    return row


def table(rows):
    lines = ["| producer | pinned | newest | what differs |", "|---|---|---|---|"]
    lines += [f"| {row.producer.package} | {row.pinned or ''} | {row.newest or ''} | {row.differs.replace('|', '/')} |" for row in rows]
    return "\n".join(lines) + "\n"


def reason_of(said):
    """Returns the first line of an output that names an error, without the code around it."""
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    for line in lines:
        if re.match(r"(?:[\w.]*(?:Error|Exception|Failure)\b|ERROR: |FAIL)", line):
            return line[:200]
    return lines[-1].strip()[:200] if lines else ""


def outcome(report):
    """Returns how many tests of ctest's report passed, and of each that failed the name and the first line that says why."""
    passed, failed = 0, []
    for case in tree.parse(report).iter("testcase"):
        if case.get("status") == "run":
            passed += 1
        elif case.get("status") == "fail":
            failed.append((case.get("name"), reason_of(case.findtext("system-out") or "")))
    return passed, failed


def verdict(producer, version, passed, failed, fails=None):
    """Returns the table's words, and whether they are news: a failure that docs/compatibility.md does not list."""
    if failed:
        known = (producer.package, str(version)) in {entry[:2] for entry in (tried.FAILS if fails is None else fails)}
        name, reason = failed[0]
        more = f" ({len(failed)} of {passed + len(failed)} tests)" if passed + len(failed) > 1 else ""
        return f"fails{', as docs/compatibility.md says' if known else ''}: {name}: {reason}{more}", not known
    return (f"{passed} tests pass", False) if passed else ("no test ran", True)


# ---- what is newer, tried

def settings_of(cache):
    """Returns the variables FSDP_TEST_* of a CMakeCache.txt."""
    with open(cache, encoding="utf-8") as file:
        return dict(re.findall(r"^(FSDP_TEST_\w+):\w+=(.+)$", file.read(), re.MULTILINE))


def version_in(python, package):
    """Returns the version of a package that a Python sees; None if it has none."""
    said, status = run(python, "-c", f"from importlib import metadata; print(metadata.version({package!r}))")
    return Version(said.strip().partition("+")[0]) if status == 0 else None


def environment(python, folder, row, torch):
    """Makes an environment in which the newest version precedes what the Python sees; returns its Python."""
    package, pin = row.producer.package, f"{row.producer.package}=={row.newest}"
    must(python, "-m", "venv", "--clear", folder)
    own = os.path.join(folder, "bin/python")
    site = run(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[0].strip()
    seen = run(python, "-c", "import sys; print(*(path for path in sys.path if path.endswith('-packages')), sep='\\n')")[0]
    with open(os.path.join(site, "pinned.pth"), "w", encoding="utf-8") as file:
        file.write(seen)
    prefix = os.path.dirname(os.path.dirname(python))
    for name in set(os.listdir(prefix)) - set(os.listdir(folder)):   # such as an older version in a folder of its own
        os.symlink(os.path.join(prefix, name), os.path.join(folder, name))
    install = [own, "-m", "pip", "install", "-q", "--no-compile", "--no-cache-dir", "--disable-pip-version-check"]
    if row.hidden:   # its Python code alone
        must(*install, "--no-deps", "--only-binary=:all:", "--python-version", LATER_PYTHON, "--target", site, pin)
    else:
        keep = [f"torch=={torch}"] if package != "torch" else []
        if run(*install, pin, *keep)[1] != 0:
            must(*install, "--no-deps", pin)   # what it needs does not fit; the tests may do without
    if version_in(own, package) != row.newest:
        raise CannotRun(f"{own} sees {package} {version_in(own, package)}, not {row.newest}")
    return own


def try_newest(row, build, work):
    """Runs the tests of the producer with its newest version; fills in the row and returns whether its result is news."""
    settings = settings_of(os.path.join(build, "CMakeCache.txt"))
    folder = os.path.join(work, f"{row.producer.package}-{row.newest}")
    torch = version_in(settings["FSDP_TEST_PYTHON"], "torch")
    made = {}
    for name, python in sorted(settings.items()):
        if name.endswith("_PYTHON") and version_in(python, row.producer.package):
            if python not in made:
                made[python] = environment(python, os.path.join(folder, name), row, torch)
            settings[name] = made[python]
    if not made:
        raise CannotRun(f"no Python of {build} has {row.producer.package}")
    for corpus in row.producer.corpora:
        variable, script, python = CORPORA[corpus]
        made_here = os.path.join(folder, corpus)
        run("rm", "-rf", made_here)
        must(settings[python], os.path.join(HERE, script), made_here)
        settings[variable] = made_here
    settings["FSDP_TEST_BINARY"] = os.path.join(build, "tools/fsdp-ckpt")
    must("cmake", "--preset", "ci", "-B", os.path.join(work, "build"), "-DFSDP_WITH_TORCH=OFF", *(f"-D{name}={value}" for name, value in settings.items()), cwd=ROOT)
    report = os.path.join(folder, "tests.xml")
    run("rm", "-f", report)
    said, _ = run("ctest", "--test-dir", os.path.join(work, "build"), "-R", pattern_of(row.producer), "-j", os.environ.get("JOBS", "1"), "--output-junit", report)
    if not os.path.exists(report):
        raise CannotRun(f"ctest: {reason_of(said)}")
    row.differs, news = verdict(row.producer, row.newest, *outcome(report))
    return news


def pattern_of(producer):
    """A regular expression of the names of the producer's tests, which belong to interop and are no whole-family tests."""
    return rf"^interop\.({producer.tests})(\.|$)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", action="append", choices=[producer.package for producer in PRODUCERS], metavar="PRODUCER")
    options = parser.parse_args()
    chosen = [producer for producer in PRODUCERS if not options.only or producer.package in options.only]
    pinned = pins(tried.SUPPORT)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda producer: row_of(producer, pinned.get(canonicalize_name(producer.package))), chosen))
    status = 0
    for row in rows if not options.list else []:
        if row.newer and row.producer.tests:
            print(f"== {row.producer.package} {row.newest}", file=sys.stderr, flush=True)
            try:
                status = max(status, int(try_newest(row, os.path.join(ROOT, "build/ci"), os.path.join(ROOT, "build/newest"))))
            except CannotRun as problem:
                row.differs, status = f"could not run: {problem}", 2
    print(table(rows), end="")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CannotRun as problem:
        print(f"newest.py: {problem}", file=sys.stderr)
        sys.exit(2)
