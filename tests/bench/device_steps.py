# SPDX-License-Identifier: Apache-2.0
"""Puts what sharding costs a step on simulated devices into docs/performance.md.

    device_steps.py COSTS [DOCUMENT]

COSTS: the program tests_libfsdp_costs, whose SimCosts writes a line of JSON for each case.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BEGIN = "<!-- tests/bench/device_steps.sh: begin -->\n"
END = "<!-- tests/bench/device_steps.sh: end -->\n"
HEADER = """| strategy | gathered ahead in | layers | allocations | host waits | events | kernels | more than unsharded | live KiB | held KiB | held by gathers | estimate | units beside the root |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
"""


def number(value):
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def cells(case):
    gathers = case["gathered_estimate"] > 0
    ahead = "-" if case["prefetch"] == "none" else case["prefetch"]
    added = max(case["lane_allocations"], case["added_allocations"])
    return [
        f"`{case['strategy']}`", ahead, str(case["layers"]), number(added), number(case["host_waits"]),
        number(case["events"]), number(case["kernels"]), number(case["kernels"] - case["plain_kernels"]),
        number(case["live"] // 1024), number(case["held"] // 1024), number(case["gathered_held"] // 1024 if gathers else 0),
        number(case["gathered_estimate"] // 1024), f"{case['units_held']:.1f}" if gathers else "-",
    ]


def joined(cases):
    """One case for all settings of prefetch whose figures agree to 1 %, with the largest of each."""
    groups = {}
    for case in cases:
        groups.setdefault((case["strategy"], case["layers"]), []).append(case)
    for group in groups.values():
        figures = [name for name, value in group[0].items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(group) > 1 and all(max(case[name] for case in group) <= 1.01 * min(case[name] for case in group) for name in figures):
            yield group[0] | {"prefetch": "any"} | {name: max(case[name] for case in group) for name in figures}
        else:
            yield from group


def table(cases):
    """A row for each strategy and prefetch: what the fewest and the most layers cost, once where that is the same."""
    layers = [case["layers"] for case in cases]
    rows = {}
    for case in joined(cases):
        if case["layers"] in (min(layers), max(layers)):
            rows.setdefault((case["strategy"], case["prefetch"]), []).append(cells(case))
    return "".join("| " + " | ".join("/".join(dict.fromkeys(both)) for both in zip(*row)) + " |\n" for row in rows.values())


def main(scenes, document="docs/performance.md"):
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder, "costs.jsonl")
        subprocess.run([scenes, "--gtest_filter=*SimCosts*", "--gtest_brief=1"], check=True,
                       env={**os.environ, "FSDP_STEP_COSTS": str(lines), "FSDP_TEST_DEVICE": "sim", "OMP_NUM_THREADS": "1"})
        cases = [json.loads(line) for line in lines.read_text().splitlines()]
    path = pathlib.Path(document)
    text = path.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    path.write_text(head + BEGIN + "\n" + HEADER + table(cases) + "\n" + END + tail)
    print(f"{document}: {len(cases)} cases")


if __name__ == "__main__":
    main(*sys.argv[1:])
