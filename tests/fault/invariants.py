# SPDX-License-Identifier: Apache-2.0
"""The rules that hold in spite of any fault (docs/reliability.md): outputs whole, statuses and words true, nothing left behind."""
import errno
import json
import os
import re

# A message of the tool, or of save_program.cpp: there the failed rank's words count, because the words before them name the folder in any
# case.
MESSAGE = re.compile(r"^(?:fsdp-ckpt: error\[[A-Z0-9_]+\]: |save_program: error: (?:.*? failed on rank 0: )?)(?P<says>.*)", re.MULTILINE)


class Violation(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Violation(what)


def tree(folder):
    """Returns, by path, the bytes of every file below, None for folders; and the temporaries separately."""
    found, left = {}, []
    for above, folders, files in os.walk(folder):
        for name in list(folders):
            if is_temporary(name):
                left.append(os.path.relpath(os.path.join(above, name), folder))
                folders.remove(name)
            else:
                found[os.path.relpath(os.path.join(above, name), folder)] = None
        for name in files:
            path = os.path.join(above, name)
            if is_temporary(name):
                left.append(os.path.relpath(path, folder))
                continue
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found, sorted(left)


def is_temporary(name):
    return name.startswith(".") and name.endswith((".fsdp-tmp", ".fsdp-removed"))


def unsealed(files):
    """What stands beside an output cannot be replaced at once with it: it is removed before, and written after."""
    return {path: content for path, content in files.items() if "/" in path or not path.endswith((".fsdp_seal.json", ".salvage.json"))}


# The time and the amount of shared data in a folder depend on what could be shared.
RECORD = "fsdp_shared.json"


def alike(now, expected):
    def rest(files):
        return {path: content for path, content in files.items() if os.path.basename(path) != RECORD}
    return rest(now) == rest(expected)


class States:
    """The output of a case: its old and new content, and the states allowed in between."""

    def __init__(self, case, clean_out):
        self.case, self.clean_out = case, clean_out
        self.old = self.new = None

    def which(self):
        """'old', 'new', 'unsealed' or 'torn', and the temporaries beside it."""
        now, left = tree(self.case.words["out"])
        for name, content in (("new", self.new), ("old", self.old)):
            if alike(now, content):
                return name, left
        if now in (unsealed(self.old), unsealed(self.new)):
            return "unsealed", left
        return "torn", left

    def check_killed(self):
        which, _ = self.which()
        expect(which != "torn", f"torn: {self.differences()}")
        return which == "new"

    def differences(self):
        now, left = tree(self.case.words["out"])
        words = []
        for name, content in (("old", self.old), ("new", self.new)):
            other = [path for path in {*now, *content} if now.get(path, "") != content.get(path, "")]
            words.append(f"unlike the {name} one in {sorted(other)}")
        return f"{'; '.join(words)}; beside it {left}"

    def check_next_run(self, run):
        """The same command once more finishes the work, whatever the failed one left."""
        done = run()
        expect(done.status == self.case.status, f"the next run: {done.words()}")
        which, left = self.which()
        expect(which == "new" and left == [], f"after the next run: {which}, {self.differences()}")

    def check_ended(self, ended, fault):
        """Checks a run that ended by itself. Returns whether it refused."""
        expect(not ended.hung, "hung")
        expect(ended.signal == 0, "crashed")
        which, left = self.which()
        if self.case.passing and ended.status == self.case.status and self.case.passing in ended.err:
            expect(which == ("old" if self.case.writes() else "new") and left == [], f"passed over, but the output is {which}: {self.differences()}")
            return True
        if self.case.record and ended.status == self.case.status and self.came_from_elsewhere(fault):
            expect(left == [], f"another origin, and {left} left")
            return True
        if ended.status == self.case.status and not MESSAGE.search(ended.err):
            expect(which == "new", f"status {ended.status}, but the output is {which}: {self.differences()}")
            expect(same_answer(ended.out, self.clean_out), f"status {ended.status} and another answer, expected {self.clean_out[-400:]!r}")
            expect(left == [], f"status {ended.status}, and {left} left")
            return False
        if self.case.incomplete is not None and ended.status == self.case.incomplete:
            expect("fsdp-ckpt: warning[" in ended.err, "incomplete, and no warning says what is missing")
            return True
        expect(ended.status == 2, "neither done nor refused")
        message = MESSAGE.search(ended.err)
        if fault.call == "write" and (fault.stays or not ended.out):
            return True  # standard error itself could not be written
        expect(message, "no message")
        says = message["says"]
        names_file = any(place in says for place in self.places()) and "/proc/self" not in says
        expect(names_file, "the message names no file")
        if self.case.page and self.tells(says):
            expect(left == [], f"a page, and {left} left")
            return True
        if not self.case.writes():
            expect(which == "new" and left == [], f"wrote something: {self.differences()}")
            return True
        in_place = any(text in says for text in ("in place", "removed before that", "removed from the run"))
        if in_place:
            expect(which in ("new", "unsealed"), f"the message says the new one is in place, or the old one removed, found {which}")
        else:
            expect(which in ("old", "unsealed"), f"refused, but the output is {which}: {self.differences()}")
        for name in left if not fault.stays else []:  # else removing failed as well
            expect(os.path.basename(name) in says, f"{name} is left, and the message does not say so")
        return True

    def came_from_elsewhere(self, fault):
        """Returns whether the output is the new one, but for a record that tells what could not be read. Memory that lacks is not such a reason."""
        now, _ = tree(self.case.words["out"])
        record = now.pop(self.case.record, b"").decode()
        rest = {path: content for path, content in self.new.items() if path != self.case.record}
        kind, _, value = fault.what.partition("=")
        why = os.strerror(int(value)) if kind == "error" else "bytes when it was opened"
        if kind == "error" and int(value) == errno.ENOMEM:
            return False
        return record.encode() != self.new[self.case.record] and alike(now, rest) and why in record

    def tells(self, says):
        """Returns whether the page is whole and has the message, where several inputs have one page."""
        page = tree(self.case.words["out"])[0].get(self.case.page, b"").decode()
        says = re.sub(r"; [^;]* is in place$", "", says)
        return page.endswith("</html>\n") and json.dumps(says)[1:-1] in page

    def places(self):
        # The last one: a folder on the way to one of them, as the C++ library names it.
        around = [os.path.dirname(self.case.folder) + os.sep] if self.case.around else []
        return [*self.case.words.values(), *around, "standard output", "temporary file", "out of memory", " [/"]


def same_answer(out, clean):
    """Removes the amount of data shared with the source, and the speed."""
    def rest(text):
        text = re.sub(r", [0-9.]+ [KMG]?i?B/s", "", text)
        return re.sub(r"[0-9.,]+ [KMG]?i?B in [0-9]+ files(, .* shared with the source)?(, all data matched its CRC-32)?", "", text)
    return rest(out) == rest(clean)
