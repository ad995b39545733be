#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors for Python from a store: fsdp_ckpt.open and fsdp_ckpt.torch.StorageReader on s3://, against the same folder on this machine.

  python check_python.py --data tests/data      with the native part of fsdp_ckpt on PYTHONPATH
"""
import argparse
import multiprocessing
import os
import unittest
import warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

import fsdp_ckpt
import fsdp_ckpt.torch
import server

BUCKET = "checkpoints"
URL = f"s3://{BUCKET}/a folder/step-1"


def opens(url, told):
    try:
        fsdp_ckpt.open(url)
        told.put("opened")
    except fsdp_ckpt.FsdpCkptError as error:
        told.put(f"{error.code} {error.message}")


class StoreTest(unittest.TestCase):
    folder = ""

    def setUp(self):
        moto = self.enterContext(server.Moto())
        os.environ.update(server.s3_environment(moto.endpoint))
        self.client = moto.client()
        server.make_bucket(self.client, BUCKET)
        server.upload_tree(self.client, BUCKET, self.folder, "a folder/step-1")

    def test_a_store(self):
        here, there = fsdp_ckpt.open(self.folder), fsdp_ckpt.open(URL)
        self.assertEqual(list(here), list(there))
        expected, found = here.load(), there.load()
        self.assertGreater(len(found), 3)
        for key, tensor in expected.items():
            self.assertTrue(torch.equal(found[key], tensor), key)
        self.assertTrue(torch.equal(there["grid"][1:3, 1:].torch(), expected["grid"][1:3, 1:]))
        state, other = {}, {}
        for one, reader in ((state, dcp.FileSystemReader(self.folder)), (other, fsdp_ckpt.torch.StorageReader(URL))):
            _load_state_dict(one, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        self.assertEqual(list(state), list(other))
        for key, value in state.items():
            self.assertTrue(torch.equal(other[key], value) if isinstance(value, torch.Tensor) else other[key] == value, key)
        # An object that is replaced meanwhile is another one, whatever was read of the old one.
        there = fsdp_ckpt.open(URL)
        name = "__0_0.distcp"
        with open(os.path.join(self.folder, name), "rb") as file:
            data = file.read()
        self.client.put_object(Bucket=BUCKET, Key=f"a folder/step-1/{name}", Body=data[:-1] + bytes([data[-1] ^ 1]))
        with self.assertRaises(fsdp_ckpt.FsdpCkptError) as caught:
            there.load()
        self.assertEqual(caught.exception.code, "CHANGED")
        # Connections do not survive a fork.
        context = multiprocessing.get_context("fork")
        told = context.SimpleQueue()
        process = context.Process(target=opens, args=(URL, told))
        process.start()
        process.join(100)
        self.assertEqual(process.exitcode, 0)
        self.assertRegex(told.get(), "UNSUPPORTED .*spawn")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="tests/data")
    StoreTest.folder = os.path.join(parser.parse_args().data, "golden/2.11.0/shards/ckpt")
    unittest.main(argv=["check_python.py"], verbosity=2)
