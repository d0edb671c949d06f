"""HTTP as bytes: framing, limits, clients that leave, stall or flood; queue, time-outs, draining.
serve_wire.py WEFT ROOT"""
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time

from serve_lib import Server, check, finish, same

LONG = {"prompt": "The", "max_tokens": 900, "ignore_eos": True, "temperature": 0}


def post(body, *headers, version="1.1", path="/v1/completions"):
    text = json.dumps(body).encode()
    lines = ["POST %s HTTP/%s" % (path, version), "Host: x", "Content-Length: %d" % len(text),
             *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text


def statuses(answer):
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", answer)]


def test_framing(s):
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = s.raw(get + get + b"\r\n" + last)
    same("pipelined", statuses(answer), [200, 200, 200])
    check("in order", answer.rindex(b"version") > answer.rindex(b'"ok"'))
    small = {"prompt": "x", "max_tokens": 1}
    same("pipelined work", statuses(s.raw(post(small) + post(small) + last)), [200, 200, 200])
    body = json.dumps(small).encode()
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    pieces = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7])
                      for i in range(0, len(body), 7))
    same("chunked", statuses(s.raw(chunked + pieces + b"0\r\nTrailer: 1\r\n\r\n")), [200])
    answer = s.raw(b"GET /health HTTP/1.0\r\n\r\n")
    check("HTTP/1.0 closes", answer.endswith(b'{"status":"ok"}') and b"close" in answer, answer)
    answer = s.raw(post({**small, "stream": True}, version="1.0"))
    check("HTTP/1.0 stream", answer.endswith(b"data: [DONE]\n\n") and b"chunked" not in answer, answer)
    with socket.create_connection(("127.0.0.1", s.port), 10) as sock:
        head, _, rest = post(small, "Expect: 100-continue", "Connection: close").partition(b"\r\n\r\n")
        sock.sendall(head + b"\r\n\r\n")
        same("100-continue", sock.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
        sock.sendall(rest)
        check("then the answer", b" 200 OK" in sock.recv(10000))
    # A request that trickles in, byte by byte.
    with socket.create_connection(("127.0.0.1", s.port), 10) as sock:
        for byte in post(small, "Connection: close"):
            sock.sendall(bytes([byte]))
        check("trickle", b" 200 OK" in sock.recv(10000))


def test_refusals(s):
    for what, data, status in (
            ("both lengths", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
                             b"Transfer-Encoding: chunked\r\n\r\n{}", 400),
            ("two lengths", b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", 400),
            ("negative length", b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
            ("huge length", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n", 413),
            ("over the cap", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 67108865\r\n\r\n", 413),
            ("bad chunk", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
            ("chunk ended by LF", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n", 400),
            ("gzip", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
            ("no colon", b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
            ("folded", b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
            ("no host", b"GET /health HTTP/1.1\r\n\r\n", 400),
            ("two hosts", b"GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
            ("blank before colon", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
            ("bare LF", b"GET / HTTP/1.1\nHost: x\r\n\r\n", 400),
            ("NUL", b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n", 400),
            ("not HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
            ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\n", 505),
            ("bad escape", b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("NUL in the path", b"GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("expectation", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: x\r\n\r\n", 417),
            ("long head", b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 70000 + b"\r\n\r\n", 431),
            ("long line", b"GET /" + b"x" * 70000, 431),
            ("many headers", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
            ("method", b"BREW /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405)):
        answer = s.raw(data)
        same(what, statuses(answer), [status])
        head, _, body = answer.partition(b"\r\n\r\n")
        check(what + ": JSON", b"application/json" in head and "error" in json.loads(body), answer)
        check(what + ": closes", b"Connection: close" in head, head)
    same("a whole address", statuses(s.raw(b"GET http://x/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), [200])
    check("the host is named", b"one Host header" in s.raw(b"GET /health HTTP/1.1\r\n\r\n"))
    check("unknown method", b"/ does not work with this method" in s.raw(b"BREW / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    same("unknown path before the body", statuses(s.raw(
        b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\nabc")), [404])
    big = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", s.port), 30) as sock:
        sock.sendall(big)
        answer = b""
        with contextlib.suppress(OSError):
            for _ in range(70):
                sock.sendall(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
        with contextlib.suppress(OSError):
            answer = sock.recv(10000)
        check("chunked over the cap", b" 413 " in answer, answer[:200])
    same("alive", s.get("/health")[0], 200)


def test_stalls(s):
    """408 for what does not arrive; all at once, since each takes half a minute."""
    got = {}

    def stall(name, data):
        got[name] = s.raw(data, timeout=50)

    cases = {"head": b"GET /health HTTP/1.1\r\nHost:", "chunk":
             b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
             "body": post(LONG)[:-3]}
    threads = [threading.Thread(target=stall, args=case) for case in cases.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in cases:
        same("stalled " + name, statuses(got[name]), [408])


def streaming(s, body=LONG, path="/v1/completions"):
    """A socket whose stream has begun."""
    sock = socket.create_connection(("127.0.0.1", s.port), 30)
    sock.sendall(post({**body, "stream": True}, path=path))
    sock.recv(1)
    return sock


def generated(s):
    return s.metric("weft:generation_tokens_total")


def test_leavers(s):
    def reset(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()

    for name, leave in (("close", lambda k: k.close()), ("reset", reset),
                        ("half-close", lambda k: k.shutdown(socket.SHUT_WR))):
        before = generated(s)
        sock = streaming(s)
        leave(sock)
        check(name + " is noticed", s.wait_idle(5))
        check(name + " stops the work", generated(s) - before < 800, generated(s) - before)
        sock.close()
    # Whole answers are noticed, too, while they wait.
    before = generated(s)
    with socket.create_connection(("127.0.0.1", s.port)) as sock:
        sock.sendall(post(LONG))
        time.sleep(0.1)
    check("a waiting client's leaving is noticed", s.wait_idle(5))
    check("and stops the work", generated(s) - before < 800, generated(s) - before)
    check("counted", s.metric("weft:disconnects_total") >= 4)


def test_blocked_reader(s):
    """Reads nothing: its stream is given up once 1 MiB waits; others go on."""
    many = {**LONG, "prompt": ["The"] * 30, "n": 2, "logprobs": 20, "max_tokens": 500}
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", s.port))
    sock.sendall(post({**many, "stream": True}))
    time.sleep(0.5)
    before = generated(s)
    same("others go on", s.chat("What is the capital of France?")[1]["choices"][0]["message"]
         ["content"], "The capital of France is Paris.")
    check("the blocked one is given up", s.wait_idle(200))
    check("early", generated(s) - before < 29000, generated(s) - before)
    sock.close()
    # Too much sent ahead ends the connection after the answer, not the server's memory.
    before = s.resident_kib()
    with socket.create_connection(("127.0.0.1", s.port), 30) as sock, \
            contextlib.suppress(OSError):
        sock.sendall(post({**LONG, "max_tokens": 200}))
        for _ in range(200):
            sock.sendall(b"x" * 0x100000)
    check("flood", s.resident_kib() - before < 64 << 10, s.resident_kib() - before)
    # So do requests sent ahead whose answers nobody reads; who reads late gets all of them.
    with socket.create_connection(("127.0.0.1", s.port), 1) as sock:
        with contextlib.suppress(OSError):
            for _ in range(200):
                sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        check("unread answers", s.resident_kib() - before < 64 << 10, s.resident_kib() - before)
    with socket.create_connection(("127.0.0.1", s.port), 30) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 499 + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.5)
        answer = b""
        while piece := sock.recv(1 << 20):
            answer += piece
    same("answers read late", answer.count(b"HTTP/1.1 200 OK\r\n"), 500)
    # So does who lets a large one wait, though the connection closes after it.
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        sock.settimeout(30)
        sock.connect(("127.0.0.1", s.port))
        sock.sendall(post({"tokens": [500] * 1000000}, "Connection: close", path="/detokenize"))
        time.sleep(4)
        answer = b""
        while piece := sock.recv(1 << 20):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    same("a large answer read late", b"\r\nContent-Length: %d" % len(body) in head, True)
    check("idle after it", s.wait_idle(30))


def test_large_bodies(s):
    """What takes seconds to read keeps nobody else waiting; whoever sent it may leave."""
    members = '{"prompt": "a", "max_tokens": 1, "x": [%s]}' % ",".join(['{"a": "\\u00e9"}'] * 500000)
    status = {}

    def ask(name, path, body):
        status[name] = s.request("POST", path, body)[0]

    asks = [threading.Thread(target=ask, args=one) for one in (
        ("members", "/v1/completions", members), ("text", "/v1/completions", '{"prompt": "%s"}' % ("a " * 20000000)),
        ("schema", "/v1/completions", json.dumps({"prompt": "a", "response_format": {
            "type": "json_schema", "json_schema": {"schema": {"const": "x" * 40000000}}}})),
        ("tokens", "/detokenize", '{"tokens": [%s]}' % ",".join(["500"] * 1000000)))]
    for thread in asks:
        thread.start()
    sock = socket.create_connection(("127.0.0.1", s.port), 10)
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(members) + members.encode())
    time.sleep(0.2)
    sock.close()
    slowest = 0
    while any(thread.is_alive() for thread in asks):
        start = time.time()
        same("health while bodies are read", s.get("/health")[0], 200)
        slowest = max(slowest, time.time() - start)
        time.sleep(0.02)
    same("statuses", status, {"members": 200, "text": 400, "schema": 400, "tokens": 200})
    check("nobody waits", slowest < 1, slowest)
    same("an id of 1 MB", s.request("POST", "/abort_request", '{"rid": "%s"}' % ("x" * 1000000))[0], 413)
    same("too many values", s.request("POST", "/v1/completions", '{"prompt": "a", "x": {%s}}' %
                                      ",".join('"%d":0' % i for i in range(1100000)))[0], 400)


def test_abort(s):
    got = {}

    def ask(name, body, path):
        got[name] = s.post(path, body)

    native = {"text": "The", "rid": "r1", "sampling_params": {
        "max_new_tokens": 900, "ignore_eos": True}}
    threads = [threading.Thread(target=ask, args=("native", native, "/generate")),
               threading.Thread(target=ask, args=("openai", LONG, "/v1/completions"))]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    same("abort one", s.post("/abort_request", {"rid": "r1"})[1]["aborted"], 1)
    threads[0].join()
    same("aborted", got["native"][1]["meta_info"]["finish_reason"]["type"], "abort")
    s.post("/abort_request", {"abort_all": True})
    threads[1].join()
    same("all aborted", got["openai"][1]["choices"][0]["finish_reason"], "abort")
    threads = [threading.Thread(target=s.request, args=(
                   "POST", "/v1/completions", '{"prompt": 1, "x": [%s]}' % ",".join(['{"a": 0}'] * 500000))),
               threading.Thread(target=lambda: got.update(large=s.post(
                   "/v1/completions", {**LONG, "user": "x" * 100000}, headers={"X-Request-Id": "behind"})))]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    same("abort one that waits to be read", s.post("/abort_request", {"rid": "behind"})[1]["aborted"], 1)
    for thread in threads:
        thread.join()
    same("it does not run", got["large"][1]["choices"][0]["finish_reason"], "abort")
    check("abort frees", s.wait_idle(5))


def test_queue(weft, model):
    with Server(weft, model, "--max-running-requests", "2", "--max-queued-requests", "2",
                "--sse-ping-interval", "1") as s:
        socks = [streaming(s) for _ in range(2)]
        waiting = []
        for _ in range(2):
            sock = socket.create_connection(("127.0.0.1", s.port), 30)
            sock.sendall(post({**LONG, "stream": True}))
            waiting.append(sock)
        time.sleep(0.2)
        status, headers, body = s.request("POST", "/v1/completions", {**LONG, "stream": True})
        same("queue full", (status, json.loads(body)["error"]["type"],
                            json.loads(body)["error"]["code"]), (429, "rate_limit_error", "queue_full"))
        check("Retry-After", int(headers["Retry-After"]) >= 1, headers)
        same("flush is refused", s.get("/flush_cache")[0], 400)
        same("health while full", s.get("/health")[0], 200)
        waiting[0].settimeout(5)
        check("a ping while it waits", b": ping\n\n" in waiting[0].recv(4096) + waiting[0].recv(4096)
              or s.metric("weft:num_requests_waiting") < 2)
        start = time.time()
        status, body = s.post("/v1/completions", {**LONG, "prompt": ["a", "b", "c"]})
        same("all or nothing", status, 429)
        for sock in socks + waiting:
            sock.close()
        check("freed", s.wait_idle(10), time.time() - start)
    # 64 x 1000 tokens take longer than a second anywhere.
    with Server(weft, model, "--request-timeout", "1", "--sse-ping-interval", "1") as s:
        slow = {**LONG, "n": 64, "max_tokens": 1000}
        start = time.time()
        status, body = s.post("/v1/completions", slow)
        same("time-out", (status, body["error"]["code"]), (504, "timeout"))
        check("in time", time.time() - start < 3, time.time() - start)
        text = s.raw(post({**slow, "stream": True}, "Connection: close"))
        check("time-out in a stream", b'"code":"timeout"' in text and b"[DONE]" in text, text[-300:])
        check("time-outs free", s.wait_idle(5))


def test_drain(weft, model):
    with Server(weft, model, "--drain-timeout", "60") as s:
        sock = streaming(s, {**LONG, "max_tokens": 400})
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        status, headers, body = s.request("GET", "/health")
        same("health while draining", (status, json.loads(body)["error"]["code"]), (503, "draining"))
        status, headers, _ = s.request("POST", "/v1/completions", {"prompt": "x"})
        check("new work is refused", status == 503 and headers["Retry-After"], headers)
        text = b""
        while piece := sock.recv(65536):
            text += piece
        check("the stream is finished", b'"finish_reason":"length"' in text and b"[DONE]" in text)
        same("exit", s.process.wait(20), 0)
    with Server(weft, model, "--drain-timeout", "0") as s:
        sock = streaming(s)
        s.process.send_signal(signal.SIGTERM)
        text = b""
        with contextlib.suppress(OSError):
            while piece := sock.recv(65536):
                text += piece
        check("an error event ends it", b'"code":"draining"' in text and b"[DONE]" in text, text[-300:])
        same("exit", s.process.wait(20), 0)
    with Server(weft, model) as s:
        sock = streaming(s)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        s.process.send_signal(signal.SIGTERM)
        same("a second signal exits at once", s.process.wait(5), 0)


def main(weft, root):
    model = os.path.join(root, "models/atlas")
    with Server(weft, model) as s:
        stalls = threading.Thread(target=test_stalls, args=(s,))
        stalls.start()
        for test in (test_framing, test_refusals, test_leavers, test_blocked_reader, test_large_bodies,
                     test_abort):
            test(s)
        test_queue(weft, model)
        test_drain(weft, model)
        stalls.join()
        check("all pages given back", s.wait_idle())
    finish("serve: framing, limits, leavers, queue and draining as documented")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
