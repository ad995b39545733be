#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/nanotron with nanotron's own code, on CPUs.

  torchrun --nproc-per-node 4 make_nanotron.py SOURCE OUT llama   (2 stages of the pipeline, 2 ranks of tensor parallelism)
  torchrun --nproc-per-node 1 make_nanotron.py SOURCE OUT qwen2   (tied embeddings, an optimizer, a scheduler)
  torchrun --nproc-per-node 1 make_nanotron.py SOURCE OUT convert

SOURCE is a checkout of https://github.com/huggingface/nanotron (2411b022, April 2026, for these files).  Its serialize writes the folders; its
load_weights and examples/llama/convert_nanotron_to_hf.py make OUT/llama.safetensors and OUT/qwen2.safetensors of them, and interleaved.safetensors,
where rotary embeddings were interleaved.  Its kernels need GPUs and do not run: what is not installed has stand-ins.
"""
import dataclasses
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import shutil
import sys
import types

import torch

SOURCE, OUT, NAME = sys.argv[1:4]
SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 16}
ABSENT = ("flash_attn", "datasets", "numba", "grouped_gemm", "s5cmd", "wandb", "lighteval", "triton", "dataloader", "huggingface_hub_s3")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__version__ = "2.8"

        def member(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (torch.nn.Module,), {"__init__": lambda self, *args, **kwargs: torch.nn.Module.__init__(self)})
        module.__getattr__ = member
        return module

    def exec_module(self, module):
        pass


def on_cpu():
    """nanotron asks for GPUs and nccl by name."""
    sys.meta_path.append(StandIns())
    sys.path[:0] = [os.path.join(SOURCE, "src"), os.path.join(SOURCE, "examples")]
    import nanotron.distributed as dist
    from nanotron.parallel import ParallelContext
    from nanotron.parallel.pipeline_parallel.p2p import P2P
    torch.distributed.init_process_group("gloo")
    dist.initialize_torch_distributed = lambda: None
    ParallelContext.set_device = lambda self: None
    torch.cuda.current_device = lambda: "cpu"
    begin = P2P.__init__
    P2P.__init__ = lambda self, pg, device: begin(self, pg, torch.device("cpu"))


def build(kind, config, context):
    from nanotron.config import OneForwardOneBackwardPipelineEngine, ParallelismArgs
    from nanotron.models import build_model
    from nanotron.models.llama import LlamaForTraining
    from nanotron.models.qwen import Qwen2ForTraining
    from nanotron.parallel.tensor_parallel.nn import TensorParallelLinearMode
    from nanotron.trainer import mark_tied_parameters
    parallel = ParallelismArgs(dp=1, pp=context.pipeline_parallel_size, tp=context.tensor_parallel_size, pp_engine=OneForwardOneBackwardPipelineEngine(),
                               tp_mode=TensorParallelLinearMode.ALL_REDUCE, tp_linear_async_communication=False)
    cls = {"llama": LlamaForTraining, "qwen2": Qwen2ForTraining}[kind]
    model = build_model(lambda: cls(config=config, parallel_context=context, parallel_config=parallel, random_states=None), context,
                        dtype=torch.bfloat16, device=torch.device("cpu"))
    mark_tied_parameters(model=model, parallel_context=context)
    return model


def filled(model):
    """Random values: the same on all ranks for what is not sharded."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            torch.manual_seed(sum(map(ord, name)) + 1000 * (1 + torch.distributed.get_rank()) * parameter.is_sharded)
            parameter.copy_(torch.randn(parameter.shape))


def trained(model):
    """An optimizer and a scheduler after two steps."""
    from nanotron.optim import NamedOptimizer
    named = dict(model.get_named_params_with_correct_tied())
    optimizer = NamedOptimizer(list(named.items()), lambda groups: torch.optim.AdamW(groups, lr=1e-3))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer.get_base_optimizer(), lambda step: 1 / (1 + step))
    for _ in range(2):
        for parameter in named.values():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        scheduler.step()
    return optimizer, scheduler


def make_config(kind):
    from nanotron.config import models_config
    if kind == "llama":
        return models_config.LlamaConfig(**SIZES)
    return models_config.Qwen2Config(**SIZES, tie_word_embeddings=True, _attn_implementation="flash_attention_2")


def write(kind, context, out):
    from nanotron import serialize
    from nanotron.serialize.metadata import DataStageMetadata, TrainingMetadata, save_meta
    config = make_config(kind)
    model = build(kind, config, context)
    model.module_id_to_prefix = {id(module): f"{name}." for name, module in model.named_modules()} | {id(model): ""}
    filled(model)
    out.mkdir(parents=True, exist_ok=True)
    if kind == "qwen2":
        optimizer, scheduler = trained(model)
        serialize.save_optimizer(optimizer, context, out)
        serialize.save_lr_scheduler(scheduler, False, context, out)
    serialize.save_weights(model=model, parallel_context=context, root_folder=out)
    save_meta(context, out, TrainingMetadata(8, 2, last_stage_idx=0, data_stages=[DataStageMetadata("stage", 1, 8, 4, {"data": 32})]))
    if torch.distributed.get_rank() == 0:
        (out / "model_config.json").write_text(json.dumps({k: v for k, v in dataclasses.asdict(config).items() if not k.startswith("_")}))
    torch.distributed.barrier()


def convert(context, out):
    import transformers
    from llama.convert_nanotron_to_hf import convert_nt_to_hf, get_hf_config
    from nanotron import serialize
    for name, kind, interleaved in (("llama", "llama", False), ("qwen2", "qwen2", False), ("interleaved", "llama", True)):
        config = make_config(kind)
        model = build(kind, config, context)
        serialize.load_weights(model=model, parallel_context=context, root_folder=out / kind)
        hf = transformers.LlamaForCausalLM(get_hf_config(config)).to(torch.bfloat16)
        convert_nt_to_hf(model, hf, config, interleaved)
        hf.save_pretrained(out / name)
        os.replace(out / name / "model.safetensors", out / f"{name}.safetensors")
        os.replace(out / name / "config.json", out / f"{name}.json")
        os.remove(out / name / "generation_config.json")
        if interleaved:
            shutil.rmtree(out / name)


def main():
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    on_cpu()
    from nanotron.parallel import ParallelContext
    size = 2 if NAME == "llama" else 1
    context = ParallelContext(tensor_parallel_size=size, pipeline_parallel_size=size, data_parallel_size=1)
    if NAME == "convert":
        convert(context, pathlib.Path(OUT))
    else:
        write(NAME, context, pathlib.Path(OUT, NAME))


if __name__ == "__main__":
    main()
