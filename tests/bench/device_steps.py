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


def row(case):
    gathers = case["gathered_estimate"] > 0
    ahead = {"backward": "backward", "both": "both", "none": "-"}[case["prefetch"]]
    added = max(case["lane_allocations"], case["added_allocations"])
    cells = [
        f"`{case['strategy']}`", ahead, case["layers"], number(added), number(case["host_waits"]),
        number(case["events"]), number(case["kernels"]), number(case["kernels"] - case["plain_kernels"]),
        number(case["live"] // 1024), number(case["held"] // 1024), number(case["gathered_held"] // 1024 if gathers else 0),
        number(case["gathered_estimate"] // 1024), f"{case['units_held']:.1f}" if gathers else "-",
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


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
    path.write_text(head + BEGIN + "\n" + HEADER + "".join(row(case) for case in cases) + "\n" + END + tail)
    print(f"{document}: {len(cases)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
