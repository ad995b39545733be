# SPDX-License-Identifier: Apache-2.0
"""What a run found out: a file with one object of JSON a line, each on the disk before the next is begun.

  {"kind": "machine", ...}                                                         once, what was measured on
  {"kind": "part", "step", "name", "outcome": "passed"|"failed"|"skipped", "detail"}
  {"kind": "row", "step", "model", "what", "ranks", "step_ms", ...}                one line of the tables of steps
  {"kind": "tool", "step", "command", "threads", "gb", "seconds"}                  one run of a tool
  {"kind": "step", "step", "title", "seconds"}                                     a step has ended
"""
import json
import os
import sys

MOST_DETAIL = 400  # characters


class Results:
    def __init__(self, path):
        self.path = path

    def add(self, what):
        line = (json.dumps(what) + "\n").encode()
        out = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(out, line)
            os.fsync(out)
        finally:
            os.close(out)

    def part(self, step, name, outcome, detail):
        detail = " ".join(str(detail).split())
        if len(detail) > MOST_DETAIL:
            detail = detail[:MOST_DETAIL // 2] + " ... " + detail[-MOST_DETAIL // 2:]
        self.add({"kind": "part", "step": step, "name": name, "outcome": outcome, "detail": detail})
        print(f"{outcome}: {step}: {name}: {detail}", file=sys.stderr, flush=True)

    def count(self, step):
        """Returns the number of parts of a step."""
        if not os.path.exists(self.path):
            return 0
        with open(self.path) as f:
            return sum(one["kind"] == "part" and one["step"] == step for one in map(json.loads, f))
