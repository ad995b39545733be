# SPDX-License-Identifier: Apache-2.0
"""fsdp-ckpt from Python: each verb is a function that runs the program and returns what it found.

    import fsdp_ckpt

    fsdp_ckpt.verify("step-400")                      # raises FsdpCkptError where it is damaged
    for tensor in fsdp_ckpt.inspect("step-400").tensors:
        print(tensor.key, tensor.dtype, tensor.shape)
    fsdp_ckpt.consolidate("step-400", "full.pt", progress=print)

The module needs no PyTorch, and reads no checkpoint itself.  A function waits until the program has ended; several may run at
a time, in threads.  Its parameters are the options of the verb, and `json` of what it returns is the object that --json prints.
"""
from ._process import FsdpCkptError, Progress, program, run, version
from ._results import (Answer, BuiltinMap, BuiltinMaps, Chunk, Comparison, Difference, DtypeStats, ExtractedFile, Extraction,
                       File, Finding, Gate, GlobalName, Globals, Group, Inspection, Kept, Latest, Listed, PassedOver, Pruned,
                       Removed, RunInspection, RunVerification, SealState, Sealed, Statistics, Tensor, TensorStats, Tolerance,
                       Totals, Unread, Value, Verification, Verified)
from ._verbs import (average, consolidate, convert, diff, export_model, extract, extract_lora, import_model, inspect,
                     inspect_globals, inspect_run, latest, map_model, map_rules, maps, merge_lora, prune, rekey, rename, reshard,
                     seal, set_values, shard, stats, verify, verify_run)
from ._written import (Averaged, Exported, ExtractedAdapter, ExtractedWeight, Imported, MapStep, MapTensor, Mapped, Merged,
                       OptimizerKeys, Output, Rekeyed, Rename, Renamed, Resharded, ValueChange, ValuesSet, Written)

__all__ = ["Answer", "Averaged", "BuiltinMap", "BuiltinMaps", "Chunk", "Comparison", "Difference", "DtypeStats", "Exported",
           "ExtractedAdapter", "ExtractedFile", "ExtractedWeight", "Extraction", "File", "Finding", "FsdpCkptError", "Gate",
           "GlobalName", "Globals", "Group", "Imported", "Inspection", "Kept", "Latest", "Listed", "MapStep", "MapTensor",
           "Mapped", "Merged", "OptimizerKeys", "Output", "PassedOver", "Progress", "Pruned", "Rekeyed", "Removed", "Rename",
           "Renamed", "Resharded", "RunInspection", "RunVerification", "SealState", "Sealed", "Statistics", "Tensor",
           "TensorStats", "Tolerance", "Totals", "Unread", "Value", "ValueChange", "ValuesSet", "Verification", "Verified",
           "Written", "average", "consolidate", "convert", "diff", "export_model", "extract", "extract_lora", "import_model",
           "inspect", "inspect_globals", "inspect_run", "latest", "map_model", "map_rules", "maps", "merge_lora", "program",
           "prune", "rekey", "rename", "reshard", "run", "seal", "set_values", "shard", "stats", "verify", "verify_run",
           "version"]
