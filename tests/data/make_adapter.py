#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes adapters/blocks: what peft saves of a LoRA adapter for two layers of golden/2.15.0/fsdp2.

  python make_adapter.py      with the packages of tests/support/requirements-trainers.txt
"""
import os
import shutil

import peft
import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "adapters", "blocks")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(26, 79), "dn": nn.Linear(79, 26, bias=False)})])

    def forward(self, x):
        return x


torch.manual_seed(7)
wrapped = peft.get_peft_model(Net(), peft.LoraConfig(r=2, lora_alpha=3, target_modules=["up", "dn"], init_lora_weights=False))
shutil.rmtree(OUT, ignore_errors=True)
wrapped.save_pretrained(OUT)
os.remove(os.path.join(OUT, "README.md"))
