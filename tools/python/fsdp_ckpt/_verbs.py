# SPDX-License-Identifier: Apache-2.0
"""One function for each verb.  A parameter is the option of its name, with hyphens for underscores.

They raise FsdpCkptError, and nothing else for what is wrong with a checkpoint.  A path is a text or a pathlib.Path, or a URL;
a relative one is relative to the working folder, and `~` at its beginning is the home folder.
"""
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from ._parameters import documented
from ._process import FsdpCkptError, Progress, ask
from ._results import (Answer, BuiltinMap, BuiltinMaps, Comparison, Extraction, Globals, Inspection, Latest, Pruned,
                       QuantizationLoss, RunInspection, RunVerification, Sealed, Statistics, Verification, answer_of)
from ._written import (Averaged, Exported, ExtractedAdapter, GroupsEdited, Imported, Mapped, Merged, Output, Rekeyed, Renamed,
                       Resharded, Salvaged, ValuesSet, VocabularyResized)

Path = Union[str, "os.PathLike[str]"]
Globs = Union[str, Sequence[str], None]
Size = Union[int, str, None]
OnProgress = Optional[Callable[[Progress], None]]
Kind = TypeVar("Kind", bound=Answer)

# The options whose name does not follow from the parameter's.
_NAMES = {"sync": "--no-sync", "verify_rest": "--no-verify", "all_elements": "--all"}
# These are on unless they are given.
_NEGATIVE = ("sync", "verify_rest")


# Parameters that name files: `~` is the home folder there, too.
_PATHS = ("html", "config", "from", "map", "names", "names_from", "rename_file", "take_from", "adapter_config")


def _path(path: Path) -> str:
    text = os.path.expanduser(os.fspath(path))
    return os.path.join(".", text) if text.startswith("-") else text


def _words(options: Dict[str, Any]) -> List[str]:
    words: List[str] = []
    for name, value in options.items():
        option = _NAMES.get(name, "--" + name.replace("_", "-"))
        if name in _NEGATIVE:
            words += [] if value else [option]
        elif value is True:
            words.append(option)
        elif value is None or value is False:
            continue
        elif isinstance(value, (list, tuple, set, frozenset)):
            words += [f"{option}={one}" for one in value]
        elif name in _PATHS:
            words.append(f"{option}={_path(value)}")
        else:
            words.append(f"{option}={value}")
    return words


def _no(answer: Any) -> Tuple[str, str, List[Any]]:
    """Code, message and findings of status 1."""
    if isinstance(answer, (Verification, Sealed)):
        findings = list(answer.findings)
        verdict = answer.verdict if isinstance(answer, Verification) else "not sealed"
        return "FINDINGS", f"{answer.path}: {verdict}, {len(findings)} finding{'' if len(findings) == 1 else 's'}", findings
    if isinstance(answer, RunVerification):
        bad = [one for one in answer.checkpoints if not one.sound]
        return "FINDINGS", f"{answer.path}: {len(bad)} of {len(answer.checkpoints)} checkpoints are not sound", [
            finding for one in bad for finding in one.findings or []]
    if isinstance(answer, Latest) or isinstance(answer, Pruned) and answer.newest_sound is None:
        return "FINDINGS", f"{answer.path}: no checkpoint is sound", []
    if isinstance(answer, Pruned):
        return "FAILED", f"{answer.path}: not everything that is old could be removed", []
    if isinstance(answer, Comparison):
        return "DIFFERENT", f"{answer.a} and {answer.b} differ: {len(answer.differences)} differences", []
    if isinstance(answer, Statistics):
        failed = ", ".join(f"{one.key} ({one.what})" for one in answer.failures[:5])
        return "FAILED", f"{answer.path}: {len(answer.failures)} tensors failed: {failed}", []
    if isinstance(answer, Globals):
        return "FAILED", f"{answer.path}: not everything could be looked into", []
    if isinstance(answer, Inspection):
        return "LIMIT", f"{answer.path}: larger than max_bytes", []
    if isinstance(answer, Salvaged):
        gone = [one.key for one in answer.keys if one.origin is None]
        return "FAILED", f"{answer.path}: {len(gone)} keys stay lost: {', '.join(gone[:5])}", []
    return "FAILED", "the answer is no", []


def _asked(kind: Type[Kind], verb: str, paths: Sequence[str], options: Dict[str, Any], progress: OnProgress, check: bool) -> Kind:
    status, members, notes = ask([verb, *paths, *_words(options)], progress)
    schema = str(members.get("schema", ""))
    wants_run = kind in (RunInspection, RunVerification)
    if schema.endswith("-run/1") and not wants_run:
        raise FsdpCkptError(2, "USAGE", f"{paths[0]}: is the folder of a run, or several paths; {verb}_run takes them")
    if wants_run and not schema.endswith("-run/1"):
        raise FsdpCkptError(2, "USAGE", f"{paths[0]}: is one checkpoint; {verb} takes it")
    answer = answer_of(kind, members, notes)
    if status == 1 and check:
        code, message, findings = _no(answer)
        last = notes.splitlines()[-1] if notes else ""
        raise FsdpCkptError(1, code, last if code == "LIMIT" and last else message, findings, answer)
    return answer


@documented
def inspect(path: Path, *, max_bytes: Size = None, values: Optional[str] = None, html: Optional[Path] = None, force: bool = False,
            keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
            max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Inspection:
    """Returns what is in a checkpoint, from metadata alone; `html` writes a page for a browser as well."""
    return _asked(Inspection, "inspect", [_path(path)], {
        "max_bytes": max_bytes, "values": values, "html": html, "force": force, "keys": keys, "exclude": exclude,
        "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def inspect_run(*paths: Path, html: Optional[Path] = None, force: bool = False, allow_global: Globs = None,
                threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> RunInspection:
    """Returns a line for each checkpoint: of the folder of a run, or of several paths; `html` writes a page of them as well."""
    return _asked(RunInspection, "inspect", [_path(path) for path in paths], {
        "html": html, "force": force, "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def inspect_globals(path: Path, *, keys: Globs = None, exclude: Globs = None, allow_global: Globs = None,
                    threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None,
                    check: bool = True) -> Globals:
    """Returns the Python names in the pickles of a checkpoint, those that loading should not import too."""
    return _asked(Globals, "inspect", [_path(path)], {
        "globals": True, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def verify(path: Path, *, fast: bool = False, strict: bool = False, require_checksums: bool = False, require_seal: bool = False,
           against: Optional[str] = None, config: Optional[Path] = None, html: Optional[Path] = None, force: bool = False,
           keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
           max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Verification:
    """Looks for every damage; raises if there is one, with the findings.  `html` writes a page of them as well."""
    return _asked(Verification, "verify", [_path(path)], {
        "fast": fast, "strict": strict, "require_checksums": require_checksums, "require_seal": require_seal,
        "against": against, "config": config, "html": html, "force": force, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def verify_run(*paths: Path, fast: bool = False, strict: bool = False, require_checksums: bool = False, require_seal: bool = False,
               config: Optional[Path] = None, html: Optional[Path] = None, force: bool = False,
               keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
               max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> RunVerification:
    """Verifies each checkpoint of the folder of a run, or of several paths; `newest_sound` is the one to go on from, and `html`
    writes a page of all of them."""
    return _asked(RunVerification, "verify", [_path(path) for path in paths], {
        "fast": fast, "strict": strict, "require_checksums": require_checksums, "require_seal": require_seal,
        "config": config, "html": html, "force": force, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def latest(path: Path, *, fast: bool = False, strict: bool = False, require_checksums: bool = False, require_seal: bool = False,
           keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
           max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Latest:
    """Finds the newest sound checkpoint of a run's folder (`newest_sound`); raises if there is none."""
    return _asked(Latest, "latest", [_path(path)], {
        "fast": fast, "strict": strict, "require_checksums": require_checksums, "require_seal": require_seal, "keys": keys,
        "exclude": exclude, "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def prune(path: Path, *, keep: int, dry_run: bool = False, whole_folders: bool = False, fast: bool = False, strict: bool = False,
          require_checksums: bool = False, require_seal: bool = False, allow_global: Globs = None, threads: Optional[int] = None,
          max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Pruned:
    """Removes what is older than the `keep` newest sound checkpoints of a run's folder."""
    return _asked(Pruned, "prune", [_path(path)], {
        "keep": keep, "dry_run": dry_run, "whole_folders": whole_folders, "fast": fast, "strict": strict,
        "require_checksums": require_checksums, "require_seal": require_seal, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def seal(path: Path, *, dry_run: bool = False, force: bool = False, sync: bool = True, allow_global: Globs = None,
         threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Sealed:
    """Leaves sizes and checksums of a sound checkpoint's files beside them, for verify."""
    return _asked(Sealed, "seal", [_path(path)], {
        "dry_run": dry_run, "force": force, "sync": sync, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def salvage(path: Path, out: Path, *, from_: Optional[Path] = None, step: Optional[int] = None, to: Optional[str] = None,
            dry_run: bool = False, force: bool = False, sync: bool = True, seal: bool = False, keys: Globs = None,
            exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None,
            progress: OnProgress = None, check: bool = True) -> Salvaged:
    """Takes everything that is whole from a damaged checkpoint, and the rest from another one; raises if something stays lost."""
    return _asked(Salvaged, "salvage", [_path(path), _path(out)], {
        "from": from_, "step": step, "to": to, "dry_run": dry_run, "force": force,
        "sync": sync, "seal": seal, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def consolidate(path: Path, out: Path, *, to: Optional[str] = None, dtype: Optional[str] = None, strip_prefix: Globs = None,
                max_shard_size: Size = None, drop_values: bool = False, names_from: Optional[Path] = None, ema: bool = False,
                names: Optional[Path] = None, dry_run: bool = False,
                force: bool = False, sync: bool = True, resume: bool = False, seal: bool = False, keys: Globs = None,
                exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None,
                progress: OnProgress = None, check: bool = True) -> Output:
    """Joins a sharded checkpoint into one full state dict."""
    return _asked(Output, "consolidate", [_path(path), _path(out)], {
        "to": to, "dtype": dtype, "strip_prefix": strip_prefix, "max_shard_size": max_shard_size, "drop_values": drop_values,
        "names_from": names_from, "ema": ema, "names": names, "dry_run": dry_run, "force": force, "sync": sync, "resume": resume,
        "seal": seal, "keys": keys,
        "exclude": exclude, "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def convert(path: Path, out: Path, *, to: Optional[str] = None, world_size: Optional[int] = None, dtype: Optional[str] = None,
            strip_prefix: Globs = None, max_shard_size: Size = None, drop_values: bool = False, names_from: Optional[Path] = None,
            ema: bool = False, names: Optional[Path] = None, dry_run: bool = False, force: bool = False, sync: bool = True, resume: bool = False, seal: bool = False,
            keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
            max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Output:
    """Writes a checkpoint in another format."""
    return _asked(Output, "convert", [_path(path), _path(out)], {
        "to": to, "world_size": world_size, "dtype": dtype, "strip_prefix": strip_prefix, "max_shard_size": max_shard_size,
        "drop_values": drop_values, "names_from": names_from, "ema": ema, "names": names, "dry_run": dry_run, "force": force,
        "sync": sync, "resume": resume, "seal": seal, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def shard(path: Path, out: Path, *, world_size: int, shard: Globs = None, replicate: Globs = None, dry_run: bool = False,
          force: bool = False, sync: bool = True, resume: bool = False, seal: bool = False, keys: Globs = None, exclude: Globs = None,
          allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None,
          progress: OnProgress = None, check: bool = True) -> Resharded:
    """Cuts a full checkpoint into a folder of `world_size` ranks, as FSDP saves it."""
    return _asked(Resharded, "shard", [_path(path), _path(out)], {
        "world_size": world_size, "shard": shard, "replicate": replicate, "dry_run": dry_run, "force": force, "sync": sync, "resume": resume,
        "seal": seal, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def reshard(path: Path, out: Path, *, world_size: int, layout: Optional[str] = None, shard: Globs = None, replicate: Globs = None,
            dry_run: bool = False,
            force: bool = False, sync: bool = True, resume: bool = False, seal: bool = False, keys: Globs = None, exclude: Globs = None,
            allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None,
            progress: OnProgress = None, check: bool = True) -> Resharded:
    """Lays a checkpoint out for `world_size` ranks, in its own layout or, with `layout="dcp"`, as FSDP saves it."""
    return _asked(Resharded, "reshard", [_path(path), _path(out)], {
        "world_size": world_size, "layout": layout, "shard": shard, "replicate": replicate, "dry_run": dry_run, "force": force, "sync": sync, "resume": resume,
        "seal": seal, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def rekey(path: Path, out: Path, *, key_by: str, flatten: bool = False, names: Optional[Path] = None, names_from: Optional[Path] = None,
          copy: bool = False, dry_run: bool = False, force: bool = False, sync: bool = True, seal: bool = False,
          keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
          max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Rekeyed:
    """Changes optimizer state from parameter numbers to names (`key_by="name"`) and back (`key_by="id"`)."""
    return _asked(Rekeyed, "rekey", [_path(path), _path(out)], {
        "key_by": key_by, "flatten": flatten, "names": names, "names_from": names_from, "copy": copy, "dry_run": dry_run, "force": force,
        "sync": sync, "seal": seal, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def rename(path: Path, out: Path, *, names: Optional[Dict[str, str]] = None, rename_file: Optional[Path] = None,
           strip_prefix: Globs = None, drop: Globs = None, copy: bool = False, dry_run: bool = False, force: bool = False,
           sync: bool = True, seal: bool = False, keys: Globs = None, exclude: Globs = None, allow_global: Globs = None,
           threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Renamed:
    """Gives keys other names: `names` is old to new, the --rename of the command."""
    return _asked(Renamed, "rename", [_path(path), _path(out)], {
        "rename": [f"{old}={new}" for old, new in (names or {}).items()], "rename_file": rename_file, "strip_prefix": strip_prefix, "drop": drop,
        "copy": copy, "dry_run": dry_run, "force": force, "sync": sync, "seal": seal, "keys": keys, "exclude": exclude,
        "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


def _assignments(parameters: Optional[Mapping[str, int]]) -> Optional[List[str]]:
    return None if parameters is None else [f"{name}={number}" for name, number in parameters.items()]


@documented
def map_model(rules: Path, path: Path, out: Path, *, parameters: Optional[Mapping[str, int]] = None, config: Optional[Path] = None,
              reverse: bool = False, drop_optimizer: bool = False, to: Optional[str] = None, world_size: Optional[int] = None,
              dtype: Optional[str] = None, max_shard_size: Size = None, drop_values: bool = False, strip_prefix: Globs = None,
              dry_run: bool = False, force: bool = False, sync: bool = True, resume: bool = False, seal: bool = False, keys: Globs = None,
              exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None,
              progress: OnProgress = None, check: bool = True) -> Mapped:
    """Makes the tensors of another model's code: `rules` is a file of rules or a built-in map, the verb `map`."""
    return _asked(Mapped, "map", [_path(rules), _path(path), _path(out)], {
        "set": _assignments(parameters), "config": config, "reverse": reverse,
        "drop_optimizer": drop_optimizer, "to": to, "world_size": world_size, "dtype": dtype, "max_shard_size": max_shard_size,
        "drop_values": drop_values, "strip_prefix": strip_prefix, "dry_run": dry_run, "force": force, "sync": sync,
        "resume": resume, "seal": seal, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def export_model(path: Path, out: Path, *, to: str = "hf", map: Optional[Path] = None, parameters: Optional[Mapping[str, int]] = None,
                 config: Optional[Path] = None, model: Optional[str] = None, ema: bool = False, names: Optional[Path] = None, dequantize: bool = False, quantize: Optional[str] = None,
                 quantize_dialect: Optional[str] = None, quantize_group: Optional[int] = None, quantize_skip: Globs = None, incomplete: bool = False,
                 dtype: Optional[str] = None, max_shard_size: Size = None, strip_prefix: Globs = None, read_again: bool = False, dry_run: bool = False, force: bool = False,
                 sync: bool = True, resume: bool = False, seal: bool = False, keys: Globs = None, exclude: Globs = None,
                 allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Exported:
    """Writes the model as the folder that from_pretrained loads, the verb `export`; `read_again` is its --check."""
    return _asked(Exported, "export", [_path(path), _path(out)], {
        "to": to, "map": map, "set": _assignments(parameters),
        "config": config, "model": model, "ema": ema, "names": names, "dequantize": dequantize, "quantize": quantize, "quantize_dialect": quantize_dialect,
        "quantize_group": quantize_group, "quantize_skip": quantize_skip, "incomplete": incomplete, "dtype": dtype,
        "max_shard_size": max_shard_size, "strip_prefix": strip_prefix, "check": read_again, "dry_run": dry_run,
        "force": force, "sync": sync, "resume": resume,
        "seal": seal, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def import_model(path: Path, out: Path, *, source: str = "hf", map: Path, parameters: Optional[Mapping[str, int]] = None,
                 config: Optional[Path] = None, model: Optional[str] = None, under: Optional[str] = None, incomplete: bool = False,
                 to: Optional[str] = None,
                 world_size: Optional[int] = None, dtype: Optional[str] = None, max_shard_size: Size = None,
                 drop_values: bool = False, strip_prefix: Globs = None, dry_run: bool = False, force: bool = False,
                 sync: bool = True, seal: bool = False, keys: Globs = None, exclude: Globs = None, allow_global: Globs = None,
                 threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Imported:
    """Writes a published model as the checkpoint that a trainer loads, the verb `import`."""
    return _asked(Imported, "import", [_path(path), _path(out)], {
        "source": source, "map": map, "set": _assignments(parameters), "config": config,
        "model": model, "under": under, "incomplete": incomplete, "to": to, "world_size": world_size, "dtype": dtype,
        "max_shard_size": max_shard_size,
        "drop_values": drop_values, "strip_prefix": strip_prefix, "dry_run": dry_run, "force": force, "sync": sync, "seal": seal,
        "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def maps(word: Optional[str] = None) -> List[BuiltinMap]:
    """Returns the built-in maps, or those that mention a word."""
    return _asked(BuiltinMaps, "maps", [word] if word else [], {}, None, True).maps or []


@documented
def map_rules(name: str) -> str:
    """Returns the text of a built-in map."""
    return _asked(BuiltinMaps, "maps", [], {"show": name}, None, True).rules or ""


@documented
def set_values(path: Path, out: Path, assignments: Optional[Dict[str, Any]] = None, *, drop: Globs = None,
               take_from: Optional[Path] = None, take: Globs = None, replace: bool = False, retype: bool = False, copy: bool = False,
               dry_run: bool = False, force: bool = False, sync: bool = True, seal: bool = False, keys: Globs = None,
               exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None,
               progress: OnProgress = None, check: bool = True) -> ValuesSet:
    """Gives values and constant tensors other contents: `assignments` is key (or glob) to value, the verb `set`.  Drops keys,
    and takes keys of the checkpoint `take_from`."""
    words = [f"{key}={value}" for key, value in (assignments or {}).items()]
    return _asked(ValuesSet, "set", [_path(path), _path(out), *words], {
        "drop": drop, "take_from": take_from, "take": take, "replace": replace,
        "retype": retype, "copy": copy, "dry_run": dry_run, "force": force, "sync": sync, "seal": seal, "keys": keys,
        "exclude": exclude, "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def resize_vocab(path: Path, out: Path, size: int, *, table: Globs = None, fill: Optional[str] = None, seed: Optional[int] = None,
                 std: Optional[float] = None, config: Optional[Path] = None, to: Optional[str] = None,
                 world_size: Optional[int] = None, dtype: Optional[str] = None, max_shard_size: Size = None, drop_values: bool = False, strip_prefix: Globs = None, dry_run: bool = False,
                 force: bool = False, sync: bool = True, seal: bool = False, keys: Globs = None, exclude: Globs = None,
                 allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None,
                 check: bool = True) -> VocabularyResized:
    """Gives the embedding and the output layer `size` tokens, and the optimizer's state with them."""
    return _asked(VocabularyResized, "resize-vocab", [_path(path), _path(out)], {
        "size": size, "table": table, "fill": fill, "seed": seed, "std": None if std is None else repr(float(std)),
        "config": config, "to": to,
        "world_size": world_size, "dtype": dtype, "max_shard_size": max_shard_size, "drop_values": drop_values,
        "strip_prefix": strip_prefix, "dry_run": dry_run, "force": force, "sync": sync, "seal": seal, "keys": keys,
        "exclude": exclude, "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def groups(path: Path, out: Path, options: Optional[Dict[str, Any]] = None, *, split: Globs = None,
           join: Optional[Sequence[int]] = None, options_of: Optional[int] = None, of: Optional[str] = None, copy: bool = False,
           dry_run: bool = False, force: bool = False, sync: bool = True, seal: bool = False, keys: Globs = None, exclude: Globs = None,
           allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None,
           check: bool = True) -> GroupsEdited:
    """Divides parameter groups by names of parameters, or joins those at the positions `join`; `options` are for the result."""
    words = [f"{option}={value}" for option, value in (options or {}).items()]
    return _asked(GroupsEdited, "groups", [_path(path), _path(out), *words], {
        "split": split, "join": None if join is None else ",".join(map(str, join)), "options_of": options_of, "of": of,
        "copy": copy, "dry_run": dry_run, "force": force, "sync": sync, "seal": seal, "keys": keys, "exclude": exclude,
        "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def average(paths: Sequence[Path], out: Path, *, weights: Optional[Sequence[float]] = None, normalize: bool = False,
            accumulate: Optional[str] = None, optimizer: bool = False, differing: Optional[str] = None, to: Optional[str] = None,
            world_size: Optional[int] = None, dtype: Optional[str] = None, max_shard_size: Size = None, drop_values: bool = False,
            dry_run: bool = False, force: bool = False, sync: bool = True, resume: bool = False, seal: bool = False, keys: Globs = None,
            exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None,
            progress: OnProgress = None, check: bool = True) -> Averaged:
    """Averages checkpoints of any formats, or adds them up with `weights`."""
    words = None if weights is None else ",".join(repr(float(weight)) for weight in weights)
    return _asked(Averaged, "average", [*map(_path, paths), _path(out)], {
        "weights": words, "normalize": normalize, "accumulate": accumulate, "optimizer": optimizer, "differing": differing,
        "to": to, "world_size": world_size, "dtype": dtype, "max_shard_size": max_shard_size, "drop_values": drop_values,
        "dry_run": dry_run, "force": force, "sync": sync, "resume": resume, "seal": seal, "keys": keys, "exclude": exclude,
        "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def merge_lora(path: Path, adapters: Sequence[Path], out: Path, *, config: Optional[Path] = None, untied: bool = False,
               adapter_config: Optional[Path] = None, alpha: Optional[float] = None, adapter_only: bool = False,
               to: Optional[str] = None, world_size: Optional[int] = None,
               dtype: Optional[str] = None, max_shard_size: Size = None, drop_values: bool = False, dry_run: bool = False,
               force: bool = False, sync: bool = True, seal: bool = False, keys: Globs = None, exclude: Globs = None,
               allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None,
               check: bool = True) -> Merged:
    """Merges LoRA adapters of peft, in their order, into the checkpoint that they were trained for; none if `path` holds one."""
    return _asked(Merged, "merge-lora", [_path(path), *map(_path, adapters), _path(out)], {
        "config": config, "untied": untied,
        "adapter_config": adapter_config, "alpha": alpha, "adapter_only": adapter_only,
        "to": to, "world_size": world_size, "dtype": dtype, "max_shard_size": max_shard_size, "drop_values": drop_values,
        "dry_run": dry_run, "force": force, "sync": sync, "seal": seal, "keys": keys, "exclude": exclude,
        "allow_global": allow_global, "threads": threads, "max_memory": max_memory}, progress, check)


@documented
def extract_lora(path: Path, tuned: Path, out: Path, *, rank: int, alpha: Optional[float] = None, dtype: Optional[str] = None,
                 passes: Optional[int] = None, embedding: Globs = None, modules_to_save: bool = False, fan_in_fan_out: bool = False,
                 model: Optional[str] = None, dry_run: bool = False, force: bool = False, sync: bool = True, seal: bool = False,
                 keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
                 max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> ExtractedAdapter:
    """Writes what training changed between `path` and `tuned` as a LoRA adapter of peft's layout."""
    return _asked(ExtractedAdapter, "extract-lora", [_path(path), _path(tuned), _path(out)], {
        "rank": rank, "alpha": alpha, "dtype": dtype, "passes": passes, "embedding": embedding, "modules_to_save": modules_to_save,
        "fan_in_fan_out": fan_in_fan_out, "model": model, "dry_run": dry_run, "force": force, "sync": sync, "seal": seal,
        "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def diff(path: Path, other: Path, *, atol: Optional[float] = None, rtol: Optional[float] = None, ulp: Optional[int] = None,
         close: bool = False, nan_equal: bool = False, ignore_dtype: bool = False, ignore_values: bool = False,
         strip_prefix_a: Globs = None, strip_prefix_b: Globs = None, map: Optional[Path] = None,
         parameters: Optional[Mapping[str, int]] = None, config: Optional[Path] = None, model: Optional[str] = None,
         sort: Optional[str] = None, by: Optional[str] = None, html: Optional[Path] = None, force: bool = False,
         keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
         max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Comparison:
    """Compares two checkpoints of any formats, or one with its export (`through`); raises if they differ, unless `check` is False."""
    return _asked(Comparison, "diff", [_path(path), _path(other)], {
        "atol": atol, "rtol": rtol, "ulp": ulp, "close": close, "nan_equal": nan_equal, "ignore_dtype": ignore_dtype,
        "ignore_values": ignore_values, "strip_prefix_a": strip_prefix_a, "strip_prefix_b": strip_prefix_b,
        "map": map, "set": _assignments(parameters), "config": config,
        "model": model, "sort": sort, "by": by, "html": html, "force": force,
        "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def stats(path: Path, *, fail_on: Union[str, Sequence[str], None] = None, html: Optional[Path] = None, force: bool = False, keys: Globs = None, exclude: Globs = None,
          allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None,
          check: bool = True) -> Statistics:
    """Returns extremes, mean, spread, zeros, NaN and Inf of each tensor; raises if `fail_on` ("nan", "inf", "zero") finds some."""
    words = fail_on if fail_on is None or isinstance(fail_on, str) else ",".join(fail_on)
    return _asked(Statistics, "stats", [_path(path)], {
        "fail_on": words, "html": html, "force": force, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def quantization(path: Path, *, original: Optional[Path] = None, quantize: Optional[str] = None, quantize_dialect: Optional[str] = None,
                 quantize_group: Optional[int] = None, quantize_skip: Globs = None, html: Optional[Path] = None, force: bool = False, keys: Globs = None, exclude: Globs = None,
                 allow_global: Globs = None, threads: Optional[int] = None, max_memory: Size = None, progress: OnProgress = None,
                 check: bool = True) -> QuantizationLoss:
    """Returns what each weight of a quantized folder lost against `original`, or what the scheme `quantize` would cost a model."""
    return _asked(QuantizationLoss, "stats", [_path(path)], {
        "quantization": True, "original": original, "quantize": quantize, "quantize_dialect": quantize_dialect, "quantize_group": quantize_group,
        "quantize_skip": quantize_skip, "html": html, "force": force, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)


@documented
def extract(path: Path, key: str, out: Optional[Path] = None, *, to: Optional[str] = None, dtype: Optional[str] = None,
            all_elements: bool = False, verify_rest: bool = True, dry_run: bool = False, force: bool = False, sync: bool = True,
            keys: Globs = None, exclude: Globs = None, allow_global: Globs = None, threads: Optional[int] = None,
            max_memory: Size = None, progress: OnProgress = None, check: bool = True) -> Extraction:
    """Returns one tensor, a slice of it or a value (`elements`, `value`), or saves it to `out`, .npy or .pt."""
    return _asked(Extraction, "extract", [_path(path), key, *([_path(out)] if out is not None else [])], {
        "to": to, "dtype": dtype, "all_elements": all_elements, "verify_rest": verify_rest, "dry_run": dry_run, "force": force,
        "sync": sync, "keys": keys, "exclude": exclude, "allow_global": allow_global, "threads": threads,
        "max_memory": max_memory}, progress, check)
