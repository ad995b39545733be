#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own readers and writers of S3, by fsspec (s3fs) and by s3torchconnector: they load what the tool wrote, and it reads theirs.

    check_peers.py --tool PROGRAM --data FOLDER
"""
import os
import sys
import tempfile

import commands
import server

# Before PyTorch and its clients, which read it when they are imported.
os.environ.clear()
os.environ.update(server.environment())

import fsspec   # noqa: E402
import torch   # noqa: E402
import torch.distributed.checkpoint as dcp   # noqa: E402
from s3torchconnector import S3Checkpoint, S3ClientConfig   # noqa: E402
from s3torchconnector._s3client import S3Client   # noqa: E402
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter   # noqa: E402
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter   # noqa: E402


def state():
    generator = torch.Generator().manual_seed(5)
    return {"model": {"embed.weight": torch.randn(4000, 32, generator=generator), "head.bias": torch.randn(7, generator=generator),
                      "half": torch.randn(33, 5, generator=generator).to(torch.bfloat16)},
            "optim": {"state": {"embed.weight": {"step": torch.tensor(3.0), "exp_avg": torch.randn(4000, 32, generator=generator)}},
                      "param_groups": [{"lr": 0.1, "betas": [0.9, 0.95]}]},
            "step": 17}


def blank(tree):
    """The same with other contents, which loading replaces."""
    if isinstance(tree, torch.Tensor):
        return torch.full_like(tree, 9)
    if isinstance(tree, dict):
        return {key: blank(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [blank(value) for value in tree]
    return 0


def assert_same(found, expected, at=""):
    assert type(found) is type(expected), f"{at}: {type(found)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected), at
    elif isinstance(expected, dict):
        assert list(found) == list(expected), f"{at}: {list(found)} instead of {list(expected)}"
        for key in expected:
            assert_same(found[key], expected[key], f"{at}/{key}")
    elif isinstance(expected, list):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{at}/{number}")
    else:
        assert found == expected, f"{at}: {found} instead of {expected}"


class Peers:
    """How each of the two reads and writes."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.options = {"key": server.ACCESS_KEY, "secret": server.SECRET_KEY, "endpoint_url": endpoint,
                        "client_kwargs": {"region_name": server.REGION}}
        self.config = S3ClientConfig(force_path_style=True)

    def connected(self, storage):
        """s3torchconnector's storages take no endpoint."""
        storage.fs._client = S3Client(server.REGION, endpoint=self.endpoint, s3client_config=self.config)
        return storage

    def readers(self):
        return {"fsspec": lambda at: FsspecReader(at, **self.options),
                "s3torchconnector": lambda at: self.connected(S3StorageReader(server.REGION, at, s3client_config=self.config))}

    def writers(self):
        return {"fsspec": lambda at: FsspecWriter(at, **self.options),
                "s3torchconnector": lambda at: self.connected(S3StorageWriter(server.REGION, at, s3client_config=self.config))}

    def files(self):
        """Of a torch.save file."""
        def connector(at):
            return S3Checkpoint(server.REGION, endpoint=self.endpoint, s3client_config=self.config).reader(at)
        return {"fsspec": lambda at: fsspec.open(at, "rb", **self.options).open(), "s3torchconnector": connector}


def main():
    args = commands.arguments(__doc__).parse_args()
    expected = state()

    def tool(*words):
        done = commands.run(args.tool, words, dict(os.environ))
        assert done.returncode == 0, f"{words}: {done.returncode} {done.stdout}{done.stderr}"
        return done.stdout

    with tempfile.TemporaryDirectory() as folder, server.Seaweed() as running:
        os.environ.update(server.s3_environment(running.endpoint))
        server.make_bucket(running.client(), commands.BUCKET)
        peers = Peers(running.endpoint)
        full = os.path.join(folder, "full.pt")
        torch.save(expected, full)

        for name, writer in peers.writers().items():
            at = f"s3://{commands.BUCKET}/theirs/{name}"
            dcp.save(state(), storage_writer=writer(at), no_dist=True)
            assert "sound" in tool("verify", at), at
            ours = os.path.join(folder, f"{name}.pt")
            tool("consolidate", at, ours)
            assert_same(torch.load(ours, weights_only=True), expected)
            print(f"written by {name}, read by fsdp-ckpt", flush=True)

        for ranks in (1, 3):
            at = f"s3://{commands.BUCKET}/ours/{ranks}"
            tool("shard", full, at, "-w", str(ranks))
            for name, reader in peers.readers().items():
                found = blank(expected)
                dcp.load(found, storage_reader=reader(at), no_dist=True)
                assert_same(found, expected)
        tool("convert", full, f"s3://{commands.BUCKET}/ours/full.pt")
        for name, opened in peers.files().items():
            with opened(f"s3://{commands.BUCKET}/ours/full.pt") as file:
                assert_same(torch.load(file, weights_only=True), expected)
            print(f"written by fsdp-ckpt, read by {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
