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

Whose checkpoints the tests read and write, in which versions, and what they do with them. This page is made of what the tests record while
they run (`tests/interop/tried.py`); versions are those that `tests/support/requirements*.txt` pin, or those of checkpoints that are kept in `tests/data`.
Ranks are those of the checkpoint. Older and newer versions of a producer most often write the same layout, but were not tried. `tests/newest.sh`
tries the newest ones; a row that begins with **fails** is a version that a test does not pass with.
"""


def failing(fails):
    """Records of what is known to fail."""
    return [{"producer": PRODUCERS[package], "version": version, "layout": layout, "verbs": "", "what": f"**fails**: {what}", "ranks": None}
            for package, version, layout, what in fails]


def ranks_of(rows):
    ranks = sorted({row["ranks"] for row in rows} - {None})
    return ", ".join(map(str, ranks))


def version_key(version):
    return [(0, int(part)) if part.isdigit() else (1, part) for part in version.split(".")]


def page_of(records):
    rows = {}
    for record in records:
        rows.setdefault((record["producer"], record["version"], record["layout"], record["verbs"], record["what"]), []).append(record)
    text, producer = [HEAD], None
    for key in sorted(rows, key=lambda key: (key[0].lower(), version_key(key[1]), key[2:])):
        if key[0] != producer:
            producer = key[0]
            text.append(f"\n## {producer}\n\n| version | layout | ranks | verbs | tried |\n|---|---|---|---|---|\n")
        _, version, layout, verbs, what = key
        text.append(f"| {version} | {layout} | {ranks_of(rows[key])} | {verbs} | {what} |\n")
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
