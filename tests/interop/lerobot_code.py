# SPDX-License-Identifier: Apache-2.0
"""LeRobot's own functions for the state of training, without the robots, policies and data sets that the whole package imports."""
import importlib
import importlib.util
import os
import re
import sys
import types

from titan_adapters import _module, _package

ROOT = os.path.dirname(importlib.util.find_spec("lerobot").origin)


class Registry:
    """Stands for draccus.ChoiceRegistry, which reads configurations from the command line."""

    @classmethod
    def register_subclass(cls, name):
        return lambda subclass: subclass


def for_older_python(name):
    """Loads a module without its parameters of types, `def f[T: X](...)`, which Python 3.12 was the first to read."""
    path = os.path.join(ROOT, *name.split(".")[1:]) + ".py"
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"^(def \w+)\[[^\]]+\]", r"\1", file.read(), flags=re.MULTILINE)
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile("from __future__ import annotations\n" + text, path, "exec"), vars(module))


def load():
    """Returns lerobot.optim.optimizers and lerobot.common.train_utils."""
    _module("draccus", ChoiceRegistry=Registry)
    _module("draccus.choice_types", ChoiceRegistry=Registry)
    _module("huggingface_hub", HfApi=None, snapshot_download=None)
    _module("huggingface_hub.constants", HF_HOME="")
    for_older_python("lerobot.utils.io_utils")
    _module("lerobot.utils.hub", find_latest_hub_checkpoint=None)
    _module("lerobot.configs.train", TrainPipelineConfig=object)
    _module("lerobot.policies", PreTrainedPolicy=object)
    _module("lerobot.processor", PolicyProcessorPipeline=object)
    _package("lerobot.common", os.path.join(ROOT, "common"))
    return importlib.import_module("lerobot.optim.optimizers"), importlib.import_module("lerobot.common.train_utils")
