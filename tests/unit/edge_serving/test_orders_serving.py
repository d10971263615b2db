"""What is asked of the service: refused by name before anything runs, else the builder's own command line."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from octavo_common.errors import NotFound, OctavoError, Status
from octavo_common.jobs.builds import BuildGate, BuildSpec, BuildStage, TensorLoss
from octavo_common.jobs.spec import JobFailure
from octavo_edge.arguments import parsed_build, passed_on
from octavo_edge.events import Built, NoEvent, failure_event, from_line, to_line
from octavo_edge.serving.orders import Folders, check, command_line
from octavo_edge.serving.settings import EdgeSettings, ModelPlaces
from octavo_edge.stage import Progress

ANYWHERE = ModelPlaces()
FOLDERS = Folders(Path("/data"), Path("/data/edge"), Path("/data/edge/builds/1/files"))


@pytest.fixture
def spec(tmp_path: Path) -> BuildSpec:
    (tmp_path / "model").mkdir()
    return BuildSpec(model=str(tmp_path / "model"), targets=("onnxruntime",))


def line(spec: BuildSpec) -> list[str]:
    return command_line(spec, recipe="/work/recipe.yaml", folders=FOLDERS)


def test_an_order_is_a_command_line_that_the_builder_reads_as_it_was_meant(spec: BuildSpec) -> None:
    asked = replace(
        spec,
        model="-strange",
        recipe="",
        recipe_yaml="name: mine",
        context_length=64,
        ars=(16, 1),
        options={"attention": "sha", "parts": "2"},
        target_options={"soc": "69", "onnxruntime.level": "-1"},
    )
    read = parsed_build(line(asked))
    assert (read.model, read.target, read.recipe) == ("-strange", ("onnxruntime",), "/work/recipe.yaml")
    assert (read.context_length, read.ar, read.attention, read.parts) == (64, (16, 1), "sha", 2)
    assert read.target_option == ["soc=69", "onnxruntime.level=-1"]
    assert (read.data_dir, read.store, read.out) == FOLDERS
    assert (read.progress, read.attended) == ("json", True)


def test_an_option_that_the_builder_learns_can_be_asked_of_the_service_and_none_of_the_services_own() -> None:
    known = passed_on()
    assert {"attention", "parts", "passes"} <= known.keys()
    assert not {"out", "store", "progress", "attended", "data-dir", "target", "help"} & known.keys()


@pytest.mark.parametrize(
    ("changes", "param", "said"),
    [
        ({"targets": ("abacus",)}, "targets", "there is no target 'abacus'"),
        ({"targets": ("onnxruntime",), "recipe": "w8a17"}, "recipe", "there is no recipe 'w8a17'"),
        ({"recipe": "", "recipe_yaml": "precision: {lm_hed: int8}"}, "precision.lm_hed", "'precision.lm_hed'"),
        ({"recipe": "", "recipe_yaml": "a: [1"}, "recipe", "no YAML"),
        ({"recipe": "", "recipe_yaml": "calibration: {texts: [/etc/passwd]}"}, "recipe_texts", "/etc/passwd"),
        ({"recipe_texts": {"../up.txt": "x"}}, "recipe_texts", "../up.txt"),
        ({"recipe_texts": {"/abs.txt": "x"}}, "recipe_texts", "/abs.txt"),
        ({"recipe_texts": {"recipe.yaml": "x"}}, "recipe_texts", "recipe.yaml"),
        ({"recipe_texts": {"./recipe.yaml": "x"}}, "recipe_texts", "./recipe.yaml"),
        ({"recipe_texts": {"recipe.yaml/x": "x"}}, "recipe_texts", "recipe.yaml/x"),
        ({"recipe_texts": {"x" * 256: "x"}}, "recipe_texts", "xxx"),
        ({"recipe_texts": {"a": "x", "a/b": "x"}}, "recipe_texts", "'a'"),
        ({"options": {"colour": "red"}}, "options", "there is no option 'colour'"),
        ({"options": {"out": "/etc"}}, "options", "there is no option 'out'"),
        ({"options": {"attention": "all"}}, "options", "--attention"),
        ({"options": {"parts": "two"}}, "options", "--parts"),
        ({"target_options": {"": "1"}}, "options", "--target-option"),
        ({"targets": ("qnn-htp",), "target_options": {"soc": "31"}}, "target_options.soc", "soc"),
        ({"target_options": {"colour": "red"}}, "options", "onnxruntime has no option colour"),
        (
            {
                "targets": ("qnn-htp",),
                "recipe": "",
                "recipe_yaml": "precision: {activations: float32, kv_cache: float32}",
            },
            "precision.activations",
            "qnn-htp takes int16, int8",
        ),
        ({"model": "/no/where"}, "model", "there is no model at /no/where"),
        ({"model": "../no/where"}, "model", "there is no model at ../no/where"),
        ({"model": ""}, "model", "no model"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    spec: BuildSpec, changes: dict[str, object], param: str, said: str
) -> None:
    with pytest.raises(OctavoError) as caught:
        check(replace(spec, **changes), ANYWHERE)
    assert caught.value.status in (Status.INVALID_ARGUMENT, Status.NOT_FOUND)
    assert (caught.value.param, said in caught.value.message) == (param, True)


def test_models_outside_of_where_they_may_lie_do_not_exist(spec: BuildSpec, tmp_path: Path) -> None:
    other = ModelPlaces(roots=(tmp_path / "other",))
    check(spec, ANYWHERE)
    check(spec, ModelPlaces(roots=(tmp_path,)))
    check(replace(spec, model="smollm2-135m"), other)
    with pytest.raises(OctavoError, match="there is no model at"):
        check(spec, other)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(tmp_path / "model")
    with pytest.raises(OctavoError, match="there is no model at"):
        check(replace(spec, model=str(tmp_path / "other" / "link")), other)


def test_what_was_built_and_secrets_are_no_models_wherever_models_may_lie(spec: BuildSpec, tmp_path: Path) -> None:
    places = EdgeSettings(data_dir=tmp_path / "data", model_roots=str(tmp_path)).places
    check(spec, places)
    for name in ("edge/builds/1/1/files/model.gguf", "edge/objects/0", "secrets/admin_key"):
        path = tmp_path / "data" / name
        path.mkdir(parents=True)
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(path)
        for model in (path, path.parent / ".." / path.parent.name / path.name, tmp_path / "link"):
            with pytest.raises(NotFound, match="there is no model at"):
                check(replace(spec, model=str(model)), places)
    check(replace(spec, model=str(tmp_path / "data")), places)


def test_a_path_that_the_system_refuses_is_no_model(spec: BuildSpec, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for model in ("x" * 256, f"/{'x' * 256}/model", str(tmp_path / "a")):
        with pytest.raises(NotFound, match="there is no model at"):
            check(replace(spec, model=model), ANYWHERE)


def test_a_folder_that_may_not_be_read_has_no_models(spec: BuildSpec, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may look into all folders
    try:
        with pytest.raises(NotFound, match="there is no model at"):
            check(replace(spec, model=str(tmp_path / "closed" / "model")), ANYWHERE)
    finally:
        os.seteuid(user)


def test_a_recipe_may_name_the_texts_that_were_sent_with_it(spec: BuildSpec) -> None:
    recipe = "calibration: {texts: [a.txt]}\nevaluation: {texts: [b/c.txt]}"
    asked = replace(spec, recipe="", recipe_yaml=recipe, recipe_texts={"a.txt": "x", "b/c.txt": "y"})
    check(asked, ANYWHERE)


STAGE = BuildStage(
    stage="quantise",
    cached=True,
    seconds=1.25,
    size_bytes=3,
    peak_memory_bytes=4,
    metrics={"sqnr_db": float("inf")},
    gates=(BuildGate(limit="sqnr_db >= 1", value=float("inf"), passes=True),),
    warnings=("few",),
    worst=(TensorLoss(tensor="logits", sqnr_db=-3.5),),
    target="coreml",
    replaced=True,
)


@pytest.mark.parametrize(
    "event",
    [
        Progress(stage="adapt", done=1, total=4, what="layer 0"),
        Progress(stage="compile", done=1, total=4, target="coreml"),
        STAGE,
        Built(outcome="compiled+run", failed_targets=("coreml",)),
        JobFailure(code="GATE_FAILED", message="worse", hint="less", status="FAILED_PRECONDITION", param="x"),
    ],
)
def test_events_come_back_from_their_lines(event: object) -> None:
    told = to_line(event)
    assert "\n" not in told
    assert from_line(told) == event


@pytest.mark.parametrize("line", ["", "Loading weights: 100%", "{}", "[1]", '{"event": "new"}', '{"event": "stage"}'])
def test_what_libraries_print_is_no_event(line: str) -> None:
    with pytest.raises(NoEvent):
        from_line(line)


def test_faults_of_ours_are_told_as_such_and_memory_as_memory() -> None:
    assert failure_event(KeyError("x")).code == "BUILDER_FAULT"
    assert failure_event(MemoryError()).code == "OUT_OF_MEMORY"
