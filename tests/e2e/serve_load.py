"""`weft serve` under load: the same facts at any concurrency, a thousand streams, and a mix of good,
bad, oversized, slow and vanishing clients with flat memory. serve_load.py WEFT ROOT SECONDS FACTS"""
import asyncio
import json
import os
import random
import sys
import time

from serve_lib import Server, check, facts, finish, same, sanitized


async def exchange(port, data, limit=120):
    """One connection, one request; the status and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    try:
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), limit)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def request(body, path="/v1/chat/completions"):
    text = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(), len(text), text)


def question(text, **fields):
    return request({"messages": [{"role": "user", "content": text}], "temperature": 0, **fields})


async def ask_all(port, questions, concurrency):
    """The answers, in order."""
    answers = [None] * len(questions)
    left = iter(range(len(questions)))

    async def worker():
        for i in left:
            status, body = await exchange(port, question(questions[i]))
            answers[i] = json.loads(body)["choices"][0]["message"]["content"] if status == 200 else status

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return answers


def test_facts(s, root, count):
    """Identical answers at concurrency 1, 8 and 64, whatever else is in the batch."""
    chosen = facts(root)
    chosen = chosen[::max(1, len(chosen) // count)]
    questions = [f["question"] for f in chosen]
    for concurrency in (1, 8, 64):
        start = time.time()
        got = asyncio.run(ask_all(s.port, questions, concurrency))
        if concurrency == 1:
            alone = got
        differ = [(q, a, b) for q, a, b in zip(questions, alone, got) if a != b]
        same("facts that differ at concurrency %d" % concurrency, differ[:3], [])
        print("facts: %d at concurrency %d in %.1f s" % (len(got), concurrency, time.time() - start))
    right = sum(a == f["answer"] for a, f in zip(alone, chosen))
    print("facts: %d of %d answers are exact" % (right, len(chosen)))
    check("the facts are right", right >= 0.9 * len(chosen), right) # 2,060 of all 2,078; of few, one may be wrong


async def stream(port, body, gate):
    """Text and reason of a stream, read event by event; None when it breaks off."""
    await gate.wait()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request({**body, "stream": True}))
    text, reason, done = "", None, False
    try:
        async with asyncio.timeout(300):
            while line := await reader.readline():
                if line == b"data: [DONE]\n":
                    done = True
                    break
                if line.startswith(b"data: "):
                    choice = json.loads(line[6:])["choices"][0]
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
    except (TimeoutError, OSError, KeyError):
        return None
    finally:
        writer.close()
    return (text, reason) if done else None


def test_thousand(s, root, count):
    distinct = max(10, count // 20)
    chosen = facts(root)[:distinct]
    bodies = [{"messages": [{"role": "user", "content": f["question"]}], "temperature": 0}
              for f in chosen]

    async def run():
        gate = asyncio.Event()
        tasks = [asyncio.create_task(stream(s.port, bodies[i % distinct], gate)) for i in range(count)]
        await asyncio.sleep(0.1)
        gate.set()
        return await asyncio.gather(*tasks)

    alone = asyncio.run(ask_all(s.port, [f["question"] for f in chosen], 1))
    start = time.time()
    got = asyncio.run(run())
    wrong = [i for i, g in enumerate(got) if g != (alone[i % distinct], "stop")]
    same("of %d streams, wrong or stuck" % count, [(i, got[i]) for i in wrong[:3]], [])
    print("%d streams at once in %.1f s" % (count, time.time() - start))
    check("pages after the streams", s.wait_idle())


class Mix:
    """Clients of all kinds until the time is over; counts what each kind got."""

    def __init__(self, s, root):
        self.port = s.port
        self.random = random.Random(5)
        self.facts = facts(root)
        self.count = {}
        self.wrong = []
        self.known = {}

    def note(self, kind, ok, detail=""):
        self.count[kind] = self.count.get(kind, 0) + 1
        if not ok:
            self.wrong.append((kind, str(detail)[:200]))

    async def good(self):
        fact = self.random.choice(self.facts)
        status, body = await exchange(self.port, question(fact["question"]))
        answer = json.loads(body)["choices"][0]["message"]["content"] if status == 200 else status
        first = self.known.setdefault(fact["question"], answer)
        self.note("good", status == 200 and first == answer, (status, body, first))

    async def streamed(self):
        gate = asyncio.Event()
        gate.set()
        fact = self.random.choice(self.facts)
        got = await stream(self.port, {"messages": [{"role": "user", "content": fact["question"]}],
                                       "temperature": 0}, gate)
        answer = got[0] if got else None
        first = self.known.setdefault(fact["question"], answer)
        self.note("streamed", got is not None and first == answer, (got, first))

    async def sampled(self):
        status, body = await exchange(self.port, request({
            "prompt": ["The", "A country"], "n": 2, "max_tokens": self.random.randrange(1, 60),
            "temperature": 1.2, "top_k": 20, "logprobs": 3, "stop": ["\n", " is"]},
            "/v1/completions"))
        self.note("sampled", status == 200 and len(json.loads(body)["choices"]) == 4, (status, body))

    async def vanishing(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(question("Tell me.", ignore_eos=True, max_tokens=800,
                              stream=self.random.random() < 0.5))
        await asyncio.sleep(self.random.random() * 0.3)
        if self.random.random() < 0.5:
            writer.transport.abort()
        writer.close()
        self.note("vanishing", True)

    async def malformed(self):
        data = self.random.choice((b"GARBAGE\r\n\r\n", request({"prompt": 3}), request({"n": -1}),
                                   b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                   b"Content-Length: 5\r\n\r\n{nope",
                                   question("x", temperature="hot"), request({}, "/v1/nothing")))
        status, _ = await exchange(self.port, data)
        self.note("malformed", status in (400, 404), (status, data))

    async def oversized(self):
        if self.random.random() < 0.5:
            status, _ = await exchange(self.port, question("long " * 3000))
            self.note("oversized", status == 400, status)
        else:
            status, _ = await exchange(self.port, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                                  b"Content-Length: 99999999999\r\n\r\n")
            self.note("oversized", status == 413, status)

    async def slow(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = question("What is the capital of France?")
        for i in range(0, len(data), 16):
            writer.write(data[i:i + 16])
            await asyncio.sleep(0.02)
        answer = await asyncio.wait_for(reader.read(), 120)
        writer.close()
        self.note("slow", b"Paris" in answer, answer)

    async def client(self, number, deadline):
        kinds = [self.good] * 5 + [self.streamed] * 4 + [self.sampled] * 2 + [
            self.vanishing] * 3 + [self.malformed, self.oversized, self.slow]
        kind = kinds[number % len(kinds)] # between them the clients begin with every kind
        while time.time() < deadline:
            try:
                await kind()
            except (OSError, asyncio.TimeoutError, ValueError) as error:
                self.note(kind.__name__, False, repr(error))
            kind = self.random.choice(kinds)

    async def run(self, seconds, clients=24):
        deadline = time.time() + seconds
        await asyncio.gather(*(self.client(i, deadline) for i in range(clients)))


def test_mix(s, root, seconds, quarantine):
    mix = Mix(s, root)
    asyncio.run(mix.run(min(10, seconds / 4))) # memory that is kept for reuse grows here
    before = s.resident_kib()
    asyncio.run(mix.run(seconds))
    check("all pages given back", s.wait_idle())
    grown = s.resident_kib() - before
    print("mix: %s; memory %+d KiB of %d" % (mix.count, grown, before))
    same("mixed traffic, wrong answers", mix.wrong[:5], [])
    check("every kind occurred", len(mix.count) == 7, mix.count)
    check("memory is flat", grown < quarantine + (8 << 10), grown)


def main(weft, root, seconds, count):
    streams, quarantine = 1000, 0 # KiB that a sanitizer keeps of what was freed
    if sanitized(weft):
        seconds, count, streams, quarantine = seconds / 4, count // 12, 30, 256 << 10
        print("a sanitizer's build: %d s, %d facts, %d streams" % (seconds, count, streams))
    # A small KV pool is soon touched whole: its pages don't look like memory that grows.
    with Server(weft, os.path.join(root, "models/atlas"), "--kv-tokens", "4096") as s:
        test_facts(s, root, count)
        test_thousand(s, root, streams)
        test_mix(s, root, seconds, quarantine)
    finish("serve: the same answers under every load, memory flat")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
