# SPDX-License-Identifier: Apache-2.0
"""Finds the program, runs it, and turns its status into an answer or an exception."""
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import threading
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

# After Ctrl-C the program removes what it has not finished; it needs less than this.
_SECONDS_TO_END = 5

_ERASE = b"\x1b[K"
# "consolidate  1.2 GiB of 8.0 GiB  900.0 MiB/s  15 %  8 s left"
_PROGRESS = re.compile(rb"(?:\x1b\[K)?[a-z ]+  [0-9.]+ \w+.*/s")


class FsdpCkptError(Exception):
    """The program said no, could not do it, or did not run.

    status      the exit status: 1 the answer is no, 2 it could not be done; minus the number of a signal that ended it;
                127 where there is no program
    code        the word in brackets, such as NOT_FOUND (docs/errors.md); FINDINGS, DIFFERENT, LIMIT or FAILED for status 1
    message     in one line, for people
    findings    damage and the like that verify and seal found, else empty
    answer      for status 1, what the function would have returned
    """

    def __init__(self, status: int, code: str, message: str, findings: Sequence[Any] = (), answer: Any = None) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message
        self.findings = list(findings)
        self.answer = answer

    def __str__(self) -> str:
        lines = [f"fsdp-ckpt: error[{self.code}]: {self.message}"]
        lines += [f"{finding.severity}[{finding.code}]: {finding.message}" for finding in self.findings[:20]]
        if len(self.findings) > 20:
            lines.append(f"and {len(self.findings) - 20} more")
        return "\n".join(lines)


@dataclass(frozen=True)
class Progress:
    """How far a verb is, as it says about five times a second."""
    text: str                     # the line that a terminal would show
    percent: Optional[int]        # None before it is known
    seconds_left: Optional[int]

    def __str__(self) -> str:
        return self.text


def program() -> str:
    """Returns the path of the program: $FSDP_CKPT, the one that was installed with this module, or the one on PATH."""
    chosen = os.environ.get("FSDP_CKPT")
    if chosen:
        return chosen
    name = "fsdp-ckpt"
    try:
        for file in metadata.files(name) or []:
            if file.name == name:
                path = os.path.realpath(str(file.locate()))
                if os.access(path, os.X_OK) and os.path.isfile(path):
                    return path
    except metadata.PackageNotFoundError:
        pass
    for path in (os.path.join(sysconfig.get_path("scripts"), name), shutil.which(name)):
        if path and os.access(path, os.X_OK):
            return path
    raise FsdpCkptError(127, "NOT_FOUND", "the program fsdp-ckpt is neither installed with this module nor on PATH; FSDP_CKPT names another")


def version() -> str:
    """Returns what --version prints: version, commit, and the libraries in the program."""
    status, out, err = run("--version")
    if status != 0:
        raise FsdpCkptError(status, "FAILED", err.strip())
    return out.strip()


def _told(line: str) -> Progress:
    percent = re.search(r"  (\d+) %", line)
    left = re.search(r"  (\d+) s left", line)
    return Progress(line, int(percent.group(1)) if percent else None, int(left.group(1)) if left else None)


def run(*arguments: str, progress: Optional[Callable[[Progress], None]] = None) -> Tuple[int, str, str]:
    """Runs the program with these words and returns its status, standard output and standard error.

    `progress` is called by another thread; what it raises ends the program, and is raised here.
    """
    path = program()
    words = [path, *arguments] + (["--progress", "always"] if progress is not None else [])
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise FsdpCkptError(127, "NOT_FOUND", f"{path}: {error.strerror}") from error
    said: List[str] = []
    raised: List[BaseException] = []

    def listen() -> None:
        assert process.stderr is not None
        rest, shown = b"", b""
        while True:
            block = os.read(process.stderr.fileno(), 65536)
            # Progress is rewritten in its line: a carriage return, then an order to erase.  Its last state has no end yet.
            *lines, rest = re.split(rb"[\r\n]", rest + block)
            for line in (*lines, rest) if _PROGRESS.match(rest) or not block else lines:
                line = line[len(_ERASE):] if line.startswith(_ERASE) else line
                if not _PROGRESS.match(line):
                    if line:
                        said.append(line.decode("utf-8", "replace"))
                elif progress is not None and line != shown and not raised:
                    shown = line
                    try:
                        progress(_told(line.decode("utf-8", "replace")))
                    except BaseException as error:  # raised again by the caller's thread
                        raised.append(error)
                        process.send_signal(signal.SIGINT)
            if not block:
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        assert process.stdout is not None
        out = process.stdout.read()
        process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    finally:
        listener.join(_SECONDS_TO_END)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    if raised:
        raise raised[0]
    return process.returncode, out.decode("utf-8", "replace"), "\n".join(said)


def ask(arguments: Sequence[str], progress: Optional[Callable[[Progress], None]]) -> Tuple[int, Dict[str, Any], str]:
    """Runs a verb with --json; returns its status, 0 or 1, its object, and what it said beside that.

    Throws: FsdpCkptError for every other status.
    """
    status, out, err = run(*arguments, "--json", progress=progress)
    try:
        answer = json.loads(out) if out else {}
    except ValueError:
        answer = {}
    if status not in (0, 1) or not answer:
        code = answer.get("code", "FAILED")
        words = err.splitlines()[-1] if err else f"fsdp-ckpt ended with status {status}"
        raise FsdpCkptError(status, code, answer.get("message", words))
    return status, answer, err
