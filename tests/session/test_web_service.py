"""The image of docs/deployment.md: its files, and its Dockerfile's commands in plain folders."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx.reference import ReferenceEvaluator
from support.pages import ROOT, examples
from support.service import IMAGE, START, STOP, free_port, get, saved

import onnx_ops

PAGE = ROOT / "docs" / "deployment.md"
MODEL = ROOT / "models" / "exported" / "spatial_transformer" / "model.onnx"
SOURCES = "onnx_ops", "setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"
ABSENT = "onnx_ops", "__editable__", "__pycache__", "pip", "_distutils_hack", "distutils-"
FOLDERS = re.compile(r"(?<![\w./-])/(?=(?:source|wheels|opt|app)\b)")  # of the image

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform == "win32", reason="gunicorn needs Unix"),
]


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return [(instruction, arguments)] of a Dockerfile."""
    text = dockerfile.replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def make_python(folder: Path) -> Path:
    """Make an environment with the packages of this one, but onnx_ops; return its commands' folder.

    Links make pip take these packages for installed.
    """
    links = folder / "packages"
    links.mkdir(parents=True)
    for path in map(Path, dict.fromkeys(sys.path)):
        if any(path.glob("*.dist-info")):
            for entry in path.iterdir():
                if not entry.name.startswith(ABSENT) and not (links / entry.name).exists():
                    (links / entry.name).symlink_to(entry)
    venv.create(folder / "python", with_pip=True, symlinks=True)
    (site,) = (folder / "python" / "lib").glob("python*/site-packages")
    # Before those of the environment, as its setuptools may be too old.
    (site / "packages.pth").write_text(f"import sys; sys.path.insert(0, {str(links)!r})\n")
    commands = folder / "python" / "bin"
    (gunicorn,) = metadata.entry_points(group="console_scripts", name="gunicorn")
    script = f"#!{commands / 'python'}\nfrom {gunicorn.module} import {gunicorn.attr}\n"
    (commands / "gunicorn").write_text(f"{script}{gunicorn.attr}()\n")
    (commands / "gunicorn").chmod(0o755)
    return commands


class Image:
    """An image that is built in a folder, where its root is: variables, folder, port, commands."""

    def __init__(self, root: Path, context: Path, commands: Path) -> None:
        self.root, self.context = root, context
        self.port = free_port()
        self.folder = root
        self.variables = {
            "PATH": os.pathsep.join([str(commands), os.environ["PATH"]]),
            "HOME": str(root / "home"),
            "PIP_NO_INDEX": "1",  # all is there
            "PIP_NO_BUILD_ISOLATION": "0",  # that is: no isolation
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        self.commands: dict[str, list[str]] = {}

    def build(self) -> None:
        for name, arguments in instructions(examples(PAGE, "dockerfile")[0]):
            getattr(self, name.lower())(FOLDERS.sub(f"{self.root}/", arguments))

    def copy(self, arguments: str) -> None:
        *names, target = arguments.split()
        if names[0].startswith("--from="):  # both stages are one folder
            return
        for name in names:
            source, place = self.context / name, self.folder / target
            if source.is_dir():
                shutil.copytree(source, place)
            else:
                shutil.copy(source, place)

    def env(self, arguments: str) -> None:
        name, _, value = arguments.partition("=")
        self.variables[name] = value

    def workdir(self, arguments: str) -> None:
        self.folder = Path(arguments)
        self.folder.mkdir()

    def run(self, arguments: str) -> None:
        done = subprocess.run(
            ["sh", "-c", arguments],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def healthcheck(self, arguments: str) -> None:
        self.cmd(arguments.removeprefix("CMD "), "healthcheck")

    def cmd(self, arguments: str, name: str = "cmd") -> None:
        self.commands[name] = json.loads(arguments.replace("8000", str(self.port)))

    def ignore(self, arguments: str) -> None:
        """FROM, USER and EXPOSE: the folders are this user's, on this machine's network."""

    from_ = user = expose = ignore
    locals()["from"] = ignore

    def is_healthy(self) -> bool:
        command = self.commands["healthcheck"]
        return not subprocess.run(command, env=self.variables, capture_output=True).returncode

    @contextmanager
    def served(self) -> Iterator[subprocess.Popen[bytes]]:
        """A context in which the service runs; yields its process. SIGTERM ends it."""
        log = self.root / "log"
        with (
            log.open("w") as file,
            subprocess.Popen(
                self.commands["cmd"], cwd=self.folder, env=self.variables, stderr=file
            ) as process,
        ):
            try:
                deadline = time.monotonic() + START
                while not self.is_healthy():
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                yield process
                process.send_signal(signal.SIGTERM)
                process.wait(STOP)
            finally:
                process.kill()


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """The image of the page, built from a copy of the package's sources."""
    for name in ("fastapi", "gunicorn", "uvicorn_worker", "setuptools"):
        pytest.importorskip(name)
    context, root = tmp_path / "context", tmp_path / "root"
    (context / "onnx-ops").mkdir(parents=True)
    root.mkdir()
    for name in SOURCES:
        source, target = ROOT / name, context / "onnx-ops" / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    shutil.copy(MODEL, context)
    (app,) = (code for code in examples(PAGE, "python") if code.startswith("# app.py\n"))
    (context / "app.py").write_text(app)
    built = Image(root, context, make_python(tmp_path))
    built.build()
    return built


def kernels_of(image: Image) -> dict[Path, int]:
    files = Path(image.variables["NUMBA_CACHE_DIR"]).rglob("*.code")
    return {path: path.stat().st_mtime_ns for path in files}


def test_the_image_serves_the_model(image: Image) -> None:
    """Two workers compute what the reference does, refuse what is wrong, and compile nothing."""
    before = kernels_of(image)
    assert before
    url = f"http://127.0.0.1:{image.port}"
    with image.served() as process:
        assert len(psutil.Process(process.pid).children()) == 2
        assert get(f"{url}/health") == (200, b'{"status":"ready"}')
        answers = [get(f"{url}/predict", saved(IMAGE[:1])) for _ in range(4)]
        statuses = [
            (get(f"{url}/predict", content) or (0, b""))[0]
            for content in (b"nonsense", saved(IMAGE.astype(np.float64)), bytes(2**24 + 1))
        ]
    assert (process.returncode, statuses) == (0, [400, 400, 413])
    evaluator = ReferenceEvaluator(str(MODEL), new_ops=onnx_ops.reference_ops())
    (expected,) = evaluator.run(None, {"image": IMAGE[:1]})
    for answer in answers:
        assert answer is not None
        assert answer[0] == 200
        np.testing.assert_allclose(np.load(io.BytesIO(answer[1])), expected, atol=1e-3)
    assert kernels_of(image) == before
