# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint with this project's reader and seals.

    import torch.distributed.checkpoint as dcp
    import fsdp_ckpt.torch

    dcp.save(state, storage_writer=fsdp_ckpt.torch.StorageWriter("step-400"))      # whole and sealed, or not there
    dcp.load(state, storage_reader=fsdp_ckpt.torch.StorageReader("step-400"))      # every checksum compared, nothing unpickled
"""
import io
import json
import os
from contextlib import contextmanager
from pathlib import Path as LocalPath
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from . import _verbs
from ._open import Again, Checkpoint, HeldTensor, Name, Object, LazyTensor, native, torch_dtype
from ._process import FsdpCkptError
from ._results import Sealed
from ._verbs import Globs, Path

# Copies on the CPU of tensors that lie elsewhere or with gaps, at a time.
_MOST_COPIED = 256 << 20

__all__ = ["StorageReader", "StorageWriter", "seal"]


class _Refused(BaseException):
    """Carries an error through PyTorch, which takes an Exception of read_metadata() for metadata that are not there."""


def _plain(value: Any, where: str) -> Any:
    """Returns a value with tensors of torch; refuses what only the code of a class could make."""
    if isinstance(value, (HeldTensor, LazyTensor)):
        return value.torch()
    if isinstance(value, (Name, Object, Again)):
        raise FsdpCkptError(2, "UNSUPPORTED", f"{where}: holds {value!r}, which only its own library can make; load it with PyTorch's reader")
    if isinstance(value, dict):
        items = [(_plain(key, where), _plain(one, where)) for key, one in value.items()]
        value.clear()
        for key, one in items:   # update() of a Counter would count
            value[key] = one
        return value
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_plain(one, where) for one in value)
    return value


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class StorageReader(_StorageReader):
    """Reads any format for torch.distributed.checkpoint.load: each rank the ranges that it needs.

    path            a folder, a file, or a URL (s3://, gs://, hf://, https://)
    verify          compare the checksum of every storage that is read
    threads         of each rank; if None, the cores divided by the ranks of this machine
    process_group   the group that load() gets (torch.distributed.group.WORLD for the default one): the ranks then put the checksums of
                    storages together that each of them reads in part.  If None, every rank reads such a storage whole for its checksum
    allow_global    a Python name or several, "module.name", in pickles to take for plain data

    Nothing is unpickled: metadata and values are read as data, and a value that only the code of a class can make is refused.
    """

    def __init__(self, path: Path, *, verify: bool = True, threads: Optional[int] = None, process_group: Optional[Any] = None,
                 allow_global: Globs = None) -> None:
        super().__init__()
        self.path = os.fspath(path)
        self.verify = verify
        self.threads = threads
        self.process_group = process_group
        self.allow_global = allow_global
        self._checkpoint: Optional[Checkpoint] = None

    @property
    def checkpoint_id(self) -> str:
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike]) -> bool:
        return True

    def reset(self, checkpoint_id: Union[str, os.PathLike, None] = None) -> None:
        if checkpoint_id:
            self.path = os.fspath(checkpoint_id)
        self._checkpoint = None

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            threads = self.threads
            if threads is None:
                here = int(os.environ.get("LOCAL_WORLD_SIZE", 0)) or (dist.get_world_size() if dist.is_initialized() else 1)
                threads = max(len(os.sched_getaffinity(0)) // here, 1)
            self._checkpoint = Checkpoint(self.path, allow_global=self.allow_global, threads=threads)
        return self._checkpoint

    def read_metadata(self) -> Metadata:
        try:
            checkpoint = self._open()
            known: Dict[str, Any] = {}
            paths: Dict[str, Any] = {}
            for key in checkpoint:
                tensor = checkpoint._tensors.get(key)
                if tensor is None:
                    known[key], paths[key] = BytesStorageMetadata(), checkpoint._values[key][1]
                    continue
                properties = TensorProperties(dtype=torch_dtype(tensor.dtype, checkpoint._where(key)))
                known[key], paths[key] = TensorStorageMetadata(properties, torch.Size(tensor.shape), [
                    ChunkStorageMetadata(torch.Size(offset), torch.Size(size))
                    for offset, size in checkpoint._opened.chunks(tensor._number)]), tensor.path
        except FsdpCkptError as error:
            raise _Refused(str(error)) from error
        return Metadata(known, planner_data=paths, storage_data={})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        self._open()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        parts: List[str] = []
        failure: Optional[BaseException] = None
        try:
            self._read(plan, planner, parts)
        except BaseException as error:  # raised below, when every rank knows of it
            failure = error
        if self.process_group is not None:
            told: List[Any] = [None] * dist.get_world_size(self.process_group)
            dist.all_gather_object(told, parts if failure is None else None, group=self.process_group)
            if failure is None and None not in told:
                native().check_together([text for texts in told for text in texts])
        if failure is not None:
            raise failure
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    def _read(self, plan: LoadPlan, planner: LoadPlanner, parts: List[str]) -> None:
        checkpoint = self._open()
        wanted: List[Tuple[Any, ...]] = []
        waiting: List[Tuple[Any, torch.Tensor, torch.Tensor]] = []
        copied = 0

        def fill() -> None:
            parts.append(checkpoint._opened.read(wanted, self.verify, self.process_group is not None, checkpoint._threads))
            for item, target, place in waiting:
                if place is not target:
                    target.copy_(place)
                planner.commit_tensor(item, target)
            wanted.clear()
            waiting.clear()

        for item in plan.items:
            key = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                stream = io.BytesIO()
                torch.save(_plain(checkpoint[key], checkpoint._where(key)), stream)   # the planner loads it from there
                stream.seek(0)
                planner.load_bytes(item, stream)
                continue
            tensor = checkpoint._tensors[key]
            size = list(item.lengths)
            begin = item.storage_index.offset or [0] * len(size)
            target = planner.resolve_tensor(item).detach()
            if list(target.size()) != size:
                raise FsdpCkptError(2, "SHAPE", f"{checkpoint._where(key)}: {size} are read, and the memory is {list(target.size())}")
            dtype = torch_dtype(tensor.dtype, checkpoint._where(key))
            straight = target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous() and not target.is_conj() and not target.is_neg()
            place = target if straight else torch.empty(size, dtype=dtype)
            waiting.append((item, target, place))
            if place.numel() == 0:
                continue
            wanted.append((tensor._number, [one + more for one, more in zip(begin, item.storage_offsets)], size, _flat(place)))
            copied += 0 if straight else place.nbytes
            if copied > _MOST_COPIED:
                fill()
                copied = 0
        fill()


def seal(path: Path, *, process_group: Optional[Any] = None, force: bool = False) -> Optional[Sealed]:
    """Seals a checkpoint after a save: on the first rank of the group, while the others wait.

    path            the checkpoint
    process_group   the ranks that call this; if None the default group, or this process alone where there is none
    force           replace a seal that is there

    Returns what fsdp_ckpt.seal() returns on the first rank, None on the others.  Throws: FsdpCkptError, on every rank.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return _verbs.seal(path, force=force)
    made: Optional[Sealed] = None
    told: List[Any] = [None]
    if dist.get_rank(process_group) == 0:
        try:
            made = _verbs.seal(path, force=force)
        except FsdpCkptError as error:
            told = [(error.status, error.code, error.message)]
    dist.broadcast_object_list(told, src=dist.get_global_rank(process_group or dist.group.WORLD, 0), group=process_group)
    if told[0] is not None:
        raise FsdpCkptError(*told[0])
    return made


class _Summing:
    """A stream that is written once, from its beginning: counts its bytes and their CRC-32."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._crc32 = native().crc32
        self.bytes = 0
        self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view):
            self.crc = self._crc32(self.crc, view)
            self.bytes += len(view)
            self._stream.write(view)
        return len(view)

    def tell(self) -> int:
        return self.bytes

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        self._stream.flush()
        return int(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


class _SummedFiles(FileSystem):
    """Keeps bytes and CRC-32 of each file that is written."""

    def __init__(self) -> None:
        self.sums: Dict[str, Tuple[int, int]] = {}

    @contextmanager
    def create_stream(self, path: Union[str, os.PathLike], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            summing = _Summing(stream)
            yield summing
        self.sums[os.path.basename(path)] = (summing.bytes, summing.crc)

    def rename(self, path: Union[str, os.PathLike], new_path: Union[str, os.PathLike]) -> None:
        super().rename(path, new_path)
        self.sums[os.path.basename(new_path)] = self.sums.pop(os.path.basename(path))


def _sync(path: Union[str, os.PathLike]) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class StorageWriter(FileSystemWriter):
    """Writes a folder for torch.distributed.checkpoint.save that appears whole and sealed, or not at all.

    path                   the folder, which must not exist, on a file system that all ranks share
    single_file_per_rank   one file for each rank and thread, or one for each tensor
    sync_files             wait until everything is safe from a power cut
    thread_count           threads of each rank

    The files are written into `.NAME.fsdp-tmp` beside the folder, and summed up on the way.  When all ranks have written, the first one
    writes `.metadata` and the seal, and renames the folder.  A save that fails leaves the temporary folder, which the next one replaces.
    """

    def __init__(self, path: Path, *, single_file_per_rank: bool = True, sync_files: bool = True, thread_count: int = 1) -> None:
        native()
        super().__init__(path, single_file_per_rank=single_file_per_rank, sync_files=sync_files, thread_count=thread_count, overwrite=True)
        self.fs = _SummedFiles()
        self._place(path)

    def _place(self, path: Path) -> None:
        text = os.fspath(path)
        if "://" in text:
            raise FsdpCkptError(2, "UNSUPPORTED", f"{text}: StorageWriter writes folders of this machine; fsdp_ckpt.convert() copies one to a store")
        self._final = LocalPath(os.path.abspath(os.path.expanduser(text)))
        self.path = self._final.with_name(f".{self._final.name}.fsdp-tmp")

    @property
    def checkpoint_id(self) -> Union[str, os.PathLike]:
        return self._final

    def reset(self, checkpoint_id: Union[str, os.PathLike, None] = None) -> None:
        super().reset(None)
        self.fs.sums.clear()
        if checkpoint_id:
            self._place(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._first = is_coordinator
        if not getattr(self, "use_collectives", True):   # PyTorch before 2.9 knows no other way
            raise FsdpCkptError(2, "UNSUPPORTED", f"{self._final}: a folder with metadata of each rank does not appear at once; save with collectives")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if os.path.lexists(self._final):
            raise FsdpCkptError(2, "EXISTS", f"{self._final}: exists; remove it, or choose another name")
        if not self._first:
            return plan   # the first rank makes the folder before any rank writes
        if os.path.lexists(self.path):
            others = [entry.name for entry in os.scandir(self.path) if not entry.is_file(follow_symlinks=False)]
            if others:
                raise FsdpCkptError(2, "EXISTS", f"{self.path}: is left of an earlier save, but holds {others[0]!r}, which is not a file; remove it")
            for name in os.listdir(self.path):
                os.unlink(self.path / name)
            os.rmdir(self.path)
        os.makedirs(self.path)
        return plan

    def write_data(self, plan: Any, planner: Any) -> Any:
        written = super().write_data(plan, planner)
        # For the first rank, which seals: one file for the sums of each rank's files.
        with open(self.path / f".sums{plan.storage_data.prefix}", "x", encoding="utf-8") as sums:
            json.dump(self.fs.sums, sums)
        return written

    def finish(self, metadata: Metadata, results: Any) -> None:
        super().finish(metadata, results)
        sums: Dict[str, Any] = dict(self.fs.sums)
        for entry in list(os.scandir(self.path)):
            if entry.name.startswith(".sums"):
                with open(entry.path, encoding="utf-8") as told:
                    sums.update(json.load(told))
                os.unlink(entry.path)
        found = {entry.name: entry.stat().st_size for entry in os.scandir(self.path)}
        wrong = sorted(name for name in {*found, *sums} if found.get(name) != sums.get(name, (None,))[0])
        if wrong:
            name = wrong[0]
            raise FsdpCkptError(2, "CHANGED", f"{self.path}: {name!r}: {sums.get(name, ('no',))[0]} bytes were written, {found.get(name, 'none')} are there")
        text = native().seal_text([(name, size, crc) for name, (size, crc) in sums.items()])
        with open(self.path / "fsdp_seal.json", "x", encoding="utf-8") as sealed:
            sealed.write(text)
            if self.sync_files:
                sealed.flush()
                os.fsync(sealed.fileno())
        if self.sync_files:
            _sync(self.path)
        if os.path.lexists(self._final):
            raise FsdpCkptError(2, "EXISTS", f"{self._final}: appeared during the save; the checkpoint is in {self.path}")
        os.rename(self.path, self._final)
        if self.sync_files:
            _sync(self._final.parent)
