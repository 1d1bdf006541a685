"""A file that is written replaces an existing one completely or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest
from support.files import contents

from onnx_ops.system.files import staged, staged_file, write

pytestmark = pytest.mark.any_library


def test_files_replace_those_of_their_name(tmp_path):
    directory = tmp_path / "new" / "folder"
    with staged(directory) as folder:
        (folder / "a").write_text("first")
    with staged(directory) as folder:
        (folder / "a").write_text("second")
        (folder / "b").write_text("other")
        assert contents(directory)["a"] == b"first"
    assert contents(tmp_path / "new") == {"folder/a": b"second", "folder/b": b"other"}
    assert os.listdir(directory.parent) == ["folder"]
    assert sorted(os.listdir(directory)) == ["a", "b"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_is_touched_where_the_block_raises(error, tmp_path):
    (tmp_path / "a").write_text("first")

    def write_half():
        with staged(tmp_path) as folder:
            (folder / "a").write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "first"


def test_models_come_after_their_data(tmp_path, monkeypatch):
    order, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b)))
    with staged_file(tmp_path / "m.onnx") as path:
        for name in ("m.onnx", "m.onnx.data", "a.npy"):
            path.with_name(name).write_text(name)
    assert order[-1] == "m.onnx"
    assert contents(tmp_path).keys() == {"m.onnx", "m.onnx.data", "a.npy"}


def write_in_stages(path, content):
    with staged_file(path) as place:
        place.write_bytes(content)
        place.chmod(0o600)


@pytest.mark.skipif(os.name == "nt", reason="permissions, links and pipes are others there")
@pytest.mark.parametrize("write", [write, write_in_stages])
class TestOneFile:
    """Writing one file, in either way."""

    def test_an_error_without_a_path_gets_it(self, write, tmp_path, monkeypatch):
        def fill_disk(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Path, "write_bytes", fill_disk)
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}"):
            write(tmp_path / "a", b"new")
        assert os.listdir(tmp_path) == []

    def test_permissions_stay(self, write, tmp_path):
        (tmp_path / "a").touch(0o600)
        write(tmp_path / "a", b"new")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600

    def test_permissions_are_those_of_any_new_file(self, write, tmp_path):
        (tmp_path / "ordinary").touch()
        write(tmp_path / "a", b"new")
        assert (tmp_path / "a").stat().st_mode == (tmp_path / "ordinary").stat().st_mode

    @pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
    def test_what_is_no_file_is_refused(self, make, write, tmp_path):
        make(tmp_path / "z")
        with pytest.raises(OSError, match=r"output file must be an ordinary file .*/z"):
            write(tmp_path / "z", b"new")
        assert os.listdir(tmp_path) == ["z"]

    @pytest.mark.parametrize("there", [True, False])
    @pytest.mark.parametrize("target", ["real", "elsewhere/real"])
    def test_the_target_of_a_link_is_replaced(self, target, there, write, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "link").symlink_to(target)
        if there:
            (tmp_path / target).write_text("first")
        write(tmp_path / "link", b"second")
        assert (tmp_path / "link").is_symlink()
        assert contents(tmp_path) == {"link": b"second", target: b"second"}
        assert os.listdir(tmp_path / "elsewhere") == ["real"] * ("/" in target)


@pytest.mark.skipif(os.name == "nt", reason="permissions, links and pipes are others there")
class TestPosix:
    @pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
    def test_what_is_no_file_is_refused_first(self, make, tmp_path):
        make(tmp_path / "z")
        (tmp_path / "a").write_text("first")

        def write_both():
            with staged(tmp_path) as folder:
                for name in ("a", "z"):
                    (folder / name).write_text("second")

        with pytest.raises(OSError, match=r"output file must be an ordinary file .*/z"):
            write_both()
        assert contents(tmp_path) == {"a": b"first"}
        assert not stat.S_ISREG((tmp_path / "z").stat().st_mode)
        with pytest.raises(OSError, match="must be an ordinary file"), staged_file(tmp_path / "z"):
            pytest.fail("it is refused before the work")

    def test_what_must_not_be_written_is_refused(self, tmp_path, monkeypatch):
        (tmp_path / "a").write_text("first")
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everything
        with pytest.raises(OSError, match="that may be written"), staged_file(tmp_path / "a"):
            pass
        assert contents(tmp_path) == {"a": b"first"}
