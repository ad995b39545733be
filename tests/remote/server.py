# SPDX-License-Identifier: Apache-2.0
"""Starts servers of S3 on loopback, each on free ports with a folder of its own, and stops them for sure.

    with Seaweed() as server:
        server.client().put_object(...)
"""
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# Every character that signing or shells could spoil; rclone parts the two by a comma.
ACCESS_KEY = "KEY.id+1_x~"
SECRET_KEY = "s+e/c r=et%41&~\"'$:;\\"
REGION = "eu-central-1"

START_SECONDS = 60
_PROGRAMS = os.path.dirname(sys.executable)   # not resolved: the environment's own folder
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    try:
        for s in held:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in held]
    finally:
        for s in held:
            s.close()


def environment(**more):
    """The environment without what would steer a client of a store, and with `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BOTO", "FSDP_CKPT_", "GS_", "HF_", "SSL_CERT_"))
            and name != "CURL_CA_BUNDLE" and not name.lower().endswith("_proxy")}
    # No file of whoever runs the tests, no endpoint of a cloud.
    kept.update(AWS_CONFIG_FILE="/nonexistent/config", AWS_SHARED_CREDENTIALS_FILE="/nonexistent/credentials", AWS_EC2_METADATA_DISABLED="true")
    kept.update(more)
    return kept


def s3_environment(endpoint, **more):
    """The same, with the servers' credentials and `endpoint`."""
    return environment(AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_REGION=REGION, **more)


def client(endpoint, **credentials):
    import boto3
    import botocore.config
    config = botocore.config.Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 3}, proxies={},
                                    max_pool_connections=32, request_checksum_calculation="when_required",
                                    response_checksum_validation="when_required")
    credentials = credentials or {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    return boto3.client("s3", endpoint_url=endpoint, region_name=REGION, config=config, **credentials)


def make_bucket(s3, name):
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})


def upload_tree(s3, bucket, folder, prefix):
    """Uploads every file below `folder`; returns the number of bytes."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            key = os.path.join(prefix, os.path.relpath(path, folder))
            with open(path, "rb") as file:
                content = file.read()
            s3.put_object(Bucket=bucket, Key=key, Body=content)
            total += len(content)
    return total


def download_tree(s3, bucket, prefix):
    """Returns the content of every object below `prefix`, by its key without the prefix; of one object, under the name ''."""
    found = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", []):
            key = entry["Key"]
            # A marker of a folder, which rclone and SeaweedFS list, is not a file.
            if key.endswith("/") or (key != prefix and key[len(prefix)] != "/"):
                continue
            found[key[len(prefix) + 1:]] = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    return found


class Server:
    """A process that answers on self.endpoint.  It ends with the `with` block, and with this process however that ends."""
    name = ""
    port_count = 1
    checks_signatures = True
    honours_only_new = True   # If-None-Match: *
    dates_uploads = True      # lists say when they were begun

    def __init__(self, shared_folder=None):
        self.shared_folder_ = shared_folder

    def command(self, folder, ports):
        raise NotImplementedError

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix=f"{self.name}-", dir=self.shared_folder_)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        # Another process may take a port between the look and the start.
        for attempt in range(3):
            ports = free_ports(self.port_count)
            self.endpoint = f"http://127.0.0.1:{ports[0]}"
            log = open(os.path.join(self.folder, f"log-{attempt}"), "w+", encoding="utf-8", errors="replace")
            self.process = subprocess.Popen(
                self.command(self.folder, ports), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                env=environment(HOME=self.folder), start_new_session=True,
                preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
            with log:
                if self._wait():
                    return
                self._kill()
                log.seek(0)
                said = log.read()[-3000:]
        raise RuntimeError(f"{self.name} did not answer within {START_SECONDS} s:\n{said}")

    def _wait(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            if self.ready():
                return True
            time.sleep(0.05)
        return False

    def ready(self):
        """Whether it answers as it will later."""
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.endpoint, timeout=2):
                return True
        except urllib.error.HTTPError:
            return True   # it refuses, but it answers
        except OSError:
            return False

    def _kill(self):
        # At once: what it holds is thrown away, and its children are of its group.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)

    def __exit__(self, *_):
        if getattr(self, "process", None) is not None:
            self._kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def client(self):
        return client(self.endpoint)


class Seaweed(Server):
    name = "seaweedfs"
    port_count = 8

    def command(self, folder, ports):
        os.makedirs(os.path.join(folder, "data"), exist_ok=True)
        with open(os.path.join(folder, "s3.json"), "w", encoding="utf-8") as file:
            json.dump({"identities": [{"name": "tests", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                                       "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}, file)
        s3, master, volume, filer, *grpc = map(str, ports)
        return [os.path.join(_PROGRAMS, "weed"), "-logtostderr=true", "server", "-dir", os.path.join(folder, "data"), "-ip", "127.0.0.1",
                "-s3", "-s3.port", s3, "-s3.config", os.path.join(folder, "s3.json"), "-s3.iam=false", "-s3.port.iceberg", "0",
                "-s3.port.lance", "0", "-s3.port.grpc", grpc[0], "-s3.localSocket", os.path.join(folder, "s3.sock"),
                "-master.port", master, "-master.port.grpc", grpc[1], "-master.telemetry=false", "-master.electionTimeout", "1s",
                "-master.volumeSizeLimitMB", "512", "-volume.port", volume, "-volume.port.grpc", grpc[2], "-volume.max", "20",
                "-volume.minFreeSpace", "1", "-filer", "-filer.port", filer, "-filer.port.grpc", grpc[3],
                "-filer.localSocket", os.path.join(folder, "filer.sock")]

    def ready(self):
        # It listens before its parts have found each other.
        if not super().ready():
            return False
        try:
            make_bucket(self.client(), "ready")
            self.client().put_object(Bucket="ready", Key="a", Body=b"a")
            return True
        except Exception:
            return False


class Rclone(Server):
    name = "rclone"
    honours_only_new = False

    def command(self, folder, ports):
        os.makedirs(os.path.join(folder, "data"), exist_ok=True)
        return [os.path.join(_PROGRAMS, "rclone"), "serve", "s3", "--addr", f"127.0.0.1:{ports[0]}", "--auth-key",
                f"{ACCESS_KEY},{SECRET_KEY}", "--config", "",
                os.path.join(folder, "data")]


class Moto(Server):
    """Does not look at signatures: proxy.py does."""
    name = "moto"
    checks_signatures = False
    dates_uploads = False

    def command(self, folder, ports):
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(ports[0])]


ALL = (Seaweed, Rclone, Moto)
