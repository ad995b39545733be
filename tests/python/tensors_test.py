#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors for Python (fsdp_ckpt.open, fsdp_ckpt.torch) against PyTorch's own readers.

FSDP_TEST_DATA is tests/data; FSDP_TEST_CORPUS, if it is set, is what tests/interop/make_checkpoints.py wrote.
"""
import glob
import json
import os
import shutil
import sys
import tempfile
import threading
import unittest
import warnings
from datetime import timedelta

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "interop"))   # for objects.Config in a pickle

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

import fsdp_ckpt
import fsdp_ckpt.torch

DATA = os.environ["FSDP_TEST_DATA"]
FOLDER = os.path.join(DATA, "golden/2.11.0/shards/ckpt")   # tensors in several chunks
MODEL = os.path.join(DATA, "golden/2.15.0/fsdp2/ckpt")
KEY = "app.model.emb.weight"


def folders():
    found = glob.glob(os.path.join(DATA, "golden/*/*/ckpt/.metadata"))
    if os.environ.get("FSDP_TEST_CORPUS"):
        found += glob.glob(os.path.join(os.environ["FSDP_TEST_CORPUS"], "*/ckpt/.metadata"))
    return sorted(os.path.dirname(path) for path in found)


def allowed(folder):
    name = os.path.join(os.path.dirname(folder), "truth.json")
    if not os.path.exists(name):
        return []
    with open(name, encoding="utf-8") as file:
        return json.load(file).get("allow", [])


def whole(reader):
    state = {}
    _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def differences(a, b, where=""):
    """Returns where two values differ in type, structure or a bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return [f"{where}: {a.dtype} {a.shape}, {b.dtype} {b.shape}"]
        bits = [one.contiguous().reshape(-1).view(torch.uint8) for one in (a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg())]
        return [] if torch.equal(*bits) else [f"{where}: other bits"]
    if type(a) is not type(b):
        return [f"{where}: {type(a)}, {type(b)}"]
    if isinstance(a, dict):
        if list(a) != list(b):
            return [f"{where}: keys {list(a)[:5]}, {list(b)[:5]}"]
        return [line for key in a for line in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return [f"{where}: {len(a)}, {len(b)} items"]
        return [line for at, (one, other) in enumerate(zip(a, b)) for line in differences(one, other, f"{where}.{at}")]
    if isinstance(a, numpy.ndarray):
        return [] if a.dtype == b.dtype and a.tobytes() == b.tobytes() else [f"{where}: {a}, {b}"]
    return [] if repr(a) == repr(b) else [f"{where}: {a!r}, {b!r}"]


class ReadingTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = place.name

    def saved(self, state, name="ckpt"):
        path = os.path.join(self.place, name)
        dcp.save(state, checkpoint_id=path, no_dist=True)
        return path

    def damaged(self):
        """A folder with one tensor of which one element changed, and that tensor."""
        tensor = torch.arange(4096, dtype=torch.float32).reshape(64, 64)
        path = self.saved({"w": tensor, "v": torch.ones(3)})
        name = os.path.join(path, "__0_0.distcp")
        with open(name, "rb") as file:
            data = bytearray(file.read())
        data[data.index(tensor.numpy().tobytes()) + 4000 * 4] ^= 1
        with open(name, "wb") as file:
            file.write(data)
        return path, tensor

    def test_same_bits_as_pytorch_over_the_corpus(self):
        refused = []
        seen = 0
        for folder in folders():
            try:
                expected = whole(dcp.FileSystemReader(folder))
            except (Exception, dcp.api.CheckpointException):  # of a version that this PyTorch does not read
                continue
            with self.subTest(folder):
                try:
                    found = whole(fsdp_ckpt.torch.StorageReader(folder, allow_global=allowed(folder)))
                except dcp.api.CheckpointException as error:
                    self.assertIn("which only its own library can make", str(error))
                    refused.append(folder)
                    continue
                self.assertEqual(differences(expected, found), [])
                seen += 1
        self.assertGreater(seen, 5)
        self.assertLess(len(refused), seen / 4, refused)

    def test_parts(self):
        checkpoint = fsdp_ckpt.open(FOLDER)
        expected = whole(dcp.FileSystemReader(FOLDER))
        for key in ("rows", "columns", "grid", "plain"):
            lazy, tensor = checkpoint[key], expected[key]
            self.assertEqual((lazy.shape, lazy.dtype, lazy.nbytes), (tuple(tensor.shape), "float32", tensor.nbytes))
            for index in (slice(None), slice(0, 4), (slice(1, None, 3), slice(None, None, 2)), 4, (..., -1), (slice(3, 3),), (2, 1),
                          (slice(-3, None), slice(1, -1))):
                self.assertTrue(torch.equal(lazy[index].torch(), tensor[index]), (key, index))
                self.assertTrue(numpy.array_equal(lazy[index].numpy(), tensor[index].numpy()), (key, index))
                self.assertEqual(lazy[index].shape, tuple(tensor[index].shape))
            self.assertTrue(torch.equal(lazy[1:5][2:][0].torch(), tensor[3]), "a part of a part")
            self.assertTrue(numpy.array_equal(numpy.asarray(lazy), tensor.numpy()))
            self.assertTrue(torch.equal(torch.from_dlpack(lazy), tensor))
        for wrong, kind in ((40, IndexError), ((0, 0, 0), IndexError), (slice(None, None, -1), ValueError), ("a", TypeError), (True, TypeError)):
            with self.assertRaises(kind):
                checkpoint["rows"][wrong]

    def test_numbers_that_numpy_lacks(self):
        state = {name: torch.arange(64, dtype=torch.float32).to(getattr(torch, name))
                 for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "bool", "complex64", "int64")}
        path = os.path.join(self.place, "all.pt")
        torch.save(state, path)
        checkpoint = fsdp_ckpt.open(path)
        for key, tensor in state.items():
            self.assertEqual(differences(checkpoint[key].torch(), tensor), [], key)
            self.assertEqual(checkpoint[key].numpy().tobytes(), tensor.view(torch.uint8).numpy().tobytes(), key)
            self.assertEqual(str(checkpoint[key].numpy().dtype), key)

    def test_load_fills_one_piece_of_memory(self):
        expected = {key: tensor.torch() for key, tensor in fsdp_ckpt.open(MODEL).tensors.items()}
        found = fsdp_ckpt.open(MODEL).load("app.model.**", exclude="**.bias")
        self.assertEqual(set(found), {key for key in expected if key.startswith("app.model.") and not key.endswith(".bias")})
        for key, tensor in found.items():
            self.assertEqual(differences(tensor, expected[key]), [], key)
        self.assertEqual(len({tensor.untyped_storage().data_ptr() for tensor in found.values() if tensor.numel()}), 1)
        arrays = fsdp_ckpt.open(MODEL).load(framework="numpy")
        self.assertEqual(set(arrays), set(expected))
        for key, array in arrays.items():
            self.assertEqual(array.tobytes(), expected[key].numpy().tobytes(), key)
        with self.assertRaises(KeyError):
            fsdp_ckpt.open(MODEL).load("nothing.**")

    def test_tree_is_nested_as_pytorch_has_it(self):
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
        shared = torch.ones(4)
        state = {"model": module.state_dict(), "step": 7, "list": [1, "a", (2.5, None)], "pair": (shared, shared), 3: {"big": 1 << 80, "set": {1, 2}}}
        path = os.path.join(self.place, "full.pt")
        torch.save(state, path)

        def read(value):
            if isinstance(value, (fsdp_ckpt.LazyTensor, fsdp_ckpt.HeldTensor)):
                return value.torch()
            if isinstance(value, dict):
                for key in list(value):
                    value[key] = read(value[key])
                return value
            return type(value)(map(read, value)) if type(value) in (list, tuple) else value
        found = read(fsdp_ckpt.open(path).tree())
        self.assertEqual(differences(torch.load(path), found), [])
        self.assertEqual(found["model"]._metadata, state["model"]._metadata)

    def test_keys(self):
        checkpoint = fsdp_ckpt.open(MODEL)
        self.assertIn(KEY, checkpoint)
        self.assertEqual(len(list(checkpoint)), len(checkpoint))
        with self.assertRaisesRegex(KeyError, "did you mean 'app.model.emb.weight'"):
            checkpoint["app.model.emb.weigth"]
        with self.assertRaises(fsdp_ckpt.FsdpCkptError) as raised:
            fsdp_ckpt.open(os.path.join(self.place, "nowhere"))
        self.assertEqual((raised.exception.status, raised.exception.code), (2, "NOT_FOUND"))

    def test_a_changed_bit_never_becomes_a_tensor(self):
        path, tensor = self.damaged()
        checkpoint = fsdp_ckpt.open(path)
        for read in (checkpoint["w"].numpy, checkpoint["w"][0:4].torch, lambda: checkpoint.load("w"), lambda: checkpoint["w"][0, 0].numpy()):
            with self.assertRaises(fsdp_ckpt.FsdpCkptError) as raised:
                read()
            self.assertEqual(raised.exception.code, "ZIP_CRC")
            self.assertIn("'w'", raised.exception.message)
        self.assertEqual(int((checkpoint["w"].torch(verify=False) != tensor).sum()), 1)
        self.assertTrue(torch.equal(checkpoint["v"].torch(), torch.ones(3)), "what is whole is read")
        state = {"w": torch.zeros(64, 64), "v": torch.zeros(3)}
        with self.assertRaisesRegex(dcp.api.CheckpointException, "ZIP_CRC"):
            dcp.load(state, storage_reader=fsdp_ckpt.torch.StorageReader(path), no_dist=True)
        dcp.load(state, storage_reader=fsdp_ckpt.torch.StorageReader(path, verify=False), no_dist=True)

    def test_damage_of_metadata_is_named(self):
        path, _ = self.damaged()
        os.truncate(os.path.join(path, "__0_0.distcp"), 100)
        with self.assertRaisesRegex(fsdp_ckpt.FsdpCkptError, "__0_0.distcp"):
            fsdp_ckpt.open(path)
        with self.assertRaisesRegex(dcp.api.CheckpointException, "__0_0.distcp"):
            dcp.load({"w": torch.zeros(64, 64)}, storage_reader=fsdp_ckpt.torch.StorageReader(path), no_dist=True)

    def test_nothing_of_the_file_runs(self):
        made = os.path.join(self.place, "made")

        class Runs:
            def __reduce__(self):
                return (os.mkdir, (made,))
        path = os.path.join(self.place, "bad.pt")
        torch.save({"w": torch.ones(2), "x": Runs()}, path)
        inert = fsdp_ckpt.Object(fsdp_ckpt.Name("posix.mkdir"), (made,))
        self.assertEqual(fsdp_ckpt.open(path).tree()["x"], inert)
        folder = self.saved({"w": torch.ones(2), "x": (1, Runs())})
        self.assertEqual(fsdp_ckpt.open(folder)["x"], (1, inert))
        with self.assertRaises(dcp.api.CheckpointException):
            whole(fsdp_ckpt.torch.StorageReader(folder))
        self.assertFalse(os.path.exists(made))
        state = {"w": torch.zeros(2)}
        dcp.load(state, storage_reader=fsdp_ckpt.torch.StorageReader(folder), no_dist=True)
        self.assertTrue(torch.equal(state["w"], torch.ones(2)), "what is asked for is read")

    def test_a_few_bytes_that_ask_for_much_memory(self):
        path = os.path.join(self.place, "wide.pt")
        torch.save({"w": torch.ones(1).expand(1 << 40)}, path)
        with self.assertRaises(fsdp_ckpt.FsdpCkptError) as raised:
            fsdp_ckpt.open(path).load("w")
        self.assertEqual(raised.exception.code, "LIMIT_RATIO")
        self.assertEqual(float(fsdp_ckpt.open(path)["w"][123456].numpy()), 1.0)

    def test_threads_and_a_fork(self):
        checkpoint = fsdp_ckpt.open(MODEL)
        expected = checkpoint[KEY].numpy().tobytes()
        found = []

        def read():
            found.append(checkpoint[KEY].numpy().tobytes())
            checkpoint["step"]
        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [expected] * 8)
        child = os.fork()
        if child == 0:
            os._exit(0 if checkpoint[KEY].numpy().tobytes() == expected else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_targets_of_other_kinds(self):
        weight = torch.randn(6, 8)
        path = self.saved({"w": weight, "n": torch.tensor(3)})
        state = {"w": torch.zeros(8, 6, dtype=torch.float64).t(), "n": torch.zeros((), dtype=torch.int64)}
        dcp.load(state, storage_reader=fsdp_ckpt.torch.StorageReader(path), no_dist=True)
        self.assertTrue(torch.equal(state["w"], weight.double()))
        self.assertEqual(int(state["n"]), 3)

    def test_any_format_can_be_loaded(self):
        path = os.path.join(self.place, "full.pt")
        torch.save({"w": torch.arange(6.0), "step": 4}, path)
        state = {"w": torch.zeros(6), "step": 0}
        dcp.load(state, storage_reader=fsdp_ckpt.torch.StorageReader(path), no_dist=True)
        self.assertEqual((state["w"].tolist(), state["step"]), ([0, 1, 2, 3, 4, 5], 4))


class WritingTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = os.path.join(place.name, "ckpt")
        self.temporary = os.path.join(place.name, ".ckpt.fsdp-tmp")
        self.state = {"w": torch.randn(50, 7), "step": 3, "list": [torch.ones(2), "a"]}

    def save(self, **options):
        dcp.save(self.state, storage_writer=fsdp_ckpt.torch.StorageWriter(self.path), no_dist=True, **options)

    def test_a_folder_appears_sealed(self):
        self.save()
        found = fsdp_ckpt.verify(self.path, require_seal=True, strict=True)
        self.assertEqual((found.verdict, found.seal.state, found.seal.files), ("sound", "matches", 2))
        self.assertEqual(sorted(os.listdir(self.path)), [".metadata", "__0_0.distcp", "fsdp_seal.json"])
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["ckpt"])
        expected = whole(dcp.FileSystemReader(self.path))
        self.assertEqual(differences(expected, whole(fsdp_ckpt.torch.StorageReader(self.path))), [])
        self.assertTrue(torch.equal(expected["w"], self.state["w"]))

    def test_nothing_is_replaced(self):
        os.mkdir(self.path)
        with self.assertRaisesRegex(dcp.api.CheckpointException, "EXISTS"):
            self.save()
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["ckpt"])

    def test_a_save_that_fails_leaves_no_folder_and_the_next_one_succeeds(self):
        class Fails(DefaultSavePlanner):
            def resolve_data(self, item):
                if item.index.fqn == "w":
                    raise RuntimeError("no such tensor")
                return super().resolve_data(item)
        with self.assertRaisesRegex(dcp.api.CheckpointException, "no such tensor"):
            self.save(planner=Fails())
        self.assertFalse(os.path.exists(self.path))
        self.assertTrue(os.path.exists(self.temporary))
        self.save()
        self.assertFalse(os.path.exists(self.temporary))
        self.assertTrue(fsdp_ckpt.verify(self.path, require_seal=True).sound)
        os.makedirs(os.path.join(self.temporary, "folder"))
        shutil.rmtree(self.path)
        with self.assertRaisesRegex(dcp.api.CheckpointException, "folder"):
            self.save()

    def test_seal_after_a_save(self):
        dcp.save(self.state, checkpoint_id=self.path, no_dist=True)
        self.assertEqual(len(fsdp_ckpt.torch.seal(self.path).files), 2)
        self.assertTrue(fsdp_ckpt.verify(self.path, require_seal=True).sound)


def rank_main(rank, count, place):
    os.environ["LOCAL_WORLD_SIZE"] = str(count)
    dist.init_process_group("gloo", init_method=f"file://{place}/store{count}", rank=rank, world_size=count, timeout=timedelta(seconds=120))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (count,))
    whole_tensor = torch.arange(40 * 6, dtype=torch.float32).reshape(40, 6)
    said = {}
    if count == 2:
        dcp.save({"w": distribute_tensor(whole_tensor, mesh, [Shard(0)]), "v": distribute_tensor(whole_tensor, mesh, [Shard(1)])},
                 storage_writer=fsdp_ckpt.torch.StorageWriter(f"{place}/ckpt"))
        dcp.save({"w": distribute_tensor(whole_tensor, mesh, [Shard(0)])}, checkpoint_id=f"{place}/plain")
        fsdp_ckpt.torch.seal(f"{place}/plain")
    # Other ranks than those that wrote: each reads parts of storages.
    for name in ("ckpt", "damaged") if count == 3 else ("ckpt",):
        for group in (None, dist.group.WORLD):
            state = {"w": distribute_tensor(torch.zeros(40, 6), mesh, [Shard(0)]), "v": distribute_tensor(torch.zeros(40, 6), mesh, [Shard(0)])}
            try:
                dcp.load(state, storage_reader=fsdp_ckpt.torch.StorageReader(f"{place}/{name}", process_group=group))
                said[f"{name} {group is None}"] = all(torch.equal(one.full_tensor(), whole_tensor) for one in state.values())
            except dcp.api.CheckpointException as error:
                said[f"{name} {group is None}"] = "ZIP_CRC" in str(error)
    with open(f"{place}/said-{count}-{rank}", "w", encoding="utf-8") as file:
        json.dump(said, file)
    dist.destroy_process_group()
    os._exit(0)   # Gloo's thread in PyTorch 2.15 may give back a tensor while Python ends, which aborts the process


class RanksTest(unittest.TestCase):
    def test_two_ranks_save_and_three_load(self):
        with tempfile.TemporaryDirectory() as place:
            torch.multiprocessing.spawn(rank_main, (2, place), nprocs=2)
            self.assertEqual(fsdp_ckpt.verify(f"{place}/ckpt", require_seal=True).seal.files, 3)
            self.assertTrue(fsdp_ckpt.verify(f"{place}/plain", require_seal=True).sound)
            shutil.copytree(f"{place}/ckpt", f"{place}/damaged")
            name = f"{place}/damaged/__1_0.distcp"
            with open(name, "rb") as file:
                data = bytearray(file.read())
            data[data.index(torch.arange(120, 240, dtype=torch.float32).numpy().tobytes()) + 77] ^= 4
            with open(name, "wb") as file:
                file.write(data)
            torch.multiprocessing.spawn(rank_main, (3, place), nprocs=3)
            for count in (2, 3):
                for rank in range(count):
                    with open(f"{place}/said-{count}-{rank}", encoding="utf-8") as file:
                        said = json.load(file)
                    self.assertEqual(len(said), 2 * (count - 1))
                    self.assertTrue(all(said.values()), (count, rank, said))


if __name__ == "__main__":
    unittest.main(verbosity=2)
