#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds, downloads or builds the fsdp-ckpt of a job.

    program.py     prints its path

FSDP_CKPT names a program that is there; FSDP_VERSION a release of FSDP_REPOSITORY, a web address, to download; without both it is built
from this checkout.  Exit status: 0, or 2.
"""
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gate  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def fetched(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise gate.GateError(f"{gate.visible(url)}: {error}") from error


def download(repository, version, folder):
    """The static program of a release, if its checksum is the one beside it."""
    place = f"{repository}/releases/download/v{version}"
    name = f"fsdp-ckpt-{version}-linux-{platform.machine()}"
    sums = fetched(f"{place}/SHA256SUMS").decode("utf-8", "replace")
    wanted = [line.split()[0] for line in sums.splitlines() if line.split()[1:] in ([name], ["*" + name])]
    if len(wanted) != 1:
        raise gate.GateError(f"{place}/SHA256SUMS: does not list {name}")
    data = fetched(f"{place}/{name}")
    found = hashlib.sha256(data).hexdigest()
    if found != wanted[0]:
        raise gate.GateError(f"{place}/{name}: SHA-256 is {found}, and SHA256SUMS has {wanted[0]}")
    path = os.path.join(folder, "fsdp-ckpt")
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, 0o755)
    return path


def build(folder):
    # What the compiler prints goes to the log as it is: it is of this repository.
    done = subprocess.run([os.path.join(ROOT, "tools/ci/build.sh"), folder], stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise gate.GateError(f"fsdp-ckpt could not be built (exit status {done.returncode})")
    return os.path.join(folder, "tools/fsdp-ckpt")


def find(binary, version, repository, temporary=None):
    """Returns the path of the program, and what it says of its version."""
    if binary and version:
        raise gate.GateError("program, version: only one of them can be given")
    number = version[1:] if version.startswith("v") else version   # as the tag, or as the program says it
    if version and not all(part.isdecimal() for part in number.split(".")):
        raise gate.GateError(f"version: {gate.visible(version)!r} is not a version, such as 0.1.0 or v0.1.0")
    if binary:
        path = gate.find_program(binary)
    else:
        folder = tempfile.mkdtemp(prefix="fsdp-ckpt-", dir=temporary)
        path = download(repository, number, folder) if version else build(folder)
    done = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    said = done.stdout.decode("utf-8", "backslashreplace").splitlines()
    if done.returncode != 0 or not said or not said[0].startswith("fsdp-ckpt "):
        raise gate.GateError(f"{gate.visible(path)}: is not fsdp-ckpt")
    if version and said[0] != f"fsdp-ckpt {number}":
        raise gate.GateError(f"{gate.visible(path)}: is {gate.visible(said[0])}, not {number}")
    return path, said


def main():
    if len(sys.argv) != 1:
        raise SystemExit(__doc__)
    try:
        repository = os.environ.get("FSDP_REPOSITORY", "").rstrip("/")
        path, said = find(*(os.environ.get(name, "").strip() for name in ("FSDP_CKPT", "FSDP_VERSION")), repository[:-4] if repository.endswith(".git") else repository)
    except gate.GateError as error:
        print(f"fsdp-ckpt: {error}", file=sys.stderr)
        return 2
    for line in said:
        print(gate.visible(line), file=sys.stderr)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
