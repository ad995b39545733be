#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every verb that ranks divide on the golden checkpoints, with 1 to 4 ranks and alone: the same bytes, reports and errors.

    check_same.py --mpirun PROGRAM ... [--every]

Without --every each command runs at two of the numbers of ranks, in turn.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import jobs

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sample  # noqa: E402

CONVERSIONS = [["--to", "pt"], ["--to", "pt", "--dtype", "bf16"], ["--to", "safetensors", "--drop-values"],
               ["--to", "safetensors", "--drop-values", "--max-shard-size", "20KB"], ["--to", "hdf5"], ["--to", "dcp", "-w", "3"],
               ["--to", "lightning"], ["--to", "lightning-ckpt"], ["--to", "accelerate", "-w", "2"],
               ["--to", "torch-checkpointing", "-w", "2"]]
# A checkpoint's own folder may lie deeper than that of its case.
NAMES = ("ckpt", "checkpoint", "full.pt", "model.pt")


def fixtures(data):
    golden = os.path.join(data, "golden")
    found = []
    for version in sorted(os.listdir(golden)):
        folder = os.path.join(golden, version)
        if os.path.isdir(folder):
            for name in sorted(os.listdir(folder)):
                case = os.path.join(folder, name)
                inner = [os.path.join(case, n) for n in NAMES if os.path.exists(os.path.join(case, n))]
                found += inner or [case]
    return found


def commands_for(path, number, every):
    """The commands for one checkpoint, with {} for the place of outputs; a part of them, in turn, unless `every`."""
    writing = [["convert", path, "{}", "--no-sync", *options] for options in CONVERSIONS]
    writing += [["consolidate", path, "{}", "--to", "pt", "--seal"], ["shard", path, "{}", "-w", "3", "--no-sync"],
                ["reshard", path, "{}", "-w", "3", "--seal"], ["export", path, "{}", "--map", "none", "--no-sync"],
                ["average", path, path, "{}", "--no-sync", "--to", "safetensors", "--drop-values", "--weights=0.25,0.5"]]
    reading = [["verify", path], ["verify", path, "--json"], ["stats", path], ["stats", path, "--json"], ["diff", path, path],
               ["diff", path, path, "--json"]]
    if every:
        return writing + reading
    return [c for i, c in enumerate(writing) if i % 3 == number % 3] + [c for i, c in enumerate(reading) if i % 2 == number % 2]


def run(words, commands, folder, outputs):
    """Runs commands, given by number; returns what each printed and wrote, by number."""
    shutil.rmtree(outputs, ignore_errors=True)
    os.makedirs(outputs)
    listed = os.path.join(folder, "commands")
    results = os.path.join(folder, "results")
    if os.path.exists(results):
        os.remove(results)
    with open(listed, "w", encoding="utf-8") as file:
        for number, command in commands.items():
            file.write("\t".join(word.replace("{}", f"out-{number}") for word in command) + "\n")
    done = subprocess.run([*words, listed, results], cwd=outputs, env=jobs.environment(), capture_output=True, text=True,
                          errors="replace", timeout=800)
    if done.returncode != 0:
        raise AssertionError(f"{words}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    with open(results, encoding="utf-8", errors="replace") as file:
        texts = file.read().split("status ")[1:]
    assert len(texts) == len(commands), f"{len(texts)} results of {len(commands)} commands"
    return {number: (text, jobs.tree(os.path.join(outputs, f"out-{number}"))) for number, text in zip(commands, texts)}


def compared(text):
    """Without times, and without the number of the rank in front of an error that it met first."""
    lines = [line for line in text.splitlines() if '"seconds"' not in line]
    return re.sub(r"(error\[\w+\]|\"message\"): (\"?)rank \d+: ", r"\1: \2", re.sub(r", [0-9.]+ \w+/s$", "", "\n".join(lines), flags=re.MULTILINE))


def main():
    args = jobs.arguments(__doc__)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        large = os.path.join(folder, "large.safetensors")
        jobs.write_safetensors(large, {"a.weight": (700, 500), "b": (7,), "c.weight": (300, 40, 25), "empty": (0, 4), "d": (123457,)})
        sharded = os.path.join(folder, "sharded")
        subprocess.run([args.plain, "shard", large, sharded, "-w", "5"], check=True, capture_output=True)
        sealed = os.path.join(folder, "sealed.pt")
        subprocess.run([args.plain, "convert", large, sealed, "--seal"], check=True, capture_output=True)
        commands = []
        for path in (large, sharded, sealed):
            commands += commands_for(path, 0, True)
        commands += [["diff", sharded, sealed, "--json"], ["diff", large, sharded], ["verify", sharded, sealed]]
        for number, path in enumerate(sample.taken(fixtures(args.data))):
            commands += commands_for(path, number, args.every)
        outputs = os.path.join(folder, "outputs")
        commands = dict(enumerate(commands))
        alone = run([args.commands], commands, folder, outputs)
        succeeded = sum(text.startswith(("0", "1")) for text, _ in alone.values())
        assert succeeded > len(commands) / 2, f"only {succeeded} of {len(commands)} commands succeed"
        for ranks in (1, 2, 3, 4):
            chosen = {i: command for i, command in commands.items() if args.every or i % 2 == ranks % 2}
            together = run([args.mpirun, "-n", str(ranks), args.commands], chosen, folder, outputs)
            for i, (text, written) in together.items():
                if compared(text) == compared(alone[i][0]) and written == alone[i][1]:
                    continue
                failures += 1
                print(f"{ranks} ranks: {' '.join(commands[i])}\n--- alone\n{alone[i][0]}\n--- together\n{text}\n"
                      f"{'the same bytes' if written == alone[i][1] else 'other bytes'}\n")
            print(f"{ranks} ranks: {len(chosen)} commands", flush=True)
    print(f"{failures} differ; {succeeded} of {len(commands)} commands had a result, the others an error")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
