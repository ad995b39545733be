# SPDX-License-Identifier: Apache-2.0
"""A hub: repositories and buckets in memory, behind the endpoints that huggingface_hub asks, and a host beside it that has the large files."""
import hashlib
import json
import re
import urllib.parse

from listener import Listener

LARGE = (".safetensors", ".bin", ".data")


def git_digest(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def xet_hash(content):
    """Stands for the hub's: only that it follows the content counts."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


class Elsewhere(Listener):
    """Has contents by their SHA-256.  `seen`: requests; `leaked`: those with credentials."""

    def __init__(self):
        super().__init__()
        self.contents = {}
        self.seen = []
        self.leaked = []

    def respond(self, connection, request):
        with self.lock:
            self.seen.append(f"{request.method} {request.target}")
            if "authorization" in request.fields or "hf_token" in request.head.decode("latin-1"):
                self.leaked.append(request.head)
        content = self.contents.get(request.path.lstrip("/"))
        if content is None:
            return connection.answer(404)
        send(connection, request, content, {"ETag": '"of another host"'})


def send(connection, request, content, fields):
    fields = {"Accept-Ranges": "bytes", **fields}
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.fields.get("range", ""))
    status = 200
    if asked:
        begin, end = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
        if begin >= len(content):
            return connection.answer(416, fields={"Content-Range": f"bytes */{len(content)}"})
        fields["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        content, status = content[begin:end], 206
    connection.answer(status, content, fields, head_only=request.method == "HEAD")


class Hub(Listener):
    """`commits`: files by name, by commit, of each repository ("models/org/name"); `revisions`: commits by revision.

    `buckets`: files by name, of each bucket ("org/name").  `page`: entries in an answer.  `token`: what a request has to bring, if set.
    `asked`: requests in their order; `tokens`: those that came.  `changed`: called after a request, with the hub and the request.
    """

    def __init__(self, elsewhere, page=1000, token=None):
        super().__init__()
        self.elsewhere = elsewhere
        self.page = page
        self.token = token
        self.commits, self.revisions, self.buckets, self.moved = {}, {}, {}, {}
        self.asked, self.tokens = [], []
        self.changed = None
        self.next_at = None   # the host of next pages, if it is another one
        self.altered = lambda entry: entry   # of a list

    def commit(self, repository, files, *revisions):
        """Adds a commit, which `revisions` are from now on; returns its name."""
        name = hashlib.sha1(json.dumps([repository, sorted((path, git_digest(content)) for path, content in files.items())]).encode()).hexdigest()
        self.commits.setdefault(repository, {})[name] = dict(files)
        for revision in revisions:
            self.revisions.setdefault(repository, {})[revision] = name
        for content in files.values():
            self.elsewhere.contents[sha256(content)] = content
        return name

    def fill(self, bucket, files):
        self.buckets[bucket] = dict(files)
        for content in files.values():
            self.elsewhere.contents[sha256(content)] = content

    def respond(self, connection, request):
        with self.lock:
            self.asked.append(f"{request.method} {request.target}")
            self.tokens.append(request.fields.get("authorization"))
        self.answer(connection, request)
        if self.changed:
            self.changed(self, request)

    def missing(self, connection, request, code):
        connection.answer(404, json.dumps({"error": code}).encode(), {"X-Error-Code": code}, head_only=request.method == "HEAD")

    def answer(self, connection, request):
        if self.token and request.fields.get("authorization") != f"Bearer {self.token}":
            return connection.answer(401, b'{"error": "Invalid username or password."}', {"X-Error-Code": "RepoNotFound"},
                                     head_only=request.method == "HEAD")
        if request.path in self.moved:
            return connection.answer(307, fields={"Location": self.moved[request.path]})
        parts = [urllib.parse.unquote(part) for part in request.path.lstrip("/").split("/")]
        if parts[:2] == ["api", "buckets"] and parts[4:5] == ["tree"]:
            return self.bucket_list(connection, request, "/".join(parts[2:4]), "/".join(parts[5:]))
        if parts[0] == "buckets" and parts[3:4] == ["resolve"]:
            return self.bucket_file(connection, request, "/".join(parts[1:3]), "/".join(parts[4:]))
        if parts[0] == "api" and len(parts) > 5 and parts[4] in ("revision", "tree"):
            repository, revision, path = "/".join(parts[1:4]), parts[5], "/".join(parts[6:])
        elif "resolve" in parts:
            at = parts.index("resolve")
            repository = "/".join(parts[:at] if at == 3 else ["models", *parts[:at]])
            revision, path = parts[at + 1], "/".join(parts[at + 2:])
        else:
            return connection.answer(404)
        if repository not in self.commits:
            return self.missing(connection, request, "RepoNotFound")
        commit = self.revisions.get(repository, {}).get(revision, revision)
        files = self.commits[repository].get(commit)
        if files is None:
            return self.missing(connection, request, "RevisionNotFound")
        if parts[0] != "api":
            return self.file(connection, request, commit, files.get(path))
        if parts[4] == "revision":
            info = {"_id": "1", "id": repository.partition("/")[2], "sha": commit}
            if request.query.get("expand") != "sha":
                info["siblings"] = [{"rfilename": name} for name in files]
            return connection.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        self.repository_list(connection, request, files, path)

    def file(self, connection, request, commit, content):
        if content is None:
            return self.missing(connection, request, "EntryNotFound")
        fields = {"X-Repo-Commit": commit}
        if not request.path.endswith(LARGE):
            return send(connection, request, content, {**fields, "ETag": f'"{git_digest(content)}"'})
        fields.update({"Location": f"{self.elsewhere.endpoint}/{sha256(content)}", "X-Linked-Size": len(content), "X-Linked-Etag": f'"{sha256(content)}"'})
        connection.answer(302, fields=fields, head_only=request.method == "HEAD")

    def bucket_file(self, connection, request, bucket, path):
        content = self.buckets.get(bucket, {}).get(path)
        if content is None:
            return self.missing(connection, request, "EntryNotFound")
        fields = {"Location": f"{self.elsewhere.endpoint}/{sha256(content)}", "X-Linked-Size": len(content), "X-Xet-Hash": xet_hash(content),
                  "X-Xet-Refresh-Route": f"/api/buckets/{bucket}/xet-read-token", "X-Linked-Etag": f'"{sha256(content)}"'}
        connection.answer(302, fields=fields, head_only=request.method == "HEAD")

    def repository_list(self, connection, request, files, path):
        entries = []
        inside = {name: content for name, content in files.items() if not path or name.startswith(path + "/")}
        if path and not inside:
            return self.missing(connection, request, "EntryNotFound")
        for name, content in inside.items():
            entry = {"type": "file", "oid": git_digest(content), "size": len(content), "path": name}
            if name.endswith(LARGE):
                pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(content)}\nsize {len(content)}\n".encode()
                entry.update(oid=git_digest(pointer), lfs={"oid": sha256(content), "size": len(content), "pointerSize": len(pointer)},
                             xetHash=xet_hash(content))
            entries.append(entry)
        self.pages(connection, request, entries, path)

    def bucket_list(self, connection, request, bucket, prefix):
        if bucket not in self.buckets:
            return self.missing(connection, request, "RepoNotFound")
        # Every name that begins with the prefix, "logs" and "logs_old/a".
        entries = [{"type": "file", "path": name, "size": len(content), "xetHash": xet_hash(content), "mtime": "2026-09-25T15:31:02.346Z",
                    "uploadedAt": "2026-09-25T15:31:02.346Z"} for name, content in self.buckets[bucket].items() if name.startswith(prefix)]
        self.pages(connection, request, entries, prefix)

    def pages(self, connection, request, entries, path):
        if request.query.get("recursive", "false").lower() != "true":
            entries = folded(entries, path)
        elif "buckets" not in request.path:
            folders = {entry["path"][:slash.start()] for entry in entries for slash in re.finditer("/", entry["path"])}
            entries += [{"type": "directory", "oid": git_digest(b""), "size": 0, "path": name} for name in folders if name != path]
        entries = [self.altered(entry) for entry in sorted(entries, key=lambda entry: entry["path"])]
        begin = int(request.query.get("cursor", "0"))
        fields = {"Content-Type": "application/json"}
        if begin + self.page < len(entries):
            query = urllib.parse.urlencode({**request.query, "cursor": begin + self.page})
            fields["Link"] = f'<{self.next_at or self.endpoint}{request.path}?{query}>; rel="next"'
        connection.answer(200, json.dumps(entries[begin:begin + self.page]).encode(), fields)


def folded(entries, path):
    """The members of a folder, and what lies beside it under a name that begins like its own: of what lies deeper, the folders alone."""
    members = {}
    for entry in entries:
        name = entry["path"]
        begin = len(path) + 1 if path and name.startswith(path + "/") else path.rfind("/") + 1
        end = name.find("/", begin)
        if end < 0:
            members[name] = entry
        else:
            members[name[:end]] = {"type": "directory", "path": name[:end], "oid": git_digest(b""), "size": 0}
    return list(members.values())
