#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the JSON that the tool prints with docs/schemas, and the pages with the schemas.

    check_schemas.py DOCS TOOL GOLDEN

A schema is linked from the section `## JSON` of its verb's page below docs/verbs, or of docs/cli.md.  It has a `description` for each of its members,
but for those that the section of cli.md explains for all schemas.

A verb whose help lists --json must have a schema `<verb>-<number>.json` and command lines in `commands`.
Supports only the parts of JSON Schema that the schemas use: type, const, enum, required, properties, additionalProperties,
items, minimum.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "null": lambda v: v is None,
}
KNOWN = {"$schema", "$id", "title", "description", "type", "const", "enum", "required", "properties",
         "additionalProperties", "items", "minItems", "minimum"}


def problems(schema, value, where="$"):
    """Lists the places where `value` does not match `schema`."""
    unknown = set(schema) - KNOWN
    if unknown:
        yield f"{where}: the schema uses {sorted(unknown)}, which this script does not know"
    types = schema.get("type")
    if types is not None:
        types = [types] if isinstance(types, str) else types
        if not any(TYPES[t](value) for t in types):
            yield f"{where}: {value!r:.60} is not of the types {types}"
            return
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not in {schema['enum']}"
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        yield f"{where}: {value} is below {schema['minimum']}"
    if isinstance(value, dict):
        members = schema.get("properties", {})
        for name in schema.get("required", []):
            if name not in value:
                yield f"{where}: has no {name!r}"
        extra = schema.get("additionalProperties", True)
        for name, member in value.items():
            if name in members:
                yield from problems(members[name], member, f"{where}.{name}")
            elif extra is False:
                yield f"{where}: {name!r} is not in the schema"
            elif isinstance(extra, dict):
                yield from problems(extra, member, f"{where}.{name}")
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        yield f"{where}: has {len(value)} items, not at least {schema['minItems']}"
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from problems(schema["items"], item, f"{where}[{i}]")


def undescribed(schema):
    for name, member in schema.get("properties", {}).items():
        if "description" not in member:
            yield name
        yield from undescribed(member)
    if "items" in schema:
        yield from undescribed(schema["items"])


def unexplained(docs, schemas):
    """Problems of schemas that no page links to, or with members that nothing explains."""
    sections = {}
    for path in [os.path.join(docs, "cli.md"), *sorted(glob.glob(os.path.join(docs, "verbs", "*.md")))]:
        with open(path, encoding="utf-8") as file:
            sections[os.path.basename(path)[:-len(".md")]] = file.read().partition("\n## JSON\n")[2]
    yield from (f"{page}.md has no section JSON" for page, section in sections.items() if not section)
    for name, schema in schemas.items():
        pages = [page for page, section in sections.items() if f"schemas/{name}.json)" in section]
        verb = name.rpartition("-")[0]
        if len(pages) != 1 or (verb in sections and pages != [verb]):
            yield f"schemas/{name}.json is linked from {pages or 'no section JSON'}"
        for member in sorted(set(undescribed(schema))):
            if f"`{member}`" not in sections["cli"]:
                yield f"schemas/{name}.json does not describe `{member}`, nor does cli.md explain it for all schemas"


def verbs_with_json(tool):
    """The verbs in the tool's help whose own help lists --json; aliases are left out."""
    def help_of(*verb):
        return subprocess.run([tool, *verb, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    names = re.findall(r"^  ([a-z][a-z-]*)", help_of(), flags=re.M)
    if not names:
        raise SystemExit(f"{tool} --help lists no verbs")
    return [name for name in names if re.search(r"^ +--json\b", help_of(name), flags=re.M)]


def checkpoints(golden):
    return sorted(glob.glob(os.path.join(golden, "*/*/ckpt")) + glob.glob(os.path.join(golden, "*/*/full.pt")))


def commands(golden, folder):
    yield ["inspect", os.path.join(folder, "nowhere"), "--json"]
    yield ["inspekt", "--json"]
    step, key = os.path.join(golden, "2.15.0/fsdp2/ckpt"), "app.model.emb.weight"
    half = os.path.join(folder, "half.pt")
    yield ["consolidate", step, half, "--json", "--dtype", "float16"]
    yield ["diff", step, half, "--json"]
    yield ["diff", step, half, "--json", "--ignore-dtype", "--ulp", "1"]
    model = os.path.join(folder, "model.safetensors")
    yield ["consolidate", step, model, "--json", "-k", "app.model.**", "--strip-prefix", "app.model", "--drop-values", "--dtype", "bfloat16"]
    yield ["diff", step, model, "--json"]
    yield ["diff", step, half, "--json", "--ignore-dtype", "--by", "layer"]
    yield ["extract", step, key + "[0:2, -1]", "--json"]
    yield ["extract", step, key, "--json", "--all"]
    yield ["extract", step, "app.model.blocks.0.up.weight", "--json"]
    yield ["extract", step, "app.optim.param_groups.0.betas", "--json"]
    yield ["extract", step, key, os.path.join(folder, "x.npy"), "--json"]
    yield ["extract", step, "app.model.blocks.*.up.*", os.path.join(folder, "arrays"), "--json"]
    yield ["extract", step, "nothing", "--json"]
    minimal = os.path.join(golden, "2.11.0/minimal/ckpt")
    yield ["inspect", step, minimal, "--json"]
    yield ["verify", step, minimal, "--json"]
    yield ["set", step, os.path.join(folder, "set"), "step=3", "--json", "--no-sync"]
    yield ["set", step, os.path.join(folder, "set-too"), "step=3", "app.optim.state.**.step=3", "--json", "--dry-run"]
    yield ["set", half, os.path.join(folder, "set.pt"), "step=3", "--json", "--no-sync"]
    yield ["set", half, os.path.join(folder, "taken.pt"), "--take-from", step, "--take", "app.model.**", "--replace", "--drop", "step", "--json", "--no-sync"]
    yield ["resize-vocab", step, os.path.join(folder, "larger"), "--to", "dcp", "--size", "40", "--table", "app.model.emb.*", "--json", "--no-sync"]
    yield ["resize-vocab", step, os.path.join(folder, "smaller.pt"), "--size", "4", "--table", "app.model.emb.*", "--fill", "zeros", "--json", "--dry-run"]
    yield ["groups", step, os.path.join(folder, "two"), "--split", "**.bias", "weight_decay=0", "--json", "--no-sync"]
    yield ["groups", os.path.join(folder, "two"), os.path.join(folder, "one"), "--join", "0,1", "--options-of", "0", "--json", "--dry-run"]
    rules = os.path.join(folder, "rules.toml")
    with open(rules, "w", encoding="utf-8") as file:
        file.write('[parameters]\nrows = { value = 99 }\n[[rule]]\nfrom = "emb.weight"\nto = "e"\n'
                   'do = [{ op = "pad", to = "rows" }]\n[[rule]]\ndrop = "steps_seen"\n[rename]\n"{name:**}" = "{name}"\n')
    names = os.path.join(folder, "names.toml")
    with open(names, "w", encoding="utf-8") as file:
        file.write('[rename]\n"own.{name:**}" = "{name}"\n')
    yield ["map", rules, step, os.path.join(folder, "mapped.pt"), "--json", "--no-sync"]
    yield ["map", rules, step, os.path.join(folder, "mapped"), "--to", "dcp", "--json", "--dry-run", "--drop-optimizer"]
    yield ["map", rules, step, os.path.join(folder, "mapped-ranks"), "--to", "torch-checkpointing", "-w", "2", "--json", "--no-sync"]
    yield ["maps", "--json"]
    exported = os.path.join(folder, "exported")
    yield ["export", step, exported, "--json", "--no-sync"]
    yield ["export", step, exported, "--json", "--dry-run", "--force", "--map", rules, "--dtype", "bf16", "--max-shard-size", "20KB"]
    yield ["import", exported, os.path.join(folder, "imported"), "--json", "--no-sync", "--map", "none", "--under", "model"]
    yield ["import", exported, os.path.join(folder, "imported.pt"), "--to", "pt", "--json", "--dry-run", "--map", names]
    yield ["maps", "--json", "--show", "nanogpt-gpt2"]
    quantized = os.path.join(folder, "quantized")
    with open(os.path.join(exported, "config.json"), "w", encoding="utf-8") as file:
        file.write('{"model_type": "own"}')
    yield ["export", exported, quantized, "--json", "--no-sync", "--quantize", "fp8-channel"]
    yield ["verify", quantized, "--json"]
    yield ["stats", quantized, "--json", "--quantization", "--original", exported]
    yield ["stats", exported, "--json", "--quantization", "--quantize", "int8"]
    adapter = os.path.join(golden, "../adapters/blocks")
    yield ["merge-lora", step, adapter, os.path.join(folder, "merged.pt"), "--json", "--no-sync"]
    yield ["merge-lora", step, adapter, adapter, os.path.join(folder, "merged"), "--to", "dcp", "--json", "--dry-run"]
    merged = os.path.join(folder, "merged.pt")
    yield ["extract-lora", step, merged, os.path.join(folder, "adapter"), "--rank", "4", "--json", "--no-sync"]
    yield ["extract-lora", step, merged, os.path.join(folder, "adapter-too"), "--rank", "2", "--json", "--dry-run", "--alpha", "3"]
    run = os.path.join(folder, "run")
    for number in (1, 2, 3):
        shutil.copytree(minimal, os.path.join(run, f"step-{number}"))
    os.remove(os.path.join(run, "step-3", "__0_0.distcp"))
    damaged = os.path.join(folder, "damaged")
    shutil.copytree(step, damaged)
    os.remove(os.path.join(damaged, "__1_0.distcp"))
    yield ["salvage", damaged, os.path.join(folder, "rescued"), "--json", "--no-sync"]
    yield ["salvage", damaged, os.path.join(folder, "rescued.pt"), "--json", "--no-sync", "--from", step]
    os.remove(os.path.join(damaged, ".metadata"))
    yield ["salvage", damaged, os.path.join(folder, "made-again"), "--json", "--dry-run", "--from", step]
    yield ["latest", run, "--json"]
    yield ["prune", run, "--keep", "2", "--json"]
    yield ["prune", run, "--keep", "1", "--json"]
    for i, path in enumerate(checkpoints(golden)):
        yield ["inspect", path, "--json"]
        yield ["inspect", path, "--json", "--values", "never"]
        yield ["inspect", path, "--json", "--globals"]
        yield ["verify", path, "--json", "--require-checksums"]
        yield ["consolidate", path, os.path.join(folder, f"{i}.pt"), "--json", "--no-sync"]
        yield ["consolidate", path, os.path.join(folder, f"{i}.safetensors"), "--json", "--dry-run", "--drop-values"]
        yield ["shard", path, os.path.join(folder, f"{i}.shards"), "--world-size", "2", "--json", "--no-sync"]
        yield ["reshard", path, os.path.join(folder, f"{i}.reshards"), "--world-size", "3", "--json", "--dry-run"]
        yield ["rename", path, os.path.join(folder, f"{i}-renamed"), "--json", "--no-sync", "--strip-prefix", "auto"]
        yield ["rekey", path, os.path.join(folder, f"{i}-rekeyed"), "--json", "--no-sync", "--key-by", "id"]
        yield ["stats", path, "--json", "--fail-on", "nan,inf,zero"]
        yield ["stats", path, "--json"]
        yield ["diff", path, path, "--json"]
        yield ["diff", path, os.path.join(golden, "2.15.0/fsdp2/ckpt"), "--json", "--close"]
        yield ["convert", path, os.path.join(folder, f"{i}.bin"), "--json", "--no-sync", "--dtype", "float64"]
        yield ["average", path, path, os.path.join(folder, f"{i}.mean"), "--to", "pt", "--json", "--no-sync"]
        yield ["average", path, path, os.path.join(folder, f"{i}.mean"), "--to", "dcp", "--json", "-n", "--weights=-1,2"]
        yield ["seal", path, "--json", "--dry-run"]
        yield ["seal", os.path.join(folder, f"{i}.bin"), "--json", "--no-sync"]
        yield ["verify", os.path.join(folder, f"{i}.bin"), "--json"]


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    docs, tool, golden = sys.argv[1:]
    schemas = {}
    for path in sorted(glob.glob(os.path.join(docs, "schemas", "*.json"))):
        with open(path, encoding="utf-8") as file:
            schemas[os.path.basename(path)[:-len(".json")]] = json.load(file)
    wrong = []
    wrong.extend(unexplained(docs, schemas))
    seen = dict.fromkeys(schemas, 0)
    verbs = dict.fromkeys(verbs_with_json(tool), 0)
    with tempfile.TemporaryDirectory() as folder:
        for arguments in commands(golden, folder):
            done = subprocess.run([tool, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            line = "fsdp-ckpt " + " ".join(arguments)
            if done.returncode not in (0, 1, 2):
                wrong.append(f"{line}: status {done.returncode}")
                continue
            try:
                value = json.loads(done.stdout)
                name = value["schema"].removeprefix("fsdp-ckpt/").replace("/", "-")
            except (ValueError, KeyError, TypeError) as error:
                wrong.append(f"{line}: no JSON with a schema: {error}")
                continue
            if (done.returncode == 2) != (name == "error-1"):
                wrong.append(f"{line}: status {done.returncode} with {name}")
            if name not in schemas:
                wrong.append(f"{line}: no schemas/{name}.json")
                continue
            seen[name] += 1
            if name.startswith(f"{arguments[0]}-") and arguments[0] in verbs:
                verbs[arguments[0]] += 1
            wrong.extend(f"{line}: {problem}" for problem in problems(schemas[name], value))
    wrong.extend(f"schemas/{name}.json: nothing of it was printed" for name, count in seen.items() if count == 0)
    for verb, count in verbs.items():
        if not any(re.fullmatch(rf"{verb}-\d+", name) for name in schemas):
            wrong.append(f"{verb}: its help lists --json, but there is no schemas/{verb}-1.json")
        if count == 0:
            wrong.append(f"{verb}: its help lists --json, but no command line of `commands` printed its object")
    for problem in wrong[:50]:
        print(problem)
    print(", ".join(f"{name}: {count} objects" for name, count in seen.items())
          + f"; {len(verbs)} verbs with --json; {len(wrong)} problems")
    return 1 if wrong or not schemas else 0


if __name__ == "__main__":
    sys.exit(main())
