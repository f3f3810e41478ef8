"""A mail server (aiosmtpd) and an HTTP server (http.server) that print what they get, one JSON object a line."""
import argparse, json, ssl, threading, time
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

parse = argparse.ArgumentParser()
parse.add_argument("--smtp", type=int, required=True, help="port that mail comes to")
parse.add_argument("--refusals", type=int, default=0, help="so many first requests of each kind fail in passing")
parse.add_argument("--cert", help="with --key: HTTPS, and STARTTLS before anything else")
parse.add_argument("--key")
parse.add_argument("--most", type=int, default=1 << 30, help="largest body of a request")
parse.add_argument("--slow", type=float, default=0, help="the first request is answered after so many seconds")
args = parse.parse_args()
left = {"smtp": args.refusals, "http": args.refusals, "slow": 1 if args.slow else 0}
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
            login=(session.auth_data or b"").decode(), text=parts[0].get_content(), attachment=json.loads(parts[1].get_content()),
            secure=session.ssl is not None)
        return "250 taken"


def login(server, session, envelope, mechanism, data):
    fine = data.login == b"gateway" and data.password == b"s3cret"
    return AuthResult(success=fine, auth_data=data.login)


class Hook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if refuse("slow"):
            say(kind="slow")
            time.sleep(args.slow)
        status = 503 if refuse("http") else 413 if len(body) > args.most else 204
        say(kind="http", refused=status != 204, path=self.path, token=self.headers["authorization"], key=self.headers["idempotency-key"],
            type=self.headers["content-type"], body=body.decode())
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


tls = None
if args.cert:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(args.cert, args.key)
mail = Controller(Mail(), hostname="127.0.0.1", port=args.smtp, ready_timeout=60, authenticator=login, auth_require_tls=bool(tls),
                  tls_context=tls, require_starttls=bool(tls))
mail.start()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def get_request(self):
        # A handshake of its own in each connection's thread, so that a client that gives up stops nobody else.
        connection, address = super().get_request()
        return (tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) if tls else connection), address

    def handle_error(self, request, client_address):
        say(kind="broken")


http = Server(("127.0.0.1", 0), Hook)
say(kind="ready", http=http.server_address[1])
http.serve_forever()
