"""make.py OUT [TYPE...]: one line of JSON for each model type."""
import json, re, signal, sys, os, time, traceback, multiprocessing
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import infer, layouts
import transformers

ORDER = ["MODEL_FOR_CAUSAL_LM", "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL_FOR_PRETRAINING", "MODEL_FOR_MASKED_LM",
         "MODEL_FOR_CTC", "MODEL_FOR_IMAGE_CLASSIFICATION"]


# What is looked at in the other classes of a type; the rest they share with the usual one.
MOST_SECONDS = 120   # of a processor, of a type
SHALLOW = re.compile(r"(^|\.)(hidden_size|d_model|n_embd|embed_dim|dim|vocab_size|tie_word_embeddings|num_hidden_layers|n_layers?|num_layers|"
                     r"encoder_layers|decoder_layers)$")


def rank(table):
    name = table.removesuffix("_MAPPING_NAMES")
    return ORDER.index(name) if name in ORDER else len(ORDER) + (name == "MODEL") + 2 * (not name)


def canonical(name, front):
    return name.removeprefix(front)


def of_class(samples, deep, main):
    out = {}
    for which in "file", "module":
        if which == "module" and all(one.file == one.module for one in samples.all()):
            break
        entries = infer.entries_of(samples, which)
        infer.mend(entries, samples, which)
        out[which] = entries
    if "module" in out and {json.dumps(e, sort_keys=True) for e in out["file"]} == {json.dumps(e, sort_keys=True) for e in out["module"]}:
        del out["module"]
    return out


def borrow(entries, main, samples, which, fronts):
    """What was looked at deeply in another class holds here, if no sample says otherwise."""
    mine, theirs = fronts
    table = {canonical(entry["name"], theirs): entry for entry in main}
    own = {canonical(entry["name"], mine): at for at, entry in enumerate(entries)}
    front = mine if any(entry["name"].startswith(mine) for entry in entries) else ""
    modules = {up(name) for name in own} | {up(up(name)) for name in own}
    stacks = {name.partition("{}")[0] for name in own if "{}" in name}
    for name, other in table.items():
        at = own.get(name)
        near = {up(name), up(up(name))} & modules or ("{}" in name and name.partition("{}")[0] in stacks)
        if at is None and ("if" not in other or not near):
            continue
        taken = {**json.loads(json.dumps(other)), "name": entries[at]["name"] if at is not None else front + name}
        # Only where it agrees with all samples.
        if not agrees(taken, samples, which):
            continue
        if at is None:
            entries.append(taken)
        else:
            entries[at] = taken


def up(name):
    return name.rpartition(".")[0] or name


def agrees(entry, samples, which):
    for one in samples.all():
        actual = getattr(one, which)
        for name, shape, must, _ in infer.expected([entry], one.values):
            real = actual.get(name)
            if real is None:
                if must:
                    return False
            elif shape is not None and (len(shape) != len(real) or any(a is not None and a != b for a, b in zip(shape, real))):
                return False
    return True


def size_of(model_type, name):
    """The number of names of a class, without numbers; 0 if it cannot be made."""
    try:
        return len({infer.split(key, ())[0] for key in layouts.small(model_type, name)[1].file})
    except Exception:
        return 0


def of_type(model_type):
    begin = time.time()
    infer._known.clear()
    classes = layouts.every_class()[model_type]
    names = sorted(classes, key=lambda name: (rank(classes[name]), name))
    found, failed, main = {}, {}, None
    # The usual class is looked at deeply: the first of those that have nearly all that any has.
    sizes = {name: size_of(model_type, name) for name in names}
    most = max(sizes.values(), default=0)
    names.sort(key=lambda name: sizes[name] < 0.8 * most)
    for name in names:
        if not hasattr(transformers, name):
            failed[name] = "not there"
            continue
        try:
            if main is None:
                samples = infer.Samples(model_type, name)
                main = (name, samples)
            else:
                fields = {path for path in main[1].affecting if SHALLOW.search(path)} | {"num_labels"}
                samples = infer.Samples(model_type, name, fields, deep=False)
            made = of_class(samples, main[0] == name, main)
            front = (getattr(getattr(transformers, name), "base_model_prefix", "") or "") + "."
            if main[0] != name:
                for which in "file", "module":
                    base = found[main[0]].get(which) or found[main[0]]["file"]
                    borrow(made.get(which, []), base, samples, which, (front, found[main[0]]["front"]))
            tied = {}
            for one in samples.all():
                for key, value in one.tied.items():
                    tied[infer.split(key, ())[0]] = infer.split(value, ())[0]
            made["tied"] = tied
            made["front"] = front
            made["samples"] = len(samples.all())
            made["failed"] = samples.failed
            used = set()
            for which in "file", "module":
                used |= infer.used_in(made.get(which, []))
            made["defaults"] = infer.defaults_of(samples, used)
            found[name] = made
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:160]}"
    subs = {}
    if main:
        config = layouts.config_of(model_type, {}, main[0])
        def walk(cfg, path):
            for sub in getattr(cfg, "sub_configs", {}) or {}:
                one = getattr(cfg, sub, None)
                if one is not None and hasattr(one, "model_type"):
                    subs[path + sub] = one.model_type
                    walk(one, path + sub + ".")
        walk(config, "")
    return {"type": model_type, "main": main[0] if main else None, "sub": subs, "classes": found, "not_made": failed, "seconds": round(time.time() - begin, 1)}


class TooLong(BaseException):
    """Passes by what catches the errors of classes that cannot be made."""


def too_long(*_):
    raise TooLong(f"took more than {MOST_SECONDS} s")


def guarded(model_type):
    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        return of_type(model_type)
    except (Exception, TooLong) as error:
        return {"type": model_type, "classes": {}, "not_made": {"*": f"{type(error).__name__}: {str(error)[:200]}"}, "error": traceback.format_exc()[-600:]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    everything = layouts.every_class()
    ready = set()
    if os.path.exists(sys.argv[1]):
        with open(sys.argv[1]) as f:
            ready = {json.loads(line)["type"] for line in f}
    # Types that many have first.
    types = sys.argv[2:] or sorted(set(everything) - ready, key=lambda one: (min(rank(table) for table in everything[one].values()), one))
    with open(sys.argv[1], "a") as out, multiprocessing.Pool(2, maxtasksperchild=10) as pool:
        for done in pool.imap_unordered(guarded, types):
            out.write(json.dumps(done) + "\n")
            out.flush()
