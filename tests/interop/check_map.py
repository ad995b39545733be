#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""map against PyTorch doing the same.

  python check_map.py --tool PATH [--seed N] [--rules N]

1. Random chains of operations on random tensors, from files and folders: the result is PyTorch's, bit for bit, and --reverse gives back
   the source.     2. Arithmetic rounds as PyTorch does.     3. Optimizers go along, or are refused.     4. Ties, values, plans, errors.
5. Damage in what is read is found.     6. Memory stays bounded.     7. FP8 and MXFP4 with scales, as PyTorch reads and transformers makes them.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)

import torch

import rekey_tool
from rekey_tool import Failure, check, load, run, same

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn]


def mapped(*args):
    return run("map", *args, "--force")


def tensor(shape, dtype):
    count = 1
    for size in shape:
        count *= size
    return torch.randint(0, 2 if dtype == torch.bool else 100, (count,)).to(dtype).reshape(shape)


def rules_file(tmp, rules, parameters=""):
    path = os.path.join(tmp, "rules.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(parameters + "\n" + "\n".join(rules))
    return path


def divisors(rng, count):
    """Sizes, at most four of them, whose product is `count`."""
    sizes = []
    while count > 1 and len(sizes) < 3:
        size = rng.choice([d for d in range(1, count + 1) if count % d == 0])
        sizes.append(size)
        count //= size
    return sizes + [count]


def rotary(tensor, heads, halves):
    rest = tensor.shape[1:]
    half = tensor.shape[0] // heads // 2
    parts = tensor.reshape(heads, half, 2, *rest) if halves else tensor.reshape(heads, 2, half, *rest)
    return parts.transpose(1, 2).reshape(tensor.shape)


class Chain:
    """Random operations, as TOML and done by PyTorch."""

    def __init__(self, rng, tensors):
        self.rng, self.tensors, self.text = rng, tensors, []

    def add(self, text, tensors):
        self.text.append(text)
        self.tensors = tensors

    def step(self):
        rng, first = self.rng, self.tensors[0]
        rank = first.dim()
        alike = all(t.shape == first.shape for t in self.tensors)
        dim = rng.randrange(rank) if rank else 0
        shown = rng.choice([dim, dim - rank]) if rank else 0
        kinds = ["transpose", "permute", "reshape", "swap", "pad", "trim"]
        if len(self.tensors) > 1:
            kinds += ["concatenate", "stack"] * 2
        else:
            kinds += ["split", "sizes", "unstack", "rotary", "qkv"]
        kind = rng.choice(kinds)
        if kind == "transpose" and rank > 1:
            other = rng.randrange(rank)
            self.add(f'{{ op = "transpose", dims = [{shown}, {other}] }}', [t.transpose(dim, other) for t in self.tensors])
        elif kind == "permute" and rank:
            order = rng.sample(range(rank), rank)
            self.add(f'{{ op = "permute", order = {order} }}', [t.permute(order) for t in self.tensors])
        elif kind == "reshape" and alike and first.numel():
            to = divisors(rng, first.numel())
            written = list(to)
            if rng.random() < 0.5:
                written[rng.randrange(len(to))] = -1
            self.add(f'{{ op = "reshape", to = {written}, from = {list(first.shape)} }}', [t.reshape(to) for t in self.tensors])
        elif kind == "swap" and rank and all(t.shape[dim] % 2 == 0 for t in self.tensors if t.dim() == rank) and alike:
            half = first.shape[dim] // 2
            self.add(f'{{ op = "swap", dim = {shown} }}', [t.roll(half, dim) for t in self.tensors])
        elif kind == "concatenate" and alike and rank:
            self.add(f'{{ op = "concatenate", dim = {shown} }}', [torch.cat(self.tensors, dim)])
        elif kind == "stack" and alike:
            at = rng.randrange(rank + 1)
            self.add(f'{{ op = "stack", dim = {at} }}', [torch.stack(self.tensors, at)])
        elif kind == "sizes" and rank and first.shape[dim] > 1:
            cut = rng.randrange(1, first.shape[dim])
            self.final(f'{{ op = "split", dim = {shown}, sizes = [{cut}, {first.shape[dim] - cut}] }}',
                       list(first.split([cut, first.shape[dim] - cut], dim)))
        elif kind == "split" and rank and first.shape[dim] % 3 == 0 and first.numel():
            self.final(f'{{ op = "split", dim = {shown} }}', list(first.chunk(3, dim)))
        elif kind == "unstack" and rank and 0 < first.shape[dim] < 8:
            self.final(f'{{ op = "unstack", dim = {shown} }}', list(first.unbind(dim)))
        elif kind == "rotary" and rank and first.shape[0] % 4 == 0 and first.numel():
            halves = rng.random() < 0.5
            self.add(f'{{ op = "rotary", heads = 2, to = "{"halves" if halves else "pairs"}" }}', [rotary(first, 2, halves)])
        elif kind == "qkv" and rank and first.shape[0] % 8 == 0 and first.numel():
            size = first.shape[0] // 8
            groups = first.reshape(2, 4, size, *first.shape[1:])
            flat = [groups[:, :2], groups[:, 2:3], groups[:, 3:]]
            declared = rng.choice(["heads = 4, kv_heads = 2", f"heads = -1, kv_heads = 2, head_dim = {size}",
                                   f"heads = 4, kv_heads = -1, head_dim = {size}", "heads = 2, kv_heads = 2, gated = true",
                                   f"heads = 4, kv_heads = 4, head_dim = {size}, value_dim = 0"])
            if "gated" in declared:
                flat = groups.split(1, 1)
            if "value_dim" in declared:
                groups = first.reshape(4, 2, size, *first.shape[1:])
                flat = [groups[:, :1], groups[:, 1:], groups[:, :0]]
            self.final('{ op = "split_qkv", %s }' % declared, [g.reshape(g.shape[0] * g.shape[1] * size, *first.shape[1:]) for g in flat])
        elif kind == "pad" and rank and alike and first.shape[dim] < 50:
            more = rng.randrange(3)
            self.add(f'{{ op = "pad", dim = {shown}, to = {first.shape[dim] + more}, from = {first.shape[dim]} }}',
                     [torch.cat([t, t.new_zeros([more if d == dim else s for d, s in enumerate(t.shape)])], dim) for t in self.tensors])
            return True
        elif kind == "trim" and rank and alike and rng.random() < 0.3:
            self.add(f'{{ op = "trim", dim = {shown}, to = {first.shape[dim] // 2}, from = {first.shape[dim]} }}',
                     [t.narrow(dim, 0, first.shape[dim] // 2) for t in self.tensors])
            return False
        return True

    def final(self, text, tensors):
        """Several from one: their number is that of the rule's names, so no more may follow that changes it."""
        self.text.append(text)
        self.tensors = tensors
        self.ended = True

    ended = False


def random_rules(tmp, rng, count):
    """Rules on tensors of different keys, all at once in one file."""
    for number in range(count):
        rules, source, target, exact = [], {}, {}, True
        for r in range(rng.randrange(1, 6)):
            dtype = rng.choice(DTYPES)
            shape = [rng.choice([1, 2, 3, 4, 6, 8, 12]) for _ in range(rng.randrange(0, 5))]
            if shape and rng.random() < 0.3:
                shape[0] = rng.choice([16, 24, 48])
            if rng.random() < 0.05 and shape:
                shape[0] = 0
            names = [f"in.{r}.{i}" for i in range(rng.choice([1, 1, 2, 3]))]
            tensors = [tensor(shape, dtype) for _ in names]
            chain = Chain(rng, tensors)
            for _ in range(rng.randrange(0 if len(names) == 1 else 1, 6)):
                exact = chain.step() and exact
                if chain.ended:
                    break
            if len(chain.tensors) > 1 and not chain.ended and not chain.text:
                chain.add('{ op = "transpose", dims = [-1, -1] }' if shape else '{ op = "reshape", to = [] , from = [] }', chain.tensors)
            outs = [f"out.{r}.{i}" for i in range(len(chain.tensors))]
            source |= dict(zip(names, tensors))
            target |= {name: t.contiguous() for name, t in zip(outs, chain.tensors)}
            rules.append(f"[[rule]]\nfrom = {names}\nto = {outs}\ndo = [{', '.join(chain.text)}]\n".replace("'", '"'))
        path = rules_file(tmp, rules)
        a, b = os.path.join(tmp, "a.pt"), os.path.join(tmp, "b.pt")
        torch.save(source, a)
        try:
            mapped(path, a, b)
            same(load(b), target, "forwards")
            if number % 4 == 0:
                # A folder whose tensors are cut by rows, and a small memory.
                run("shard", a, a + "-dcp", "--world-size", "3", "--force")
                mapped(path, a + "-dcp", b + "-dcp", "--to", "dcp", "--world-size", "2", "--max-memory", "64MiB")
                same(load(b + "-dcp"), target, "folders")
            if exact:
                mapped(path, b, a + "-back.pt", "--reverse")
                same(load(a + "-back.pt"), source, "backwards")
        except Failure:
            with open(path, encoding="utf-8") as file:
                print(file.read())
            print({k: (v.dtype, tuple(v.shape)) for k, v in source.items()})
            raise


def bits(state):
    return {k: v.contiguous().view(torch.uint8) if v.dim() else v.reshape(1).view(torch.uint8) for k, v in state.items()}


def arithmetic(tmp):
    torch.manual_seed(5)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        source = {"a.w": torch.randn(70000).to(dtype), "b.w": torch.randn(300, 40).to(dtype), "c.w": torch.randn(5, 6).to(dtype)}
        name = str(dtype).removeprefix("torch.")
        rules = rules_file(tmp, [
            '[[rule]]\nfrom = "a.w"\nto = "a"\ndo = [{ op = "add", value = 1 }]\n',
            '[[rule]]\nfrom = "b.w"\nto = "b"\ndo = ["transpose", { op = "scale", by = 0.3 }, { op = "add", value = -0.7 }]\n',
            f'[[rule]]\nfrom = "c.w"\nto = ["c", "d"]\ndo = [{{ op = "cast", to = "float32", from = "{name}" }}, "split"]\n'
            .replace('"split"', '{ op = "split", dim = 1 }')])

        def wide(t):
            return t if dtype == torch.float64 else t.float()
        c = source["c.w"].float()
        want = {"a": (wide(source["a.w"]) + 1).to(dtype), "b": (wide((wide(source["b.w"].t()) * 0.3).to(dtype)) - 0.7).to(dtype),
                "c": c[:, :3], "d": c[:, 3:]}
        path, out = os.path.join(tmp, "x.pt"), os.path.join(tmp, "y.pt")
        torch.save(source, path)
        for one in (path, path + "-dcp"):
            if one != path:
                run("shard", path, one, "--world-size", "3", "--force")
            mapped(rules, one, out)
            same(bits(load(out)), bits(want), name)
        run("convert", path, os.path.join(tmp, "x.safetensors"), "--force")
        mapped(rules, os.path.join(tmp, "x.safetensors"), out, "--dtype", "bf16")
        same(bits(load(out)), bits({k: v.to(torch.bfloat16) if dtype == torch.float64 else v.to(torch.bfloat16) for k, v in want.items()}), name)


def tiles(weight, block):
    """Blocks of the last two dimensions, padded with zeros to whole ones: [..., rows, block, columns, block]."""
    rows, columns = weight.shape[-2:]
    padded = torch.nn.functional.pad(weight, (0, -columns % block[1], 0, -rows % block[0]))
    return padded.reshape(*weight.shape[:-2], padded.shape[-2] // block[0], block[0], padded.shape[-1] // block[1], block[1])


def untiled(tiled, shape):
    rows, columns = tiled.shape[-4] * tiled.shape[-3], tiled.shape[-2] * tiled.shape[-1]
    return tiled.reshape(*tiled.shape[:-4], rows, columns)[..., :shape[-2], :shape[-1]]


def quantized(weight, block):
    """Numbers and scales as transformers makes them; check_maps.py compares the tool with transformers itself."""
    parts = tiles(weight.float(), block)
    most = parts.abs().amax(dim=(-3, -1))
    factor = torch.where(most > 0, 448.0 / torch.where(most > 0, most, 1.0), 1.0)
    factor = torch.where(factor.isfinite(), factor, 1.0)
    numbers = (parts * factor[..., :, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return untiled(numbers.view(torch.uint8), weight.shape).view(torch.float8_e4m3fn), 1.0 / factor


def dequantized(numbers, scales, block, dtype):
    parts = tiles(numbers.float(), block)
    return untiled(parts * scales.float()[..., :, None, :, None], numbers.shape).to(dtype)


def mxfp4(blocks, scales, dtype):
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    numbers = torch.stack([values[(blocks & 15).long()], values[(blocks >> 4).long()]], -1).flatten(-2)
    return torch.ldexp(numbers, scales.int()[..., None] - 127).to(dtype).flatten(-2)


SCALED_RULES = """
[[rule]]
from = ["a.{i:int}.weight", "a.{i}.weight_scale_inv"]
to = "a.{i}.weight"
do = [{ op = "dequantize", block = %s, to = "%s" }]
skip_lone = true
optional = true
[[rule]]
from = ["e.{i:int}.up", "e.{i}.down", "e.{i}.up_scale", "e.{i}.down_scale"]
to = ["up", "down"]
over = "i"
do = [{ op = "dequantize", block = %s, to = "%s" }, "stack"]
[[rule]]
from = ["m_blocks", "m_scales"]
to = "m"
do = [{ op = "dequantize", scales = "mxfp4", to = "%s" }, { op = "transpose", dims = [-1, -2] }]
only = "forward"
[[rule]]
from = ["row", "row_scale"]
to = "row"
do = [{ op = "dequantize", scales = "rows", to = "%s" }]
[[rule]]
from = ["whole", "whole_scale"]
to = "whole"
do = [{ op = "dequantize", scales = "tensor", to = "%s" }]
[[rule]]
from = "{rest:**}"
to = "{rest}"
"""


def scaled(tmp, rng):
    """Block-scaled FP8 and MXFP4 to wider dtypes, and FP8 back; uneven blocks; files and folders."""
    path, out, back = (os.path.join(tmp, name) for name in ("q.pt", "r.pt", "s.pt"))
    for number in range(6):
        dtype = rng.choice([torch.bfloat16, torch.float32, torch.float16, torch.float64])
        block = [rng.choice([1, 3, 32, 128]), rng.choice([1, 5, 32, 128])] if number else [128, 128]
        word = str(dtype).removeprefix("torch.")

        def numbers(*shape):
            return torch.randn(shape).mul(rng.choice([1e-3, 1, 200])).clamp(-448, 448).to(torch.float8_e4m3fn)

        def scales(*shape, kind=torch.float32):
            rows, columns = -(-shape[-2] // block[0]), -(-shape[-1] // block[1])
            return torch.rand(*shape[:-2], rows, columns).add(0.01).to(kind)
        sizes = [(rng.randrange(1, 300), rng.randrange(1, 700)) for _ in range(2)] + [(2, 3, 40000), (2, 130, 260)]
        source = {"norm": torch.randn(7), "a.9.weight": torch.randn(4, 4)}
        for i, shape in enumerate(sizes):
            kind = rng.choice([torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
            source |= {f"a.{i}.weight": numbers(*shape), f"a.{i}.weight_scale_inv": scales(*shape, kind=kind)}
        for i in range(3):
            source |= {f"e.{i}.up": numbers(50, 60), f"e.{i}.down": numbers(60, 50), f"e.{i}.up_scale": scales(50, 60),
                       f"e.{i}.down_scale": scales(60, 50)}
        source |= {"m_blocks": torch.randint(0, 256, (3, 10, 5, 16), dtype=torch.uint8), "m_scales": torch.randint(100, 150, (3, 10, 5), dtype=torch.uint8),
                   "row": numbers(40, 30), "row_scale": torch.rand(40, 1), "whole": numbers(9, 8, 7), "whole_scale": torch.rand(())}
        torch.save(source, path)
        want = {n: t for n, t in source.items() if n in ("norm", "a.9.weight")}
        for i, shape in enumerate(sizes):
            want[f"a.{i}.weight"] = dequantized(source[f"a.{i}.weight"], source[f"a.{i}.weight_scale_inv"], block, dtype)
        for part in ("up", "down"):
            want[part] = torch.stack([dequantized(source[f"e.{i}.{part}"], source[f"e.{i}.{part}_scale"], block, dtype) for i in range(3)])
        want["m"] = mxfp4(source["m_blocks"], source["m_scales"], dtype).transpose(-1, -2)
        want["row"] = (source["row"].float() * source["row_scale"]).to(dtype)
        want["whole"] = (source["whole"].float() * source["whole_scale"]).to(dtype)
        rules = rules_file(tmp, [SCALED_RULES % (block, word, block, word, word, word, word)])
        mapped(rules, path, out)
        same(bits(load(out)), bits(want), f"dequantized {block} {word}")
        run("shard", path, path + "-dcp", "--world-size", "3", "--force")
        mapped(rules, path + "-dcp", out + "-dcp", "--to", "dcp", "--world-size", "2", "--max-memory", "64MiB")
        same(bits(load(out + "-dcp")), bits(want), "folders")
        # Back: what the numbers stand for is quantized anew.
        weights = {n: t for n, t in want.items() if n not in ("a.9.weight", "m")}
        torch.save(weights, out)
        mapped(rules, out, back, "--reverse")
        again = {"norm": weights["norm"]}
        for name, tensor in weights.items():
            if name.startswith("a."):
                again[name], again[f"{name}_scale_inv"] = quantized(tensor, block)
            elif name in ("up", "down"):
                for i in range(3):
                    again[f"e.{i}.{name}"], again[f"e.{i}.{name}_scale"] = quantized(tensor[i], block)
        again["row"], again["row_scale"] = quantized(weights["row"], (1, 30))
        whole, scale = quantized(weights["whole"].reshape(1, -1), (1, 9 * 8 * 7))
        again |= {"whole": whole.view(torch.uint8).reshape(9, 8, 7).view(torch.float8_e4m3fn), "whole_scale": scale.reshape(())}
        same(bits(load(back)), bits(again), f"quantized {block} {word}")
        run("shard", out, out + "-dcp", "--world-size", "3", "--force")
        mapped(rules, out + "-dcp", back + "-dcp", "--reverse", "--to", "dcp", "--world-size", "2", "--max-memory", "64MiB")
        same(bits(load(back + "-dcp")), bits(again), "folders, back")
    storage_reader(tmp)
    extremes(tmp)
    scaled_errors(tmp)


def storage_reader(tmp):
    """PyTorch's own reader of such folders gives the same."""
    from torch.distributed.checkpoint import load as dcp_load
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader
    folder = os.path.join(tmp, "hf")
    source = {"l.weight": torch.randn(300, 500).to(torch.float8_e4m3fn), "l.weight_scale_inv": torch.rand(3, 4),
              "e_blocks": torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8), "e_scales": torch.randint(110, 140, (2, 6, 3), dtype=torch.uint8)}
    torch.save(source, os.path.join(tmp, "hf.pt"))
    run("convert", os.path.join(tmp, "hf.pt"), folder, "--to", "safetensors", "--max-shard-size", "100KB", "--force")
    rules = rules_file(tmp, ['[[rule]]\nfrom = ["l.weight", "l.weight_scale_inv"]\nto = "l.weight"\ndo = ["dequantize"]\n',
                             '[[rule]]\nfrom = ["e_blocks", "e_scales"]\nto = "e_blocks"\ndo = [{ op = "dequantize", scales = "mxfp4" }]\n'
                             'only = "forward"\n'])
    mapped(rules, folder, os.path.join(tmp, "hf-out.pt"))
    want = {"l.weight": torch.zeros(300, 500, dtype=torch.bfloat16)}
    reader = QuantizedHuggingFaceStorageReader(folder, target_dtype=torch.bfloat16)
    dcp_load(want, storage_reader=reader)
    # Of MXFP4 it fills the first columns alone: PyTorch 2.11 plans for the shape of the blocks.  Its arithmetic is asked directly.
    whole = types.SimpleNamespace(storage_offsets=[0, 0, 0], lengths=[2, 6, 96])
    want["e_blocks"] = reader._dequantize_tensor_mxfp4(source["e_blocks"], source["e_scales"], whole, 0, 0)
    same(bits(load(os.path.join(tmp, "hf-out.pt"))), bits(want), "QuantizedHuggingFaceStorageReader")


def extremes(tmp):
    """Every code of FP8, every scale of MXFP4, blocks of zeros and of what float32 barely holds."""
    path, out = os.path.join(tmp, "x.pt"), os.path.join(tmp, "y.pt")
    codes = torch.arange(256, dtype=torch.uint8)
    torch.save({"f": codes.reshape(16, 16).view(torch.float8_e4m3fn), "fs": torch.tensor([[3.4e38, 1e-44]]),
                "m_blocks": codes.reshape(16, 16).repeat(255, 1, 1), "m_scales": torch.arange(255, dtype=torch.uint8)[:, None].repeat(1, 16)}, path)
    source = load(path)
    for dtype in ("bfloat16", "float32", "float16"):
        rules = rules_file(tmp, [f'[[rule]]\nfrom = ["f", "fs"]\nto = "f"\ndo = [{{ op = "dequantize", block = [16, 8], to = "{dtype}" }}]\n',
                                 f'[[rule]]\nfrom = ["m_blocks", "m_scales"]\nto = "m"\ndo = [{{ op = "dequantize", scales = "mxfp4", to = "{dtype}" }}]\n'])
        mapped(rules, path, out)
        got, kind = load(out), getattr(torch, dtype)
        want = dequantized(source["f"], source["fs"], (16, 8), kind)
        check(torch.equal(got["f"].isnan(), want.isnan()), "NaN")
        same(bits({"f": got["f"].nan_to_num(7), "m": got["m"]}),
             bits({"f": want.nan_to_num(7), "m": mxfp4(source["m_blocks"], source["m_scales"], kind)}), dtype)
    weight = torch.zeros(6, 40)
    weight[1] = torch.randn(40) * 1e-37
    weight[2] = torch.randn(40) * 1e-40
    weight[3] = torch.randn(40).clamp(-1, 1) * 3.4e38
    weight[4] = -0.0
    weight[5, :3] = torch.tensor([-7.0, 7.0, 1.0])
    torch.save({"w": weight}, path)
    rules = rules_file(tmp, ['[[rule]]\nfrom = "w"\nto = ["w", "s"]\ndo = [{ op = "quantize", block = [1, 16] }]\n'])
    mapped(rules, path, out)
    numbers, scales = quantized(weight, (1, 16))
    same(bits(load(out)), bits({"w": numbers, "s": scales}), "extremes")
    check(numbers.float().isfinite().all(), "finite")


def scaled_errors(tmp):
    path, out = os.path.join(tmp, "f.pt"), os.path.join(tmp, "never.pt")
    bad = torch.zeros(200, 300)
    bad[150, 299] = float("nan")
    worse = torch.zeros(3, 5, dtype=torch.float64)
    worse[2, 1] = -1e300
    scales = torch.full((2, 3), 127, dtype=torch.uint8)
    scales[1, 2] = 255
    torch.save({"w": torch.zeros(200, 300).to(torch.float8_e4m3fn), "s": torch.zeros(3, 3), "ok": torch.zeros(2, 3), "bad": bad, "worse": worse, "i": torch.zeros(2, 3).int(),
                "b": torch.zeros(2, 3, 16, dtype=torch.uint8), "bs": scales, "v": torch.zeros(8)}, path)
    rest = '[[rule]]\nfrom = "{name:**}"\nto = "{name}"\n'
    for text, code, words in (
            ('from = ["w", "s"]\nto = "w"\ndo = ["dequantize"]', "SHAPE", ("scales float32 [3, 3], expected [2, 3]", "line 2")),
            ('from = ["w", "i"]\nto = "w"\ndo = ["dequantize"]', "DTYPE", ("floating scales, not int32",)),
            ('from = ["bad", "s"]\nto = "u"\ndo = ["dequantize"]', "DTYPE", ("float8_e4m3fn, not float32",)),
            ('from = "w"\nto = "u"\ndo = ["dequantize"]', "SHAPE", ("equally many of each: numbers, scales; not 1 arrays in all",)),
            ('from = "v"\nto = ["u", "us"]\ndo = ["quantize"]', "SHAPE", ("at least 2 dimensions",)),
            ('from = "bad"\nto = ["u", "us"]\ndo = ["quantize"]', "UNSUPPORTED", ("'bad': element [150, 299] is NaN",)),
            ('from = "bad"\nto = ["u", "us"]\ndo = [{ op = "reshape", to = [600, 100] }, { op = "pad", to = 605 }, "transpose", "quantize"]', "UNSUPPORTED",
             ("'bad': element [150, 299] is NaN",)),
            ('from = "worse"\nto = ["u", "us"]\ndo = [{ op = "quantize", scales = "tensor" }]', "UNSUPPORTED", ("'worse': element [2, 1] is infinite in float32",)),
            ('from = ["b", "bs"]\nto = "u"\ndo = [{ op = "dequantize", scales = "mxfp4" }]', "UNSUPPORTED", ("'bs': element [1, 2] is 255",)),
            ('from = ["w", "bs"]\nto = "u"\ndo = [{ op = "dequantize", scales = "mxfp4" }]', "DTYPE", ("dequantize takes uint8, not float8_e4m3fn",)),
            ('from = "bad"\nto = ["u", "us"]\ndo = [{ op = "quantize", block = [0, 3] }]', "SHAPE", ("not 0 x 3",)),
            ('from = "bad"\nto = ["u", "us"]\ndo = [{ op = "quantize", block = [3] }]', "USAGE", ("two sizes",)),
            ('from = "bad"\nto = ["u", "us"]\ndo = [{ op = "quantize", scales = "mxfp4" }]', "USAGE", ("quantize cannot make mxfp4",)),
            ('from = "bad"\nto = ["u", "us"]\ndo = [{ op = "quantize", scales = "row" }]', "USAGE", ("not 'row'",)),
            ('from = "bad"\nto = "u"\nskip_lone = true', "USAGE", ("skip_lone",))):
        said = run("map", rules_file(tmp, [f"[[rule]]\n{text}\n", rest]), path, out, expect=2)
        check(f"error[{code}]" in said and all(w in said for w in words) and not os.path.exists(out), f"{text}: {said}")
    said = run("map", rules_file(tmp, ['[[rule]]\nfrom = ["b", "bs"]\nto = "u"\ndo = [{ op = "dequantize", scales = "mxfp4" }]\n']), path, out, "--reverse", expect=2)
    check("error[UNSUPPORTED]" in said and "mxfp4 can be read but not written" in said, said)
    # A scale that has no weight is not taken for anything else; nor is one expert without its scale.
    rule = '[[rule]]\nfrom = ["{n:**}.weight", "{n}.scale"]\nto = "{n}.weight"\ndo = [{ op = "dequantize", block = [4, 4] }]\nskip_lone = true\n'
    number = torch.ones(4, 4).to(torch.float8_e4m3fn)
    torch.save({"a.weight": number, "a.scale": torch.ones(1, 1), "b.scale": torch.ones(1, 1)}, path)
    said = run("map", rules_file(tmp, [rule, rest]), path, out, expect=2)
    check("error[KEY]" in said and "'b.weight' is missing, which goes with 'b.scale'" in said, said)
    rule = '[[rule]]\nfrom = ["{e}.weight", "{e}.scale"]\nto = "weight"\nover = "e"\ndo = [{ op = "dequantize", block = [4, 4] }, "stack"]\nskip_lone = true\n'
    torch.save({"0.weight": number, "0.scale": torch.ones(1, 1), "1.weight": number, "2.weight": number, "2.scale": torch.ones(1, 1)}, path)
    said = run("map", rules_file(tmp, [rule, rest]), path, out, expect=2)
    check("error[KEY]" in said and "'1.scale' is missing" in said, said)
    state = {"state": {"w": {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4, 4)}}, "param_groups": [{"params": ["w"], "lr": 0.1}]}
    torch.save({"model": {"w": torch.ones(4, 4)}, "optim": state}, path)
    said = run("map", rules_file(tmp, ['[[rule]]\nfrom = "w"\nto = ["w", "s"]\ndo = ["quantize"]\n']), path, out, expect=2)
    check("error[UNSUPPORTED]" in said and "goes through quantize" in said and "--drop-optimizer" in said, said)


def optimizer(tmp):
    torch.manual_seed(6)
    names = ["l.0.q", "l.0.k", "l.1.q", "l.1.k", "e.w", "out.w"]
    params = {n: torch.nn.Parameter(torch.randn(4, 6)) for n in names}
    optim = torch.optim.AdamW([{"params": [params[n] for n in names[:5]], "lr": 0.1}, {"params": [params["out.w"]], "lr": 0.2}])
    for p in params.values():
        p.grad = torch.randn_like(p)
    optim.step()
    by_id = optim.state_dict()

    def by_name(order):
        return {"state": {order[i]: s for i, s in by_id["state"].items()},
                "param_groups": [g | {"params": [order[i] for i in g["params"]]} for g in by_id["param_groups"]]}
    path, out = os.path.join(tmp, "o.pt"), os.path.join(tmp, "p.pt")
    model = {n: p.detach() for n, p in params.items()}
    rules = [
        '[[rule]]\nfrom = ["l.{i:int}.q", "l.{i:int}.k"]\nto = "m.{i}.qk"\ndo = ["concatenate", "transpose"]\n',
        '[[rule]]\nfrom = "e.w"\nto = ["e.a", "e.b"]\ndo = ["split"]\n',
        '[[rule]]\nfrom = "out.w"\nto = "o.w"\ndo = [{ op = "cast", to = "bfloat16", from = "float32" }]\n']
    file = rules_file(tmp, rules)
    torch.save({"model": model, "optim": by_id, "epoch": 3}, path)
    text = run("map", file, path, out, expect=2)
    check("error[UNSUPPORTED]" in text and "rekey" in text and not os.path.exists(out), text)
    mapped(file, path, out, "--drop-optimizer")
    check(set(load(out)) == {"model", "epoch"}, "no optimizer")
    for flat in (False, True):
        torch.save({"model": model, "optim": by_name(names), "epoch": 3}, path)
        if flat:
            run("rekey", path, path + "-flat.pt", "--key-by", "name", "--flatten", "--force")
        mapped(file, path + "-flat.pt" if flat else path, out)
        if flat:
            run("rekey", out, out + "-named.pt", "--key-by", "name", "--force")
        got = load(out + "-named.pt" if flat else out)
        check(got["epoch"] == 3 and got["model"]["o.w"].dtype == torch.bfloat16, "model")
        state = by_name(names)["state"]
        want = {}
        for i in (0, 1):
            q, k = state[f"l.{i}.q"], state[f"l.{i}.k"]
            want[f"m.{i}.qk"] = {n: q[n] if n == "step" else torch.cat([q[n], k[n]]).t().contiguous() for n in q}
        for half, n in enumerate(("e.a", "e.b")):
            want[n] = {m: v if m == "step" else v[2 * half:2 * half + 2] for m, v in state["e.w"].items()}
        want["o.w"] = state["out.w"]
        same(got["optim"]["state"], want, "states")
        check([g["params"] for g in got["optim"]["param_groups"]] == [["m.0.qk", "m.1.qk", "e.a", "e.b"], ["o.w"]], got["optim"]["param_groups"])
        check([g["lr"] for g in got["optim"]["param_groups"]] == [0.1, 0.2], "options")
        mapped(file, out, out + "-back.pt", "--reverse")
        if not flat:
            same(load(out + "-back.pt")["optim"], load(path)["optim"], "back")
    scalars(tmp)
    torch.save({"model": model, "optim": by_name(names)}, path)
    for rule, words in (('[[rule]]\nfrom = "out.w"\nto = "o.w"\ndo = [{ op = "scale", by = 2 }]\n', ("scale", "'out.w'")),
                        ('[[rule]]\nfrom = ["out.w", "e.w"]\nto = "o.w"\ndo = ["concatenate"]\n', ("'out.w'", "'e.w'", "group"))):
        rest = '[[rule]]\nfrom = "{name:**}"\nto = "{name}"\n'
        text = run("map", rules_file(tmp, [rule, rest]), path, os.path.join(tmp, "never.pt"), expect=2)
        check("error[UNSUPPORTED]" in text and "--drop-optimizer" in text and all(w in text for w in words), text)


def scalars(tmp):
    """States of parameters of one element have its shape, and so has the step count."""
    names = ["a", "b", "c"]
    params = {n: torch.nn.Parameter(torch.tensor(float(i))) for i, n in enumerate(names)} | {"d": torch.nn.Parameter(torch.ones(1))}
    for kind in (torch.optim.AdamW, torch.optim.NAdam, torch.optim.ASGD):
        optim = kind(params.values(), lr=0.1)
        for p in params.values():
            p.grad = torch.ones_like(p) / 4
        optim.step()
        state = dict(zip(params, optim.state_dict()["state"].values()))
        path, out = os.path.join(tmp, "s.pt"), os.path.join(tmp, "t.pt")
        torch.save({"model": {n: p.detach() for n, p in params.items()},
                    "optim": {"state": state, "param_groups": [{"lr": 0.1, "params": list(params)}]}}, path)
        file = rules_file(tmp, ['[[rule]]\nfrom = ["a", "b", "c"]\nto = "abc"\ndo = ["stack"]\n',
                                '[[rule]]\nfrom = "d"\nto = "d"\ndo = [{ op = "reshape", to = [1, 1], from = [1] }]\n'])
        mapped(file, path, out)
        got = load(out)["optim"]["state"]
        single = {"step", "mu_product", "eta", "mu"}
        same(got, {"abc": {k: v if k in single else torch.stack([state[n][k] for n in names]) for k, v in state["a"].items()},
                   "d": {k: v if k in single else v.reshape(1, 1) for k, v in state["d"].items()}}, kind.__name__)
        mapped(file, out, out + "-back.pt", "--reverse")
        same(load(out + "-back.pt")["optim"]["state"], state, kind.__name__)


def ties_and_values(tmp):
    wte = torch.randn(6, 4)
    path, out = os.path.join(tmp, "t.pt"), os.path.join(tmp, "u.pt")
    torch.save({"model": {"wte": wte, "head": wte, "a": torch.arange(3.0), "_extra_state": "x"}, "rng": torch.zeros(5, dtype=torch.uint8)}, path)
    file = rules_file(tmp, ['[[rule]]\nfrom = "wte"\nto = "embed"\ndo = ["transpose"]\n', '[[rule]]\nfrom = "head"\nto = "lm"\ndo = ["transpose"]\n',
                            '[[rule]]\nfrom = "a"\nto = ["b", "c"]\ndo = ["tie"]\n', '[rename]\n"_extra_state" = "more._extra_state"\n'])
    mapped(file, path, out)
    got = load(out)["model"]
    same(got, {"embed": wte.t(), "lm": wte.t(), "b": torch.arange(3.0), "c": torch.arange(3.0), "more._extra_state": "x"}, "ties")
    check(got["embed"].data_ptr() == got["lm"].data_ptr() and got["b"].data_ptr() == got["c"].data_ptr(), "tied")
    mapped(file, out, out + "-back.pt", "--reverse")
    same(load(out + "-back.pt"), load(path), "ties, back")
    # One of two tied names is enough to go back.
    torch.save({"model": {k: v for k, v in got.items() if k != "b"}, "rng": load(path)["rng"]}, out)
    mapped(file, out, out + "-back.pt", "--reverse")
    same(load(out + "-back.pt"), load(path), "ties, back from one")
    plan = json.loads(run("map", file, path, os.path.join(tmp, "never.pt"), "--dry-run", "--json"))
    check(plan["dry_run"] and [s["to"][0]["shape"] for s in plan["steps"]] == [[4, 6], [4, 6], [3]], plan)
    text = run("map", file, path, os.path.join(tmp, "never.pt"), "--dry-run")
    check("wte [6, 4] -> embed [4, 6]  (transpose)" in text and "a [3] -> b [3] + c [3]  (tie)" in text, text)


ERRORS = [
    ("REKEY_UNUSED", '[[rule]]\nfrom = "{n:**}"\nto = "{n}"\n[[rule]]\nfrom = "x.{i:int}.weigth"\nto = "y.{i}"\n', ("line 4", "'x.0.weight'")),
    ("KEY", '[[rule]]\nfrom = "x.{i:int}.weight"\nto = "y.{i}"\n', ("no rule takes 'norm'",)),
    ("KEY", '[[rule]]\nfrom = ["x.{i:int}.weight", "x.{i:int}.bias"]\nto = "y.{i}"\ndo = ["concatenate"]\n[rename]\n"norm" = "n"\n',
     ("line 1", "'x.0.bias' is missing")),
    ("REKEY_COLLISION", '[[rule]]\nfrom = "x.{i:int}.weight"\nto = "y.{i}"\n[rename]\n"norm" = "y.1"\n', ("line 5", "'norm'", "line 1", "'x.1.weight'", "'y.1'")),
    ("SHAPE", '[[rule]]\nfrom = "x.{i:int}.weight"\nto = ["y.{i}", "z.{i}", "w.{i}"]\ndo = ["split"]\n[rename]\n"norm" = "n"\n',
     ("line 1", "'x.0.weight' [4, 3]", "not divisible into 3")),
    ("USAGE", '[[rule]]\nfrom = "x.{i:int}.weight"\nto = "y"\n', ("line 1", "captures differ")),
    ("USAGE", '[[rule]]\nfrom = "x"\nto = "y"\noptionl = true\n', ("line 4", "did you mean optional?")),
    ("USAGE", '[[rule]]\nfrom = "x"\nto = "y"\ndo = ["transpos"]\n', ("line 4", "did you mean transpose?")),
    ("USAGE", '[[rule]]\nfrom = "x"\nto = "y"\ndo = [{ op = "rotary", heads = "n_head", to = "pairs" }]\n[parameters]\nn_heads = { value = 2 }\n',
     ("line 4", "did you mean n_heads?")),
    ("USAGE", '[parameters]\na = { value = "b" }\nb = { value = "a" }\n[[rule]]\nfrom = "{n:**}"\nto = "{n}"\ndo = [{ op = "pad", to = "a" }]\n',
     ("depends on itself",)),
    ("TOML", 'rule = [', ("line 1",)),
    ("TOML", '[[rule]]\nfrom = "a\0b"\n', ("line 2",)),
    ("JSON", '{"rule": [', ("byte",)),
    ("JSON", '{"rule": [],\n "rule": []}', ("line 2", "twice")),
    ("JSON_DEPTH", '{"a":' + "[" * 100, ()),
    ("LIMIT_DEPTH", "a = " + "[" * 60 + "]" * 60, ()),
    ("TOML", "a = " + "[" * 100000, ()),
    ("LIMIT_SIZE", "#" * (1 << 20) + "\n", ()),
    ("UTF8", b"a = '\xff'", ()),
    ("USAGE", "a." * 200 + "b = 1", ()),
]


def errors(tmp):
    path, out = os.path.join(tmp, "e.pt"), os.path.join(tmp, "never.pt")
    torch.save({"x.0.weight": torch.zeros(4, 3), "x.1.weight": torch.zeros(4, 3), "norm": torch.zeros(4)}, path)
    rules = os.path.join(tmp, "bad.toml")
    for code, text, words in ERRORS:
        with open(rules, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        said = run("map", rules, path, out, expect=2)
        accepted = (code, "LIMIT_DEPTH", "USAGE") if text == ERRORS[-1][1] or code == "TOML" and "[[[[" in text else (code,)
        check(any(f"error[{c}]" in said for c in accepted) and "bad.toml" in said and all(w in said for w in words), f"{text[:200]!r}: {said}")
        check(not os.path.exists(out), text)
    for rule, word in (('do = [{ op = "concatenate", sizes = "any" }]', "sizes"), ('do = [{ op = "reshape", to = [-1] }]', "from"),
                       ('do = [{ op = "cast", to = "float16" }]', "from")):
        file = rules_file(tmp, [f'[[rule]]\nfrom = "{{n:**}}"\nto = "{{n}}"\n{rule}\n'])
        said = run("map", file, path, out, "--reverse", expect=2)
        check("error[UNSUPPORTED]" in said and "line 5" in said and word in said, said)


def damage(tmp):
    """A flipped bit in what a rule computes with, or moves, is found; the output does not appear."""
    path, out = os.path.join(tmp, "d.pt"), os.path.join(tmp, "never.pt")
    weight = torch.randn(64, 48)
    torch.save({"w": weight, "v": torch.randn(10)}, path)
    with open(path, "rb") as file:
        data = bytearray(file.read())
    at = data.index(weight.numpy().tobytes())
    data[at + 500] ^= 4
    with open(path, "wb") as file:
        file.write(data)
    for steps in ('["transpose"]', '[{ op = "add", value = 1 }]', '["transpose", { op = "scale", by = 2 }]', '[{ op = "trim", to = 60 }]',
                  '[{ op = "rotary", heads = 2, to = "halves" }]', '[{ op = "reshape", to = [3072] }, "transpose", { op = "cast", to = "bfloat16" }]'
                  .replace('"transpose", ', '')):
        file = rules_file(tmp, [f'[[rule]]\nfrom = "w"\nto = "u"\ndo = {steps}\n', '[rename]\nv = "v"\n'])
        said = run("map", file, path, out, expect=2)
        check("error[ZIP_CRC]" in said and not os.path.exists(out), f"{steps}: {said}")


def memory(tmp):
    """Tensors of 256 MiB through every kind of operation, within the memory that is allowed."""
    path, out = os.path.join(tmp, "m.pt"), os.path.join(tmp, "n.pt")
    weight = torch.arange(8192 * 8192, dtype=torch.int32).view(8192, 8192).view(torch.float32)
    torch.save({"w": weight, "r": weight[:2048].clone()}, path)
    # The rows of each head lie apart: they are gathered.
    file = rules_file(tmp, ['[[rule]]\nfrom = "w"\nto = ["a", "b"]\ndo = ["transpose", "split"]\n',
                            '[[rule]]\nfrom = "r"\nto = "q"\ndo = [{ op = "rotary", heads = 8, to = "pairs" }, { op = "scale", by = 1 }]\n'])
    command = [rekey_tool.TOOL, "map", file, path, out, "--max-memory", "128MiB", "--no-sync"]
    done = subprocess.run(["/usr/bin/env", "python3", "-c", "import os, resource, sys\npid = os.fork()\nif not pid: os.execv(sys.argv[1], sys.argv[1:])\n"
                           "status = os.wait()[1]\nprint('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\nsys.exit(status != 0)", *command],
                          capture_output=True, text=True)
    check(done.returncode == 0, done.stdout + done.stderr)
    peak = int(re.search(r"peak (\d+)", done.stdout)[1]) // 1024
    print(f"peak of 320 MiB mapped within 128 MiB: {peak} MiB")
    check(peak <= 128 + 16, f"{peak} MiB")
    got = load(out)
    check(torch.equal(got["a"].view(torch.int32), weight[:, :4096].t().contiguous().view(torch.int32)), "a")
    check(torch.equal(got["b"].view(torch.int32), weight[:, 4096:].t().contiguous().view(torch.int32)), "b")
    check(torch.equal((rotary(weight[:2048], 8, False) * 1).nan_to_num(0), got["q"].nan_to_num(0)), "q")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rules", type=int, default=60)
    parser.add_argument("checks", nargs="*")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    checks = {"random": lambda tmp: random_rules(tmp, random.Random(args.seed), args.rules), "arithmetic": arithmetic,
              "scaled": lambda tmp: scaled(tmp, random.Random(args.seed)), "optimizer": optimizer,
              "ties": ties_and_values, "errors": errors, "damage": damage, "memory": memory}
    return 1 if rekey_tool.run_checks(args.tool, checks, args.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
