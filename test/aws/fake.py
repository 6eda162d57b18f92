#!/usr/bin/env python3
"""Stands in for SQS, SNS, EventBridge and Kinesis, on 127.0.0.1.

It checks each signature by its own computation, writes each request to a journal, and
answers as it is told.  Usage: fake.py JOURNAL [PORT [PEM]], with TLS if there is a certificate.  It prints its port.  Each line of stdin is a
JSON object: "rules" is a list of what the next requests get, "missing" the names of
resources that do not exist, "secrets" the keys that are known.  It prints "ok" for each.
"""
import base64
import hashlib
import hmac
import json
import ssl
import sys
import threading
import time
import urllib.parse
from http.server import ThreadingHTTPServer
from xml.sax.saxutils import escape

from handler import QuietHandler

journal = open(sys.argv[1], "a+b", buffering=0)
lock = threading.Lock()
rules = []
missing = []
secrets = {"AKIDEXAMPLE": ["wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None]}
seen = set()
count = 0


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def check_signature(handler, body):
    """None, or the code and the words of an error"""
    h = {k.lower(): v.strip() for k, v in handler.headers.items()}
    auth = h.get("authorization", "")
    if not auth.startswith("AWS4-HMAC-SHA256 "):
        return "MissingAuthenticationToken", "Request is missing Authentication Token"
    part = dict(p.strip().split("=", 1) for p in auth[17:].split(","))
    key, date, region, service, last = part["Credential"].split("/")
    if key not in secrets:
        return "InvalidClientTokenId", "The security token included in the request is invalid."
    secret, token = secrets[key]
    if token != h.get("x-amz-security-token"):
        return "ExpiredToken", "The security token included in the request is expired"
    names = part["SignedHeaders"].split(";")
    canonical = "\n".join(
        [handler.command, "/", ""]
        + ["%s:%s" % (n, " ".join(h.get(n, "").split())) for n in names]
        + ["", ";".join(names), hashlib.sha256(body).hexdigest()])
    scope = "/".join([date, region, service, last])
    text = "\n".join(["AWS4-HMAC-SHA256", h["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signer = mac(mac(mac(mac(b"AWS4" + secret.encode(), date), region), service), last)
    required = {"host", "x-amz-date"} | {n for n in h if n.startswith("x-amz-")}
    good = (
        hmac.new(signer, text.encode(), hashlib.sha256).hexdigest() == part["Signature"]
        and all(n in h for n in names) and names == sorted(names) and required <= set(names) and handler.path == "/"
        and abs(time.time() - time.mktime(time.strptime(h["x-amz-date"], "%Y%m%dT%H%M%SZ")) + time.timezone) < 300
        and service == service_of(h))
    if good:
        return None
    return "SignatureDoesNotMatch", (
        "The request signature we calculated does not match the signature you provided.\n\n"
        "The Canonical String for this request should have been\n'" + canonical + "'")


def service_of(h):
    target = h.get("x-amz-target", "")
    return {"AmazonSQS": "sqs", "AWSEvents": "events", "Kinesis_20131202": "kinesis"}.get(target.split(".")[0], "sns")


def entries_of(service, body):
    """The entries as dictionaries, and the name of the resource"""
    if service != "sns":
        request = json.loads(body)
        if service == "sqs":
            return request["Entries"], request["QueueUrl"].rsplit("/", 1)[1]
        if service == "kinesis":
            for e in request["Records"]:
                e["Bytes"] = base64.b64decode(e["Data"]).decode("latin-1")
            return request["Records"], request["StreamARN"].rsplit("/", 1)[1]
        return request["Entries"], request["Entries"][0]["EventBusName"].rsplit("/", 1)[1]
    form = dict(urllib.parse.parse_qsl(body.decode(), strict_parsing=True, keep_blank_values=True))
    assert form["Action"] == "PublishBatch" and form["Version"] == "2010-03-31"
    entries = []
    while True:
        prefix = "PublishBatchRequestEntries.member.%d." % (len(entries) + 1)
        entry = {k[len(prefix):]: v for k, v in form.items() if k.startswith(prefix)}
        if not entry:
            return entries, form["TopicArn"].rsplit(":", 1)[1]
        n = 1
        entry["MessageAttributes"] = {}
        while "MessageAttributes.entry.%d.Name" % n in entry:
            p = "MessageAttributes.entry.%d." % n
            entry["MessageAttributes"][entry[p + "Name"]] = {
                "DataType": entry[p + "Value.DataType"], "StringValue": entry[p + "Value.StringValue"]}
            n += 1
        entries.append(entry)


def failure(service, entry, rule):
    bad = rule.get("fail")
    if bad and bad["with"] in json.dumps(entry, ensure_ascii=False):
        return bad
    return None


def good_answer(service, entries, rule):
    global count
    good, bad, by_place = [], [], []
    for e in entries:
        f = failure(service, e, rule)
        if rule.get("omit") and rule["omit"] in json.dumps(e):
            continue
        count += 1
        if f:
            bad.append({"Id": e.get("Id"), "Code": f["code"], "Message": f.get("message", ""), "SenderFault": f.get("sender_fault", False)})
            by_place.append({"ErrorCode": f["code"], "ErrorMessage": f.get("message", "")})
        else:
            good.append({"Id": e.get("Id"), "MessageId": "m%d" % count, "MD5OfMessageBody": "x"})
            by_place.append({"SequenceNumber": str(count), "ShardId": "shardId-000000000000"} if service == "kinesis" else {"EventId": "e%d" % count})
    if service == "sqs":
        return json.dumps({k: v for k, v in (("Successful", good), ("Failed", bad)) if v or not (good or bad)})
    if service == "sns":
        member = lambda m: "<member>" + "".join("<%s>%s</%s>" % (k, escape(str(v).lower() if isinstance(v, bool) else str(v)), k) for k, v in m.items()) + "</member>"
        return ('<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">\n  <PublishBatchResult>\n'
                + "<Failed%s" % (">" + "".join(map(member, bad)) + "</Failed>" if bad else "/>")
                + "<Successful>" + "".join(map(member, good)) + "</Successful></PublishBatchResult>"
                + "<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></PublishBatchResponse>")
    return json.dumps({"FailedRecordCount" if service == "kinesis" else "FailedEntryCount": len(bad),
                       "Records" if service == "kinesis" else "Entries": by_place})


def error_answer(service, code, words):
    if service == "sns":
        return "<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>r</RequestId></ErrorResponse>" % (code, escape(words))
    return json.dumps({"__type": "com.amazonaws.%s#%s" % (service, code), "message": words})


def note(request):
    """A line of the journal, in one write: who kills the fake finds it whole or not at all."""
    journal.write(json.dumps(request).encode() + b"\n")


class Handler(QuietHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        service = service_of({k.lower(): v for k, v in self.headers.items()})
        with lock:
            refusal = check_signature(self, body)
            entries, name = entries_of(service, body)
            rule = rules[0] if rules else {}
            if "fail" in rule and not any(failure(service, e, rule) for e in entries):
                rule = {}  # it is for another request
            if "with" in rule and not any(rule["with"] in json.dumps(e) for e in entries):
                rule = {}
            if "times" in rule:
                rule["times"] -= 1
                if rule["times"] <= 0:
                    rules.pop(0)
            if refusal is None and name in missing:
                refusal = ("QueueDoesNotExist" if service == "sqs" else "NotFound" if service == "sns" else "ResourceNotFoundException",
                           "The specified resource does not exist.")
            if refusal:
                status, text = 403 if "Sign" in refusal[0] or "Token" in refusal[0] else 400, error_answer(service, *refusal)
            elif "status" in rule:
                status, text = rule["status"], rule.get("raw") or error_answer(service, rule["code"], rule.get("message", ""))
            elif "raw" in rule:
                status, text = 200, rule["raw"] * rule.get("repeat", 1)
            else:
                status, text = 200, good_answer(service, entries, rule)
            if not rule.get("silent"):
                for e in entries:
                    dedup = e.get("MessageDeduplicationId")
                    e["duplicate"] = dedup is not None and dedup in seen
                    if status == 200 and "raw" not in rule and dedup and not failure(service, e, rule):
                        seen.add(dedup)
                note({"service": service, "name": name, "wall": time.time(), "status": status, "refusal": refusal and refusal[0],
                      "entries": entries, "bytes": len(body), "rule": rule,
                      "headers": dict(self.headers.items()), "body": base64.b64encode(body).decode() if len(body) < 5000 else None,
                      "authorization": self.headers.get("Authorization"),
                      "failed": [bool(failure(service, e, rule)) for e in entries]})
        time.sleep(rule.get("late", 0))
        if rule.get("hang"):
            time.sleep(rule["hang"])
        if rule.get("close") or rule.get("hang"):
            self.close_connection = True
            return
        self.answer(status, text, **rule.get("headers", {}))

    def do_GET(self):
        with lock:
            note({"name": "GET", "entries": [], "status": 404, "rule": {}})
        self.answer(404, "")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 200


# Should a fake that was killed have left a part of a line after all
if journal.tell() > 0 and (journal.seek(-1, 2), journal.read(1))[1] != b"\n":
    journal.write(b"\n")
server = Server(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
for line in sys.stdin:
    told = json.loads(line)
    with lock:
        rules[:] = told.get("rules", rules)
        missing[:] = told.get("missing", missing)
        secrets.update(told.get("secrets", {}))
        for key in told.get("forget", []):
            secrets.pop(key, None)
    print("ok", flush=True)
