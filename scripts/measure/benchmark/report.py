"""Present measurements of named cases: as a table for the terminal, as data, and in sentences."""

import os
import platform
import textwrap
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean

from rich.table import Table
from support import peers

from .measure import ALONE, CUSTOM, LIMIT, READS

TINY = 2**12  # bytes: smaller cases take the time of a call, not of a kernel
COLUMNS = {
    CUSTOM: CUSTOM, f"{CUSTOM} run": "run", "extensions": "extensions", "extensions run": "run",
    **{c: h for p in peers.PEERS
        for c, h in ((p, p), *([(f"{p} run", "run")] if p == "ONNX Runtime" else []))},
    LIMIT: LIMIT, READS: READS,
}  # fmt: skip

DISTRIBUTIONS = {
    name: name.replace(" ", "").replace("PyTorch", "torch").lower() for name in peers.PEERS
}


def milliseconds(row, column):
    time = row.time(column)
    return (
        "differs"
        if column in row.differ
        else ""
        if time is None
        else f"{time * 1e3:.{3 if time < 0.01 else 1}f}"
    )


def described(row):
    return row.case.name + ("" if row.case.dtype == "float32" else f", {row.case.dtype}")


def factor(value):
    return "" if value is None else f"{value:.2f} x"


def percent(value):
    return "" if value is None else f"{value * 100:.0f} %"


def data_size(row):
    megabytes = row.bytes / 1e6
    return (
        f"{megabytes:.{0 if megabytes >= 9.95 else 1 if megabytes >= 0.05 else 4}f} MB, "
        f"{row.within}"
    )


def table_of(group, rows, threads):
    table = Table(title=f"{group}: milliseconds, {threads} threads")
    for header in ("", "case", "data"):
        table.add_column(header)
    columns = [c for c in COLUMNS if any(c in row.seconds or c in row.differ for row in rows)]
    for header in (
        *map(COLUMNS.get, columns),
        "to fastest peer",
        "of limit",
        "of reads",
        "to one thread",
    ):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(
            row.case.op_type, described(row), data_size(row),
            *(milliseconds(row, c) for c in columns),
            factor(row.to_fastest), percent(row.of_limit), percent(row.of_reads),
            factor(row.speed_up),
        )  # fmt: skip
    return table


def sentences(group, rows):
    """Yield the group's figures, one line each."""
    for op_type in dict.fromkeys(row.case.op_type for row in rows):
        custom_rows = [row for row in rows if row.case.op_type == op_type]
        ratios = [row.to_fastest for row in custom_rows if row.to_fastest]
        if ratios:
            mean, least = map(factor, (geometric_mean(ratios), min(ratios)))
            yield f"{op_type}: {mean} the fastest peer, geometric mean; least {least}"
        bounded = [
            row
            for row in custom_rows
            if row.to_fastest and READS in row.seconds and row.bytes >= TINY
        ]
        if bounded:
            ours = [row.to_fastest for row in bounded]
            bound = [row.to_fastest / row.of_reads for row in bounded]
            means = (
                f"{factor(geometric_mean(ours))}, the reads alone {factor(geometric_mean(bound))}"
            )
            yield (
                f"{op_type}, where reads are measured: {means}; least {factor(min(ours))}, "
                f"{factor(min(bound))}"
            )
    for row in rows:
        over = row.over("ONNX Runtime")
        if over is not None and row.bytes < TINY:
            yield (
                f"{row.case.op_type} {row.case.name}: {over * 1e6:+.1f} us to ONNX Runtime's kernel"
            )
    scaled = [row for row in rows if row.time(CUSTOM + ALONE) and row.time(CUSTOM + ALONE) > 2e-3]
    if scaled:
        least = min(scaled, key=lambda row: row.speed_up)
        limits = (
            f" (a plain pass there: {factor(least.ratio(LIMIT + ALONE, LIMIT))})"
            if LIMIT in least.seconds
            else ""
        )
        yield (
            f"over one thread, cases over 2 ms: least {factor(least.speed_up)}, "
            f"{least.case.name}{limits}"
        )
    if group == "dtypes":
        yield from by_dtype(rows)
    if group == "scaling":
        yield from by_size(rows)


def by_dtype(rows):
    for name in dict.fromkeys(row.case.series for row in rows):
        base, *rows_of_series = (row for row in rows if row.case.series == name)
        factors = ", ".join(
            f"{row.case.dtype} {factor(base.ratio(CUSTOM, of=row))}" for row in rows_of_series
        )
        yield f"{base.case.op_type} {base.case.name}: time relative to {base.case.dtype}: {factors}"


def by_size(rows):
    rows_by_kind = {}
    for row in rows:
        rows_by_kind.setdefault((row.case.op_type, row.case.attributes.get("mode", "")), []).append(
            row
        )
    for (op_type, mode), custom_rows in rows_by_kind.items():
        shares = [row.of_limit for row in custom_rows if row.of_limit]
        if shares:
            percentages = " ".join(percent(f).replace(" ", "") for f in shares)
            yield (
                f"{op_type} {mode}: of the limit, by size: {percentages}; varies "
                f"{max(shares) / min(shares):.2f} x"
            )


def data(row):
    """The data of a row, for JSON."""
    return {
        "group": row.group, "operator": row.case.op_type, "case": row.case.name,
        "dtype": row.case.dtype,
        "threads": row.threads, "bytes": row.bytes, "elements": row.elements, "within": row.within,
        "milliseconds": {c: row.time(c) * 1e3 for c in row.seconds}, "differ": row.differ,
        "to_fastest_peer": row.to_fastest, "of_limit": row.of_limit, "of_reads": row.of_reads,
        "to_one_thread": row.speed_up,
    }  # fmt: skip


def processor():
    """The processor, as the system calls it, and as LLVM does, which tells more of many virtual
    machines.
    """
    import llvmlite.binding as llvm

    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} ({llvm.get_host_cpu_name()})"


def setting(note):
    """A paragraph for docs/performance.md: what was timed where, and a note."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = ", ".join(
        f"{name} {version(distribution)}" for name, distribution in DISTRIBUTIONS.items()
    )
    return textwrap.fill(f"float32, {cores} cores of {processor()}, {versions}, {note}.", 120)
