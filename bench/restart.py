#!/usr/bin/env python3
"""How long a daemon that was killed with SIGKILL takes to be ready again: the demo pair, release binary.

    cargo build --release && python3 bench/restart.py [--times 10] [-- FLAGS OF faser serve]

Each time: `faser serve` runs (idle, or under eight streams), gets SIGKILL, is started again at once on the same port, and is
asked for /ready every 5 ms until it answers 200, and then for one token. Where the time goes is what the daemon's log says.
Standard library alone. The folder of the cost tables is the script's own, filled by the first start, which is shown as `first`.
"""
import argparse, http.client, json, os, re, signal, socket, statistics, subprocess, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, method, path, body=None, timeout=5.0):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Daemon:
    """A daemon, and what it said when."""

    def __init__(self, binary, port, flags, folder):
        self.port = port
        self.lines = []
        environment = dict(os.environ, CACHE_DIRECTORY=folder)
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            [binary, "serve", "--listen", f"127.0.0.1:{port}", *flags],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic() - self.begun, re.sub(r"^\S+Z\s+", "", line.rstrip())))

    def until_ready(self):
        while True:
            if self.process.poll() is not None:
                sys.exit(f"the daemon ended with {self.process.returncode}: {self.lines}")
            try:
                if ask(self.port, "GET", "/ready")[0] == 200:
                    return time.monotonic() - self.begun
            except OSError:
                pass
            time.sleep(0.005)

    def processor_time(self):
        """Of all its threads so far, in seconds: what does not depend on who else uses the machine."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def first_token(self):
        body = json.dumps({"prompt": "Returns the number of", "max_tokens": 1, "temperature": 0})
        status, text = ask(self.port, "POST", "/v1/completions", body, 30)
        assert status == 200, text
        return time.monotonic() - self.begun

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def said(self, part):
        return [line for _, line in self.lines if part in line]


def load(port, stop):
    """One client: streams one after the other, whatever happens to them."""
    body = json.dumps({"prompt": "# Ownership\n", "max_tokens": 400, "temperature": 0.8, "stream": True})
    while not stop.is_set():
        try:
            ask(port, "POST", "/v1/completions", body, 30)
        except (OSError, http.client.HTTPException):
            time.sleep(0.01)


def running(port):
    text = ask(port, "GET", "/metrics")[1].decode()
    found = re.search(r"^faser_requests_running (\S+)$", text, re.M)
    return float(found.group(1)) if found else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/faser"))
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        daemon = Daemon(args.binary, port, args.flags, folder)
        print(f"first start: ready after {daemon.until_ready():.3f} s; {daemon.said('cost tables')}")
        for loaded in (False, True):
            stop = threading.Event()
            # They go on while the daemon is away: it comes back under load.
            clients = [threading.Thread(target=load, args=(port, stop), daemon=True) for _ in range(8 * loaded)]
            [client.start() for client in clients]
            ready, token, busy = [], [], []
            for _ in range(args.times):
                while loaded and running(port) < 4:
                    time.sleep(0.01)
                daemon.kill()
                daemon = Daemon(args.binary, port, args.flags, folder)
                ready.append(daemon.until_ready())
                busy.append(daemon.processor_time())
                token.append(daemon.first_token())
                assert daemon.said("read from"), daemon.lines
            stop.set()
            [client.join() for client in clients]
            name = "under 8 streams" if loaded else "idle"
            for what, times in (("ready", ready), ("first token", token), ("ready, processor time", busy)):
                print(f"{name}: {what} again after {statistics.median(times):.3f} s in the median, {max(times):.3f} s at worst;"
                      f" all: {' '.join(f'{t:.3f}' for t in times)}")
        print("log of the last start:")
        for at, line in [(at, line) for at, line in daemon.lines if "request{" not in line]:
            print(f"  {at:6.3f} s {line[:160]}")
        daemon.kill()


if __name__ == "__main__":
    main()
