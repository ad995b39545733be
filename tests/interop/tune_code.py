# SPDX-License-Identifier: Apache-2.0
"""torchtune's checkpointers and conversions, without the data sets, tokenizers and configurations that the whole package imports."""
import importlib
import importlib.util
import os
import sys
import types

ROOT = os.path.dirname(importlib.util.find_spec("torchtune").origin)


def load(name):
    """Imports torchtune.<name>; packages above it do not run their own __init__, except that of torchtune.training."""
    parts = name.split(".")
    above = ["torchtune", "torchtune.models"] + [f"torchtune.{'.'.join(parts[:i])}" for i in range(1, len(parts)) if parts[0] == "models"]
    for package in above:
        if package not in sys.modules:
            module = types.ModuleType(package)
            module.__path__ = [os.path.join(ROOT, *package.split(".")[1:])]
            sys.modules[package] = module
            if "." in package:
                setattr(sys.modules[package.rpartition(".")[0]], package.rpartition(".")[2], module)
    if "omegaconf" not in sys.modules:   # the type of a profiler's configuration
        sys.modules["omegaconf"] = types.ModuleType("omegaconf")
        sys.modules["omegaconf"].DictConfig = dict
    return importlib.import_module(f"torchtune.{name}")
