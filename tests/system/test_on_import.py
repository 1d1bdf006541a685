"""An action that waits for the import of a module happens then, once, even if the module is looked
up before.
"""

import importlib.util
import sys
import threading

import onnx
import pytest
from support.cases import COL2IM, model
from support.processes import python, together
from support.selection import long_unless, needs_extensions

import onnx_ops
from onnx_ops.system.on_import import OnImport

pytestmark = pytest.mark.any_library

NAME = "a_module_to_wait_for"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The source file of the module, whose import takes a moment."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / f"{NAME}.py"
    path.write_text("import time\ntime.sleep(0.05)\nready = True\n")
    yield path
    sys.modules.pop(NAME, None)


@pytest.fixture
def hook(file):
    """The hook; its list `acts` records at each action whether the module was complete."""
    hook = OnImport(NAME, lambda: hook.acts.append(hasattr(sys.modules[NAME], "ready")))
    hook.acts = []
    return hook


def test_looking_up_is_not_importing(hook):
    for _ in range(3):
        assert importlib.util.find_spec(NAME).name == NAME
    assert hook.acts == []
    assert hook in sys.meta_path
    importlib.import_module(NAME)
    assert hook.acts == [True]
    assert hook not in sys.meta_path


def test_an_import_that_fails_does_not_count(hook, file):
    content = file.read_text()
    file.write_text("raise ImportError('not yet')")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    assert hook.acts == []
    file.write_text(content)
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert hook.acts == [True]


def test_a_module_that_is_not_there(hook, file):
    file.unlink()
    importlib.invalidate_caches()
    assert importlib.util.find_spec(NAME) is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    assert hook in sys.meta_path


def test_modules_that_are_there_or_forbidden(file, monkeypatch):
    """The action happens at once for a module that is there, and never for one that is None in
    sys.modules.
    """
    acts = []
    monkeypatch.setitem(sys.modules, NAME, None)
    OnImport(NAME, lambda: acts.append(True))
    assert acts == []
    monkeypatch.delitem(sys.modules, NAME)
    importlib.import_module(NAME)
    assert OnImport(NAME, lambda: acts.append(True)) not in sys.meta_path
    assert acts == [True, True]


def test_threads_that_look_up_and_import(hook):
    start = threading.Barrier(8)

    def work(thread_index):
        start.wait()
        for _ in range(20):
            if NAME not in sys.modules:
                importlib.util.find_spec(NAME)
            if thread_index % 2:
                assert importlib.import_module(NAME).ready

    together(work, 8)
    assert hook.acts == [True]


PLAIN_SESSION = """
import importlib.util, sys, threading
sys.modules["torch"] = None  # which onnxruntime-extensions would import
import onnx_ops
assert importlib.util.find_spec("onnxruntime_extensions") is not None
assert "onnxruntime_extensions" not in sys.modules
import onnxruntime
works = {
    "theirs": lambda: __import__("onnxruntime_extensions"),
    "ours": lambda: onnx_ops.register(onnxruntime.SessionOptions(), backend="extensions"),
}
threads = [threading.Thread(target=works[who]) for who in sys.argv[2:]]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
import onnxruntime_extensions
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
print([o.name for o in onnxruntime.InferenceSession(sys.argv[1], options).get_outputs()])
"""


@needs_extensions
@pytest.mark.parametrize(
    "importers",
    ["theirs ours theirs ours", *(long_unless(False, each) for each in ("theirs", "ours"))],
)
def test_plain_sessions_know_the_operators(importers, tmp_path):
    """They do although a library has looked onnxruntime_extensions up, as many do, and whoever
    imports it.
    """
    proto = model("", "Col2Im", COL2IM[0].inputs("float32"), COL2IM[0].attributes)
    onnx.save(onnx_ops.lower(proto), tmp_path / "lowered.onnx")
    assert python(PLAIN_SESSION, tmp_path / "lowered.onnx", *importers.split()).stdout == "['y']\n"
