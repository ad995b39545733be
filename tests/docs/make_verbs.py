#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what `fsdp-ckpt VERB --help` says into docs/verbs/VERB.md and docs/cli.md.

    make_verbs.py TOOL [--update]     without --update: fails where a page is not what the tool says

A block stands between `<!-- NAME -->` and `<!-- end -->`: `options` in each page of a verb; in cli.md `verbs: VERB...`, `common` and `output`.
`output` are the options of convert; a verb that has one of them with the same text only names it.  Fails as well for a verb without a page or
without its line in cli.md, and for a page without a verb.
"""
import os
import re
import subprocess
import sys
import textwrap

DOCS = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../docs"))
BLOCK = re.compile(r"(<!-- (options|common|output|verbs: [a-z -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 110


class Help:
    """A verb's help: its usage, and its rows, each a name and its meaning."""

    def __init__(self, tool, *verb):
        self.text = subprocess.run([tool, *verb, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.usage = re.search(r"^Usage: (.*)$", self.text, re.MULTILINE)[1]
        own, _, common = self.text.partition("Options of every verb:\n")
        self.rows = self.table(own)
        self.common = self.table(common.split("\n\n")[0])

    @staticmethod
    def table(text):
        return re.findall(r"^ {2,6}(\S.*?)\n? {2,}(\S.*)$", text, re.MULTILINE)


def table(rows, *above):
    """The rows as a block of text."""
    width = max([len(name) for name, _ in rows], default=0) + 2
    lines = [line for name, meaning in rows for line in textwrap.wrap(
        name.ljust(width) + meaning, WIDTH, subsequent_indent=" " * width, drop_whitespace=True, break_on_hyphens=False)]
    return "\n".join(["", "```text", *above, *lines, "```", "", ""])


def options(page, shared):
    """The block of a verb's page."""
    own = [row for row in page.rows if row not in shared]
    rest = [re.search(r"--[a-z-]+", name)[0] for name, meaning in page.rows if (name, meaning) in shared and name.startswith("-")]
    text = table(own, page.usage, *[""] * bool(own))
    if rest:
        text += "[Output options](../cli.md#output-options): " + ", ".join(f"`{name}`" for name in rest) + ".\n\n"
    return text


def main():
    tool = sys.argv[1]
    verbs = dict(Help(tool).table(Help(tool).text.partition("Verbs:\n")[2].partition("\n\n")[0]))
    verbs = {name.split(",")[0]: meaning for name, meaning in verbs.items()}
    helps = {verb: Help(tool, verb) for verb in verbs}
    shared = helps["convert"].rows
    problems, listed, pages = [], [], {}
    for verb in [*verbs, *(name[:-3] for name in sorted(os.listdir(os.path.join(DOCS, "verbs"))))]:
        pages[os.path.join("verbs", verb + ".md")] = verb
        if verb not in verbs:
            problems.append(f"docs/verbs/{verb}.md: there is no such verb")
    pages["cli.md"] = None
    for name, verb in pages.items():
        path = os.path.join(DOCS, name)
        try:
            with open(path, encoding="utf-8") as file:
                page = file.read()
        except FileNotFoundError:
            problems.append(f"docs/{name} is missing: every verb has a page")
            continue

        def made(found):
            what = found[2]
            if what == "options":
                text = options(helps[verb], shared)
            elif what.startswith("verbs: "):
                listed.extend(what.split()[1:])
                text = "\n" + "".join(f"- [`{word}`](verbs/{word}.md): {verbs[word]}\n" for word in what.split()[1:]) + "\n"
            else:
                rows = helps["convert"].common if what == "common" else [row for row in shared if row[0].startswith("-")]
                text = table(rows)
            return found[1] + text + found[3]

        blocks = [found[2] for found in BLOCK.finditer(page)]
        if (verb in verbs and blocks != ["options"]) or (verb is None and not {"common", "output"} <= set(blocks)):
            problems.append(f"docs/{name}: the blocks are {blocks}")
            continue
        wanted = BLOCK.sub(made, page) if verb in verbs or verb is None else page
        if wanted == page:
            continue
        if "--update" in sys.argv[2:]:
            with open(path, "w", encoding="utf-8") as file:
                file.write(wanted)
        else:
            problems.append(f"docs/{name} is not what the tool says: run tests/docs/make_verbs.py TOOL --update")
    if sorted(listed) != sorted(verbs):
        problems.append(f"docs/cli.md lists {sorted(set(listed) ^ set(verbs)) or 'a verb twice'}")
    for what in problems:
        print(what, file=sys.stderr)
    print(f"{len(verbs)} verbs, {sum(len(page.rows) for page in helps.values())} options and arguments, {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
