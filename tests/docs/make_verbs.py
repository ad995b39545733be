#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the help of `fsdp-ckpt` and its verbs says into the documents.

    make_verbs.py TOOL [--update]     without --update: fails where a document is not what the tool says

A block of a page stands between `<!-- NAME -->` and `<!-- end -->`: `options` in the page of a verb, `verbs` in README.md, and `verbs`, `common` and
`output` in cli.md.  `output` are the options of convert; the page of a verb that has one of them with the same text only names it.  The groups of the
verbs also stand in the navigation of mkdocs.yml and in the docstring of the Python module.
"""
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
BLOCK = re.compile(r"(<!-- (options|common|output|verbs) -->\n).*?(<!-- end -->)", re.DOTALL)
NAVIGATION = re.compile(r"(?<=      - Verbs:\n)(          - verbs/.*\n)+")
DOCSTRING = re.compile(r"(?<=Functions, by what they are for:\n\n)(    .*\n)+")
WIDTH = 110
INDENT = 16  # of lines that go on with a meaning, at least
FUNCTIONS = {"export": "export_model", "import": "import_model", "map": "map_model", "set": "set_values"}


def help_of(tool, *verb):
    """Returns the first paragraph, the usage, and the rows of each section by its heading: pairs of a name and its meaning."""
    text = subprocess.run([tool, *verb, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout.partition("\nExamples:")[0]
    sections, heading = {"": []}, ""
    for line in text.split("\nUsage: ")[1].splitlines()[1:]:
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            heading = line.rstrip(":") or heading
        elif indent < INDENT:
            sections.setdefault(heading, []).append(re.split(r" {2,}", line.strip(), maxsplit=1))
        else:
            sections[heading][-1].append(line.strip())
    about, usage = text.partition("\nUsage: ")[0], text.partition("\nUsage: ")[2].partition("\n\n")[0]
    return " ".join(about.split()), " ".join(usage.split()), {heading: [(row[0], " ".join(row[1:])) for row in rows] for heading, rows in sections.items()}


def block(rows, *above):
    width = max((len(name) for name, _ in rows), default=0) + 2
    lines = [line for name, meaning in rows for line in textwrap.wrap(
        name.ljust(width) + meaning, WIDTH, subsequent_indent=" " * width, break_on_hyphens=False)]
    return "\n".join(["", "```text", *above, *lines, "```", "", ""])


def main():
    tool, update = sys.argv[1], "--update" in sys.argv[2:]
    sections = help_of(tool)[2]
    groups = {title: [(name.split(",")[0], brief) for name, brief in rows] for title, rows in sections.items() if re.match("[a-z]", rows[0][0] if rows else "")}
    verbs = {verb: brief for rows in groups.values() for verb, brief in rows}
    helps = {verb: help_of(tool, verb) for verb in verbs}
    rows_of = {verb: sections[""] + sections.get("Options", []) for verb, (_, _, sections) in helps.items()}
    shared = rows_of["convert"]
    problems = [f"{verb}: '{brief}' has more than six words" for verb, brief in verbs.items() if len(brief.split()) > 6]

    def made(verb, kind):
        if kind == "common":
            return block(helps["convert"][2]["Options of every verb"])
        if kind == "output":
            return block([row for row in shared if row[0].startswith("-")])
        if kind == "verbs":
            return "\n" + "".join(f"**{title}**\n\n" + "".join(f"- [`{one}`](verbs/{one}.md): {helps[one][0]}\n" for one, _ in rows) + "\n"
                                  for title, rows in groups.items())
        own = [row for row in rows_of[verb] if row not in shared]
        rest = [re.search(r"--[a-z-]+", name)[0] for name, meaning in rows_of[verb] if (name, meaning) in shared and name.startswith("-")]
        shown = f"[Output options](../cli.md#output-options): `{'`, `'.join(rest)}`."
        return block(own, helps[verb][1], *[""] * bool(own)) + (textwrap.fill(shown, 150, break_on_hyphens=False) + "\n\n" if rest else "")

    def readme(_verb, _kind):
        return "\n| to | verbs |\n|---|---|\n" + "".join(
            f"| {title[0].lower() + title[1:]} | " + "; ".join(f"[`{one}`](docs/verbs/{one}.md) {brief[0].lower() + brief[1:]}" for one, brief in rows) + " |\n"
            for title, rows in groups.items()) + "\n"

    def filled(page, verb, made, wanted):
        blocks = {found[2] for found in BLOCK.finditer(page)}
        if blocks != wanted:
            raise ValueError(f"has the blocks {sorted(blocks)}, not {sorted(wanted)}")
        return BLOCK.sub(lambda found: found[1] + made(verb, found[2]) + found[3], page)

    def replaced(pattern, page, lines):
        if len(pattern.findall(page)) != 1:
            raise ValueError("has no place for the verbs")
        return pattern.sub(lambda _: "".join(line + "\n" for line in lines), page)

    width = max(map(len, groups))
    files = {"README.md": lambda page: filled(page, None, readme, {"verbs"}),
             "docs/cli.md": lambda page: filled(page, None, made, {"verbs", "common", "output"}),
             "mkdocs.yml": lambda page: replaced(NAVIGATION, page, [f"          - verbs/{verb}.md" for verb in verbs]),
             "tools/python/fsdp_ckpt/__init__.py": lambda page: replaced(DOCSTRING, page, [
                 f"    {title[0].lower() + title[1:]:{width}}  " + ", ".join(FUNCTIONS.get(one, one.replace("-", "_")) for one, _ in rows) for title, rows in groups.items()])}
    for verb in verbs:
        files[f"docs/verbs/{verb}.md"] = lambda page, verb=verb: filled(page, verb, made, {"options"})
    for name, fill in files.items():
        path = os.path.join(ROOT, name)
        try:
            with open(path, encoding="utf-8") as file:
                page = file.read()
            wanted = fill(page)
        except (OSError, ValueError) as error:
            problems.append(f"{name}: {error}")
            continue
        if wanted != page and update:
            with open(path, "w", encoding="utf-8") as file:
                file.write(wanted)
        elif wanted != page:
            problems.append(f"{name} is not what the tool says: run tests/docs/make_verbs.py TOOL --update")
    problems.extend(f"docs/verbs/{name}: there is no such verb"
                    for name in os.listdir(os.path.join(ROOT, "docs/verbs")) if f"docs/verbs/{name}" not in files)
    for what in problems:
        print(what, file=sys.stderr)
    print(f"{len(verbs)} verbs, {sum(map(len, rows_of.values()))} arguments and options, {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
