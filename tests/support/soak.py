"""The service of docs/service.md under load: right results, flat memory, no request lost.

Eight clients send requests, good ones and hostile ones, to one or several processes, in which
sessions come and go. In the end SIGTERM stops them under load.
"""

import io
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from onnx_ops.compiler import cache

from . import service, soak_models
from .soak_models import IN_USE

CLIENTS = 8
PATIENCE = 5  # seconds, the page's
ANSWER = 6  # times as long a client waits for an answer, and at least 30 s
WARM_UP = 0.2  # share of the time after which memory is measured
LEAK = 100  # bytes per request, that memory may grow by
# All memory comes from malloc, and from one arena, so that glibc tells how much is in use. What is
# resident also has free memory between what is in use, which grows with the number of threads and
# requests at a time.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1", "PYTHONMALLOC": "malloc"}
DESCRIPTORS = 2 * CLIENTS + 16  # files and connections that may be open more than at the start
START = 'if __name__ == "__main__":\n'
EXTENSION = (
    "from support import soak_models\n\n"
    "make_session, Handler = soak_models.extended(Handler, THREADS)\n\n"
)


@dataclass
class Process:
    """A process of the service, and what was measured of it: [(seconds, requests, bytes in use,
    open files)].

    The bytes are those that the process tells, else the resident ones.
    """

    port: int
    process: object
    log: Path
    requests: int = 0
    samples: list = field(default_factory=list)

    def measure(self, seconds):
        measured, told = (
            psutil.Process(self.process.pid),
            self.log.with_name(IN_USE.format(self.process.pid)),
        )
        size = int(told.read_text()) if told.exists() else measured.memory_info().rss
        self.samples.append((seconds, self.requests, size, measured.num_fds()))

    def growth(self):
        """Return the bytes by which memory has grown after the warm-up, and those per request, by a
        line's slope.
        """
        begin = self.samples[-1][0] * WARM_UP
        later = [
            (requests, size) for seconds, requests, size, _ in self.samples if seconds >= begin
        ]
        counts, sizes = np.array(later, float).T
        slope = np.polyfit(counts - counts[0], sizes, 1)[0] if counts[-1] > counts[0] else 0.0
        return slope * (counts[-1] - counts[0]), slope

    def faults(self, noise):
        """Yield what is wrong with the process, which has ended."""
        grown, slope = self.growth()
        if grown > noise and slope > LEAK:
            yield (
                f"port {self.port}: memory grew by {grown / 2**20:.0f} MiB, {slope:.0f} bytes "
                "per request"
            )
        more = self.samples[-1][3] - self.samples[0][3]
        if more > DESCRIPTORS:
            yield f"port {self.port}: {more} more files are open than at the start"
        if self.process.returncode:
            yield f"port {self.port}: exit status {self.process.returncode}"
        if "Traceback" in (text := self.log.read_text()):
            yield f"port {self.port}: {text[text.index('Traceback') :][:2000]}"


class Soak:
    """The clients' work, and the book about it."""

    def __init__(self, folder, processes, patience, good, seed):
        self.processes, self.patience, self.lock = processes, patience, threading.Lock()
        self.stopping = threading.Event()  # is set before the signal is sent
        self.times, self.mistakes, self.answers = defaultdict(list), Counter(), {}
        self.random, self.deck, self.sets = random.Random(seed), [], 0
        with np.load(folder / "values.npz") as values:
            self.values = {name: values[name] for name in values.files}
        bodies = [service.saved(image) for image in self.values["images"]]
        right = [("good", name, k) for name in soak_models.NAMES for k in range(soak_models.IMAGES)]
        self.requests = {(name, k): service.request(bodies[k], f"/{name}") for _, name, k in right}
        names = [*service.lies(), *service.wrong_arrays()]
        hostile = [("refused", name, 0) for name in names]
        hostile += [
            ("slow", "idle", 0),
            ("slow", "head", 0),
            ("slow", "body", 0),
            ("any value", "", 0),
        ]
        hostile += [("vanished", "", k) for k in range(4)]
        self.cards = right * (good // soak_models.IMAGES) + hostile

    def draw(self):
        """Return the next request's kind, name and number, the model it is for, and the process."""
        with self.lock:
            if not self.deck:
                self.deck, self.sets = (
                    self.random.sample(self.cards, len(self.cards)),
                    self.sets + 1,
                )
            return (
                *self.deck.pop(),
                self.random.choice(soak_models.NAMES),
                self.random.choice(self.processes),
            )

    def client(self, _):
        """Send requests until the port of a process is closed."""
        while True:
            kind, name, k, model, process = self.draw()
            try:
                connection = service.connect(process.port, max(30, ANSWER * self.patience))
            except OSError as error:
                if not self.stopping.is_set():
                    self.note(f"no connection: {error!r}")
                return
            is_counted = not self.stopping.is_set()
            try:
                mistake, seconds = getattr(self, kind.replace(" ", "_"))(connection, name, k, model)
            except Exception as error:
                mistake, seconds = repr(error), None
            if is_counted:
                if mistake is not None:  # b"" is no answer
                    self.note(f"{kind} {name}: {mistake}")
                with self.lock:
                    process.requests += 1
                    self.times[
                        name if kind == "good" else "slow" if name in service.WAITING else kind
                    ].append(seconds)

    def note(self, mistake):
        with self.lock:
            self.mistakes[mistake] += 1

    def good(self, connection, name, k, model):
        answer, seconds = service.exchange(connection, *self.requests[name, k])
        head, _, content = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.0 200 "):
            return brief(answer), seconds
        if content != (first := self.answers.setdefault((name, k), content)):
            return (
                f"image {k} has other bits than before, in {len(first)} and {len(content)} bytes",
                seconds,
            )
        if content is first and not soak_models.is_right(
            np.load(io.BytesIO(content)), self.values[name][k]
        ):
            return f"a wrong result for image {k}", seconds
        return None, seconds

    def refused(self, connection, name, k, model):
        parts, status = {**service.lies(f"/{model}"), **service.wrong_arrays(f"/{model}")}[name]
        answer, seconds = service.exchange(connection, *parts)
        return None if answer.startswith(f"HTTP/1.0 {status} ".encode()) else brief(answer), seconds

    def any_value(self, connection, name, k, model):
        image = np.random.default_rng(0).choice(
            np.array([np.nan, np.inf, -np.inf, 3e38, 1e-45, 0]), (1, 3, 144, 192)
        )
        answer, seconds = service.exchange(
            connection, *service.request(service.saved(image.astype("f")), f"/{model}")
        )
        return None if answer.startswith(b"HTTP/1.0 200 ") else brief(answer), seconds

    def slow(self, connection, name, k, model):
        """Send nothing, or bytes of the head or of the body now and then: the service gives up in
        time.
        """
        head, _ = self.requests[model, 0]
        drips = {
            "idle": [b""],
            "head": [bytes([byte]) for byte in head],
            "body": [head, *(bytes(1) for _ in head)],
        }
        answer, seconds = service.exchange(
            connection, *drips[name], pause=2 * self.patience / len(head)
        )
        late = f"{seconds:.1f} s" if seconds > 3 * self.patience + 5 else None
        # Without a version, by HTTP/0.9.
        is_refused = answer.startswith(b"HTTP/1.0 4") or b"Error code: 4" in answer
        return late if not answer or is_refused else brief(answer), seconds

    def vanished(self, connection, name, k, model):
        head, body = self.requests[model, 0]
        service.vanish(connection, *[(), (head,), (head, body[:1000]), (head, body)][k])
        return None, None


def brief(answer):
    """Return the first and the last line of an answer, without its date: answers alike are counted
    together.
    """
    lines = answer.strip().splitlines() or [b"nothing"]
    return b" ... ".join(lines if len(lines) < 2 else (lines[0], lines[-1][:200])).decode(
        errors="replace"
    )


def run(
    folder,
    minutes,
    count=1,
    patience=PATIENCE,
    good=40,
    noise=2**24,
    seed=0,
    change=lambda text: text,
):
    """Return (the lines of a table, those about what was wrong).

    folder    with the models, and the kernels in kernels/
    minutes   duration; each hostile request is sent at least once in any case
    count     number of processes
    patience  replaces the page's; clients wait the longer, too
    good      number of good requests for each model, among one of each hostile request
    noise     bytes that memory may grow by in any case, which is the allocator's own doing
    change    function that changes the service's source
    """
    text = service.replaced(service.SOURCE, START, EXTENSION + START)
    (folder / "service.py").write_text(change(text))
    with (
        ExitStack() as stack,
        ThreadPoolExecutor(count) as starters,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        begin = time.monotonic()
        served = starters.map(
            lambda _: stack.enter_context(service.served(folder, patience, **ONE_ARENA)),
            range(count),
        )
        processes = [Process(*each) for each in served]
        started, begin = time.monotonic() - begin, time.monotonic()
        soak = Soak(folder, processes, patience, good, seed)
        clients = threads.map(soak.client, range(CLIENTS))
        while (seconds := time.monotonic() - begin) < 60 * minutes or soak.sets < 2:
            for process in processes:
                process.measure(seconds)
            time.sleep(min(1, 3 * minutes))
        soak.stopping.set()
        for process in processes:
            process.process.send_signal(signal.SIGTERM)
        for process in processes:
            process.process.wait(service.STOP)
        list(clients)
    faults = [f"{count} x {mistake}" for mistake, count in soak.mistakes.most_common(20)]
    faults += [fault for process in processes for fault in process.faults(noise)]
    return [*table(soak, processes), f"started in {started:.1f} s, ran for {seconds:.0f} s"], faults


def use_cache(folder):
    """Have the processes use this machine's cache of compiled code in place of an empty one."""
    cache.directory().mkdir(parents=True, exist_ok=True)
    (folder / "kernels").mkdir()
    (folder / "kernels" / "onnx_ops").symlink_to(cache.directory())


def leftovers(folder):
    """Return the files in the cache that are no compiled code."""
    return [file for file in folder.glob("kernels/onnx_ops/*") if file.suffix != ".code"]


def table(soak, processes):
    yield "| request | count | p50 | p90 | p99 | largest, ms |\n|---|---:|---:|---:|---:|---:|"
    for kind, times in sorted(soak.times.items()):
        known = [1000 * seconds for seconds in times if seconds is not None]
        cells = (
            [f"{value:,.0f}" for value in np.percentile(known, [50, 90, 99, 100])]
            if known
            else [""] * 4
        )
        yield f"| {kind} | {len(times):,} | {' | '.join(cells)} |"
    yield (
        "\n| process | requests | MiB in use after the warm-up | at the end | bytes per "
        "request | over time |"
    )
    yield "|---|---:|---:|---:|---:|---|"
    for k, process in enumerate(processes):
        sizes = [size / 2**20 for seconds, _, size, _ in process.samples]
        begin = sizes[int(len(sizes) * WARM_UP)]
        tenths = " ".join(f"{sizes[int(tenth * (len(sizes) - 1) / 10)]:.0f}" for tenth in range(11))
        cells = (
            f"{process.requests:,}",
            f"{begin:.0f}",
            f"{sizes[-1]:.0f}",
            f"{process.growth()[1]:.1f}",
            tenths,
        )
        yield f"| {k + 1} | {' | '.join(cells)} |"
    yield ""
    for process in processes:
        yield from (
            line for line in process.log.read_text().splitlines() if "came and went" in line
        )
