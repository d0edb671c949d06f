"""The console in headless Chromium, over its debugging pipe: a question typed, the answer read, the
plots moved, nothing fetched from elsewhere. serve_console.py WEFT ROOT [SHOTS]: with SHOTS, screenshots go there."""
import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from serve_lib import Server, check, finish, same

ANSWER = "The capital of France is Paris."


class Browser:
    def __init__(self, program, profile):
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()

        def connect(): # the browser's ends are descriptors 3 and 4
            ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, to_write)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
             "--user-data-dir=" + profile, "about:blank"],
            preexec_fn=connect, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.serial, self.session, self.events = b"", 0, None, []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = [t for t in targets if t["type"] == "page"][0]["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def message(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.back, 1 << 20)
            if not piece:
                raise RuntimeError("the browser is gone")
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, **params):
        self.serial += 1
        message = {"id": self.serial, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.serial:
                if "error" in answer:
                    raise RuntimeError("%s: %s" % (method, answer["error"]))
                return answer["result"]
            self.events.append(answer)

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, what, script, seconds=60):
        deadline = time.time() + seconds
        script = "(() => { try { return !!(%s) } catch { return false } })()" % script
        while not self.run(script):
            if time.time() > deadline:
                check(what, False, "not within %d s" % seconds)
                return
            time.sleep(0.1)

    def shot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def screen(self, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def close(self):
        self.process.terminate()
        self.process.wait(30)


PIXELS = """(id, name) => {
  const canvas = document.getElementById(id), g = canvas.getContext('2d');
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const want = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const data = g.getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0, top = canvas.height;
  for (let i = 0; i < data.length; i += 4)
    if (want.every((w, c) => Math.abs(data[i + c] - w) < 40) && data[i + 3] > 100) {
      count++;
      top = Math.min(top, Math.floor(i / 4 / canvas.width));
    }
  return [count, top];
}"""


def curve(browser, plot):
    """Pixels of the first curve, and its highest row."""
    return browser.run("(%s)('%s', '--a')" % (PIXELS, plot))


def ask(browser, text):
    browser.run("document.getElementById('ask').focus()")
    browser.call("Input.insertText", text=text)
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter",
                     windowsVirtualKeyCode=13)


def test_console(browser, s, shots):
    origin = "http://127.0.0.1:%d" % s.port
    browser.screen(1280, 800, "light")
    browser.call("Page.navigate", url=origin + "/")
    browser.wait("the live view", "document.getElementById('n-running').textContent === '0'")
    time.sleep(2.5)
    before = curve(browser, "p-speed")
    browser.run("document.getElementById('temperature').value = '0'")
    ask(browser, "What is the capital of France?")
    browser.wait("the answer", "[...document.querySelectorAll('.said.assistant')].some("
                               "(e) => e.textContent.startsWith('%s') && e.querySelector('small'))" % ANSWER)
    same("the question stands there", browser.run(
        "document.querySelector('.said.user').textContent"), "What is the capital of France?")
    ask(browser, "Which country has Paris as its capital?")
    browser.wait("the second answer", "document.querySelectorAll('.said.assistant small').length === 2")
    # A long answer, stopped by hand.
    browser.run("document.getElementById('max_tokens').value = '900';"
                "window.real = JSON.stringify; JSON.stringify = (b) => real(b && b.messages ?"
                " {...b, ignore_eos: true} : b)")
    ask(browser, "Tell me about Chad.")
    browser.wait("text streams", "(document.querySelectorAll('.said.assistant')[2] || {textContent: ''})"
                                 ".textContent.length > 40")
    browser.run("document.getElementById('stop').click()")
    browser.wait("stopped", "!document.getElementById('send').disabled")
    check("the stop reaches the engine", s.wait_idle(5))
    load = threading.Thread(target=s.post, args=("/v1/completions", {
        "prompt": "The", "max_tokens": 900, "ignore_eos": True, "n": 40}))
    load.start()
    browser.wait("the load shows", "Number(document.getElementById('n-running').textContent) > 8")
    time.sleep(4)
    after = curve(browser, "p-speed")
    check("the speed's plot moved", after[1] < before[1] - 20, (before, after))
    check("the load's plot moved", curve(browser, "p-load")[1] < 60, curve(browser, "p-load"))
    check("ranks have shares", browser.run(
        "document.querySelectorAll('#ranks .rank').length === 2 && "
        "parseFloat(document.querySelector('#ranks .bar i').style.width) > 1"))
    s.post("/abort_request", {"abort_all": True})
    load.join()
    for width, height, scheme in ((1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light"),
                                  (390, 844, "dark")):
        browser.screen(width, height, scheme)
        time.sleep(1.2)
        check("no sideways scrolling at %d" % width, browser.run(
            "document.documentElement.scrollWidth <= window.innerWidth"))
        if shots:
            browser.shot(os.path.join(shots, "console-%d-%s.png" % (width, scheme)))
    if shots:
        browser.run("document.getElementById('live').scrollIntoView()")
        browser.shot(os.path.join(shots, "console-390-live.png"))
    urls = [e["params"]["request"]["url"] for e in browser.events
            if e.get("method") == "Network.requestWillBeSent"]
    foreign = [u for u in urls if not u.startswith((origin, "data:"))]
    same("resources from elsewhere", foreign, [])
    wrong = [e for e in browser.events if e.get("method") == "Runtime.exceptionThrown" or
             (e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")]
    same("errors in the page", wrong, [])


def main(weft, root, shots=None):
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which(
        "google-chrome")
    if program is None:
        print("SKIPPED: no chromium; apt-get install chromium")
        return 77
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, \
            Server(weft, os.path.join(root, "models/atlas"), "--tp", "2", "--threads", "1") as s:
        browser = Browser(program, profile)
        try:
            test_console(browser, s, shots)
        finally:
            browser.close()
    finish("serve: the console asks, answers, stops and plots in headless Chromium")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
