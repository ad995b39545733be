#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/fast_llm with Fast-LLM's own code, on CPUs.

  PYTHONHASHSEED=0 torchrun --nproc-per-node 4 make_fast_llm.py SOURCE OUT llama   (2 stages of the pipeline, 2 ranks of tensor parallelism, biases)
  python make_fast_llm.py SOURCE OUT mistral | qwen2 | mixtral
  python make_fast_llm.py SOURCE OUT convert

SOURCE is a checkout of https://github.com/ServiceNow/Fast-LLM (0.4.0 of July 2026, 7d61a1ba, for these files; with torch 2.11 and transformers 5).
It writes OUT/<model>, in its format fast_llm, after two steps of its optimizer, and OUT/distributed, in its format of that name.  `convert` loads
each folder in one process, writes what its converter for Hugging Face makes of it as OUT/<model>.safetensors and OUT/<model>.json, and loads this
again: it has to have the same weights.  OUT/<model>-exp_avg.safetensors is what the converter makes of these states.
"""
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

SOURCE, OUT, NAME = sys.argv[1:4]
sys.path.insert(0, SOURCE)

from fast_llm.engine.checkpoint.config import CheckpointLoadConfig, CheckpointSaveConfig, ModelConfigType
from fast_llm.engine.distributed.config import DistributedConfig
from fast_llm.engine.distributed.distributed import Distributed
from fast_llm.engine.multi_stage.config import StageMode
from fast_llm.engine.optimizer.config import OptimizerConfig, ParamGroup
from fast_llm.models.gpt.config import GPTModelConfig
from fast_llm.models.gpt.model import GPTModel

BIASED = {"bias": {"enabled": True}}
# What differs from Llama.
CASES = {
    "llama": ({"add_linear_biases": True}, {"add_linear_biases": True}, {}),
    "mistral": ({"window_size": 16}, {}, {}),
    "qwen2": ({"query_layer": BIASED, "key_layer": BIASED, "value_layer": BIASED}, {}, {"tied_embedding_weight": True}),
    "mixtral": ({"window_size": 16}, {"type": "moe", "experts": 3, "experts_per_token": 2}, {}),
}


def configuration(name):
    mixer, mlp, base = CASES[name]
    norm = {"type": "rms_norm"}
    parallel = {"tensor_parallel": 2, "pipeline_parallel": 2, "backend": "gloo"} if DistributedConfig.default_world_size == 4 else {}
    return GPTModelConfig.from_dict(json.loads(json.dumps({   # from_dict changes what it is given: no part may be there twice
        "base_model": {
            "hidden_size": 4,
            "embeddings": {"vocab_size": 8},
            "decoder": {"num_blocks": 2, "block": {
                "mixer": {"heads": 2, "head_groups": 2 if parallel else 1, "head_size": 2, "add_linear_biases": False, "rotary": {"type": "default"}} | mixer,
                "mlp": {"intermediate_size": 6, "gated": True, "activation": "silu", "add_linear_biases": False} | mlp,
                "normalization": norm}},
            "head": {"normalization": norm},
        } | base,
        "distributed": {"use_cuda": False} | parallel})))


def of(name):
    return GPTModelConfig.get_checkpoint_format(name)


def save(model, name, path, metadata):
    path.mkdir(parents=True, exist_ok=True)
    model.save_checkpoint(CheckpointSaveConfig.from_dict({"format": of(name), "path": path}), metadata)
    if name in ("fast_llm", "distributed"):
        (path / "ok").touch()


def write(name, out):
    """What fast_llm.engine.training.trainer does, with random gradients."""
    config = configuration(name)
    model = GPTModel(config, optimizer_state_names=OptimizerConfig.state_names())
    distributed = Distributed(config.distributed)
    model.setup(distributed, StageMode.training)
    model.initialize_weights()
    optimizer_config = OptimizerConfig.from_dict({"learning_rate": {"base": 0.01}})
    groups, norms = model.get_param_groups(ParamGroup)
    optimizer = optimizer_config.optimizer_cls(optimizer_config, groups, norms, distributed)
    optimizer.reset_state()
    torch.manual_seed(distributed.config.rank)
    for _ in range(2):
        for gradient in (gradient for group in groups for gradient in group.grads):
            gradient.normal_()
        optimizer.step()
    metadata = {"optimizer": optimizer.save(), "completed_steps": 2, "documents_seen": 8}
    save(model, "fast_llm", out / name, metadata)
    if name == "mistral":
        save(model, "distributed", out / "distributed", metadata)


def load(name, path):
    config = CheckpointLoadConfig.from_dict({"format": of(name), "path": path, "load_config": ModelConfigType.model})
    return GPTModel.from_pretrained(config, {("distributed", "use_cuda"): False}, mode=StageMode.weights)


def convert(out):
    for name in CASES:
        made, back = out / (name + "-hf"), out / (name + "-back")
        model = load("fast_llm", out / name)
        save(model, name, made, {})
        shutil.copy(made / "model_0.safetensors", out / f"{name}.safetensors")
        shutil.copy(made / "config.json", out / f"{name}.json")
        save(load(name, made), "fast_llm", back, {})
        own = {key: tensor for file in (out / name).glob("*.safetensors") for key, tensor in load_file(file).items() if key.endswith("/weights")}
        again = load_file(back / "model_0.safetensors")
        assert own.keys() == again.keys() and all(torch.equal(own[key], again[key]) for key in own), name
        states = {key.partition("/")[0]: tensor for file in (out / name).glob("*.safetensors") for key, tensor in load_file(file).items()
                  if key.endswith("/exp_avgs")}
        save_file(of(name).get_handler_class()(model)._convert_state_dict(states, True), out / f"{name}-exp_avg.safetensors")
        shutil.rmtree(made)
        shutil.rmtree(back)


if __name__ == "__main__":
    if NAME == "convert":
        convert(pathlib.Path(OUT))
    else:
        write(NAME, pathlib.Path(OUT))
