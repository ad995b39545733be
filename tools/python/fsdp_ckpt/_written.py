# SPDX-License-Identifier: Apache-2.0
"""What the verbs that write return; as in _results.py."""
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from ._results import Answer, File


@dataclass(frozen=True)
class Written(Answer):
    """Of every verb that writes a checkpoint."""
    path: str
    output: str
    format: str
    layout: Optional[str]   # of a torch_dist folder: whether the common state is a file or an item
    dry_run: bool
    files: List[File]
    tensors: int
    values: int
    dropped_values: int
    tied: Dict[str, str]
    bytes: int
    tensor_bytes: int
    buffer_bytes: int
    free_bytes: Optional[int]
    unchecked_bytes: Optional[int]
    kept_bytes: Optional[int]
    seconds: Optional[float]
    asks_for: Optional[List[str]]


@dataclass(frozen=True)
class ValueChange:
    key: str
    tensor: Optional[str]   # its dtype and shape; None for a value
    was: Any
    now: Any


@dataclass(frozen=True)
class TakenKey:
    key: str
    what: str                 # its dtype and shape, or "a value"
    replaced: Optional[str]   # the same of what it replaced; None where the key is new


@dataclass(frozen=True)
class ValuesSet(Written):
    changes: List[ValueChange]
    dropped: List[str]
    taken: List[TakenKey]
    left_behind: Optional[List[str]] = None
    unneeded_files: Optional[int] = None
    dead_bytes: Optional[int] = None


@dataclass(frozen=True)
class ResizedTensor:
    key: str
    dtype: str
    was: List[int]
    now: List[int]
    state: bool   # of an optimizer


@dataclass(frozen=True)
class VocabularyResized(Written):
    old_size: int
    size: int
    fill: str
    guessed: bool   # the tables were found by their names
    resized: List[ResizedTensor]
    alike: List[str]
    architecture: Optional[str]


@dataclass(frozen=True)
class EditedGroup:
    from_: List[int]        # positions of the groups that its parameters come from
    parameters: List[str]   # names; ids where nothing was asked of names


@dataclass(frozen=True)
class OptionChange:
    group: int
    option: str
    was: Any
    now: Any


@dataclass(frozen=True)
class EditedOptimizer:
    key: str
    form: str
    old_groups: int
    groups: List[EditedGroup]
    changes: List[OptionChange]


@dataclass(frozen=True)
class GroupsEdited(Written):
    optimizers: List[EditedOptimizer]
    left_behind: Optional[List[str]] = None
    unneeded_files: Optional[int] = None
    dead_bytes: Optional[int] = None


@dataclass(frozen=True)
class MapTensor:
    key: str
    dtype: str
    shape: List[int]


@dataclass(frozen=True)
class MapStep:
    line: int
    from_: List[MapTensor]
    to: List[MapTensor]
    do: List[str]


@dataclass(frozen=True)
class Mapped(Written):
    map: str
    parameters: Dict[str, int]
    steps: List[MapStep]
    optimizers: int
    dropped_optimizers: int


@dataclass(frozen=True)
class DequantizedScheme:
    scheme: str
    weights: int


@dataclass(frozen=True)
class Dequantized:
    method: str
    dtype: str
    schemes: List[DequantizedScheme]
    left_out: List[str]


@dataclass(frozen=True)
class Quantized:
    scheme: str
    dialect: str
    weights: int
    kept: List[str]


@dataclass(frozen=True)
class Averages:
    place: str
    what: str
    model: str
    parameters: int
    computed: int
    order: Optional[str]   # None if names are stored
    assumed: bool
    kept: List[str]


@dataclass(frozen=True)
class Exported(Written):
    model: str
    left_out_values: int
    map: Optional[str]
    guessed: bool
    architecture: Optional[str]
    merged: int
    copied: List[str]
    config: Optional[str]   # the config.json that was used
    config_dtype: Optional[str]
    check: bool             # the folder was read again
    dequantized: Optional[Dequantized] = None
    quantized: Optional[Quantized] = None
    parameters: Optional[Dict[str, int]] = None
    steps: Optional[List[MapStep]] = None
    optimizers: Optional[int] = None
    dropped_optimizers: Optional[int] = None
    averages: Optional[Averages] = None


@dataclass(frozen=True)
class Imported(Written):
    under: str
    map: Optional[str]
    architecture: Optional[str]
    renamed: Optional[Dict[str, str]] = None   # names of files, and of modules
    parameters: Optional[Dict[str, int]] = None
    steps: Optional[List[MapStep]] = None
    optimizers: Optional[int] = None
    dropped_optimizers: Optional[int] = None


@dataclass(frozen=True)
class Merged(Written):
    adapters: List[str]
    prefix: str
    merged: int
    updates: int
    replaced: int
    added: int
    untied: bool
    notes: List[str]
    architecture: Optional[str]


@dataclass(frozen=True)
class ExtractedWeight:
    name: str
    shape: List[int]
    error: float
    energy: float


@dataclass(frozen=True)
class ExtractedAdapter(Written):
    tuned: str
    rank: int
    alpha: float
    weights: List[ExtractedWeight]
    unchanged: int
    whole: int


@dataclass(frozen=True)
class Averaged(Written):
    inputs: List[str]
    weights: List[float]
    divisor: Optional[float]
    accumulate: str
    differing: str
    summed: int
    taken: int
    input_bytes: int
    left_out: int


@dataclass(frozen=True)
class Rename:
    from_: str
    to: str


@dataclass(frozen=True)
class RuleScope:
    rule: str
    applies_to: str


@dataclass(frozen=True)
class LostChunk:
    offset: List[int]
    shape: List[int]


@dataclass(frozen=True)
class SalvagedKey:
    key: str
    kind: str               # tensor, value or unknown
    state: str              # whole, unchecked, partly or lost
    origin: Optional[str]   # the checkpoint that the output has it from
    lost: List[LostChunk]
    why: Optional[str]


@dataclass(frozen=True)
class UnreadFile:
    name: str
    why: str


@dataclass(frozen=True)
class SourceFile:
    name: str
    bytes: Optional[int]
    modified: Optional[float]
    steps: List[int]
    tied: bool              # something tells that it is of the same save as the others


@dataclass(frozen=True)
class Salvaged(Written):
    metadata: Optional[str]
    from_: Optional[str]
    names_known: bool
    unread: List[UnreadFile]
    whole: int
    unchecked: int
    partly: int
    lost: int
    taken: int
    keys: List[SalvagedKey]
    sources: List[SourceFile]
    dequantized: Optional[Dict[str, int]] = None


@dataclass(frozen=True)
class FileNote:
    file: str
    note: str


@dataclass(frozen=True)
class Output(Written):
    carried: Optional[List[str]] = None
    notes: Optional[List[FileNote]] = None
    dequantized: Optional[Dict[str, int]] = None
    wrappers: Optional[List[str]] = None
    rules: Optional[List[RuleScope]] = None
    renamed: Optional[int] = None
    renames: Optional[List[Rename]] = None
    dropped: Optional[int] = None
    dropped_keys: Optional[List[str]] = None
    averages: Optional[Averages] = None


@dataclass(frozen=True)
class Resharded(Output):
    source_ranks: Optional[int] = None
    world_size: Optional[int] = None
    sharded_tensors: Optional[int] = None
    replicated_tensors: Optional[int] = None


@dataclass(frozen=True)
class Renamed(Output):
    left_behind: Optional[List[str]] = None
    unneeded_files: Optional[int] = None
    dead_bytes: Optional[int] = None


@dataclass(frozen=True)
class OptimizerKeys:
    key: str
    from_: str
    groups: int
    parameters: int
    without_state: int
    order: str
    shapes_checked: bool
    renames: List[Rename]


@dataclass(frozen=True)
class Rekeyed(Renamed):
    to: Optional[str] = None
    optimizers: Optional[List[OptimizerKeys]] = None
