# SPDX-License-Identifier: Apache-2.0
"""fsdp-ckpt from Python: each verb is a function that runs the program and returns what it found; open() gives the tensors.

    import fsdp_ckpt

    fsdp_ckpt.verify("step-400")                      # raises FsdpCkptError where it is damaged
    for tensor in fsdp_ckpt.inspect("step-400").tensors:
        print(tensor.key, tensor.dtype, tensor.shape)
    fsdp_ckpt.consolidate("step-400", "full.pt", progress=print)

    weights = fsdp_ckpt.open("step-400")              # reads metadata alone
    weights["model.emb.weight"][0:4].numpy()          # or torch()
    weights.load("model.**")                          # a dict of torch.Tensor

Functions, by what they are for:

    look                      inspect, verify, diff, stats, extract
    join and convert          consolidate, convert
    to and from Hugging Face  export_model, import_model, map_model, maps, merge_lora, extract_lora
    other ranks               reshard, shard
    change                    rename, rekey, set_values, resize_vocab, groups, average
    look after a run          latest, prune, seal, salvage

These need nothing but the program.  One waits until the program has ended; several may run at a time, in threads.  Their parameters
are the options of the verb, and `json` of what they return is the object that --json prints.  open() reads in this process, by the
native part of the module.  fsdp_ckpt.torch has a reader and a writer for torch.distributed.checkpoint, fsdp_ckpt.plot pictures.
"""
from importlib import metadata as _metadata
from typing import Any as _Any

from ._open import Checkpoint, HeldTensor, Name, Object, LazyTensor, open  # pylint: disable=redefined-builtin
from ._process import FsdpCkptError, Progress, program, run, version
from ._results import (Answer, BuiltinMap, BuiltinMaps, Chunk, ComparedFile, Comparison, Difference, DtypeStats, ExtractedFile, Extraction,
                       File, Finding, Gate, GlobalName, Globals, Group, HubComparison, Inspection, Kept, Latest, Listed, Part, PassedOver,
                       NotCompared, Pruned, QuantizationLoss, QuantizationState, QuantizedScheme, Removed, Rounded, RunInspection, RunVerification, SealState, Sealed, Statistics, Tensor, TensorStats,
                       Through, Tolerance, TotalLoss, Totals, Unread, Value, Verification, Verified, WeightLoss)
from ._verbs import (average, consolidate, convert, diff, export_model, extract, extract_lora, groups, import_model, inspect,
                     inspect_globals, inspect_run, latest, map_model, map_rules, maps, merge_lora, prune, quantization, rekey, rename,
                     reshard, resize_vocab, salvage, seal, set_values, shard, stats, verify, verify_run)
from ._written import (Averaged, Averages, EditedGroup, EditedOptimizer, Exported, ExtractedAdapter, ExtractedWeight, GroupsEdited,
                       Imported, LostChunk, MapStep, MapTensor, Mapped, Merged, OptimizerKeys, OptionChange, Output, Rekeyed, Rename,
                       Renamed, Resharded, ResizedTensor, RuleScope, Salvaged, SalvagedKey, SourceFile, TakenKey, UnreadFile, ValueChange, ValuesSet, VocabularyResized, Written)

# The verbs' own names, too.
export, set = export_model, set_values  # pylint: disable=redefined-builtin


def __getattr__(name: str) -> _Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return _metadata.version("fsdp-ckpt")
    except _metadata.PackageNotFoundError:
        return version().split()[1]   # of the program, where the module is not installed


# Without open, export and set: `import *` must not replace Python's own.
__all__ = ["Checkpoint", "HeldTensor", "LazyTensor", "Name", "Object", "Answer", "Averaged", "BuiltinMap", "BuiltinMaps", "Chunk", "ComparedFile", "Comparison", "Difference", "DtypeStats",
           "Averages", "EditedGroup", "EditedOptimizer", "Exported", "ExtractedAdapter", "ExtractedFile", "ExtractedWeight", "Extraction",
           "File", "Finding", "FsdpCkptError", "Gate", "GlobalName", "Globals", "Group", "GroupsEdited", "HubComparison", "Imported",
           "Inspection", "Kept", "Latest", "Listed", "LostChunk", "MapStep", "MapTensor", "Mapped", "Merged", "OptimizerKeys",
           "NotCompared", "OptionChange", "Output", "Part", "PassedOver", "Progress", "Pruned", "QuantizationLoss", "QuantizationState", "QuantizedScheme", "Rekeyed", "Removed", "Rename",
           "Renamed", "Resharded", "ResizedTensor", "Rounded", "RuleScope", "RunInspection", "RunVerification", "Salvaged", "SalvagedKey", "SealState", "Sealed", "SourceFile", "Statistics",
           "TakenKey", "Tensor", "TensorStats", "Through", "Tolerance", "TotalLoss", "Totals", "Unread", "UnreadFile", "Value", "ValueChange", "ValuesSet", "Verification",
           "Verified", "VocabularyResized", "WeightLoss", "Written", "average", "consolidate", "convert", "diff", "export_model", "extract",
           "extract_lora", "groups", "import_model", "inspect", "inspect_globals", "inspect_run", "latest", "map_model",
           "map_rules", "maps", "merge_lora", "program", "prune", "quantization", "rekey", "rename", "reshard", "resize_vocab", "run", "salvage", "seal",
           "set_values", "shard", "stats", "verify", "verify_run", "version"]
