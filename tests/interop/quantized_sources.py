# SPDX-License-Identifier: Apache-2.0
"""Tiny models to quantize, as Hugging Face folders, with rows that are hard to quantize in every Linear."""
import pathlib

import torch
import transformers

# name: (class of the configuration, its sizes).  The inner sizes are multiples of 128, of 32, of neither.
SHAPES = {
    "large": dict(hidden_size=128, intermediate_size=256, num_attention_heads=2, num_key_value_heads=1, head_dim=64),
    "small": dict(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1, head_dim=32),
    "odd": dict(hidden_size=36, intermediate_size=50, num_attention_heads=3, num_key_value_heads=1, head_dim=12),
    "blocks": dict(hidden_size=136, intermediate_size=200, num_attention_heads=2, num_key_value_heads=1, head_dim=40),
}
VOCABULARY = 32


def config_of(kind, tied):
    shared = dict(num_hidden_layers=1, vocab_size=VOCABULARY, max_position_embeddings=64, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2)
    if kind == "moe":
        return transformers.Qwen3MoeConfig(**shared, **SHAPES["small"], moe_intermediate_size=32, num_experts=3, num_experts_per_tok=2, decoder_sparse_step=1)
    if kind == "gpt_oss":
        return transformers.GptOssConfig(**shared, hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                                         num_local_experts=3, num_experts_per_tok=2, layer_types=["full_attention"])
    return transformers.LlamaConfig(**shared, **SHAPES[kind])


def harden(weight, extreme):
    """Writes the hard rows into a matrix: zeros, denormals, equal values, one large value among tiny ones, ties, signs; the largest values."""
    rows, columns = weight.shape
    info, steps = torch.finfo(weight.dtype), torch.arange(columns)
    hard = [
        torch.zeros(columns), -torch.zeros(columns),
        torch.where(steps % 3 == 1, info.tiny / 2, 0.0),              # denormals
        torch.full((columns,), info.smallest_normal * 8),             # so small that a scale underflows
        torch.full((columns,), 0.3), torch.where(steps == columns // 2, 100.0, 1e-5),
        (steps % 17 - 8.5), (steps % 15) * 0.25, (steps % 29 - 14) / 16,   # ties of integers and of small floats
        torch.where(steps < columns // 2, torch.zeros(columns), weight[9].float()),
        -weight[10].float().abs(), weight[11].float().abs(),
    ]
    if extreme:
        largest = torch.full((columns,), info.max)
        hard += [torch.where(steps == 0, info.max, weight[12].float()), largest, torch.where(steps % 2 == 0, largest, -largest)]
    for row, values in enumerate(hard):
        if row < rows:
            weight[row] = values.to(weight.dtype)


def write_source(folder, kind, dtype, seed, tied=False, extreme=False):
    """Writes a model into a folder and returns it."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config_of(kind, tied)).to(dtype).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 1:
                value.copy_(1 + torch.randn(value.shape) * 0.1)
                continue
            value.copy_(torch.randn(value.shape) * 0.05)
            for matrix in value if value.ndim == 3 else [value]:
                if "embed" not in name and "lm_head" not in name and matrix.shape[0] > 15:
                    harden(matrix, extreme)
    model.save_pretrained(folder)
    return pathlib.Path(folder)
