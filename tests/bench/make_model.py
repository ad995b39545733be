# SPDX-License-Identifier: Apache-2.0
"""Writes a folder of a model in bfloat16 as Hugging Face keeps it: config.json, an index, and shards with the matrices of layers.

  python make_model.py OUT MEGABYTES [--sparse]

--sparse: the weights are holes of the files, which are read as zeros and take no disk.
"""
import json
import math
import os
import random
import sys

HIDDEN, INNER, WORDS = 2048, 5504, 4000
SHARD_LAYERS = 8
MATRICES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN), "self_attn.v_proj": (HIDDEN, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
NORMS = {"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,)}
OTHERS = {"model.embed_tokens": (WORDS, HIDDEN), "model.norm": (HIDDEN,), "lm_head": (WORDS, HIDDEN)}   # in the first shard
LAYER_BYTES = sum(2 * rows * columns for rows, columns in MATRICES.values())


def normal_bytes():
    """A matrix's worth of bfloat16 from a normal distribution of deviation 0.02."""
    import array
    import struct
    draw = random.Random(1)
    block = array.array("H", (struct.unpack("<I", struct.pack("<f", draw.gauss(0, 0.02)))[0] >> 16 for _ in range(1 << 18)))
    return block.tobytes()


def main():
    out, layers = sys.argv[1], max(1, round(int(sys.argv[2]) * 1e6 / LAYER_BYTES))
    sparse = "--sparse" in sys.argv[3:]
    os.makedirs(out)
    block = b"" if sparse else normal_bytes()
    weight_map, shards = {}, -(-layers // SHARD_LAYERS)
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        header, at = {}, 0
        modules = dict(OTHERS) if shard == 0 else {}
        for layer in range(shard * SHARD_LAYERS, min(layers, (shard + 1) * SHARD_LAYERS)):
            modules |= {f"model.layers.{layer}.{module}": shape for module, shape in (MATRICES | NORMS).items()}
        for module, shape in modules.items():
            key, size = f"{module}.weight", 2 * math.prod(shape)
            header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            weight_map[key] = name
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(out, name), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            left = at if not sparse else 0
            while left:   # each block begins elsewhere, so that no two matrices are alike
                turn = 2 * ((left // 2) % 1000)
                part = (block[turn:] + block[:turn])[:left]
                file.write(part)
                left -= len(part)
            if sparse:
                file.truncate(8 + len(text) + at)
    with open(os.path.join(out, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": HIDDEN, "intermediate_size": INNER,
                   "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": WORDS}, file)


if __name__ == "__main__":
    main()
