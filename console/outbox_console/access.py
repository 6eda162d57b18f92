"""Which user asks, and what it may do: a proxy's header, or a password, or anyone at this machine.

A session is a signed cookie.  The key is new with each start, and nothing is stored.  What a user may
do is looked up with each request, so taking a user out of the file ends its sessions.
"""

import base64
import collections
import hashlib
import hmac
import json
import os
import secrets
import time

COOKIE, NOTICE = "outbox_console", "outbox_console_notice"
KEY = secrets.token_bytes(32)
HOURS = 12
SCRYPT = {"n": 2**15, "r": 8, "p": 1, "maxmem": 64 * 1024 * 1024}

User = collections.namedtuple("User", "name operates token can_sign_out")


def seal(purpose, value):
    """The value as text that only this process can have made."""
    body = base64.urlsafe_b64encode(json.dumps(value, ensure_ascii=False).encode()).decode()
    return body + "." + mac(purpose, body)


def mac(purpose, body):
    """The code that seal() adds."""
    return hmac.new(KEY, ("%s:%s" % (purpose, body)).encode(), hashlib.sha256).hexdigest()


def unseal(purpose, text):
    """The value of such a text, or None."""
    body, _, code = (text or "").rpartition(".")
    if not hmac.compare_digest(code.encode("utf-8", "replace"), mac(purpose, body).encode()):
        return None
    return json.loads(base64.urlsafe_b64decode(body))


def hashed(password, salt=None):
    """A password as the file has it."""
    salt = salt or secrets.token_hex(16)
    return "scrypt$%s$%s" % (salt, hashlib.scrypt(password.encode(), salt=salt.encode(), **SCRYPT).hex())


def fits(password, stored):
    """True if it is the password that was stored.  Takes as long where none was."""
    salt = stored.split("$")[1] if stored else "0" * 32
    return hmac.compare_digest(hashed(password, salt), stored or "")


def users(path):
    """The users of a password file: lines like "jane:operate:scrypt$...", in which # begins a comment."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.strip().split(":")
            if len(fields) == 3 and not line.startswith("#") and fields[1] in ("read", "operate"):
                found[fields[0]] = fields[1:]
    return found


def add_user(path, name, may, password):
    """Puts a user into the file, or another password in place of its old one.  A new file is for the group of its directory."""
    if not name or set(name) & set(":#\n\r") or may not in ("read", "operate"):
        raise ValueError("a name without : and #, and read or operate")
    lines, new, was = [], path + ".new", None
    if os.path.exists(path):
        was = os.stat(path)
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file if line.split(":")[0] != name]
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w", encoding="utf-8") as file:
        file.writelines([*lines, "%s:%s:%s\n" % (name, may, hashed(password))])
    if was:
        os.chown(new, was.st_uid, was.st_gid)
        os.chmod(new, was.st_mode & 0o777)
    elif os.geteuid() == 0:
        os.chown(new, -1, os.stat(os.path.dirname(os.path.abspath(path))).st_gid)
    os.replace(new, path)


class Access:
    """Decides with the settings."""

    def __init__(self, settings):
        self.settings = settings

    def user(self, request):
        """The User of a request and whether its cookie is to be set anew; None where it has to sign in."""
        settings, session = self.settings, unseal("session", request.cookies.get(COOKIE))
        if session and session["until"] < time.time():
            session = None
        peer = request.client.host if request.client else ""
        if settings.proxies and settings.is_proxy(peer):
            name = request.headers.get("x-forwarded-user", "").strip()
            if len(request.headers.getlist("x-forwarded-user")) != 1 or not name:
                return None, None
            return self.known(name, name in settings.operators, session, False)
        if settings.passwords:
            if not session or not session["password"]:
                return None, None
            known = users(settings.passwords).get(session["name"])
            # Another password ends the sessions of the former one.
            if not known or session["password"] != known[1][-16:]:
                return None, None
            return self.known(session["name"], known[0] == "operate", session, True)
        if settings.proxies:
            return None, None
        return self.known("local", settings.everyone == "operate", session, False)

    def known(self, name, operates, session, can_sign_out):
        """A user, with the session that it has or a new one."""
        fresh = None
        if not session or session["name"] != name:
            session = fresh = self.begin(name, "")
        return User(name, operates, mac("form", session["id"]), can_sign_out), fresh

    @staticmethod
    def begin(name, stored):
        """A new session."""
        return {"name": name, "id": secrets.token_hex(16), "until": time.time() + HOURS * 3600, "password": stored[-16:]}

    def sign_in(self, name, password):
        """A new session for this user and password, or None.  Takes a tenth of a second of a processor."""
        known = users(self.settings.passwords).get(name)
        if not fits(password, known[1] if known else None):
            return None
        return self.begin(name, known[1])

    def set_cookie(self, response, name, value, age=None):
        """A cookie that scripts and other sites do not get."""
        response.set_cookie(name, value, max_age=age, httponly=True, samesite="lax", secure=self.settings.https, path="/")


def is_foreign(request):
    """True if a form comes from a page of another site, as far as the browser says."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("origin")
    return origin is not None and origin.split("//")[-1] != request.headers.get("host")


def is_forged(request, form, user):
    """True if a form was not made for this session by a page of the console."""
    return is_foreign(request) or not hmac.compare_digest(form.get("token").encode("utf-8", "replace"), user.token.encode())
