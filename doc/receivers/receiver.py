import base64
import json
import os
import sqlite3
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from standardwebhooks.webhooks import Webhook

webhook = Webhook(os.environ["WEBHOOK_SECRET"])


def handle(event_id, key, event):
    """The work. When it raises, the event comes again."""
    if "data_base64" in event:
        what = f'{len(base64.b64decode(event["data_base64"]))} bytes'
    else:
        what = json.dumps(event["data"])
    with open("events.txt", "a", encoding="utf-8") as file:
        file.write(f"{event_id}\t{event['type']}\t{key}\t{what}\n")


def once(event_id, key, event):
    with sqlite3.connect("done.db") as db:  # one transaction: when the work raises, it rolls back
        db.execute("CREATE TABLE IF NOT EXISTS done (id text PRIMARY KEY)")
        if db.execute("INSERT INTO done VALUES (?) ON CONFLICT DO NOTHING", [event_id]).rowcount:
            handle(event_id, key, event)


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            event = webhook.verify(body, self.headers)
        except Exception:
            self.answer(401)
            return
        try:
            once(self.headers["webhook-id"], unquote(self.headers.get("outbox-key", "")), event)
        except Exception:
            traceback.print_exc()
            self.answer(500)
        else:
            self.answer(204)

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Receiver).serve_forever()
