#!/usr/bin/env python3
"""Stands in for services that give out keys of a role: IMDSv2, the credentials of a
container, and STS for a web identity.  On 127.0.0.1.

Usage: metadata.py JOURNAL [PORT].  It prints its port.  Each line of stdin is a JSON object:
"keys" are the next keys [id, secret, token] and for how many seconds they are good, "raw"
an answer to the last question instead, "status" of all answers, "hang" seconds for which
no answer comes, "hostile" what of hostile.py is done instead, "name" the role, "wants" the authorization of a container or the token of
a web identity.  It prints "ok" for each.  The journal has a line for each request.
"""
import json
import sys
import threading
import time
import urllib.parse
from http.server import ThreadingHTTPServer

from handler import QuietHandler
from hostile import BEHAVIOURS
from hostile_server import Closed, Silent

journal = open(sys.argv[1], "ab", buffering=0)
told = {"keys": None, "raw": None, "status": 200, "hang": 0, "hostile": None, "name": "outbox-role", "wants": None}
tokens = {}
ROLES = "/latest/meta-data/iam/security-credentials/"


def expiration():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + told["keys"][3]))


class Handler(QuietHandler):
    def note(self, status):
        journal.write(json.dumps({"method": self.command, "path": self.path, "status": status}).encode() + b"\n")

    def handle_it(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if told["hostile"]:
            self.note(told["hostile"])
            self.close_connection = True
            try:
                BEHAVIOURS[told["hostile"]][0](self.connection, [])
            except Silent:
                self.connection.recv(1)
            except (OSError, Closed):
                pass
            return
        status, text = self.find(body)
        if told["hang"]:
            time.sleep(told["hang"])
            self.close_connection = True
            return
        if told["status"] != 200:
            status, text = told["status"], told["raw"] or ""
        self.note(status)
        self.answer(status, text, **({"Location": "http://127.0.0.1:%d/elsewhere" % server.server_address[1]} if status == 302 else {}))

    do_GET = do_PUT = do_POST = handle_it

    def find(self, body):
        if self.path == "/latest/api/token":
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if self.command != "PUT" or not ttl.isdigit() or self.headers.get("X-Forwarded-For"):
                return 400, ""
            token = "imds-token-%d" % len(tokens)
            tokens[token] = time.time() + int(ttl)
            return 200, token
        if self.path.startswith(ROLES):
            if tokens.get(self.headers.get("X-aws-ec2-metadata-token"), 0) < time.time():
                return 401, ""
            if self.path == ROLES:
                return (200, told["name"]) if told["name"] else (404, "")
            if self.path != ROLES + told["name"]:
                return 404, ""
            return 200, self.json()
        if self.path.startswith("/container"):
            if self.headers.get("Authorization") != told["wants"]:
                return 403, ""
            return 200, self.json()
        if self.path == "/" and self.command == "POST":
            form = dict(urllib.parse.parse_qsl(body, strict_parsing=True))
            if form.get("Action") != "AssumeRoleWithWebIdentity" or form.get("RoleArn") != "arn:aws:iam::123456789012:role/outbox":
                return 400, "<ErrorResponse><Error><Code>ValidationError</Code></Error></ErrorResponse>"
            if form.get("WebIdentityToken") != told["wants"]:
                return 403, ("<ErrorResponse><Error><Type>Sender</Type><Code>InvalidIdentityToken</Code><Message>%s</Message></Error></ErrorResponse>"
                             % form.get("WebIdentityToken"))
            keys = told["keys"]
            return 200, told["raw"] or (
                '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>'
                "<AssumedRoleUser><AssumedRoleId>x</AssumedRoleId></AssumedRoleUser><Credentials><AccessKeyId>%s</AccessKeyId>"
                "<SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials>"
                "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>" % (keys[0], keys[1], keys[2], expiration()))
        return 404, ""

    def json(self):
        keys = told["keys"]
        return told["raw"] or json.dumps({"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": keys[0], "SecretAccessKey": keys[1],
                                          "Token": keys[2], "Expiration": expiration()})


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
for line in sys.stdin:
    told.update(json.loads(line))
    print("ok", flush=True)
