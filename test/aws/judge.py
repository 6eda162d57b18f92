#!/usr/bin/env python3
"""Has botocore's own signer judge the requests of fake.py's journal.

Usage: judge.py JOURNAL ACCESS_KEY_ID SECRET_ACCESS_KEY [SESSION_TOKEN].  It prints how many
signatures are right, and how many are not.
"""
import base64
import json
import sys

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

credentials = Credentials(*sys.argv[2:])
right = wrong = 0
for line in open(sys.argv[1]):
    r = json.loads(line)
    if not r.get("body"):
        continue
    fields = dict(p.strip().split("=", 1) for p in r["authorization"][len("AWS4-HMAC-SHA256 "):].split(","))
    key, date, region, service, last = fields["Credential"].split("/")
    if key != credentials.access_key:
        continue
    sent = {k.lower(): v for k, v in r["headers"].items()}
    signed = {n: sent[n] for n in fields["SignedHeaders"].split(";")}
    request = AWSRequest("POST", "http://%s/" % sent["host"], data=base64.b64decode(r["body"]), headers=signed)
    request.context["timestamp"] = sent["x-amz-date"]
    signer = SigV4Auth(credentials, service, region)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    if signer.signature(text, request) == fields["Signature"]:
        right += 1
    else:
        wrong += 1
print(right, wrong)
