"""Judges tokens that let a client in to Amazon MSK, as a broker of it would."""
import base64
import calendar
import hashlib
import hmac
import re
import time
import urllib.parse


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def read(token):
    """The parts of a token as a dictionary of its parameters, and "host".  It may raise anything."""
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token), "no base64url"
    url = urllib.parse.urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert url.scheme == "https" and url.path == "/" and not url.fragment, "no URL of a request"
    pairs = urllib.parse.parse_qsl(url.query, strict_parsing=True)
    assert len(dict(pairs)) == len(pairs), "a parameter twice"
    return {**dict(pairs), "host": url.netloc}


def canonical(parts):
    """The request that was signed"""
    signed = {k: v for k, v in parts.items() if k == "Action" or (k.startswith("X-Amz-") and k != "X-Amz-Signature")}
    quote = lambda text: urllib.parse.quote(text, safe="-_.~")
    return "\n".join(["GET", "/", "&".join("%s=%s" % (quote(k), quote(signed[k])) for k in sorted(signed)),
                      "host:" + parts["host"], "", "host", hashlib.sha256(b"").hexdigest()])


def judge(token, secrets, region, now=None):
    """What is wrong, and the parts as far as they could be read.  '' is good.

    secrets: {access key id: [secret access key, session token or None]}
    """
    try:
        parts = read(token)
        key, day, its_region, service, last = parts["X-Amz-Credential"].split("/")
        date, expires = parts["X-Amz-Date"], int(parts["X-Amz-Expires"])
        begins = calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
    except Exception as error:  # pylint: disable=broad-except
        return "no token of MSK: %s" % error, {}
    parts.update(key=key, region=its_region)
    now = time.time() if now is None else now
    if key not in secrets:
        return "the key is not known", parts
    secret, session = secrets[key]
    if parts.get("X-Amz-Security-Token") != session:
        return "the session token is another", parts
    text = "\n".join(["AWS4-HMAC-SHA256", date, "/".join((day, its_region, service, last)),
                      hashlib.sha256(canonical(parts).encode()).hexdigest()])
    signer = mac(mac(mac(mac(b"AWS4" + secret.encode(), day), its_region), service), last)
    if hmac.new(signer, text.encode(), hashlib.sha256).hexdigest() != parts["X-Amz-Signature"]:
        return "the signature is wrong", parts
    if (its_region != region or parts["host"] != "kafka.%s.amazonaws.com" % region or service != "kafka-cluster"
            or last != "aws4_request" or parts["Action"] != "kafka-cluster:Connect" or not date.startswith(day)):
        return "the token is for something else", parts
    if expires > 900 or not begins - 60 <= now < begins + expires or "User-Agent" not in parts:
        return "the token is not valid now", parts
    return "", parts
