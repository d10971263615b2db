import pytest

from octavo_common.settings import SettingsError
from octavo_worker.settings import WorkerSettings


def path_for(tmp_path, model):
    return WorkerSettings(data_dir=tmp_path, model=model).require_model_path()


def test_a_model_is_a_path_or_a_name_in_the_data_directory(tmp_path):
    folder = tmp_path / "models" / "hf"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert path_for(tmp_path, "hf") == folder
    assert path_for(tmp_path, str(folder)) == folder


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path):
    folder = tmp_path / "models" / "small"
    folder.mkdir(parents=True)
    (folder / "a.gguf").write_bytes(b"")
    assert path_for(tmp_path, "small") == folder / "a.gguf"


@pytest.mark.parametrize("model", ["", "absent"])
def test_a_model_that_is_not_there_is_named_in_the_error(tmp_path, model):
    with pytest.raises(SettingsError) as error:
        path_for(tmp_path, model)
    assert error.value.param == "OCTAVO_WORKER_MODEL"
