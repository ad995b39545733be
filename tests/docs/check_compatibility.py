#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares docs/compatibility.md with what the tests tried, files by tests/interop/tried.py, and with what is known there to fail.

    check_compatibility.py PAGE RECORDED... [--update]     with --update: writes the page
"""
import difflib
import json
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../interop"))

from tried import FAILS, PRODUCERS

HEAD = """\
# Compatibility

What the tests do with whose checkpoints, in which versions. The number of ranks that saved a checkpoint is in parentheses. Other versions of a
producer most often write the same layout, but were not tried.

- **read**: `verify`, `inspect` and `consolidate` give bit for bit what the producer's own code reads.
- **fails**: known not to work with this version.

The page is made of what the tests record: [how to update it](contributing.md#test).
"""

# What most tests do, and the page's word for it.
READ = ("verify, inspect, consolidate", "bit for bit what its own code reads")


def failing(fails):
    """Records of what is known to fail."""
    return [{"producer": PRODUCERS[package], "version": version, "layout": layout, "verbs": "", "what": f"**fails**: {what}", "ranks": None}
            for package, version, layout, what in fails]


def layout_of(layout, rows):
    ranks = sorted({row["ranks"] for row in rows} - {None})
    return f"{layout} ({', '.join(map(str, ranks))})" if ranks else layout


def version_key(version):
    return [(0, int(part)) if part.isdigit() else (1, part) for part in version.split(".")]


def page_of(records):
    """Layouts of one version with which the same was done share a row, and so do versions with the same layouts."""
    layouts = {}
    for record in records:
        done = (record["producer"], record["verbs"], record["what"])
        layouts.setdefault((done, record["version"]), {}).setdefault(record["layout"], []).append(record)
    versions = {}
    for (done, version), rows in layouts.items():
        cell = "; ".join(layout_of(layout, rows[layout]) for layout in sorted(rows))
        versions.setdefault((*done, cell), []).append(version)
    text, producer = [HEAD], None

    def place(row):
        return row[0].lower(), version_key(min(versions[row], key=version_key)), row[3], row
    for row in sorted(versions, key=place):
        name, verbs, what, cell = row
        if name != producer:
            producer = name
            text.append(f"\n## {producer}\n\n| version | layout (ranks) | what the tests do |\n|---|---|---|\n")
        did = "read" if (verbs, what) == READ else f"{verbs}: {what}" if verbs else what
        text.append(f"| {', '.join(sorted(versions[row], key=version_key))} | {cell} | {did} |\n")
    return "".join(text)


def main():
    words = [word for word in sys.argv[1:] if word != "--update"]
    if len(words) < 2:
        raise SystemExit(__doc__)
    records, silent = [], []
    for path in words[1:]:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        records += map(json.loads, lines)
        silent += [path] if not lines else []
    page = page_of(records + failing(FAILS))
    if "--update" in sys.argv:
        with open(words[0], "w", encoding="utf-8") as file:
            file.write(page)
    with open(words[0], encoding="utf-8") as file:
        committed = file.read()
    sys.stdout.writelines(difflib.unified_diff(committed.splitlines(True), page.splitlines(True), "committed", "tried"))
    print(f"{len(records)} records of {len(words) - 1} tests")
    return 1 if committed != page or silent or not records else 0


if __name__ == "__main__":
    sys.exit(main())
