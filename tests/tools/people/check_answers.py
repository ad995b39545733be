#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the answers to mistakes against the tool: each is an error that names a next command, which exists.

    check_answers.py TOOL

Reads mistakes.md beside it, which check_transcripts.py runs.  A next command is `fsdp-ckpt VERB`, with `--help` or one of its arguments, or an option of the
verb that was typed; or the word in place of the one that was wrong ("did you mean VERB?").
"""
import os
import re
import subprocess
import sys

COUNT = 115


def help_of(tool, *verb):
    return subprocess.run([tool, *verb, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    tool = sys.argv[1]
    verbs = re.findall(r"^  ([a-z][a-z-]*)", help_of(tool), re.MULTILINE)
    options = {verb: set(re.findall(r"^ {2,6}(?:-[a-z], )?(--[a-z-]+)", help_of(tool, verb), re.MULTILINE)) for verb in verbs}
    everywhere = {"--help", "--version", "--print-completion"}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "mistakes.md"), encoding="utf-8") as file:
        page = re.sub(r"<!--.*?-->", "", file.read(), flags=re.DOTALL)
    mistakes = re.findall(r"^\$ (fsdp-ckpt.*)\n((?:(?!\$|```).*\n)*)", page, re.MULTILINE)
    wrong = [] if len(mistakes) == COUNT else [f"{len(mistakes)} mistakes, not {COUNT}"]
    for typed, answer in mistakes:
        verb = next((word for word in typed.split()[1:] if word in verbs), None)
        named = re.findall(r"fsdp-ckpt ([a-z][a-z-]+)", answer)
        wrong += [f"{typed}: there is no verb {one}" for one in named if one not in verbs]
        given = set(re.findall(r"(?<![\w'-])--[a-z][a-z-]+", answer))
        known = everywhere.union(*(options[one] for one in [*named, *([verb] if verb else [])] if one in options))
        wrong += [f"{typed}: no verb of the answer has {one}" for one in given - known]
        meant = re.search(r"did you mean '?(\S+?)'?\?|near it: \S|there are \S|it is a file: \S|hf://\S|a URL begins with \S|"
                          r"type it without quotes|leave it out|stands behind the key|the path behind file://", answer)
        if not (named or given or meant or verb and "is an argument" in answer):
            wrong.append(f"{typed}: the answer names no next command: {answer}")
    for problem in wrong:
        print(problem)
    print(f"{len(mistakes)} mistakes, {len(wrong)} problems")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
