# SPDX-License-Identifier: Apache-2.0
"""A server of HTTP/1.1 on loopback in threads of this process, for what no ordinary server does: a class of it answers as it likes."""
import collections
import datetime
import os
import socket
import ssl
import struct
import threading
import urllib.parse

MAX_HEAD = 1 << 20


class Closed(Exception):
    """The other side has closed its end, or is to be closed."""


class Message:
    """A request or an answer: its first line, its head as it came, its fields by lower-case names, its body if that is kept."""

    def __init__(self, head):
        self.head = head
        lines = head.decode("latin-1").split("\r\n")
        self.first = lines[0]
        self.fields = {}
        self.values = collections.defaultdict(list)
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                self.fields[name.strip().lower()] = value.strip()
                self.values[name.strip().lower()].append(value.strip())
        self.body = b""


class Request(Message):
    def __init__(self, head):
        super().__init__(head)
        words = self.first.split(" ")
        if len(words) != 3:
            raise Closed(f"a request that begins with {self.first!r}")
        self.method, self.target = words[0], words[1]
        self.path, _, self.query_text = self.target.partition("?")
        self.query = dict(urllib.parse.parse_qsl(self.query_text, keep_blank_values=True))
        self.decoded_path = urllib.parse.unquote(self.path)


def read_head(file):
    """The bytes up to the empty line, without it.  Throws: Closed if none come."""
    head = b""
    while True:
        line = file.readline(MAX_HEAD)
        if not line:
            raise Closed
        if line in (b"\r\n", b"\n"):
            if head:
                return head[:-2]
            continue
        head += line
        if len(head) > MAX_HEAD:
            raise Closed


def read_chunks(file):
    """The body of a message in chunks."""
    body = b""
    while True:
        count = int(file.readline(1000).split(b";")[0] or b"0", 16)
        if count == 0:
            while file.readline(10000) not in (b"\r\n", b"\n", b""):
                pass
            return body
        body += file.read(count)
        file.readline(10)


class Connection:
    """What a client has opened: requests come in, answers go out."""

    def __init__(self, sock):
        self.sock = sock
        self.file = sock.makefile("rb", buffering=1 << 16)

    def request(self):
        request = Request(read_head(self.file))
        if request.fields.get("expect", "").lower() == "100-continue":
            self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.fields.get("transfer-encoding", "").lower() == "chunked":
            request.body = read_chunks(self.file)
        else:
            count = int(request.fields.get("content-length", "0"))
            request.body = self.file.read(count)
            if len(request.body) != count:
                raise Closed
        return request

    def answer(self, status, body=b"", fields=(), head_only=False):
        fields = dict(fields)
        fields.setdefault("Content-Length", len(body))
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Answer')}", *(f"{name}: {value}" for name, value in fields.items())]
        self.sock.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (b"" if head_only else body))

    def reset(self):
        """Closes with a reset instead of an end."""
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.close()
        raise Closed

    def close(self):
        self.file.close()
        self.sock.close()


REASONS = {200: "OK", 206: "Partial Content", 307: "Temporary Redirect", 400: "Bad Request", 403: "Forbidden", 404: "Not Found",
           405: "Method Not Allowed", 412: "Precondition Failed", 416: "Range Not Satisfiable", 500: "Internal Server Error",
           503: "Slow Down"}


class Listener:
    """Answers each request by `respond`, each connection in a thread of its own.  `tls`: an ssl.SSLContext for https."""

    def __init__(self, tls=None, host="127.0.0.1"):
        self.tls_ = tls
        self.host_ = host
        self.lock = threading.Lock()
        self.open_ = set()
        self.failures = []   # of the listener itself: a test looks at the end that there are none

    @property
    def endpoint(self):
        return f"{'https' if self.tls_ else 'http'}://{self.host_}:{self.port}"

    def __enter__(self):
        self.closed = threading.Event()
        self.socket_ = socket.create_server((self.host_, 0), backlog=512)
        self.port = self.socket_.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closed.set()
        self.socket_.shutdown(socket.SHUT_RDWR)
        self.socket_.close()
        with self.lock:
            left = list(self.open_)
        for sock in left:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self):
        while not self.closed.is_set():
            try:
                sock, _ = self.socket_.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        with self.lock:
            self.open_.add(sock)
        raw = sock
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls_:
                sock = self.tls_.wrap_socket(sock, server_side=True)
            connection = Connection(sock)
            self.connected(connection)
            while True:
                self.respond(connection, connection.request())
        except (Closed, OSError, ValueError) as error:
            if not isinstance(error, (Closed, OSError)) and not self.closed.is_set():
                self.failures.append(repr(error))
        except Exception as error:
            self.failures.append(repr(error))
        finally:
            with self.lock:
                self.open_.discard(raw)
            sock.close()

    def connected(self, connection):
        pass

    def respond(self, connection, request):
        raise NotImplementedError


def certificates(folder, *more):
    """Makes an authority and a certificate of this machine, also by the names in `more`; returns the authority's file and the context of a server."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    import ipaddress
    now = datetime.datetime.now(datetime.timezone.utc)

    def make(name, issuer, issuer_key, key, *extensions):
        builder = (x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
                   .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
                   .not_valid_after(now + datetime.timedelta(days=2)))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def named(text):
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = os.path.join(folder, "authority.pem")
    with open(authority, "wb") as file:
        file.write(make(named("tests"), named("tests"), authority_key, authority_key, (x509.BasicConstraints(True, None), True)))
    names = [*map(x509.DNSName, ("localhost", *more)), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    both = os.path.join(folder, "server.pem")
    with open(both, "wb") as file:
        file.write(make(named("localhost"), named("tests"), authority_key, key, (x509.SubjectAlternativeName(names), False)))
        file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return authority, context
