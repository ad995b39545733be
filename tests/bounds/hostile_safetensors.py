# SPDX-License-Identifier: Apache-2.0
"""Hostile safetensors files, and indexes of such."""
import json
import os
import struct

from pickles import *
from registry import hostile, write


def safetensors(header, data=b""):
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(body)) + body + data


@hostile(".safetensors")
def wide_header(path):
    header = {f"k{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(14_000)}
    write(path, safetensors(header))


@hostile(".safetensors")
def deep_json(path):
    write(path, safetensors(b'{"a":' + b"[" * 450_000 + b"]" * 450_000 + b"}"))


@hostile(".safetensors")
def wide_json(path):
    write(path, safetensors(b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(70_000)) + b"}}"))


@hostile(".safetensors")
def same_names(path):
    write(path, safetensors(b"{" + b",".join(b'"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' for _ in range(15_000)) + b"}"))


@hostile(".safetensors")
def long_shape(path):
    write(path, safetensors({"a": {"dtype": "F32", "shape": [1] * 200_000, "data_offsets": [0, 4]}}, b"\0" * 4))


@hostile(".safetensors")
def big_numbers(path):
    write(path, safetensors(b'{"a":{"dtype":"F32","shape":[' + b"9" * 900_000 + b'],"data_offsets":[0,0]}}'))


@hostile(".safetensors")
def dotted_names(path):
    header = {".".join([str(i)] + ["k"] * 450): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(900)}
    write(path, safetensors(header))


@hostile(".safetensors")
def escapes(path):
    write(path, safetensors(b'{"' + b"\\u0001" * 150_000 + b'":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'))


@hostile("")
def index_json(path):
    os.makedirs(path)
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {f"k{i}": f"f{i}.safetensors" for i in range(20_000)}}, f)


@hostile("")
def index_deep(path):
    os.makedirs(path)
    write(os.path.join(path, "model.safetensors.index.json"), b'{"weight_map":' + b"[" * 900_000)


@hostile("")
def index_of_one_file(path):
    """20,000 names in one file of one tensor."""
    os.makedirs(path)
    write(os.path.join(path, "f.safetensors"), safetensors({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}))
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {f"k{i}": "f.safetensors" for i in range(20_000)}}, f)
