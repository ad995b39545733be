# SPDX-License-Identifier: Apache-2.0
"""The rules that hold after any change of a checkpoint: check(case) runs the verbs and reports violations."""
import json
import os


import runner

# Drawn from, beside verify, inspect and consolidate.
MORE = ["fast", "globals", "chunks", "diff", "diff itself", "stats", "extract", "safetensors", "hdf5", "convert dcp", "convert lightning", "reshard",
        "rename", "rekey", "seal", "html"]


def tensors(flat):
    """The tensors of a flat content by their dotted keys."""
    return {key.replace("/", "."): leaf for key, leaf in flat.items() if leaf.get("dtype", "").startswith("torch.")}


def dotted(flat):
    return {key.replace("/", "."): leaf for key, leaf in flat.items() if "empty" not in leaf}


def differences(want, got):
    """Returns None if they are equal; else the first differences."""
    return [f"{k}: {want.get(k)} / {got.get(k)}" for k in sorted({*want, *got}) if want.get(k) != got.get(k)][:3] or None


class Verdict:
    """Returns the report of verify."""

    def __init__(self, run):
        self.status = run.status
        try:
            self.report = json.loads(run.out)
        except ValueError:
            self.report = {}
        self.findings = self.report.get("findings", [])
        # A reader of only the last line would have no reason to look closer.
        self.silent = self.status == 0 and not self.findings


def limit(case, verdict):
    """Returns the limit of docs/reliability.md that lets a changed checkpoint look sound, or None."""
    before, after = case.before, case.after
    new = {name: content for name, content in after.items() if before.get(name) != content}
    lost = set(before) - set(after)
    by_archives = case.subject.checkpoint.layout != "torch without CRC" and any(
        runner.has_checksums(os.path.join(case.subject.root, name)) for name in {*new, *lost})
    if verdict.report.get("bytes_unchecked") and not by_archives:
        if case.run("verify", case.path, "-q", "--require-checksums", may=(0, 1, 2)).status != 0:
            return "no checksum"
    if any(os.path.basename(name) == ".metadata" for name in new):
        return ".metadata without checksum"
    if lost and not any(name in before for name in new):
        return "files that no other names were lost"
    overwritten = [content for name, content in new.items() if name in before] or list(new.values())
    if overwritten and all(content in case.known for content in overwritten):
        return "whole files of other saves"
    if any(name.endswith(".json") for name in new):
        return "JSON without checksum"
    return None


def check(case):
    verdict = Verdict(case.run("verify", case.path, "--json", may=(0, 1, 2)))
    chosen = MORE if case.args.long else case.drawn.sample(MORE, 4)
    inspected = case.run("inspect", case.path, "--json", "--values", "always")
    case.counts["verdict", verdict.report.get("verdict") or "not opened"] += 1
    check_agreement(case, verdict, inspected)
    check_seal(case, verdict)
    readable = case.subject.readable and not runner.has_no_end(case.root)
    read = case.subject.read(case.root) if readable else None
    written = check_consolidate(case, verdict, read)
    check_silence(case, verdict, read, written)
    for name in chosen:
        CHECKS[name](case, verdict, read, written)
        case.clear()
    check_sealing(case, verdict)


def check_agreement(case, verdict, inspected):
    if verdict.status == 0 and inspected.status != 0:
        case.fail("verify is sound, inspect fails:", inspected.err[-300:])
    same_files = case.before == case.after and not case.as_nobody
    if same_files and verdict.status != 0:
        case.fail("no file was changed, and verify has", verdict.findings)


def check_seal(case, verdict):
    if not case.sealed:
        return
    seal = case.seal_name
    if seal not in case.after:   # nothing shows that there was one
        return
    # The next run removes what a killed run of seal left.
    names = {seal, case.subject.inner} if case.subject.inner else {*case.before, *case.after} - {f".{seal}.fsdp-tmp"}
    before, after = ({n: c[n] for n in names if n in c} for c in (case.before, case.after))
    if before != after and verdict.status == 0:
        case.fail("sealed, and the change was not found:", sorted(n for n in names if before.get(n) != after.get(n))[:5], verdict.report.get("seal"))
    if before != after:
        case.counts["sealed: found"] += 1
    elif not case.as_nobody and not any(os.path.islink(os.path.join(case.root, n)) for n in after):
        case.counts["sealed: not changed"] += 1
        if verdict.status != 0 or (verdict.report.get("seal") or {}).get("state") != "matches":
            case.fail("sealed, not changed, and verify says", verdict.status, verdict.report.get("seal"), verdict.findings)


def check_consolidate(case, verdict, read):
    """Consolidates to a torch.save file. Returns what PyTorch reads of it, or None if it was not written."""
    run, out = case.write("consolidate", "out.pt")
    if verdict.status == 0 and verdict.report.get("verdict") == "sound" and run.status != 0:
        case.fail("verify is sound, consolidate fails:", run.err[-300:])
    got = case.subject.reader.read("file", out) if out else None
    case.clear()
    if run.status != 0:
        return None
    if got is None and "init_process_group" in case.subject.reader.error:
        # A rank's tensors in a file of values, which PyTorch loads only among ranks.
        case.counts["written: loads among ranks alone"] += 1
        return None
    if got is None:
        case.fail("PyTorch cannot load what consolidate wrote:", case.subject.reader.error)
        return None
    holds, before, now = case.content(got), case.content(case.subject.truth), case.content(read) if read is not None else None
    if holds in (before, now):
        case.counts["written: as before" if holds == before else "written: as PyTorch reads it now"] += 1
        return got
    why = limit(case, verdict)
    if why is None or read is not None:
        case.fail("consolidate wrote what nobody reads:", differences(before, holds),
                  "PyTorch now:", differences(before, now) if now is not None else "cannot say", "verify:", verdict.status)
    case.counts[f"written: another content, {why}"] += 1
    only_lost = all(case.before.get(name) == content for name, content in case.after.items())
    if only_lost and not holds.items() <= before.items():
        case.fail("files were lost, and what is left has another content:", differences(before, holds))
    return got


def check_silence(case, verdict, read, written):
    """A checkpoint called sound must equal the original, except for the limits."""
    if not verdict.silent:
        return
    truth = case.content(case.subject.truth)
    if case.subject.readable:
        differs = read is None or case.content(read) != truth
    else:
        differs = written is not None and case.content(written) != truth
    if not differs:
        case.counts["called sound: the same"] += 1
        return
    why = limit(case, verdict)
    case.counts[f"called sound: {'another content' if read is not None or written is not None else 'PyTorch refuses it'}, {why}"] += 1
    if why is None:
        case.fail("called sound, and PyTorch", "refuses it" if read is None else differences(truth, case.content(read)))


def fast(case, verdict, read, written):
    run = case.run("verify", case.path, "--fast", "--json", may=(0, 1, 2))
    if verdict.status == 0 and run.status != 0:
        case.fail("sound, but not with --fast:", run.out[-300:])


def globals_(case, verdict, read, written):
    run = case.run("inspect", case.path, "--globals", "--json", may=(0, 1, 2))
    if verdict.silent and set(case.before) == set(case.after) and run.status != 0:
        case.fail("sound, but --globals says", run.status, run.err[-200:], run.out[-300:])


def chunks(case, verdict, read, written):
    case.run("inspect", case.path, "--files", "--chunks", "--fold")


def html(case, verdict, read, written):
    page = os.path.join(case.out, "page.html")
    case.run("inspect", case.path, "--html", page)


def diff(case, verdict, read, written):
    """Compares with the unchanged checkpoint."""
    run = case.run("diff", case.subject.path(), case.path, "-q", "--json", may=(0, 1, 2))
    same = written is not None and case.content(written) == case.content(case.subject.truth)
    if run.status == 0 and written is not None and not same:
        case.fail("diff says the same, consolidate wrote another content")
    if run.status == 1 and same:
        case.fail("diff says they differ, consolidate wrote the same:", run.out[-500:])
    if run.status == 2 and verdict.status == 0 and verdict.report.get("verdict") == "sound":
        case.fail("sound, and diff fails:", run.err[-300:])


def diff_itself(case, verdict, read, written):
    run = case.run("diff", case.path, case.path, "-q", may=(0, 1, 2))
    if run.status == 1 or run.status == 2 and verdict.status == 0 and verdict.report.get("verdict") == "sound":
        case.fail("diff with itself:", run.status, run.err[-300:], run.out[-300:])


def stats(case, verdict, read, written):
    run = case.run("stats", case.path, "--json")
    if run.status == 2 and verdict.status == 0 and verdict.report.get("verdict") == "sound":
        case.fail("sound, and stats fails:", run.err[-300:])
    if run.status == 0 and written is not None and case.content(written) == case.content(case.subject.truth):
        before = runner.Run(case.args.tool, ["stats", case.subject.path(), "--json"])
        one, two = ({t["key"]: t for t in json.loads(r.out)["tensors"]} for r in (before, run))
        if one != two:
            case.fail("stats differ, contents do not:", differences(one, two))


def extract(case, verdict, read, written):
    keys = sorted(tensors(case.subject.truth))
    if not keys:
        return
    key = case.drawn.choice(keys)
    _, out = case.write("extract", "out.pt", key=key)
    if out is None:
        return
    got = case.subject.reader.read("file", out)
    case.counts["extracted"] += 1
    allowed = [tensors(c).get(key) for c in (case.subject.truth, read, written) if c is not None]
    if got is None or list(got.values())[0] not in allowed:
        case.fail("extract", key, got, allowed)


def compared(case, out, kind, read, written, part=tensors):
    """Checks an output of tensors with its own reader: equals those of before, of PyTorch now, or of the .pt compared already."""
    if out is None or kind == "hdf5" and not case.args.h5py:
        return
    got = case.subject.reader.read(kind, out)
    if got is None:
        case.fail(f"the {kind} output cannot be read:", case.subject.reader.error)
        return
    case.counts[f"outputs compared: {kind}"] += 1
    got = part(got)
    contents = [part(c) for c in (case.subject.truth, read, written) if c is not None]
    if got not in contents:
        case.fail(f"the {kind} output holds what nobody reads:", differences(contents[0], got))


def safetensors(case, verdict, read, written):
    # Content that the format cannot hold is an error, as before the change.
    _, out = case.write("consolidate", "out.safetensors", "--drop-values")
    compared(case, out, "safetensors", read, written)


def hdf5(case, verdict, read, written):
    _, out = case.write("consolidate", "out.h5")
    # Keys of HDF5 are escaped, and a dot is a level: the elements are compared.
    compared(case, out, "hdf5", read, written, elements)


def elements(flat):
    """Only dtype, shape and elements, for outputs with other names, in which tied tensors are one."""
    return {key: leaf for key, leaf in ((f"{leaf['dtype']} {leaf['shape']} {leaf['sha256']}", leaf) for leaf in tensors(flat).values()
                                        if "sha256" in leaf)}


def convert_dcp(case, verdict, read, written):
    _, out = case.write("convert", "out", "--to", "dcp")
    compared(case, out, "dcp", read, written)


def convert_lightning(case, verdict, read, written):
    _, out = case.write("convert", "out", "--to", "lightning", "--drop-values")
    compared(case, out, "dcp", read, written, elements)


def reshard(case, verdict, read, written):
    _, out = case.write("reshard", "out", "--world-size", "3", "--layout", "dcp")
    compared(case, out, "dcp", read, written)


def form_of(case, out):
    """Returns the reader of an output that has the form of its input."""
    if os.path.isdir(out):
        return "dcp" if os.path.exists(os.path.join(out, ".metadata")) else "safetensors"
    return case.subject.checkpoint.kind if case.subject.checkpoint.kind in ("safetensors", "hdf5") else "file"


def other_names(case, read, written, verb, *words):
    """A folder's data are shared unread, except with --copy: damage stays, and verify reports it for the output as well."""
    copied = ["--copy"] if case.drawn.random() < 0.5 else []
    _, out = case.write(verb, "out", *words, *copied)
    if out is None:
        return
    if form_of(case, out) == "dcp" and not copied and case.run_quietly("verify", out, "-q").status != 0:
        case.counts["outputs that share damaged data"] += 1
        return
    compared(case, out, form_of(case, out), read, written, elements)


def rename(case, verdict, read, written):
    keys = sorted(tensors(case.subject.truth))
    if keys:
        name = case.drawn.choice(keys)
        other_names(case, read, written, "rename", "--rename", f"{name}={name}_new")


def rekey(case, verdict, read, written):
    other_names(case, read, written, "rekey", "--key-by", "id")


def seal(case, verdict, read, written):
    run = case.run("seal", case.path, "--dry-run", may=(0, 1, 2))
    # A seal covers everything in the folder, verify only the files of the checkpoint: pipes, targets of links to other places, and
    # unreadable files have no checksum.
    odd = case.as_nobody or any(os.path.islink(os.path.join(case.root, name)) for name in case.after) or runner.has_no_end(case.root)
    # `verify` lists the checkpoints in a folder that is not one itself, `seal` requires one.
    odd = odd or "checkpoints" in verdict.report
    if verdict.status == 0 and verdict.report.get("seal") is None and run.status != 0 and not odd:
        case.fail("verify is sound, seal fails:", run.err[-300:])


def check_sealing(case, verdict):
    """Runs last, because it writes into the checkpoint: only the seal, which verify then finds to match."""
    run = runner.Run(case.args.tool, ["seal", case.path, "--no-sync", "-q", "--force"], case.as_nobody)
    after = case.everything()
    left = {name: entry for name, entry in after[0].items() if entry != case.snapshot[0].get(name)}
    if run.fault() or after[1] != case.snapshot[1]:
        case.fail("seal", run.fault(), run.err[-300:])
    # The folder it lies in has another time.
    if set(left) - {os.path.dirname(case.seal_name) or "."} != ({case.seal_name} if run.status == 0 else set()):
        case.fail("seal", run.status, "left", sorted(left))
    lists = verdict.report.get("seal"), verdict.report.get("integrity")
    if run.status == 0 and verdict.status == 1 and lists == (None, None):
        case.fail("verify finds damage, seal does not:", verdict.findings)
    if run.status == 0:
        again = case.run_quietly("verify", case.path, "--json")
        if again.status != 0 or (json.loads(again.out)["seal"] or {}).get("state") != "matches":
            case.fail("just sealed, and verify has", again.status, again.out[-500:], again.err[-300:])
    case.counts["sealing afterwards", run.status] += 1


CHECKS = {"fast": fast, "globals": globals_, "chunks": chunks, "diff": diff, "diff itself": diff_itself, "stats": stats, "extract": extract,
          "safetensors": safetensors, "hdf5": hdf5, "convert dcp": convert_dcp, "convert lightning": convert_lightning, "reshard": reshard,
          "rename": rename, "rekey": rekey, "seal": seal, "html": html}


def report(counts):
    """The counts: runs by layout, verb and change, each by status; findings; checkpoints called sound and why."""
    lines = []
    for table in ("layout", "verb", "change"):
        rows = sorted({key[2] for key in counts if isinstance(key, tuple) and key[:2] == ("by", table)})
        lines.append(f"{table:24}" + "".join(f"{head:>10}" for head in ("status 0", "1", "2", "other")))
        for row in rows:
            of_row = [(key[3], n) for key, n in counts.items() if isinstance(key, tuple) and key[:3] == ("by", table, row)]
            by = [sum(n for status, n in of_row if column(status) == c) for c in range(4)]
            lines.append(f"{row:24}" + "".join(f"{n:10}" for n in by))
    lines += [f"{n:8}  {key if isinstance(key, str) else ' '.join(map(str, key))}" for key, n in sorted(counts.items(), key=str)
              if isinstance(key, str) or key[0] != "by"]
    return "\n".join(lines)


def column(status):
    return status if status in (0, 1, 2) else 3
