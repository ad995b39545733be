# SPDX-License-Identifier: Apache-2.0
"""Opened checkpoints: tensors and values by their keys, read by the native part of the module when they are asked for."""
import difflib
import os
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ._process import FsdpCkptError
from ._verbs import Globs, Path

# Where a tensor begins in memory: any vector instruction may read it.
_ALIGNMENT = 64
# Elements that numpy lacks and ml_dtypes has, by PyTorch's names.
_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_NUMPY = ("float64", "float32", "float16", "complex128", "complex64", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
          "uint64", "bool")
# Keys among which a similar one is looked for.
_MOST_COMPARED = 10_000


def native() -> Any:
    """Returns the native part.  Throws: ImportError where this installation has none."""
    try:
        from . import _native  # type: ignore[attr-defined]
    except ImportError as error:
        raise ImportError(f"fsdp_ckpt has no native part here, which reads tensors ({error}); wheels have it for CPython 3.9 and later with "
                          "glibc 2.28 and later, and a build with -DFSDP_PYTHON=ON makes it for another Python; the functions of the verbs work "
                          "without it: fsdp-ckpt convert CHECKPOINT weights.safetensors") from error
    return _native


def globs(given: Globs) -> List[str]:
    return [] if given is None else [given] if isinstance(given, str) else list(given)


@dataclass(frozen=True)
class Name:
    """A Python name that a checkpoint holds: nothing is imported."""
    name: str


@dataclass
class Object:
    """An object that a checkpoint holds, as its pickle says it: nothing was called."""
    callable: Any
    args: Tuple[Any, ...]
    state: Any = None
    items: List[Any] = field(default_factory=list)
    entries: Dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Again:
    """Stands for the container, of those around it, that contains itself here."""
    number: int


def _numpy_dtype(name: str, where: str) -> Any:
    import numpy
    if name in _NUMPY:
        return numpy.dtype(name)
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError as error:
            raise FsdpCkptError(2, "UNSUPPORTED", f"{where}: numpy has no {name}; install ml_dtypes, or take torch()") from error
        return numpy.dtype(getattr(ml_dtypes, name))
    raise FsdpCkptError(2, "UNSUPPORTED", f"{where}: neither numpy nor ml_dtypes has {name}; take torch()")


def torch_dtype(name: str, where: str) -> Any:
    import torch
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise FsdpCkptError(2, "UNSUPPORTED", f"{where}: PyTorch {torch.__version__} has no {name}; take numpy()")
    return found


class _Elements:
    """Elements in memory that numpy and torch share."""

    def __init__(self, where: str, dtype: str, memory: Any, begin: int, end: int) -> None:
        self.where, self.dtype, self.memory, self.begin, self.end = where, dtype, memory, begin, end

    def numpy(self) -> Any:
        import numpy
        return numpy.frombuffer(self.memory, numpy.uint8)[self.begin:self.end].view(_numpy_dtype(self.dtype, self.where))

    def torch(self) -> Any:
        import torch
        dtype = torch_dtype(self.dtype, self.where)
        if self.begin == self.end:
            return torch.empty(0, dtype=dtype)
        return torch.from_dlpack(self.memory)[self.begin:self.end].view(dtype)


@dataclass(frozen=True)
class HeldTensor:
    """A tensor inside a value, such as one in a tuple; its bytes are read."""
    dtype: str
    shape: Tuple[int, ...]
    _strides: Tuple[int, ...] = field(repr=False)
    _offset: int = field(repr=False)
    _storage: Any = field(repr=False)

    def _elements(self) -> _Elements:
        size = memoryview(self._storage).nbytes
        return _Elements("a tensor inside a value", self.dtype, self._storage, 0, size)

    def numpy(self) -> Any:
        """Returns the tensor as an array that shares its memory."""
        import numpy
        whole = self._elements().numpy()
        return numpy.lib.stride_tricks.as_strided(whole[self._offset:], self.shape, [stride * whole.itemsize for stride in self._strides])

    def torch(self) -> Any:
        """Returns the tensor as a torch.Tensor that shares its memory."""
        return self._elements().torch().as_strided(self.shape, self._strides, self._offset)


class LazyTensor:
    """A tensor of a checkpoint, or a part of one: nothing is read until numpy() or torch().

    key      its key
    path     the keys and positions that lead to it in tree()
    dtype    PyTorch's name of its elements: "float32", "bfloat16", ...
    shape    its size in each dimension
    nbytes   its size

    tensor[0:4, :, -1] is a part of it; steps are positive.
    """
    __slots__ = ("_checkpoint", "_number", "_item", "_ranges", "key", "path", "dtype", "shape")

    def __init__(self, checkpoint: "Checkpoint", number: int, key: str, path: Tuple[Any, ...], dtype: str, item: int,
                 ranges: Sequence[Union[range, int]]) -> None:
        self._checkpoint, self._number, self._item, self._ranges = checkpoint, number, item, tuple(ranges)
        self.key, self.path, self.dtype = key, path, dtype
        self.shape = tuple(len(one) for one in ranges if isinstance(one, range))

    def __repr__(self) -> str:
        return f"<fsdp_ckpt.LazyTensor {self.key!r}: {self.dtype} {list(self.shape)}>"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        bytes_ = self._item
        for size in self.shape:
            bytes_ *= size
        return bytes_

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.key!r} has no dimension")
        return self.shape[0]

    def __getitem__(self, index: Any) -> "LazyTensor":
        given = list(index) if isinstance(index, tuple) else [index]
        if sum(one is Ellipsis for one in given) > 1:
            raise IndexError("more than one ellipsis")
        missing = self.ndim - sum(one is not Ellipsis for one in given)
        if missing < 0:
            raise IndexError(f"{self.key!r} has {self.ndim} dimensions, and {self.ndim - missing} are indexed")
        at = next((place for place, one in enumerate(given) if one is Ellipsis), len(given))
        given[at:at + 1] = [slice(None)] * missing
        ranges: List[Union[range, int]] = []
        for one in self._ranges:
            if isinstance(one, int):
                ranges.append(one)
                continue
            part = given.pop(0)
            if isinstance(part, slice):
                if part.step is not None and part.step <= 0:
                    raise ValueError(f"{self.key!r}: the step {part.step} is not positive")
                ranges.append(one[part])
            elif hasattr(part, "__index__") and not isinstance(part, bool):
                ranges.append(one[part.__index__()])   # IndexError where there is no such element
            else:
                raise TypeError(f"{self.key!r}: {part!r} is neither a number, a slice nor an ellipsis")
        return LazyTensor(self._checkpoint, self._number, self.key, self.path, self.dtype, self._item, ranges)

    def _read(self, verify: bool) -> Tuple[_Elements, List[int], Tuple[Any, ...]]:
        """Reads the smallest box with all elements; returns it, its shape, and what to take of it."""
        offset, size, take = [], [], []
        for one in self._ranges:
            span = range(one, one + 1) if isinstance(one, int) else one
            offset.append(span[0] if len(span) else 0)
            size.append(span[-1] - span[0] + 1 if len(span) else 0)
            take.append(0 if isinstance(one, int) else slice(None, None, span.step))
        bytes_ = self._item
        for count in size:
            bytes_ *= count
        opened = self._checkpoint._opened
        memory = opened.memory(bytes_)
        opened.read([(self._number, offset, size, memory)], verify, False, self._checkpoint._threads)
        return _Elements(self._checkpoint._where(self.key), self.dtype, memory, 0, bytes_), size, tuple(take)

    def numpy(self, *, verify: bool = True) -> Any:
        """Reads the tensor into a numpy.ndarray.

        verify   compare checksums: of a part, the rest of its storage is read for that
        """
        _numpy_dtype(self.dtype, self._checkpoint._where(self.key))
        elements, size, take = self._read(verify)
        return elements.numpy().reshape(size)[take]

    def torch(self, *, verify: bool = True) -> Any:
        """Reads the tensor into a torch.Tensor on the CPU, which takes the memory over by DLPack.

        verify   compare checksums: of a part, the rest of its storage is read for that
        """
        torch_dtype(self.dtype, self._checkpoint._where(self.key))
        elements, size, take = self._read(verify)
        return elements.torch().reshape(size)[take]

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        if copy is False:
            raise ValueError(f"{self.key!r} lies in a file, so that an array of it is a copy")
        made = self.numpy()
        return made if dtype is None else made.astype(dtype, copy=False)

    def __dlpack__(self, **wanted: Any) -> Any:
        return self.torch().__dlpack__(**wanted)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (1, 0)   # the CPU


_PLAIN_CALLS = {"builtins.set": set, "builtins.frozenset": frozenset, "builtins.complex": complex, "builtins.bytearray": bytearray,
                "builtins.range": range, "builtins.slice": slice, "builtins.list": list, "builtins.dict": dict, "builtins.tuple": tuple,
                "builtins.int": int, "builtins.float": float, "builtins.str": str, "builtins.bool": bool, "builtins.bytes": bytes}


def _with_torch(name: str) -> Any:
    """Returns what PyTorch calls so, if it is a dtype or a memory format; else the name."""
    try:
        import torch
    except ImportError:
        return Name(name)
    found = getattr(torch, name[len("torch."):], None)
    return found if isinstance(found, (torch.dtype, torch.memory_format, torch.layout)) else Name(name)


def _object(callable_: Any, args: Tuple[Any, ...], state: Any, items: List[Any], entries: Dict[Any, Any]) -> Any:
    """Makes plain data of a recorded call, if it is one of Python's or PyTorch's own; else returns the record."""
    name = callable_.name.replace("__builtin__.", "builtins.") if isinstance(callable_, Name) else ""
    try:
        if name == "collections.OrderedDict":
            ordered = OrderedDict(*args)
            ordered.update(entries)
            if isinstance(state, dict) and "_metadata" in state:   # of a module's state_dict()
                ordered._metadata = state["_metadata"]  # type: ignore[attr-defined]
            return ordered
        if name == "collections.defaultdict" and state is None:
            factory = args[0] if args else None
            plain = _PLAIN_CALLS.get(factory.name.replace("__builtin__.", "builtins.")) if isinstance(factory, Name) else None
            if factory is None or plain is not None:
                return defaultdict(plain, entries)
        if name == "collections.Counter" and state is None:
            counted: Any = Counter(*args)
            counted.update(entries)
            return counted
        if name in _PLAIN_CALLS and state is None and not items and not entries:
            return _PLAIN_CALLS[name](*args)
        if name in ("torch.Size", "torch.device") and state is None and not items and not entries:
            import torch
            return getattr(torch, name[len("torch."):])(*args)
    except (ImportError, TypeError, ValueError, RuntimeError):
        pass   # the record says what the file has
    return Object(callable_, args, state, items, entries)


class Checkpoint(Mapping):
    """An opened checkpoint: keys to tensors, which are read when they are asked for, and to values.

    Its metadata are read, and checked for holes, overlaps and short files.  Every byte of a tensor is compared with its checksum
    when it is read.  Nothing that the checkpoint says is imported or called.  Threads may use it together.  A process that is forked
    may go on with it, unless it is a URL.
    """

    def __init__(self, path: Path, *, allow_global: Globs = None, threads: Optional[int] = None) -> None:
        text = os.fspath(path)
        self.path = text if "://" in text else os.path.expanduser(text)
        self._threads = threads or max(len(os.sched_getaffinity(0)), 1)
        self._opened = native().Opened(self.path, globs(allow_global))
        about = self._opened.description()
        self.format: str = about["format"]
        self.layout: str = about["layout"]
        self.ranks: int = about["ranks"]
        self._tensors: Dict[str, LazyTensor] = {}
        self._values: Dict[str, Tuple[int, Tuple[Any, ...]]] = {}
        self._order: List[str] = []
        self._by_number: Dict[int, LazyTensor] = {}
        for is_tensor, number, key, steps, *rest in self._opened.entries():
            if is_tensor:
                dtype, shape, item = rest
                tensor = LazyTensor(self, number, key, steps, dtype, item, [range(size) for size in shape])
                self._by_number[number] = tensor
                self._tensors.setdefault(key, tensor)
            else:
                self._values.setdefault(key, (number, steps))
            self._order.append(key)

    def _where(self, key: str) -> str:
        return f"{self.path}: {key!r}"

    def __repr__(self) -> str:
        return f"<fsdp_ckpt.Checkpoint {self.path!r}: {self.format}, {len(self._tensors):,} tensors, {len(self._values):,} values>"

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._tensors or key in self._values

    @property
    def tensors(self) -> Dict[str, LazyTensor]:
        """The tensors, by their keys."""
        return dict(self._tensors)

    def __getitem__(self, key: str) -> Any:
        if key in self._tensors:
            return self._tensors[key]
        if key in self._values:
            return self._opened.value(self._values[key][0], self._made)
        near = difflib.get_close_matches(str(key), self._order[:_MOST_COMPARED], 1)
        raise KeyError(f"{self.path} has no key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))

    def _made(self, what: str, *parts: Any) -> Any:
        """Makes what plain values do not have; see native/module.cpp."""
        if what == "tensor":
            return self._by_number[parts[0]]
        if what == "view":
            storage, dtype, offset, shape, strides = parts
            return HeldTensor(dtype, shape, strides, offset, storage)
        if what == "name":
            return _with_torch(parts[0]) if parts[0].startswith("torch.") else Name(parts[0])
        if what == "again":
            return Again(parts[0])
        return _object(*parts)

    def tree(self) -> Any:
        """Returns the state dict nested as PyTorch has it, with a LazyTensor for each tensor; reads the values."""
        return self._opened.tree(self._made)

    def load(self, keys: Globs = None, *, exclude: Globs = None, framework: str = "torch", threads: Optional[int] = None,
             verify: bool = True) -> Dict[str, Any]:
        """Reads tensors into one piece of memory, on all cores, in the order in which they lie in the files.

        keys        a glob or several: only keys that match; * stays within dots, ** does not
        exclude     a glob or several: leave out keys that match
        framework   "torch" or "numpy": what is returned for each key
        threads     as many as cores if None
        verify      compare checksums

        Throws: KeyError if there is no such tensor.
        """
        if framework not in ("torch", "numpy"):
            raise ValueError(f'framework is "torch" or "numpy", not {framework!r}')
        names = list(self._tensors)
        chosen = [self._tensors[name] for name, taken in zip(names, native().selected(names, globs(keys), globs(exclude))) if taken]
        if not chosen and names:
            raise KeyError(f"{self.path}: no tensor matches {keys!r}" + (f" and not {exclude!r}" if exclude else ""))
        for tensor in chosen:
            (torch_dtype if framework == "torch" else _numpy_dtype)(tensor.dtype, self._where(tensor.key))
        places, end = [], 0
        for tensor in chosen:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + tensor.nbytes
            places.append((begin, end))
        memory = self._opened.memory(end)
        bytes_ = memoryview(memory)
        self._opened.read([(tensor._number, [0] * tensor.ndim, list(tensor.shape), bytes_[begin:end])
                           for tensor, (begin, end) in zip(chosen, places) if begin != end], verify, False, threads or self._threads)
        return {tensor.key: getattr(_Elements(self._where(tensor.key), tensor.dtype, memory, begin, end), framework)().reshape(tensor.shape)
                for tensor, (begin, end) in zip(chosen, places)}


def open(path: Path, *, allow_global: Globs = None, threads: Optional[int] = None) -> Checkpoint:
    """Opens a checkpoint of any format, here or in a store.

    path           a folder, a file, or a URL (s3://, gs://, hf://, https://)
    allow_global   a Python name or several, "module.name", in pickles to take for plain data
    threads        for reading; as many as cores if None

    Throws: FsdpCkptError for what is wrong with the checkpoint, ImportError where the module has no native part.
    """
    return Checkpoint(path, allow_global=allow_global, threads=threads)
