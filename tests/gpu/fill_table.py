#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the results of measure.py into a document, between its markers.

  python3 fill_table.py RESULTS DOCUMENT

What was between the markers is replaced; the rest of the document stays. Exit: 0 written, 2 it could not be.
"""
import json
import os
import sys

BEGIN = "<!-- tests/gpu/fill_table.py: begin -->"
END = "<!-- tests/gpu/fill_table.py: end -->"


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def described(results):
    """The lines between the markers."""
    machine, rows = results["machine"], results["rows"]
    count = "" if machine["gpus"] == 1 else f"{machine['gpus']} x "
    lines = [f"Measured {machine['date']} by `tests/gpu/run.sh` on {count}{machine['gpu']} ({machine['gpu_mib']:,} MiB, driver {machine['driver']}), "
             f"{machine['cores']} cores ({machine['cpu']}); medians of {results['steps']} steps.", ""]
    for model in dict.fromkeys(row["model"] for row in rows):
        lines += [f"| {cell(model)} | ranks | step ms | least | host ms | tokens/s | device MiB |", "|---|---:|---:|---:|---:|---:|---:|"]
        for row in rows:
            if row["model"] == model:
                lines.append(f"| {cell(row['what'])} | {row['ranks']} | {row['step_ms']:.2f} | {row['least_ms']:.2f} | {row['host_ms']:.2f} | "
                             f"{row['tokens_per_s']:,.0f} | {row['device_mib']:,.0f} |")
        lines.append("")
    if not rows:
        lines += ["No step was measured.", ""]
    lines += ["| part | outcome | |", "|---|---|---|"]
    # What failed and what was left out comes first.
    order = {"failed": 0, "skipped": 1, "passed": 2}
    for part in sorted(results["parts"], key=lambda part: order[part["outcome"]]):
        lines.append(f"| {cell(part['name'])} | {part['outcome']} | {cell(part['detail'])} |")
    return lines


def filled(document, results):
    """The document with the results in it."""
    for marker in (BEGIN, END):
        if document.count(marker) != 1:
            raise ValueError(f"expected the line '{marker}' once, but found it {document.count(marker)} times")
    before, rest = document.split(BEGIN)
    if END not in rest:
        raise ValueError(f"'{END}' stands before '{BEGIN}'")
    after = rest.split(END)[1]
    return before + BEGIN + "\n" + "\n".join(described(results)) + "\n" + END + after


def main(results_path, document_path):
    try:
        with open(results_path, encoding="utf-8") as f:
            results = json.load(f)
        with open(document_path, encoding="utf-8") as f:
            document = f.read()
        text = filled(document, results)
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"member {error} is missing" if isinstance(error, KeyError) else error
        print(f"fill_table.py: {results_path}, {document_path}: {what}", file=sys.stderr)
        return 2
    part = document_path + ".part"
    with open(part, "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(part, document_path)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
