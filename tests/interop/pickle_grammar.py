# SPDX-License-Identifier: Apache-2.0
"""Random pickles from a grammar: the content of checkpoints, and attacks hidden in it.

A Grammar draws everything from one seeded random.Random.  `root` returns the opcodes of one object; afterwards `used` holds the attacks in
it.  Every attack, when it is run, creates the file `canary`.
"""
import struct

# Names of the exact list (formats/containers/names/plain_names.cpp) as plain types and constants.
TYPES = [("builtins", n) for n in ("list", "dict", "tuple", "int", "float", "bool", "str")] + [
    ("torch", n) for n in ("float32", "bfloat16", "int64", "bool", "Tensor", "per_tensor_affine")] + [("collections", "OrderedDict")]
# Names from which getattr takes write_text and similar methods.
MEMBERS = [("pathlib", "PosixPath", "write_text"), ("pathlib", "PosixPath", "touch"), ("pathlib", "Path", "unlink"),
           ("numpy", "ndarray", "tofile"), ("torch", "UntypedStorage", "from_file"), ("torch", "Tensor", "__class__"),
           ("collections", "OrderedDict", "__reduce_ex__"), ("torch", "Size", "__subclasses__"), ("argparse", "Namespace", "__init__")]


class Grammar:
    def __init__(self, random, canary, binary=True):
        self.random = random
        self.canary = canary
        self.binary = binary  # opcodes that torch.load(weights_only=True) knows; else all that Python knows
        self.used = []
        self.storages = []
        self.slots = 0

    # -- scalars

    def chance(self, probability):
        return self.random.random() < probability

    def pick(self, *makers):
        return self.random.choice(makers)()

    def text(self, value=None):
        if value is None:
            value = "".join(self.random.choice("abcxyz._/0") for _ in range(self.random.randrange(6)))
        data = value.encode("utf-8", "surrogatepass")
        if not self.binary:
            plain = all(0x20 < ord(c) < 0x7F and c not in "\\'" for c in value)
            forms = [b"X" + struct.pack("<I", len(data)) + data]
            if len(data) < 256:
                forms.append(b"\x8c" + bytes([len(data)]) + data)
            if plain:
                forms += [b"V" + data + b"\n", b"S'" + data + b"'\n", b"V" + b"".join(b"\\u%04x" % ord(c) for c in value) + b"\n",
                          b'S"' + b"".join(b"\\x%02x" % b for b in data) + b'"\n']
                if len(data) < 256:
                    forms.append(b"U" + bytes([len(data)]) + data)
            return self.random.choice(forms)
        return b"X" + struct.pack("<I", len(data)) + data

    def number(self, value=None):
        if value is None:
            value = self.random.choice([0, 1, 7, 255, 256, 65535, 65536, -1, 2**31 - 1, -2**31, 2**40, -2**70])
        if not self.binary and self.chance(0.3):
            return b"I%d\n" % value if abs(value) < 2**31 else b"L%dL\n" % value
        if 0 <= value < 256:
            return b"K" + bytes([value])
        if 0 <= value < 65536:
            return b"M" + struct.pack("<H", value)
        if -2**31 <= value < 2**31:
            return b"J" + struct.pack("<i", value)
        size = value.bit_length() // 8 + 1
        return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)

    def float(self):
        return b"G" + struct.pack(">d", self.random.choice([0.0, -1.5, 1e300, float("inf")]))

    def constant(self):
        return self.random.choice([b"N", b"\x88", b"\x89"])

    def scalar(self):
        return self.pick(self.text, self.number, self.float, self.constant, self.octets)

    def octets(self):
        text = "".join(chr(self.random.randrange(256)) for _ in range(self.random.randrange(5)))
        data = text.encode("utf-8")
        return self.call(("_codecs", "encode"), [b"X" + struct.pack("<I", len(data)) + data, self.text("latin1")])

    # -- containers and names

    def memo(self, opcodes):
        """Returns the same value, also stored in the memo, and perhaps fetched from there instead."""
        if self.slots >= 250 or not self.chance(0.2):
            return opcodes
        slot = self.slots
        self.slots += 1
        put = b"q" + bytes([slot])
        if not self.binary and self.chance(0.3):
            put = b"p%d\n" % slot
        if not self.binary and self.chance(0.3):
            return opcodes + put + b"0" + (b"h" + bytes([slot]) if self.chance(0.5) else b"g%d\n" % slot)
        return opcodes + put

    def tuple(self, items):
        if not items:
            return b")"
        if len(items) <= 3 and self.chance(0.8):
            return b"".join(items) + b"\x85\x86\x87"[len(items) - 1:len(items)]
        return b"(" + b"".join(items) + b"t"

    def name(self, name):
        module, attribute = name
        if not self.binary and self.chance(0.4):
            return self.memo(self.text(module)) + self.memo(self.text(attribute)) + b"\x93"
        if module == "builtins" and self.chance(0.5):
            module = "__builtin__"
        return self.memo(b"c" + module.encode() + b"\n" + attribute.encode() + b"\n")

    def call(self, name, args):
        if not self.binary and self.chance(0.2):
            return b"(" + self.name(name) + b"".join(args) + b"o"
        if not self.binary and self.chance(0.2):
            return b"(" + b"".join(args) + b"i" + name[0].encode() + b"\n" + name[1].encode() + b"\n"
        return self.name(name) + self.tuple(args) + b"R"

    def list(self, depth):
        return b"](" + b"".join(self.value(depth) for _ in range(self.random.randrange(4))) + b"e"

    def key(self, depth):
        plain = lambda: self.text("k%d" % self.random.randrange(10**6))
        odd = lambda: self.tuple([self.text(), self.number(self.random.randrange(10**6)), self.key(depth + 1)])
        attack = lambda: self.tuple([plain(), self.attack(depth)])
        return self.random.choice([plain, plain, plain, odd if depth < 4 else plain, attack if self.chance(0.1) else plain])()

    def entries(self, depth):
        return b"(" + b"".join(self.key(depth) + self.value(depth) for _ in range(self.random.randrange(4))) + b"u"

    def dict(self, depth):
        return b"}" + self.entries(depth)

    def ordered(self, depth):
        out = self.call(("collections", "OrderedDict"), []) + self.entries(depth)
        if self.chance(0.3):
            out += b"}" + self.text("_metadata") + self.value(depth) + b"s" + b"b"
        return out

    def default(self, depth):
        factory = self.attack(depth) if self.chance(0.1) else self.name(self.random.choice(TYPES[:7]))
        return self.call(("collections", "defaultdict"), [factory]) + self.entries(depth)

    def counter(self, depth):
        return self.call(("collections", "Counter"), [b"}(" + self.text("a") + self.number(3) + b"u"])

    def set(self, depth):
        return self.call(("builtins", "set"), [b"](" + self.text("s") + self.number(1) + b"e"])

    def namespace(self, depth):
        return self.name(("argparse", "Namespace")) + b")\x81}(" + self.text("lr") + self.value(depth) + b"ub"

    def path(self, depth):
        return self.call(("pathlib", "PosixPath"), [self.text("a"), self.text("b")])

    def device(self, depth):
        return self.call(("torch", "device"), [self.text("cpu")])

    def type(self, depth):
        return self.name(self.random.choice(TYPES))

    # -- tensors

    def storage(self, count):
        key = str(len(self.storages))
        self.storages.append(count * 4)
        return self.tuple([self.text("storage"), self.name(("torch", "FloatStorage")), self.text(key), self.text("cpu"), self.number(count)]) + b"Q"

    def hooks(self, depth):
        hooks = self.call(("collections", "OrderedDict"), [])
        if self.chance(0.1):
            hooks += self.number(0) + self.attack(depth) + b"s"
        return hooks

    def tensor_args(self, depth):
        rows = self.random.randrange(4)
        return [self.storage(rows * 2), self.number(0), self.tuple([self.number(rows), self.number(2)]), self.tuple([self.number(2), self.number(1)]), b"\x89",
                self.hooks(depth)]

    def tensor(self, depth):
        return self.memo(self.call(("torch._utils", "_rebuild_tensor_v2"), self.tensor_args(depth)))

    def parameter(self, depth):
        return self.call(("torch._utils", "_rebuild_parameter"), [self.tensor(depth), b"\x88", self.hooks(depth)])

    def subclass(self, depth):
        function, cls = ("torch._utils", "_rebuild_tensor_v2"), ("torch", "Tensor")
        args = self.tuple(self.tensor_args(depth))
        if self.chance(0.15):
            self.used.append("from_type")
            function = ("builtins", "getattr")
            args = self.tuple([self.name(("pathlib", "PosixPath")), self.text("write_text")])
        state = b"}" + self.text("note") + (self.attack(depth) if self.chance(0.1) else self.scalar()) + b"s"
        return self.call(("torch._tensor", "_rebuild_from_type_v2"), [self.name(function), self.name(cls), args, state])

    # -- attacks that must not get through

    def member(self):
        module, cls, member = self.random.choice(MEMBERS)
        return self.call(("builtins", "getattr"), [self.name((module, cls)), self.text(member)])

    def attack(self, depth=0):
        self.used.append("attack")
        touch = "open(%r, 'w').close()" % self.canary
        path = lambda: self.call(("pathlib", "PosixPath"), [self.text(self.canary)])
        return self.pick(
            lambda: self.call(("os", "system"), [self.text("touch " + self.canary)]),
            lambda: self.call(("posix", "system"), [self.text("touch " + self.canary)]),
            lambda: self.call(("builtins", "exec"), [self.text(touch)]),
            lambda: self.call(("builtins", "eval"), [self.text(touch)]),
            lambda: self.call(("subprocess", "getoutput"), [self.text("touch " + self.canary)]),
            lambda: self.name(("os", "system")),
            self.member,
            lambda: self.member() + self.tuple([path(), self.text("x")]) + b"R",
            lambda: self.call(("builtins", "getattr"), [self.name(("pathlib", "PosixPath")), self.text("write_text")]) + self.tuple([path(), self.text("x")]) + b"R",
            lambda: self.call(("builtins", "getattr"), [self.name(("pathlib", "PosixPath")), self.text("touch")]) + self.tuple([path()]) + b"R",
            lambda: self.name(("builtins", "getattr")),
            lambda: self.call(("copyreg", "_reconstructor"), [self.name(("pathlib", "PosixPath")), self.name(("builtins", "str")), self.text("x")]),
            lambda: self.call(("functools", "partial"), [self.name(("os", "system")), self.text("touch " + self.canary)]),
            lambda: self.call(("_codecs", "encode"), [self.text("x"), self.text("rot13")]),
            lambda: self.name(("torch", "float32")) + self.tuple([self.number(1)]) + b"R",
            lambda: self.name(("torch", "Tensor")) + b"}" + self.text("a") + self.number(1) + b"sb",
            lambda: self.call(("torch._utils", "_rebuild_wrapper_subclass"), [self.name(("os", "system")), self.text("touch " + self.canary)]),
            lambda: self.name(("collections", "OrderedDict")) + b")\x81" + self.text("k") + self.name(("builtins", "eval")) + b"s",
        )

    def value(self, depth=0):
        if self.chance(0.02):
            return self.attack(depth)
        if depth > 3:
            return self.scalar()
        kinds = [self.list, self.dict, self.ordered, self.counter, self.set, self.tensor, self.tensor, self.parameter, self.subclass, self.type, self.device,
                 self.default, self.namespace, self.path]
        if self.chance(0.4):
            return self.scalar()
        return self.random.choice(kinds)(depth + 1)

    def root(self):
        return self.random.choice([self.dict, self.dict, self.ordered, self.default])(0)

    def pickle(self):
        """A whole stream, only for Python if not `binary`: with frames, without PROTO, with noise, of several pickles."""
        body = self.root()
        if self.binary:
            return b"\x80\x02" + body + b"."
        if self.chance(0.2):
            body = b"N0(K\x01K\x022" + b"1" + body  # values that are pushed and dropped again
        protocol = self.random.choice([b"", b"\x80\x00", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"])
        out = protocol + body + b"."
        if self.chance(0.2):
            out += self.random.choice([b"", b"\x80\x02"]) + self.value() + b"."
        return out

    def mutated(self, stream):
        """With a few bytes changed, cut, doubled."""
        stream = bytearray(stream)
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(len(stream))
            end = min(len(stream), at + self.random.randrange(1, 20))
            kind = self.random.randrange(3)
            if kind == 0:
                stream[at] = self.random.randrange(256)
            elif kind == 1 and end - at < len(stream):
                del stream[at:end]
            else:
                stream[at:at] = stream[at:end]
        return bytes(stream)
