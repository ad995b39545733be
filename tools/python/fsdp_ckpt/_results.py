# SPDX-License-Identifier: Apache-2.0
"""What the verbs return: the members of the objects in docs/schemas, under their names.

A trailing underscore is dropped (`from_` is `from`).  Members that a verb leaves out are None.  Sizes are bytes.
"""
import dataclasses
import functools
import typing
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, List, Optional, Tuple, Union

from . import _tables


class Answer:
    """json: the object itself; notes: what was said on standard error, line by line.

    A member is made of `json` when it is first asked for: a checkpoint may have a million tensors.
    """
    json: Dict[str, Any]
    notes: List[str]
    _table: ClassVar[Optional[str]] = None   # the member that to_pandas() takes, where it is not the first list of rows

    def __getattr__(self, name: str) -> Any:
        members = self.__dict__.get("json")
        for field, member, convert in _plan(type(self)) if members is not None else ():
            if field == name:
                value = self.__dict__[name] = _converted(convert, members.get(member))
                return value
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def to_pandas(self, rows: Optional[str] = None) -> Any:
        """Returns a pandas.DataFrame with a row for each part of a member, such as a tensor.

        rows    the member; if None the one that matters most: tensors, findings, differences, ...
        """
        return _tables.frame(self, rows)

    def _repr_html_(self) -> str:
        return _tables.page(self)


@dataclass(frozen=True)
class File:
    name: str
    bytes: Optional[int]            # None where the file is missing
    linked: Optional[bool] = None   # True: it shares its bytes on disk with the source
    crc32: Optional[str] = None     # of a seal


@dataclass(frozen=True)
class Chunk:
    offset: List[int]
    shape: List[int]
    file: Optional[str]
    begin: Optional[int]
    length: Optional[int]


@dataclass(frozen=True)
class Tensor:
    key: str
    path: List[Union[str, int]]
    dtype: str
    shape: List[int]
    bytes: int
    chunks: List[Chunk]


@dataclass(frozen=True)
class Value:
    key: str
    path: List[Union[str, int]]
    type: Optional[str] = None
    value: Any = None


@dataclass(frozen=True)
class Totals:
    tensors: int
    parameters: int
    bytes: int
    values: Optional[int] = None
    zeros: Optional[int] = None
    nan: Optional[int] = None
    inf: Optional[int] = None


@dataclass(frozen=True)
class Inspection(Answer):
    _table = "tensors"
    path: str
    format: str
    layout: str
    version: Optional[str]
    torch_version: Optional[str]
    ranks: int
    files: List[File]
    tensors: List[Tensor]
    values_read: bool
    values: List[Value]
    totals: Totals


@dataclass(frozen=True)
class Listed:
    """A checkpoint of a run; error: None, or code and message of what kept it from being opened."""
    path: str
    step: Optional[int]
    format: Optional[str]
    layout: Optional[str]
    bytes: Optional[int]
    tensors: Optional[int]
    error: Optional[Dict[str, str]]


@dataclass(frozen=True)
class RunInspection(Answer):
    path: str
    checkpoints: List[Listed]


@dataclass(frozen=True)
class GlobalName:
    name: str
    status: str
    pickles: int
    file: str
    where: Optional[str]


@dataclass(frozen=True)
class Unread:
    code: str
    file: str
    where: Optional[str]
    message: str


@dataclass(frozen=True)
class Globals(Answer):
    path: str
    pickles: int
    complete: bool
    globals: List[GlobalName]
    unread: List[Unread]


@dataclass(frozen=True)
class Finding:
    severity: str    # damage, unsafe, unknown or warning
    code: str
    file: Optional[str]
    key: Optional[str]
    begin: Optional[int]
    end: Optional[int]
    message: str


@dataclass(frozen=True)
class SealState:
    file: str
    state: str       # matches, differs or unreadable
    files: int
    whole: bool


@dataclass(frozen=True)
class Part:
    """One of several checkpoints in a folder; path is below it, empty for the folder's own files."""
    path: str
    verdict: str     # damaged, unsafe, unknown or sound


@dataclass(frozen=True)
class ComparedFile:
    """A file of a folder, or of the hub that it was compared with; digests are hexadecimal."""
    name: str
    state: str                      # same, same-size, differs, missing, extra or unchecked
    algorithm: Optional[str]        # sha256 or git-sha1; None where the hub does not have the file
    expected: Optional[str]
    found: Optional[str]            # None where it was not computed
    expected_bytes: Optional[int]
    found_bytes: Optional[int]
    reason: Optional[str]


@dataclass(frozen=True)
class HubComparison:
    """What `against` found: how many files are in each state, and all of them."""
    url: str
    revision: str
    commit: str
    whole: bool      # False: large files were compared by their sizes alone
    same: int
    same_size: int
    differing: int
    missing: int
    extra: int
    unchecked: int
    files: List[ComparedFile]


@dataclass(frozen=True)
class QuantizedScheme:
    scheme: str    # what a number is, and what shares a scale
    weights: int


@dataclass(frozen=True)
class QuantizationState:
    """What was compared of quantized weights; their faults are findings."""
    method: Optional[str]
    schemes: List[QuantizedScheme]
    values: bool     # of scales
    numbers: bool    # FP8 weights were looked through for NaN
    notes: List[str]
    left: Optional[str]   # what was not compared, and why


@dataclass(frozen=True)
class Verification(Answer):
    _table = "findings"
    path: str
    format: Optional[str]
    sound: bool
    verdict: str     # damaged, unsafe, unknown or sound
    items: int
    bytes_checked: int
    bytes_unchecked: int
    seal: Optional[SealState]
    integrity: Optional[SealState]
    parts: List[Part]
    findings: List[Finding]
    compared: Optional[bool] = None   # with a configuration
    architecture: Optional[str] = None
    against: Optional[HubComparison] = None
    quantization: Optional[QuantizationState] = None


@dataclass(frozen=True)
class Verified:
    """A checkpoint of a run; code and message where it could not be verified."""
    path: str
    sound: bool
    format: Optional[str] = None
    verdict: Optional[str] = None
    items: Optional[int] = None
    bytes_checked: Optional[int] = None
    bytes_unchecked: Optional[int] = None
    seal: Optional[SealState] = None
    integrity: Optional[SealState] = None
    parts: Optional[List[Part]] = None
    findings: Optional[List[Finding]] = None
    compared: Optional[bool] = None
    architecture: Optional[str] = None
    quantization: Optional[QuantizationState] = None
    code: Optional[str] = None
    message: Optional[str] = None


@dataclass(frozen=True)
class RunVerification(Answer):
    path: str
    sound: bool
    newest_sound: Optional[str]
    checkpoints: List[Verified]


@dataclass(frozen=True)
class PassedOver:
    path: str
    step: Optional[int]
    code: str
    message: str


@dataclass(frozen=True)
class Latest(Answer):
    path: str
    newest_sound: Optional[str]
    step: Optional[int]
    passed_over: List[PassedOver]


@dataclass(frozen=True)
class Removed:
    path: str
    step: Optional[int]
    bytes: int


@dataclass(frozen=True)
class Kept:
    path: str
    step: Optional[int]
    reason: str


@dataclass(frozen=True)
class Pruned(Answer):
    path: str
    keep: int
    dry_run: bool
    newest_sound: Optional[str]
    removed: List[Removed]
    bytes: int
    kept: List[Kept]
    passed_over: List[PassedOver]


@dataclass(frozen=True)
class Sealed(Answer):
    path: str
    output: str
    dry_run: bool
    sealed: bool
    files: List[File]
    bytes: int
    bytes_unchecked: int
    findings: List[Finding]


@dataclass(frozen=True)
class BuiltinMap:
    name: str
    versions: List[str]
    model_types: List[str]
    description: str


@dataclass(frozen=True)
class BuiltinMaps(Answer):
    maps: Optional[List[BuiltinMap]] = None
    name: Optional[str] = None
    rules: Optional[str] = None


@dataclass(frozen=True)
class Tolerance:
    exact: bool
    close: bool
    atol: Optional[float]
    rtol: Optional[float]
    ulp: Optional[int]
    nan_equal: bool
    ignore_dtype: bool
    ignore_values: bool


@dataclass(frozen=True)
class Group:
    name: str
    tensors: int
    changed: int
    elements: int
    different: int
    max_abs: Optional[float]
    norm_a: Optional[float]
    norm_change: Optional[float]
    relative: Optional[float]
    unbounded: int


@dataclass(frozen=True)
class Difference:
    what: str        # only_a, only_b, kind, dtype, shape, value or tensor
    key: str
    a: Optional[str]
    b: Optional[str]
    nearest: Optional[str] = None
    where: Optional[str] = None
    elements: Optional[int] = None
    unequal: Optional[int] = None
    different: Optional[int] = None
    first: Optional[List[int]] = None
    max_abs: Optional[float] = None
    max_abs_at: Optional[List[int]] = None
    max_rel: Optional[float] = None
    max_ulp: Optional[int] = None
    norm_a: Optional[float] = None
    norm_change: Optional[float] = None
    relative: Optional[float] = None
    unbounded: Optional[int] = None
    nan_a: Optional[int] = None
    nan_b: Optional[int] = None
    names: Optional[List[str]] = None


@dataclass(frozen=True)
class Rounded:
    from_: str
    to: str
    tensors: int


@dataclass(frozen=True)
class Through:
    origin: str      # a or b
    model_a: str
    model_b: str
    prefixes_a: List[str]
    prefixes_b: List[str]
    map: Optional[str]
    keys_of: str
    tied: Optional[str]
    beside_a: int
    beside_b: int
    rounded: List[Rounded]


@dataclass(frozen=True)
class Comparison(Answer):
    a: str
    b: str
    format_a: str
    format_b: str
    same: bool
    tolerance: Tolerance
    tensors: int
    values: int
    bytes: int
    unchecked_bytes: int
    within_tolerance: int
    through: Optional[Through]
    no_way: Optional[str]
    counts: Dict[str, int]
    differences: List[Difference]
    by: Optional[str] = None
    groups: Optional[List[Group]] = None


@dataclass(frozen=True)
class TensorStats:
    key: str
    dtype: str
    shape: List[int]
    min: Optional[float]
    max: Optional[float]
    mean: Optional[float]
    std: Optional[float]
    rms: Optional[float]
    zeros: int
    nan: int
    inf: int
    positive_inf: int
    negative_inf: int


@dataclass(frozen=True)
class DtypeStats:
    dtype: str
    tensors: int
    parameters: int
    bytes: int
    zeros: int
    nan: int
    inf: int


@dataclass(frozen=True)
class Gate:
    """A tensor that `fail_on` names."""
    key: str
    what: str
    count: int


@dataclass(frozen=True)
class Statistics(Answer):
    path: str
    format: str
    tensors: List[TensorStats]
    dtypes: List[DtypeStats]
    totals: Totals
    unchecked_bytes: int
    fail_on: List[str]
    passed: bool
    failures: List[Gate]


@dataclass(frozen=True)
class WeightLoss:
    """How far a quantized weight is from the original."""
    key: str
    scheme: str
    shape: List[int]
    elements: int
    relative: Optional[float]   # norm of the differences by that of the original
    max_abs: float
    snr_db: Optional[float]
    saturated: Optional[int]    # numbers at an end of their range
    zeros: int
    original_zeros: int
    not_finite: int


@dataclass(frozen=True)
class TotalLoss:
    elements: int
    relative: Optional[float]
    max_abs: float
    snr_db: Optional[float]
    saturated: Optional[int]
    zeros: int
    original_zeros: int
    not_finite: int


@dataclass(frozen=True)
class NotCompared:
    key: str
    why: str


@dataclass(frozen=True)
class QuantizationLoss(Answer):
    path: str
    original: Optional[str]
    quantize: Optional[str]
    method: str
    dtype: str
    tensors: List[WeightLoss]
    totals: TotalLoss
    not_compared: List[NotCompared]


@dataclass(frozen=True)
class ExtractedFile:
    name: str
    key: str
    dtype: str
    shape: List[int]
    bytes: int


@dataclass(frozen=True)
class Extraction(Answer):
    path: str
    key: str
    type: str
    value: Any = None
    dtype: Optional[str] = None
    shape: Optional[List[int]] = None
    slice: Optional[str] = None
    tensor_shape: Optional[List[int]] = None
    elements: Optional[List[Any]] = None
    output: Optional[str] = None
    format: Optional[str] = None
    dry_run: Optional[bool] = None
    bytes: Optional[int] = None
    unchecked_bytes: Optional[int] = None
    files: Optional[List[ExtractedFile]] = None


def _converter(kind: Any) -> Optional[Callable[[Any], Any]]:
    """Returns the function that makes a value of this type of JSON's, None where that is the value."""
    if dataclasses.is_dataclass(kind):
        return lambda value: built(kind, value)
    origin, inner = typing.get_origin(kind), [one for one in typing.get_args(kind) if one is not type(None)]
    if origin is Union:
        return _converter(inner[0]) if len(inner) == 1 else None
    convert = _converter(inner[0]) if origin is list else None
    return None if convert is None else lambda value: [_converted(convert, one) for one in value]


def _converted(convert: Optional[Callable[[Any], Any]], value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


@functools.lru_cache(maxsize=None)
def _plan(kind: Any) -> List[Tuple[str, str, Optional[Callable[[Any], Any]]]]:
    """Returns for each field its name, the member's name, and what makes the one of the other."""
    hints = typing.get_type_hints(kind)
    return [(field.name, field.name.rstrip("_"), _converter(hints[field.name])) for field in dataclasses.fields(kind)]


def built(kind: Any, members: Dict[str, Any]) -> Any:
    """Makes a dataclass of a JSON object; members that it does not know are left out."""
    made = object.__new__(kind)   # without __init__, which takes most of the time of a frozen one
    fields = made.__dict__
    for name, member, convert in _plan(kind):
        value = members.get(member)
        fields[name] = value if convert is None or value is None else convert(value)
    return made


def answer_of(kind: Any, members: Dict[str, Any], notes: str) -> Any:
    """Makes an answer; what has no default follows from `json` by Answer.__getattr__."""
    made = object.__new__(kind)
    made.__dict__.update((name, _converted(convert, members.get(member))) for name, member, convert in _plan(kind)
                         if hasattr(kind, name))
    made.__dict__.update(json=members, notes=notes.splitlines())
    return made
