"""A mail server (aiosmtpd) and an HTTP server (http.server) that print what they get, one JSON object a line.

usage: alarm_receivers.py REFUSALS PORT   the first REFUSALS requests of each kind fail in passing; mail comes to PORT"""
import json, sys, threading
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

refusals, port = int(sys.argv[1]), int(sys.argv[2])
left = {"smtp": refusals, "http": refusals}
lock = threading.Lock()


def say(**what):
    with lock:
        print(json.dumps(what), flush=True)


def refuse(kind):
    with lock:
        left[kind] -= 1
        return left[kind] >= 0


class Mail:
    async def handle_DATA(self, server, session, envelope):
        if refuse("smtp"):
            say(kind="smtp", refused=True)
            return "451 try again later"
        mail = message_from_bytes(envelope.content, policy=policy.default)
        parts = [p for p in mail.walk() if not p.is_multipart()]
        say(kind="smtp", sender=envelope.mail_from, to=envelope.rcpt_tos, subject=mail["subject"], id=mail["message-id"],
            login=(session.auth_data or b"").decode(), text=parts[0].get_content(), attachment=json.loads(parts[1].get_content()))
        return "250 taken"


def login(server, session, envelope, mechanism, data):
    fine = data.login == b"gateway" and data.password == b"s3cret"
    return AuthResult(success=fine, auth_data=data.login)


class Hook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        busy = refuse("http")
        say(kind="http", refused=busy, path=self.path, token=self.headers["authorization"], key=self.headers["idempotency-key"],
            type=self.headers["content-type"], body=body.decode())
        self.send_response(503 if busy else 204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


mail = Controller(Mail(), hostname="127.0.0.1", port=port, ready_timeout=60, authenticator=login, auth_require_tls=False)
mail.start()
http = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
say(kind="ready", http=http.server_address[1])
http.serve_forever()
