# SPDX-License-Identifier: Apache-2.0
"""Leaves out, one after the other, the calls that order libfsdp's work on an accelerator, and expects a test to notice.

    run.py PROGRAM... [--kept FILE] [--jobs N] [--only PLACE]

PROGRAM: test programs on simulated devices, quick ones first, built with FSDP_LEAVE_OUT_CALLS.  A first run of each lists the
calls that it makes, as chains of addresses, of which addr2line makes places; then each place is left out until a program fails.  Calls in the file of those that cannot matter, with the
reason, are left out with --all, and expected to pass all programs.  Every call in the source has to be made by some program, or
to be in that file.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
import sample  # noqa: E402

CALLS = re.compile(r"(?:streams_?|\*context\.streams|context\.streams|engine\.streams\(\))(?:\.|->)(order|pass|used_on|follow_caller|enter)\("
                   r"|\b(wait_for_event)\(\*|(?:pending_|\)|^ *)\.(wait)\(\)|buffers_?(?:\.|->)(abandon)\(")
# Functions that stand between a call and the place that makes it.
PASSED_ON = {"order": "Streams::order", "pass": "Streams::(pass|order)", "used_on": "Streams::used_on|Buffers::abandon",
             "follow_caller": "Streams::follow_caller", "enter": "Streams::enter", "give": "Buffers::give", "wait": "Pending::wait",
             "wait_for_event": "wait_for_event"}
OF_ABANDON = "streams_.used_on(buffer, streams_.id(user));"   # a part of the calls of abandon()
LIMIT = 300  # seconds; a program that takes longer waits for something that was left out


def environment(**more):
    return {**os.environ, "FSDP_TEST_DEVICE": "sim", "OMP_NUM_THREADS": "1", "GTEST_BRIEF": "1", **more}


def calls_in_source():
    """Returns the places of calls in libfsdp, as "file:line"."""
    places = set()
    for path in sorted((ROOT / "libfsdp").rglob("*.cpp")):
        if "cuda" in path.parts or path.name in ("streams.cpp", "collectives.cpp", "async_saver.cpp"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if CALLS.search(line) and not line.strip().startswith("//") and line.strip() != OF_ABANDON:
                places.add(f"{path.name}:{number}")
    return places


def frames_of(program, addresses):
    """Returns the functions and files with lines that each address stands for, inlined ones first."""
    said = subprocess.run(["addr2line", "-e", program, "-a", "-i", "-f", "-C", *addresses], check=True, capture_output=True, text=True).stdout
    frames = {}
    for block in re.split(r"^0x0*", said, flags=re.MULTILINE)[1:]:
        address, *lines = block.splitlines()
        frames[address] = list(zip(lines[::2], lines[1::2]))
    return frames


def place_of(line, frames):
    """Returns the place that makes a listed call, as "file:line"; None where libfsdp does not."""
    name, *chain = line.split()
    for function, place in (frame for address in chain for frame in frames[address]):
        if f"{ROOT}/libfsdp/" in place and not re.search(rf"\b({PASSED_ON[name]})\(", function):
            return place.split("/")[-1].split(" ")[0]
    return None


def calls_made(programs):
    """Returns the lines that list the calls of a place, by place and program."""
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for program in programs:
            listed = pathlib.Path(folder, pathlib.Path(program).name)
            subprocess.run([program], env=environment(FSDP_LIST_CALLS=str(listed)), check=True, stdout=subprocess.DEVNULL)
            lines = listed.read_text().splitlines()
            frames = frames_of(program, sorted({address for line in lines for address in line.split()[1:]}))
            for line in lines:
                made.setdefault(place_of(line, frames), {}).setdefault(program, []).append(line)
    made.pop(None, None)
    if not made:
        sys.exit("no call was listed: build with FSDP_LEAVE_OUT_CALLS")
    return made


def first_that_fails(made):
    """Returns the first program that fails without the lines of its calls."""
    for program, lines in made.items():
        try:
            with tempfile.NamedTemporaryFile("w") as left_out:
                print(*lines, sep="\n", file=left_out, flush=True)
                run = subprocess.run([program], env=environment(FSDP_LEAVE_OUT=left_out.name, GTEST_FAIL_FAST="1"), timeout=LIMIT,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return f"{pathlib.Path(program).name} hangs"
        if run.returncode != 0:
            return pathlib.Path(program).name
    return None


def read_kept(path):
    """Returns the reasons of calls that cannot matter, by "file function: text of the line"."""
    kept = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            call, reason = line.split("  # ")
            kept[call.strip()] = reason
    return kept


FUNCTION = re.compile(r"^(?=\S).*?(~?\w+(?:::~?\w+)*)\(")


def text_of(place):
    """Returns "file function: text of the line"."""
    name, number = place.split(":")
    path = next((ROOT / "libfsdp").rglob(name), None)
    if path is None:
        return place
    lines = path.read_text().splitlines()[:int(number)]
    function = next((found[1] for line in reversed(lines[:-1]) if (found := FUNCTION.match(line))), "")
    return f"{name} {function}: {lines[-1].strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--kept", type=pathlib.Path, default=pathlib.Path(__file__).with_name("kept.txt"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", help="leave out this call alone")
    parser.add_argument("--all", action="store_true", help="leave out those that cannot matter, too")
    options = parser.parse_args()
    kept = read_kept(options.kept)
    source = calls_in_source()
    files = {place.split(":")[0] for place in source}
    made = {place: calls for place, calls in calls_made(options.programs).items() if place.split(":")[0] in files}
    # A call of several lines is listed by one of them.
    near = {f"{place.split(':')[0]}:{int(place.split(':')[1]) + by}" for place in made for by in range(-3, 4)}
    problems = [f"no program makes the call {text_of(place)}" for place in sorted(source - near) if text_of(place) not in kept]
    places = sample.taken(place for place in sorted(made) if options.only in (None, place) and (options.all or text_of(place) not in kept))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for place, failed in zip(places, pool.map(lambda place: first_that_fails(made[place]), places)):
            text = text_of(place)
            print(f"{place} {min(made[place].values())[0].split()[0]}: {failed or 'nothing fails'}", flush=True)
            if failed is None and text not in kept:
                problems.append(f"no test fails without {text}")
            if failed is not None and text in kept:
                problems.append(f"{failed} fails without {text}, which {options.kept.name} says cannot matter")
    print(f"{len(places)} calls left out")
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    main()
