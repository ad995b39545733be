# SPDX-License-Identifier: Apache-2.0
"""Llama 4 of torchtitan 0.2: its own model, adapter, optimizer and checkpoints, on a CPU.

The package is in a folder of its own beside the newer one of the environment.  Its modules are loaded as they are; what they import and
need more packages for is not: the initialization of packages, and the class of a loader of data, which is used as a type.
"""
import importlib
import os
import sys
import types

import torch

from titan_adapters import _module, _package

ROOT = os.path.join(sys.prefix, "torchtitan-0.2")


def _load():
    def package(name):
        return _package(name, os.path.join(ROOT, *name.split(".")))
    for name in ("torchtitan", "torchtitan.components", "torchtitan.models", "torchtitan.models.llama4"):
        package(name)
    protocols, config = package("torchtitan.protocols"), package("torchtitan.config")
    vars(config).update(vars(importlib.import_module("torchtitan.config.job_config")))
    config.TORCH_DTYPE_MAP = {"float32": torch.float32}
    base = importlib.import_module("torchtitan.protocols.model")
    protocols.BaseModelArgs = base.BaseModelArgs
    protocols.BaseStateDictAdapter = importlib.import_module("torchtitan.protocols.state_dict_adapter").BaseStateDictAdapter
    _module("torchtitan.protocols.train_spec", ModelProtocol=base.ModelProtocol)
    _module("torchtitan.components.dataloader", BaseDataLoader=object)
    # It counts the tokens of each expert by an operation that PyTorch has on a CPU for floating elements alone.
    histc = torch.histc
    torch.histc = lambda numbers, *args, **kwargs: histc(numbers.float(), *args, **kwargs).to(numbers.dtype)


def adapter(name, cls):
    """The class of torchtitan.models.<name>.model.state_dict_adapter."""
    if "torchtitan" not in sys.modules:
        _load()
    _package(f"torchtitan.models.{name}", os.path.join(ROOT, "torchtitan", "models", name))
    path = f"torchtitan.models.{name}.model"
    _package(path, os.path.join(ROOT, "torchtitan", "models", name, "model"))
    args = {"TransformerModelArgs": object, "Qwen3ModelArgs": object, "DeepSeekV3ModelArgs": object, "GptOssModelArgs": object}
    _module(path + ".args", **args)
    return getattr(importlib.import_module(path + ".state_dict_adapter"), cls)


def config(layers, dim=0, tied=False, **attention):
    """What an adapter asks of a model's arguments.  `layers`: experts of each layer, 0 for none."""
    return types.SimpleNamespace(dim=dim, enable_weight_tying=tied, moe_args=types.SimpleNamespace(num_experts=max(layers)), **attention)


def parameter(key):
    """The adapters have the names of the parameters."""
    return key


def model(heads, groups, head, layers, step, experts, balance=0.001, seed=0):
    """A random model with experts in each `step`-th layer, and its adapter.  Without `balance` it has no biases of experts."""
    if "torchtitan" not in sys.modules:
        _load()
    args = importlib.import_module("torchtitan.models.llama4.model.args")
    moe = importlib.import_module("torchtitan.models.moe")
    code = importlib.import_module("torchtitan.models.llama4.model.model")
    adapters = importlib.import_module("torchtitan.models.llama4.model.state_dict_adapter")
    torch.manual_seed(heads + experts + seed)
    config = args.TransformerModelArgs(
        dim=heads * head, n_layers=layers, n_heads=heads, n_kv_heads=groups, vocab_size=31, multiple_of=1, max_seq_len=64, rope_theta=10000.0,
        interleave_moe_layer_step=step, moe_args=moe.MoEArgs(num_experts=experts, use_grouped_mm=False, load_balance_coeff=balance))
    whole = code.Transformer(config).eval()
    with torch.no_grad():
        for name, value in whole.state_dict().items():
            value.copy_(torch.rand(value.shape) + 0.5 if "norm" in name else torch.randn(value.shape) * 0.3)
        for name, value in whole.named_buffers():
            if name.endswith("expert_bias"):
                value.zero_()   # transformers chooses experts without
    return whole, adapters.Llama4StateDictAdapter(config, None)


def trainer(whole, folder):
    """torchtitan's optimizer of the model, and its manager of the checkpoints in `folder`."""
    optimizer = importlib.import_module("torchtitan.components.optimizer")
    scheduler = importlib.import_module("torchtitan.components.lr_scheduler")
    checkpoints = importlib.import_module("torchtitan.components.checkpoint")
    optimizers = optimizer.OptimizersContainer([whole], torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1})
    config = sys.modules["torchtitan.config"].Checkpoint(enable=True, folder="", keep_latest_k=0, exclude_from_loading=["dataloader"])
    return optimizers, checkpoints.CheckpointManager(
        None, [whole], optimizers, scheduler.LRSchedulersContainer(optimizers, lambda step: 1.0), {}, config, None, base_folder=folder)
