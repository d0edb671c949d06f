"""A server whose streams are known to the millisecond and to the byte, for the tests of `weft bench`.

The model's name says what a stream does: "timed" (events at known times) or a way to go wrong. Standard
library only. bench_stub.py PORT runs it alone.
"""
import asyncio
import json
import sys
import threading
import time


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class Stub:
    """Answers /v1/models, the two completions APIs and /generate. `bodies` holds what was asked."""

    # a third event that is none
    bad = {
        "bad-json": '{"choices": [{"te',
        "not-a-number": '{"choices": [{"text": "a", "logprob": NaN}]}',
        "usage-negative": '{"choices": [], "usage": {"completion_tokens": -1}}',
        "usage-huge": '{"choices": [], "usage": {"prompt_tokens": 2147483647}}',
        "usage-larger": '{"choices": [], "usage": {"prompt_tokens": 99999999999999999999}}',
        "usage-falls": '{"choices": [], "usage": {"completion_tokens": 4}}\n\n'
                       'data: {"choices": [], "usage": {"completion_tokens": 3}}',
    }

    def __init__(self, first=0.1, gap=0.02, models=("timed",), port=0):
        self.first, self.gap, self.models = first, gap, models
        self.bodies, self.starts = [], []
        self.running = self.most = 0
        self.pause = None # (every, length): seconds; nothing is sent while it lasts
        self.metrics = None # a function: the text of /metrics
        self.slow = 0 # seconds before an answer of /metrics
        self.port = None
        self.began = time.monotonic()
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        threading.Thread(target=self.run, args=(port,), daemon=True).start()
        self.ready.wait()

    def run(self, port):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(
            asyncio.start_server(self.serve, "127.0.0.1", port, backlog=1024))
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.port

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *fields = head.split("\r\n")
                length = next((int(f.split(":")[1]) for f in fields
                               if f.lower().startswith("content-length")), 0)
                body = await reader.readexactly(length)
                path = line.split(" ")[1]
                if not await self.answer(path, body, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, path, body, writer):
        if path == "/v1/models":
            self.plain(writer, 200, json.dumps({"data": [{"id": name} for name in self.models]}))
            return True
        if path == "/metrics" and self.metrics is not None:
            await asyncio.sleep(self.slow)
            self.plain(writer, 200, self.metrics(), "text/plain")
            return True
        if not body: # other clients ask for more than that
            self.plain(writer, 200, '{"internal_states": [{}]}')
            return True
        asked = json.loads(body)
        self.bodies.append((path, asked))
        self.starts.append(time.monotonic())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self.stream(path, asked, writer)
        finally:
            self.running -= 1

    def plain(self, writer, status, text, kind="application/json"):
        writer.write(("HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (
            status, kind, len(text.encode()), text)).encode())

    async def sleep_until(self, when):
        while True:
            now = time.monotonic()
            if self.pause is not None:
                every, length = self.pause
                phase = (now - self.began) % every
                if phase > every - length:
                    when = max(when, now + every - phase)
            if when <= now:
                return
            await asyncio.sleep(when - now)

    def event(self, path, n, text, finish, usage):
        if path == "/generate":
            return {"text": text, "meta_info": {"completion_tokens": n, "prompt_tokens": 7,
                                                "finish_reason": {"type": "length"} if finish else None}}
        choice = {"index": 0, "finish_reason": "length" if finish else None}
        if path.endswith("/chat/completions"):
            choice["delta"] = {"content": text} if text else {}
        else:
            choice["text"] = text
        return {"id": "x", "choices": [choice], "usage": usage}

    def events(self, path, tokens, usage=True):
        """(seconds from the start, event): a token each `gap`, then finish, usage and [DONE] with the last."""
        out = []
        native = path == "/generate"
        for n in range(1, tokens + 1):
            text = "tok " * n if native else "tok "
            out.append((self.first + (n - 1) * self.gap,
                        json.dumps(self.event(path, n, text, native and n == tokens, None))))
        last = self.first + (tokens - 1) * self.gap
        if not native:
            out.append((last, json.dumps(self.event(path, tokens, "", True, None))))
            if usage:
                out.append((last, json.dumps({"choices": [], "usage": {
                    "prompt_tokens": 7, "completion_tokens": tokens}})))
        return out + [(last, "[DONE]")]

    async def stream(self, path, asked, writer):
        start = time.monotonic()
        mode = asked.get("model", "timed") or "timed"
        tokens = asked.get("max_tokens", asked.get("max_completion_tokens"))
        if tokens is None:
            tokens = asked["sampling_params"]["max_new_tokens"]
        if mode.isdigit():
            self.plain(writer, int(mode), json.dumps({"error": {"message": "no %s here" % mode}}))
            return True
        if mode == "plain":
            self.plain(writer, 200, '{"choices": [{"text": "not a stream"}]}')
            return True
        if mode == "hang":
            await asyncio.sleep(30)
            return False
        events = self.events(path, tokens - (mode == "short"), usage=mode != "no-usage" and
                             asked.get("stream_options", {}).get("include_usage", False))
        newline = {"crlf": "\r\n", "multiline": "\r\n", "cr": "\r"}.get(mode, "\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")
        if mode == "endless":
            text = "data: %s\n\n" % json.dumps(self.event(path, 1, "x" * 1000000, False, None))
            while True: # until it is cut off
                writer.write(chunk(text.encode()))
                await writer.drain()
        if mode == "noise":
            for _ in range(50):
                start = self.noise.choice(("", "data: ", 'data: {"choices": [', "data: [[[[", ": ", '"}]}', "\n\n"))
                writer.write(chunk(start.encode() + self.noise.randbytes(self.noise.randrange(3000))))
                await writer.drain()
            writer.write(chunk(b"\n\n") + b"0\r\n\r\n")
            return True
        for i, (at, data) in enumerate(events):
            await self.sleep_until(start + at)
            text = "data: " + data + newline * 2
            if mode == "comments":
                text = ": ping" + newline * 2 + "event: token" + newline + "id: 7" + newline + text
            if mode == "nospace":
                text = "data:" + data + newline * 2
            if mode == "multiline" and data != "[DONE]":
                text = "".join("data: " + part + newline
                               for part in json.dumps(json.loads(data), indent=1).split("\n")) + newline
            if mode == "no-done" and data == "[DONE]":
                continue
            if mode == "done-unfinished" and data == "[DONE]":
                text = "data: [DONE]"
            if i == 2 and mode == "cut":
                return False
            if i == 2 and mode == "ends-early":
                break
            if i == 2 and mode == "error-event":
                text = 'data: {"error": {"message": "out of pages"}}\n\ndata: [DONE]\n\n'
            if i == 2 and mode in self.bad:
                text = "data: %s\n\n" % self.bad[mode]
            if mode == "after-done" and data == "[DONE]":
                text += "data: %s\n\n" % events[0][1]
            if mode == "no-output" and data != "[DONE]":
                continue
            raw = text.encode()
            if mode in ("bytes", "crlf"):
                for k in range(len(raw)):
                    writer.write(chunk(raw[k:k + 1]))
                    await writer.drain()
            else:
                writer.write(chunk(raw))
            if i == 2 and mode == "error-event":
                break
            await writer.drain()
        if mode == "late-comment":
            await asyncio.sleep(0.5)
            writer.write(chunk(b": ping\n\n"))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


if __name__ == "__main__":
    print(Stub(port=int(sys.argv[1])).url, flush=True)
    threading.Event().wait()
