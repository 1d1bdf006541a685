"""A run on many files by Ray Data.

It distributes items, bounds what is in flight and retries in new processes.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import sys
import sysconfig
import warnings
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from .. import OpError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from types import ModuleType

    from .items import Item, Work
    from .types import Report


PATIENCE = 5  # seconds for a connection
ATTEMPTS = 3  # at an item, each in another process


def run_row(row: dict[str, bytes], work: Work) -> Report:
    """Run an item; return its name, the reason if it failed, and whether that ends the run."""
    item = pickle.loads(row["item"])
    try:
        return {"name": item.name, "reason": work(item) or "", "ends_run": False}
    except OpError as error:
        return {"name": item.name, "reason": error.rule, "ends_run": True}


def run_on_cluster(
    work: Work, items: Sequence[Item], address: str, threads: int
) -> Generator[tuple[str, str | None], None, None]:
    """Run items on a cluster; yield (name, reason if it failed) as items end.

    threads  number of CPUs for each item

    All machines read and write the files at the same paths as this one. Raises OpError.
    """
    if not items:
        return
    with connection(address) as ray:
        if all(node["Resources"].get("CPU", 0) < threads for node in ray.nodes() if node["Alive"]):
            raise OpError(
                "threads",
                threads,
                f"no machine of the cluster {address} has so many CPUs",
                "onnx_ops",
            )
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # A block has one item; those that end their processes end no other one.
        context.max_errored_blocks = -1
        rows = ray.data.from_items(
            [{"item": pickle.dumps(item)} for item in items], override_num_blocks=len(items)
        )
        with warnings.catch_warnings():
            # From Ray 2.64 on, nothing states the number of attempts, which is infinite by default.
            warnings.simplefilter("ignore", DeprecationWarning)
            outcomes = rows.map(
                run_row, fn_kwargs={"work": work}, num_cpus=threads, max_retries=ATTEMPTS - 1
            )
        remaining = dict.fromkeys(item.name for item in items)
        for row in outcomes.iter_rows():
            if row["ends_run"]:
                raise OpError(None, None, row["reason"], "onnx_ops")
            del remaining[row["name"]]
            yield row["name"], row["reason"]
        for name in remaining:
            yield name, f"{ATTEMPTS} processes that worked on it have ended"


@contextmanager
def connection(address: str) -> Iterator[ModuleType]:
    """Return a context in which Ray is connected to a cluster; it yields Ray's module.

    Raises OpError.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        rule = (
            'needs Ray Data: pip install "ray[data]>=2.40,<2.64", on every machine of the cluster'
        )
        raise OpError("cluster", repr(address), rule, "onnx_ops") from error
    with redirect_stdout(sys.stderr):  # Ray's messages about processes that end
        try:
            # Ray by itself would try for two minutes.
            if host_and_port := re.search(r"([^/]+):(\d+)$", address):
                socket.create_connection(
                    (host_and_port[1], int(host_and_port[2])), PATIENCE
                ).close()
            before = os.getcwd()
            # Ray's processes import from the current folder of this one.
            os.chdir(sysconfig.get_path("stdlib"))
            try:
                ray.init(address=address, logging_level="error", log_to_driver=False)
            finally:
                os.chdir(before)
            # Blocks that failed are reported as items.
            logging.getLogger("ray.data").setLevel(logging.CRITICAL)
            yield ray
        except OpError:
            raise
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise OpError(
                "cluster", repr(address), f"can't be used: {error}", "onnx_ops"
            ) from error
        finally:
            ray.shutdown()
