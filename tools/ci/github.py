#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The GitHub Action: what the steps of action.yml run.

    github.py program     finds, downloads or builds fsdp-ckpt, and sets the output `program`
    github.py gate        runs the gate: annotations, job summary, outputs; exit status 0, 1 or 2 as that of fsdp-ckpt

Settings come from the environment: FSDP_<INPUT> for each input of action.yml, and GitHub's own variables.
"""
import json
import os
import secrets
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gate  # noqa: E402
import program  # noqa: E402

SUMMARY_BYTES = 256 * 1024     # GitHub drops a step's summary above 1 MiB
REPORT_NAME = "fsdp-ckpt.json"


def command(name, text, **properties):
    """A workflow command.  A line of it ends at a line break, its properties at `:` and `,`."""
    def escaped(value, more):
        value = value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        return value.replace(":", "%3A").replace(",", "%2C") if more else value

    shown = ",".join(f"{key}={escaped(value, True)}" for key, value in properties.items() if value)
    return f"::{name}{' ' if shown else ''}{shown}::{escaped(text, False)}"


class Log:
    """Standard output, where the runner obeys any line that looks like a command."""

    def __init__(self, out):
        self.out = out

    def say(self, lines):
        """Shows lines that may be hostile: between two words that nobody can guess, the runner obeys nothing."""
        token = secrets.token_hex(16)
        self.out.write(command("stop-commands", token) + "\n")
        for line in lines:
            self.out.write(gate.visible(line) + "\n")
        self.out.write(f"::{token}::\n")
        self.out.flush()

    def annotate(self, severity, title, text, file=None):
        self.out.write(command(severity, gate.cut(gate.visible(text), 2000), file=file, title=gate.visible(title)) + "\n")


def set_outputs(values):
    path = os.environ.get("GITHUB_OUTPUT")
    if not path:
        return
    with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
        for name, value in values.items():
            # The end is a line that the value cannot have.
            end = secrets.token_hex(16)
            file.write(f"{name}<<{end}\n{value}\n{end}\n")


def code(text, limit=300):
    """Text that no markdown, HTML, mention or link can come out of."""
    shown = gate.cut(gate.visible(text), limit)
    return "<code>" + "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in shown) + "</code>"


def summary(settings, answers):
    """The job's page, in Markdown: a row for each checkpoint, then one for each finding, as far as they fit."""
    against = f" against {code(settings.against)}" if settings.verb == "diff" else ""
    lines = [f"### fsdp-ckpt {gate.outcome(settings, answers)}{against}", "", "| checkpoint | verdict | looked at | findings |", "|---|---|---|---|"]
    lines += [f"| {code(a.path)} | {a.verdict} | {code(a.looked)} | {len(a.findings)} |" for a in answers]
    rows = [f"| {code(a.path)} | {f.severity} | {code(f.code)} | {code(f.text, 600)} |" for a in answers for f in a.findings]
    if rows:
        lines += ["", "| checkpoint | severity | code | finding |", "|---|---|---|---|", *rows]
    size, kept = 0, []
    for line in lines:
        size += len(line.encode("utf-8")) + 1
        if size > SUMMARY_BYTES:
            break
        kept.append(line)
    left = len(lines) - len(kept)
    if left:
        kept += ["", f"{left} more rows are not shown; the report has all of them."]
    return "\n".join(kept) + "\n\n"


def append_summary(text):
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)


def annotated_file(answer, finding):
    """The file of a finding relative to the workspace, as annotations have it; None if it lies elsewhere."""
    path = answer.path
    if finding.file and os.path.isdir(path):
        path = os.path.join(path, finding.file)
    workspace = os.path.realpath(os.environ.get("GITHUB_WORKSPACE") or ".")
    relative = os.path.relpath(os.path.realpath(path), workspace)
    return None if relative.split(os.sep)[0] == ".." else gate.visible(relative)


def annotations(log, answers, limit):
    found = [(answer, finding) for severity in ("error", "warning") for answer in answers for finding in answer.findings
             if finding.severity == severity]
    for answer, finding in found[:limit]:
        log.annotate(finding.severity, f"fsdp-ckpt {finding.code}", f"{answer.path}: {finding.text}", annotated_file(answer, finding))
    if len(found) > limit:
        worst = found[limit][1].severity
        log.annotate(worst, "fsdp-ckpt", f"{gate.counted(len(found) - limit, 'more finding')}: the job summary and the report list them")


def run_gate(log):
    settings = gate.Settings(os.environ)
    limit = os.environ.get("FSDP_ANNOTATIONS", "").strip() or "9"
    if not limit.isdecimal():
        raise gate.GateError(f"annotations: {gate.visible(limit)!r} is not a number")
    answers = gate.ask_all(gate.find_program(os.environ.get("FSDP_PROGRAM") or "fsdp-ckpt"), settings)
    for answer in answers:
        log.say(gate.text_of(answer))
    log.say([gate.outcome(settings, answers)])
    annotations(log, answers, int(limit))
    append_summary(summary(settings, answers))
    folder = tempfile.mkdtemp(prefix="fsdp-ckpt-", dir=os.environ.get("RUNNER_TEMP") or None)
    report = os.path.join(folder, REPORT_NAME)
    with open(report, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump([{"path": gate.visible(a.path), "status": a.status, "verdict": a.verdict, "report": a.report,
                    "findings": [dict(f._asdict()) for f in a.findings]} for a in answers], file, indent=1)
    status = gate.status_of(answers)
    set_outputs({"status": status, "verdict": gate.worst(answers), "findings": sum(len(a.findings) for a in answers), "report": report})
    return status


def find_program(log):
    repository = os.environ.get("FSDP_REPOSITORY") or os.environ.get("GITHUB_REPOSITORY", "")
    path, said = program.find(*(os.environ.get(name, "").strip() for name in ("FSDP_BINARY", "FSDP_VERSION")),
                              f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}", os.environ.get("RUNNER_TEMP"))
    log.say([path, *said])
    set_outputs({"program": path})
    return 0


def main():
    # A name need not be UTF-8, and the log is.
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    log = Log(sys.stdout)
    parts = {"program": find_program, "gate": run_gate}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        raise SystemExit(__doc__)
    try:
        return parts[sys.argv[1]](log)
    except gate.GateError as error:
        log.annotate("error", "fsdp-ckpt", str(error))
        append_summary(f"### fsdp-ckpt: {code(str(error), 1000)}\n\n")
        set_outputs({"status": 2, "verdict": "failed", "findings": 0, "report": ""} if sys.argv[1] == "gate" else {})
        return 2


if __name__ == "__main__":
    sys.exit(main())
