"""What was measured, as a table for the terminal or the README, as data, and in sentences."""

from statistics import geometric_mean

import peers
from rich.table import Table

from .measure import ALONE, LIMIT, OWN

COLUMNS = {
    OWN: OWN, f"{OWN} run": "run", "extensions": "extensions", "extensions run": "run",
    **{c: h for p in peers.PEERS for c, h in ((p, p), *([(f"{p} run", "run")] if p == "ONNX Runtime" else []))},
    LIMIT: LIMIT,
}  # fmt: skip


def milliseconds(row, column):
    time = row.time(column)
    return "differs" if column in row.differ else "" if time is None else f"{time * 1e3:.{3 if time < 0.01 else 1}f}"


def factor(value):
    return "" if value is None else f"{value:.2f} x"


def percent(value):
    return "" if value is None else f"{value * 100:.0f} %"


def table(group, rows, threads):
    made = Table(title=f"{group}: milliseconds, {threads} threads")
    for header in ("", "case", "data"):
        made.add_column(header)
    shown = [c for c in COLUMNS if any(c in row.seconds or c in row.differ for row in rows)]
    for header in (*map(COLUMNS.get, shown), "to fastest peer", "of limit", "to one thread"):
        made.add_column(header, justify="right")
    for row in rows:
        described = row.case.name + ("" if row.case.dtype == "float32" else f", {row.case.dtype}")
        made.add_row(
            row.case.op_type, described, f"{row.bytes / 1e6:.2f} MB, {row.within}",
            *(milliseconds(row, c) for c in shown),
            factor(row.to_fastest), percent(row.of_limit), factor(row.speed_up),
        )  # fmt: skip
    return made


def sentences(group, rows):
    """The group's figures, one line each."""
    for op_type in dict.fromkeys(row.case.op_type for row in rows):
        own = [row for row in rows if row.case.op_type == op_type]
        ratios = [row.to_fastest for row in own if row.to_fastest]
        if ratios:
            mean, least = map(factor, (geometric_mean(ratios), min(ratios)))
            yield f"{op_type}: {mean} the fastest peer, geometric mean; least {least}"
    tiny = [row for row in rows if row.time() < 1e-4 and row.time("ONNX Runtime")]
    for row in tiny:
        over = (row.time() - row.time("ONNX Runtime")) * 1e6
        yield f"{row.case.op_type} {row.case.name}: {over:+.1f} us to ONNX Runtime's kernel"
    scaled = [row for row in rows if row.time(OWN + ALONE) and row.time(OWN + ALONE) > 2e-3]
    if scaled:
        least = min(scaled, key=lambda row: row.speed_up)
        limits = f" (a plain pass there: {factor(least.ratio(LIMIT + ALONE, LIMIT))})" if LIMIT in least.seconds else ""
        yield f"over one thread, cases over 2 ms: least {factor(least.speed_up)}, {least.case.name}{limits}"
    if group == "dtypes":
        yield from by_dtype(rows)
    if group == "scaling":
        yield from by_size(rows)


def by_dtype(rows):
    for name in dict.fromkeys(row.case.series for row in rows):
        base, *others = (row for row in rows if row.case.series == name)
        found = ", ".join(f"{row.case.dtype} {factor(base.ratio(OWN, of=row))}" for row in others)
        yield f"{base.case.op_type} {base.case.name}: time relative to {base.case.dtype}: {found}"


def by_size(rows):
    kinds = {}
    for row in rows:
        kinds.setdefault((row.case.op_type, row.case.attributes.get("mode", "")), []).append(row)
    for (op_type, mode), own in kinds.items():
        found = [row.of_limit for row in own if row.of_limit]
        if found:
            shown = " ".join(percent(f).replace(" ", "") for f in found)
            yield f"{op_type} {mode}: of the limit, by size: {shown}; varies {max(found) / min(found):.2f} x"


def data(row):
    """A row for JSON."""
    return {
        "group": row.group, "operator": row.case.op_type, "case": row.case.name, "dtype": row.case.dtype,
        "threads": row.threads, "bytes": row.bytes, "elements": row.elements, "within": row.within,
        "milliseconds": {c: row.time(c) * 1e3 for c in row.seconds}, "differ": row.differ,
        "to_fastest_peer": row.to_fastest, "of_limit": row.of_limit, "to_one_thread": row.speed_up,
    }  # fmt: skip
