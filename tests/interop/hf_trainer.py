# SPDX-License-Identifier: Apache-2.0
"""Runs of the Hugging Face Trainer on CPU, with FSDP too.

Accelerate shards only where it finds an accelerator.  Here it is told that there are several, and that the current one is the CPU;
all else, and all that is saved, is Accelerate's and the Trainer's own.  FULL_STATE_DICT works there with FSDP1 and one rank only: PyTorch
frees what it has copied to the CPU, though it was there before.
"""
import logging
import os
import warnings

warnings.simplefilter("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TORCH_CPP_LOG_LEVEL="ERROR", TRANSFORMERS_VERBOSITY="error")

import torch
import transformers
from accelerate import state as accelerate_state
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

logging.disable(logging.WARNING)
transformers.utils.logging.disable_progress_bar()

CONFIG = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}
BATCH = 4


def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


def shard_on_cpu():
    """Makes Accelerate shard in this process."""
    accelerate_state.AcceleratorState._reset_state(reset_partial_state=True)   # of the process that this one was forked from
    begin = accelerate_state.PartialState.__init__

    def pretend(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        self._shared_state.update(distributed_type=accelerate_state.DistributedType.MULTI_GPU, device=torch.device("cpu"))
    accelerate_state.PartialState.__init__ = pretend
    torch.cuda.current_device = lambda: torch.device("cpu")


def trained(rank, world, folder, fsdp=None, kind=None, resume=None):
    """Runs on each rank: trains four steps and saves after two and four, or goes on from `resume`; returns the losses of the steps done here.
    `fsdp`: 1, 2, or None for none.  `kind`: FULL or SHARDED."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    more = {}
    if fsdp:
        shard_on_cpu()
        more = {"fsdp": True, "fsdp_config": {"version": fsdp, "state_dict_type": f"{kind}_STATE_DICT", "use_orig_params": True, "sync_module_states": False,
                                              "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
    data = [{"input_ids": (torch.arange(6) * (1 + i % 3) + i) % 11, "labels": (torch.arange(6) * (1 + i % 3) + i) % 11} for i in range(4 * BATCH)]
    arguments = TrainingArguments(folder, max_steps=4, save_steps=2, per_device_train_batch_size=BATCH // world, report_to=[], use_cpu=True,
                                  disable_tqdm=True, logging_steps=1, learning_rate=1e-2, max_grad_norm=0, **more)
    trainer = Trainer(model(), arguments, train_dataset=data)
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    done = 2 if resume else 0
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][done:]
