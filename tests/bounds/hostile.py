# SPDX-License-Identifier: Apache-2.0
"""Makes files and folders of at most 1 MB that want more than they are worth: memory, processor time, or nesting without end.

    hostile.py FOLDER [NAME]...     all, or those of these names

Each function of the hostile_*.py files that are imported here makes one, named as the function.  None is damaged by accident: each is as
sound as what it attacks allows, so that readers come as far as they can.
"""
import os
import sys

# For their entries in the registry, whose order this is.
import hostile_pickles  # noqa: F401
import hostile_tensors  # noqa: F401
import hostile_dcp  # noqa: F401
import hostile_safetensors  # noqa: F401
import hostile_trainers  # noqa: F401
from registry import REGISTRY


def paths(folder, only=None):
    """Where they are, by name."""
    return {function.__name__: os.path.join(folder, file) for file, function in REGISTRY if not only or function.__name__ in only}


def main(folder, only):
    for _, function in REGISTRY:
        path = paths(folder).get(function.__name__)
        if (not only or function.__name__ in only) and not os.path.lexists(path):
            function(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
