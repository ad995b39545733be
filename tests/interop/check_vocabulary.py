#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `fsdp-ckpt resize-vocab` with NumPy, bit for bit, and with what PyTorch's optimizers and Transformers make of it.

    check_vocabulary.py --tool PATH [--transformers]     with --transformers: against its resize_token_embeddings, too
"""
import argparse
import json
import os
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "support")]

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from check_edits import load, same, text_keys
from tool_run import check, run

OLD, WIDTH = 11, 6


def mean_row(table):
    """Rows are added one after the other, in float64."""
    rows = table.double().numpy().reshape(table.shape[0], -1)
    total = np.zeros(rows.shape[1])
    for row in rows:
        total = total + row
    return torch.from_numpy(total / np.float64(len(rows))).to(table.dtype)


def noise(shape, old, seed, deviation, dtype):
    """The rows behind the old ones: twelve halves of six words of SplitMix64 for each element."""
    golden = 0x9E3779B97F4A7C15

    def mix(z):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
    columns = int(np.prod(shape[1:]))
    with np.errstate(over="ignore"):
        key = mix(np.array([(seed + golden) % 2 ** 64], dtype=np.uint64))
        elements = np.arange(old * columns, shape[0] * columns, dtype=np.uint64)
        total = np.zeros(len(elements), dtype=np.int64)
        for j in range(1, 7):
            word = mix(key + (elements * np.uint64(6) + np.uint64(j)) * np.uint64(golden))
            total += (word >> np.uint64(32)).astype(np.int64) + (word & np.uint64(0xFFFFFFFF)).astype(np.int64)
    numbers = (total - 6 * 0xFFFFFFFF).astype(np.float64) * 2.0 ** -32 * deviation
    return torch.from_numpy(numbers).to(dtype).reshape((-1, *shape[1:]))


def resized(table, rows, fill, seed=0, deviation=0.02):
    if rows <= table.shape[0]:
        return table[:rows].clone()
    shape = (rows, *table.shape[1:])
    if fill == "mean":
        new = mean_row(table).reshape((1, *table.shape[1:])).expand(rows - table.shape[0], *table.shape[1:])
    elif fill == "zeros":
        new = torch.zeros((rows - table.shape[0], *table.shape[1:]), dtype=table.dtype)
    else:
        new = noise(shape, table.shape[0], seed, deviation, table.dtype)
    return torch.cat([table, new])


class Lm(torch.nn.Module):
    def __init__(self, tokens, tied):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(tokens, WIDTH)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH)])
        self.lm_head = torch.nn.Linear(WIDTH, tokens, bias=not tied)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids):
        return self.lm_head(self.layers[0](self.embed_tokens(ids)))


def trained(tokens, tied, dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    model = Lm(tokens, tied).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
    model(torch.arange(tokens) % tokens).float().square().mean().backward()
    optimizer.step()
    return model, optimizer


TABLES = ("embed_tokens.weight", "lm_head.weight", "lm_head.bias")


def expected(state, rows, names, **how):
    """`state`: {"model", "optim"}; `names`: by the optimizer's keys."""
    model = {key: resized(value, rows, **how) if key in TABLES else value for key, value in state["model"].items()}
    slots = {}
    for key, entry in state["optim"]["state"].items():
        table = names[key] in TABLES
        slots[key] = {slot: resized(value, rows, "zeros") if table and value.numel() > 1 else value for slot, value in entry.items()}
    return {**state, "model": model, "optim": {**state["optim"], "state": slots}}


def layouts(tool, folder):
    """Every layout of the optimizer, in files and folders, to all formats."""
    count = 0
    for tied in (False, True):
        model, optimizer = trained(OLD, tied)
        names = dict(enumerate(name for name, _ in model.named_parameters()))
        state = {"model": dict(model.state_dict()), "optim": optimizer.state_dict(), "step": 3}
        by_name = os.path.join(folder, f"name{tied}.pt")
        paths = [os.path.join(folder, f"id{tied}.pt"), os.path.join(folder, f"id{tied}-1")]
        torch.save(state, paths[0])
        dcp.save(state, checkpoint_id=paths[1])
        run(tool, "rekey", paths[0], by_name, "--key-by", "name")
        paths += [by_name, os.path.join(folder, f"name{tied}-3")]
        run(tool, "shard", by_name, paths[-1], "--world-size", "3")
        for path in paths:
            was = load(path)
            if not path.endswith(".pt") and "id" in os.path.basename(path):
                keys = {str(key): name for key, name in names.items()}
            else:
                keys = names if path == paths[0] else {name: name for name in names.values()}
            for rows, how in ((OLD + 5, {"fill": "mean"}), (OLD + 1, {"fill": "zeros"}), (OLD - 4, {"fill": "mean"}), (OLD, {"fill": "mean"}),
                              (OLD + 70, {"fill": "noise", "seed": 2 ** 63 - 1, "deviation": 0.3})):
                words = ["--fill", how["fill"]] + (["--seed", how["seed"], "--std", how["deviation"]] if "seed" in how else [])
                want = expected(was, rows, keys, **how)
                for to in (".pt", "-w1", "-w2"):
                    count += 1
                    out = os.path.join(folder, f"out{count}{to}")
                    said = run(tool, "resize-vocab", path, out, "--size", rows, *words, *([] if to == ".pt" else ["--to", "dcp", "-w", to[2:]]))
                    got = load(out)
                    check(f"{OLD} to {rows} tokens, in tables found by their names" in said, said)
                    file_keys = to == ".pt" and "id" in os.path.basename(path)
                    wanted = {**want, "optim": {**want["optim"], "state": {int(k): v for k, v in want["optim"]["state"].items()}}} if file_keys else want
                    same(text_keys(got) if to != ".pt" else got, text_keys(wanted) if to != ".pt" else wanted)
                    if tied and to == ".pt" and path == paths[0]:
                        check(got["model"]["embed_tokens.weight"].data_ptr() == got["model"]["lm_head.weight"].data_ptr(), "came apart")
                    check("sound" in run(tool, "verify", out), "not sound")
                    if file_keys:
                        resumed, again = trained(rows, tied, seed=5)
                        resumed.load_state_dict(got["model"])
                        again.load_state_dict(got["optim"])
                        resumed(torch.arange(rows)).square().mean().backward()
                        again.step()
    print(f"layouts: {count} results as NumPy's; PyTorch's optimizers go on with them")


def dtypes(tool, folder):
    """Many rows, so that blocks and threads share a table; every floating dtype."""
    torch.manual_seed(3)
    count = 0
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        table = (torch.randn(3001, 67, dtype=torch.float64) * 3).to(dtype)
        path = os.path.join(folder, f"{dtype}.safetensors")
        save_file({"wte.weight": table, "x": torch.ones(3001)}, path)
        for words, how in (([], {"fill": "mean"}), (["--fill", "noise"], {"fill": "noise"}), (["--fill", "noise", "--seed", "9"], {"fill": "noise", "seed": 9})):
            for threads in (1, 3):
                count += 1
                out = os.path.join(folder, f"{count}.safetensors")
                run(tool, "resize-vocab", path, out, "--size", 5003, "--table", "wte.weight", *words, "--threads", threads)
                same(dict(sorted(load_file(out).items())), {"wte.weight": resized(table, 5003, **how), "x": torch.ones(3001)})
    print(f"dtypes: {count} tables bit for bit")
    numbers = noise((200000, 1), 0, 1, 1.0, torch.float64)
    check(abs(numbers.mean()) < 0.01 and abs(numbers.std() - 1) < 0.01 and numbers.abs().max() <= 6, "noise")
    check(abs((numbers ** 4).mean() - 3) < 0.2, "noise: kurtosis")


def flattened(tool, folder):
    """torchtitan's folders: state.<name>.<slot> beside the model's keys; and factored states."""
    model, optimizer = trained(OLD, False)
    names = [name for name, _ in model.named_parameters()]
    state = dict(model.state_dict())
    state["optimizer"] = {f"state.{names[key]}.{slot}": value for key, entry in optimizer.state_dict()["state"].items() for slot, value in entry.items()}
    state["optimizer"].update({f"param_groups.{name}.lr": 0.1 for name in names})
    path, out = os.path.join(folder, "titan"), os.path.join(folder, "titan-out")
    dcp.save(state, checkpoint_id=path)
    was = load(path)
    run(tool, "resize-vocab", path, out, "--size", 13, "--to", "dcp", "-w", "2")
    got = load(out)
    want = {key: resized(value, 13, "mean") if key in TABLES else value for key, value in was.items() if key != "optimizer"}
    want["optimizer"] = {key: resized(value, 13, "zeros") if any(name in key for name in TABLES) and torch.is_tensor(value) and value.numel() > 1
                         else value for key, value in was["optimizer"].items()}
    same(text_keys(got), text_keys(want))
    rows, columns = torch.rand(OLD), torch.rand(WIDTH)
    factored = {"model": {"wte.weight": torch.rand(OLD, WIDTH)},
                "optim": {"state": {"wte.weight": {"step": 1, "exp_avg_sq_row": rows, "exp_avg_sq_col": columns}},
                          "param_groups": [{"params": ["wte.weight"], "lr": 1.0}]}}
    path, out = os.path.join(folder, "factored.pt"), os.path.join(folder, "factored-out.pt")
    torch.save(factored, path)
    run(tool, "resize-vocab", path, out, "--size", 14, "--table", "model.wte.*")
    got = load(out)["optim"]["state"]["wte.weight"]
    same(got, {"step": 1, "exp_avg_sq_row": torch.cat([rows, torch.zeros(3)]), "exp_avg_sq_col": columns})
    print("flattened and factored states")


def refusals(tool, folder):
    path, out = os.path.join(folder, "r.pt"), os.path.join(folder, "ro.pt")

    def refused(state, says, *words, size=20):
        torch.save(state, path)
        err = run(tool, "resize-vocab", path, out, "--size", size, *words, expect=2)
        for word in says:
            check(word in err, f"{words}: no {word!r} in {err}")
        check(not os.path.exists(out), f"{words}: written")
    table = torch.rand(OLD, WIDTH)
    refused({"w": table}, ["error[NOT_FOUND]", "no key has the name of an embedding", "--table GLOB"])
    refused({"wte.weight": table}, ["error[NOT_FOUND]", "did you mean 'wte.weight'?"], "--table", "wte.wieght")
    refused({"wte.weight": table, "lm_head.weight": table[:9].clone()},
            ["error[MISMATCH]", "'lm_head.weight' has 9 rows, but 'wte.weight' has 11", "--table GLOB"])
    refused({"wte.weight": table, "x.weight": torch.ones(OLD), "y.0.ids": torch.ones(OLD, 2, dtype=torch.int64)},
            ["error[MISMATCH]", "'x.weight' [11] has as many rows as 'wte.weight'", "so have 'y.0.ids'", "--table GLOB"])
    refused({"final_logits_bias": torch.ones(2, OLD)}, ["error[UNSUPPORTED]", "a table must have rows"], "--table", "final_logits_bias")
    refused({"final_logits_bias": torch.ones(OLD)}, ["error[UNSUPPORTED]", "a table must have rows"], "--table", "final_logits_bias")
    refused({"wte.weight": torch.ones(OLD, WIDTH, dtype=torch.int8)}, ["error[UNSUPPORTED]", "int8 [11, 6]", "floating numbers"])
    refused({"wte.weight": table.to(torch.float8_e4m3fn), "wte.weight_scale": torch.ones(1)}, ["error[UNSUPPORTED]", "with scales beside it"])
    refused({"wte.weight": torch.ones(0, WIDTH)}, ["error[UNSUPPORTED]", "a table must have rows"])
    bad = table.clone()
    bad[4, 2] = float("nan")
    refused({"wte.weight": bad}, ["error[UNSUPPORTED]", "'wte.weight'", "the mean of column 2 is nan"])
    bad[4, 2] = float("inf")
    refused({"wte.weight": bad}, ["the mean of column 2 is infinite"])
    run(tool, "resize-vocab", path, out, "--size", 20, "--fill", "zeros")
    os.remove(out)
    refused({"wte.weight": table.half()}, ["float16, which cannot hold numbers up to 120000"], "--fill", "noise", "--std", "20000")
    refused({"wte.weight": table}, ["error[USAGE]", "--fill noise"], "--seed", "1")
    refused({"wte.weight": table}, ["error[USAGE]", "--std"], "--fill", "noise", "--std", "0")
    refused({"wte.weight": table}, ["error[USAGE]", "--size"], size=0)
    refused({"wte.weight": table}, ["error[USAGE]", "--size"], size=2 ** 31)
    optim = {"state": {"wte.weight": {"exp_avg": torch.rand(3, 2)}}, "param_groups": [{"params": ["wte.weight"]}]}
    refused({"model": {"wte.weight": table}, "optim": optim}, ["error[SHAPE]"])
    optim = {"state": {"wte.weight": {"m": torch.ones(OLD, WIDTH, dtype=torch.uint8)}}, "param_groups": [{"params": ["wte.weight"]}]}
    refused({"model": {"wte.weight": table}, "optim": optim}, ["error[UNSUPPORTED]", "'optim.state.wte.weight.m'", "does not hold numbers"])
    optim = {"state": {}, "param_groups": [{"params": ["module.wte.weight"]}]}
    refused({"model": {"wte.weight": table}, "optim": optim}, ["error[KEY]", "is not a parameter of"])
    print("refusals: tables, fills and states")


def against_transformers(tool, folder):
    import transformers
    for tied in (False, True):
        torch.manual_seed(4)
        config = transformers.LlamaConfig(vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                                          tie_word_embeddings=tied)
        model = transformers.LlamaForCausalLM(config)
        path = os.path.join(folder, f"llama{tied}")
        model.save_pretrained(path)
        for tokens in (45, 30):
            out = os.path.join(folder, f"llama{tied}-{tokens}")
            said = run(tool, "resize-vocab", path, out, "--size", tokens, "--max-shard-size", "1GB")
            check("its vocab_size is to be" in said, said)
            with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
                settings = json.load(file)
            settings["vocab_size"] = tokens
            with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
                json.dump(settings, file)
            got, info = transformers.LlamaForCausalLM.from_pretrained(out, output_loading_info=True)
            check(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], str(info))
            theirs = transformers.LlamaForCausalLM.from_pretrained(path)
            theirs.resize_token_embeddings(tokens)
            kept = min(tokens, 37)
            for (name, a), (_, b) in zip(got.state_dict().items(), theirs.state_dict().items()):
                if a.shape[0] != tokens:
                    check(torch.equal(a, b), name)
                    continue
                check(torch.equal(a[:kept], b[:kept]), name)
                # Transformers draws new rows around the same mean, with a billionth of the old rows' covariance.
                check(a.shape == b.shape and torch.allclose(a[kept:], b[kept:], atol=1e-4), f"{name}: {a[kept:] - b[kept:]}")
            ids = torch.arange(kept)[None]
            with torch.no_grad():
                check(torch.equal(got(ids).logits[..., :kept], model(ids).logits[..., :kept]), "logits of the old tokens")
    print("transformers: as resize_token_embeddings, within the noise that it adds")


def architectures(tool, folder):
    """Tables have many names: what transformers resizes gets as many rows, and the rest stays; its class loads the result."""
    import transformers as t
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 40}
    speech = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
              "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    models = [
        (t.BertForMaskedLM, t.BertConfig(vocab_size=37, **small)),
        (t.BertForPreTraining, t.BertConfig(vocab_size=37, tie_word_embeddings=False, **small)),
        (t.RobertaForMaskedLM, t.RobertaConfig(vocab_size=37, **small)),
        (t.AlbertForMaskedLM, t.AlbertConfig(vocab_size=37, embedding_size=8, **small)),
        (t.ElectraForMaskedLM, t.ElectraConfig(vocab_size=37, embedding_size=8, **small)),
        (t.DistilBertForMaskedLM, t.DistilBertConfig(vocab_size=37, dim=16, hidden_dim=24, n_layers=1, n_heads=2, max_position_embeddings=40)),
        (t.ModernBertForMaskedLM, t.ModernBertConfig(vocab_size=37, pad_token_id=0, **small)),
        (t.T5ForConditionalGeneration, t.T5Config(vocab_size=37, **t5)),
        (t.T5ForConditionalGeneration, t.T5Config(vocab_size=37, tie_word_embeddings=False, **t5)),
        (t.BartForConditionalGeneration, t.BartConfig(vocab_size=37, **speech)),
        (t.WhisperForConditionalGeneration, t.WhisperConfig(vocab_size=37, pad_token_id=0, num_mel_bins=8, **speech)),
        (t.MambaForCausalLM, t.MambaConfig(vocab_size=37, hidden_size=16, num_hidden_layers=1, state_size=4)),
        (t.XLNetLMHeadModel, t.XLNetConfig(vocab_size=37, d_model=16, n_layer=1, n_head=2, d_inner=24)),
        (t.GPT2LMHeadModel, t.GPT2Config(vocab_size=37, n_embd=16, n_layer=1, n_head=2, n_positions=40)),
    ]
    for number, (cls, config) in enumerate(models):
        torch.manual_seed(number)
        path = os.path.join(folder, f"model{number}")
        cls(config).save_pretrained(path)
        for tokens in (45, 30):
            out = os.path.join(folder, f"model{number}-{tokens}")
            run(tool, "resize-vocab", path, out, "--size", tokens, "--max-shard-size", "1GB")
            theirs = cls.from_pretrained(path)
            theirs.resize_token_embeddings(tokens)
            theirs.config.save_pretrained(out)
            got, info = cls.from_pretrained(out, output_loading_info=True)
            check(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], f"{cls.__name__}: {info}")
            was = cls.from_pretrained(path).state_dict()
            for name, ours in got.state_dict().items():
                want = theirs.state_dict()[name]
                check(ours.shape == want.shape, f"{cls.__name__}: {name}: {list(ours.shape)} for {list(want.shape)}")
                if ours.shape == was[name].shape:
                    check(torch.equal(ours, was[name]), f"{cls.__name__}: {name}")
                    continue
                kept = (slice(None),) * (ours.dim() - 1 if name == "final_logits_bias" else 0) + (slice(0, min(tokens, 37)),)
                check(torch.equal(ours[kept], was[name][kept]), f"{cls.__name__}: {name}: rows of old tokens")
    print(f"architectures: {len(models)} models load with more and with fewer tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--transformers", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.transformers:
            against_transformers(options.tool, folder)
            architectures(options.tool, folder)
            return
        layouts(options.tool, folder)
        dtypes(options.tool, folder)
        flattened(options.tool, folder)
        refusals(options.tool, folder)


if __name__ == "__main__":
    main()
