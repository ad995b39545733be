#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `fsdp-ckpt average` with NumPy, bit by bit, on checkpoints that PyTorch and safetensors wrote.

    check_arithmetic.py --tool PATH

Elements are random bits: every kind of number, NaN, infinities, numbers below the normal ones, both zeros.  NumPy does each step of
Note [order of a sum] (formats/changes/arithmetic/weighted_sum.h) by itself; the last cast is PyTorch's.
"""
import argparse
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
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from ranks import run_ranks
from tool_run import Failure, check, run

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
SHAPES = {"rows": (37, 29), "long": (200003,), "cube": (5, 1, 7), "empty": (0, 4), "one": ()}
MIXED = [torch.float32, torch.bfloat16, torch.float64]   # the dtypes of one key in the three inputs


def random_bits(dtype, shape, random):
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    tensor = torch.from_numpy(random.integers(0, 256, count * size, dtype=np.uint8)).view(dtype)
    # Most bits of wide types make numbers far apart: some are of one size, so that additions round.
    if dtype in (torch.float32, torch.float64):
        near = torch.from_numpy(random.standard_normal(count)).to(dtype)
        tensor = torch.where(torch.from_numpy(random.random(count) < 0.8), near, tensor)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])
    if count > 40 and dtype != torch.float8_e8m0fnu:
        for at in range(0, 40):
            tensor[at] = special[random.integers(5)].to(dtype)
    return tensor.reshape(shape)


def make_state(number, random):
    state = {}
    for dtype in DTYPES:
        name = str(dtype).split(".")[1]
        for shape_name, shape in SHAPES.items():
            state[f"{name}.{shape_name}"] = random_bits(dtype, shape, random)
    state["mixed"] = random_bits(MIXED[number % 3], (11, 3), random)
    state["steps_seen"] = torch.arange(5)
    return state


def save_rank(rank, world, path, state, dim):
    mesh = init_device_mesh("cpu", (world,))
    local = {}
    for key, tensor in state.items():
        if tensor.dim() <= dim or tensor.numel() == 0 or not tensor.is_floating_point():
            local[key] = tensor
            continue
        chunks = list(tensor.view(torch.uint8 if tensor.element_size() == 1 else tensor.dtype).chunk(world, dim))
        shape = list(chunks[0].shape)
        shape[dim] = 0
        chunks += [chunks[0].new_empty(shape)] * (world - len(chunks))
        part = chunks[rank].contiguous().view(tensor.dtype)
        local[key] = DTensor.from_local(part, mesh, [Shard(dim)], run_check=False, shape=tensor.shape, stride=tensor.stride())
    dcp.save({"model": local, "note": "same"}, checkpoint_id=path)


def write_inputs(folder, states):
    """One state dict as a torch.save file, one as safetensors, others as folders of 2 and 3 ranks."""
    paths = []
    for i, state in enumerate(states):
        if i % 4 == 0:
            paths.append(os.path.join(folder, f"{i}.pt"))
            torch.save({"model": state, "note": "same"}, paths[-1])
        elif i % 4 == 1:
            paths.append(os.path.join(folder, f"{i}.safetensors"))
            save_file({f"model.{key}": tensor for key, tensor in state.items()}, paths[-1])
        else:
            paths.append(os.path.join(folder, f"{i}.ranks"))
            run_ranks(i % 4, save_rank, paths[-1], state, i % 4 - 2)
    return paths


def as_numpy(tensor, wide):
    """The elements in the accumulator's type: exact, but for float64 to float32."""
    if tensor.dtype == torch.float64:
        return tensor.numpy().astype(wide)
    return tensor.to(torch.float32).numpy().astype(wide)


def reference(tensors, weights, divisor, wide, dtype):
    with np.errstate(all="ignore"):
        total = None
        for tensor, weight in zip(tensors, weights):
            product = wide(weight) * as_numpy(tensor, wide)
            total = product if total is None else total + product
        if divisor is not None:
            total = total / wide(divisor)
    total = np.asarray(total, wide)
    return torch.from_numpy(total).to(dtype), torch.from_numpy(np.isnan(total).reshape(-1))


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def flat(state):
    return {key[len("model."):]: tensor for key, tensor in state.items()}


def read(path):
    if path.endswith(".safetensors"):
        return flat(load_file(path))
    if os.path.isdir(path):
        whole = path + ".pt"
        dcp_to_torch_save(path, whole)
        path = whole
    state = torch.load(path, weights_only=True)
    return state["model"] if "model" in state else flat(state)


def compare(got, states, weights, divisor, wide, dtype=None):
    check(sorted(got) == sorted(states[0]), f"keys: {sorted(set(got) ^ set(states[0]))}")
    for key, tensor in states[0].items():
        if not tensor.is_floating_point():
            check(torch.equal(got[key], tensor), key)
            continue
        want, nan = reference([state[key] for state in states], weights, divisor, wide, dtype or tensor.dtype)
        check(got[key].dtype == want.dtype and got[key].shape == want.shape, f"{key}: {got[key].dtype} {got[key].shape}")
        # PyTorch's cast of a NaN depends on how it is vectorized (docs/numerics.md); here there is one NaN.
        check(bits(got[key]).reshape(-1, want.element_size())[nan].unique(dim=0).shape[0] <= 1, f"{key}: several NaN")
        other = (bits(got[key]) != bits(want)).reshape(-1, want.element_size()).any(1)
        differ = torch.where(nan, ~got[key].to(torch.float32).reshape(-1).isnan(), other).nonzero()
        if len(differ):
            at = int(differ[0])
            inputs = [state[key].reshape(-1)[at] for state in states]
            raise Failure(f"{key}: element {at} of {len(differ)}: {got[key].reshape(-1)[at]}, NumPy {want.reshape(-1)[at]}, from {inputs}")


def sums(tool, folder, paths, states):
    """Every way to add up, into every format."""
    out = lambda name: os.path.join(folder, name)  # noqa: E731
    values = ["-k", "model.**"]
    count = 0
    for name, options, weights, divisor, wide, dtype in [
            ("mean.pt", [], [1, 1, 1], 3, np.float32, None),
            ("mean64.safetensors", ["--accumulate", "float64"], [1, 1, 1], 3, np.float64, None),
            ("task.pt", ["--weights=1,0.7,-0.7"], [1, 0.7, -0.7], None, np.float32, None),
            ("task64.ranks", ["--weights=1,0.7,-0.7", "--accumulate", "float64", "--to", "dcp", "-w", "3"], [1, 0.7, -0.7], None, np.float64, None),
            ("normal.safetensors", ["--weights=3,0.1,1e-3", "--normalize"], [3, 0.1, 1e-3], 3 + 0.1 + 1e-3, np.float32, None),
            ("bf16.pt", ["--dtype", "bf16"], [1, 1, 1], 3, np.float32, torch.bfloat16),
            ("wide.pt", ["--dtype", "fp64", "--accumulate", "float64", "--weights=-0.1,1e300,0"], [-0.1, 1e300, 0], None, np.float64, torch.float64),
            ("ranks", ["--to", "dcp", "-w", "2"], [1, 1, 1], 3, np.float32, None)]:
        run(tool, "average", *paths, out(name), *options, *values)
        compare(read(out(name)), states, weights, divisor, wide, dtype)
        count += 1
    # Threads, memory and the cuts of the inputs do not matter.
    for threads, memory in ((1, "16MiB"), (7, "16MiB"), (3, "200MiB")):
        run(tool, "average", *paths, out("again.pt"), "--force", "--threads", threads, "--max-memory", memory, *values)
        with open(out("again.pt"), "rb") as a, open(out("mean.pt"), "rb") as b:
            check(a.read() == b.read(), f"{threads} threads, {memory}: other bytes")
        count += 1
    # Every output that has no Python reader of its own here, by way of the tool's.
    run(tool, "average", *paths, out("mean.h5"), *values)
    run(tool, "diff", out("mean.h5"), out("mean.pt"))
    print(f"sums: {count} outputs of {len(states[0])} tensors are NumPy's")


def many(tool, folder, random):
    """Nine inputs; lengths around those that are added up and read at a time."""
    lengths = [1, 7, 2047, 2048, 2049, 65535, 65536, 65537, 131072]
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
    states = [{f"{dtype}.{length}": random_bits(dtype, (length,), random) for dtype in dtypes for length in lengths} for _ in range(9)]
    paths = [os.path.join(folder, f"many{i}.{('safetensors', 'pt')[i % 2]}") for i in range(9)]
    for state, path in zip(states, paths):
        (save_file if path.endswith(".safetensors") else torch.save)(state, path)
    weights = [1, 0.5, -0.25, 3, 0.1, 1e-3, -7, 0.7, 2]
    for wide, divisor, options in [(np.float32, 9, []), (np.float64, 9, ["--accumulate", "float64"]),
                                   (np.float32, None, ["--weights=" + ",".join(map(str, weights))])]:
        out = os.path.join(folder, "many.pt")
        run(tool, "average", *paths, out, *options, "--force", "--drop-values")
        compare(torch.load(out, weights_only=True), states, weights if divisor is None else [1] * 9, divisor, wide)
    print(f"many: {len(paths)} inputs, {len(states[0])} tensors")


def refusals(tool, folder):
    """What does not fit together is named, and nothing is written."""
    a, b, out = (os.path.join(folder, name) for name in ("a.pt", "b.pt", "out.pt"))

    def case(left, right, words, *options, status=2):
        torch.save(left, a)
        torch.save(right, b)
        err = run(tool, "average", a, b, out, *options, expect=status)
        for word in words if status else ():
            check(word in err, f"no {word!r} in {err}")
        check(os.path.exists(out) == (status == 0), f"{words}: written")
        if status == 0:
            result = torch.load(out, weights_only=True)
            os.remove(out)
            return result
        return None

    w = torch.ones(3, 4)
    case({"enc.w": w}, {"enc.ww": w}, ["error[MISMATCH]", "b.pt: lacks 'enc.w'", "float32 [3, 4]", "nearest key is 'enc.ww'"])
    case({"enc.w": w}, {"enc.w": w, "x": w}, ["error[MISMATCH]", "a.pt: lacks 'x'"])
    case({"w": w}, {"w": w[:2].clone()}, ["error[MISMATCH]", "'w' is float32 [2, 4], but float32 [3, 4]"])
    case({"w": w, "x": w}, {"w": 3, "x": w}, ["error[MISMATCH]", "'w' is a value, but float32 [3, 4]"])
    ints = {"w": w, "n": torch.tensor([1, 2]), "epoch": 3}
    case(ints, {**ints, "n": torch.tensor([1, 3])}, ["error[MISMATCH]", "'n' has other elements", "--differing"])
    case(ints, {**ints, "n": torch.tensor([1, 2], dtype=torch.int32)}, ["error[MISMATCH]", "'n' is int32 [2], but int64 [2]"])
    case(ints, {**ints, "epoch": 4}, ["error[MISMATCH]", "'epoch' has another value"])
    other = {**ints, "epoch": 4, "n": torch.tensor([7, 8])}
    first = case(ints, other, [], "--differing", "first", status=0)
    last = case(ints, other, [], "--differing", "last", status=0)
    check(first["epoch"] == 3 and first["n"].tolist() == [1, 2] and torch.equal(first["w"], w), f"first: {first}")
    check(last["epoch"] == 4 and last["n"].tolist() == [7, 8] and torch.equal(last["w"], w), f"last: {last}")
    check(list(case({"w": w, "epoch": 1}, {"w": 3 * w, "epoch": 2}, [], "-k", "w", status=0)) == ["w"], "a selection")
    case({"w": w}, {"w": w}, ["error[USAGE]", "2 checkpoints"], "--weights=1")
    case({"w": w}, {"w": w}, ["error[USAGE]", "number 2"], "--weights=1,x")
    case({"w": w}, {"w": w}, ["error[USAGE]", "add up to 0"], "--weights=1,-1", "--normalize")
    scaled = {"w": w.to(torch.float8_e4m3fn), "w_scale_inv": torch.ones(1, 1)}
    case(scaled, scaled, ["error[UNSUPPORTED]", "'w' is float8_e4m3fn with scales in 'w_scale_inv'"])
    # A flipped bit of the second input is found while it is read, and nothing is left.
    torch.save({"w": torch.full((1000,), 3.0)}, a)
    torch.save({"w": torch.full((1000,), 5.0)}, b)
    with open(b, "r+b") as file:
        data = file.read()
        file.seek(data.index(b"\x00\x00\xa0\x40" * 100) + 2000)
        file.write(b"\x01")
    check("error[ZIP_CRC]" in run(tool, "average", a, b, out, expect=2), "a flipped bit")
    check(not os.path.exists(out) and os.listdir(folder).count("out.pt") == 0, "a flipped bit: written")
    check(not [name for name in os.listdir(folder) if name.endswith(".fsdp-tmp")], "a temporary is left")
    print("refusals: named, and nothing is written")


def structure(tool, folder):
    """Nesting, tied tensors and the states of optimizers."""
    a, b, out = (os.path.join(folder, name) for name in ("s1.pt", "s2.pt", "s.pt"))
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for path, seed in ((a, 1), (b, 2)):
        torch.manual_seed(seed)
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        tied = torch.full((4,), float(seed))
        torch.save({"model": model.state_dict(), "tied": [tied, tied], "optim": optimizer.state_dict()}, path)
    run(tool, "average", a, b, out)
    got, x, y = (torch.load(path, weights_only=True) for path in (out, a, b))
    check(list(got) == ["model", "tied"] and type(got["model"]) is type(x["model"]), f"without the optimizer: {list(got)}")
    check(got["tied"][0].data_ptr() == got["tied"][1].data_ptr(), "tied tensors came apart")
    check(torch.equal(got["model"]["weight"], (x["model"]["weight"] + y["model"]["weight"]) / 2), "the mean")
    # Steps are counts: they differ, and are no weights.
    check("'optim.state.0.step' has other elements" in run(tool, "average", a, b, out, "--force", "--optimizer", expect=2), "steps")
    run(tool, "average", a, b, out, "--force", "--optimizer", "--differing", "last")
    got = torch.load(out, weights_only=True)
    state = got["optim"]["state"][0]
    check(state["step"] == y["optim"]["state"][0]["step"], "the step is the last one's")
    check(torch.equal(state["exp_avg"], (x["optim"]["state"][0]["exp_avg"] + y["optim"]["state"][0]["exp_avg"]) / 2), "exp_avg")
    check(got["optim"]["param_groups"] == y["optim"]["param_groups"], "param_groups")
    # Tied in one of them only: each key has its own sum.
    torch.save({"e": tied, "h": tied}, a)
    torch.save({"e": tied, "h": 3 * tied}, b)
    run(tool, "average", a, b, out, "--force")
    got = torch.load(out, weights_only=True)
    check(got["e"].tolist() == [2.0] * 4 and got["h"].tolist() == [4.0] * 4, f"tied in one: {got}")
    print("structure: nesting, tied tensors, optimizers")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        for begin in (0, 1, 2):   # each format is once the first
            states = [make_state(i, random) for i in range(3)]
            inner = os.path.join(folder, str(begin))
            os.makedirs(inner)
            order = [(begin + i) % 4 for i in range(3)]
            made = write_inputs(inner, [states[order.index(i)] if i in order else states[0] for i in range(4)])
            sums(options.tool, inner, [made[i] for i in order], states)
        many(options.tool, folder, random)
        refusals(options.tool, folder)
        structure(options.tool, folder)


if __name__ == "__main__":
    main()
