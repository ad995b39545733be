#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of 1,024 ranks over a checkpoint of 1,024 ranks: balanced to 1 %, in bounded time and memory.

    check_plan.py PLAN_FOR_RANKS [--layers N] [--ranks N] [--work FOLDER]

126 layers make the checkpoint of 4.9 TB that docs/results/2026-11.md has figures of; they take minutes to make, and 3.5 million chunks 10 GB of memory.
"""
import argparse
import os
import subprocess
import sys
import tempfile

SECONDS, BYTES = 10, 10 ** 9
COMMANDS = (["convert", "source", "out.safetensors", "--no-sync"], ["convert", "source", "out.pt", "--no-sync"],
            ["reshard", "source", "out", "-w", "64", "--no-sync"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--layers", type=int, default=126)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--work", help="an existing folder; a source in it stays and is taken")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        source = os.path.abspath(os.path.join(args.work or work, "source"))
        if not os.path.exists(source):
            maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_large.py")
            subprocess.run([sys.executable, maker, source, "1024", str(args.layers)], check=True)
        for words in COMMANDS:
            command = [os.path.abspath(args.program), str(args.ranks), words[0], source, *words[2:]]
            done = subprocess.run(command, cwd=work, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stderr}"
            numbers = {line.split()[0]: [float(word) for word in line.split()[1:]]
                       for line in done.stdout.splitlines() if line.split(" ")[0] in ("last", "planned")}
            seconds, used, peak, least, most, mean = numbers["planned"]
            print(f"{' '.join(words)}: {seconds:.2f} s, {used:.2f} s of a processor, {peak / 1e6:.0f} MB, shares of {mean / 1e6:.1f} MB, "
                  f"{100 * least / mean:.2f} to {100 * most / mean:.2f} %; the last rank {numbers['last'][1]:.2f} s of a processor, "
                  f"{numbers['last'][2] / 1e6:.0f} MB", flush=True)
            assert least >= 0.99 * mean and most <= 1.01 * mean, f"{words}: shares are not equal to 1 %"
            # On a machine that has other work too, the time of the processor counts.
            assert used <= SECONDS and peak <= BYTES, f"{words}: too much time or memory"
            assert numbers["last"][1] <= used and numbers["last"][2] <= peak, f"{words}: the last rank takes more than the first"


if __name__ == "__main__":
    sys.exit(main())
