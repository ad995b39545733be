#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the results of measure.py into a document, between its markers.

  python3 fill_table.py RESULTS.jsonl DOCUMENT

What was between the markers is replaced; the rest of the document stays.  Results that name no card are refused.
Exit: 0 written, 2 it could not be.
"""
import json
import os
import sys

BEGIN = "<!-- tests/gpu/fill_table.py: begin -->"
END = "<!-- tests/gpu/fill_table.py: end -->"
COLUMNS = {"step ms": ("step_ms", "{:.2f}"), "least": ("least_ms", "{:.2f}"), "host ms": ("host_ms", "{:.2f}"), "device ms": ("device_ms", "{:.2f}"),
           "kernels": ("kernels", "{:,.0f}"), "allocations": ("allocations", "{:,.0f}"), "peak MiB": ("device_mib", "{:,.0f}"),
           "tokens/s": ("tokens_per_s", "{:,.0f}")}


def read(path):
    """The lines of a results file, by kind.  A last line that was not written to its end is left out."""
    found = {"machine": {}, "parts": [], "rows": [], "tools": [], "steps": []}
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    for line in lines[:-1]:
        one = json.loads(line)
        kind = one.pop("kind")
        if kind == "machine":
            found["machine"] = one
        else:
            found[kind + "s"].append(one)
    return found


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def of_machine(machine):
    if not machine:
        return "The machine is not known."
    card = f"{machine['gpu']} ({machine['gpu_mib']:,} MiB, driver {machine['driver']})" if machine["gpu"] else "no GPU"
    count = f"{machine['gpus']} x " if machine["gpus"] > 1 else ""
    return (f"Measured {machine['date']} by `tests/gpu/run.sh` (commit {machine['commit']}) on {count}{card}, PyTorch {machine['torch']}, "
            f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB; medians of {machine['timed_steps']} steps.")


def of_steps(rows):
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        lines += [f"| {cell(model)} | ranks | {' | '.join(COLUMNS)} |", "|---|---:|" + "---:|" * len(COLUMNS)]
        for row in rows:
            if row["model"] == model:
                values = " | ".join(form.format(row[name]) for name, form in COLUMNS.values())
                lines.append(f"| {cell(row['what'])} | {row['ranks']} | {values} |")
        lines.append("")
    return lines or ["No step was measured.", ""]


def of_tools(tools):
    """GB/s of what a command reads, by its threads."""
    if not tools:
        return []
    counts = sorted({run["threads"] for run in tools})
    lines = [f"| GB/s read, threads: | GB | {' | '.join(map(str, counts))} |", "|---|---:|" + "---:|" * len(counts)]
    for command in dict.fromkeys(run["command"] for run in tools):
        runs = {run["threads"]: run for run in tools if run["command"] == command}
        gb = next(iter(runs.values()))["gb"]
        cells = (f"{runs[count]['gb'] / runs[count]['seconds']:.2f}" if count in runs else "" for count in counts)
        lines.append(f"| {cell(command)} | {gb:.1f} | {' | '.join(cells)} |")
    return lines + [""]


def described(results):
    """The lines between the markers."""
    lines = [of_machine(results["machine"]), "", *of_steps(results["rows"]), *of_tools(results["tools"]), "| step | part | outcome | |", "|---|---|---|---|"]
    # What failed and what was left out comes first.  Measurements that went well have rows above, traces are files.
    order = {"failed": 0, "skipped": 1, "passed": 2}
    steps = {}
    for part in sorted(results["parts"], key=lambda part: order[part["outcome"]]):
        if part["outcome"] != "passed" or part["step"] not in ("start", "d", "h", "i"):
            steps.setdefault((part["outcome"], part["step"]), {}).setdefault(part["detail"], []).append(part["name"])
    # What passed of a step shares a row, with what is said of it in brackets where that differs.
    for (outcome, step), details in steps.items():
        rows = [(" and ".join(names), detail) for detail, names in details.items()]
        if outcome == "passed" and len(rows) > 1:
            rows = [("; ".join(f"{names} ({detail})" for names, detail in rows), "")]
        lines += [f"| {step} | {cell(names)} | {outcome} | {cell(detail)} |" for names, detail in rows]
    return lines


def filled(document, results):
    """The document with the results in it."""
    if not results["machine"].get("gpu"):
        raise ValueError("the results name no card")
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
        with open(document_path, encoding="utf-8") as f:
            document = f.read()
        text = filled(document, read(results_path))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
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
