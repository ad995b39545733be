# SPDX-License-Identifier: Apache-2.0
"""Long tests take a part of their cases in the default tier, for which tests/run.sh sets FSDP_TEST_SAMPLE."""
import os

PART = 8  # one in eight


def is_on():
    return os.environ.get("FSDP_TEST_SAMPLE", "") not in ("", "0")


def taken(cases, first=0, part=PART):
    """Returns all cases, or every eighth of them (every `part`th) from the first one on, and at least one."""
    cases = list(cases)
    return cases[first % min(part, len(cases))::part] if is_on() and cases else cases


def count(number):
    """Returns how many of that many cases to try."""
    return max(1, number // PART) if is_on() else number
