# SPDX-License-Identifier: Apache-2.0
"""A plain server of the files below a folder, with ranges and ETags and without listings, as a web server or a hub has it."""
import hashlib
import os
import re
import time

from listener import Listener


class Files(Listener):
    """`latency`: seconds before each answer.  `counts`: requests by method."""

    def __init__(self, folder, tls=None, latency=0.0):
        super().__init__(tls)
        self.folder_ = folder
        self.latency = latency
        self.counts = {}

    def respond(self, connection, request):
        with self.lock:
            self.counts[request.method] = self.counts.get(request.method, 0) + 1
        if self.latency:
            time.sleep(self.latency)
        path = os.path.normpath(os.path.join(self.folder_, request.decoded_path.lstrip("/")))
        if not path.startswith(self.folder_) or not os.path.isfile(path):
            return connection.answer(404, b"no such file\n", head_only=request.method == "HEAD")
        if request.method not in ("GET", "HEAD"):
            return connection.answer(405)
        with open(path, "rb") as file:
            self.send_file(connection, request, file)

    @staticmethod
    def etag(state):
        return '"%s"' % hashlib.md5(f"{state.st_ino} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()

    def send_file(self, connection, request, file):
        state = os.fstat(file.fileno())
        etag = self.etag(state)
        fields = {"ETag": etag, "Accept-Ranges": "bytes"}
        if request.fields.get("if-match", etag) not in (etag, "*"):
            return connection.answer(412, head_only=request.method == "HEAD")
        begin, end, status = 0, state.st_size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.fields.get("range", ""))
        if asked and request.fields.get("if-range", etag) == etag:
            begin = int(asked[1])
            end = min(int(asked[2]) + 1 if asked[2] else end, end)
            if begin >= state.st_size:
                return connection.answer(416, fields={"Content-Range": f"bytes */{state.st_size}"})
            status = 206
            fields["Content-Range"] = f"bytes {begin}-{end - 1}/{state.st_size}"
        fields["Content-Length"] = end - begin
        connection.answer(status, fields=fields, head_only=True)
        if request.method == "HEAD":
            return
        if self.tls_:
            file.seek(begin)
            while begin < end:
                block = file.read(min(1 << 18, end - begin))
                connection.sock.sendall(block)
                begin += len(block)
            return
        while begin < end:
            begin += os.sendfile(connection.sock.fileno(), file.fileno(), begin, end - begin)
