#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries what the other tests stand on with boto3 alone: the servers, the check of signatures, each fault of the proxy, the plain server."""
import http.client
import os
import ssl
import sys
import tempfile
import time
import urllib.parse

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.exceptions

import files
import listener
import proxy
import server

BUCKET = "bucket.with.dots"
KEYS = ("a b+c=d*(e)'~!@$&,;:\u00e9%41/x y", "p/.metadata", "q/r..")
CREDENTIALS = (server.ACCESS_KEY, server.SECRET_KEY, None)
CONTENT = bytes(range(256)) * 40


def raised(function):
    """The status and the code that boto3 reports; None: it succeeds."""
    try:
        function()
    except botocore.exceptions.ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
    return None


def check_server(running):
    """What a server does by itself, and that the proxy passes it on unchanged."""
    with proxy.Proxy(running.endpoint, credentials=CREDENTIALS, region=server.REGION) as between:
        s3 = server.client(between.endpoint)
        server.make_bucket(s3, BUCKET)
        for key in KEYS:
            s3.put_object(Bucket=BUCKET, Key=key, Body=CONTENT)
            part = s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=5-104")
            assert part["ContentRange"] == f"bytes 5-104/{len(CONTENT)}" and part["Body"].read() == CONTENT[5:105], key
        assert server.download_tree(s3, BUCKET, "p") == {".metadata": CONTENT}
        assert between.counts["range"] == len(KEYS) and between.counts["put"] == len(KEYS) + 1, between.counts
        again = raised(lambda: s3.put_object(Bucket=BUCKET, Key=KEYS[1], Body=b"", IfNoneMatch="*"))
        assert (again is not None) == running.honours_only_new, again
        assert not between.violations and not between.failures, (between.violations, between.failures)
        check_multipart(s3)
        if running.checks_signatures:
            forger = server.client(running.endpoint, aws_access_key_id=server.ACCESS_KEY, aws_secret_access_key="another")
            assert raised(lambda: forger.get_object(Bucket=BUCKET, Key=KEYS[0])) == (403, "SignatureDoesNotMatch")


def check_multipart(s3):
    place = {"Bucket": BUCKET, "Key": "parts"}
    begun = s3.create_multipart_upload(**place)["UploadId"]
    assert [u["UploadId"] for u in s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"]] == [begun]
    parts = [b"a" * (5 << 20), b"b" * 100]
    sent = [{"PartNumber": n, "ETag": s3.upload_part(**place, UploadId=begun, PartNumber=n, Body=body)["ETag"]}
            for n, body in enumerate(parts, 1)]
    s3.complete_multipart_upload(**place, UploadId=begun, MultipartUpload={"Parts": sent})
    assert s3.get_object(**place)["Body"].read() == b"".join(parts)
    s3.abort_multipart_upload(**place, UploadId=s3.create_multipart_upload(**place)["UploadId"])
    assert not s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads")


def ask(endpoint, key, method="GET", secret=server.SECRET_KEY, **fields):
    """One signed request without repetitions: the status, the fields and the body, or the name of what went wrong."""
    host = urllib.parse.urlsplit(endpoint).netloc
    url = f"{endpoint}/{BUCKET}/{urllib.parse.quote(key, safe='/-._~')}"
    signed = botocore.awsrequest.AWSRequest(method, url, headers={"Host": host, **fields})
    botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(server.ACCESS_KEY, secret), "s3", server.REGION).add_auth(signed)
    connection = http.client.HTTPConnection(host, timeout=1)
    try:
        connection.request(method, url[len(endpoint):], headers=dict(signed.headers.items()))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__, {}, b""
    finally:
        connection.close()


def check_signatures(between):
    """The proxy refuses what S3 would refuse, and says so."""
    assert ask(between.endpoint, KEYS[0])[::2] == (200, CONTENT), between.violations
    assert ask(between.endpoint, KEYS[0], secret="another")[0] == 403
    (why,) = between.violations
    assert "another signature" in why, why
    between.reset_counts()


def check_faults(between, elsewhere):
    """Every fault is what its name says, to a client that sees each byte."""
    first = 5
    whole, part = CONTENT, CONTENT[first:first + 100]
    etag = '"0123456789abcdef0123456789abcdef"'
    expected = {"slow_down": 503, "error_500": 500, "forbidden": 403, "expired": 400, "not_found": 404, "unsatisfied": 416, "changed": 412,
                "redirect": 307, "reset": "ConnectionResetError", "reset_after": "ConnectionResetError",
                "reset_middle": "ConnectionResetError", "truncated": "IncompleteRead", "stalled": "TimeoutError",
                "stalled_middle": "TimeoutError", "garbage": "BadStatusLine", "huge_head": 206, "ignored_range": 200,
                "wrong_range": 206, "short_range": 206, "other_etag": 206, "weak_etag": 206, "no_etag": 206, "error_in_200": 200}
    assert set(expected) == set(proxy.FAULTS)
    for fault, status in expected.items():
        between.plan = lambda _, fault=fault: fault
        found, fields, body = ask(between.endpoint, KEYS[1], Range=f"bytes={first}-{first + 99}")
        assert found == status, f"{fault}: {found} instead of {status}"
        tag = fields.get("ETag", "")
        if fault == "redirect":
            assert fields["Location"].startswith(elsewhere.endpoint), fields["Location"]
        if fault == "ignored_range":
            assert body == whole
        assert ("X-Filler-59" in fields) == (fault == "huge_head"), fault
        if fault in ("huge_head", "wrong_range", "other_etag", "weak_etag", "no_etag"):
            assert body == part
        if fault == "wrong_range":
            assert fields["Content-Range"] == f"bytes {first + 1}-{first + 100}/{len(whole)}", fields["Content-Range"]
        if fault == "short_range":
            assert body == part[:50] and fields["Content-Range"] == f"bytes {first}-{first + 49}/{len(whole)}"
        assert (tag == etag) == (fault == "other_etag") and tag.startswith("W/") == (fault == "weak_etag"), f"{fault}: {tag}"
    assert between.faults.total() == len(expected) and not between.violations and not between.failures, between.failures
    between.plan = None


def check_plan():
    """Faults are those of the seed, of the chosen share, and fit the request."""
    request = listener.Request(b"GET /b/k HTTP/1.1\r\nRange: bytes=0-9\r\n")
    drawn = [proxy.Drawn(7, 0.25)(request) for _ in range(2)]
    assert drawn[0] == drawn[1]
    plan = proxy.Drawn(7, 0.25)
    faults = [fault for fault in (plan(request) for _ in range(4000)) if fault]
    assert 900 < len(faults) < 1100 and "error_in_200" not in faults and len(set(faults)) == len(proxy.FAULTS) - 1, len(faults)


def check_elsewhere(elsewhere):
    """A secret that arrives at another host is seen."""
    assert ask(elsewhere.endpoint, "k")[0] == 403
    assert elsewhere.seen == 1 and set(elsewhere.leaked) == {"authorization", "x-amz-date"}, elsewhere.leaked


def check_plain(folder):
    """The plain server, by https."""
    with open(os.path.join(folder, "a b"), "wb") as file:
        file.write(CONTENT)
    authority, context = listener.certificates(folder)
    with files.Files(folder, context) as plain:
        connection = http.client.HTTPSConnection("localhost", plain.port, context=ssl.create_default_context(cafile=authority), timeout=10)

        def get(path, **fields):
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in fields.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        status, fields, body = get("/a%20b", Range="bytes=3-7")
        assert (status, body, fields["Content-Range"]) == (206, CONTENT[3:8], f"bytes 3-7/{len(CONTENT)}")
        assert get("/a%20b", If_Match='"other"')[0] == 412 and get("/a%20b", If_Match=fields["ETag"])[::2] == (200, CONTENT)
        assert get("/a%20b", Range=f"bytes={len(CONTENT)}-")[0] == 416 and get("/none")[0] == 404 and get("/..%2fetc/passwd")[0] == 404
        assert not plain.failures, plain.failures
        connection.close()


def main():
    check_plan()
    with tempfile.TemporaryDirectory() as folder:
        check_plain(folder)
    for kind in server.ALL:
        begin = time.monotonic()
        with kind() as running:
            check_server(running)
            if kind is server.Moto:
                with proxy.Elsewhere() as elsewhere, proxy.Proxy(running.endpoint, credentials=CREDENTIALS, region=server.REGION,
                                                                 elsewhere=elsewhere) as between:
                    check_signatures(between)
                    check_faults(between, elsewhere)
                    check_elsewhere(elsewhere)
        assert running.process.poll() is not None and not os.path.exists(running.folder)
        print(f"{kind.name}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
