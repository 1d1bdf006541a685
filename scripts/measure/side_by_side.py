"""Compare models that compute the same, each in a process of its own: time, memory, and where the
time goes.

python scripts/measure/side_by_side.py WAY=MODEL ...
    [--input FILE] [--turns N] [--threads N | --cpu]

WAY is builtin, onnx_ops or optimized, as `onnx-ops bench` has them. The first model gets what
--input gives, as of `onnx-ops bench`, and made-up inputs else; the others get the same in the same
order. The processes take turns; factors are medians of the ratios to the first one within a turn.
Memory is the peak of a process, with the model, and without what `onnx-ops optimize` needs where it
has run before. --cpu measures the CPU time of one thread, which depends less on what else the
machine does.

What `optimize` gains where deformable convolutions are written as nodes, from the exports of
scripts/measure/networks.py:

onnx-ops optimize birefnet_ts/model.onnx optimized.onnx
python scripts/measure/side_by_side.py builtin=birefnet_ts/model.onnx \\
    builtin=birefnet/model.onnx onnx_ops=optimized.onnx
"""

import argparse
import multiprocessing
import time
from pathlib import Path
from statistics import median

import numpy as np

from onnx_ops.cli.bench import open_way, profile
from onnx_ops.cli.data import feeds

SHOWN = 4  # types of operators
RUNS = 3  # under the profiler


def serve(connection, way, model, threads, clock, feeds_of_caller, arrays):
    """Run a model at each "run" that arrives, and send the seconds; at the end its peak memory and
    its operators.
    """
    runner = open_way(model, way, threads)
    arrays = arrays or feeds(runner.inputs, feeds_of_caller, random=True)[0].values()
    inputs = dict(zip(runner.inputs, arrays, strict=True))
    connection.send(([*arrays], [*runner(inputs).values()]))
    while connection.recv() == "run":
        start = clock()
        runner(inputs)
        connection.send(clock() - start)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    connection.send(
        (int(status["VmHWM"].split()[0]) / 1024, profile(model, way, threads, inputs, RUNS))
    )


def started(way, model, *arguments):
    """Return the connection to a process that serves a model, its inputs and its outputs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(theirs, way, model, *arguments), daemon=True).start()
    return ours, *ours.recv()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="WAY=MODEL")
    parser.add_argument("--input", metavar="FILE", nargs="+", default=[])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    settings = (1, time.process_time) if options.cpu else (options.threads, time.perf_counter)
    connections, inputs, first = [], None, None
    for way_and_model in options.models:
        connection, inputs, outputs = started(
            *way_and_model.split("=", 1), *settings, options.input, inputs
        )
        first = first or outputs
        pairs = zip(outputs, first, strict=True)
        off = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
        print(
            f"{way_and_model}: off from the first by {off:.0e} of the largest magnitude", flush=True
        )
        connections.append(connection)
    turns = []
    for _ in range(options.turns):
        turns.append([])
        for connection in connections:
            connection.send("run")
            turns[-1].append(connection.recv())
        print(*(f"{seconds * 1e3:.1f}" for seconds in turns[-1]), "ms", flush=True)
    for k, (way_and_model, connection) in enumerate(zip(options.models, connections, strict=True)):
        connection.send("end")
        peak, operators = connection.recv()
        factor = median(turn[0] / turn[k] for turn in turns)
        longest = ", ".join(
            f"{o['operator']} {o['seconds'] * 1e3:.0f} ms" for o in operators[:SHOWN]
        )
        seconds = median(turn[k] for turn in turns)
        print(
            f"{way_and_model}: {seconds * 1e3:.1f} ms, {factor:.2f} x, {peak:.0f} MiB; {longest}",
            flush=True,
        )


if __name__ == "__main__":
    main()
