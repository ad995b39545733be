# SPDX-License-Identifier: Apache-2.0
"""Writes an adapter in peft's layout with random matrices of one rank for every matrix of a safetensors file.

  python make_adapter.py BASE.safetensors OUT RANK
"""
import json
import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def main():
    base, out, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(1)
    tensors = {}
    with safe_open(base, "pt") as file:
        for key in file.keys():
            shape = file.get_slice(key).get_shape()
            if len(shape) != 2:
                continue
            module = "base_model.model." + key.removesuffix(".weight")
            tensors[module + ".lora_A.weight"] = torch.randn(rank, shape[1])
            tensors[module + ".lora_B.weight"] = torch.randn(shape[0], rank)
    os.makedirs(out)
    save_file(tensors, os.path.join(out, "adapter_model.safetensors"))
    with open(os.path.join(out, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "fan_in_fan_out": False,
                   "use_rslora": False, "use_dora": False, "target_modules": ["weight"]}, file)


if __name__ == "__main__":
    main()
