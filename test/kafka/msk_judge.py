#!/usr/bin/env python3
"""Judges tokens for MskValidator.java, by botocore's own signer too, on 127.0.0.1.

Usage: msk_judge.py REGION KEYS, with the keys as JSON: {id: [secret, session token or null]}.
It prints its port.  A POST of a token is answered with 200 and the id of its key, or with 403 and
what is wrong.
"""
import json
import os
import sys
import urllib.parse
from http.server import ThreadingHTTPServer

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "aws"))
from botocore.auth import SigV4QueryAuth  # noqa: E402
from botocore.awsrequest import AWSRequest  # noqa: E402
from botocore.credentials import Credentials  # noqa: E402
from handler import QuietHandler  # noqa: E402
from msk_token import judge  # noqa: E402

region, secrets = sys.argv[1], json.loads(sys.argv[2])


def signature(parts):
    """What botocore computes"""
    credentials = Credentials(parts["key"], *secrets[parts["key"]])
    query = {k: v for k, v in parts.items() if k == "Action" or k.startswith("X-Amz-") and k != "X-Amz-Signature"}
    request = AWSRequest("GET", "https://%s/?%s" % (parts["host"], urllib.parse.urlencode(query, quote_via=urllib.parse.quote)))
    request.context["timestamp"] = parts["X-Amz-Date"]
    signer = SigV4QueryAuth(credentials, "kafka-cluster", region, expires=900)
    return signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)


class Handler(QuietHandler):
    def do_POST(self):
        wrong, parts = judge(self.rfile.read(int(self.headers["Content-Length"])).decode(), secrets, region)
        if not wrong and signature(parts) != parts["X-Amz-Signature"]:
            wrong = "botocore signs it otherwise"
        self.answer(403 if wrong else 200, wrong or parts["key"])


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
