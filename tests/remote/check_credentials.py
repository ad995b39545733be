#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where credentials are found, that they are renewed, that none goes to another host, and that none is seen anywhere.

    check_credentials.py --tool PROGRAM --data FOLDER
"""
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from xml.sax.saxutils import escape

import commands
import files
import listener
import proxy
import server
import signatures

MINIMAL = "golden/2.11.0/minimal/ckpt"
FILE = "golden/2.11.0/zip_pt/full.pt"
TOKEN = "session/token+with=odd chars"
PLACE = f"s3://{commands.BUCKET}/a/{MINIMAL}"
ROLE = "arn:aws:iam::123456789012:role/of tests"
# Whose role it is.
SOURCE = ("SOURCE.id", "key/of+the=source")


class Services(listener.Listener):
    """Of a machine (IMDSv2), of a container and of STS, at one place.  `expires_in`: seconds."""

    def __init__(self):
        super().__init__()
        self.asked = []
        self.expires_in = 3600

    def credentials(self):
        at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.expires_in)
        return {"AccessKeyId": server.ACCESS_KEY, "SecretAccessKey": server.SECRET_KEY, "Token": TOKEN, "Code": "Success",
                "Expiration": at.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def respond(self, connection, request):
        with self.lock:
            self.asked.append(f"{request.method} {request.path}")
        roles = "/latest/meta-data/iam/security-credentials/"
        if request.method == "PUT" and request.path == "/latest/api/token":
            assert int(request.fields["x-aws-ec2-metadata-token-ttl-seconds"]) > 0
            return connection.answer(200, b"token of IMDS")
        if request.path.startswith(roles):
            if request.fields.get("x-aws-ec2-metadata-token") != "token of IMDS":
                return connection.answer(401)
            return connection.answer(200, b"role-1" if request.path == roles else json.dumps(self.credentials()).encode())
        if request.path == "/container":
            if request.fields.get("authorization") != "token of the container":
                return connection.answer(403)
            return connection.answer(200, json.dumps(self.credentials()).encode())
        if request.method == "POST" and request.path == "/":
            form = dict(urllib.parse.parse_qsl(request.body.decode()))
            if form["Action"] == "AssumeRole":
                wrong = signatures.why_wrong(request, (*SOURCE, None), server.REGION, "sts")
                if wrong or (form["RoleArn"], form["ExternalId"]) != (ROLE, "id of/tests"):
                    return connection.answer(403, f"<ErrorResponse><Error><Code>{escape(str(wrong))}</Code></Error></ErrorResponse>".encode())
                return self.answer_role(connection, "AssumeRole")
            if (form["Action"], form["WebIdentityToken"], form["RoleArn"]) != ("AssumeRoleWithWebIdentity", "token+of/an identity", ROLE):
                return connection.answer(400, b"<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>")
            return self.answer_role(connection, "AssumeRoleWithWebIdentity")
        connection.answer(404)

    def answer_role(self, connection, action):
        found = self.credentials()
        inner = "".join(f"<{name}>{escape(found[of])}</{name}>" for name, of in
                        (("AccessKeyId", "AccessKeyId"), ("SecretAccessKey", "SecretAccessKey"), ("SessionToken", "Token"), ("Expiration", "Expiration")))
        connection.answer(200, f"<{action}Response><{action}Result><Credentials>{inner}</Credentials></{action}Result></{action}Response>".encode())


class Credentials:
    def __init__(self, args, folder, running):
        self.args, self.folder, self.running = args, folder, running
        server.make_bucket(running.client(), commands.BUCKET)
        for name in (MINIMAL, os.path.dirname(FILE)):
            server.upload_tree(running.client(), commands.BUCKET, os.path.join(args.data, name), f"a/{name}")
        self.expected = commands.run(args.tool, ["stats", os.path.join(args.data, MINIMAL)], server.environment()).stdout

    def between(self, token=TOKEN, **more):
        return proxy.Proxy(self.running.endpoint, credentials=(server.ACCESS_KEY, server.SECRET_KEY, token), region=server.REGION, **more)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def stats(self, environment, status=0, place=PLACE):
        done = commands.run(self.args.tool, ["stats", place], environment)
        assert done.returncode == status, f"{done.returncode} {done.stdout}{done.stderr}"
        for secret in (server.SECRET_KEY, TOKEN, "token of", "token+of", SOURCE[1]):
            assert secret not in done.stdout + done.stderr, done.stderr
        assert status or done.stdout == self.expected, done.stdout
        return done

    def sources(self):
        profiles = self.file("credentials", f"[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n[other]\n"
                                            f"aws_access_key_id={server.ACCESS_KEY}\naws_secret_access_key = {server.SECRET_KEY}\n"
                                            f"aws_session_token = {TOKEN}\n[source]\naws_access_key_id = {SOURCE[0]}\n"
                                            f"aws_secret_access_key = {SOURCE[1]}\n")
        config = self.file("config", f"[profile other]\nregion = {server.REGION}\n[profile taker]\nrole_arn = {ROLE}\n"
                                     "source_profile = source\nexternal_id = id of/tests\n")
        identity = self.file("identity", "token+of/an identity\n")
        container = self.file("container", "token of the container\n")
        with Services() as services, self.between() as between:
            chains = {
                "environment": {"AWS_ACCESS_KEY_ID": server.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": server.SECRET_KEY, "AWS_SESSION_TOKEN": TOKEN},
                "profile": {"AWS_SHARED_CREDENTIALS_FILE": profiles, "AWS_CONFIG_FILE": config, "AWS_PROFILE": "other"},
                "role": {"AWS_SHARED_CREDENTIALS_FILE": profiles, "AWS_CONFIG_FILE": config, "AWS_PROFILE": "taker",
                         "AWS_ENDPOINT_URL_STS": services.endpoint},
                "web identity": {"AWS_WEB_IDENTITY_TOKEN_FILE": identity, "AWS_ROLE_ARN": ROLE, "AWS_ENDPOINT_URL_STS": services.endpoint},
                "container": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{services.endpoint}/container",
                              "AWS_CONTAINER_AUTHORIZATION_TOKEN": "token of the container"},
                "container, file": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{services.endpoint}/container",
                                    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": container},
                "machine": {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": services.endpoint}}
            for name, variables in chains.items():
                services.asked.clear()
                settings = {"AWS_ENDPOINT_URL_S3": between.endpoint, **variables}
                if name != "profile":
                    settings["AWS_REGION"] = server.REGION
                self.stats(server.environment(**settings))
                assert bool(services.asked) == (name not in ("environment", "profile")), f"{name}: {services.asked}"
                print(f"{name}: {services.asked}", flush=True)
            # Credentials that are old already are asked for anew, and a server that calls them old is believed once.
            services.expires_in = -10
            services.asked.clear()
            self.stats(server.environment(AWS_ENDPOINT_URL_S3=between.endpoint, AWS_REGION=server.REGION, **chains["container"]))
            services.expires_in = 3600
            old = []

            def plan(_):
                old.append(len(old) == 1)
                return "expired" if old[-1] else None
            between.plan = plan
            services.asked.clear()
            self.stats(server.environment(AWS_ENDPOINT_URL_S3=between.endpoint, AWS_REGION=server.REGION, **chains["container"]))
            assert len(services.asked) == 2, services.asked
            between.plan = None
            # Services that refuse.
            refused = dict(chains["container"], AWS_CONTAINER_AUTHORIZATION_TOKEN="token of another")
            assert "error[ACCESS]" in self.stats(server.environment(AWS_ENDPOINT_URL_S3=between.endpoint, AWS_REGION=server.REGION, **refused), 2).stderr
            wrong = dict(chains["web identity"], AWS_ROLE_ARN="arn:another")
            done = self.stats(server.environment(AWS_ENDPOINT_URL_S3=between.endpoint, AWS_REGION=server.REGION, **wrong), 2)
            assert "error[ACCESS]" in done.stderr and "InvalidIdentityToken" in done.stderr, done.stderr
            assert "error[ACCESS]" in self.stats(server.environment(AWS_ENDPOINT_URL_S3=between.endpoint, AWS_REGION=server.REGION), 2).stderr
            assert not between.violations and not between.failures and not services.failures, (between.violations, services.failures)

    def redirected(self):
        """To another host, which gets no credentials."""
        with proxy.Elsewhere() as elsewhere, self.between(None, elsewhere=elsewhere) as between:
            between.plan = lambda _: "redirect"
            done = self.stats(server.s3_environment(between.endpoint, FSDP_CKPT_NETWORK_TRIES="2"), 2)
            assert not elsewhere.leaked, elsewhere.leaked
            print(f"redirected: {elsewhere.seen} requests arrived: {done.stderr.strip()}", flush=True)
            out = f"s3://{commands.BUCKET}/redirected.pt"
            done = commands.run(self.args.tool, ["convert", os.path.join(self.args.data, FILE), out],
                                server.s3_environment(between.endpoint, FSDP_CKPT_NETWORK_TRIES="2"))
            assert done.returncode == 2 and not elsewhere.leaked, (done, elsewhere.leaked)

    def hub(self):
        """A server of https that sends to another one, as hubs do: the content is read there."""
        authority, context = listener.certificates(self.folder)

        class Hub(listener.Listener):
            def respond(self, connection, request):
                connection.answer(302, fields={"Location": stock.endpoint + request.target})
        shutil.copytree(os.path.join(self.args.data, MINIMAL), os.path.join(self.folder, "hub", "ckpt"))
        with files.Files(os.path.join(self.folder, "hub"), context) as inner, proxy.Elsewhere(context, inner) as stock, Hub(context) as hub:
            self.stats(server.environment(SSL_CERT_FILE=authority), place=f"https://127.0.0.1:{hub.port}/ckpt")
            assert stock.seen and not stock.leaked and not stock.failures and not hub.failures, (stock.leaked, stock.failures)
            # A certificate that nobody vouches for.
            assert "error[NETWORK]" in self.stats(server.environment(), 2, f"https://127.0.0.1:{hub.port}/ckpt").stderr

    def traced(self):
        """No system call but those on sockets sees a token, and none the key."""
        trace = os.path.join(self.folder, "trace")
        with self.between() as between:
            environment = server.s3_environment(between.endpoint, AWS_SESSION_TOKEN=TOKEN, TMPDIR=self.folder)
            for number, words in enumerate((["stats", PLACE], ["convert", os.path.join(self.args.data, FILE), f"s3://{commands.BUCKET}/traced.pt"],
                                            ["stats", PLACE + "-none"])):
                done = subprocess.run(["strace", "-f", "-xx", "-s", "10000000", "-o", trace, self.args.tool, *words], env=environment, capture_output=True,
                                      text=True, timeout=100)
                assert (done.returncode == 0) == (number < 2), done.stderr[-1000:]
                with open(trace, encoding="latin-1") as file:
                    lines = file.read().splitlines()
                assert len(lines) > 100
                for secret, anywhere in ((server.SECRET_KEY, True), (TOKEN, False)):
                    spelled = "".join(f"\\x{byte:02x}" for byte in secret.encode())
                    seen = [line[:100] for line in lines if spelled in line and "execve(" not in line]
                    allowed = [line for line in seen if not anywhere and any(call in line for call in ("sendto(", "sendmsg(", "send("))]
                    assert len(seen) == len(allowed), seen
                    assert anywhere or allowed, "the token was not sent"


def main():
    args = commands.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder, server.Moto() as running:
        checks = Credentials(args, folder, running)
        checks.sources()
        checks.redirected()
        checks.hub()
        checks.traced()


if __name__ == "__main__":
    sys.exit(main())
