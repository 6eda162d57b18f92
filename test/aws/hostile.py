#!/usr/bin/env python3
"""Services of AWS that are hostile or broken, each in another way, for test/t/aws/hostile_services.pl.

How it is called is in test/tools/hostile_server.py.  A name begins with the service that is spoken to,
and whether by TLS.  The journal also gets the number "n" in the payload of each event that a
server has accepted, by its answer or before one that is lost, and requests that should not be.
"""

import base64
import gzip
import json
import os
import random
import re
import sys
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from hostile_server import Server, closed, endless, main, reset, silent, slowly  # noqa: E402

BEHAVIOURS = {}
MIB = 1024 * 1024


def on(service, name, make, status="200 OK", headers=(), accepts=lambda n: False):
    """Answers with the body that make(entries) returns, where accepts(n) tells which are accepted."""
    BEHAVIOURS["%s: %s" % (service, name)] = (
        lambda s, e: s.sendall(http(make(e), status, headers)), accepts)


def raw(service, name, talk, accepts=lambda n: False):
    """Sends what it wants: talk(connection, entries)"""
    BEHAVIOURS["%s: %s" % (service, name)] = (talk, accepts)


def to_bytes(body):
    return body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()


def http(body, status="200 OK", headers=(), length=True):
    body = to_bytes(body)
    lines = ["HTTP/1.1 " + status, *headers]
    if length:
        lines.append("Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Entry:
    """An event of a request: its place, and the number in its payload"""

    def __init__(self, place, text):
        self.id = str(place)
        self.n = int(re.search(r'"n": (\d+)', text).group(1))


def entries_of(body):
    text = body.decode()
    if text.startswith("Action="):
        form = dict(urllib.parse.parse_qsl(text, strict_parsing=True))
        bodies = [v for k, v in form.items() if k.endswith(".Message")]
    else:
        request = json.loads(text)
        bodies = [e.get("MessageBody") or e.get("Detail") or base64.b64decode(e["Data"]).decode()
                  for e in request.get("Entries") or request["Records"]]
    return [Entry(i, b) for i, b in enumerate(bodies)]


# ----------------------------------------------------------------------------- answers

def odd(n):
    return n % 2 == 1


def every(_):
    return True


def good(entries):
    return {"Successful": [{"Id": e.id, "MessageId": "m"} for e in entries], "Failed": []}


def stored(entries):
    return [{"SequenceNumber": "1%s" % e.id, "ShardId": "s"} for e in entries]


def sns(members, before="", after=""):
    return (before + "<PublishBatchResponse><PublishBatchResult><Failed/><Successful>" + members
            + "</Successful></PublishBatchResult></PublishBatchResponse>" + after)


def sns_members(entries):
    return "".join("<member><MessageId>m</MessageId><Id>%s</Id></member>" % e.id for e in entries)


def failed(entries, **said):
    return {"Successful": [], "Failed": [{"Id": e.id, **said} for e in entries]}


def error(code, words=""):
    return {"__type": "com.amazonaws.sqs#" + code, "message": words}


# -------------------------------------------------------------------------- behaviours

on("sqs", "answers well", good, accepts=every)
on("sns", "answers well", lambda e: sns(sns_members(e)), accepts=every)
on("events", "answers well", lambda e: {"FailedEntryCount": 0, "Entries": [{"EventId": "e"} for _ in e]}, accepts=every)
on("kinesis", "answers well", lambda e: {"FailedRecordCount": 0, "Records": stored(e)}, accepts=every)

# Bytes and connections
raw("sqs", "says nothing", silent)
raw("sqs", "closes", closed)
raw("sqs", "resets", lambda s, e: reset(s))
raw("sqs", "accepts, and closes", closed, every)
raw("sqs", "accepts, and resets in the middle of the answer", lambda s, e: (s.sendall(http(good(e))[:-3]), reset(s)), every)
raw("sqs", "sends garbage", lambda s, e: s.sendall(random.Random(1).randbytes(5000)))
raw("sqs", "sends zeros without end", lambda s, e: endless(bytes(8192))(s))
raw("sqs", "speaks SSH", lambda s, e: (s.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), closed()))
raw("https sqs", "says nothing", silent)
raw("https sqs", "sends garbage", lambda s, e: s.sendall(random.Random(1).randbytes(5000)))
raw("sqs", "sends a byte now and then", lambda s, e: slowly(http(good(e)), s, 0.5))
raw("sqs", "sends a good answer byte by byte", lambda s, e: slowly(http(good(e)), s, 0.001), every)
raw("sqs", "stops in the middle of the headers", lambda s, e: (s.sendall(http(good(e))[:20]), silent()))
raw("sqs", "stops in the middle of the answer", lambda s, e: (s.sendall(http(good(e))[:-3]), silent()))
raw("sqs", "closes in the middle of the answer", lambda s, e: (s.sendall(http(good(e))[:-3]), closed()))
raw("sqs", "closes in the middle of an answer of unknown length",
    lambda s, e: (s.sendall(http(good(e), length=False)[:-3]), closed()))
raw("sqs", "closes in the middle of a chunk", lambda s, e: (s.sendall(
    http(b"100\r\n" + to_bytes(good(e)), headers=("Transfer-Encoding: chunked",), length=False)), closed()))

# Headers, lengths and chunks
raw("sqs", "sends headers without end", lambda s, e: (s.sendall(b"HTTP/1.1 200 OK\r\n"), endless(b"X-A: %s\r\n" % (b"b" * 1000), 0)(s)))
raw("sqs", "sends a header without end", lambda s, e: (s.sendall(b"HTTP/1.1 200 OK\r\nX-A: "), endless(b"b" * 8192, 0)(s)))
raw("sqs", "sends 100 Continue without end", lambda s, e: endless(b"HTTP/1.1 100 Continue\r\n\r\n" * 10, 0)(s))
raw("sqs", "sends trailers without end", lambda s, e: (s.sendall(http(
    b"", headers=("Transfer-Encoding: chunked",), length=False) + b"0\r\n"), endless(b"X-A: %s\r\n" % (b"b" * 1000), 0)(s)))
raw("sqs", "sends a body without end", lambda s, e: (s.sendall(http(b"", length=False)), endless(b" " * 65536)(s)))
raw("sqs", "sends chunks without end", lambda s, e: (s.sendall(
    http(b"", headers=("Transfer-Encoding: chunked",), length=False)), endless(b"1\r\n \r\n" * 1000)(s)))
on("sqs", "pads its answer to 2 MiB", lambda e: json.dumps(good(e)) + " " * 2 * MIB)
on("sqs", "pads its answer to almost 256 kB", lambda e: json.dumps(good(e)) + " " * (MIB // 4 - 2000), accepts=every)
raw("sqs", "has a length that is none", lambda s, e: s.sendall(http(good(e), headers=("Content-Length: many",), length=False)))
raw("sqs", "has a length below zero", lambda s, e: s.sendall(http(good(e), headers=("Content-Length: -9",), length=False)))
raw("sqs", "has a length of 2^64", lambda s, e: s.sendall(http(good(e), headers=("Content-Length: 18446744073709551616",), length=False)))
raw("sqs", "has a length that is too short", lambda s, e: s.sendall(http(good(e), headers=("Content-Length: 3",), length=False)))
raw("sqs", "has a chunk whose length is none", lambda s, e: s.sendall(
    http(b"zz\r\n{}\r\n0\r\n\r\n", headers=("Transfer-Encoding: chunked",), length=False)))
raw("sqs", "has a chunk of 2^64 - 1 bytes", lambda s, e: s.sendall(
    http(b"ffffffffffffffff\r\n{}", headers=("Transfer-Encoding: chunked",), length=False)))
raw("sqs", "codes its chunks", lambda s, e: s.sendall(
    http(b"", headers=("Transfer-Encoding: gzip, chunked",), length=False) + b"0\r\n\r\n"))
on("sqs", "has a zero in a header", good, headers=("X-A: a\0b",))
on("sqs", "calls its answer a picture", good, headers=("Content-Type: image/png",), accepts=every)
on("sqs", "compresses its answer", lambda e: gzip.compress(to_bytes(good(e))), headers=("Content-Encoding: gzip",))

# Status
on("sqs", "has the status 999", good, "999 What")
raw("sqs", "speaks HTTP/7.3", lambda s, e: s.sendall(http(good(e)).replace(b"HTTP/1.1", b"HTTP/7.3")))
raw("sqs", "changes the protocol", lambda s, e: (s.sendall(http(b"", "101 Switching Protocols", ("Upgrade: h2c", "Connection: Upgrade"), False)), closed()))
on("sqs", "leads to itself", good, "307 Temporary Redirect", ("Location: /followed",))
on("sqs", "leads elsewhere", good, "301 Moved Permanently", ("Location: http://169.254.169.254/latest/meta-data",))
on("sqs", "asks for a password", lambda e: b"", "401 Unauthorized", ('WWW-Authenticate: Basic realm="a"', 'WWW-Authenticate: Digest realm="a", nonce="b"'))
on("sqs", "is a proxy that asks for a password", lambda e: b"", "407 Proxy Authentication Required", ('Proxy-Authenticate: Basic realm="a"',))
on("sqs", "wants to be left alone for 30,000 years", lambda e: error("Unavailable"), "503 Unavailable", ("Retry-After: 1000000000000",))
on("sqs", "refuses in words without a code", lambda e: {"message": "Forbidden by a firewall"}, "403 Forbidden")
on("sqs", "refuses in words that are no text", lambda e: b'{"__type":"a#Odd\xff\xfe%s%n","message":"\xc3(\\ud800\\u0000\\u001b[31m%s%n\'; DROP"}', "400 Bad Request")
on("sqs", "refuses in 100,000 letters", lambda e: error("C" * 100000, "w" * 100000), "403 Forbidden")
on("sqs", "finds everything too large", lambda e: b"", "413 Payload Too Large")

# Good status, bad answers
on("sqs", "has a page for everything", lambda e: "<html>Sign in</html>")
on("sqs", "has nothing to say", lambda e: b"")
on("sqs", "has no content", lambda e: b"", "204 No Content")
on("sqs", "has an error with the status 200", lambda e: error("AccessDenied", "no"))
on("sqs", "has an error and successes", lambda e: {**good(e), **error("AccessDenied", "neither")})
on("sqs", "answers 50,000 levels deep", lambda e: '{"a":' * 50000)
on("sqs", "is deep within its lists", lambda e: '{"Successful":' + "[" * 100000 + "]" * 100000 + "}")
on("sqs", "names 10,000 others", lambda e: {"Successful": [{"Id": str(i)} for i in range(10000)]})
on("sqs", "names unknown ids", lambda e: {"Successful": [{"Id": str(900 + i)} for i in range(len(e))]})
on("sqs", "names ids that are no numbers", lambda e: {"Successful": [{"Id": x} for x in ("-1", "0x0", " 0", "1e0", None, {"0": 0}, ["0"])]})
on("sqs", "names each id twice", lambda e: {"Successful": good(e)["Successful"] * 2})
on("sqs", "names each as stored and failed", lambda e: {**good(e), "Failed": [{"Id": x.id, "Code": "C"} for x in e]})
on("sqs", "has successes that are no objects", lambda e: {"Successful": [x.id for x in e]})
on("sqs", "leaves out every other one", lambda e: good([x for x in e if odd(x.n)]), accepts=odd)
on("sqs", "names none", lambda e: {"Successful": []})
on("sqs", "fails all without a word", lambda e: failed(e, SenderFault=False))
on("sqs", "fails every other one for its sender", lambda e: {
    **good([x for x in e if odd(x.n)]), **{"Failed": failed([x for x in e if not odd(x.n)], SenderFault=True, Code="Bad")["Failed"]}}, accepts=odd)

on("kinesis", "leaves out the last record", lambda e: {"Records": stored(e)[:-1]})
on("kinesis", "has a record more", lambda e: {"Records": stored(e) + stored(e)[:1]})
on("kinesis", "has null and then records", lambda e: {"Records": [None] + stored(e)[:-1]})
on("kinesis", "counts a failure that no record has", lambda e: {"FailedRecordCount": 1, "Records": stored(e)})
on("kinesis", "counts no failure, and has some", lambda e: {"FailedRecordCount": 0, "Records": [{"ErrorCode": "E"} for _ in e]})
on("kinesis", "has records that say nothing", lambda e: {"Records": [{} for _ in e]})
on("kinesis", "has empty numbers", lambda e: {"Records": [{"SequenceNumber": ""} for _ in e]})
on("kinesis", "has a number and an error", lambda e: {"Records": [{"SequenceNumber": "1", "ErrorCode": "InternalFailure", "ErrorMessage": "both"} for _ in e]})
on("kinesis", "fails every other one", lambda e: {"Records": [
    stored([x])[0] if odd(x.n) else {"ErrorCode": "InternalFailure", "ErrorMessage": "even"} for x in e]}, accepts=odd)
on("events", "has entries in entries", lambda e: {"FailedEntryCount": 0, "Entries": [[{"EventId": "e"}] for _ in e]})
on("events", "has its entries twice", lambda e: '{"Entries":[{"EventId":"e"}],"Entries":%s}' % json.dumps([{"EventId": "e"}] * (len(e) - 1)))

on("sns", "has an error before the answer", lambda e: sns(sns_members(e), "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"))
on("sns", "has a page before the answer", lambda e: sns(sns_members(e), "<html/>"))
on("sns", "has entities that grow", lambda e: sns(
    sns_members(e), '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>'))
on("sns", "is not closed", lambda e: sns(sns_members(e))[:-30])
on("sns", "answers 80,000 levels deep", lambda e: "<PublishBatchResponse>" + "<a>" * 80000)
on("sns", "has a name of 100,000 letters", lambda e: sns("<%s/>" % ("a" * 100000)))
on("sns", "answers in JSON", good)
on("sns", "leaves out every other one", lambda e: sns(sns_members([x for x in e if odd(x.n)])), accepts=odd)


# ----------------------------------------------------------------------------- serving

class Hostile(Server):
    def talk(self, connection):
        behave, accepts = BEHAVIOURS[self.name]
        if self.name.startswith("https"):
            self.note()
            self.read(connection, 1)
            behave(connection, [])
            return
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.read(connection, 1)
            text = head.decode()
            if not text.startswith("POST / HTTP/1.1\r\n") or "\r\nAuthorization: AWS4-HMAC-SHA256 " not in text:
                self.note("odd", text.split("\r\n")[0])
            length = re.search(r"(?i)\r\ncontent-length: (\d+)\r\n", text)
            if "\r\nExpect: " in text:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            entries = entries_of(self.read(connection, int(length.group(1))))
            self.note()
            for entry in entries:
                if accepts(entry.n):
                    self.note("accepted", str(entry.n))
            behave(connection, entries)


if __name__ == "__main__":
    main(Hostile, BEHAVIOURS.keys())
