#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch reads libfsdp's checkpoints, and libfsdp loads PyTorch's, exactly.

  python check_copies.py --program copy_checkpoint --tool fsdp-ckpt --data tests/data [--corpus FOLDER]

The program loads a checkpoint of PyTorch on some number of ranks, and saves the loaded state; PyTorch reads that, and the result must equal
what PyTorch reads from the first, to the bit.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "../../support"))

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import sample
import truth

DTYPES = [getattr(torch, name) for name in """float64 float32 float16 bfloat16 complex128 complex64 complex32 int64 int32 int16 int8
uint8 uint16 uint32 uint64 bool float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu""".split()]
# Folders of the test data and of the corpus.
GOLDEN = """2.1.2/odd 2.4.1/fsdp1 2.4.1/odd 2.11.0/dtypes 2.11.0/many_files 2.11.0/minimal 2.11.0/odd_tensors 2.11.0/protocol_2
2.11.0/shards 2.11.0/threads 2.11.0/zstd""".split()
CORPUS = """fsdp1_w3 fsdp1_hsdp_w4 fsdp1_mixed_w2 fsdp1_no_shard_w2 fsdp1_tied_w2 fsdp2_bf16_w2 fsdp2_flat_optim_w3 fsdp2_hsdp_w4
fsdp2_tp_w4 fsdp2_w4 fsdp2_wide_w3 dtensors_w3 tensors_w1""".split()


def raw(dtype, *shape):
    """Returns values of every bit pattern, if the dtype has them."""
    numel = torch.Size(shape).numel()
    if dtype == torch.bool:
        return (torch.arange(numel) % 3 == 0).reshape(shape)
    size = torch.empty((), dtype=dtype).element_size()
    return torch.randint(256, (numel * size,), dtype=torch.uint8).view(dtype).reshape(shape)


def random_shapes():
    """Few rows and many, of every number of dimensions: most ranks' parts consist of several boxes."""
    random = numpy.random.default_rng(11)
    return [tuple(int(size) for size in random.integers(1, 8, random.integers(1, 6))) for _ in range(60)]


def made_state():
    torch.manual_seed(7)
    shared = torch.randn(6, 3)
    return {
        "model": {
            "even": torch.randn(8, 3), "uneven": torch.randn(7, 2, 3), "few_rows": torch.randn(2, 5), "row": torch.randn(1, 9),
            "scalar": torch.tensor(3.5), "no_rows": torch.empty(0, 4), "no_columns": torch.empty(5, 0), "vector": torch.randn(13),
            "columns": torch.randn(4, 6).t(), "step": torch.tensor(12), "tied": shared, "tied_too": shared,
        },
        "stacks": {"experts": torch.randn(3, 5, 7), "table": torch.randn(1, 6, 4), "deep": torch.randn(2, 1, 3, 5), "one": torch.randn(1, 1, 1)},
        "shapes": {f"{at}": torch.randn(shape) for at, shape in enumerate(random_shapes())},
        "dtypes": {str(dtype): raw(dtype, 5, 3) for dtype in DTYPES},
        "optimizer": {"state": {"even": {"step": torch.tensor(4.0), "exp_avg": torch.randn(8, 3)}},
                      "param_groups": [{"params": ["even", "uneven"], "lr": 1e-3, "betas": (0.9, 0.95), "foreach": None}]},
        "list": [torch.randn(3), {"deep": [1, 2.5, "three", None, True]}, [torch.randn(2, 2)]],
        "pair": (torch.randn(3), 4), "numbers": [1, 2, 3], "empty": {}, "text": "naïve\n", "large": -2**62, "nan": float("inf"),
    }


def plain(x):
    """Removes what a folder or C++ does not keep: kinds of dicts and tensors, kinds of keys, empty dicts."""
    if isinstance(x, torch.Tensor):
        return {"dtype": str(x.dtype), "shape": list(x.shape), "sha256": truth.sha(truth.tensor_bytes(x))}
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in x.items() if not (isinstance(v, dict) and not v)}
    if isinstance(x, (list, tuple)):
        return [type(x).__name__.replace("Size", "tuple"), *map(plain, x)]
    return repr(x)


def compare(what, want, got, at=""):
    if isinstance(want, dict) and isinstance(got, dict) and "sha256" not in want:
        for key in sorted(want.keys() | got.keys()):
            if key not in want or key not in got:
                sys.exit(f"{what}: {at}/{key}: {'not expected' if key in got else 'missing'}")
            compare(what, want[key], got[key], f"{at}/{key}")
    elif want != got:
        sys.exit(f"{what}: {at}: expected {want}, found {got}")


def without(tree, path):
    """Returns a tree of plain() without the value at the path: removed from dicts, None in lists."""
    step = next((k for k in tree if path == k or path.startswith(k + ".")), None) if isinstance(tree, dict) else path.split(".")[0]
    last = step == path
    if isinstance(tree, dict):
        return {k: without(v, path[len(step) + 1:]) if k == step else v for k, v in tree.items() if not (last and k == step)}
    at = int(step) + 1   # after the name of the sequence
    return tree[:at] + [repr(None) if last else without(tree[at], path[len(step) + 1:])] + tree[at + 1:]


class Check:
    def __init__(self, args, folder):
        self.args, self.folder, self.count = args, folder, 0

    def path(self, name):
        return os.path.join(self.folder, f"{self.count}-{name}")

    def read(self, path):
        """By PyTorch."""
        if os.path.isfile(path):
            return torch.load(path, weights_only=True)
        whole = self.path("whole.pt")
        dcp_to_torch_save(path, whole)
        return torch.load(whole, weights_only=True)

    def copy(self, source, ranks, copies, out):
        done = subprocess.run([self.args.program, source, out, str(ranks), str(copies)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{source} at {ranks} ranks: status {done.returncode}\n{done.stdout}{done.stderr}")
        # Values without a counterpart in C++ are reported.
        return re.findall(r"^left out: '(.*)': .* has no counterpart here$", done.stdout, re.MULTILINE)

    def to_file(self, source, want, ranks, copies=1):
        out = self.path("out.pt")
        for key in self.copy(source, ranks, copies, out):
            want = without(want, key)
        for i in range(copies):
            name = out if i == 0 else f"{out}.{i}"
            compare(f"{source} loaded at {ranks} ranks", want, plain(torch.load(name, weights_only=True)))
        self.count += 1

    def to_folder(self, source, want, ranks, copies=1):
        out = self.path("out")
        for key in self.copy(source, ranks, copies, out):
            want = without(want, key)
        what = f"{source} saved by {ranks} ranks"
        files = sorted(os.listdir(out))
        if files != [".metadata"] + [f"__{r}_0.distcp" for r in range(ranks)] + ["fsdp_seal.json"]:
            sys.exit(f"{what}: {files}")
        compare(what, want, plain(self.read(out)))
        done = subprocess.run([self.args.tool, "verify", out], capture_output=True, text=True)
        if done.returncode != 0 or "matches its seal" not in done.stdout:
            sys.exit(f"{what}: verify says {done.returncode}\n{done.stdout}{done.stderr}")
        self.count += 1
        return out

    def load_by_dcp(self, folder, state):
        """Loads like a training script of PyTorch: into existing tensors."""
        for part in "model", "stacks", "shapes":
            empty = {key: torch.full_like(tensor, 1) for key, tensor in state[part].items()}
            dcp.load({part: empty}, checkpoint_id=folder)
            compare("dcp.load", plain(state[part]), plain(empty))


def main():
    parser = argparse.ArgumentParser()
    for name in ("program", "tool", "data"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--corpus")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        check = Check(args, folder)
        state = made_state()
        made = os.path.join(folder, "made.pt")
        torch.save(state, made)
        for ranks, copies in sample.taken([(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (3, 3), (5, 1), (6, 1), (7, 1), (8, 2), (9, 1)], first=4):
            check.to_file(made, plain(state), ranks, copies)
            saved = check.to_folder(made, plain(state), ranks, copies)
            check.load_by_dcp(saved, state)
            # Reads tensors that libfsdp cut on another number of ranks.
            check.to_file(saved, plain(state), ranks % 5 + 1)
        sources = [os.path.join(args.data, "golden", name, "ckpt") for name in GOLDEN]
        if args.corpus:
            sources += [os.path.join(args.corpus, name, "ckpt") for name in CORPUS]
        for i, source in enumerate(sample.taken(sources)):
            want = plain(check.read(source))
            check.to_file(source, want, i % 4 + 1)
            check.to_folder(source, want, (i + 2) % 4 + 1)
        print(f"{check.count} copies, each to the bit what PyTorch reads")


main()
