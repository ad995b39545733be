# SPDX-License-Identifier: Apache-2.0
"""torchtitan's adapters of state dicts, without the training that the package is for.

Their modules are loaded as they are.  What they import beside is replaced: it needs a newer PyTorch and other packages, and
the adapters only use it as names of types.
"""
import ast
import importlib.util
import logging
import os
import re
import sys
import types


class Rope:
    """Stands for every rotary embedding."""

    class Config:
        pass


def _package(name, path):
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module
    return module


def _module(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def _named(name, cls):
    """The model, whatever the module calls it."""
    if name.startswith("__"):
        raise AttributeError(name)
    return cls


def adapter(model, cls):
    """The class of torchtitan.models.<model>.state_dict_adapter."""
    root = os.path.dirname(importlib.util.find_spec("torchtitan").origin)
    folders = ["torchtitan.protocols", "torchtitan.models", "torchtitan.models.common", "torchtitan.tools"]
    folders += [f"torchtitan.models.{'.'.join(model.split('.')[:n + 1])}" for n in range(model.count(".") + 1)]
    for name in folders:
        if name not in sys.modules:
            _package(name, os.path.join(root, *name.split(".")[1:]))

    class Model:
        Config = object

    class Decoder:
        Config = object

    _module("torchtitan.protocols.model", BaseModel=Model)
    _module("torchtitan.tools.logging", logger=logging.getLogger("torchtitan"))
    _module("torchtitan.models.common.rope", ComplexRoPE=Rope, CosSinRoPE=Rope)
    _module("torchtitan.models.common.decoder", Decoder=Decoder)
    name = f"torchtitan.models.{model}.model"
    sys.modules[name] = type("Code", (types.ModuleType,), {"__getattr__": lambda _, name: _named(name, Model)})(name)
    return getattr(importlib.import_module(f"torchtitan.models.{model}.state_dict_adapter"), cls)


def backend_adapter():
    """The class for transformers' own models inside torchtitan's."""
    adapter("llama3", "Llama3StateDictAdapter")
    path = os.path.join(os.path.dirname(importlib.util.find_spec("torchtitan").origin), "experiments")
    name = "torchtitan.experiments.transformers_modeling_backend"
    _package("torchtitan.experiments", path)
    _package(name, os.path.join(path, "transformers_modeling_backend"))
    _module("spmd_types")
    _module(name + ".moe_replacement", _get_expert_param_info=None)
    _module(name + ".model", HFTransformerModel=types.SimpleNamespace(Config=object))
    return importlib.import_module(name + ".state_dict_adapter").HFTransformerStateDictAdapter


def merge_qkv(state, prefix, head_dim, heads_per_kv):
    """Joins wq, wk and wv of a state dict as FusedQKVLinear does when it loads them: by its own code."""
    import torch

    path = os.path.join(os.path.dirname(importlib.util.find_spec("torchtitan").origin), "models", "common", "attention.py")
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "FusedQKVLinear")
    method = next(node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == "_merge_qkv_on_load")
    method.decorator_list = []
    names = {"torch": torch, "DTensor": (), "Replicate": None}
    exec(compile(ast.Module([method], []), path, "exec"), names)
    names["_merge_qkv_on_load"](types.SimpleNamespace(head_dim=head_dim, heads_per_kv=heads_per_kv), state, prefix)


def config(layers, dim=0, tied=False, **attention):
    """What an adapter asks of a model's configuration.  `layers`: experts of each layer, 0 for none."""
    def layer(experts):
        return types.SimpleNamespace(attention=types.SimpleNamespace(rope=Rope.Config(), **attention),
                                     moe=types.SimpleNamespace(num_experts=experts) if experts else None)
    return types.SimpleNamespace(dim=dim, enable_weight_tying=tied, layers=[layer(experts) for experts in layers])


def parameter(key):
    """The name that the model has for what the adapter of GPT-OSS calls otherwise: its parameters tell their dimensions."""
    with open(os.path.join(os.path.dirname(importlib.util.find_spec("torchtitan").origin), "models", "gpt_oss", "moe.py"), encoding="utf-8") as file:
        names = re.findall(r"self\.(mlp\w+) = nn\.Parameter", file.read())
    front, _, last = key.rpartition(".")
    real = [name for name in names if name.startswith(last + "_")]
    return f"{front}.{real[0]}" if real else key
