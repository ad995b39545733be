# SPDX-License-Identifier: Apache-2.0
"""Runs `fsdp-ckpt verify`, `diff`, `stats` or `inspect` over checkpoints, and makes one list of findings of what it prints.

Shared by github.py, gitlab.py and pre_commit.py, which show the findings.  Needs Python 3.8 and nothing else.  Names in checkpoints, names
of files and the tool's messages may be hostile: visible() comes before every way to show them.
"""
import collections
import glob
import json
import os
import shutil
import subprocess
import unicodedata

# What a checkpoint's answer is called, from the best to the worst.  `passed` and `tripped` are of stats and inspect; `failed` has exit status 2.
VERDICTS = ("sound", "same", "passed", "unknown", "unsealed", "different", "tripped", "unsafe", "damaged", "failed")

# severity: error or warning.  code: of docs/errors.md, DIFFERENT, the word of stats' gate, or SIZE.  file: within the checkpoint, or None.
Finding = collections.namedtuple("Finding", "severity code file text")
# of one checkpoint; looked: what was looked at; report: what --json printed, or None; said: lines on standard error.
Answer = collections.namedtuple("Answer", "path status verdict looked findings report said")


class GateError(Exception):
    """The gate could not begin: a setting is wrong, or nothing is there to look at."""


def visible(text):
    """Returns the text with everything escaped that ends a line, moves the cursor or the direction, or cannot be seen."""
    return "".join(c if c == " " or unicodedata.category(c)[0] not in "CZ" else ascii(c)[1:-1] for c in str(text))


def cut(text, limit=400):
    return text if len(text) <= limit else text[:limit - 1] + "…"


def counted(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def text_of(answer, most=1000):
    """The lines that people read of an answer, in a log; visible() is the caller's."""
    lines = [", ".join([f"{answer.path}: {answer.verdict}", *([answer.looked] if answer.looked else []), counted(len(answer.findings), "finding")])]
    lines += [f"  {finding.severity}[{finding.code}]: {finding.text}" for finding in answer.findings[:most]]
    if len(answer.findings) > most:
        lines.append(f"  and {len(answer.findings) - most} more")
    return lines + ["  " + line for line in answer.said]


def outcome(settings, answers):
    """One line: how many checkpoints passed, and what the others are."""
    passed = sum(answer.status == 0 for answer in answers)
    others = collections.Counter(answer.verdict for answer in answers if answer.status != 0)
    line = f"{settings.verb}: {passed} of {counted(len(answers), 'checkpoint')} passed"
    return "; ".join([line, *(f"{others[verdict]} {verdict}" for verdict in VERDICTS if others[verdict])])


def lines_of(text):
    return [line.strip() for line in (text or "").splitlines() if line.strip()]


class Settings:
    """What the environment asks for, one variable a setting."""

    NAMES = ("VERB", "PATHS", "AGAINST", "FAIL_ON", "MAX_BYTES", "SEAL", "STRICT", "FAST", "KEYS", "EXCLUDE", "ATOL", "RTOL", "CLOSE", "OPTIONS")
    VERBS = ("verify", "diff", "stats", "inspect")
    OF_VERB = {"SEAL": "verify", "STRICT": "verify", "FAST": "verify", "AGAINST": "diff", "ATOL": "diff", "RTOL": "diff", "CLOSE": "diff",
               "FAIL_ON": "stats", "MAX_BYTES": "inspect"}
    # Without it the verb has nothing to say no to.
    NEEDED = {"diff": ("AGAINST", "the checkpoint to compare with"), "inspect": ("MAX_BYTES", "the size of a checkpoint's files, such as 2GiB")}

    def __init__(self, environment):
        self.values = {name: environment.get("FSDP_" + name, "").strip() for name in self.NAMES}
        self.verb = self.values["VERB"] or "verify"
        if self.verb not in self.VERBS:
            raise GateError(f"verb: {visible(self.verb)!r} is not one of {', '.join(self.VERBS)}")
        for name, verb in self.OF_VERB.items():
            if self.values[name] not in ("", "false", "optional") and verb != self.verb:
                raise GateError(f"{name.lower()}: is of {verb}, and the verb is {self.verb}")
        needed, what = self.NEEDED.get(self.verb, (None, None))
        if needed and not self.values[needed]:
            raise GateError(f"{needed.lower()}: {self.verb} needs {what}")
        self.against = self.values["AGAINST"]
        self.strict = self.flag("STRICT")
        self.patterns = lines_of(self.values["PATHS"])

    def flag(self, name):
        word = self.values[name]
        if word not in ("", "true", "false"):
            raise GateError(f"{name.lower()}: {visible(word)!r} is neither true nor false")
        return word == "true"

    def words(self):
        """The options of the verb."""
        words = []
        if self.values["SEAL"] not in ("", "optional", "required"):
            raise GateError(f"seal: {visible(self.values['SEAL'])!r} is neither optional nor required")
        if self.values["SEAL"] == "required":
            words.append("--require-seal")
        words += ["--" + name.lower() for name in ("STRICT", "FAST", "CLOSE") if self.flag(name)]
        words += [f"--{name.lower().replace('_', '-')}={self.values[name]}" for name in ("ATOL", "RTOL", "MAX_BYTES") if self.values[name]]
        if self.verb == "inspect":
            words.append("--values=never")   # they lie in data files, which may be missing
        if self.verb == "stats":
            words.append("--fail-on=" + (self.values["FAIL_ON"] or "nan,inf"))
        words += ["--keys=" + key for key in lines_of(self.values["KEYS"])]
        words += ["--exclude=" + key for key in lines_of(self.values["EXCLUDE"])]
        return words + lines_of(self.values["OPTIONS"])

    def paths(self):
        """The checkpoints that the patterns name, in their order; a pattern that names none is an error."""
        found = []
        for pattern in self.patterns:
            # A file that is called `*` hides nothing.
            names = sorted({*glob.glob(pattern, recursive=True), *([pattern] if os.path.lexists(pattern) else [])})
            if not names:
                raise GateError(f"paths: nothing is called {visible(pattern)!r}")
            found += [name for name in names if name not in found]
        if not found:
            raise GateError("paths: names no checkpoint")
        return found


def find_program(name):
    """The absolute path of the fsdp-ckpt that is called `name`."""
    program = shutil.which(name)
    if program is None:
        raise GateError(f"{visible(name)!r} is not a program here")
    return os.path.abspath(program)


def failed(path, code, text, said=()):
    return Answer(path, 2, "failed", "", [Finding("error", code, None, text)], None, list(said))


def answer_of_verify(report, settings, _):
    findings, verdict, good = list(findings_of_verify(report, settings.strict)), report["verdict"], report["sound"]
    worse = {entry["severity"] for entry in report["findings"] if entry["code"] != "UNSEALED"}
    if verdict == "damaged" and "damage" not in worse:
        verdict = "unsafe" if "unsafe" in worse else "unsealed"
    if not good and verdict in ("sound", "unknown"):
        verdict = "damaged"   # strict
    looked = [counted(report["items"], "item")]
    looked += [f"{report[name]:,} bytes {what}" for name, what in (("bytes_checked", "with checksums"), ("bytes_unchecked", "without")) if report[name]]
    looked += [f"{seal['file']} {seal['state']}" for seal in (report["seal"], report["integrity"]) if seal is not None] or ["no seal"]
    return good, verdict, ", ".join(looked), findings


def findings_of_verify(report, strict):
    for entry in report["findings"]:
        severity = "error" if strict or entry["severity"] in ("damage", "unsafe") else "warning"
        text = entry["message"]
        if entry["key"] is not None:
            text = f"'{entry['key']}': {text}"
        if entry["file"] is not None:
            text = f"{entry['file']}: {text}"
        yield Finding(severity, str(entry["code"]), entry["file"], str(text))


def text_of_difference(entry):
    what, a, b = entry["what"], entry["a"], entry["b"]
    if what == "only_a":
        near = f"; {entry['nearest']!r} is only in the checkpoint" if entry.get("nearest") else ""
        return f"is only in the reference, as {a}{near}"
    if what == "only_b":
        near = f"; {entry['nearest']!r} is only in the reference" if entry.get("nearest") else ""
        return f"is not in the reference: {b}{near}"
    if what != "tensor":
        where = f" at {entry['where']}" if entry.get("where") else ""
        return f"{what}{where}: {a} in the reference, {b} in the checkpoint"
    text = f"{entry['different']} of {entry['elements']} elements differ"
    if entry.get("max_abs") is not None:
        text += f", by up to {entry['max_abs']:.6g} at {entry['max_abs_at']}"
    return text


def findings_of_diff(report):
    for entry in report["differences"]:
        yield Finding("error", "DIFFERENT", None, f"'{entry['key']}': {text_of_difference(entry)}")


def answer_of_diff(report, *_):
    looked = f"{counted(report['tensors'], 'tensor')}, {counted(report['values'], 'value')}"
    return report["same"], "same" if report["same"] else "different", looked, list(findings_of_diff(report))


def answer_of_stats(report, *_):
    names = {"nan": "NaN", "inf": "infinite", "zero": "zeros and nothing else"}
    findings = [Finding("error", str(entry["what"]).upper(), None, f"'{entry['key']}': {entry['count']:,} {names[entry['what']]}") for entry in report["failures"]]
    looked = f"{counted(report['totals']['tensors'], 'tensor')}, {report['totals']['parameters']:,} elements: {', '.join(report['fail_on'])}"
    return report["passed"], "passed" if report["passed"] else "tripped", looked, findings


def answer_of_inspect(report, settings, status):
    sizes = [file["bytes"] for file in report["files"]]
    missing, limit = sizes.count(None), settings.values["MAX_BYTES"]
    looked = f"{sum(size or 0 for size in sizes):,} bytes in {counted(len(sizes), 'file')}, {limit} allowed"
    for name in ("tensors", "values"):
        del report[name]   # as large as the checkpoint has parts
    finding = Finding("error", "SIZE", None, f"{looked}{f', {missing} missing' if missing else ''}")
    return (True, "passed", looked, []) if status == 0 else (False, "tripped", looked, [finding])


def answers_of(report, path, status, settings, said):
    """The answers of one run; verify of a folder with several checkpoints has one of each."""
    schema = report["schema"]
    if schema == "fsdp-ckpt/error/1":
        return [failed(path, str(report["code"]), str(report["message"]), said)]
    if schema == "fsdp-ckpt/verify-run/1":
        answers = []
        for entry in report["checkpoints"]:
            if "verdict" in entry:
                answers += answers_of({**entry, "schema": "fsdp-ckpt/verify/1"}, str(entry["path"]), 0 if entry["sound"] else 1, settings, ())
            else:
                answers.append(failed(str(entry["path"]), str(entry["code"]), str(entry["message"])))
        if max((answer.status for answer in answers), default=None) != status:
            raise ValueError("the exit status is not that of the checkpoints")
        return [answer._replace(said=list(said)) if i == 0 else answer for i, answer in enumerate(answers)]
    readers = {f"fsdp-ckpt/{verb}/1": reader for verb, reader in
               (("verify", answer_of_verify), ("diff", answer_of_diff), ("stats", answer_of_stats), ("inspect", answer_of_inspect))}
    if schema not in readers:
        raise ValueError(f"unknown schema {schema!r}")
    good, verdict, looked, findings = readers[schema](report, settings, status)
    if verdict not in VERDICTS or good is not (status == 0) or status not in (0, 1):
        raise ValueError("the exit status is not that of the report")
    return [Answer(path, status, verdict, looked, findings, report, list(said))]


def ask(program, settings, path):
    """Runs the verb on one path; returns its answers, one or more."""
    # Behind -- a name is never an option.
    names = [settings.against, path] if settings.verb == "diff" else [path]
    done = subprocess.run([program, settings.verb, "--json", "--progress=never", "--color=never", *settings.words(), "--", *names],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    said = [line for line in done.stderr.decode("utf-8", "backslashreplace").splitlines() if line]
    if done.returncode < 0 or done.returncode > 2:
        return [failed(path, "STOPPED", f"fsdp-ckpt ended with status {done.returncode}", said)]
    try:
        return answers_of(json.loads(done.stdout.decode("utf-8")), path, done.returncode, settings, said)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return [failed(path, "NO_REPORT", f"what fsdp-ckpt printed is not a report of {settings.verb}: {cut(str(error))}", said)]


def ask_all(program, settings):
    return [answer for path in settings.paths() for answer in ask(program, settings, path)]


def status_of(answers):
    return max(answer.status for answer in answers)


def worst(answers):
    return max((answer.verdict for answer in answers), key=VERDICTS.index)
