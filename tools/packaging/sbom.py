#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the bill of materials of the static fsdp-ckpt: SPDX 2.3, as JSON.

    sbom.py PROGRAM THIRD_PARTY NAME     NAME is what the program is called where it is published

The libraries are those that THIRD_PARTY lists, which the static build writes.  Each library that `PROGRAM --version` names has to be
among them, in the same version.  Times come from SOURCE_DATE_EPOCH, so equal inputs give equal bytes.
"""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid

# As THIRD_PARTY names licences, and as SPDX does.
LICENCES = {"GPL-3.0-or-later with the GCC Runtime Library Exception": "GPL-3.0-or-later WITH GCC-exception-3.1"}
SPDX_LICENCES = ("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "LGPL-2.1-or-later", "LGPL-3.0-or-later", "MIT", "Zlib", "curl")
# As --version names libraries, where THIRD_PARTY has another name.
NAMES = {"nlohmann_json": "JSON for Modern C++"}
ROW = re.compile(r"^  (?P<name>[^:]+): (?P<licence>[^;]+); (?:Debian source package (?P<source>\S+) (?P<debian>\S+)|(?P<part>.*), of version (?P<version>\S+))$")


class Wrong(Exception):
    pass


def upstream(version):
    """The version of a Debian package's upstream: without epoch, revision, and what Debian says of repacking."""
    version = version.split(":", 1)[-1].rsplit("-", 1)[0]
    return re.sub(r"(\+(repack|dfsg|ds|really).*|\.dfsg.*)$", "", version)


def libraries(text):
    # The table ends at the first empty line behind it.
    table = text.split("contains:\n\n", 1)[1].split("\n\n", 1)[0] if "contains:\n\n" in text else ""
    rows = []
    for line in table.splitlines():
        match = ROW.match(line)
        if not match:
            raise Wrong(f"THIRD_PARTY: a line that is not understood: {line!r}")
        licence = LICENCES.get(match["licence"], match["licence"])
        if licence not in SPDX_LICENCES and licence not in LICENCES.values():
            raise Wrong(f"THIRD_PARTY: {match['name']}: {licence!r} is not a licence that sbom.py knows; add it")
        rows.append({"name": match["name"], "licence": licence, "version": match["version"] or upstream(match["debian"]),
                     "comment": f"Debian source package {match['source']} {match['debian']}" if match["source"] else match["part"]})
    if not rows:
        raise Wrong("THIRD_PARTY: lists no library")
    return rows


def check_against(program, rows):
    """Compares the rows with what the program says of itself; returns its version."""
    said = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    if len(said) != 3 or "statically linked" not in said[1]:
        raise Wrong(f"{program}: is not a static fsdp-ckpt: {said}")
    known = {row["name"]: row["version"] for row in rows}
    for library in said[2].split(", "):
        name, version = library.split(" ", 1)
        if name == "no":   # "no HDF5"
            continue
        name = NAMES.get(name, name)
        if name not in known:
            raise Wrong(f"THIRD_PARTY: lacks {name}, which the program names")
        if known[name] != version:
            raise Wrong(f"THIRD_PARTY: has {name} {known[name]}, and the program {version}")
    return said[0].split()[1]


def identifier(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def document(program, text, name):
    rows = libraries(text)
    version = check_against(program, rows)
    with open(program, "rb") as file:
        data = file.read()
    sums = {algorithm: hashlib.new(algorithm.lower(), data).hexdigest() for algorithm in ("SHA1", "SHA256")}
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH") or 315532800), datetime.timezone.utc)

    def package(identity, title, number, licence, comment, analyzed=False):
        return {"SPDXID": identity, "name": title, "versionInfo": number, "downloadLocation": "NOASSERTION", "filesAnalyzed": analyzed,
                "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION", "comment": comment}

    project, binary = "SPDXRef-fsdp", "SPDXRef-program"
    packages = [package(project, "fsdp", version, "Apache-2.0", "fsdp-ckpt and what it is compiled from")]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", project), (binary, "GENERATED_FROM", project)]
    for row in rows:
        packages.append(package(identifier(row["name"]), row["name"], row["version"], row["licence"], row["comment"]))
        relations.append((binary, "STATIC_LINK", identifier(row["name"])))
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, sums['SHA256'] + text)}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Organization: The fsdp authors", f"Tool: fsdp-sbom-{version}"]},
        "packages": packages,
        "files": [{"SPDXID": binary, "fileName": f"./{name}", "fileTypes": ["BINARY"], "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"],
                   "copyrightText": "NOASSERTION", "checksums": [{"algorithm": key, "checksumValue": value} for key, value in sums.items()]}],
        "relationships": [{"spdxElementId": a, "relationshipType": how, "relatedSpdxElement": b} for a, how, b in relations],
    }


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    program, third_party, name = sys.argv[1:]
    with open(third_party, encoding="utf-8") as file:
        text = file.read()
    try:
        print(json.dumps(document(os.path.abspath(program), text, name), indent=1, ensure_ascii=False))
    except Wrong as wrong:
        print(f"sbom.py: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
