"""A short run of scripts/measure/soak.py, and mistakes that it must see."""

import sys
from functools import partial

import pytest
from support import service, soak, soak_models
from support.service import replaced

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM there")
SHORT = {"minutes": 0.15, "patience": 1, "good": 8, "noise": 2**26}
ANSWER = "        content = io.BytesIO()\n        np.save(content, output)\n"
RUN = '            (output,) = session.run(None, {"image": image})\n'
PLANTED = {  # {mistake: (what is replaced in the service, by what, a part of the report)}
    "leak": (
        ANSWER,
        f"{ANSWER}        EXAMPLE[content] = bytearray(b'x') * 2**21\n",
        "memory grew by",
    ),
    "wrong result": (RUN, f"{RUN}            output = output + np.float32(1)\n", "a wrong result"),
    "other bits": (
        RUN,
        f"{RUN}            output[0, 0, 0, 0] += np.float32(os.urandom(1)[0] * 1e-7)\n",
        "other bits",
    ),
    "lost request": ("lambda *_: stopping.set()", "lambda *_: os._exit(0)", "good"),
    "exception": (ANSWER, ANSWER.replace("save", "store"), "Traceback"),
}


@pytest.fixture
def folder(tmp_path):
    """A folder with the models, and this process' cache of compiled code."""
    soak_models.prepare(tmp_path)
    soak.use_cache(tmp_path)
    return tmp_path


@pytest.mark.soak
def test_a_short_soak(folder):
    lines, faults = soak.run(folder, **SHORT)
    print(*lines, sep="\n")
    assert not faults


@pytest.mark.soak
def test_two_processes_fill_one_cache(tmp_path):
    soak_models.prepare(tmp_path)
    _, faults = soak.run(tmp_path, **SHORT, count=2)
    assert not faults
    assert not soak.leftovers(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistakes(folder, mistake):
    old, new, report = PLANTED[mistake]
    _, faults = soak.run(folder, **SHORT, change=lambda text: replaced(text, old, new))
    assert any(report in fault for fault in faults), faults


@pytest.mark.soak
@pytest.mark.parametrize(("patience", "is_served"), [(1, False), (8, True)])
def test_requests_that_arrive_late(patience, is_served, folder, monkeypatch):
    """A longer patience serves good requests of a busy machine.

    Clients that are slow on purpose are still cut off.
    """
    monkeypatch.setattr(service, "exchange", partial(service.exchange, pause=2))
    _, faults = soak.run(folder, **SHORT | {"patience": patience})
    assert any("fewer bytes" in fault for fault in faults) != is_served
    assert not is_served or not faults


@pytest.mark.parametrize(
    ("slope", "files", "is_wrong"),
    [(0, 0, False), (50, 0, False), (1000, 0, True), (0, 0.01, True)],
)
def test_what_counts_as_growth(slope, files, is_wrong, tmp_path):
    """Memory or open files that grow with the requests, after a warm-up in which they may."""
    process = soak.Process(0, type("Ended", (), {"returncode": 0}), tmp_path / "log")
    process.log.write_text("")
    for k in range(1000):
        warm = 2**28 if k > 100 else 0
        process.samples.append(
            (k, 100 * k, 2**27 + warm + slope * 100 * k, 20 + int(files * 100 * k))
        )
    assert bool([*process.faults(2**24)]) == is_wrong
