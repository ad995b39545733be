# SPDX-License-Identifier: Apache-2.0
"""The registry of hostile files, and helpers that several of their makers need."""
from pickles import tensor

MOST = 1_000_000
KEYS = "a.b"
REGISTRY = []


def hostile(suffix):
    def register(function):
        REGISTRY.append((function.__name__ + suffix, function))
        return function
    return register


def write(path, data):
    assert len(data) <= MOST, (path, len(data))
    with open(path, "wb") as f:
        f.write(data)


def small(*shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tensor(shape, strides, step), b"\0" * (4 * step)
