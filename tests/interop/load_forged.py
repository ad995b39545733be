# SPDX-License-Identifier: Apache-2.0
"""Loads files with torch.load, one for each line of standard input, and says what they hold; a part of check_forged.py.

    load_forged.py MODULE...    the modules of the tool's list, which are imported before


A line of JSON for each: {"end": "loads", "told": a digest of the value}, {"end": "refused"} for an exception, or what was wrong: an event of
Python's audit that is more than making an object, more memory than there may be, other values for weights_only=True.
"""
import collections
import hashlib
import importlib
import io
import json
import re
import resource
import sys

import numpy
import torch

# Events of sys.addaudithook that are not only about making objects.
EFFECTS = re.compile(r"^(import|exec|os\.|shutil\.|subprocess\.|socket\.|ctypes\.|pty\.|sqlite3\.|urllib\.|webbrowser\.|code\.__new__|function\.__new__|marshal\.)")
READS = {"os.listdir", "os.scandir", "os.putenv"}
MEMORY = 2 << 30  # beyond what the process has before
events = []
watching = False
listed = {".".join(name.split(".")[:length]) for name in sys.argv[1:] for length in range(1, name.count(".") + 2)}


def watch(event, args):
    if not watching:
        return
    if event == "import" and args[0] in listed:  # one that is not installed
        return
    if EFFECTS.match(event) and event not in READS:
        events.append(f"{event} {args[0]!r}"[:100] if args else event)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        events.append(f"open {args[0]!r} {args[1]}"[:100])


def told(value, seen, depth=0):
    """Returns the type and content of a value, without its places in memory."""
    if depth > 30:
        return "deep"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    more = lambda part: told(part, seen, depth + 1)
    if value is None or type(value) in (bool, int, float, complex, str, bytes, bytearray, range, slice) or isinstance(value, (type, torch.dtype)):
        return kind, repr(value)
    if id(value) in seen:
        return "again"
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        parts = []
        if value.layout == torch.jagged:  # its sizes have a name of their own each time
            return kind, [more(part) for part in (value.values(), value.offsets(), value.lengths())]
        if not plain or value.is_nested or value.device.type != "cpu":
            parts = [repr(value)] if value.device.type in ("cpu", "meta") else []
        elif value.is_sparse:
            parts = [more(value._indices()), more(value._values())]
        elif value.layout != torch.strided:
            parts = [more(part) for part in (value.values(), *([value.crow_indices(), value.col_indices()] if "csr" in str(value.layout) or "bsr" in str(value.layout) else []))]
        else:
            data = value.detach()
            data = data.int_repr() if data.is_quantized else data.resolve_conj().resolve_neg()
            data = data.contiguous()
            parts = [bytes(data.reshape(-1).view(torch.uint8).numpy())] if data.numel() else []
            repr(value)
        return kind, str(value.dtype), tuple(value.shape) if not value.is_nested else None, str(value.layout), value.requires_grad, parts, [
            more(part) for part in sorted(vars(value).items(), key=str)] if getattr(value, "__dict__", None) else None
    if isinstance(value, numpy.ndarray):
        repr(value)
        content = [more(part) for part in value.ravel().tolist()] if value.dtype.hasobject else value.tobytes()
        return kind, str(value.dtype.descr if value.dtype.names else value.dtype.str), value.shape, content
    if isinstance(value, numpy.generic):
        return kind, repr(value), value.dtype.str, value.tobytes() if not value.dtype.hasobject else None
    parts = []
    if isinstance(value, dict):
        parts.append([(more(key), more(part)) for key, part in value.items()])
        parts.append(more(getattr(value, "default_factory", None)))
    elif isinstance(value, (list, tuple, collections.deque)):
        parts += [more(part) for part in value]
        parts.append(getattr(value, "maxlen", None))
    elif isinstance(value, (set, frozenset)):
        parts += sorted(repr(more(part)) for part in value)
    elif isinstance(value, (torch.storage.TypedStorage, torch.UntypedStorage)):
        return kind, list(value)
    else:
        shown = repr(value)
        if " at 0x" not in shown and not hasattr(value, "__dict__"):
            parts.append(shown)
    if isinstance(getattr(value, "__dict__", None), dict):
        parts.append([(more(key), more(part)) for key, part in vars(value).items()])
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot) and slot not in ("__dict__", "__weakref__"):
                parts.append((slot, more(getattr(value, slot))))
    return kind, parts


def load(path, weights_only):
    global watching
    events.clear()
    watching = True
    try:
        value = torch.load(path, weights_only=weights_only)
    except MemoryError:
        return "much memory", None
    except Exception as error:
        if "can't allocate memory" in str(error) or "Unable to allocate" in str(error):
            return "much memory", None
        return ("refused", None) if not events else ("refused, and does " + "; ".join(events), None)
    finally:
        watching = False
    if events:
        return "does " + "; ".join(events), None
    try:
        return "loads", hashlib.sha256(repr(told(value["v"], {})).encode("utf-8", "surrogatepass")).hexdigest()
    except Exception as error:  # a value whose own code refuses to show it
        return "loads", type(error).__name__


def main():
    for name in [*sys.argv[1:], "torch.utils.serialization.config", "encodings.latin_1", "torch.distributed.checkpoint"]:
        try:
            importlib.import_module(name)
        except ImportError:
            pass
    # What PyTorch imports when it is first used.
    jagged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    for value in (torch.eye(2).to_sparse(), numpy.zeros(2), torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8), jagged, jagged * 2):
        repr(value)
    saved = io.BytesIO()
    torch.save({"a": jagged, "b": torch.nn.Parameter(torch.ones(1))}, saved)
    for weights_only in (False, True):
        saved.seek(0)
        try:
            torch.load(saved, weights_only=weights_only)
        except Exception:
            pass
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(watch)
    print("ready", flush=True)
    for line in sys.stdin:
        path = line.rstrip("\n")
        end, content = load(path, False)
        if end == "loads":
            # What PyTorch takes by its own list is the same.
            safe, other = load(path, True)
            if safe not in ("loads", "refused") or (safe == "loads" and other != content):
                end = f"weights_only=True: {safe}, {other}"
        print(json.dumps({"end": end, "told": content}), flush=True)


main()
