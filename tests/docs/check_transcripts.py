#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the transcripts of documents and compares the whole output.

    check_transcripts.py DOCUMENT... TOOL GOLDEN [--with NAME=FOLDER:FOLDER...] [--update]

A DOCUMENT that is a folder stands for all its pages.

A transcript is a fenced block marked `console`.  A line `$ command` is run by sh, `> more` continues it; the lines below are its output,
standard error included, and `[exit N]` if the status is not 0.  A line `...`
stands for any lines, `…` inside a line for any text.  All transcripts of a document run one after the other in
one temporary folder, which begins with the checkpoints of FIXTURES.

A block marked `console NAME` needs programs that not every build has: with --with NAME they are found in those folders; without it, the
block is skipped, and the last line says so.

A block inside an HTML comment is run as well: it prepares the next visible blocks.

--update writes the actual output into the document if it differs.
"""
import argparse
import difflib
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Name in the transcripts -> the checkpoint by PyTorch, below tests/data/golden.
FIXTURES = {
    "step-400": "2.15.0/fsdp2/ckpt",
    "megatron_gpt": "../producers/megatron_gpt",
    "fsdp1": "2.15.0/fsdp1/ckpt",
    "trainer": "frameworks/trainer_safetensors/ckpt",
    "small": "2.11.0/minimal/ckpt",
    "mesh": "2.11.0/shards/ckpt",
    "hf-shards": "2.15.0/hf_safetensors/ckpt",
    "nested.pt": "2.11.0/nested_pt/full.pt",
    "tied.pt": "2.11.0/zip_pt/full.pt",
    "adapter": "../adapters/blocks",
}
# A summary ends with it if the command took more than a second: on a busy machine.
RATE = re.compile(r", [0-9.]+ [KMGT]?i?B/s$")
TIMEOUT_S = 200  # importing torch takes a minute on a busy machine


class Command:
    def __init__(self, text):
        self.text = text
        self.expected = []


def parse(lines):
    """The commands of a block's lines."""
    commands = []
    for line in lines:
        if line.startswith("$ "):
            commands.append(Command(line[2:]))
        elif line.startswith("> ") and commands and not commands[-1].expected:
            commands[-1].text += "\n" + line[2:]
        elif commands:
            commands[-1].expected.append(line)
        else:
            raise SystemExit(f"a transcript begins with a command, not with {line!r}")
    return commands


def run(command, folder, environment):
    result = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
    lines = [RATE.sub("", line) for line in result.stdout.decode("utf-8", "backslashreplace").splitlines()]
    if result.returncode != 0:
        lines.append(f"[exit {result.returncode}]")
    return lines


def matches(expected, found):
    pattern = ""
    for line in expected:
        if line == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*".join(re.escape(part) for part in line.split("…")) + "\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in found)) is not None


def set_up(folder, tool, golden, programs_of):
    for name, source in FIXTURES.items():
        source = os.path.join(golden, source)
        target = os.path.join(folder, name)
        if os.path.isdir(source):
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
    programs = os.path.join(folder, ".bin")
    os.mkdir(programs)
    os.symlink(os.path.abspath(tool), os.path.join(programs, "fsdp-ckpt"))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "CLICOLOR_FORCE")}
    folders = [programs, *programs_of, environment.get("PATH", "/usr/bin:/bin")]
    environment["PATH"] = os.pathsep.join(folders)
    # For torchrun: a separate port, so that documents can be tested at once, and no warning.
    environment.update(LC_ALL="C.UTF-8", PET_STANDALONE="1", OMP_NUM_THREADS="1")
    return environment


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", metavar="document", nargs="+")
    parser.add_argument("tool")
    parser.add_argument("golden")
    parser.add_argument("--with", dest="more", metavar="NAME=FOLDERS", action="append", default=[])
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    more = dict(word.split("=", 1) for word in arguments.more)
    documents = [page for path in arguments.documents
                 for page in (sorted(glob.glob(os.path.join(path, "*.md"))) if os.path.isdir(path) else [path])]
    # All of them are run, even if one fails.
    return max([check(page, arguments.tool, arguments.golden, more, arguments.update) for page in documents])


def check(document, tool, golden, more, update):
    """Runs the transcripts of one document in a folder of their own, and returns 1 if one differs."""
    programs_of = [os.path.abspath(folder) for folders in more.values() for folder in folders.split(":")]
    with open(document, encoding="utf-8") as file:
        lines = file.read().splitlines()
    result = []
    count = failed = left_out = 0
    with tempfile.TemporaryDirectory() as folder:
        environment = set_up(folder, tool, golden, programs_of)
        at = 0
        while at < len(lines):
            result.append(lines[at])
            at += 1
            block = re.fullmatch(r"```console(?: (\S+))?", result[-1])
            if not block:
                continue
            end = lines.index("```", at)
            if block.group(1) not in (None, *more):
                left_out += len(parse(lines[at:end]))
                continue
            for command in parse(lines[at:end]):
                count += 1
                found = run(command.text, folder, environment)
                same = matches(command.expected, found)
                result.extend(("$ " + command.text.replace("\n", "\n> ")).splitlines())
                result.extend(command.expected if same else found)
                if same:
                    continue
                failed += 1
                print(f"{document}: $ {command.text}")
                sys.stdout.writelines(line + "\n" for line in difflib.unified_diff(
                    command.expected, found, "documented", "found", lineterm=""))
            at = end
    if count == 0 and left_out == 0:
        raise SystemExit(f"{document}: no transcript")
    print(f"{document}: {count} commands, {failed} differ" + (f", {left_out} left out: what they need is not built" if left_out else ""))
    if update and failed:
        with open(document, "w", encoding="utf-8") as file:
            file.write("\n".join(result) + "\n")
        return 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
