#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program of the wheel in an empty root folder, on a network of its own: stores behind names, certificates where distributions keep them.

    check_urls.py --dist FOLDER --version VERSION --data tests/data

The network has no machine but this one and no names but those of the server of DNS below.
Exit: 0 passed, 1 failed, 77 skipped, with the reason.
"""
import argparse
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../remote"))
import check_packages   # noqa: E402
import commands   # noqa: E402
import files   # noqa: E402
import listener   # noqa: E402
import server   # noqa: E402
from machine import SKIPPED, Failure, Skipped, check   # noqa: E402

MARK = "FSDP_TEST_NETWORK"
# Where Debian, Fedora, RHEL, SUSE and Alpine have the certificates of authorities.
PLACES = ("etc/ssl/certs/ca-certificates.crt", "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/pki/tls/certs/ca-bundle.crt",
          "etc/ssl/ca-bundle.pem", "var/lib/ca-certificates/ca-bundle.pem", "etc/ssl/cert.pem")
VARIABLES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")
NAME = "store.test"


class Names:
    """A server of DNS at 127.0.0.1: NAME is this machine, and nothing else exists.  `asked`: the names."""

    def __enter__(self):
        self.asked = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.socket.close()

    def serve(self):
        while True:
            try:
                data, address = self.socket.recvfrom(512)
            except OSError:
                return
            at, labels = 12, []
            while data[at]:
                labels.append(data[at + 1:at + 1 + data[at]].decode())
                at += 1 + data[at]
            name, kind = ".".join(labels), struct.unpack_from("!H", data, at + 1)[0]
            self.asked.append(name)
            known, answers = name == NAME, name == NAME and kind == 1
            # [RFC 1035, 4.1]: the question as it came; its name by a pointer to it.
            answer = data[:2] + struct.pack("!HHHHH", 0x8180 if known else 0x8183, 1, int(answers), 0, 0) + data[12:at + 5]
            if answers:
                answer += struct.pack("!HHHLH4s", 0xC00C, 1, 1, 60, 4, socket.inet_aton("127.0.0.1"))
            self.socket.sendto(answer, address)


class Hub(files.Files):
    """The repository org/name, with the files of a folder."""

    def respond(self, connection, request):
        for begin, answer in (("/api/models/org/name/tree/main", self.listed), ("/org/name/resolve/main", super().respond)):
            if request.decoded_path.startswith(begin + "/"):
                request.decoded_path = request.decoded_path[len(begin):]
                return answer(connection, request)
        return connection.answer(404)

    def listed(self, connection, request):
        folder = os.path.join(self.folder_, request.decoded_path.strip("/"))
        if not os.path.isdir(folder):
            return connection.answer(404)
        entries = []
        for name in sorted(os.listdir(folder)):
            state = os.stat(os.path.join(folder, name))
            entries.append({"type": "file", "path": f"{request.decoded_path.strip('/')}/{name}", "size": state.st_size, "oid": self.etag(state).strip('"')})
        return connection.answer(200, json.dumps(entries).encode())


class Checks:
    def __init__(self, bench):
        self.root = bench.place("root")
        for name in ("tmp", "etc"):
            os.mkdir(os.path.join(self.root, name))
        shutil.copy2(bench.tool, self.root)
        shutil.copytree(bench.source, os.path.join(self.root, "step"))
        self.write("etc/resolv.conf", "nameserver 127.0.0.1\n")
        self.tree = os.path.join(bench.folder, "tree")
        shutil.copytree(bench.source, os.path.join(self.tree, "step"))
        check_packages.wanted([bench.tool, "convert", bench.source, "model.safetensors", "--drop-values"], cwd=self.tree)
        self.truth = check_packages.truth_of(bench.tool, bench.source)
        self.authority, self.context = listener.certificates(bench.folder, NAME)
        # The newest version alone.
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def run(self, environment, *words, status=0, said=""):
        return check_packages.wanted(check_packages.in_root(self.root, "/fsdp-ckpt", *words), status, said, env={**environment, "TMPDIR": "/tmp"})

    def same(self, name):
        path = os.path.join(self.root, name)
        check(check_packages.content(path) == self.truth, f"{name} has other bytes than consolidate writes of local files")
        os.remove(path)

    def s3(self, names):
        with server.Seaweed() as running:
            server.make_bucket(running.client(), commands.BUCKET)
            environment = server.s3_environment(running.endpoint.replace("127.0.0.1", NAME))
            at = f"s3://{commands.BUCKET}/step"
            self.run(environment, "reshard", "step", at, "--world-size", "3", said="2 ranks to 3 ranks")
            self.run(environment, "verify", at, said="sound")
            self.run(environment, "diff", "step", at, said="are the same")
            self.run(environment, "consolidate", at, "full.pt", said="80 tensors")
            self.same("full.pt")
            check(NAME in names.asked, f"no server of DNS was asked: {names.asked}")
            names.asked.clear()
            self.write("etc/hosts", "127.0.0.1 listed.test\n")
            listed = server.s3_environment(running.endpoint.replace("127.0.0.1", "listed.test"))
            self.run(listed, "verify", at, said="sound")
            check("listed.test" not in names.asked, "a name of /etc/hosts was asked for")
            unknown = server.s3_environment(running.endpoint.replace("127.0.0.1", "unknown.test"), FSDP_CKPT_NETWORK_TRIES="1")
            self.run(unknown, "verify", at, status=2, said="unknown.test")
        print("s3: written and read, by names of DNS and of /etc/hosts", flush=True)

    def https(self):
        inside = self.write("own.pem", check_packages.content(self.authority).decode())[len(self.root):]
        with files.Files(self.tree, self.context) as plain:
            url = f"https://{NAME}:{plain.port}"
            for variable in VARIABLES:
                self.run(server.environment(**{variable: inside}), "verify", f"{url}/model.safetensors", said="sound")
            self.run(server.environment(), "verify", f"{url}/model.safetensors", status=2, said="SSL_CERT_FILE names one")
            for place in PLACES:
                path = self.write(place, check_packages.content(self.authority).decode())
                self.run(server.environment(), "verify", f"{url}/model.safetensors", said="sound")
                os.remove(path)
            self.write(PLACES[0], check_packages.content(self.authority).decode())
            self.run(server.environment(), "consolidate", f"{url}/step", "full.pt", said="80 tensors")
            self.same("full.pt")
            # Another host's certificate, and one of another authority.
            self.run(server.environment(), "verify", f"https://listed.test:{plain.port}/model.safetensors", status=2, said="error[NETWORK]")
            self.write("other.pem", check_packages.content(listener.certificates(tempfile.mkdtemp(dir=self.tree), NAME)[0]).decode())
            self.run(server.environment(SSL_CERT_FILE="/other.pem"), "verify", f"{url}/model.safetensors", status=2, said="error[NETWORK]")
            check(not plain.failures, plain.failures)
        print(f"https: by TLS 1.3 alone, with certificates of {len(VARIABLES)} variables and {len(PLACES)} places", flush=True)

    def hub(self):
        with Hub(self.tree, self.context) as hub:
            environment = server.environment(HF_ENDPOINT=f"https://{NAME}:{hub.port}")
            self.run(environment, "verify", "hf://org/name/model.safetensors", said="sound")
            self.run(environment, "consolidate", "hf://org/name/step", "full.pt", said="80 tensors")
            self.same("full.pt")
            check(not hub.failures, hub.failures)
        print("hf: listed and read", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("dist", "version", "data"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    options.tool, options.without = None, ""
    if os.geteuid() != 0 or not shutil.which("ip") or subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0:
        print("skipped: needs root and network namespaces, to serve names")
        return SKIPPED
    if not os.environ.get(MARK):
        os.environ[MARK] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_packages.need_chroot()
            checks = Checks(check_packages.Bench(options, folder))
            with Names() as names:
                checks.s3(names)
                checks.https()
                checks.hub()
        except Skipped as reason:
            print(f"skipped: {reason}")
            return SKIPPED
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
