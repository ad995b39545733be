# SPDX-License-Identifier: Apache-2.0
"""Makes files and folders of at most 1 MB that demand far too much: memory, processor time, or endless nesting.

    hostile.py FOLDER [NAME]...     all, or those of these names

Each function of the imported hostile_*.py files makes one, with the function's name.  None is damaged by accident: each is as sound as its
attack allows, so that readers get as far as possible.
"""
import os
import sys

# For their entries in the registry, in this order.
import hostile_pickles  # noqa: F401
import hostile_tensors  # noqa: F401
import hostile_dcp  # noqa: F401
import hostile_safetensors  # noqa: F401
import hostile_trainers  # noqa: F401
from registry import REGISTRY


def paths(folder, only=None):
    """Returns their paths, by name."""
    return {function.__name__: os.path.join(folder, file) for file, function in REGISTRY if not only or function.__name__ in only}


def main(folder, only):
    for _, function in REGISTRY:
        path = paths(folder).get(function.__name__)
        if (not only or function.__name__ in only) and not os.path.lexists(path):
            function(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
