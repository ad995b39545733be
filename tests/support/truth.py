# SPDX-License-Identifier: Apache-2.0
"""Describes the content of an object that PyTorch loaded, as JSON that two sides can compare.

describe(x)  a tree: container types, key order, dtype, shape and the SHA-256 of each tensor's bytes.
flat(x)      one entry per leaf, "a/b/0": {...}, in the object's own order; easy to read without Python.
diff(a, b)   the places where two trees differ, one readable line each.

Bytes of a tensor: its elements in C order, little-endian, lazy conjugation and negation resolved.
"""
import hashlib

import torch


def tensor_bytes(t):
    t = t.detach().resolve_conj().resolve_neg().contiguous().cpu()
    if t.numel() == 0:
        return b""
    return t.reshape(-1).view(torch.uint8).numpy().tobytes()


def sha(data):
    return hashlib.sha256(data).hexdigest()


def _tensor(t):
    out = {"dtype": str(t.dtype), "shape": list(t.shape)}
    if type(t) is not torch.Tensor:
        out["class"] = type(t).__name__
    if t.layout is not torch.strided:
        out["layout"] = str(t.layout)
        if t.layout is torch.sparse_coo:
            out["indices"], out["values"] = _tensor(t._indices()), _tensor(t._values())
            out["coalesced"] = t.is_coalesced()
        else:
            rows = t.layout in (torch.sparse_csr, torch.sparse_bsr)
            out["compressed"] = _tensor(t.crow_indices() if rows else t.ccol_indices())
            out["plain"] = _tensor(t.col_indices() if rows else t.row_indices())
            out["values"] = _tensor(t.values())
        return out
    if t.is_quantized:
        out["qscheme"] = str(t.qscheme())
        if t.qscheme() == torch.per_tensor_affine:
            out["scale"], out["zero_point"] = repr(t.q_scale()), t.q_zero_point()
        else:
            out["scales"], out["zero_points"] = _tensor(t.q_per_channel_scales()), _tensor(t.q_per_channel_zero_points())
            out["axis"] = t.q_per_channel_axis()
        t = t.int_repr()
    out["sha256"] = sha(tensor_bytes(t))
    return out


def _leaf(x):
    module = type(x).__module__
    if module == "numpy" and type(x).__name__ == "ndarray":
        return {"class": "numpy.ndarray", "dtype": str(x.dtype), "shape": list(x.shape), "sha256": sha(x.tobytes())}
    if isinstance(x, (set, frozenset)):
        return {"class": type(x).__name__, "value": "{" + ", ".join(sorted(map(repr, x))) + "}"}
    name = type(x).__name__ if module == "builtins" else f"{module}.{type(x).__name__}"
    return {"class": name, "value": repr(x)}


def describe(x):
    if isinstance(x, torch.Tensor):
        return _tensor(x)
    if isinstance(x, dict):
        return {"container": type(x).__name__, "items": [[repr(k), describe(v)] for k, v in x.items()]}
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        return {"container": type(x).__name__, "items": [[str(i), describe(v)] for i, v in enumerate(x)]}
    return _leaf(x)


def flat(x, prefix=""):
    if isinstance(x, torch.Tensor):
        return {prefix: _tensor(x)}
    if isinstance(x, torch.Size) or not isinstance(x, (dict, list, tuple)):
        leaf = _leaf(x)
        return {prefix: leaf if "sha256" in leaf else {"value": leaf["value"]}}
    if not x:
        return {prefix: {"empty": type(x).__name__}}
    out = {}
    for k, v in x.items() if isinstance(x, dict) else enumerate(x):
        out.update(flat(v, f"{prefix}/{k}" if prefix else str(k)))
    return out


def diff(want, got, at="", out=None):
    out = [] if out is None else out
    if want == got:
        return out
    if isinstance(want, dict) and isinstance(got, dict) and "container" in want and "container" in got:
        if want["container"] != got["container"]:
            out.append(f"{at or '(root)'}: expected a {want['container']}, found a {got['container']}")
        wk, gk = [k for k, _ in want["items"]], [k for k, _ in got["items"]]
        w, g = dict(want["items"]), dict(got["items"])
        for k in wk:
            if k not in g:
                out.append(f"{at}/{k}: missing")
            else:
                diff(w[k], g[k], f"{at}/{k}", out)
        out += [f"{at}/{k}: not expected" for k in gk if k not in w]
        if wk != gk and sorted(wk) == sorted(gk):
            out.append(f"{at or '(root)'}: order of keys: expected {wk[:12]}, found {gk[:12]}")
        return out
    out.append(f"{at}: expected {_short(want)}, found {_short(got)}")
    return out


def _short(x):
    s = str({k: v for k, v in x.items() if k != "items"} if isinstance(x, dict) else x)
    return s if len(s) < 300 else s[:300] + "..."
