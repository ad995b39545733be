# SPDX-License-Identifier: Apache-2.0
"""Runs command lines of the tool, on this machine's files and on a server's, and compares what they answer and write."""
import argparse
import concurrent.futures
import hashlib
import os
import re
import subprocess

import server

BUCKET = "checkpoints"
# A checkpoint's own folder may lie deeper than that of its case.
NAMES = ("ckpt", "full.pt", "full.safetensors", "full.h5")
# What a command may take; it is killed then, and the test fails.
MOST_SECONDS = 240


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True, help="fsdp-ckpt")
    parser.add_argument("--commands", help="remote_run_commands")
    parser.add_argument("--data", required=True, help="tests/data")
    return parser


def fixtures(data):
    """The golden checkpoints, relative to `data`."""
    found = []
    for version in sorted(os.listdir(os.path.join(data, "golden"))):
        folder = os.path.join("golden", version)
        if os.path.isdir(os.path.join(data, folder)):
            for case in sorted(os.listdir(os.path.join(data, folder))):
                inner = [name for name in NAMES if os.path.exists(os.path.join(data, folder, case, name))]
                found += [os.path.join(folder, case, name) for name in inner] or [os.path.join(folder, case)]
    return found


def digest(content):
    return hashlib.sha256(content).hexdigest()


def files_at(path):
    """The digest of each file at a path, by its name there; of a single file, under the name ''."""
    def of(at):
        with open(at, "rb") as file:
            return digest(file.read())
    if os.path.isfile(path):
        return {"": of(path)}
    return {os.path.relpath(os.path.join(folder, name), path): of(os.path.join(folder, name))
            for folder, _, names in os.walk(path) for name in names}


def run(tool, words, environment, cwd=None, seconds=MOST_SECONDS):
    """One process of the tool."""
    return subprocess.run([tool, *words], env=environment, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=seconds,
                          stdin=subprocess.DEVNULL)


class Answer:
    """Of a command: its exit status, its lines, and digests of the files that it wrote."""

    def __init__(self, text, written):
        status, *lines = text.splitlines()
        self.status = int(status)
        self.lines = lines
        self.written = written

    def compared(self, places):
        """Without times, and with equal words for equal places."""
        text = "\n".join(line for line in self.lines if '"seconds"' not in line)
        text = re.sub(r", [0-9.]+ \w+/s$", "", text, flags=re.MULTILINE)
        for place, word in places:
            text = text.replace(place, word)
        # A store is not asked for what lies above.
        text = re.sub(r"; fsdp-ckpt inspect \S+ shows what is there$", "", text, flags=re.MULTILINE)
        return self.status, text, self.written


def run_all(program, commands, place, environment, folder, out=None, numbers=None, processes=2):
    """Runs commands, of which "@name" is a checkpoint of `place` and "{}/name" is in a place of its own below `out`, in a few processes.

    `out`: None for a folder in `folder`.  `numbers`: of the places; None: from 0 on.  Returns the answers in the order of the commands, with
    inputs as "@" and outputs as "{}".
    """
    outputs = out or os.path.join(folder, "out")
    numbers = list(range(len(commands)) if numbers is None else numbers)

    def filled(i, word):
        if word.startswith("@"):
            return f"{place}/{word[1:]}"
        return word.replace("{}", f"{outputs}/{numbers[i]}")

    def one(number):
        listed, results = os.path.join(folder, f"commands-{number}"), os.path.join(folder, f"results-{number}")
        chosen = range(number, len(commands), processes)
        with open(listed, "w", encoding="utf-8") as file:
            for i in chosen:
                file.write("\t".join(filled(i, word) for word in commands[i]) + "\n")
        done = run(program, [listed, results], environment)
        with open(results, encoding="utf-8", errors="replace") as file:
            texts = file.read().split("status ")[1:]
        if done.returncode != 0 or len(texts) != len(chosen):
            raise AssertionError(f"exit status {done.returncode} after {len(texts)} of {len(chosen)} commands\n{done.stderr[-3000:]}")
        return [(i, text) for i, text in zip(chosen, texts)]

    answers = [None] * len(commands)
    if not out:
        for i, words in enumerate(commands):
            if any("{}" in word for word in words):
                os.makedirs(os.path.join(outputs, str(numbers[i])), exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        for found in pool.map(one, range(processes)):
            for i, text in found:
                written = {} if out else files_at(os.path.join(outputs, str(numbers[i])))
                answers[i] = Answer(text, written).compared([(place + "/", "@"), (f"{outputs}/{numbers[i]}", "{}")])
    return answers


def differing(commands, expected, found):
    """Says of each command whose answers differ what they are."""
    said = []
    for words, here, there in zip(commands, expected, found):
        if here != there:
            other = sorted(name for name in {*here[2], *there[2]} if here[2].get(name) != there[2].get(name))
            said.append(f"{' '.join(words)}\n--- here: {here[0]}\n{here[1][-1500:]}\n--- there: {there[0]}\n{there[1][-1500:]}\n"
                        f"--- files that differ: {', '.join(other[:10]) or 'none'}\n")
    return said


def upload(s3, bucket, folder, prefix):
    """As server.upload_tree, with several requests at once."""
    server.make_bucket(s3, bucket)
    paths = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
    upload_all(s3, bucket, {os.path.join(prefix, os.path.relpath(path, folder)): path for path in paths})


def upload_all(s3, bucket, files):
    """`files`: paths by their keys."""
    def one(key):
        with open(files[key], "rb") as file:
            s3.put_object(Bucket=bucket, Key=key, Body=file.read())
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, files))
