"""The command: what is wrong is said in one line without a traceback, with an exit code, before anything is built."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from checkpoints import edit_config, make_llama

from octavo_edge.__main__ import WRONG, main


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    make_llama(folder)
    return folder


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs a build that is refused, and gives the one line that it says."""

    def run(*arguments: object) -> str:
        monkeypatch.chdir(tmp_path)
        try:
            code = main(["build", *map(str, arguments)])
        except SystemExit as ended:
            code = ended.code
        told = capsys.readouterr().err
        assert code == WRONG, told
        assert "Traceback" not in told
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / ".octavo").exists()
        return told.splitlines()[-1]

    return run


SMALL = ("--context-length", 32, "--ar", "8,1", "--target", "onnxruntime", "--out", "out")


def test_a_recipe_with_an_unknown_key(tmp_path, refused, checkpoint):
    (tmp_path / "mine.yaml").write_text("precision: {lm_hed: {qtype: int8}}")
    line = refused(checkpoint, *SMALL, "--recipe", "mine.yaml")
    assert line.startswith("octavo-edge: recipe: there is no key 'precision.lm_hed' - did you mean 'lm_head'?")


def test_a_text_that_cannot_be_read(tmp_path, refused, checkpoint):
    (tmp_path / "mine.yaml").write_text("calibration: {texts: [absent.txt]}")
    assert "absent.txt cannot be read" in refused(checkpoint, *SMALL, "--recipe", "mine.yaml")


def test_no_model(refused):
    assert "there is no model at absent" in refused("absent", *SMALL)


def test_a_target_that_does_not_exist(tmp_path, refused, checkpoint):
    line = refused(checkpoint, "--target", "abacus", "--out", "out")
    assert "no target 'abacus' - targets are: onnxruntime" in line


def test_a_context_longer_than_the_models(tmp_path, refused, checkpoint):
    line = refused(checkpoint, *SMALL, "--context-length", 65)
    assert "65" in line
    assert "64" in line


@pytest.mark.parametrize("ar", ["32,1", "0", "8,8", "1"])
def test_graphs_that_do_not_fit_the_context(tmp_path, refused, checkpoint, ar):
    assert "--ar" in refused(checkpoint, *SMALL, "--ar", ar)


def test_no_list_of_numbers(tmp_path, refused, checkpoint):
    assert "'8;1' is no list of whole numbers" in refused(checkpoint, *SMALL, "--ar", "8;1")


def test_an_architecture_that_is_not_supported(tmp_path, refused, checkpoint):
    folder = tmp_path / "other"
    shutil.copytree(checkpoint, folder)
    edit_config(folder, model_type="mamba", architectures=["MambaForCausalLM"])
    assert "mamba" in refused(folder, *SMALL).lower()


def test_a_place_that_holds_something_else(tmp_path, refused, checkpoint):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("words")
    line = refused(checkpoint, *SMALL, "--out", "thesis")
    assert "holds something else" in line
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


def test_help_needs_no_tool_chain(tmp_path):
    code = """
import sys
from octavo_edge.__main__ import main
try:
    main(["--help"])
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "False"
    assert "build" in done.stdout


def test_the_store_is_listed_and_emptied(tmp_path, capsys):
    assert main(["store", "--store", str(tmp_path / "kept"), "--keep-gb", "0"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "removed 0 artifacts" in told.err
