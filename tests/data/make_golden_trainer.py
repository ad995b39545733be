#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden/frameworks/trainer_*: checkpoints that the Hugging Face Trainer saves for a model that is not sharded.

  python make_golden_trainer.py      with torch==2.11.0, accelerate==1.15.0, safetensors==0.8.0 and transformers==4.57.1; writes
                                     golden/SHA256SUMS again

The truth is the content that torch.load and safetensors read from each file.
"""
import os
import shutil
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", DS_ACCELERATOR="cpu")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(os.path.dirname(HERE), "support"), os.path.join(os.path.dirname(HERE), "interop")]

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from make_frameworks import write_truth
from make_golden import sums
from make_golden_frameworks import compact


def trained(safetensors):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16)
    data = [{"input_ids": torch.arange(6) + i, "labels": torch.arange(6) + i} for i in range(6)]
    args = TrainingArguments("out", logging_dir="logs", max_steps=2, save_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True,
                             disable_tqdm=True, save_safetensors=safetensors)
    Trainer(LlamaForCausalLM(config), args, train_dataset=data).train()


def main():
    for name, safetensors in ("trainer_safetensors", True), ("trainer_bin", False):
        folder = os.path.join(HERE, "golden", "frameworks", name)
        shutil.rmtree(folder, ignore_errors=True)
        back = os.getcwd()
        with tempfile.TemporaryDirectory() as tmp:
            os.chdir(tmp)   # so that no path of this machine is saved
            trained(safetensors)
            os.chdir(back)
            shutil.copytree(os.path.join(tmp, "out", "checkpoint-2"), os.path.join(folder, "ckpt"))
        read = lambda file: torch.load(os.path.join(folder, "ckpt", file), weights_only=False)  # noqa: E731
        model = load_file(os.path.join(folder, "ckpt", "model.safetensors")) if safetensors else read("pytorch_model.bin")
        write_truth(folder, {"model": model, "optimizer": read("optimizer.pt"), "rng_state": read("rng_state.pth"), "scheduler": read("scheduler.pt")},
                    weights_only=False)
        compact(folder)
    sums()


if __name__ == "__main__":
    main()
