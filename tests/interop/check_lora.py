#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `fsdp-ckpt merge-lora` with NumPy, bit by bit, and with peft's merge_and_unload, within one rounding; `extract-lora` with
torch.linalg.svd, and what it writes with what peft loads.

    check_lora.py --tool PATH [--peft]

NumPy does each step of Note [order of a low-rank update] (formats/changes/arithmetic/low_rank.h).  --peft needs a Python with peft.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import lora_search
import tried
from tool_run import check, run

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "use_rslora": False, "fan_in_fan_out": False, "rank_pattern": {}, "alpha_pattern": {},
          "bias": "none", "modules_to_save": None, "target_modules": ["q"], "init_lora_weights": True, "use_dora": False,
          "layer_replication": None, "base_model_name_or_path": "base", "task_type": "CAUSAL_LM", "qalora_group_size": 16}


def save_adapter(folder, name, tensors, config, binary=False):
    path = os.path.join(folder, name)
    os.makedirs(path)
    tensors = {f"base_model.model.{key}": tensor.contiguous() for key, tensor in tensors.items()}
    if binary:
        torch.save(tensors, os.path.join(path, "adapter_model.bin"))
    else:
        save_file(tensors, os.path.join(path, "adapter_model.safetensors"))
    with open(os.path.join(path, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({**CONFIG, **config}, file)
    return path


def wide(tensor, real):
    return tensor.numpy().astype(real) if tensor.dtype == torch.float64 else tensor.float().numpy().astype(real)


def merged(weight, updates):
    """updates: (left, right, scale)."""
    real = np.float64 if weight.dtype == torch.float64 else np.float32
    w = wide(weight, real)
    for left, right, scale in updates:
        left, right = wide(left, real), wide(right, real)
        d = left[:, :1] * right[:1]
        for k in range(1, left.shape[1]):
            d = d + left[:, k:k + 1] * right[k:k + 1]
        w = w + real(scale) * d
    return torch.from_numpy(w).to(weight.dtype)


def same(got, want, where):
    check(sorted(got) == sorted(want), f"{where}: keys {sorted(set(got) ^ set(want))}")
    for key, tensor in want.items():
        check(got[key].dtype == tensor.dtype and got[key].shape == tensor.shape, f"{where}: {key}: {got[key].dtype} {got[key].shape}")
        differ = (got[key].contiguous().view(torch.uint8) != tensor.contiguous().view(torch.uint8)).sum()
        check(differ == 0, f"{where}: {key}: {differ} bytes differ, first {got[key].reshape(-1)[:3]} and {tensor.reshape(-1)[:3]}")


def numpy_cases(tool, folder):
    rand = torch.randn
    torch.manual_seed(3)
    base = {"l.0.q.weight": rand(37, 2500), "l.0.k.weight": rand(33, 65).to(torch.bfloat16), "l.1.q.weight": rand(20, 30).to(torch.float16),
            "l.1.k.weight": rand(5, 7, dtype=torch.float64), "l.2.q.weight": rand(300, 700).to(torch.float16),
            "l.2.k.weight": rand(90, 800, dtype=torch.float64), "l.3.q.weight": rand(96, 128).to(torch.bfloat16), "conv1d.weight": rand(12, 9), "emb.weight": rand(50, 6), "head.weight": rand(4, 6),
            "head.bias": rand(4), "norm.weight": rand(3)}
    st, pt = os.path.join(folder, "base.safetensors"), os.path.join(folder, "base.pt")
    save_file(base, st)
    torch.save({"app": {"model": base}, "step": 3}, pt)
    pair = lambda name, rank, dtype=torch.float32: {f"{name}.lora_A.weight": rand(rank, base[f"{name}.weight"].shape[1]).to(dtype),  # noqa: E731
                                                    f"{name}.lora_B.weight": rand(base[f"{name}.weight"].shape[0], rank).to(dtype)}
    one = {**pair("l.0.q", 4), **pair("l.0.k", 4), **pair("l.1.q", 2, torch.bfloat16), **pair("l.1.k", 4, torch.float64),
           **pair("l.2.q", 1), **pair("l.2.k", 4), **pair("l.3.q", 17),
           "emb.lora_embedding_A": rand(4, 50), "emb.lora_embedding_B": rand(6, 4), "head.weight": rand(4, 6), "head.bias": rand(4)}
    a = save_adapter(folder, "a", one, {"rank_pattern": {"l.1.q": 2, "l.2.q": 1, "l.3.q": 17}, "alpha_pattern": {"k": 1.5, "q": 7}, "modules_to_save": ["head"]})
    scales = {"l.0.q": 7 / 4, "l.0.k": 1.5 / 4, "l.1.q": 7 / 2, "l.1.k": 1.5 / 4, "l.2.q": 7, "l.2.k": 1.5 / 4, "l.3.q": 7 / 17}
    update = lambda part, name, scale: (part[f"{name}.lora_B.weight"], part[f"{name}.lora_A.weight"], scale)  # noqa: E731
    want = dict(base)
    for name, scale in scales.items():
        want[f"{name}.weight"] = merged(base[f"{name}.weight"], [update(one, name, scale)])
    want["emb.weight"] = merged(base["emb.weight"], [(one["emb.lora_embedding_A"].T, one["emb.lora_embedding_B"].T, 6 / 4)])
    want["head.weight"], want["head.bias"] = one["head.weight"], one["head.bias"]

    out = os.path.join(folder, "out.safetensors")
    said = run(tool, "merge-lora", st, a, out)
    check("merged 1 adapter: 8 weights with 8 updates, 2 tensors replaced" in said, said)
    same(load_file(out), want, "safetensors")
    # Below two levels, into a folder of ranks; more threads and less memory change nothing.
    ranks = os.path.join(folder, "ranks")
    said = run(tool, "merge-lora", pt, a, ranks, "--to", "dcp", "-w", 3, "--threads", 5, "--max-memory", "16MiB")
    check("below 'app.model.'" in said, said)
    dcp_to_torch_save(ranks, ranks + ".pt")
    got = torch.load(ranks + ".pt", weights_only=True)
    check(got["step"] == 3, "values")
    same(got["app"]["model"], want, "ranks")

    # Two adapters after each other, the second with its own scale, weights [in, out] and the legacy file.
    two = pair("l.0.q", 3, torch.float16)
    b = save_adapter(folder, "b", two, {"r": 3, "use_rslora": True}, binary=True)
    turned = {"conv1d.lora_A.weight": rand(4, 12), "conv1d.lora_B.weight": rand(9, 4)}
    c = save_adapter(folder, "c", turned, {"fan_in_fan_out": True})
    run(tool, "merge-lora", st, a, b, c, out, "--force")
    want["l.0.q.weight"] = merged(base["l.0.q.weight"], [update(one, "l.0.q", scales["l.0.q"]), update(two, "l.0.q", 6 / np.sqrt(3))])
    want["conv1d.weight"] = merged(base["conv1d.weight"], [(turned["conv1d.lora_A.weight"].T, turned["conv1d.lora_B.weight"].T, 6 / 4)])
    same(load_file(out), want, "three adapters")

    # Tied to a merged weight: both names change, unless told that they are two.
    tied = rand(8, 6)
    torch.save({"emb.weight": tied, "head.weight": tied}, os.path.join(folder, "tied.pt"))
    update_of_head = {"head.lora_A.weight": rand(4, 6), "head.lora_B.weight": rand(8, 4)}
    d = save_adapter(folder, "d", update_of_head, {})
    changed = merged(tied, [(update_of_head["head.lora_B.weight"], update_of_head["head.lora_A.weight"], 6 / 4)])
    run(tool, "merge-lora", os.path.join(folder, "tied.pt"), d, os.path.join(folder, "one.pt"))
    got = torch.load(os.path.join(folder, "one.pt"), weights_only=True)
    same(got, {"emb.weight": changed, "head.weight": changed}, "tied")
    check(got["emb.weight"].data_ptr() == got["head.weight"].data_ptr(), "tied no more")
    run(tool, "merge-lora", os.path.join(folder, "tied.pt"), d, os.path.join(folder, "untied.pt"), "--untied")
    got = torch.load(os.path.join(folder, "untied.pt"), weights_only=True)
    same(got, {"emb.weight": tied, "head.weight": changed}, "untied")
    named_cases(tool, folder)
    run(tool, "merge-lora", st, b, out, "--force", "--dtype", "bf16")
    check(load_file(out)["l.0.q.weight"].dtype == torch.bfloat16 and load_file(out)["norm.weight"].dtype == torch.float32, "--dtype is of what changes")
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        map_case(tool, folder, dtype)
    print("numpy: every bit")
    return st, base, pair


def named_cases(tool, folder):
    """Tied names, orders of square weights and older names, where a config.json or the weights near them tell."""
    rand = torch.randn
    base, out = os.path.join(folder, "named"), os.path.join(folder, "named.safetensors")

    def case(tensors, adapter, config, want, *says, model=None, words=(), expect=0):
        os.makedirs(base, exist_ok=True)
        save_file(tensors, os.path.join(base, "model.safetensors"))
        model_config = os.path.join(base, "config.json")
        if model is not None:
            with open(model_config, "w", encoding="utf-8") as file:
                json.dump(model, file)
        elif os.path.exists(model_config):
            os.remove(model_config)
        made = save_adapter(folder, f"named-{len(os.listdir(folder))}", adapter, config)
        said = run(tool, "merge-lora", base, made, out, "--force", *words, expect=expect)
        for word in says:
            check(word in said, f"no {word!r} in {said}")
        if expect == 0:
            same(load_file(out), {**tensors, **want}, f"named {says}")

    e, a, b = rand(8, 6), rand(4, 6), rand(8, 4)
    changed = merged(e, [(b, a, 6 / 4)])
    head = {"lm_head.lora_A.weight": a, "lm_head.lora_B.weight": b}
    tied, apart = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
    one, two = {"model.embed_tokens.weight": e}, {"model.embed_tokens.weight": e, "lm_head.weight": e.clone()}
    # The head is not in the file.
    case(one, head, {}, {"model.embed_tokens.weight": changed}, "treated as tied to")
    case(one, head, {}, {"model.embed_tokens.weight": changed}, model=tied)
    case(one, head, {}, {}, "lacks 'lm_head.weight'", model=apart, expect=2)
    # Both are, with the same bits.
    case(two, head, {}, {"lm_head.weight": changed, "model.embed_tokens.weight": changed}, "same bits and are treated as one tied tensor", words=["--force"])
    case(two, head, {}, {"lm_head.weight": changed}, model=apart)
    case(two, head, {}, {"lm_head.weight": changed}, words=["--untied"])
    case({**two, "lm_head.weight": e + 1}, head, {}, {"lm_head.weight": merged(e + 1, [(b, a, 6 / 4)])}, model=tied)
    # A module that is trained as a whole leaves the tie.
    whole = {"model.embed_tokens.weight": rand(8, 6), "q.lora_A.weight": rand(4, 6), "q.lora_B.weight": rand(5, 4)}
    q = rand(5, 6)
    new = {"model.embed_tokens.weight": whole["model.embed_tokens.weight"], "q.weight": merged(q, [(whole["q.lora_B.weight"], whole["q.lora_A.weight"], 6 / 4)])}
    saves = {"modules_to_save": ["embed_tokens"]}
    case({**one, "q.weight": q}, whole, saves, {**new, "lm_head.weight": e}, "'lm_head.weight' was tied to", '"tie_word_embeddings": false', model=tied)
    case({**one, "q.weight": q}, whole, {**saves, "task_type": "SEQ_CLS"}, new, model=tied)
    case({**one, "q.weight": q}, whole, {**saves, "task_type": None}, {}, "error[UNSUPPORTED]", "--config", expect=2)
    case({**two, "q.weight": q}, whole, saves, new, "are two tensors now", model=tied)
    # Weights of transformers' Conv1D are [in, out] whatever the config says; a square one is as those near it.
    c = {"h.0.attn.c_attn.weight": rand(6, 18), "h.0.attn.c_attn.bias": rand(18), "h.0.attn.c_proj.weight": rand(6, 6), "h.0.attn.c_proj.bias": rand(6)}
    adapter = {"h.0.attn.c_proj.lora_A.weight": rand(4, 6), "h.0.attn.c_proj.lora_B.weight": rand(6, 4)}
    a, b = adapter.values()
    turned = {"h.0.attn.c_proj.weight": merged(c["h.0.attn.c_proj.weight"], [(a.T, b.T, 6 / 4)])}
    straight = {"h.0.attn.c_proj.weight": merged(c["h.0.attn.c_proj.weight"], [(b, a, 6 / 4)])}
    case(c, adapter, {}, turned, "is [in, out] like the weights near it")
    case(c, adapter, {"fan_in_fan_out": True}, turned)
    lin = {**c, "h.0.attn.c_attn.weight": c["h.0.attn.c_attn.weight"].T.contiguous()}
    case(lin, adapter, {"fan_in_fan_out": True}, straight, "is [out, in] like the weights near it")
    del c["h.0.attn.c_attn.weight"], c["h.0.attn.c_attn.bias"]
    case(c, adapter, {"fan_in_fan_out": True}, turned, "as fan_in_fan_out says; it is square")
    # Names of transformers 5 on files that were published before it; a layer's number is never another.
    older = {"language_model.model.layers.0.q.weight": q, "visual.layers.0.q.weight": rand(5, 6)}
    a, b = rand(4, 6), rand(5, 4)
    newer = {"model.language_model.layers.0.q.lora_A.weight": a, "model.language_model.layers.0.q.lora_B.weight": b}
    case(older, newer, {}, {"language_model.model.layers.0.q.weight": merged(q, [(b, a, 6 / 4)])},
         "'model.language_model.' in the adapter is 'language_model.model.'")
    case({"model.layers.0.q.weight": q}, {key.replace("language_model.layers.0", "layers.1"): t for key, t in newer.items()}, {}, {},
         "of another base", expect=2)
    # Two adapters in one file, and half a module.
    case({"q.weight": q}, {"q.lora_A.x.weight": a, "q.lora_B.y.weight": b}, {}, {}, "two adapters, 'x' and 'y'", expect=2)
    shutil.rmtree(base)
    print("names: as peft's modules are")


def map_case(tool, folder, dtype):
    """The operation low_rank of map's rules, of a model that holds weights and matrices, in one file and cut for three ranks."""
    rand = lambda *shape: torch.randn(shape, dtype=torch.float64).to(dtype)  # noqa: E731
    model = {"l.0.q.base_layer.weight": rand(37, 2500), "l.0.q.lora_A.default.weight": rand(4, 2500), "l.0.q.lora_B.default.weight": rand(37, 4),
             "l.0.c.weight": rand(9, 13), "l.0.c.lora_A": rand(1, 9), "l.0.c.lora_B": rand(13, 1), "l.0.c.bias": rand(13)}
    rules, one, ranks, out = (os.path.join(folder, name) for name in ("low_rank.toml", "unmerged.pt", "unmerged", "mapped.safetensors"))
    with open(rules, "w", encoding="utf-8") as file:
        file.write("""[[rule]]
from = ["{m:**}.base_layer.weight", "{m}.lora_A.default.weight", "{m}.lora_B.default.weight"]
to = "{m}.weight"
do = [{ op = "low_rank", scale = 0.3 }, "transpose"]
[[rule]]
from = ["{m:**}.weight", "{m}.lora_A", "{m}.lora_B"]
to = "{m}.weight"
do = [{ op = "low_rank", fan_in_fan_out = true }]
[rename]
"{rest:**}" = "{rest}"
""")
    torch.save(model, one)
    run(tool, "shard", one, ranks, "--world-size", 3, "--force")
    want = {"l.0.c.bias": model["l.0.c.bias"], "l.0.c.weight": merged(model["l.0.c.weight"], [(model["l.0.c.lora_A"].T, model["l.0.c.lora_B"].T, 1)]),
            "l.0.q.weight": merged(model["l.0.q.base_layer.weight"], [(model["l.0.q.lora_B.default.weight"], model["l.0.q.lora_A.default.weight"], 0.3)]).T}
    for path in (one, ranks):
        run(tool, "map", rules, path, out, "--force", "--max-memory", "16MiB")
        same(load_file(out), want, f"map {path} {dtype}")
    run(tool, "map", rules, ranks, ranks + "-out", "--to", "dcp", "-w", 4, "--force")
    dcp_to_torch_save(ranks + "-out", out + ".pt")
    same(torch.load(out + ".pt", weights_only=True), want, f"map to ranks {dtype}")
    check("low_rank cannot be undone" in run(tool, "map", rules, out, one + "-back.pt", "--reverse", expect=2), "reverse")


def refusals(tool, folder, st, base, pair):
    out = os.path.join(folder, "refused.safetensors")
    number = 0

    def case(tensors, config, *says):
        nonlocal number
        number += 1
        adapter = save_adapter(folder, f"r{number}", tensors, config)
        err = run(tool, "merge-lora", st, adapter, out, expect=2)
        for word in says:
            check(word in err, f"no {word!r} in {err}")
        check(not os.path.exists(out), f"{says}: written")

    q = pair("l.0.q", 4)
    for config, *says in [({"peft_type": "LOHA"}, "'peft_type' is '\"LOHA\"'"), ({"use_bdlora": {"nblocks": 2}}, "'use_bdlora'"),
                          ({"init_lora_weights": "pissa_niter_4"}, "'init_lora_weights'", "pissa", "changed the weights of the base"),
                          ({"layer_replication": [[0, 4]]}, "'layer_replication'"), ({"use_future": {"a": 1}}, "'use_future'"),
                          ({"alpha_pattern": {"(?=l).*q$": 4}}, "'alpha_pattern'", "a regular expression")]:
        case(q, config, "error[UNSUPPORTED]", "adapter_config.json", *says)
    case(q, {"r": "4"}, "error[TYPE]", "'r' must be an integer of at least 1")
    case(q, {"r": 0}, "error[TYPE]")
    case(q, {"r": 5}, "error[MISMATCH]", "A [4, 2500] and B [37, 4] of rank 5")
    case({key.replace("l.0.q", "l.7.q"): tensor for key, tensor in q.items()}, {}, "error[MISMATCH]", "of another base", "lacks 'l.7.q.weight'",
         "nearest key is 'l.")
    case({"l.0.q.lora_A.weight": torch.ones(4, 2499), "l.0.q.lora_B.weight": torch.ones(37, 4)}, {}, "error[MISMATCH]", "'l.0.q.weight' is [37, 2500]")
    case({"l.0.q.lora_A.weight": torch.ones(4, 2500)}, {}, "error[MISMATCH]", "has matrix A without B")
    case(q, {"use_dora": True}, "error[MISMATCH]", "has no magnitudes")
    case({**q, "l.0.q.lora_magnitude_vector.weight": torch.ones(36)}, {}, "error[MISMATCH]", "'l.0.q.weight' is [37, 2500]")
    case({**q, "l.0.q.lora_B.bias": torch.ones(37)}, {"lora_bias": True}, "error[UNSUPPORTED]", "has none to add it to")
    tokens = {"emb.token_adapter.trainable_tokens_delta": torch.ones(2, 6)}
    case(tokens, {}, "error[MISMATCH]", "does not tell which rows")
    case(tokens, {"trainable_token_indices": {"emb": [1, 50]}}, "error[MISMATCH]", "'emb.weight' is [50, 6]")
    case({**q, "l.0.q.lora_C.weight": torch.ones(37)}, {}, "error[UNSUPPORTED]", "a kind of LoRA")
    case({"l.0.q.lora_A.weight": torch.ones(4, 3, 3, 3), "l.0.q.lora_B.weight": torch.ones(37, 4, 1, 1)}, {}, "error[MISMATCH]", "'l.0.q.weight' is [37, 2500]")
    case({**q, "l.0.q.weight": base["l.0.q.weight"]}, {}, "error[MISMATCH]", "is updated and replaced")
    case({"head.weight": torch.ones(5, 6)}, {}, "error[MISMATCH]", "is [5, 6], but 'head.weight' is [4, 6]")
    case({"x": torch.ones(1, dtype=torch.int8)}, {}, "error[UNSUPPORTED]", "not a tensor of floating numbers")
    bad = save_adapter(folder, "bad", q, {})
    with open(os.path.join(bad, "adapter_config.json"), "w", encoding="utf-8") as file:
        file.write('{"r": 1, "r": 2}')
    check("error[JSON]" in run(tool, "merge-lora", st, bad, out, expect=2), "two keys")
    os.remove(os.path.join(bad, "adapter_config.json"))
    check("error[NOT_FOUND]" in run(tool, "merge-lora", st, bad, out, expect=2), "no configuration")
    with open(os.path.join(folder, "r1", "adapter_model.safetensors"), "r+b") as file:
        file.truncate(1000)
    check("error[" in run(tool, "merge-lora", st, os.path.join(folder, "r1"), out, expect=2), "cut off")
    check("holds no adapter" in run(tool, "merge-lora", st, out, expect=2), "no adapter")
    print("refusals: by name")


def adapter_of(path):
    with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return config, load_file(os.path.join(path, "adapter_model.safetensors"))


def product_of(config, tensors, name):
    front = f"base_model.model.{name}"
    if f"{front}.lora_embedding_A" in tensors:
        a, b = tensors[f"{front}.lora_embedding_A"].double(), tensors[f"{front}.lora_embedding_B"].double()
    else:
        a, b = tensors[f"{front}.lora_A.weight"].double(), tensors[f"{front}.lora_B.weight"].double()
    turned = config["fan_in_fan_out"] or f"{front}.lora_embedding_A" in tensors
    product = config["lora_alpha"] / config["r"] * (b @ a)
    return product.T if turned else product


def best_energy(difference, rank):
    squares = torch.linalg.svdvals(difference) ** 2
    return float(squares[:rank].sum() / squares.sum())


def extract_cases(tool, folder):
    folder = os.path.join(folder, "extract")
    os.makedirs(folder)
    torch.manual_seed(11)
    adapter, out = os.path.join(folder, "adapter"), os.path.join(folder, "merged.safetensors")

    def extract(base, tuned, *words, to=adapter):
        said = json.loads(run(tool, "extract-lora", base, tuned, to, "--force", "--json", *words))
        return {weight["name"]: weight for weight in said["weights"]}, *adapter_of(to), said

    # Differences of exactly that rank: the product is the difference, but for the rounding of weights and matrices.
    for dtype, near in ((torch.float64, 2e-7), (torch.float32, 2e-6), (torch.bfloat16, 0.05)):
        base = {"l.0.q.weight": torch.randn(150, 700), "l.0.k.weight": torch.randn(700, 150), "l.0.norm.weight": torch.randn(150)}
        base = {key: tensor.to(dtype) for key, tensor in base.items()}
        tuned = dict(base)
        for key in ("l.0.q.weight", "l.0.k.weight"):
            left, right = torch.randn(base[key].shape[0], 4), torch.randn(4, base[key].shape[1])
            tuned[key] = (base[key].double() + left.double() @ right.double()).to(dtype)
        one, other = os.path.join(folder, "base.safetensors"), os.path.join(folder, "tuned.safetensors")
        save_file(base, one)
        save_file(tuned, other)
        weights, config, tensors, said = extract(one, other, "--rank", 4, "--alpha", 7)
        check(sorted(weights) == ["l.0.k.weight", "l.0.q.weight"] and said["unchanged"] == 1, said)
        check(config["r"] == 4 and config["lora_alpha"] == 7 and config["target_modules"] == ["l.0.k", "l.0.q"], config)
        for key, weight in weights.items():
            difference = tuned[key].double() - base[key].double()
            left = difference - product_of(config, tensors, key.removesuffix(".weight"))
            error = float(left.norm() / difference.norm())
            check(error < near and abs(error - weight["error"]) <= 1e-6 * error + 1e-12, f"{key} {dtype}: {error} {weight}")
        run(tool, "merge-lora", one, adapter, out, "--force")
        got = load_file(out)
        for key, tensor in tuned.items():
            unit = 4 * torch.finfo(dtype).eps * float(torch.maximum(tensor.abs(), base[key].abs()).max())
            if dtype == torch.float64:
                unit = 1e-5  # the matrices are of float32
            apart = (got[key].double() - tensor.double()).abs().max()
            # Rounding to bfloat16 is part of the difference, and not of that rank.
            check(bool(apart <= (8 * unit if dtype == torch.bfloat16 else unit)), f"round trip {key} {dtype}: {apart} apart, {unit}")

    # Differences of full rank whose singular values fall as 1 / k and 1 / sqrt(k), and those of random numbers.
    base, tuned = {}, {}
    for name, power in (("a", 1.0), ("b", 0.5), ("c", 0.0)):
        for shape in ((300, 420), (420, 300), (30, 900)):
            key = f"{name}.{shape[0]}.weight"
            base[key] = torch.randn(*shape)
            noise = torch.randn(*shape, dtype=torch.float64)
            if power != 0:
                u, s, v = torch.linalg.svd(noise, full_matrices=False)
                noise = u @ torch.diag(torch.arange(1, len(s) + 1).double() ** -power) @ v
            tuned[key] = base[key] + noise.float()
    one = os.path.join(folder, "full-base.safetensors")
    save_file(base, one)
    torch.save({"app": {"model": tuned}, "step": 3}, os.path.join(folder, "tuned.pt"))
    ranks = os.path.join(folder, "tuned")
    run(tool, "shard", os.path.join(folder, "tuned.pt"), ranks, "--world-size", 3)
    seen = set()
    for number, (path, *words) in enumerate([(os.path.join(folder, "tuned.pt"),), (ranks, "--threads", 5), (ranks, "--max-memory", "24MiB", "--threads", 2)]):
        weights, config, tensors, said = extract(one, path, "-r", 12, *words)
        for key, weight in weights.items():
            difference = tuned[key].double() - base[key].double()
            left = difference - product_of(config, tensors, key.removesuffix(".weight"))
            error, best = float(left.norm() / difference.norm()), best_energy(difference, 12)
            check(abs(error - weight["error"]) < 1e-6, f"{key}: error {error} {weight}")
            check(abs(error ** 2 + weight["energy"] - 1) < 1e-5, f"{key}: {weight}")
            loss = {"a": 1e-5, "b": 2e-3, "c": 0.1}[key[0]]
            check(best * (1 - loss) <= weight["energy"] <= best + 1e-9, f"{key}: kept {weight['energy']} of {best}")
        with open(os.path.join(adapter, "adapter_model.safetensors"), "rb") as file:
            seen.add(file.read())
    check(len(seen) == 1, "bits differ by format, ranks, threads or memory")
    few, _, _, _ = extract(one, ranks, "-r", 12, "--passes", 1)
    many, _, _, _ = extract(one, ranks, "-r", 12, "--passes", 30)
    for key in few:
        best = best_energy(tuned[key].double() - base[key].double(), 12)
        check(few[key]["energy"] <= many[key]["energy"] + 1e-12 and many[key]["energy"] >= best * (1 - 1e-2), f"passes: {key}: {few[key]} {many[key]} {best}")

    # Embeddings, and weights [in, out].
    base = {"embed_tokens.weight": torch.randn(50, 24), "table.weight": torch.randn(40, 24), "q.weight": torch.randn(24, 36)}
    tuned = {key: tensor + torch.randn(tensor.shape[0], 3) @ torch.randn(3, tensor.shape[1]) for key, tensor in base.items()}
    one, other = os.path.join(folder, "e-base.pt"), os.path.join(folder, "e-tuned.pt")
    torch.save(base, one)
    torch.save(tuned, other)
    for words in ([], ["--fan-in-fan-out"]):
        weights, config, tensors, _ = extract(one, other, "-r", 3, "--embedding", "table.*", "--dtype", "fp32", *words)
        names = [f"base_model.model.{name}" for name in ("embed_tokens.lora_embedding_A", "embed_tokens.lora_embedding_B", "q.lora_A.weight",
                                                         "q.lora_B.weight", "table.lora_embedding_A", "table.lora_embedding_B")]
        check(sorted(tensors) == names and config["fan_in_fan_out"] == bool(words), sorted(tensors))
        for key, tensor in tuned.items():
            check(torch.allclose(base[key] + product_of(config, tensors, key.removesuffix(".weight")).float(), tensor, atol=1e-4), key)
        run(tool, "merge-lora", one, adapter, out, "--force")
        for key, tensor in load_file(out).items():
            check(torch.allclose(tensor, tuned[key], atol=1e-4), f"merged {key}")
    _, _, tensors, _ = extract(one, other, "-r", 3, "-k", "q.*", "--dtype", "bf16")
    check({t.dtype for t in tensors.values()} == {torch.bfloat16} and len(tensors) == 2, "--dtype and -k")
    extract_refusals(tool, folder, base, one)
    print("extract-lora: as torch.linalg.svd")


def extract_refusals(tool, folder, base, one):
    changed = {key: tensor + 1 for key, tensor in base.items()}
    other, out = os.path.join(folder, "other.pt"), os.path.join(folder, "refused")

    def case(tuned, *says, words=("--rank", 2), base_of=None):
        torch.save(tuned, other)
        if base_of is not None:
            torch.save(base_of, one)
        err = run(tool, "extract-lora", one, other, out, *words, expect=2)
        for word in says:
            check(word in err, f"no {word!r} in {err}")
        check(not os.path.exists(out), f"{says}: written")

    case(base, "error[MISMATCH]", "no weight differs")
    case({**changed, "q.wright": changed["q.weight"]}, "error[MISMATCH]", "lacks 'q.wright'")
    case({("q.wright" if key == "q.weight" else key): t for key, t in changed.items()}, "error[MISMATCH]", "lacks 'q.weight'", "nearest name is 'q.wright'")
    case({**changed, "q.weight": torch.ones(24, 35)}, "error[MISMATCH]", "'q.weight' is float32 [24, 35], but float32 [24, 36]")
    case({**changed, "q.weight": torch.ones(24, 36).half()}, "error[MISMATCH]", "is float16 [24, 36], but float32")
    for number, word in ((float("nan"), "NaN"), (float("inf"), "an infinite element")):
        bad = {key: tensor.clone() for key, tensor in changed.items()}
        bad["q.weight"][3, 5] = number
        case(bad, "error[UNSUPPORTED]", f"'q.weight' has {word} at [3, 5]", "--exclude 'q.weight'")
    case(changed, "error[UNSUPPORTED]", "smaller side is less than a rank of 25", "but differs", "'embed_tokens.weight'", "so do", words=("--rank", 25))
    case(changed, "error[USAGE]", "--rank", words=("--rank", 0))
    case(changed, "error[USAGE]", "--alpha", words=("--rank", 2, "--alpha", 0))
    case(changed, "error[NOT_FOUND]", words=("--rank", 2, "-k", "nothing.*"))
    for extra, says in ((torch.zeros(7), "float32 [7], not a matrix"), (torch.zeros(7, 7, dtype=torch.int64), "not floating numbers")):
        more = {**base, "q.bias": extra}
        case({**changed, "q.bias": extra + 1}, "error[UNSUPPORTED]", "'q.bias'", says, "--exclude 'q.bias'", base_of=more)
    case({**changed, "q.scale": torch.ones(4, 4)}, "not the weight of a module", base_of={**base, "q.scale": torch.zeros(4, 4)})
    case({**changed, "q.scale": torch.ones(4, 4)}, "'q.scale'", "its module has another tensor that becomes LoRA matrices", words=("--rank", 2, "--modules-to-save"))
    run(tool, "extract-lora", one, other, out, "--rank", 2, "--exclude", "q.scale", "--dry-run")
    check(not os.path.exists(out), "a dry run writes")
    print("extract-lora: refusals by name")


def peft_cases(tool, folder):
    import peft
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(30, 16)
            self.blocks = nn.ModuleList([nn.ModuleDict({"q": nn.Linear(16, 24), "k": nn.Linear(16, 8, bias=False), "c": Conv1D(20, 16)}) for _ in range(2)])
            self.head = nn.Linear(16, 5)

        def forward(self, x):
            return self.head(self.emb(x))

    for name, dtype, options in [
            ("plain", torch.float32, {"r": 8, "lora_alpha": 16, "target_modules": ["q", "k", "emb"]}),
            ("patterns", torch.float32, {"r": 8, "lora_alpha": 16, "target_modules": ["q", "k"], "use_rslora": True,
                                         "rank_pattern": {"blocks.1.q": 3}, "alpha_pattern": {"k": 5}}),
            ("fan", torch.float32, {"r": 4, "lora_alpha": 4, "target_modules": ["c"], "fan_in_fan_out": True}),
            ("saved", torch.float32, {"r": 4, "lora_alpha": 4, "target_modules": ["q"], "modules_to_save": ["head"], "bias": "lora_only"}),
            ("bfloat16", torch.bfloat16, {"r": 8, "lora_alpha": 16, "target_modules": ["q", "k"]})]:
        torch.manual_seed(5)
        model = Net().to(dtype)
        st = os.path.join(folder, f"{name}.safetensors")
        save_file(model.state_dict(), st)
        wrapped = peft.get_peft_model(model, peft.LoraConfig(init_lora_weights=False, **options))
        with torch.no_grad():
            for key, parameter in wrapped.named_parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        adapter, out = os.path.join(folder, f"peft-{name}"), os.path.join(folder, f"peft-{name}.safetensors")
        wrapped.save_pretrained(adapter)
        want = wrapped.merge_and_unload().state_dict()
        run(tool, "merge-lora", st, adapter, out)
        got = load_file(out)
        check(sorted(got) == sorted(want), f"peft {name}: keys")
        changed = 0
        for key, tensor in want.items():
            before = load_file(st)[key]
            changed += not torch.equal(before, tensor)
            # Products are added in another order there, and the update is rounded to the weight's type before it is added: about one
            # rounding of the largest partial sum, which is a few times as large as the largest element.
            unit = 4 * torch.finfo(dtype).eps * float(torch.maximum(tensor.abs(), before.abs()).max())
            check(got[key].dtype == tensor.dtype, f"peft {name}: {key}: {got[key].dtype}")
            apart = (got[key].float() - tensor.float()).abs()
            check(bool((apart <= unit).all()), f"peft {name}: {key}: {apart.max()} apart")
        check(changed > 0, f"peft {name}: nothing changed")
    for name, dtype in (("linear", torch.float32), ("bfloat16", torch.bfloat16)):
        torch.manual_seed(7)
        model = Net().to(dtype)
        base, tuned, out = (os.path.join(folder, f"x-{name}-{part}.safetensors") for part in ("base", "tuned", "merged"))
        save_file(model.state_dict(), base)
        changed = {key: tensor + 0.1 * torch.randn(tensor.shape).to(dtype) if key.endswith((".q.weight", ".k.weight", "emb.weight")) else tensor
                   for key, tensor in model.state_dict().items()}
        save_file(changed, tuned)
        adapter = os.path.join(folder, f"x-{name}")
        run(tool, "extract-lora", base, tuned, adapter, "-r", 8, "--alpha", 3, "--embedding", "emb.weight")
        run(tool, "merge-lora", base, adapter, out)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # peft warns of missing keys
            loaded = peft.PeftModel.from_pretrained(model, adapter)
        wrapped = {key.replace(".default", "").removeprefix("base_model.model.") for key in loaded.state_dict() if "lora_" in key}
        check(len(wrapped) == 10, sorted(wrapped))
        want = loaded.merge_and_unload().state_dict()
        got = load_file(out)
        check(sorted(got) == sorted(want), f"extracted {name}: keys")
        for key, tensor in want.items():
            before = load_file(base)[key]
            unit = 4 * torch.finfo(dtype).eps * float(torch.maximum(tensor.abs(), before.abs()).max())
            apart = (got[key].float() - tensor.float()).abs().max()
            check(bool(apart <= unit), f"extracted {name}: {key}: {apart} apart")
            check(torch.equal(before, changed[key]) == torch.equal(before, got[key]), f"extracted {name}: {key} changed")
    # What is no matrix: biases of modules with matrices and without, a norm, a head whose smaller side is less than the rank.
    class Normed(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(16)

    torch.manual_seed(8)
    model = Normed()
    base, tuned, out, adapter = (os.path.join(folder, f"whole-{part}") for part in ("base.safetensors", "tuned.safetensors", "out.safetensors", "adapter"))
    save_file(model.state_dict(), base)
    named = ("blocks.0.q.weight", "blocks.0.q.bias", "blocks.1.q.bias", "norm.weight", "head.weight")
    changed = {key: tensor + 0.1 * torch.randn(tensor.shape) if key in named else tensor for key, tensor in model.state_dict().items()}
    save_file(changed, tuned)
    check("'norm.weight'" in run(tool, "extract-lora", base, tuned, adapter, "-r", 6, expect=2), "no error without --modules-to-save")
    said = run(tool, "extract-lora", base, tuned, adapter, "-r", 6, "--modules-to-save")
    # norm and head as modules, with their biases, and two biases.
    check("1 weight extracted" in said and "6 tensors whole" in said, said)
    config, tensors = adapter_of(adapter)
    check((config["modules_to_save"], config["bias"], config["target_modules"]) == (["head", "norm"], "all", ["blocks.0.q"]), config)
    run(tool, "merge-lora", base, adapter, out)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        want = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict()
    got = load_file(out)
    check(sorted(got) == sorted(want), "whole: keys")
    for key, tensor in want.items():
        check(torch.allclose(got[key], tensor, atol=1e-6, rtol=1e-6), f"whole: {key}: {(got[key] - tensor).abs().max()} apart")
        check(key == "blocks.0.q.weight" or torch.equal(got[key], changed[key]), f"whole: {key} is not the trained one")
    print(f"peft {peft.__version__}: five kinds of adapters, and those that are extracted")
    tried.record("peft", "LoRA adapters", "merge-lora", "equal to its merge_and_unload up to one rounding")
    tried.record("peft", "LoRA adapters", "extract-lora", "loaded; its merge_and_unload equal to merge-lora's result up to one rounding")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--peft", action="store_true")
    parser.add_argument("--search", type=int, default=0, metavar="COUNT", help="so many random adapters of peft, and nothing else")
    parser.add_argument("--seed", type=int, default=1, help="of the first one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.search:
            lora_search.search(options.tool, folder, options.search, options.seed)
        elif options.peft:
            peft_cases(options.tool, folder)
        else:
            refusals(options.tool, folder, *numpy_cases(options.tool, folder))
            extract_cases(options.tool, folder)


if __name__ == "__main__":
    main()
