# SPDX-License-Identifier: Apache-2.0
"""Changes of a folder as a whole, without any knowledge of the files' meaning.

Each takes a Scene and returns what it did, or None if it was not applicable.
"""
import os
import random
import shutil
import socket
import stat


class Scene:
    """`root`, a folder to change; `mates`, other checkpoints of its kind (another step, other worlds); `strangers`, of other
    kinds; `outside`, a folder that is not part of it."""

    def __init__(self, root, mates, strangers, outside, drawn: random.Random):
        self.root, self.mates, self.strangers, self.outside, self.drawn = root, mates, strangers, outside, drawn
        self.as_nobody = False

    def files(self, root=None):
        """Returns regular files, in an order that does not depend on the file system."""
        root = root or self.root
        return sorted(os.path.relpath(os.path.join(at, n), root) for at, _, names in os.walk(root) for n in names
                      if stat.S_ISREG(os.lstat(os.path.join(at, n)).st_mode))

    def folders(self):
        return sorted(os.path.relpath(os.path.join(at, n), self.root) for at, names, _ in os.walk(self.root) for n in names)

    def path(self, name):
        return os.path.join(self.root, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def write(self, name, content):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    def draw(self):
        """The name of one of its files, or None."""
        files = self.files()
        return self.drawn.choice(files) if files else None

    def free_name(self, like):
        """Returns an unused name: of the same form with another number, or just another one."""
        folder, name = os.path.split(like)
        digits = [i for i, c in enumerate(name) if c.isdigit()]
        for _ in range(20):
            if digits and self.drawn.random() < 0.7:
                at = self.drawn.choice(digits)
                new = name[:at] + str(self.drawn.randrange(10)) + name[at + 1:]
            else:
                new = self.drawn.choice([name + ".bak", "copy_of_" + name, name.upper(), name + "~", "." + name, "x" + name, name.split(".")[0]])
            if new and not os.path.lexists(self.path(os.path.join(folder, new))):
                return os.path.join(folder, new)
        return os.path.join(folder, "other")


def removed(scene):
    name = scene.draw()
    if name is None:
        return None
    os.unlink(scene.path(name))
    return f"{name} removed"


def emptied(scene):
    name = scene.draw()
    if name is None:
        return None
    scene.write(name, b"")
    return f"{name} emptied"


def cut(scene):
    name = scene.draw()
    content = scene.read(name) if name else b""
    if not content:
        return None
    length = len(content) - 1 if scene.drawn.random() < 0.3 else scene.drawn.randrange(len(content))
    scene.write(name, content[:length])
    return f"{name} cut to {length} of {len(content)} bytes"


def lengthened(scene):
    name = scene.draw()
    if name is None:
        return None
    more = scene.drawn.choice([b"\0", b"\0" * 4096, scene.drawn.randbytes(100), scene.read(name)])
    scene.write(name, scene.read(name) + more)
    return f"{name} with {len(more)} bytes more"


def flipped(scene):
    name = scene.draw()
    content = bytearray(scene.read(name)) if name else b""
    if not content:
        return None
    places = [scene.drawn.randrange(len(content)) for _ in range(scene.drawn.choice([1, 1, 1, 5, 50]))]
    for place in places:
        content[place] ^= 1 << scene.drawn.randrange(8)
    scene.write(name, content)
    return f"{name} with bits flipped at {places[:5]}"


def zeroed(scene):
    name = scene.draw()
    content = bytearray(scene.read(name)) if name else b""
    if not content:
        return None
    length = min(len(content), scene.drawn.choice([8, 64, 512, 4096]))
    begin = scene.drawn.randrange(len(content) - length + 1)
    content[begin:begin + length] = bytes(length)
    scene.write(name, content)
    return f"{name} with {length} zeros at byte {begin}"


def block_moved(scene):
    """Swaps two blocks of a file, or writes one over another."""
    name = scene.draw()
    content = bytearray(scene.read(name)) if name else b""
    if len(content) < 16:
        return None
    length = min(len(content) // 2, scene.drawn.choice([8, 64, 512, 4096]))
    one, two = sorted(scene.drawn.randrange(0, len(content) - length + 1) // 8 * 8 for _ in range(2))
    if two - one < length:
        return None
    both = scene.drawn.random() < 0.5
    content[two:two + length], content[one:one + length] = (content[one:one + length],
                                                            content[two:two + length] if both else content[one:one + length])
    scene.write(name, content)
    return f"{name} with {length} bytes at {one} {'exchanged with' if both else 'written to'} {two}"


def block_of_another(scene):
    """Copies a block of another file of the folder, or of another checkpoint, to the same place."""
    name = scene.draw()
    content = bytearray(scene.read(name)) if name else b""
    if not content:
        return None
    others = [scene.path(f) for f in scene.files() if f != name] + [os.path.join(m, f) for m in scene.mates for f in scene.files(m)]
    if not others:
        return None
    with open(scene.drawn.choice(others), "rb") as file:
        other = file.read()
    length = min(len(content), len(other), scene.drawn.choice([64, 512, 4096, 1 << 30]))
    begin = scene.drawn.randrange(min(len(content), len(other)) - length + 1)
    content[begin:begin + length] = other[begin:begin + length]
    scene.write(name, content)
    return f"{name} with {length} bytes of another file at byte {begin}"


def duplicated(scene):
    name = scene.draw()
    if name is None:
        return None
    new = scene.free_name(name)
    shutil.copyfile(scene.path(name), scene.path(new))
    return f"{name} a second time as {new}"


def renamed(scene):
    name = scene.draw()
    if name is None:
        return None
    new = scene.free_name(name)
    os.rename(scene.path(name), scene.path(new))
    return f"{name} renamed to {new}"


def names_exchanged(scene):
    files = scene.files()
    if len(files) < 2:
        return None
    one, two = scene.drawn.sample(files, 2)
    a, b = scene.read(one), scene.read(two)
    scene.write(one, b)
    scene.write(two, a)
    return f"{one} and {two} exchanged"


def written_over(scene):
    """Copies one file of the folder over another."""
    files = scene.files()
    if len(files) < 2:
        return None
    one, two = scene.drawn.sample(files, 2)
    scene.write(one, scene.read(two))
    return f"{two} written over {one}"


def replaced(scene):
    """Replaces a file by something that is not a file, or by a link."""
    name = scene.draw()
    if name is None:
        return None
    path = scene.path(name)
    kind = scene.drawn.choice(["folder", "folder with it", "itself", "nothing", "another file", "copy inside", "copy outside", "parent", "device",
                               "fifo", "socket", "node"])
    content = scene.read(name)
    os.unlink(path)
    if kind.startswith("folder"):
        os.mkdir(path)
        if kind == "folder with it":
            scene.write(os.path.join(name, os.path.basename(name)), content)
    elif kind == "itself":
        os.symlink(os.path.basename(name), path)
    elif kind == "nothing":
        os.symlink("not_there", path)
    elif kind == "another file":
        others = [f for f in scene.files() if f != name]
        os.symlink(os.path.relpath(scene.path(scene.drawn.choice(others)), os.path.dirname(path)) if others else "x", path)
    elif kind == "copy inside":
        new = scene.free_name(name)
        scene.write(new, content)
        os.symlink(os.path.basename(new), path)
    elif kind == "copy outside":
        out = os.path.join(scene.outside, os.path.basename(name))
        with open(out, "wb") as file:
            file.write(content)
        os.symlink(out if scene.drawn.random() < 0.5 else os.path.relpath(out, os.path.dirname(path)), path)
    elif kind == "parent":
        os.symlink("..", path)
    elif kind == "device":
        os.symlink(scene.drawn.choice(["/dev/zero", "/dev/null", "/dev/urandom", "/proc/self/mem"]), path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            folder = os.open(os.path.dirname(path), os.O_RDONLY)
            made.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")   # a socket's path is short
            os.close(folder)
    else:
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, scene.drawn.choice([3, 5])))
        except PermissionError:   # not as root
            os.mkfifo(path)
    return f"{name} replaced: {kind}"


def hard_linked(scene):
    """Gives a file a second name outside."""
    name = scene.draw()
    if name is None:
        return None
    os.link(scene.path(name), os.path.join(scene.outside, f"linked_{os.path.basename(name)}"))
    return f"{name} with a hard link outside"


def of_a_mate(scene):
    """Copies a file of another step or world over the one of its name or beside the others."""
    if not scene.mates:
        return None
    mate = scene.drawn.choice(scene.mates)
    name = scene.drawn.choice(scene.files(mate))
    scene.write(name, read_of(mate, name))
    return f"{name} of {os.path.basename(mate)}"


def mixed(scene):
    """Each file of another step or world, with even odds."""
    if not scene.mates:
        return None
    mate = scene.drawn.choice(scene.mates)
    taken = [name for name in scene.files(mate) if scene.drawn.random() < 0.5]
    for name in taken:
        scene.write(name, read_of(mate, name))
    return f"{len(taken)} files of {os.path.basename(mate)}" if taken else None


def of_a_stranger(scene):
    """Copies a file of another layout beside the others, or over one of them."""
    if not scene.strangers:
        return None
    stranger = scene.drawn.choice(scene.strangers)
    name = scene.drawn.choice(scene.files(stranger))
    as_name = scene.drawn.choice([name, name, os.path.basename(name), scene.draw() or name])
    if os.path.lexists(scene.path(as_name)) and not os.path.isfile(scene.path(as_name)):
        return None
    try:
        scene.write(as_name, read_of(stranger, name))
    except (FileExistsError, NotADirectoryError):   # a file in the place of a folder
        return None
    return f"{name} of {os.path.basename(stranger)} as {as_name}"


def left_over(scene):
    """Adds what an interrupted writer leaves."""
    name = scene.draw()
    if name is None:
        return None
    new = scene.drawn.choice([f"{name}.tmp", os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.fsdp-tmp")])
    content = scene.read(name)
    scene.write(new, content[:scene.drawn.randrange(len(content) + 1)])
    return f"{new} left over"


def times_changed(scene):
    for name in scene.files() if scene.drawn.random() < 0.5 else [scene.draw()]:
        if name is not None:
            when = scene.drawn.choice([0, 1, 10**18, scene.drawn.randrange(2 * 10**18), 2**62])
            os.utime(scene.path(name), ns=(when, when))
    return "times of files changed"


def unreadable(scene):
    """Makes a file unreadable."""
    names = scene.files() + scene.folders()
    if not names:
        return None
    name = scene.drawn.choice(names + ["."])
    os.chmod(scene.path(name), scene.drawn.choice([0o000, 0o111, 0o222]))
    scene.as_nobody = os.geteuid() == 0
    return f"{name} unreadable"


def folder_changed(scene):
    """Removes, empties, doubles, renames a folder inside, or replaces it by a file."""
    folders = [f for f in scene.folders() if not os.path.islink(scene.path(f))]
    if not folders:
        return None
    name = scene.drawn.choice(folders)
    kind = scene.drawn.choice(["lost", "emptied", "a file", "doubled", "renamed", "exchanged"])
    if kind == "doubled":
        shutil.copytree(scene.path(name), scene.path(name) + "_2", symlinks=True)
    elif kind == "renamed":
        os.rename(scene.path(name), scene.path(name) + "_2")
    elif kind == "exchanged":
        others = [f for f in folders if os.path.dirname(f) == os.path.dirname(name) and f != name]
        if not others:
            return None
        other = scene.drawn.choice(others)
        os.rename(scene.path(name), scene.path("exchanged"))
        os.rename(scene.path(other), scene.path(name))
        os.rename(scene.path("exchanged"), scene.path(other))
    else:
        shutil.rmtree(scene.path(name))
        if kind == "emptied":
            os.mkdir(scene.path(name))
        elif kind == "a file":
            scene.write(name, b"x")
    return f"folder {name} {kind}"


def nested(scene):
    """Moves all of it one folder deeper, or puts a copy of itself inside."""
    if os.path.lexists(scene.path("inner")):
        return None
    copy = scene.root + ".copy"
    shutil.copytree(scene.root, copy, symlinks=True)
    if scene.drawn.random() < 0.5:
        shutil.rmtree(scene.root)
        os.mkdir(scene.root)
    os.rename(copy, scene.path("inner"))
    return "a copy of itself inside, or nothing but that"


def read_of(root, name):
    with open(os.path.join(root, name), "rb") as file:
        return file.read()


ALL = [removed, emptied, cut, lengthened, flipped, zeroed, block_moved, block_of_another, duplicated, renamed, names_exchanged, written_over,
       replaced, hard_linked, of_a_mate, mixed, of_a_stranger, left_over, times_changed, unreadable, folder_changed, nested]


def mutate(scene):
    """Makes one change, at times two or three: returns their names, and what they did."""
    wanted = scene.drawn.choice([1, 1, 1, 1, 2, 3])
    names, said = [], []
    for _ in range(30):
        change = scene.drawn.choice(ALL)
        try:
            what = change(scene)
        except (IsADirectoryError, NotADirectoryError, FileExistsError, FileNotFoundError, shutil.SameFileError, shutil.Error):
            what = None   # an earlier change left something else there
        if what is not None:
            names.append(change.__name__)
            said.append(what)
            if len(names) == wanted:
                break
    return names, "; ".join(said)
