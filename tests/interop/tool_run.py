# SPDX-License-Identifier: Apache-2.0
"""Runs the tool, and says what differs from what was expected."""
import subprocess


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def run(tool, *args, expect=0):
    """Returns standard output, or standard error if `expect` is another exit status than 0."""
    done = subprocess.run([tool, *map(str, args)], capture_output=True, text=True)
    check(done.returncode == expect, f"{' '.join(map(str, args))}: exit {done.returncode}, expected {expect}\n{done.stdout}{done.stderr[-2000:]}")
    return done.stdout if expect == 0 else done.stderr
