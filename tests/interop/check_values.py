# SPDX-License-Identifier: Apache-2.0
"""stats, diff and extract against PyTorch and numpy.

    check_values.py TOOL CHECKPOINT...       a CHECKPOINT is a folder of torch.distributed.checkpoint, or a torch.save file

Every checkpoint, and files of every dtype made here: the figures of `stats` equal PyTorch's in float64; `diff` finds a folder and PyTorch's
own conversion of it equal, and finds every changed element; its verdicts equal those of torch.isclose and torch.testing.assert_close on the
numbers as float64; `extract` equals PyTorch's indexing.
"""
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import numpy as np
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
INTS = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]
COMPLEX = ["complex128", "complex64"]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
failures, checks = [], 0


def check(what, ok, *details):
    global checks
    checks += 1
    if not ok:
        failures.append(what + "".join(f"\n    {d}" for d in details))


def run(tool, *args, status=(0,)):
    done = subprocess.run([tool, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode not in status:
        raise SystemExit(f"{' '.join(args)}: exit {done.returncode}\n{done.stderr}{done.stdout[-1000:]}")
    return done.stdout, done.returncode


def flat(value, prefix=""):
    """The tensors of a nested state dict by their keys in torch.distributed.checkpoint."""
    if isinstance(value, torch.Tensor):
        return {prefix: value.detach()}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {k: t for name, v in items for k, t in flat(v, f"{prefix}.{name}" if prefix else str(name)).items()}


def dense(tensors):
    return {k: t.resolve_conj().resolve_neg().contiguous() for k, t in tensors.items()
            if t.layout == torch.strided and not t.is_quantized and not t.is_nested and t.device.type == "cpu"}


def raw(tensor):
    """Returns its bytes; `contiguous` ignores odd strides of tensors with one element."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten().view(torch.uint8)


def name_of(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def near(a, b, scale, tolerance):
    return a == b or (a is not None and b is not None and abs(a - b) <= tolerance * max(abs(scale), abs(b)))


def check_stats(tool, path, tensors):
    found = {t["key"]: t for t in json.loads(run(tool, "stats", path, "--json")[0])["tensors"]}
    check(f"stats {path}: keys", set(found) == set(tensors), sorted(set(found) ^ set(tensors))[:5])
    for key, tensor in tensors.items():
        s, where = found.get(key), f"stats {path}: {key} ({name_of(tensor)})"
        if s is None or name_of(tensor).startswith(("float4", "bits")):
            continue
        if tensor.is_complex():
            x = tensor.to(torch.complex128)
            good = torch.isfinite(torch.view_as_real(x)).all(-1)
            nan = torch.isnan(torch.view_as_real(x)).any(-1)
            check(where + " counts", [s["zeros"], s["nan"], s["inf"]] ==
                  [int((x == 0).sum()), int(nan.sum()), int((~good & ~nan).sum())], s)
            rms = x[good].abs().square().mean().sqrt().item() if good.any() else None
            check(where + " rms", near(s["rms"], rms, 0, 1e-12), s["rms"], rms)
            continue
        x = tensor.to(torch.float64)
        good = torch.isfinite(x)
        f = x[good]
        check(where + " counts", [s["zeros"], s["nan"], s["positive_inf"], s["negative_inf"]] ==
              [int((x == 0).sum()), int(x.isnan().sum()), int(x.isposinf().sum()), int(x.isneginf().sum())], s)
        if f.numel() == 0:
            check(where + " nothing finite", all(s[n] is None for n in ("min", "max", "mean", "std", "rms")), s)
            continue
        exact = tensor.numpy() if name_of(tensor) in INTS else f.numpy()
        check(where + " extremes", [s["min"], s["max"]] == [exact.min().item(), exact.max().item()], s)
        mean, size = math.fsum(f.flatten().tolist()) / f.numel(), f.abs().max().item()
        std = f.std().item() if f.numel() > 1 else None
        check(where + " mean", near(s["mean"], mean, size, 1e-14), s["mean"], mean)
        check(where + " std", near(s["std"], std, size, 1e-11), s["std"], std)
        check(where + " rms", near(s["rms"], f.square().mean().sqrt().item(), size, 1e-12), s["rms"])


def check_extract(tool, path, tensors, work, random):
    for key, tensor in tensors.items():
        name, where = name_of(tensor), f"extract {path}: {key} ({name_of(tensor)})"
        parts = []
        for size in tensor.shape:
            a, b = sorted(int(n) for n in random.integers(-size - 1, size + 2, 2))
            choices = [f"{a}:{b}", ":", f"{a}::{random.integers(1, 4)}", f":{b}:2"]
            if size:
                choices.append(str(random.integers(-size, size)))
            parts.append(choices[random.integers(len(choices))])
        text = ",".join(parts) if parts else "..."
        if len(parts) > 1 and random.integers(3) == 0:
            text = "...," + parts[-1]
        want = eval(f"tensor[{text}]", {"tensor": tensor})                # pylint: disable=eval-used
        out = os.path.join(work, "x.pt")
        run(tool, "extract", path, f"{key}[{text}]", out, "--force", "--no-sync", "-q")
        got = torch.load(out, weights_only=True)
        check(f"{where} [{text}] .pt", got.dtype == want.dtype and got.shape == want.shape and torch.equal(raw(got), raw(want)))
        npy, cast = os.path.join(work, "x.npy"), []
        if name.startswith("float8") or name == "bfloat16":
            cast, want = ["--dtype", "float32"], want.to(torch.float32)
        if name.startswith(("bits", "float4")) or name == "complex32":
            run(tool, "extract", path, key, npy, "--force", status=(2,))
            continue
        run(tool, "extract", path, f"{key}[{text}]", npy, "--force", "--no-sync", "-q", *cast)
        loaded = np.load(npy)
        check(f"{where} [{text}] .npy", loaded.dtype == want.numpy().dtype and loaded.shape == tuple(want.shape) and
              loaded.tobytes() == want.numpy().tobytes(), loaded.shape, want.shape)
        if want.numel() <= 1000 and not want.is_complex():
            elements = json.loads(run(tool, "extract", path, f"{key}[{text}]", "--json")[0])["elements"]
            again = np.array([float(e.replace("Infinity", "inf")) if isinstance(e, str) else e for e in elements], dtype=want.numpy().dtype)
            check(f"{where} [{text}] JSON", np.array_equal(again, want.numpy().flatten(), equal_nan=again.dtype.kind == "f"))


def random_tensor(name, shape, generator):
    dtype = getattr(torch, name)
    if name in FLOATS:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(dtype)
    if name in COMPLEX:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if name == "bool":
        return torch.rand(shape, generator=generator) < 0.3
    info = np.iinfo(name)
    return torch.from_numpy(np.random.default_rng(3).integers(info.min, info.max, shape, dtype=name, endpoint=True))


def every_dtype(generator):
    made = {}
    for name in FLOATS + INTS + COMPLEX + ["complex32"]:
        for shape in [(), (0, 3), (1,), (37, 41), (4097,), (3, 5, 700)]:
            tensor = random_tensor("complex64", shape, generator).to(torch.complex32) if name == "complex32" else random_tensor(name, shape, generator)
            made[f"{name}.{'x'.join(map(str, shape)) or 'scalar'}"] = tensor
        if name in FLOATS:
            special = [math.nan, 1, 0, -0.0, 2, 0.25] + ([math.inf, -math.inf, math.inf] if name in FLOATS[:4] or name == "float8_e5m2" else [])
            made[f"{name}.special"] = torch.tensor(special * 700, dtype=torch.float64).to(getattr(torch, name))
            made[f"{name}.nan"] = torch.full((5,), math.nan, dtype=torch.float64).to(getattr(torch, name))
    made["float32.offset"] = 1e4 + torch.randn(300_000, generator=generator) * 1e-2
    made["float64.large"] = torch.randn(5000, generator=generator, dtype=torch.float64) * 1e100
    made["float32.constant"] = torch.full((100_000,), 0.1)
    return made


def mutations(tensor, generator):
    """The tensor with other elements, by the name of the change."""
    yield "same", tensor.clone()
    if tensor.numel() == 0:
        return
    at = tensor.numel() // 2
    if name_of(tensor) in FLOATS[:4] or tensor.is_complex():
        for scale in (1e-9, 1e-7, 1e-5, 1e-3, 1e-1):
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * scale
            yield f"noise{scale}", (tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) * (1 + noise)).to(tensor.dtype)
        one = tensor.flatten().clone()
        one[at] = math.nan
        yield "nan", one.reshape(tensor.shape)
        one[at] = math.inf
        yield "inf", one.reshape(tensor.shape)
        if not tensor.is_complex():
            yield "negated_zero", torch.where(tensor == 0, -tensor, tensor)
    else:
        bits = tensor.flatten().view(torch.uint8).clone()
        bits[at * tensor.element_size()] ^= 1
        yield "bit", bits.view(tensor.dtype).reshape(tensor.shape)


def wide(tensor):
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def unequal_bits(a, b):
    size = a.element_size()
    x, y = (raw(t).reshape(-1, size) for t in (a, b))
    return (x != y).any(1)


def ulp(a, b):
    if name_of(a) not in FLOATS[:4]:
        return None
    def ordered(t):
        bits = t.flatten().view(BITS[t.element_size()]).to(torch.int64)
        limit = -(1 << (8 * t.element_size() - 1))
        return torch.where(bits < 0, limit - bits, bits)
    keep = torch.isfinite(a.flatten()) & torch.isfinite(b.flatten()) & unequal_bits(a, b)
    apart = (ordered(a) - ordered(b)).abs()[keep]
    return int(apart.max()) if apart.numel() else 0


def check_diff(tool, a_tensors, generator, work):
    a, b = {}, {}
    for key, tensor in a_tensors.items():
        if name_of(tensor) == "complex32":
            continue
        for change, other in mutations(tensor, generator):
            a[f"{key}.{change}"], b[f"{key}.{change}"] = tensor, other
    paths = [os.path.join(work, n) for n in ("a.pt", "b.pt")]
    torch.save(a, paths[0])
    torch.save(b, paths[1])
    defaults = torch.testing._comparison.default_tolerances                # pylint: disable=protected-access
    modes = {
        "exact": ([], None),
        "numbers": (["--atol", "0"], lambda x: (0, 0, False)),
        "tolerance": (["--atol", "1e-6", "--rtol", "1e-4"], lambda x: (1e-4, 1e-6, False)),
        "nan-equal": (["--rtol", "1e-4", "--nan-equal"], lambda x: (1e-4, 0, True)),
        "close": (["--close"], lambda x: (*defaults(x), False)),
    }
    for mode, (options, tolerance) in modes.items():
        out, status = run(tool, "diff", *paths, "--json", *options, status=(0, 1))
        report = json.loads(out)
        found = {d["key"]: d for d in report["differences"]}
        check(f"diff {mode}: status", status == (1 if found else 0) and report["same"] == (not found))
        check(f"diff {mode}: all compared", report["tensors"] == len(a))
        for key in a:
            x, y, where = a[key], b[key], f"diff {mode}: {key}"
            unequal = unequal_bits(x, y)
            beyond = unequal
            if tolerance and name_of(x) in ("int64", "uint64"):
                rtol, atol, _ = tolerance(x)
                exact = [t.flatten().numpy().astype(object) for t in (x, y)]
                beyond = torch.tensor([abs(m - n) > atol + rtol * abs(n) for m, n in zip(*exact)], dtype=torch.bool)
            elif tolerance:
                rtol, atol, equal_nan = tolerance(x)
                close = torch.isclose(wide(x), wide(y), rtol=rtol, atol=atol, equal_nan=equal_nan).flatten()
                beyond = unequal & ~close
            d = found.get(key)
            count = int(beyond.sum())
            check(where + " verdict", (d["different"] if d else 0) == count, d, count)
            if mode == "close" and name_of(x) in FLOATS[:4] + COMPLEX and not torch.isnan(wide(x)).any():
                try:
                    torch.testing.assert_close(wide(x), wide(y), rtol=tolerance(x)[0], atol=tolerance(x)[1])
                    verdict = True
                except AssertionError:
                    verdict = False
                check(where + " assert_close", (d is None) == verdict)
            if not d or d["different"] != count:
                continue
            first = np.unravel_index(int(torch.nonzero(beyond)[0]), x.shape) if x.dim() else ()
            check(where + " first", d["first"] == [int(i) for i in first], d["first"], first)
            check(where + " unequal", d["unequal"] == int(unequal.sum()))
            if name_of(x) not in ("int64", "uint64"):
                apart = (wide(x) - wide(y)).abs().flatten()
                apart = apart[~torch.isnan(apart)]
                most = apart.max().item() if apart.numel() else 0
                check(where + " max abs", d["max_abs"] == (most if math.isfinite(most) else None) or
                      (x.is_complex() and near(d["max_abs"], most, 0, 1e-14)), d["max_abs"], most)
            check_norms(where, d, x, y)
            check(where + " max ulp", ulp(x, y) is None or d["max_ulp"] == ulp(x, y), d["max_ulp"], ulp(x, y))


def norms(x, y):
    """The norms of x and of y - x over the pairs that are both finite; how many other pairs have unequal bits."""
    a, b = (wide(t).flatten().numpy() for t in (x, y))
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    apart = b - a
    if name_of(x) in ("int64", "uint64"):
        apart = (y.flatten().numpy().astype(object) - x.flatten().numpy().astype(object)).astype(np.float64)
    return np.linalg.norm(a), np.linalg.norm(apart), int((unequal_bits(x, y).numpy() & ~finite).sum())


def quotient(apart, size):
    """As JSON has it: infinite is null."""
    return 0 if apart == 0 else apart / size if size else None


def check_norms(where, d, x, y):
    size, apart, unbounded = norms(x, y)
    close = lambda name, wanted: near(d[name], wanted, 0, 1e-12)
    check(where + " norms", close("norm_a", size) and close("norm_change", apart), d, size, apart)
    check(where + " relative change", close("relative", quotient(apart, size)), d, size, apart)
    check(where + " pairs without a distance", d["unbounded"] == unbounded, d, unbounded)


def check_ranking(tool, generator, work):
    """The order of tensors, and the changes of modules and layers, are those of numpy's norms."""
    a, b = {}, {}
    for layer in range(12):
        for part, shape in ("attn.q.weight", (30, 50)), ("attn.q.bias", (30,)), ("norm.weight", (50,)):
            key, scale = f"model.layers.{layer}.{part}", 10.0 ** -torch.randint(0, 6, (), generator=generator).item()
            a[key] = torch.randn(shape, generator=generator)
            b[key] = a[key] + scale * torch.randn(shape, generator=generator)
    a["model.emb.weight"] = torch.randn(3000, 7, generator=generator)      # equal but for one element, in the last group
    b["model.emb.weight"] = a["model.emb.weight"].clone()
    b["model.emb.weight"][-1, -1] += 3
    a["model.layers.4.zero"], b["model.layers.4.zero"] = torch.zeros(5), torch.ones(5)
    a["model.layers.5.same"] = b["model.layers.5.same"] = torch.full((9,), 1e3)
    b["model.layers.7.norm.weight"][3] = math.nan
    paths = [os.path.join(work, n) for n in ("a.pt", "b.pt")]
    torch.save(a, paths[0])
    torch.save(b, paths[1])

    def expected(keys):
        found = [norms(a[k], b[k]) for k in keys]
        size, apart = (math.sqrt(math.fsum(n[i] ** 2 for n in found)) for i in (0, 1))
        return sum(n[2] for n in found) != 0, apart / size if size else math.inf

    report = json.loads(run(tool, "diff", *paths, "--json", status=(1,))[0])
    wanted = sorted((k for k in a if not torch.equal(a[k], b[k])), key=lambda k: expected([k]), reverse=True)
    check("diff: largest relative change first", [d["key"] for d in report["differences"]] == wanted,
          [d["key"] for d in report["differences"]], wanted)
    by_size = sorted(wanted, key=lambda k: (expected([k])[0], (a[k] - b[k]).double().nan_to_num().abs().max().item()), reverse=True)
    report = json.loads(run(tool, "diff", *paths, "--json", "--sort", "absolute", status=(1,))[0])
    check("diff --sort absolute", [d["key"] for d in report["differences"]] == by_size)
    for unit, name in ("module", lambda k: k.rpartition(".")[0]), ("layer", lambda k: ".".join(k.split(".")[:3 if ".layers." in k else 2])):
        groups = {}
        for key in a:
            groups.setdefault(name(key), []).append(key)
        report = json.loads(run(tool, "diff", *paths, "--json", "--by", unit, status=(1,))[0])
        wanted = sorted((g for g in groups if any(not torch.equal(a[k], b[k]) for k in groups[g])), key=lambda g: expected(groups[g]), reverse=True)
        check(f"diff --by {unit}: order", [g["name"] for g in report["groups"]] == wanted, report["groups"], wanted)
        for group in report["groups"]:
            keys = groups.get(group["name"], [])
            change = expected(keys)[1] if keys else None
            check(f"diff --by {unit}: {group['name']}", near(group["relative"], None if change == math.inf else change, 0, 1e-12) and group["tensors"] == len(keys) and
                  group["elements"] == sum(a[k].numel() for k in keys) and group["changed"] == sum(not torch.equal(a[k], b[k]) for k in keys) and
                  group["different"] == sum(int((a[k] != b[k]).sum()) for k in keys), group, change)
        lines = run(tool, "diff", *paths, "--by", unit, status=(1,))[0].splitlines()
        check(f"diff --by {unit}: rows in a pipe", [line.split()[0] for line in lines[1:-1]] == wanted, lines)


def check_changed(tool, path, state, tensors, work, random):
    """PyTorch's own conversion is equal; with one element changed, exactly that one differs."""
    full = os.path.join(work, "full.pt")
    torch.save(state, full)
    out, status = run(tool, "diff", path, full, "--json", status=(0, 1))
    check(f"diff {path}: PyTorch's conversion is the same", status == 0, out[-500:])
    keys = [k for k, t in tensors.items() if t.numel() and name_of(t) in FLOATS[:4]]
    if not keys:
        return
    key = keys[random.integers(len(keys))]
    at = int(random.integers(tensors[key].numel()))
    tensors[key].view(-1)[at] += 1                                        # shares memory with `state`
    torch.save(state, full)
    found = json.loads(run(tool, "diff", full, path, "--json", status=(1,))[0])["differences"]
    place = [int(i) for i in np.unravel_index(at, tensors[key].shape)] if tensors[key].dim() else []
    check(f"diff {path}: one element of {key}", key in [d["key"] for d in found] and
          all(d["different"] == 1 and d["first"] == place for d in found if d["key"] == key), found)


def main():
    tool, *paths = sys.argv[1:]
    generator = torch.Generator().manual_seed(1)
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as work:
        made = every_dtype(generator)
        path = os.path.join(work, "made.pt")
        torch.save(made, path)
        check_stats(tool, path, made)
        check_extract(tool, path, made, work, random)
        check_diff(tool, {k: t for k, t in made.items() if t.numel() < 5000}, generator, work)
        check_ranking(tool, generator, work)
        for path in paths:
            if os.path.isdir(path):
                full = os.path.join(work, "by_pytorch.pt")
                dcp_to_torch_save(path, full)
                state = torch.load(full, weights_only=False)
            else:
                state = torch.load(path, weights_only=False)
            tensors = dense(flat(state))
            check_stats(tool, path, tensors)
            some = list(tensors)[:: max(1, len(tensors) // 12)]
            check_extract(tool, path, {k: tensors[k] for k in some}, work, random)
            if os.path.isdir(path):
                check_changed(tool, path, state, tensors, work, random)
    print("\n".join(failures[:40]))
    print(f"{checks} checks, {len(failures)} failures, torch {torch.__version__}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
