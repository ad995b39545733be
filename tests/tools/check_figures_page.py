#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the pages of `diff --html` and `stats --html` in a headless Chromium and checks the result.

    check_figures_page.py TOOL GOLDEN CHROMIUM

Exit: 0 all as expected, 1 not, 77 if the browser does not run here (skipped).
"""
import html
import json
import os
import re
import subprocess
import sys
import tempfile

from check_inspect_page import HOSTILE, SKIPPED, Browser, Checks, first_pixel, with_script, write_safetensors

# Opens the first row of the table, and follows the first group to its rows.
CLICKS = """
document.querySelector("#groups button").click();
document.querySelector("#table tbody button").click();
"""

# The width of the narrowest cell with a dtype.
NARROW = """
document.documentElement.dataset.narrow = String(Math.min(...[...document.querySelectorAll("#table td.mono")].map((cell) => cell.offsetWidth)));
"""


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

        def run(*words, expect=0):
            done = subprocess.run([tool, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            checks.equal(" ".join(words[:1]), (done.returncode, done.stderr if done.returncode == 2 else ""), (expect, ""))
            return done.stdout

        def page_of(name, *words, expect=0):
            page = os.path.join(folder, name)
            return page, json.loads(run(*words, "--html", page, "--json", expect=expect))

        step = os.path.join(golden, "2.15.0/fsdp2/ckpt")
        half = os.path.join(folder, "half.pt")
        run("consolidate", step, half, "-q", "--dtype", "bfloat16")
        other, answer = page_of("other.html", "diff", step, half, "--ignore-dtype", expect=1)
        shown, console = browser.open(other)
        checks.equal("console", console, [])
        checks.equal("rows", shown.attribute("ready"), str(len(answer["differences"])))
        checks.that("verdict", '<b class="bad">A and B differ</b>' in shown.shown, shown.inside("kind", "p"))
        checks.equal("keys in the order of --json", shown.keys(), [row["key"] for row in answer["differences"]][:100])
        checks.that("sides", all(html.escape(side) in shown.inside("name", "h1") for side in (step, half)), shown.inside("name", "h1"))
        word = answer["differences"][0]["key"]
        found, _ = browser.open(other, "#q=" + word + "&open=0")
        checks.equal("search", found.keys()[0], word)
        checks.that("an open row has every member", "<dt>max_abs_at</dt>" in found.inside("table", "table"), found.inside("table", "table"))
        ordered, _ = browser.open(other, "#sort=key&q=optim")
        checks.that("sorted", ordered.keys() == [row["key"] for row in sorted(answer["differences"], key=lambda row: [
            int(part) if part.isdigit() else part for part in row["key"].split(".")]) if "optim" in row["key"]][:100], ordered.keys())
        clicked = os.path.join(folder, "clicked.html")
        with_script(other, clicked, CLICKS)
        opened, console = browser.open(clicked)
        checks.that("clicks", not console and "<dt>elements</dt>" in opened.inside("table", "table") and len(opened.keys()) < len(answer["differences"]), console)

        narrow = os.path.join(folder, "narrow.html")
        with_script(other, narrow, NARROW)
        shown, _ = browser.open(narrow, size="380,800")
        checks.that("narrow: a dtype stays in one line", int(shown.attribute("narrow")) >= 70, shown.attribute("narrow"))

        same, _ = page_of("same.html", "diff", step, step)
        shown, console = browser.open(same)
        checks.that("same", '<b class="good">A and B are the same</b>' in shown.shown and not console, console)

        model = os.path.join(folder, "m.safetensors")
        run("consolidate", step, model, "-q", "-k", "app.model.**", "--strip-prefix", "app.model", "--drop-values")
        way, answer = page_of("way.html", "diff", step, model)
        shown, console = browser.open(way)
        checks.that("way", answer["through"]["model_a"] == "app.model" and "the model app.model" in shown.inside("findings", "section"), shown.inside("findings", "section"))

        stats, answer = page_of("stats.html", "stats", os.path.join(golden, "2.11.0/odd_tensors/ckpt"), "--fail-on", "nan", expect=1)
        shown, console = browser.open(stats)
        checks.equal("stats: console", console, [])
        checks.equal("stats: keys", shown.keys(), [row["key"] for row in answer["tensors"]])
        checks.that("stats: gate", "The gate failed: nan" in shown.shown and "nan</b> nan: 1" in shown.inside("findings", "section"), shown.inside("findings", "section"))
        ordered, _ = browser.open(stats, "#sort=nan&down=1")
        checks.equal("stats: sorted", ordered.keys()[0], "nan")

        # Names that are markup, scripts or members of objects.
        names = os.path.join(folder, HOSTILE[0].replace("/", "") + ".safetensors")
        write_safetensors(names, [(key, 64) for key in HOSTILE])
        bare = os.path.join(folder, "bare.safetensors")
        write_safetensors(bare, [("x", 3)])
        for name, words, status in (("d.html", ("diff", names, bare), 1), ("s.html", ("stats", names), 0)):
            page, answer = page_of(name, *words, expect=status)
            for size in ("1200,1600", "380,800"):
                for view in ("", "#q=script&open=1&sort=key", "#sort=__proto__&open=0"):
                    shown, console = browser.open(page, view, size=size)
                    checks.equal(f"{name}{view}: nothing ran", (shown.attribute("pwned"), console), (None, []))
                    checks.equal(f"{name}{view}: no element", re.findall(r"<img|<iframe|<object|<a [^>]*javascript:", shown.shown), [])
            checks.equal(name, shown.attribute("ready"), str(len(answer.get("tensors") if status == 0 else answer["differences"])))
            with open(page, encoding="utf-8") as file:
                text = file.read()
            data = re.search(r'id="data">(.*?)</script>', text, flags=re.S).group(1)
            checks.equal(f"{name}: addresses", re.findall(r"https?:|//[a-z]+\.|@import|url\(", text.replace(data, "")), [])
            checks.equal(f"{name}: no markup in the data", re.findall(r"[<>&\u2028\u2029]", data), [])
            checks.equal(f"{name}: the data are what --json prints", json.loads(data)["answer"], answer)
        for mode, dark in (("0", True), ("1", False)):
            png = os.path.join(folder, f"{mode}.png")
            browser.run(f"--blink-settings=preferredColorScheme={mode}", f"--screenshot={png}", "file://" + other)
            pixel = first_pixel(png)
            checks.that("dark" if dark else "light", (max(pixel) < 64) if dark else (min(pixel) > 200), pixel)
    for problem in checks.failed:
        print(problem)
    print(f"{checks.passed} checks passed, {len(checks.failed)} failed")
    return 1 if checks.failed or checks.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
