#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the pages of `inspect --html` and `verify --html` in a headless Chromium and checks the result.

    check_inspect_page.py TOOL GOLDEN CHROMIUM

Exit: 0 all as expected, 1 not, 77 if the browser does not run here (skipped).
"""
import base64
import concurrent.futures
import hashlib
import html
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.parse
import zlib

SKIPPED = 77
HOSTILE = [
    "</script><img src=x onerror=\"document.documentElement.dataset.pwned='tag'\">",
    "<!--<script>document.documentElement.dataset.pwned='comment'</script>",
    "line\u2028separator\u2029 and \\x00",
    "quote\" ' ` ${document.title} {{x}}",
    "javascript:document.documentElement.dataset.pwned='url'",
    "__proto__", "constructor.prototype.polluted", "toString",
    "a.a.b", "a.a", ".", "..",
]


LAYERS = 1250
PARTS = ["attn.k.bias", "attn.k.weight", "attn.o.weight", "attn.q.bias", "attn.q.weight", "attn.v.bias", "attn.v.weight",
         "mlp.down.weight", "mlp.gate.weight", "mlp.up.weight", "norm.weight"]
# Opens the first folded row, and counts what a click on the map leads to.
CLICKS = """
document.querySelector("#table tr.group button").click();
document.querySelector('#treemap [data-path*="{"]').click();
document.documentElement.dataset.clicked = String(document.querySelectorAll("#crumbs button").length);
"""

# How far the parts of the map end before its right edge, once the page is long enough for a scrollbar.
WIDTH = """
setTimeout(() => {
  const map = document.getElementById("treemap").getBoundingClientRect();
  const right = Math.max(...[...document.querySelectorAll("#sheet > div")].map((part) => part.getBoundingClientRect().right));
  document.documentElement.dataset.width = JSON.stringify([innerWidth - document.documentElement.clientWidth, map.right - right]);
}, 1000);
"""
# What the map shows, at first and after each of three clicks on "+", and after as many on "−".
ZOOM = """
const sheet = document.getElementById("sheet"), seen = [];
function look() {
  const parts = [...sheet.children];
  const area = (part) => part.offsetWidth * part.offsetHeight;
  seen.push({width: sheet.offsetWidth, parts: parts.length,
             layers: parts.map((part) => part.querySelector(".label")).filter((label) => label && /^[0-9]+/.test(label.textContent)).length,
             tensors: parts.filter((part) => part.dataset.tensor && part.querySelector(".label")).length,
             bare: parts.filter((part) => !part.classList.contains("module") && !part.querySelector(".label"))
                       .reduce((sum, part) => sum + area(part), 0) / area(sheet)});
}
look();
for (const id of ["larger", "larger", "larger", "smaller", "smaller", "smaller"]) { document.getElementById(id).click(); look(); }
document.documentElement.dataset.zoom = JSON.stringify(seen);
"""
# A walk by keys: every part that the arrows lead to; into a module and back; a tensor; a button of the table.
WALK = """
const map = document.getElementById("treemap");
const press = (key) => (document.activeElement || document.body).dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const at = () => { const now = document.getElementById(map.getAttribute("aria-activedescendant")); return now && now.getAttribute("aria-label"); };
const names = () => [...document.querySelectorAll("#crumbs button")].map((button) => button.textContent);
const items = () => [...map.querySelectorAll('[role="treeitem"]')].map((item) => item.getAttribute("aria-label"));
const walk = {role: map.getAttribute("role"), label: map.getAttribute("aria-label"), items: items(), first: null, reached: []};
document.querySelector("#crumbs button").focus();
map.focus();
walk.focused = document.activeElement === map;
walk.first = at();
const reached = new Map([[at(), []]]), front = [[]];
while (front.length > 0) {
  const path = front.shift();
  for (const key of ["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"]) {
    press("Home");
    path.forEach(press);
    press(key);
    if (!reached.has(at())) { reached.set(at(), [...path, key]); front.push([...path, key]); }
  }
}
walk.reached = [...reached.keys()];
press("Home");
press("ArrowRight");
const chosen = at();
press("Enter");
walk.entered = [chosen, names()];
press("+");
walk.larger = document.getElementById("sheet").offsetWidth > map.offsetWidth;
press("Escape");
walk.whole = document.getElementById("sheet").offsetWidth === Math.floor(map.getBoundingClientRect().width);
press("Escape");
walk.left = [at(), names(), document.activeElement === map];
for (let i = 0; i < 9 && document.activeElement === map; ++i) press("Enter");
walk.tensor = [document.activeElement.closest("#table") !== null, document.activeElement.textContent];
const sort = document.querySelectorAll("#table th button")[3];
sort.focus();
sort.click();
walk.sorted = document.activeElement.textContent;
document.documentElement.dataset.walk = JSON.stringify(walk);
"""
# Opens every row of the page of a run.
OPEN_ALL = """
for (let i = 0; i < 20; ++i) {
  const closed = document.querySelector('#table button[aria-expanded="false"]');
  if (closed === null) break;
  closed.focus();
  closed.click();
}
document.documentElement.dataset.focus = document.activeElement.textContent;
"""


class Browser:
    def __init__(self, program, folder):
        self.program = program
        self.folder = folder
        self.count = 0

    def run(self, *arguments, size="1200,1600", scrollbars=False):
        self.count += 1
        profile = os.path.join(self.folder, f"profile-{self.count}")
        return subprocess.run(
            [self.program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
             *([] if scrollbars else ["--hide-scrollbars"]), "--disable-dev-shm-usage", f"--user-data-dir={profile}", f"--window-size={size}",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000", "--enable-logging=stderr", "--v=0",
             *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)

    # The page's elements after its scripts ran, and its console's messages.
    def open(self, page, words="", size="1200,1600", scrollbars=False):
        done = self.run("--dump-dom", "file://" + urllib.parse.quote(page) + words, size=size, scrollbars=scrollbars)
        messages = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if "CONSOLE" in line]
        return Dom(done.stdout.decode("utf-8", "replace")), messages


class Dom:
    def __init__(self, text):
        self.text = text
        # The visible part of the page: without its data and its scripts.
        self.shown = re.sub(r"<script.*?</script>", "", text, flags=re.S)

    def attribute(self, name):
        found = re.search(r"<html[^>]*\sdata-" + name + r'="([^"]*)"', self.text)
        return found and html.unescape(found.group(1))

    def inside(self, element_id, tag):
        found = re.search(rf'<{tag}[^>]*id="{element_id}"[^>]*>(.*?)</{tag}>', self.shown, flags=re.S)
        return found.group(1) if found else ""

    def keys(self):
        rows = re.findall(r'<td class="key"><button[^>]*>(.*?)</button>', self.inside("table", "table"), flags=re.S)
        return [html.unescape(row) for row in rows]

    # The cells of the rows of the table, as text.
    def rows(self):
        body = re.search(r"<tbody>(.*?)</tbody>", self.inside("table", "table"), flags=re.S)
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body.group(1) if body else "", flags=re.S)
        return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.S)] for row in rows]

    def count(self):
        return html.unescape(self.inside("count", "span"))


class Checks:
    def __init__(self):
        self.passed = 0
        self.failed = []

    def that(self, what, holds, shown=""):
        if holds:
            self.passed += 1
        else:
            self.failed.append(f"{what}: {shown!s:.600}")

    def equal(self, what, found, expected):
        self.that(what, found == expected, f"found {found!r}, expected {expected!r}")


def write_safetensors(path, tensors):
    header, at = {}, 0
    for key, size in tensors:
        header[key] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(at))


def with_script(page, changed, script):
    """The page with a script more, which its policy allows."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    with open(page, encoding="utf-8") as file:
        text = file.read()
    text = text.replace("script-src ", f"script-src 'sha256-{digest}' ", 1).replace("</body>", f"<script>{script}</script></body>", 1)
    with open(changed, "w", encoding="utf-8") as file:
        file.write(text)


def bytes_text(size):
    return f"{size / 1024:.1f} KiB"


def first_pixel(png):
    """Red, green and blue of the upper left pixel: no filter of PNG changes it."""
    with open(png, "rb") as file:
        data = file.read()
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    return tuple(zlib.decompressobj().decompress(packed, 64)[1:4])


def contrast(a, b):
    """The contrast of two #rrggbb, as WCAG 2 defines it."""
    def luminance(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_contrast(checks, text):
    """Text on its background: at least 4.5 to 1."""
    tiles = re.search(r"const COLOURS = \[(.*?)\]", text, flags=re.S).group(1)
    for colour in re.findall(r"#[0-9a-f]{6}", tiles):
        checks.that(f"white on {colour}", contrast("#ffffff", colour) >= 4.5, contrast("#ffffff", colour))
    for scheme in re.findall(r":root \{(.*?)\}", text, flags=re.S):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", scheme))
        for ink in ("ink", "soft", "accent", "good", "bad", "warn"):
            checks.that(f"{ink} on card", contrast(colours[ink], colours["card"]) >= 4.5, colours)
        checks.that("ink on mark", contrast(colours["ink"], colours["mark"]) >= 4.5, colours)


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    tool, golden, program = sys.argv[1:]
    checks = Checks()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, folder)
        probe = os.path.join(folder, "probe.html")
        with open(probe, "w", encoding="utf-8") as file:
            file.write("<!DOCTYPE html><title>probe</title><p>works</p>")
        try:
            if "works" not in browser.open(probe)[0].text:
                print(f"{program} shows nothing here")
                return SKIPPED
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"{program} does not run here: {error}")
            return SKIPPED

        def page_of(source, name, verb="inspect", status=0):
            page = os.path.join(folder, name)
            done = subprocess.run([tool, verb, source, "--html", page], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)
            checks.equal(f"status for {name}", (done.returncode, done.stdout if done.returncode != status else ""), (status, ""))
            return page

        def scripted(page, script):
            changed = page.replace(".html", f"-{hash(script) & 0xffffff}.html")
            with_script(page, changed, script)
            return changed

        fsdp2 = page_of(os.path.join(golden, "2.15.0/fsdp2/ckpt"), "fsdp2.html")
        bare = page_of(os.path.join(golden, "2.11.0/bare_tensor_pt/full.pt"), "bare.html")
        shards = page_of(os.path.join(golden, "2.11.0/shards/ckpt"), "shards.html")
        hostile_source = os.path.join(folder, "hostile.safetensors")
        write_safetensors(hostile_source, [(key, 64) for key in HOSTILE])
        hostile = page_of(hostile_source, "hostile.html")
        many_source = os.path.join(folder, "many.safetensors")
        write_safetensors(many_source, [(f"model.layers.{i // 10}.block.{i % 10}.weight", 1 + i % 3)
                                        for i in range(100_000)])
        many = page_of(many_source, "many.html")
        layers_source = os.path.join(folder, "layers.safetensors")
        write_safetensors(layers_source, [(f"model.layers.{i}.{part}", 64) for i in range(LAYERS) for part in PARTS] +
                          [("model.embed.weight", 4096), ("model.layers.final.weight", 64)])
        layers = page_of(layers_source, "layers.html")
        clicked = scripted(layers, CLICKS)
        unfolded_source = os.path.join(folder, "unfolded.safetensors")
        write_safetensors(unfolded_source, [(f"model.layers.{i}.{part}", 640) for i in range(40) for part in PARTS])
        unfolded = page_of(unfolded_source, "unfolded.html")
        dozen_source = os.path.join(folder, "dozen.safetensors")
        write_safetensors(dozen_source, [(f"model.layers.{i}.{part}", 640) for i in range(12) for part in PARTS])
        dozen = page_of(dozen_source, "dozen.html")
        run = os.path.join(folder, "runs")
        os.mkdir(run)
        steps = {100: [("a", 64), ("b", 32)], 1000: [("a", 64), ("b", 48), (HOSTILE[0], 8)], 200: [("a", 64), ("b", 32)],
                 1100: [("a", 64), ("b", 48)]}
        for step, tensors in steps.items():
            path = os.path.join(run, f"step-{step}", "model.safetensors")
            os.mkdir(os.path.dirname(path))
            write_safetensors(path, tensors)
            os.utime(path, (1_700_000_000 + 60 * step, 1_700_000_000 + 60 * step))
        with open(os.path.join(run, "step-1100", "model.safetensors"), "r+b") as file:
            file.truncate(40)
        shutil.copytree(os.path.join(golden, "2.15.0/fsdp2/ckpt"), os.path.join(run, "dcp-step-7"))
        listed = page_of(run, "listed.html", status=2)
        verified = page_of(run, "verified.html", "verify", status=1)
        injected = os.path.join(folder, "injected.html")
        with open(fsdp2, encoding="utf-8") as file:
            text = file.read()
        with open(injected, "w", encoding="utf-8") as file:
            file.write(text.replace("</main>", "</main><script>document.documentElement.dataset.pwned='inline'</script>"
                                    "<img src=data:, onerror=\"document.documentElement.dataset.pwned='event'\">"))

        def everything():
            dom, console = browser.open(fsdp2, "#fold=0")
            checks.equal("tensors", dom.attribute("ready"), "80")
            checks.equal("console", console, [])
            checks.equal("count", dom.count(), "1 to 80 of 80 tensors")
            checks.equal("rows", len(dom.keys()), 80)
            checks.that("bytes", "172.9 KiB" in dom.shown and "44,260" in dom.shown)
            checks.that("dtypes", "float32 172.9 KiB" in dom.shown and "int64 24 B" in dom.shown, dom.inside("dtypes", "ul"))
            checks.equal("values", dom.inside("values", "section").count("<tr>"), 14)
            checks.that("ranks of a tensor", "ranks 0 – 1" in dom.inside("table", "table"))
            checks.that("treemap", dom.shown.count('class="tile"') > 20)
            columns = re.findall(r'<th[^>]*class="column"[^>]*>(.*?)</th>', dom.inside("shards", "table"))
            checks.equal("columns of the map", columns, ["0", "1"])

        def searching():
            dom, _ = browser.open(fsdp2, "#q=blocks.0.UP+float32&sort=key")
            keys = dom.keys()
            checks.equal("found", dom.count(), "1 to 8 of 8 tensors")
            checks.that("each found has the word", all("blocks.0.up" in key for key in keys), keys)
            dom, _ = browser.open(fsdp2, "#q=no-such-tensor")
            checks.equal("nothing found", (dom.keys(), dom.count()), ([], "No tensor matches"))

        def sorting():
            dom, _ = browser.open(fsdp2, "#fold=0&sort=bytes&down=1&q=model")
            sizes = re.findall(r'<td class="number">([\d.]+ (?:B|KiB))</td>', dom.inside("table", "table"))
            values = [float(size.split()[0]) * (1024 if "KiB" in size else 1) for size in sizes]
            checks.that("largest first", len(values) == 23 and values == sorted(values, reverse=True), values)
            checks.that("said to assistive technology", 'aria-sort="descending"' in dom.shown)

        def zooming():
            dom, _ = browser.open(shards, "#zoom=grid&open=0")
            checks.equal("shards", dom.attribute("ready"), "8")
            checks.that("chunks of the open row", dom.inside("table", "table").count('class="mono"><span class="swatch"') >= 1)
            dom, _ = browser.open(fsdp2, "#zoom=app.model")
            crumbs = re.findall(r">([^<>]+)</button>", dom.inside("crumbs", "nav"))
            checks.equal("crumbs", crumbs, ["everything", "app", "model"])

        def folding():
            dom, console = browser.open(layers)
            checks.equal("layers: drawn", (dom.attribute("ready"), console), (str(LAYERS * len(PARTS) + 2), []))
            folded = [f"model.layers.{{0..{LAYERS - 1}}}.{part} ×{LAYERS:,}" for part in PARTS]
            checks.equal("layers: a row for each part of a layer", dom.keys(), ["model.embed.weight", *folded, "model.layers.final.weight"])
            checks.equal("layers: count", dom.count(), f"1 to {len(PARTS) + 2} of {len(PARTS) + 2} rows, {LAYERS * len(PARTS) + 2:,} tensors")
            checks.that("layers: bytes of all of them", bytes_text(64 * LAYERS) in dom.inside("table", "table"), dom.inside("table", "table"))
            checks.that("layers: the page is small", dom.shown.count("<") < 1000, dom.shown.count("<"))
            checks.that("layers: the map has them as one", f"{{0..{LAYERS - 1}}} ×{LAYERS:,}" in dom.inside("treemap", "div") + dom.shown)
            checks.that("layers: the map shows the parts of one", 'class="label">attn' in dom.shown, re.findall('class="label">[^<]*', dom.shown))
            # A click on a name, as the address has it afterwards.
            dom, console = browser.open(layers, "#unfolded=0&page=0")
            keys = dom.keys()
            checks.equal("layers: one opened", (keys[1:4], len(keys), console),
                         ([folded[0], f"model.layers.0.{PARTS[0]}", f"model.layers.1.{PARTS[0]}"], 100, []))
            dom, _ = browser.open(layers, "#q=layers.817.")
            checks.equal("layers: a search finds one of them", dom.keys(), [f"model.layers.817.{part}" for part in PARTS])
            dom, _ = browser.open(layers, "#q=" + PARTS[0])
            checks.equal("layers: a search finds all of them", dom.keys(), folded[:1])
            dom, _ = browser.open(layers, "#zoom=model.layers." + urllib.parse.quote(f"{{0..{LAYERS - 1}}}"))
            names = [html.unescape(name) for name in re.findall(r'<td class="key"><button[^>]*>(.*?)</button>', dom.inside("shards", "table"))]
            checks.equal("layers: an opened module lists them", names[:3], ["0", "1", "2"])
            dom, _ = browser.open(layers, "#fold=0")
            checks.equal("layers: not folded", dom.count(), f"1 to 100 of {LAYERS * len(PARTS) + 2:,} tensors")
            dom, console = browser.open(clicked)
            checks.equal("layers: clicks", (dom.keys()[1:3], dom.attribute("clicked"), console),
                         ([folded[0], f"model.layers.0.{PARTS[0]}"], "4", []))

        def hostile_names():
            for words in ("#q=script&open=0", "#zoom=__proto__&sort=toString"):
                dom, console = browser.open(hostile, words)
                checks.equal("hostile: nothing ran" + words, dom.attribute("pwned"), None)
                checks.equal("hostile: no element" + words, re.findall(r"<img|<iframe|<object|<a [^>]*javascript:", dom.shown), [])
                checks.equal("hostile: all drawn" + words, dom.attribute("ready"), str(len(HOSTILE)))
                checks.equal("hostile: console" + words, console, [])
            dom, _ = browser.open(hostile)
            keys = dom.keys()
            checks.that("hostile: names as they are", HOSTILE[0] in keys and HOSTILE[1] in keys, keys)
            checks.that("hostile: separators of lines are shown escaped", any("\\u2028" in key for key in keys) and not any("\u2028" in key for key in keys), keys)

        def policy():
            dom, _ = browser.open(injected)
            checks.equal("the policy stops other scripts", (dom.attribute("pwned"), dom.attribute("ready")), (None, "80"))

        def one_tensor():
            dom, console = browser.open(bare)
            checks.equal("bare tensor", (dom.keys(), dom.attribute("ready"), console), (["(root)"], "1", []))

        def width():
            for size in ("1200,1400", "400,1400"):  # higher than the page before it is drawn
                dom, console = browser.open(scripted(fsdp2, WIDTH), size=size, scrollbars=True)
                bar, rest = json.loads(dom.attribute("width") or "[0, -1]")
                checks.that("width: there is a scrollbar", bar > 0, bar)
                checks.that("width: the map ends where its parts do", 0 <= rest <= 3, rest)
                checks.equal("width: console", console, [])

        def zooming_in():
            dom, console = browser.open(scripted(unfolded, ZOOM), "#fold=0")
            seen = json.loads(dom.attribute("zoom") or "[]")
            checks.equal("zoom: steps", (len(seen), console), (7, []))
            checks.that("zoom: each unfolded layer has its name, and little has none", seen[0]["layers"] >= 40 and seen[0]["bare"] < 0.25, seen)
            checks.that("zoom: larger, tensors have names too", seen[1]["tensors"] > seen[0]["tensors"] and seen[1]["bare"] < 0.05, seen)
            checks.equal("zoom: widths", [round(one["width"] / seen[0]["width"]) for one in seen], [1, 2, 4, 8, 4, 2, 1])
            checks.equal("zoom: back", seen[6], seen[0])
            dom, _ = browser.open(scripted(layers, ZOOM), "#fold=0&zoom=model.layers")
            seen = json.loads(dom.attribute("zoom") or "[]")
            checks.that("zoom: of many layers, names from a size on", seen[0]["layers"] == 0 and seen[2]["layers"] > 40, seen)
            checks.that("zoom: only what is in view is drawn", seen[3]["parts"] < seen[0]["parts"] / 2, seen)

        def keyboard():
            dom, console = browser.open(scripted(dozen, WALK), "#fold=0&zoom=model.layers")
            walk = json.loads(dom.attribute("walk") or "{}")
            checks.equal("keyboard: console", console, [])
            if not walk:
                checks.that("keyboard: walked", False, dom.shown[-500:])
                return
            checks.equal("keyboard: role, focus", (walk["role"], walk["focused"], walk["first"]), ("tree", True, walk["items"][0]))
            checks.that("keyboard: the map has a label", "model.layers" in walk["label"], walk["label"])
            checks.equal("keyboard: parts", len(walk["items"]), 12)
            checks.that("keyboard: labels say key, tensors, bytes", re.fullmatch(r"model\.layers\.\d+\n11 tensors, 6\.9 KiB, 8\.3 %", walk["first"]), walk["first"])
            checks.equal("keyboard: arrows reach every part", sorted(walk["reached"]), sorted(walk["items"]))
            chosen, crumbs = walk["entered"]
            checks.that("keyboard: Enter opens", chosen != walk["first"] and chosen.partition("\n")[0].endswith("." + crumbs[-1]), walk["entered"])
            checks.equal("keyboard: + and Escape", (walk["larger"], walk["whole"]), (True, True))
            checks.equal("keyboard: Escape goes back to the part", (walk["left"][0], walk["left"][2]), (chosen, True))
            checks.that("keyboard: Enter on a tensor leads to its row", walk["tensor"][0] and walk["tensor"][1].startswith(chosen.split("\n")[0]), walk["tensor"])
            checks.that("keyboard: a sorted table keeps the focus", walk["sorted"].startswith("bytes"), walk["sorted"])

        def runs():
            dom, console = browser.open(scripted(listed, OPEN_ALL))
            rows = dom.rows()
            lines, details = rows[::2], [" ".join(row) for row in rows[1::2]]
            checks.equal("run: drawn", (dom.attribute("ready"), console, len(rows), dom.attribute("pwned")), ("5", [], 10, None))
            checks.equal("run: the newest first", [line[0] for line in lines], ["step-1100", "step-1000", "step-200", "step-100", "dcp-step-7"])
            checks.equal("run: written", [line[2] for line in lines[:4]],
                         ["", "2023-11-15 14:53 UTC", "2023-11-15 01:33 UTC", "2023-11-14 23:53 UTC"])
            checks.equal("run: tensors", [line[4] for line in lines], ["", "3", "2", "2", "80"])
            checks.equal("run: nothing is called sound", [line[1] for line in lines], ["cannot be opened"] + 4 * ["not verified"])
            checks.equal("run: what changed", [line[5] for line in lines],
                         ["ST_HEADER", "tensors: 1 added, 1 changed", "the same names, dtypes and shapes", "nothing before it", "nothing before it"])
            checks.that("run: the changes by name", "b  uint8 [32] → uint8 [48]" in details[1] and HOSTILE[0] in details[1], details[1])
            checks.that("run: the next command", "fsdp-ckpt diff " in details[2] and "fsdp-ckpt verify " in details[2], details[2])
            checks.that("run: the opened row keeps the focus", dom.attribute("focus") == lines[-1][0], dom.attribute("focus"))
            checks.equal("run: sizes and times", (dom.shown.count("<rect"), dom.shown.count("<circle")), (5, 4))
            checks.equal("run: no element", re.findall(r"<img|<iframe|<object|<a [^>]*javascript:", dom.shown), [])
            dom, console = browser.open(verified, size="400,800")
            checks.equal("verified run: soundness", ([line[1] for line in dom.rows()], console), (["damaged"] + 3 * ["sound as far as checked"] + ["sound"], []))
            checks.that("verified run: facts", "4 of 5" in dom.inside("facts", "dl"), dom.inside("facts", "dl"))
            charts = [int(wide) for wide in re.findall(r'viewBox="0 0 (\d+) ', dom.shown)]
            checks.that("verified run: charts fit a narrow window", len(charts) == 2 and max(charts) < 500, charts)

        def hundred_thousand():
            dom, console = browser.open(many, "#fold=0&q=layers.9999.")
            checks.equal("many", (dom.attribute("ready"), dom.count(), console), ("100000", "1 to 10 of 10 tensors", []))
            tiles = dom.shown.count('class="tile"')
            checks.that("many: small tiles are gathered", tiles < 5000 and " more</div>" in dom.shown, tiles)

        def narrow_and_colours():
            dom, _ = browser.open(fsdp2, size="380,800")
            width = re.search(r'id="sheet"[^>]*><div[^>]*width: ([\d.]+)px', dom.shown)
            checks.that("narrow: tiles inside", width and float(width.group(1)) < 500, width and width.group(0))
            for mode, dark in (("0", True), ("1", False)):
                png = os.path.join(folder, f"{mode}.png")
                browser.run(f"--blink-settings=preferredColorScheme={mode}", f"--screenshot={png}", "file://" + fsdp2)
                pixel = first_pixel(png)
                checks.that("dark" if dark else "light", (max(pixel) < 64) if dark else (min(pixel) > 200), pixel)

        cases = [everything, searching, sorting, zooming, folding, hostile_names, policy, one_tensor, width, zooming_in, keyboard, runs, hundred_thousand, narrow_and_colours]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for case in [pool.submit(case) for case in cases]:
                case.result()

        with open(fsdp2, encoding="utf-8") as file:
            check_contrast(checks, file.read())
        for page in filter(os.path.exists, (fsdp2, hostile, bare, listed)):
            with open(page, encoding="utf-8") as file:
                text = file.read()
            data = re.search(r'id="data">(.*?)</script>', text, flags=re.S).group(1)
            code = text.replace(data, "").replace("http://www.w3.org/2000/svg", "")
            checks.equal(f"addresses in {os.path.basename(page)}", re.findall(r"https?:|//[a-z]+\.|@import|url\(", code), [])
            checks.equal("no markup in the data", re.findall(r"[<>&\u2028\u2029]", data), [])
            json.loads(data)
    for problem in checks.failed:
        print(problem)
    print(f"{checks.passed} checks passed, {len(checks.failed)} failed")
    return 1 if checks.failed or checks.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
