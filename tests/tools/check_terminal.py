#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tool on a separate terminal: repeated layers fold, and lines fit; a pipe gets everything.

    check_terminal.py TOOL
"""
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios

LAYERS = 1250
PARTS = ["attn.q.weight", "attn.k.weight", "mlp.up.weight", "mlp.a_name_that_is_longer_than_the_others.weight"]


def write_model(path):
    header, at = {}, 0
    for layer in range(LAYERS):
        for part in PARTS:
            header[f"model.layers.{layer}.{part}"] = {"dtype": "F32", "shape": [1, 1], "data_offsets": [at, at + 4]}
            at += 4
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(at))


def on_terminal(columns, *command):
    """The lines that the command prints on a terminal of that width, without colours."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    done = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=child, stderr=subprocess.DEVNULL)
    os.close(child)
    text = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    done.wait(timeout=60)
    os.close(parent)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    tool = os.path.abspath(sys.argv[1])
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_model("model.safetensors")
        piped = subprocess.run([tool, "inspect", "model.safetensors"], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
        if len(piped) < LAYERS * len(PARTS):
            wrong.append(f"a pipe gets {len(piped)} lines")
        if any("…" in line for line in piped):
            wrong.append("a pipe gets lines that are cut")
        for columns in (60, 100, 160):
            lines = on_terminal(columns, tool, "inspect", "model.safetensors")
            if len(lines) > 20 or not any(".{0..1249}" in line.replace("…", ".") for line in lines):
                wrong.append(f"{columns} columns: layers are not folded: {lines[:30]}")
            if any(len(line) > columns for line in lines):
                wrong.append(f"{columns} columns: {[line for line in lines if len(line) > columns]}")
            if sum("4.9 KiB" in line for line in lines) < len(PARTS) - 1 and not any("19.5 KiB" in line for line in lines):
                wrong.append(f"{columns} columns: sizes are cut: {lines}")
        if not any("…" in line for line in on_terminal(60, tool, "inspect", "model.safetensors")):
            wrong.append("60 columns: nothing is cut, so that nothing is tested")
        if len(on_terminal(100, tool, "inspect", "model.safetensors", "--no-fold")) < LAYERS:
            wrong.append("--no-fold does not show every layer")
    for problem in wrong:
        print(problem)
    print(f"{len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
