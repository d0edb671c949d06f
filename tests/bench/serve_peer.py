"""weft's server against llama.cpp's on this machine, in turn, driven by `weft bench` with the same requests:
128 tokens in, 128 out, at concurrency 1, 8 and 32. Says how much of the CPU other programs and machines took
meanwhile: discard what was disturbed. See serve_peer.sh.
serve_peer.py WEFT MODEL LLAMA_SERVER GGUF ROUNDS [OPTION of weft serve]..."""
import contextlib
import http.client
import json
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time

LEVELS = {1: 1.0, 8: 1.5, 32: 2.0} # concurrency: what weft is to reach, times llama.cpp's tokens/s
REQUESTS = {1: 4, 8: 16, 32: 32} # after one to warm up
TOKENS, PREFIX, THREADS = 128, 512, "2"


@contextlib.contextmanager
def running(command, port):
    """A server, from its first 200 of /health on."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(1200):
                with contextlib.suppress(OSError):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        break
                time.sleep(0.05)
            yield process
        finally:
            process.terminate()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def weft_server(weft, model, extra, port, level):
    return [weft, "serve", model, "--port", str(port), "--tp", "1", "--threads", THREADS, "--context", "1024",
            "--max-running-requests", str(level), *extra]


def llama_server(binary, gguf, port, level):
    return [binary, "-m", gguf, "--host", "127.0.0.1", "--port", str(port), "-t", THREADS, "-tb", THREADS,
            "-np", str(level), "-c", str(level * 1024), "-cb"]


def cpu_seconds(server):
    """Of the machine and its neighbours so far; of them those of the server and of children that ended."""
    hz = os.sysconf("SC_CLK_TCK")
    with open("/proc/stat") as stat, open("/proc/%d/stat" % server.pid) as own:
        user, nice, system, _, _, *rest = (int(x) for x in stat.readline().split()[1:9])
        ours = own.read().rsplit(")", 1)[1].split()[11:13]
    return ((user + nice + system + sum(rest)) / hz,
            sum(map(int, ours)) / hz + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]))


def bench(weft, model, server, port, level):
    """Tokens/s, 99th percentile of the time between tokens, percent of the CPU that others took."""
    start, (all_before, own_before) = time.monotonic(), cpu_seconds(server)
    text = subprocess.run([
        weft, "bench", "http://127.0.0.1:%d/v1/completions" % port, "--tokenize-prompt", "--tokenizer", model,
        "--vocab", "40000", "--num-prompts", str(REQUESTS[level]), "--max-concurrency", str(level),
        "--random-input-len", str(TOKENS), "--random-output-len", str(TOKENS), "--random-range-ratio", "1",
        "--json", "--disable-tqdm"], check=True, stdout=subprocess.PIPE, text=True).stdout
    result = json.loads(text)
    assert result["total_output_tokens"] == REQUESTS[level] * TOKENS, result
    all_after, own_after = cpu_seconds(server)
    others = (all_after - all_before - own_after + own_before) / (time.monotonic() - start) / os.cpu_count()
    return result["output_throughput"], result["p99_itl_ms"], 100 * others


def first_ms(port, ids):
    """Time to the first event of a stream."""
    body = json.dumps({"prompt": ids, "max_tokens": 2, "stream": True, "temperature": 0, "ignore_eos": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    while not answer.readline().startswith(b"data: "):
        pass
    ms = (time.perf_counter() - start) * 1e3
    answer.read()
    return ms


def repeated(port):
    """A beginning of 512 tokens for the first time, and again before another question."""
    first, again = [], []
    for seed in range(5):
        draw = random.Random(seed)
        ids = [draw.randrange(100, 40000) for _ in range(PREFIX + 32)]
        first.append(first_ms(port, ids[:PREFIX + 16]))
        again.append(first_ms(port, ids[:PREFIX] + ids[PREFIX + 16:]))
    return statistics.median(first), statistics.median(again)


def main(weft, model, binary, gguf, rounds, *extra):
    results = {}
    for _ in range(int(rounds)):
        for level in LEVELS:
            port = free_port()
            for name, command in (("weft", weft_server(weft, model, extra, port, level)),
                                  ("llama.cpp", llama_server(binary, gguf, port, level))):
                with running(command, port) as server:
                    results.setdefault((level, name), []).append(bench(weft, model, server, port, level))
                    if level == 1:
                        results.setdefault(name, []).append(repeated(port))
    print("%-12s %10s %10s %8s %8s   %9s %9s   %s" % ("concurrency", "weft tok/s", "llama.cpp", "ratio", "to reach",
                                                      "p99 ITL", "llama.cpp", "others took"))
    for level, wanted in LEVELS.items():
        ours, peer = ([statistics.median(x) for x in zip(*results[level, name])] for name in ("weft", "llama.cpp"))
        print("%-12d %10.1f %10.1f %8.2f %8.1f   %6.1f ms %6.1f ms   %.1f %%, %.1f %%" % (
            level, ours[0], peer[0], ours[0] / peer[0], wanted, ours[1], peer[1], ours[2], peer[2]))
    for name in ("weft", "llama.cpp"):
        first, again = (statistics.median(x) for x in zip(*results[name]))
        print("repeated prefix of %d tokens, %s: first %.1f ms, again %.1f ms (1/%.1f)" % (
            PREFIX, name, first, again, first / again))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)) # ends the servers, too
    main(*sys.argv[1:])
