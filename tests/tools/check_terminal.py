#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tool on a terminal of its own: help, lists and tables fit its columns; a pipe gets everything.

    check_terminal.py TOOL GOLDEN
"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios

LAYERS = 1250
PARTS = ["attn.q.weight", "attn.k.weight", "mlp.up.weight", "mlp.a_name_that_is_longer_than_the_others.weight"]
WIDTHS = (60, 80, 100, 160)
ELLIPSIS = "…"


def write_safetensors(path, tensors):
    """`tensors`: numbers by key."""
    header, data = {}, b""
    for key, numbers in tensors.items():
        header[key] = {"dtype": "F32", "shape": [1, len(numbers)], "data_offsets": [len(data), len(data) + 4 * len(numbers)]}
        data += struct.pack(f"<{len(numbers)}f", *numbers)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_models():
    """Two states of a model of 1,250 layers, and a smaller one whose numbers have many digits."""
    keys = [f"model.layers.{layer}.{part}" for layer in range(LAYERS) for part in PARTS]
    before = {key: [1.0, 2.0] for key in keys}
    after = {**before, **{key: [1.0, 2.5] for key in keys[::3]}, keys[817 * len(PARTS)]: [5.0, float("nan")]}
    write_safetensors("before.safetensors", before)
    write_safetensors("after.safetensors", after)
    digits = {key: [-1.23456e-17 * (i + 1), 123456.0, 0.0, float("inf")] for i, key in enumerate(keys[:16])}
    write_safetensors("digits.safetensors", digits)
    write_safetensors("others.safetensors", {key: [x * 1.5 for x in numbers] for key, numbers in digits.items()})


def on_terminal(columns, *command):
    """The lines that the command prints on a terminal of that width, without colours."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    done = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=child, stderr=subprocess.DEVNULL)
    text, ended = b"", False
    # The terminal stays open here: once it is closed everywhere, a read may fail before all was read.
    while True:
        if select.select([parent], [], [], 0 if ended else 0.005)[0]:
            text += os.read(parent, 65536)
        elif ended:
            break
        else:
            ended = done.poll() is not None
    status = done.wait()
    os.close(child)
    os.close(parent)
    if status < 0:
        raise SystemExit(f"{' '.join(command)} was ended by signal {-status}; it printed {text!r:.2000}")
    return re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()


def in_pipe(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.splitlines()


def words(lines):
    return [word for line in lines for word in line.split() if word != "\\"]


def numbers(lines):
    """Words that are numbers, such as -1.2e-17, 1,250, 19.5, [1,"""
    return sorted(word for word in words(lines) if re.fullmatch(r"\[?-?[0-9][0-9.,]*(e[-+][0-9]+)?[],;]*", word))


class Checks:
    def __init__(self, tool):
        self.tool = tool
        self.wrong = []

    def that(self, what, holds, shown=""):
        if not holds:
            self.wrong.append(f"{what}: {shown!s:.2000}")

    def on_terminal(self, columns, *command):
        lines = on_terminal(columns, self.tool, *command)
        long = [line for line in lines if len(line) > columns]
        self.that(f"{columns} columns: {' '.join(command)}: something is printed", lines)
        self.that(f"{columns} columns: {' '.join(command)}: lines fit", not long, long)
        return lines

    def in_pipe(self, *command):
        lines = in_pipe(self.tool, *command)
        self.that(f"pipe: {' '.join(command)}: something is printed, and nothing is cut",
                  lines and not any(ELLIPSIS in line for line in lines), lines)
        return lines

    # Everywhere the same words, on lines of other lengths.
    def check_help(self, *command):
        piped = self.in_pipe(*command)
        self.that(f"pipe: {' '.join(command)}: 80 columns", all(len(line) <= 80 for line in piped), [line for line in piped if len(line) > 80])
        for columns in WIDTHS:
            lines = self.on_terminal(columns, *command)
            self.that(f"{columns} columns: {' '.join(command)}: all words", words(lines) == words(piped), lines)

    # Names may be cut, numbers not.
    def check_numbers(self, *command):
        whole = {"diff": ["--no-fold", "--limit", "99999"], "inspect": ["--no-fold"]}.get(command[0], [])
        wanted = numbers(self.in_pipe(*command))
        self.that(f"pipe: {' '.join(command)}: numbers", len(wanted) > 1, wanted)
        for columns in WIDTHS:
            lines = self.on_terminal(columns, *command, *whole)
            self.that(f"{columns} columns: {' '.join(command)}: all numbers", numbers(lines) == wanted, (numbers(lines), wanted))

    def check_folds(self):
        piped = self.in_pipe("inspect", "before.safetensors")
        self.that("inspect: a pipe gets everything", len(piped) > LAYERS * len(PARTS), len(piped))
        for columns in WIDTHS:
            lines = self.on_terminal(columns, "inspect", "before.safetensors")
            self.that(f"{columns} columns: layers are folded", len(lines) < 20 and any("{0..1249}" in line for line in lines), lines)
            self.that(f"{columns} columns: sizes are whole", any("39.1 KiB" in line for line in lines), lines)
        narrow = self.on_terminal(60, "inspect", "before.safetensors")
        self.that("60 columns: something is cut, or nothing is tested", any(ELLIPSIS in line for line in narrow), narrow)
        self.that("inspect --no-fold shows every layer", len(self.on_terminal(100, "inspect", "before.safetensors", "--no-fold")) > LAYERS)

    def check_diff(self):
        models = ["before.safetensors", "after.safetensors"]
        changed = len(range(0, LAYERS * len(PARTS), 3)) + (817 * len(PARTS) % 3 != 0)
        piped = self.in_pipe("diff", *models)
        self.that("diff: a pipe gets every tensor", len(piped) == changed + 2, len(piped))
        self.that("diff: NaN first", piped[1].split()[0] == "model.layers.817.attn.q.weight", piped[:3])
        for columns in WIDTHS:
            for by in [], ["--by", "module"]:
                lines = self.on_terminal(columns, "diff", *models, *by)
                self.that(f"{columns} columns: diff {by}: layers are folded", len(lines) < 3 * len(PARTS) + 5, lines)
                self.that(f"{columns} columns: diff {by}: the layer with NaN is named", "817" in words(lines), lines)
            lines = self.on_terminal(columns, "diff", *models, "--by", "layer")
            self.that(f"{columns} columns: layers are listed", words(lines[:2]).count("model.layers.817") == 1 and
                      f"and {LAYERS - 20:,} more; --limit shows more" in lines, lines)
        missing = ["before.safetensors", "digits.safetensors"]
        lines = self.on_terminal(100, "diff", *missing)
        self.that("diff: keys of one side are folded", len(lines) < 3 * len(PARTS) and any("{4..1249}" in line for line in lines), lines)
        self.that("diff: a pipe gets every key", len(self.in_pipe("diff", *missing)) > (LAYERS - 4) * len(PARTS))


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    golden = os.path.abspath(sys.argv[2])
    checks = Checks(os.path.abspath(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_models()
        shutil.copytree(os.path.join(golden, "2.15.0/fsdp2/ckpt"), "run/step-400")
        shutil.copytree("run/step-400", "run/step-500")
        shutil.copytree("run/step-400", "damaged")
        os.remove("damaged/__1_0.distcp")
        checks.check_help("--help")
        verbs = re.findall(r"^  ([a-z][a-z-]*)", "\n".join(in_pipe(checks.tool, "--help")), flags=re.M)
        checks.that("verbs", len(verbs) >= 12, verbs)
        for verb in verbs:
            checks.check_help(verb, "--help")
            checks.check_help("help", verb)
        for command in (["stats", "digits.safetensors"], ["stats", "run/step-400"], ["verify", "run/step-400"], ["verify", "damaged"],
                        ["verify", "run"], ["inspect", "run"], ["inspect", "run/step-400", "--files"], ["inspect", "run/step-400", "--chunks"],
                        ["inspect", "run/step-400", "--globals"], ["diff", "digits.safetensors", "others.safetensors"],
                        ["diff", "run/step-400", "digits.safetensors"]):
            checks.check_numbers(*command)
        checks.check_folds()
        checks.check_diff()
    for problem in checks.wrong:
        print(problem)
    print(f"{len(checks.wrong)} problems")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
