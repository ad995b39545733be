# SPDX-License-Identifier: Apache-2.0
"""Checks requests as S3 does, by botocore, which computes signatures independently of the tool."""
import datetime
import hashlib
import re
import urllib.parse

import botocore.auth
import botocore.awsrequest
import botocore.credentials


def _spelled(text, safe):
    return urllib.parse.quote(urllib.parse.unquote_to_bytes(text), safe=safe)


def why_wrong(request, credentials, region, service="s3"):
    """Says what S3 would refuse in a request; None: nothing.  `credentials`: (id, key, token or None)."""
    access_key, secret_key, token = credentials
    fields = request.fields
    found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})",
                         fields.get("authorization", ""))
    if not found:
        return f"no Authorization of version 4: {fields.get('authorization', '')[:20]!r}..."
    scope, signed, signature = found[1], found[2].split(";"), found[3]
    stamp = fields.get("x-amz-date", "")
    expected = f"{access_key}/{stamp[:8]}/{region}/{service}/aws4_request"
    if scope != expected:
        return f"scope {scope!r} instead of {expected!r}"
    at = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
    if abs((datetime.datetime.now(datetime.timezone.utc) - at).total_seconds()) > 900:
        return f"signed at {stamp}"
    if signed != sorted(signed):
        return "the signed headers are not sorted"
    for name in fields:
        if (name == "host" or name.startswith("x-amz-")) and name not in signed:
            return f"{name} is not signed"
    for name in signed:
        if len(request.values[name]) != 1:
            return f"{name} is signed and there {len(request.values[name])} times"
    if fields.get("x-amz-security-token") != token:
        return "another session token"
    if request.path != _spelled(request.path, "/-._~"):
        return f"the path is not encoded as S3 does it: {request.path}"
    parts = request.query_text.split("&") if request.query_text else []
    for part in parts:
        name, equals, value = part.partition("=")   # "uploads" is signed as "uploads="
        if part != f"{_spelled(name, '-._~')}{equals}{_spelled(value, '-._~')}":
            return f"the query is not encoded as S3 does it: {part}"
    digest = fields.get("x-amz-content-sha256", "")
    if digest != "UNSIGNED-PAYLOAD" and digest != hashlib.sha256(request.body).hexdigest():
        return f"x-amz-content-sha256 is {digest!r}"

    again = botocore.awsrequest.AWSRequest(method=request.method, url=f"http://{fields['host']}{request.target}",
                                           headers={name: fields[name] for name in signed})
    again.context["timestamp"] = stamp
    auth = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(access_key, secret_key, token), service, region)
    # What botocore would not sign, such as Expect, is signed here if the client did.
    auth.headers_to_sign = lambda _: again.headers
    text = auth.string_to_sign(again, auth.canonical_request(again))
    if auth.signature(text, again) != signature:
        return f"another signature than that of {text!r}"
    return None
