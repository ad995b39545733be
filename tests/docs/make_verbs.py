#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what `fsdp-ckpt VERB --help` says into docs/verbs/VERB.md and docs/cli.md.

    make_verbs.py TOOL [--update]     without --update: fails where a page is not what the tool says

A block stands between `<!-- NAME -->` and `<!-- end -->`: `options` in the page of a verb; `verbs: VERB...`, `common` and `output` in cli.md, where every
verb is listed once.  `output` are the options of convert; the page of a verb that has one of them with the same text only names it.
"""
import os
import re
import subprocess
import sys
import textwrap

DOCS = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../docs"))
BLOCK = re.compile(r"(<!-- (options|common|output|verbs:[a-z -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 110


def help_of(tool, *verb):
    """Returns the usage, and the rows of all sections and of the one of every verb: pairs of a name and its meaning."""
    text = subprocess.run([tool, *verb, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout.partition("\nExamples:")[0]
    rows = [re.findall(r"^ {2,6}(\S.*?)\n? {2,}(\S.*)$", part, re.MULTILINE) for part in text.split("Options of every verb:")]
    return re.search(r"^Usage: (.*)$", text, re.MULTILINE)[1], rows[0], rows[-1]


def block(rows, *above):
    width = max((len(name) for name, _ in rows), default=0) + 2
    lines = [line for name, meaning in rows for line in textwrap.wrap(
        name.ljust(width) + meaning, WIDTH, subsequent_indent=" " * width, break_on_hyphens=False)]
    return "\n".join(["", "```text", *above, *lines, "```", "", ""])


def main():
    tool, update = sys.argv[1], "--update" in sys.argv[2:]
    verbs = {name.split(",")[0]: meaning for name, meaning in help_of(tool)[1] if not name.startswith("-")}
    helps = {verb: help_of(tool, verb) for verb in verbs}
    shared = helps["convert"][1]
    listed, problems = [], []

    def made(verb, kind):
        if kind == "common":
            return block(helps["convert"][2])
        if kind == "output":
            return block([row for row in shared if row[0].startswith("-")])
        if kind.startswith("verbs:"):
            listed.extend(kind.split()[1:])
            return "\n" + "".join(f"- [`{one}`](verbs/{one}.md): {verbs.get(one)}\n" for one in kind.split()[1:]) + "\n"
        usage, rows, _ = helps[verb]
        own = [row for row in rows if row not in shared]
        rest = [re.search(r"--[a-z-]+", name)[0] for name, meaning in rows if (name, meaning) in shared and name.startswith("-")]
        shown = f"[Output options](../cli.md#output-options): `{'`, `'.join(rest)}`."
        return block(own, usage, *[""] * bool(own)) + (textwrap.fill(shown, 150, break_on_hyphens=False) + "\n\n" if rest else "")

    pages = {"cli.md": None, **{f"verbs/{verb}.md": verb for verb in verbs}}
    for name, verb in pages.items():
        path = os.path.join(DOCS, name)
        page = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                page = file.read()
        blocks = {found[2].partition(":")[0] for found in BLOCK.finditer(page)}
        if blocks != ({"options"} if verb else {"verbs", "common", "output"}):
            problems.append(f"docs/{name} is missing, or has the blocks {sorted(blocks)}")
            continue
        wanted = BLOCK.sub(lambda found, verb=verb: found[1] + made(verb, found[2]) + found[3], page)
        if wanted != page and update:
            with open(path, "w", encoding="utf-8") as file:
                file.write(wanted)
        elif wanted != page:
            problems.append(f"docs/{name} is not what the tool says: run tests/docs/make_verbs.py TOOL --update")
    if sorted(listed) != sorted(verbs):
        problems.append(f"docs/cli.md lists {sorted(listed)}, and the verbs are {sorted(verbs)}")
    problems.extend(f"docs/verbs/{name}: there is no such verb"
                    for name in os.listdir(os.path.join(DOCS, "verbs")) if f"verbs/{name}" not in pages)
    for what in problems:
        print(what, file=sys.stderr)
    print(f"{len(verbs)} verbs, {sum(len(rows) for _, rows, _ in helps.values())} arguments and options, {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
