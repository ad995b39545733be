# SPDX-License-Identifier: Apache-2.0
"""Sizes of small models of transformers, where those of tiny_models.py do not go together or leave too much."""
import functools
import json
import os


@functools.cache
def table():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "small_sizes.json"), encoding="ascii") as file:
        return json.load(file)


def sizes(model_type, name):
    """Returns what a small configuration of a class changes, {dotted path: value}; None if nothing is known."""
    return table().get(f"{model_type} {name}", table().get(model_type))
