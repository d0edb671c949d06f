"""Ranks that are processes, threads, or an MPI job: the same answers; a rank that is killed, stopped or hangs in the
middle of a request is named to the client in time, the server says that it is dead, and ends with status 1: soon, or when told to."""
import ctypes
import glob
import http.client
import json
import os
import re
import signal
import sys
import threading
import time

from serve_lib import Server, check, finish, same

weft, root = sys.argv[1:3]
atlas = os.path.join(root, "models/atlas")
BUDGET = 1.0
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


def children_of(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def freeze_thread(pid, name):
    """Stops one thread where it is, as a page that never comes would. It stays so until this process ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    for task in glob.glob("/proc/%d/task/*" % pid):
        with open(task + "/comm", encoding="ascii") as file:
            if file.read().strip() != name:
                continue
        tid = int(os.path.basename(task))
        none = ctypes.c_void_p(0)
        if libc.ptrace(PTRACE_SEIZE, ctypes.c_int(tid), none, none) != 0:
            return False
        threading.Thread(target=reap, args=(tid,), daemon=True).start()
        return libc.ptrace(PTRACE_INTERRUPT, ctypes.c_int(tid), none, none) == 0
    return False


def reap(tid):
    """Its process has not ended before whoever froze the thread knows that it has."""
    while True:
        _, how = os.waitpid(tid, 0x40000000)  # __WALL
        if not os.WIFSTOPPED(how):
            return


def long_request(server, answers):
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 1000, "temperature": 0,
            "ignore_eos": True}
    start = time.time()
    try:
        status, answer = server.post("/v1/chat/completions", body)
    except OSError as error:
        status, answer = 0, {"error": {"message": str(error)}}
    answers.append((status, answer, time.time() - start))


def fail_in_the_middle(kind, ranks, deed, wanted, limit, by_itself=False):
    what = "%s, %d ranks, %s" % (kind, ranks, deed.__name__)
    with Server(weft, atlas, "--tp", str(ranks), "--threads", "1", "--ranks", kind, "--timeout", "1") as server:
        status, answer = server.chat("What is the capital of France?", max_tokens=20)
        same(what, answer["choices"][0]["message"]["content"], "The capital of France is Paris.")
        answers = []
        threads = [threading.Thread(target=long_request, args=(server, answers)) for _ in range(3)]
        stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=server.patience)
        stream.request("POST", "/v1/completions", json.dumps({"prompt": "The", "max_tokens": 1000, "ignore_eos": True,
                                                              "stream": True}))
        streamed = stream.getresponse()  # it has begun
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        begun = time.time()
        deed(server)
        for thread in threads:
            thread.join(30)
        took = time.time() - begun
        same(what + ": requests that ended", len(answers), 3)
        for status, answer, _ in answers:
            check(what + ": the client hears why", status == 500 and wanted in answer["error"]["message"],
                  (status, answer))
        check(what + ": in time", took < limit, took)
        text = streamed.read()
        check(what + ": so does the stream's", streamed.status == 200 and b'"code":"engine_failed"' in text, text)
        status, answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        check(what + ": the next request", status == 503 and wanted in answer["error"]["message"], (status, answer))
        same(what + ": health", server.get("/health")[0], 503)
        log = server.log() # a line comes after its answer, but before the next
        check(what + ": and the log", re.search(r" status=200 seconds=\S+ error=engine_failed ", log) and
              log.count(" error=engine_failed ") == 4, log)
        server.exit_status = 1
        begun = time.time()
        if by_itself:
            server.process.wait(30)
            check(what + ": the log says why", " failed " in server.log() and wanted in server.log(), server.log())
    check(what + ": ends", time.time() - begun < 20, time.time() - begun)


def kill_a_process(server):
    os.kill(children_of(server.process.pid)[-1], signal.SIGKILL)


def stop_a_process(server):
    os.kill(children_of(server.process.pid)[0], signal.SIGSTOP)


def freeze_a_thread(server):
    check("a thread can be frozen", freeze_thread(server.process.pid, "weft rank 1"))


def followers_end_with_rank_0():
    """However rank 0 ends, nobody is left; and signals of a terminal do not end the others first."""
    server = Server(weft, atlas, "--tp", "3", "--threads", "1", "--ranks", "processes")
    others = children_of(server.process.pid)
    same("processes", len(others), 2)
    os.kill(others[0], signal.SIGINT)
    os.kill(others[1], signal.SIGTERM)
    same("still answers", server.chat("What is the capital of France?", max_tokens=20)[0], 200)
    server.process.kill()
    server.process.wait()
    deadline = time.time() + 10
    alive = others
    while alive and time.time() < deadline:
        alive = [pid for pid in others if os.path.exists("/proc/%d" % pid) and state_of(pid) != "Z"]
        time.sleep(0.02)
    same("left after rank 0 was killed", alive, [])


def state_of(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii") as file:
            return file.read().rsplit(") ", 1)[1][0]
    except OSError:
        return "Z"


def shared_files():
    """Without those of Open MPI, which somebody else's job may make or remove meanwhile."""
    return [name for name in os.listdir("/dev/shm") if not name.startswith("vader_segment.")]


before = shared_files()
LATE = 0.1 + 0.4  # the 100 ms, and what a busy machine, HTTP and this test take
fail_in_the_middle("processes", 2, kill_a_process, "the process of rank 1 has ended", LATE, by_itself=True)
fail_in_the_middle("processes", 4, kill_a_process, "the process of rank", LATE)
fail_in_the_middle("processes", 3, stop_a_process, "gave no sign of life for 1000 ms", BUDGET + LATE)
fail_in_the_middle("threads", 2, freeze_a_thread, "rank 1 gave no sign of life for 1000 ms", BUDGET + LATE)
followers_end_with_rank_0()
same("files in /dev/shm", shared_files(), before)
finish("ranks: killed, stopped and frozen ones are named in time; nothing is left")
