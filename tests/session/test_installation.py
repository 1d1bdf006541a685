"""`onnx_ops.install` and `onnx-ops exec`: programs that make ordinary sessions get those of
onnx_ops.
"""

import logging
import os
import subprocess
import sys
import venv

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime import InferenceSession  # a name that no assignment to the module changes
from support.commands import invoke
from support.processes import TESTS, environment, together
from support.selection import long_unless

import onnx_ops
from onnx_ops import system
from onnx_ops.session import installation

GRID_SAMPLE = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[1,1,3,4] x, float[1,2,2,2] f)
        => (float[1,1,2,2] y) { y = GridSample ATTRIBUTES (x, f) }"""
FEEDS = {
    "x": np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4),
    "f": np.zeros((1, 2, 2, 2), np.float32),
}
START = "import onnxruntime, sys\nfrom onnxruntime import InferenceSession as Session\n"
REFUSED = "<align_corners = 5>"  # attributes that ONNX Runtime accepts
KIND = "print(type(SESSION).__module__.split('.')[0])\n"


def model(attributes=""):
    return onnx.parser.parse_model(
        GRID_SAMPLE.replace("ATTRIBUTES", attributes)
    ).SerializeToString()


@pytest.fixture
def log(caplog):
    """The messages of the log so far."""
    caplog.set_level(logging.INFO, "onnx_ops")
    return lambda: [
        record.getMessage() for record in caplog.records if "session of" in record.getMessage()
    ]


@pytest.fixture
def path(tmp_path):
    """The file of a model with a GridSample."""
    file = tmp_path / "model.onnx"
    file.write_bytes(model())
    return file


def run_program(folder, *arguments, check=True, **variables):
    """Run `onnx-ops exec` in a folder; return the process."""
    command = [sys.executable, "-m", "onnx_ops", "exec", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment(**variables), capture_output=True, text=True
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(params=["here", long_unless(False, "in a process")])
def refuse(request, monkeypatch, tmp_path):
    """A function that calls `onnx-ops exec`, which must refuse to become another program; it
    returns what is said, in one line.
    """

    def refuse_here(*arguments):
        done = invoke("exec", *arguments, apart=True)
        assert (done.exit_code, done.stdout) == (2, "")
        return " ".join(done.stderr.split())

    def refuse_in_a_process(*arguments):
        done = run_program(tmp_path, *arguments, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        return " ".join(done.stderr.split())

    if request.param == "in a process":
        return refuse_in_a_process
    monkeypatch.setattr(system, "become", lambda command, _: pytest.fail(f"became {command}"))
    return refuse_here


# In a process


def test_operators_that_are_none_are_refused() -> None:
    with pytest.raises(
        onnx_ops.OpError, match=r"operators = 3: must be a result of onnx_ops\.operator"
    ):
        onnx_ops.install(operators=3)  # type: ignore[arg-type]
    assert InferenceSession.__init__ is not installation.make_session


def test_every_name_of_the_class_makes_sessions_of_onnx_ops(kernels_made):
    with onnx_ops.install():
        for make in (onnxruntime.InferenceSession, InferenceSession):
            session = make(model())
            assert type(session) is onnx_ops.InferenceSession
            assert isinstance(session, InferenceSession)
            assert session.run(None, FEEDS)[0].shape == (1, 1, 2, 2)
    assert kernels_made.titles() == ["GridSample"] * 2


def test_the_end_restores_the_class_and_the_environment():
    before = dict(os.environ)
    effect = onnx_ops.install(optimize=True)
    inner = onnx_ops.install()
    inner.close()
    assert (
        '"optimize": true' in os.environ[installation.VARIABLE]
    )  # of the outer one, which still applies
    effect.close()
    effect.close()
    assert type(InferenceSession(model())) is InferenceSession
    assert dict(os.environ) == before


def test_names_in_a_model_are_escaped_in_the_log(log):
    proto = onnx.load_model_from_string(model(REFUSED))
    proto.graph.node[0].name = "node\x1b[2J\nforged\u202e"
    with (
        onnx_ops.install(),
        pytest.warns(UserWarning, match=r"node.x1b\[2J.nforged.u202e") as caught,
    ):
        InferenceSession(proto.SerializeToString())
    assert all(text.isprintable() for text in (*log(), *(str(each.message) for each in caught)))


class Derived(InferenceSession):
    """A program's class, with an attribute that it sets before the session is made."""

    def __init__(self, *arguments, **keywords):
        self.marks = ["derived"]
        super().__init__(*arguments, **keywords)

    def run(self, *arguments, **keywords):
        return [*self.marks, *super().run(*arguments, **keywords)]


def test_a_derived_class_keeps_its_methods():
    with onnx_ops.install():
        session = Derived(model(), onnxruntime.SessionOptions(), ["CPUExecutionProvider"])
    assert isinstance(session, Derived)
    assert isinstance(session, onnx_ops.InferenceSession)
    assert session.run(["y"], FEEDS)[0] == "derived"


class Wrapper(InferenceSession):
    """A class with an attribute and a method that a session of onnx_ops might need itself."""

    def __init__(self, content):
        super().__init__(content)
        self._ready = self._native_run = True

    def get_providers(self):
        return [str(self._ready)]


class Registered(InferenceSession):
    def __init_subclass__(cls, *, key):
        raise AssertionError


def test_a_derived_class_may_have_names_of_its_own():
    with onnx_ops.install():
        session = Wrapper(model())
        assert isinstance(session, onnx_ops.InferenceSession)
        assert session.get_providers() == ["True"]
        assert session.run(None, FEEDS)[0].shape == (1, 1, 2, 2)
        with pytest.warns(UserWarning, match="ONNX Runtime alone runs it, since .*'key'"):
            assert type(Registered(model())) is Registered


def test_a_derived_class_keeps_its_attributes_where_onnx_runtime_alone_runs_it():
    with onnx_ops.install(), pytest.warns(UserWarning, match="ONNX Runtime alone runs it"):
        session = Derived(model(REFUSED))
    assert type(session) is Derived
    assert session.run(["y"], FEEDS)[0] == "derived"


def test_a_constructor_that_outlives_the_installation():
    """Another thread may have looked it up before the end."""
    with onnx_ops.install():
        make = InferenceSession.__init__
    session = InferenceSession.__new__(InferenceSession)
    make(session, model())
    assert type(session) is InferenceSession
    assert session.run(None, FEEDS)[0].shape == (1, 1, 2, 2)


def test_custom_operators_are_served():
    @onnx_ops.operator("installed::double", inputs="x: float32", outputs="y: float32")
    def double(x):
        return 2 * x

    text = (
        '<ir_version: 9, opset_import: ["installed" : 1]> g (float[2] x) => (float[2] y) { y '
        "= installed.double(x) }"
    )
    with onnx_ops.install(operators=[double]):
        session = InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [2, 2]


def test_threads_make_sessions_at_the_same_time():
    options = onnxruntime.SessionOptions()
    with onnx_ops.install(optimize=True):
        sessions = together(lambda k: InferenceSession(model(), options if k % 2 else None), 8)
    assert {type(session) for session in sessions} == {onnx_ops.InferenceSession}


@pytest.mark.parametrize("has_options", [False, True])
def test_onnx_runtime_alone_runs_what_onnx_ops_refuses(has_options, log):
    """Options that have the operators already don't stand in the way, and serve the next
    session.
    """
    options = onnxruntime.SessionOptions() if has_options else None
    expected = InferenceSession(model(REFUSED)).run(None, FEEDS)
    with onnx_ops.install():
        with pytest.warns(
            UserWarning,
            match=r"ONNX Runtime alone runs it, since GridSample: align_corners = 5: must",
        ):
            session = InferenceSession(model(REFUSED), options)
        assert type(session) is InferenceSession
        np.testing.assert_array_equal(session.run(None, FEEDS), expected)
        assert isinstance(InferenceSession(model(), options), onnx_ops.InferenceSession)
    assert "unchanged, since GridSample: align_corners = 5" in log()[0]


def test_the_error_is_that_of_onnx_runtime_if_it_fails_alone():
    with onnx_ops.install():
        with pytest.raises(Exception, match="INVALID_PROTOBUF"):
            InferenceSession(b"no model")
        with pytest.raises(TypeError, match="Unable to load from type"):
            InferenceSession(1)


@pytest.fixture
def other_provider(monkeypatch):
    """A provider that ONNX Runtime is said to have, and on which all sessions are said to run."""
    name = "OtherExecutionProvider"
    monkeypatch.setattr(installation.ort, "get_available_providers", lambda: [name])
    monkeypatch.setattr(InferenceSession, "get_providers", lambda session: [name])
    return name


@pytest.mark.filterwarnings(
    "ignore:Specified provider 'OtherExecutionProvider' is not in available"
)
def test_sessions_on_other_providers_stay_as_they_are(other_provider, log):
    with onnx_ops.install():
        session = InferenceSession(
            model(), providers=[(other_provider, {}), "CPUExecutionProvider"]
        )
    assert type(session) is InferenceSession
    assert log()[0].endswith("unchanged, since it runs on OtherExecutionProvider")


def test_sessions_on_providers_of_the_options_stay_as_they_are(other_provider, log):
    """The session alone knows them."""
    options = onnxruntime.SessionOptions()
    with (
        onnx_ops.install(),
        pytest.warns(UserWarning, match="other nodes may run on OtherExecutionProvider"),
    ):
        session = InferenceSession(model(), options)
    assert type(session) is InferenceSession
    assert log()[0].endswith("unchanged, since it runs on OtherExecutionProvider")


@pytest.mark.filterwarnings(
    "ignore:Specified provider 'OtherExecutionProvider' is not in available"
)
def test_providers_that_fall_back_to_the_cpu_do_not_count(monkeypatch):
    monkeypatch.setattr(
        installation.ort, "get_available_providers", lambda: ["OtherExecutionProvider"]
    )
    with onnx_ops.install():
        session = InferenceSession(
            model(), providers=["OtherExecutionProvider", "CPUExecutionProvider"]
        )
    assert type(session) is onnx_ops.InferenceSession


def test_the_provider_of_azure_runs_no_nodes():
    """Every package for the CPU has it."""
    with onnx_ops.install():
        session = InferenceSession(model(), providers=onnxruntime.get_available_providers())
    assert type(session) is onnx_ops.InferenceSession


def test_the_log_says_what_a_session_gains(path, log):
    add = (
        '<ir_version: 9, opset_import: ["" : 20]> g (float[1] x) => (float[1] y) { y = Add(x, x) }'
    )
    warp = TESTS.parent / "models/exported/spatial_transformer/model.onnx"
    with onnx_ops.install(optimize=True):
        InferenceSession(path)
        InferenceSession(onnx.parser.parse_model(add).SerializeToString())
        InferenceSession(str(warp))
    assert log()[0] == f"onnx_ops: session of {path}: onnx_ops runs GridSample"
    assert log()[1].endswith(
        "gains nothing, since it has no node of these operators, and nothing was fused"
    )
    assert log()[2].endswith("onnx_ops runs ComputedGridSample and has fused grid_sample")


def test_builtin_kernels_run_where_they_are_asked_for(path, kernels_made):
    with onnx_ops.install():
        onnx_ops.Runner(path, backend="builtin").session  # noqa: B018  makes it
    assert len(kernels_made) == 0


# As a program


PROGRAMS = {
    "by the module": START + KIND.replace("SESSION", "onnxruntime.InferenceSession(sys.argv[1])"),
    "by name": START + KIND.replace("SESSION", "Session(sys.argv[1])"),
    "imported later": "import sys\n"
    + KIND.replace("SESSION", "__import__('onnxruntime').InferenceSession(sys.argv[1])"),
    "in threads": START
    + "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor() as pool:\n"
    + "    (session,) = pool.map(Session, sys.argv[1:])\n"
    + KIND.replace("SESSION", "session"),
    "in a process": "import subprocess, sys\n"
    + f"code = {START + KIND.replace('SESSION', 'Session(sys.argv[1])')!r}\n"
    + "subprocess.run([sys.executable, '-c', code, sys.argv[1]])",
    "in a spawned process": START
    + "from multiprocessing import get_context\n"
    + "def kind(path):\n    return type(Session(path)).__module__.split('.')[0]\n"
    + "if __name__ == '__main__':\n    with get_context('spawn').Pool(1) as pool:\n"
    + "        print(pool.map(kind, sys.argv[1:])[0])\n",
    "after onnx_ops": "from onnx_ops import InferenceSession\n"
    + START
    + KIND.replace("SESSION", "Session(sys.argv[1])"),
    "after an installation of its own": START
    + "import onnx_ops\nwith onnx_ops.install():\n    pass\n"
    + KIND.replace("SESSION", "Session(sys.argv[1])"),
    "replaced by a lambda": START
    + "import onnx_ops\nonnxruntime.InferenceSession = lambda *given: "
    "onnx_ops.InferenceSession(*given)\n"
    + KIND.replace("SESSION", "onnxruntime.InferenceSession(sys.argv[1])"),
}


# Other tests here have programs that find the class by its name, or replace it.
@pytest.mark.parametrize("name", [long_unless(name == "in a process", name) for name in PROGRAMS])
def test_program(name, path, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAMS[name])
    done = run_program(tmp_path, "--optimize", "--verbose", script, path)
    assert done.stdout == "onnx_ops\n"
    if name != "replaced by a lambda":  # which makes a session of onnx_ops itself
        assert f"onnx_ops: session of {path}: onnx_ops runs GridSample" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("replacement", [
    "lambda *given: onnx_ops.InferenceSession(*given)",
    "functools.partial(onnx_ops.InferenceSession, optimize=True)",
    "type('Wrapper', (), {'__init__': lambda self, path: setattr(self, 'made', "
    "onnx_ops.InferenceSession(path))})",
])  # fmt: skip
def test_a_program_may_replace_the_class_before_onnx_ops_needs_it(replacement, path):
    code = (
        "import functools, sys, onnxruntime, onnx_ops\nonnxruntime.InferenceSession = "
        f"{replacement}\n"
    )
    code += "made = onnxruntime.InferenceSession(sys.argv[1])\n"
    code += "print(isinstance(getattr(made, 'made', made), onnx_ops.InferenceSession))"
    done = subprocess.run(
        [sys.executable, "-c", code, path], env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "True\n", done.stderr


def test_modules_and_their_options_belong_to_the_program(tmp_path):
    """And the environment's sitecustomize is imported."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    (tmp_path / "module.py").write_text(
        "import sitecustomize, sys\n"
        "print(sys.argv[1:], customized, sitecustomize.__file__)\n"
        "sys.exit(7)"
    )
    done = run_program(
        tmp_path,
        "-m",
        "module",
        "--optimize",
        "--help",
        "--",
        "-m",
        check=False,
        PYTHONPATH=tmp_path,
    )
    customized = f"True {tmp_path / 'sitecustomize.py'}"
    assert done.stdout == f"['--optimize', '--help', '--', '-m'] {customized}\n"
    assert done.returncode == 7


CUSTOM = """import onnx_ops
@onnx_ops.operator('mine::double', inputs='x: float32', outputs='y: float32')
def double(x):
    return 2 * x
"""


def test_custom_operators_of_files(tmp_path):
    (tmp_path / "mine.py").write_text(CUSTOM)
    text = (
        '<ir_version: 9, opset_import: ["mine" : 1]> g (float[1] x) => (float[1] y) { y = '
        "mine.double(x) }"
    )
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    (tmp_path / "program.py").write_text(
        "import numpy, onnxruntime\nsession = onnxruntime.InferenceSession('m.onnx')\n"
        "print(session.run(None, {'x': numpy.ones(1, numpy.float32)}))"
    )
    command = [sys.executable, "-m", "onnx_ops", "--operators", "mine.py", "exec", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert "2." in done.stdout, done.stderr


@pytest.mark.parametrize("before", ["", "elsewhere", "elsewhere:other"])
def test_the_path_of_modules_gets_one_folder(before):
    """An empty part would be the current folder."""
    settings = installation.settings_of(optimize=False)
    inside = installation.environment({"PYTHONPATH": before}, settings)
    assert inside["PYTHONPATH"].split(os.pathsep) == [
        str(installation.START),
        *filter(None, before.split(":")),
    ]
    assert installation.environment(inside, settings) == inside
    assert installation.environment(inside, None) == ({"PYTHONPATH": before} if before else {})


@pytest.mark.long
def test_a_sitecustomize_that_fails_changes_nothing(path, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    (tmp_path / "program.py").write_text(PROGRAMS["by name"])
    done = run_program(tmp_path, "program.py", path, PYTHONPATH=tmp_path)
    assert done.stdout == "onnx_ops\n"
    assert "No module named 'no_such_module'" in done.stderr  # as Python itself reports it


@pytest.mark.parametrize("options", ["-E", "-I", "-sS"])
def test_pythons_that_ignore_their_environment_are_refused(options, refuse, tmp_path):
    (tmp_path / "program.py").write_text("print('ran')")
    add_command(tmp_path, f"#!/usr/bin/env -S {sys.executable} {options}", "print('ran')")
    for command in ([sys.executable, options, tmp_path / "program.py"], [tmp_path / "program"]):
        said = refuse(*command)
        assert f"runs in a Python that ignores its environment ({options})" in said


COMMANDS = [
    "#!{python}",
    "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''",  # as pip writes it for a long path
    "#!/usr/bin/env python3",
]


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory):
    """The folder of commands of an environment without packages."""
    folder = tmp_path_factory.mktemp("environments") / "with a space"
    venv.create(folder)
    return folder / "bin"


def add_command(folder, first_lines, code):
    command = folder / "program"
    command.write_text(f"{first_lines}\n{code}")
    command.chmod(0o755)
    return command


@pytest.mark.parametrize("first_lines", COMMANDS)
def test_commands_of_other_environments_are_refused(
    first_lines, bare_environment, refuse, tmp_path, monkeypatch
):
    if first_lines == "#!{python}" and " " in str(bare_environment):
        first_lines = COMMANDS[1]
    add_command(tmp_path, first_lines.format(python=bare_environment / "python3"), "print('ran')")
    path = os.pathsep.join([str(bare_environment), str(tmp_path), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    said = refuse("program")
    assert f"{bare_environment / 'python3'}, which has no onnx_ops; install it" in said


@pytest.mark.parametrize("first_lines", [long_unless(False, COMMANDS[0]), COMMANDS[1]])
def test_commands_of_this_environment_run(first_lines, path, tmp_path):
    add_command(tmp_path, first_lines.format(python=sys.executable), PROGRAMS["by name"])
    done = run_program(tmp_path, tmp_path / "program", path)
    assert done.stdout == "onnx_ops\n"


def test_processes_of_other_environments_stay_as_they_are(bare_environment, tmp_path):
    """They say so where they import onnxruntime, of which there is a stand-in."""
    (tmp_path / "onnxruntime.py").write_text("print('imported')")
    script = tmp_path / "program.sh"
    script.write_text(
        f"#!/bin/sh\ncd '{tmp_path}'\n'{bare_environment}/python3' -c 'import onnxruntime'\n"
    )
    script.chmod(0o755)
    done = run_program(bare_environment, script)  # where there is no stand-in
    assert done.stdout == "imported\n"
    assert f"onnx_ops is not used by {bare_environment}/python3" in done.stderr


@pytest.mark.parametrize(("arguments", "problem"), [
    (["nowhere.py"], "there is no script nowhere.py"),
    (["no-such-command"], "no-such-command must be a Python script"),
    (["-m"], "Missing argument 'PROGRAM'"),
    ([], "Missing argument 'PROGRAM'"),
    (["--optimise", "x.py"], "No such option"),
])  # fmt: skip
def test_wrong_commands(arguments, problem, refuse):
    assert problem in refuse(*arguments)
