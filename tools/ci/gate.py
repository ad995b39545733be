# SPDX-License-Identifier: Apache-2.0
"""Runs `fsdp-ckpt verify` or `diff` over checkpoints, and makes one list of findings of what it prints.

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

# What a checkpoint's answer is called, from the best to the worst; `failed` has exit status 2.
VERDICTS = ("sound", "same", "unknown", "different", "unsafe", "damaged", "failed")

# severity: error or warning.  code: of docs/errors.md, or the kind of a difference.  file: within the checkpoint, or None.
Finding = collections.namedtuple("Finding", "severity code file text")
# of one checkpoint; report: what --json printed, or None; said: lines on standard error.
Answer = collections.namedtuple("Answer", "path status verdict findings report said")


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
    lines = [f"{answer.path}: {answer.verdict}, {counted(len(answer.findings), 'finding')}"]
    lines += [f"  {finding.severity}[{finding.code}]: {finding.text}" for finding in answer.findings[:most]]
    if len(answer.findings) > most:
        lines.append(f"  and {len(answer.findings) - most} more")
    return lines + ["  " + line for line in answer.said]


def lines_of(text):
    return [line.strip() for line in (text or "").splitlines() if line.strip()]


class Settings:
    """What the environment asks for, one variable a setting."""

    NAMES = ("VERB", "PATHS", "AGAINST", "SEAL", "STRICT", "FAST", "KEYS", "EXCLUDE", "ATOL", "RTOL", "CLOSE", "OPTIONS")
    OF_VERB = {"SEAL": "verify", "STRICT": "verify", "FAST": "verify", "AGAINST": "diff", "ATOL": "diff", "RTOL": "diff", "CLOSE": "diff"}

    def __init__(self, environment):
        self.values = {name: environment.get("FSDP_" + name, "").strip() for name in self.NAMES}
        self.verb = self.values["VERB"] or "verify"
        if self.verb not in ("verify", "diff"):
            raise GateError(f"verb: {visible(self.verb)!r} is neither verify nor diff")
        for name, verb in self.OF_VERB.items():
            if self.values[name] not in ("", "false", "optional") and verb != self.verb:
                raise GateError(f"{name.lower()}: is of {verb}, and the verb is {self.verb}")
        self.against = self.values["AGAINST"]
        if self.verb == "diff" and not self.against:
            raise GateError("against: diff needs the checkpoint to compare with")
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
        words += [f"--{name.lower()}={self.values[name]}" for name in ("ATOL", "RTOL") if self.values[name]]
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
    return Answer(path, 2, "failed", [Finding("error", code, None, text)], None, list(said))


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


def answers_of(report, path, status, strict, said):
    """The answers of one run; verify of a folder with several checkpoints has one of each."""
    schema = report["schema"]
    if schema == "fsdp-ckpt/error/1":
        return [failed(path, str(report["code"]), str(report["message"]), said)]
    if schema == "fsdp-ckpt/verify-run/1":
        answers = []
        for entry in report["checkpoints"]:
            if "verdict" in entry:
                answers += answers_of({**entry, "schema": "fsdp-ckpt/verify/1"}, str(entry["path"]), 0 if entry["sound"] else 1, strict, ())
            else:
                answers.append(failed(str(entry["path"]), str(entry["code"]), str(entry["message"])))
        if max((answer.status for answer in answers), default=None) != status:
            raise ValueError("the exit status is not that of the checkpoints")
        return [answer._replace(said=list(said)) if i == 0 else answer for i, answer in enumerate(answers)]
    if schema == "fsdp-ckpt/verify/1":
        findings, verdict, good = list(findings_of_verify(report, strict)), report["verdict"], report["sound"]
        if not good and verdict in ("sound", "unknown"):
            verdict = "damaged"   # strict
    elif schema == "fsdp-ckpt/diff/1":
        findings, good = list(findings_of_diff(report)), report["same"]
        verdict = "same" if good else "different"
    else:
        raise ValueError(f"unknown schema {schema!r}")
    if verdict not in VERDICTS or good is not (status == 0) or status not in (0, 1):
        raise ValueError("the exit status is not that of the report")
    return [Answer(path, status, verdict, findings, report, list(said))]


def ask(program, settings, path):
    """Runs the verb on one path; returns its answers, one or more."""
    # Behind -- a name is never an option.
    names = [path] if settings.verb == "verify" else [settings.against, path]
    done = subprocess.run([program, settings.verb, "--json", "--progress=never", "--color=never", *settings.words(), "--", *names],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    said = [line for line in done.stderr.decode("utf-8", "backslashreplace").splitlines() if line]
    if done.returncode < 0 or done.returncode > 2:
        return [failed(path, "STOPPED", f"fsdp-ckpt ended with status {done.returncode}", said)]
    try:
        return answers_of(json.loads(done.stdout.decode("utf-8")), path, done.returncode, settings.strict, said)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return [failed(path, "NO_REPORT", f"what fsdp-ckpt printed is not a report of {settings.verb}: {cut(str(error))}", said)]


def ask_all(program, settings):
    return [answer for path in settings.paths() for answer in ask(program, settings, path)]


def status_of(answers):
    return max(answer.status for answer in answers)


def worst(answers):
    return max((answer.verdict for answer in answers), key=VERDICTS.index)
