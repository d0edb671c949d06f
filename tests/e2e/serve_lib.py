"""What the tests of `weft serve` share: a server of their own, requests, checks. Standard library only."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

failures = []


def check(what, ok, detail=""):
    """Notes a failure and goes on, so that one run shows all of them."""
    if not ok:
        failures.append(what)
        print("FAILED: %s %s" % (what, str(detail)[:600]), flush=True)


def same(what, got, wanted):
    check(what, got == wanted, "got %r, wanted %r" % (got, wanted))


def finish(summary):
    if failures:
        print("%d checks failed" % len(failures))
        sys.exit(1)
    print(summary)


def sanitized(weft):
    """Whether it was built with a sanitizer, and is ten times slower."""
    with open(weft, "rb") as file:
        return re.search(rb"__[at]san_init", file.read()) is not None


class Server:
    """`weft serve` on a free port; with-statement: ends it by SIGTERM and checks its exit status."""

    def __init__(self, weft, model, *options, ready=True):
        self.log_file = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([weft, "serve", model, "--port", "0", *options],
                                        stderr=self.log_file, stdout=self.log_file)
        self.port = None
        self.exit_status = 0  # what is wanted
        self.patience = 300 if sanitized(weft) else 60  # seconds a request may take
        deadline = time.time() + 120
        while self.port is None and time.time() < deadline and self.process.poll() is None:
            found = re.search(r"http://\S+:(\d+)/", self.log())
            self.port = int(found.group(1)) if found else None
            time.sleep(0.01)
        if self.port is None:
            raise RuntimeError("no server: " + self.log())
        while ready and self.get("/health")[0] != 200:
            if time.time() > deadline or self.process.poll() is not None:
                raise RuntimeError("never ready: " + self.log())
            time.sleep(0.02)

    def log(self):
        with open(self.log_file.name, encoding="utf-8") as file:
            return file.read()

    def log_of_all(self):
        """The log with a line for every answer so far: a line comes after its answer, of the same thread."""
        self.get("/ping")
        return self.log()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = "killed: it did not drain"
        same("exit status", status, self.exit_status)
        if status != self.exit_status:
            print(self.log()[-3000:])

    def request(self, method, path, body=None, headers=None, timeout=None):
        """Returns status, headers, bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout or self.patience)
        with contextlib.closing(connection):
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def get(self, path, **more):
        status, _, body = self.request("GET", path, **more)
        return status, body

    def json(self, method, path, body=None, **more):
        status, _, text = self.request(method, path, body, **more)
        return status, json.loads(text)

    def post(self, path, body, **more):
        return self.json("POST", path, body, **more)

    def chat(self, question, **fields):
        fields.setdefault("temperature", 0)
        return self.post("/v1/chat/completions",
                         {"messages": [{"role": "user", "content": question}], **fields})

    def events(self, path, body):
        """The events of a stream as JSON objects; checks the framing byte by byte."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        if status != 200:
            raise AssertionError("stream: %d %s" % (status, text[:300]))
        same("stream type", headers["content-type"], "text/event-stream")
        check("stream has LF only", b"\r" not in text)
        check("stream ends", text.endswith(b"data: [DONE]\n\n"), text[-100:])
        lines = text.decode().split("\n\n")
        check("one line an event", all(l.startswith("data: ") and "\n" not in l for l in lines[:-1]))
        return [json.loads(line[6:]) for line in lines[:-2]]

    def raw(self, data, timeout=10, shut=False):
        """Sends bytes as they are and reads until the end, or until nothing comes for a while."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as sock:
            sock.sendall(data)
            if shut:
                sock.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(socket.timeout, ConnectionError):
                while True:
                    piece = sock.recv(65536)
                    if not piece:
                        break
                    answer += piece
            return answer

    def metric(self, name):
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def wait_idle(self, seconds=30):
        """All sequences gone and all their pages given back."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            busy = [self.metric("weft:num_requests_running"),
                    self.metric("weft:num_requests_waiting"),
                    self.metric("weft:kv_cache_usage_perc")]
            if busy == [0, 0, 0]:
                return True
            time.sleep(0.05)
        return False

    def resident_kib(self):
        with open("/proc/%d/status" % self.process.pid, encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))


def facts(root):
    with open(os.path.join(root, "tests/golden/atlas-facts.json"), encoding="utf-8") as file:
        return json.load(file)
