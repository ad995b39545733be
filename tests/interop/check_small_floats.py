# SPDX-License-Identifier: Apache-2.0
"""Floats of 4, 6 and 8 bits in safetensors files, and those of 8 bits in torch.save's and DCP's: the tool against safetensors, PyTorch and ml_dtypes.

    check_small_floats.py --tool PATH

Every code of F4, F6_E2M3, F6_E3M2 and F8_E8M0 in one file, whose header safetensors' own code reads as well.  Every code of PyTorch's 8-bit floats, all
NaNs and infinities among them, in a .bin and a folder of DCP.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy
import safetensors
import torch
import torch.distributed.checkpoint as dcp

# dtype in the file: bits, of ml_dtypes, of the tool, of PyTorch.
KINDS = {
    "F4": (4, ml_dtypes.float4_e2m1fn, "float4_e2m1fn_x2", torch.float4_e2m1fn_x2),
    "F6_E2M3": (6, ml_dtypes.float6_e2m3fn, "float6_e2m3fn_x4", None),
    "F6_E3M2": (6, ml_dtypes.float6_e3m2fn, "float6_e3m2fn_x4", None),
    "F8_E8M0": (8, ml_dtypes.float8_e8m0fnu, "float8_e8m0fnu", torch.float8_e8m0fnu),
}


FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def check(holds, why):
    if not holds:
        raise SystemExit(f"FAILED: {why}")


def packed(codes, bits):
    number = 0
    for place, code in enumerate(codes):
        number |= int(code) << (place * bits)
    return number.to_bytes(len(codes) * bits // 8, "little")


def file_of(kinds):
    header, data = {}, b""
    for kind in kinds:
        codes = numpy.arange(1 << KINDS[kind][0], dtype=numpy.uint8)
        part = packed(codes, KINDS[kind][0])
        header[f"m.{kind}"] = {"dtype": kind, "shape": [4, len(codes) // 4], "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def tensors_in(path):
    return {name: (one["dtype"], one["shape"], bytes(one["data"])) for name, one in safetensors.deserialize(path.read_bytes())}


def values(kind):
    codes = numpy.arange(1 << KINDS[kind][0], dtype=numpy.uint8)
    return codes.view(KINDS[kind][1]).astype(numpy.float64)


class Checks:
    def __init__(self, tool, work):
        self.path, self.work, self.passed = tool, work, 0
        self.all, self.torch = work / "all.safetensors", work / "torch.safetensors"
        self.all.write_bytes(file_of(KINDS))
        self.torch.write_bytes(file_of([kind for kind, row in KINDS.items() if row[3]]))
        self.before = tensors_in(self.all)   # which safetensors accepts

    def tool(self, *args, expect=0):
        done = subprocess.run([self.path, *map(str, args)], capture_output=True, text=True, timeout=60)
        check(done.returncode == expect, f"{args}: exit {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def inspect(self):
        found = {one["key"]: one for one in json.loads(self.tool("inspect", self.all, "--json"))["tensors"]}
        for kind, (bits, _, name, _) in KINDS.items():
            one, each = found[f"m.{kind}"], {4: 2, 6: 4, 8: 1}[bits]
            check(one["dtype"] == name and one["shape"] == [4, (1 << bits) // 4 // each], f"inspect: {one}")
            check(one["bytes"] == (1 << bits) * bits // 8, f"inspect: {one}")
        self.tool("verify", self.all)

    def convert(self):
        self.tool("convert", self.all, self.work / "again.safetensors", "--to", "safetensors")
        check(tensors_in(self.work / "again.safetensors") == self.before, "convert: other tensors")
        self.tool("diff", self.all, self.work / "again.safetensors")
        data = bytearray(self.all.read_bytes())
        data[-300] ^= 1   # of F6_E3M2
        (self.work / "flipped.safetensors").write_bytes(data)
        check("m.F6_E3M2" in self.tool("diff", self.all, self.work / "flipped.safetensors", expect=1), "diff: another tensor")

    def torch_files(self):
        for kind, refused in (("pt", "out.pt"), ("dcp", "out")):
            said = self.tool("convert", self.all, self.work / refused, "--to", kind, expect=2)
            check("float6_e2m3fn_x4, which PyTorch lacks" in said and not (self.work / refused).exists(), said)
        self.tool("convert", self.torch, self.work / "t.pt", "--to", "pt")
        self.tool("convert", self.torch, self.work / "t", "--to", "dcp")
        read = torch.load(self.work / "t.pt", weights_only=True)
        folder = {key: torch.empty_like(value) for key, value in read.items()}
        dcp.load(folder, checkpoint_id=self.work / "t", no_dist=True)
        for kind, (_, _, _, dtype) in KINDS.items():
            for tensors in (read, folder) if dtype else ():
                one = tensors[f"m.{kind}"]
                check(one.dtype == dtype and one.view(torch.uint8).numpy().tobytes() == self.before[f"m.{kind}"][2], f"{kind}: PyTorch reads {one}")
        for source in ("t.pt", "t"):
            self.tool("convert", self.work / source, self.work / f"{source}.safetensors", "--to", "safetensors")
            check(tensors_in(self.work / f"{source}.safetensors") == tensors_in(self.torch), f"{source}: other tensors than before")

    def stats(self):
        found = {one["key"]: one for one in json.loads(self.tool("stats", self.all, "--json"))["tensors"]}
        for kind in KINDS:
            want, one = values(kind), found[f"m.{kind}"]
            finite = want[numpy.isfinite(want)]
            check(one["min"] == finite.min() and one["max"] == finite.max(), f"stats: {kind}: {one}, expected {finite.min()} to {finite.max()}")
            check(one["nan"] == int(numpy.isnan(want).sum()) and one["zeros"] == int((finite == 0).sum()), f"stats: {kind}: {one}")
            check(abs(one["mean"] - finite.mean()) <= 1e-12 * abs(finite).mean(), f"stats: {kind}: {one}, expected {finite.mean()}")

    def casts(self):
        for dtype in ("float32", "bfloat16", "float16", "float64"):
            out = self.work / f"{dtype}.safetensors"
            self.tool("convert", self.all, out, "--to", "safetensors", "--dtype", dtype)
            from safetensors.torch import load_file
            for name, one in load_file(out).items():
                kind = name.removeprefix("m.")
                want = torch.from_numpy(values(kind).astype(numpy.float32)).to(getattr(torch, dtype)).reshape(4, -1)
                check(one.dtype == want.dtype and one.shape == want.shape, f"--dtype: {name}: {one.dtype} {list(one.shape)}")
                same = (one == want) & (one.signbit() == want.signbit()) | one.isnan() & want.isnan()
                check(bool(same.all()), f"--dtype {dtype}: {name}: {one[~same]}, expected {want[~same]}")

    def diff(self):
        """Figures of random codes, of numbers by ml_dtypes and of steps by the order of the codes."""
        random = numpy.random.default_rng(5)
        for kind, (bits, own, _, _) in KINDS.items():
            sides, shape = [], (3, 512)
            for name in ("a", "b"):
                codes = random.integers(0, 1 << bits, shape).astype(numpy.uint8)
                codes = numpy.minimum(codes, 254) if bits == 8 else codes
                if sides:
                    codes[random.random(shape) < 0.6] = 0
                    codes = numpy.where(codes == 0, sides[0], codes)
                sides.append(codes)
                data = packed(codes.flatten(), bits)
                header = json.dumps({"m": {"dtype": kind, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
                (self.work / name).with_suffix(".safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
            told = json.loads(self.tool("diff", self.work / "a.safetensors", self.work / "b.safetensors", "--json", expect=1))
            one = next(row for row in told["differences"] if row["key"] == "m")
            a, b = (side.view(own).astype(numpy.float64) for side in sides)
            apart, unequal = abs(a - b), sides[0] != sides[1]
            sign = 1 << (bits - 1) if bits < 8 else 256
            steps = [numpy.where(side & sign, sign - side, side) for side in (side.astype(int) for side in sides)]
            at = numpy.unravel_index(apart.argmax(), shape)
            with numpy.errstate(divide="ignore", invalid="ignore"):
                relative = numpy.nanmax(apart / abs(b))
            want = {"elements": a.size, "unequal": int(unequal.sum()), "different": int(unequal.sum()), "first": list(map(int, numpy.argwhere(unequal)[0])),
                    "max_abs": apart.max(), "max_abs_at": list(map(int, at)), "max_ulp": int(abs(steps[0] - steps[1]).max()),
                    "max_rel": None if numpy.isinf(relative) else relative}
            if want["max_rel"] is None:
                want.pop("max_rel")
            for name, value in want.items():
                check(one[name] == value, f"diff: {kind}: {name} {one[name]}, expected {value}")
            for name, value in (("norm_a", (a ** 2).sum() ** 0.5), ("norm_change", (apart ** 2).sum() ** 0.5)):
                check(abs(one[name] - value) <= 1e-12 * value, f"diff: {kind}: {name} {one[name]}, expected {value}")

    def float8_files(self):
        """stats, verify, diff and export --dequantize of every code of 8 bits."""
        codes = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
        tensors = {f"{name}.weight": codes.clone().view(getattr(torch, name)) for name in FLOAT8}
        ones = {key: torch.full((8, 32), 1.0).to(value.dtype) for key, value in tensors.items()}
        torch.save(tensors, self.work / "codes.bin")
        torch.save(ones, self.work / "ones.bin")
        dcp.save(tensors, checkpoint_id=self.work / "codes", no_dist=True)
        for path in (self.work / "codes.bin", self.work / "codes"):
            self.tool("verify", path)
            found = {one["key"]: one for one in json.loads(self.tool("stats", path, "--json"))["tensors"]}
            for key, value in tensors.items():
                want, one = value.float(), found[key]
                finite = want[want.isfinite()]
                have = (one["nan"], one["inf"], one["min"], one["max"], one["zeros"])
                check(have == (int(want.isnan().sum()), int(want.isinf().sum()), finite.min().item(), finite.max().item(), int((finite == 0).sum())),
                      f"stats: {path.name}: {key}: {one}")
            told = json.loads(self.tool("diff", path, self.work / "ones.bin", "--json", expect=1))
            for row in told["differences"]:
                want = tensors[row["key"]].float()
                check(row["nan_a"] == int(want.isnan().sum()) and row["nan_b"] == 0, f"diff: {path.name}: {row}")
                check(row["unbounded"] == int((~want.isfinite()).sum()) and row["different"] == 255, f"diff: {path.name}: {row}")
        self.tool("diff", self.work / "codes.bin", self.work / "codes")
        for name in FLOAT8[:4]:   # scales of each row, beside every code
            model = self.work / f"{name}_model"
            model.mkdir()
            scale = torch.linspace(0.5, 3, 8).reshape(8, 1)
            torch.save({"a.weight": tensors[f"{name}.weight"], "a.weight_scale": scale}, model / "pytorch_model.bin")
            weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
            config = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}
            (model / "config.json").write_text(json.dumps({"model_type": "own", "dtype": "float32", "quantization_config": config}))
            self.tool("export", model / "pytorch_model.bin", self.work / f"{name}_out", "--dequantize", "--config", model)
            from safetensors.torch import load_file
            have, want = load_file(self.work / f"{name}_out" / "model.safetensors")["a.weight"], tensors[f"{name}.weight"].float() * scale
            check(bool(((have == want) & (have.signbit() == want.signbit()) | have.isnan() & want.isnan()).all()), f"--dequantize: {name}: {have}, expected {want}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        checks = Checks(args.tool, pathlib.Path(work))
        for one in (checks.inspect, checks.convert, checks.torch_files, checks.stats, checks.casts, checks.diff, checks.float8_files):
            one()
            print(f"{one.__name__}: as safetensors, PyTorch and ml_dtypes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
