"""A recipe as it is sent: with the texts that it names, by their names in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_cli.output import WrongUse
from octavo_cli.recipes import recipe_parameters


def test_a_preset_is_sent_by_its_name_and_a_file_with_its_texts(tmp_path: Path) -> None:
    assert recipe_parameters("w8a16", ()) == {"recipe": "w8a16"}
    (tmp_path / "texts").mkdir()
    for name in ("texts/a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(name)
    text = "calibration: {texts: [texts/a.txt]}\nevaluation: {texts: [b.txt]}\n"
    (tmp_path / "mine.yaml").write_text(text)
    assert recipe_parameters(str(tmp_path / "mine.yaml"), ["c.txt"]) == {
        "recipe_yaml": text,
        "recipe_texts": {"c.txt": "c.txt", "texts/a.txt": "texts/a.txt", "b.txt": "b.txt"},
    }


@pytest.mark.parametrize("text", ["", "a: [1", "- 1", "calibration: 3", "calibration: {texts: 3}"])
def test_what_is_wrong_with_a_recipe_is_the_builders_to_say(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    assert recipe_parameters(str(tmp_path / "mine.yaml"), ()) == {"recipe_yaml": text, "recipe_texts": {}}


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"no recipe .*absent\.yaml"):
        recipe_parameters(str(tmp_path / "absent.yaml"), ())
    (tmp_path / "mine.yaml").write_text("calibration: {texts: [gone.txt]}")
    with pytest.raises(WrongUse, match=r"gone\.txt cannot be read"):
        recipe_parameters(str(tmp_path / "mine.yaml"), ())
