#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gate in a job of GitLab: prints the findings, and writes them as a report of Code Quality.

    gitlab.py [REPORT]     REPORT (gl-code-quality-report.json) is written in any case

Settings come from the environment, as tools/ci/gitlab.yml lists them; FSDP_CKPT names the program.  Exit status: 0, 1 or 2 as that of
fsdp-ckpt.
"""
import hashlib
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gate  # noqa: E402


def severity(answer, finding):
    """`critical` is what must not be loaded; a gate that said no is `major`."""
    if finding.severity == "warning":
        return "minor"
    return "critical" if answer.verdict in ("unsafe", "damaged", "failed") else "major"


def entry(answer, finding):
    path = answer.path
    project = os.path.realpath(os.environ.get("CI_PROJECT_DIR") or ".")
    file = os.path.join(path, finding.file) if finding.file and os.path.isdir(path) else path
    shown = gate.visible(os.path.relpath(os.path.realpath(file), project))
    text = gate.visible(finding.text)
    # The same finding has the same fingerprint in the next run, and no other one has it.
    print_of = hashlib.sha256("\0".join((shown, finding.code, text)).encode("utf-8", "backslashreplace")).hexdigest()
    return {"description": gate.cut(text, 2000), "check_name": gate.visible(finding.code), "fingerprint": print_of,
            "severity": severity(answer, finding), "location": {"path": shown, "lines": {"begin": 1}}}


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        raise SystemExit(__doc__)
    report = sys.argv[1] if len(sys.argv) == 2 else "gl-code-quality-report.json"
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    entries, status = [], 2
    try:
        program = gate.find_program(os.environ.get("FSDP_CKPT") or "fsdp-ckpt")
        settings = gate.Settings(os.environ)
        answers = gate.ask_all(program, settings)
        for answer in answers:
            for line in gate.text_of(answer):
                print(gate.visible(line))
            entries += [entry(answer, finding) for finding in answer.findings]
        print(gate.visible(gate.outcome(settings, answers)))
        status = gate.status_of(answers)
    except gate.GateError as error:
        print(f"fsdp-ckpt: {error}")
    unique = list({item["fingerprint"]: item for item in entries}.values())
    with open(report, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(unique, file, indent=1)
    return status


if __name__ == "__main__":
    sys.exit(main())
