# SPDX-License-Identifier: Apache-2.0
"""A forwarder between a client and a server of S3 or of files, which makes faults.

It counts requests by kind, checks every signature (signatures.py), and asks `plan` for the fault of each request: a function of the
request that returns the name of one of FAULTS, or None.
"""
import collections
import random
import re
import socket
import time
import urllib.parse

import signatures
from listener import Closed, Listener, Message, read_chunks, read_head

BLOCK = 1 << 18
# Longer than any client here waits for bytes.
STALL_SECONDS = 600
# Those after which the same request succeeds.
PASSING = ("slow_down", "error_500", "reset", "reset_after", "reset_middle", "truncated", "stalled", "stalled_middle", "garbage")
LASTING = ("forbidden", "expired", "not_found", "unsatisfied", "ignored_range", "wrong_range", "short_range", "other_etag", "weak_etag",
           "no_etag", "changed", "redirect", "huge_head", "error_in_200")
FAULTS = PASSING + LASTING


def kind_of(request):
    """What a request asks of S3, or of a plain server."""
    query = request.query
    if request.method == "GET":
        if "uploads" in query:
            return "uploads"
        if "uploadId" in query:
            return "parts"
        if "list-type" in query or "prefix" in query or request.path.count("/") == 1 and "delimiter" in query:
            return "list"
        return "range" if "range" in request.fields else "get"
    if request.method == "PUT":
        return "part" if "partNumber" in query else "put"
    if request.method == "POST":
        return "create" if "uploads" in query else "complete" if "uploadId" in query else "post"
    if request.method == "DELETE":
        return "abort" if "uploadId" in query else "delete"
    return request.method.lower()


def error_text(code, message="as the test wants it"):
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()


class Drawn:
    """A plan: each request has a fault of `names` with probability `share`, `most` of them in all.  One thread asks at a time."""

    def __init__(self, seed, share, names=FAULTS, most=None, kinds=None):
        self.generator_ = random.Random(seed)
        self.share_, self.names_, self.kinds_ = share, names, kinds
        self.left_ = most

    def __call__(self, request):
        if self.left_ == 0 or self.generator_.random() >= self.share_ or (self.kinds_ and kind_of(request) not in self.kinds_):
            return None
        if self.left_ is not None:
            self.left_ -= 1
        return self.generator_.choice([n for n in self.names_ if fits(n, request)])


def fits(fault, request):
    """Whether a server could answer this request so."""
    reads = request.method in ("GET", "HEAD")
    if fault in ("ignored_range", "wrong_range", "short_range", "unsatisfied"):
        return "range" in request.fields
    if fault in ("truncated", "reset_middle", "stalled_middle"):
        return request.method == "GET"
    if fault in ("other_etag", "weak_etag", "no_etag", "changed"):
        return reads and kind_of(request) != "list"
    if fault == "not_found":
        return kind_of(request) != "list"
    return fault != "error_in_200" or kind_of(request) == "complete"


class Elsewhere(Listener):
    """Another host, to which requests are redirected.  It notes what of a secret arrives."""

    def __init__(self, tls=None, files=None):
        super().__init__(tls, host="localhost")
        self.seen = 0
        self.leaked = []
        self.files_ = files   # a Files that answers; None: nothing is here

    def respond(self, connection, request):
        with self.lock:
            self.seen += 1
            self.leaked += [name for name in request.fields if name in ("authorization", "cookie", "x-amz-security-token", "x-amz-date")]
        if self.files_:
            return self.files_.respond(connection, request)
        connection.answer(403, error_text("AccessDenied"), head_only=request.method == "HEAD")


class Proxy(Listener):
    """`upstream`: the server's endpoint.  `credentials`, `region`: what signatures are checked with; None: they are not."""

    def __init__(self, upstream, plan=None, latency=0.0, tls=None, credentials=None, region=None, elsewhere=None):
        super().__init__(tls)
        self.upstream_ = urllib.parse.urlsplit(upstream)
        self.plan = plan
        self.latency = latency
        self.credentials, self.region = credentials, region
        self.elsewhere = elsewhere
        self.slow_seconds = STALL_SECONDS
        self.watch = None   # a function of each request, called before it is sent on
        self.reset_counts()

    def reset_counts(self):
        self.counts = collections.Counter()
        self.faults = collections.Counter()
        self.hit = collections.Counter()   # requests with a fault, by kind
        self.slow = collections.Counter()  # the others that took so long that a client may have given up
        self.violations = []   # requests that S3 would have refused

    def connected(self, connection):
        connection.upstream = None

    def respond(self, connection, request):
        kind = kind_of(request)
        with self.lock:
            self.counts[kind] += 1
            fault = self.plan(request) if self.plan else None
            if fault:
                self.faults[fault] += 1
                self.hit[kind] += 1
        if self.credentials:
            wrong = signatures.why_wrong(request, self.credentials, self.region)
            if wrong:
                self.violations.append(f"{request.first}: {wrong}")
                return connection.answer(403, error_text("SignatureDoesNotMatch"), head_only=request.method == "HEAD")
        if self.watch:
            self.watch(request)
        if self.latency:
            time.sleep(self.latency)
        if fault:
            return getattr(self, f"_{fault}")(connection, request)
        begin = time.monotonic()
        try:
            self.forward(connection, request)
        finally:
            if time.monotonic() - begin > self.slow_seconds:
                with self.lock:
                    self.slow[kind] += 1

    # ---- forwarding

    def ask(self, connection, request):
        """Sends a request on; returns the head of the answer, and the file that its body comes from."""
        for fresh in (False, True):   # a kept connection may have been closed meanwhile
            if fresh or connection.upstream is None:
                sock = socket.create_connection((self.upstream_.hostname, self.upstream_.port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.upstream = sock, sock.makefile("rb", buffering=1 << 16)
                fresh = True
            sock, file = connection.upstream
            try:
                sock.sendall(self._head_to_send(request))
                if request.body:
                    sock.sendall(request.body)
                answer = Message(read_head(file))
                while answer.first.split(" ")[1].startswith("1"):
                    answer = Message(read_head(file))
                answer.status = int(answer.first.split(" ")[1])
                return answer, file
            except (Closed, OSError):
                connection.upstream = None
                if fresh:
                    raise

    @staticmethod
    def _head_to_send(request):
        head = request.head
        if "transfer-encoding" in request.fields:
            head = re.sub(rb"(?i)\r\ntransfer-encoding:[^\r]*", b"\r\nContent-Length: %d" % len(request.body), head)
        return head + b"\r\n\r\n"

    @staticmethod
    def body_bytes(request, answer):
        """Of the body that follows: its length, or None where only its end says it."""
        if request.method == "HEAD" or answer.status in (204, 304):
            return 0
        if "content-length" in answer.fields:
            return int(answer.fields["content-length"])
        return None

    def forward(self, connection, request, change=None, most=None):
        """Relays an answer.  `change`: of its head.  `most`: at most so many bytes of its body.  Returns whether all was relayed."""
        answer, file = self.ask(connection, request)
        count = self.body_bytes(request, answer)
        head = answer.head
        if count is None:
            body = read_chunks(file) if answer.fields.get("transfer-encoding") == "chunked" else file.read()
            head = re.sub(rb"(?i)\r\ntransfer-encoding:[^\r]*", b"", head) + b"\r\nContent-Length: %d" % len(body)
            if "transfer-encoding" not in answer.fields:
                connection.upstream = None
        if change:
            head = change(answer, head)
        connection.sock.sendall(head + b"\r\n\r\n")
        if count is None:
            connection.sock.sendall(body if most is None else body[:most])
            return
        left = count if most is None else min(count, most)
        block = bytearray(min(BLOCK, max(left, 1)))
        while left:
            got = file.readinto(memoryview(block)[:min(left, len(block))])
            if not got:
                raise Closed
            connection.sock.sendall(memoryview(block)[:got])
            left -= got
        if answer.fields.get("connection", "").lower() == "close":
            connection.upstream = None
        if most is not None and most < count:
            connection.upstream = None

    # ---- faults

    @staticmethod
    def _refuse(connection, request, status, code, fields=()):
        connection.answer(status, error_text(code), fields, head_only=request.method == "HEAD")

    def _slow_down(self, connection, request):
        self._refuse(connection, request, 503, "SlowDown", {"Retry-After": "0"} if self.counts.total() % 2 else ())

    def _error_500(self, connection, request):
        self._refuse(connection, request, 500, "InternalError")

    def _forbidden(self, connection, request):
        self._refuse(connection, request, 403, "AccessDenied")

    def _expired(self, connection, request):
        self._refuse(connection, request, 400, "ExpiredToken")

    def _not_found(self, connection, request):
        self._refuse(connection, request, 404, "NoSuchKey")

    def _unsatisfied(self, connection, request):
        self._refuse(connection, request, 416, "InvalidRange", {"Content-Range": "bytes */3"})

    def _changed(self, connection, request):
        self._refuse(connection, request, 412, "PreconditionFailed")

    def _reset(self, connection, request):
        connection.reset()

    def _reset_after(self, connection, request):
        """The server does it, and the client does not learn of that."""
        answer, file = self.ask(connection, request)
        count = self.body_bytes(request, answer)
        if count:
            file.read(count)
        connection.reset()

    def _half(self, connection, request):
        self.forward(connection, request, most=self._half_bytes(request))

    @staticmethod
    def _half_bytes(request):
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.fields.get("range", ""))
        return (int(asked[2]) - int(asked[1]) + 1) // 2 if asked else 20

    def _reset_middle(self, connection, request):
        self._half(connection, request)
        connection.reset()

    def _truncated(self, connection, request):
        self._half(connection, request)
        raise Closed

    def _silence(self, connection):
        """Until the client goes away."""
        connection.sock.settimeout(STALL_SECONDS)
        try:
            connection.sock.recv(1)
        except OSError:
            pass
        raise Closed

    def _stalled(self, connection, request):
        self._silence(connection)

    def _stalled_middle(self, connection, request):
        self._half(connection, request)
        self._silence(connection)

    def _garbage(self, connection, request):
        connection.sock.sendall(random.Random(self.counts.total()).randbytes(3000) + b"\r\n\r\n")
        raise Closed

    def _huge_head(self, connection, request):
        def change(_, head):
            return head + b"".join(b"\r\nX-Filler-%d: %s" % (i, b"x" * 8000) for i in range(60))
        self.forward(connection, request, change)

    def _ignored_range(self, connection, request):
        """The whole object, as a cache would have it."""
        signed = _Signed(self, request)
        self.forward(connection, signed)

    def _wrong_range(self, connection, request):
        def change(_, head):
            return re.sub(rb"(?i)(\r\ncontent-range: bytes )(\d+)-(\d+)",
                          lambda m: b"%s%d-%d" % (m[1], int(m[2]) + 1, int(m[3]) + 1), head)
        self.forward(connection, request, change)

    def _short_range(self, connection, request):
        """Fewer bytes than were asked for, and the head says so."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.fields.get("range", ""))
        if not asked or asked[1] == asked[2]:
            return self.forward(connection, request)
        begin = int(asked[1])
        most = self._half_bytes(request)

        def change(answer, head):
            head = re.sub(rb"(?i)(\r\ncontent-range: bytes )\d+-\d+", b"\\g<1>%d-%d" % (begin, begin + most - 1), head)
            return re.sub(rb"(?i)(\r\ncontent-length: )\d+", b"\\g<1>%d" % most, head)
        self.forward(connection, request, change, most=most)

    def _etag(self, connection, request, etag):
        self.forward(connection, request, lambda _, head: re.sub(rb"(?i)\r\netag: *([^\r]*)", etag, head))

    def _other_etag(self, connection, request):
        self._etag(connection, request, b'\r\nETag: "0123456789abcdef0123456789abcdef"')

    def _weak_etag(self, connection, request):
        self._etag(connection, request, rb"\r\nETag: W/\1")

    def _no_etag(self, connection, request):
        self._etag(connection, request, b"")

    def _redirect(self, connection, request):
        place = self.elsewhere.endpoint + request.target if self.elsewhere else "http://localhost:1" + request.target
        connection.answer(307, fields={"Location": place})

    def _error_in_200(self, connection, request):
        """How S3 reports that completing an upload failed."""
        connection.answer(200, error_text("InternalError"))


class _Signed:
    """A request without its Range, signed anew."""

    def __init__(self, proxy, request):
        import botocore.auth
        import botocore.awsrequest
        import botocore.credentials
        self.method, self.body, self.fields = request.method, request.body, {}
        host = request.fields["host"]
        asked = botocore.awsrequest.AWSRequest(request.method, f"http://{host}{request.target}", headers={"Host": host})
        if proxy.credentials:
            botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(*proxy.credentials), "s3", proxy.region).add_auth(asked)
        lines = [request.first, *(f"{name}: {value}" for name, value in asked.headers.items())]
        self.head = "\r\n".join(lines).encode("latin-1")
