"""octavo plan: its table, its JSON, its picture, and what it says to those who ask wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from octavo_cli import __main__ as entry
from octavo_cli.machine import measure
from octavo_common.clock import SystemClock
from octavo_common.plan.formats import Arithmetic

GIB = 2**30
SVG = "{http://www.w3.org/2000/svg}"
STEP = {
    "batch", "num_tokens", "flops", "bytes", "flops_per_byte", "bound", "compute_s", "memory_s", "time_s",
    "tokens_per_s",
}  # fmt: skip


@pytest.fixture
def octavo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setenv("OCTAVO_DATA_DIR", str(tmp_path / "data"))

    def run(*words: str) -> tuple[int, str, str]:
        code = entry.run(["plan", *words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_figures_of_a_70b_model_as_json(octavo) -> None:
    words = ("llama-3-70b", "--device", "A100", "--precision", "float16", "--kv", "float16", "--tensor-parallel", "4")
    code, out, err = octavo(*words, "--prompt", "4000", "--output", "96", "--batch", "8", "--json")
    assert code == 0 and err == ""
    found = json.loads(out)
    assert set(found) == {
        "model", "device", "precision", "kv_format", "tensor_parallel", "num_prompt_tokens", "num_output_tokens",
        "batch", "block_size", "weight_bytes", "memory", "least_tensor_parallel", "prefill", "decode", "decode_context",
        "decode_by_batch", "ridge_batch", "request_s", "notes",
    }  # fmt: skip
    assert found["memory"]["kv_bytes_per_sequence"] * 4 == 1.25 * GIB
    assert found["weight_bytes"]["total"] == 2 * found["model"]["num_parameters"] == 141_107_412_992
    assert found["device"]["ridge_flops_per_byte"] == pytest.approx(312e12 / 2.039e12)
    steps = [found["prefill"], found["decode"], *found["decode_by_batch"]]
    assert all(set(step) == STEP for step in steps)
    assert [step["bound"] for step in steps[:2]] == ["compute", "memory"]
    assert found["decode"]["batch"] == 8
    assert found["decode_by_batch"][-1]["batch"] == found["memory"]["num_sequences"] > 32


def test_the_table_says_what_fits_and_what_bounds(octavo) -> None:
    code, out, err = octavo("llama-3-8b", "--device", "l40s", "--batch", "100000")
    assert code == 0
    lines = {line.split("  ")[0]: line for line in out.splitlines() if line}
    assert "8.03 G parameters" in lines["model"]
    assert "128 KiB" in lines["KV of a token"]
    assert "160 MiB" in lines["KV of a sequence"]
    assert "419 operations a byte" in lines["ridge"]
    assert "compute" in next(line for line in out.splitlines() if line.startswith("prompt"))
    assert "memory" in next(line for line in out.splitlines() if line.startswith("decode"))
    assert "decode, does not fit" in out and "A batch of 100000 does not fit" in err


def test_a_model_that_does_not_fit_says_how_many_devices_would_do(octavo) -> None:
    code, _, err = octavo("llama-3.1-405b", "--device", "H200")
    assert code == 0
    assert "the weights do not fit; 8 such devices hold them" in " ".join(err.split())


def test_the_plot_is_an_svg_file_with_a_point_for_every_step(octavo, tmp_path: Path) -> None:
    path = tmp_path / "roof.svg"
    code, out, err = octavo("qwen2.5-7b", "--device", "H100", "--plot", str(path), "--json")
    assert code == 0 and str(path) in err
    found, picture = json.loads(out), ElementTree.parse(path).getroot()
    points = [circle for circle in picture.iter(f"{SVG}circle") if circle.find(f"{SVG}title") is not None]
    assert len(points) == 1 + len(found["decode_by_batch"])
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    assert all(0 < float(p.attrib["cx"]) < width and 0 < float(p.attrib["cy"]) < height for p in points)
    # To the right is more arithmetic a byte, and higher is more a second.
    decode = points[: len(found["decode_by_batch"])]
    assert [float(p.attrib["cx"]) for p in decode] == sorted(float(p.attrib["cx"]) for p in decode)
    assert [float(p.attrib["cy"]) for p in decode] == sorted((float(p.attrib["cy"]) for p in decode), reverse=True)


def test_a_model_file_is_planned_as_it_is_stored(octavo, demo_model_path: Path) -> None:
    _, out, _ = octavo(str(demo_model_path), "--device", "L4", "--json")
    stored = json.loads(out)
    assert stored["precision"] == "stored (Q4_1)" and stored["weight_bytes"]["total"] == 96_576_768
    _, out, _ = octavo(str(demo_model_path), "--device", "L4", "--precision", "float32", "--json")
    wide = json.loads(out)
    assert wide["weight_bytes"]["total"] == 4 * 134_515_008 and wide["kv_format"] == "float32"


def test_a_name_of_the_catalog_is_a_shape_until_it_is_fetched(octavo) -> None:
    _, out, _ = octavo("smollm2-135m", "--json")
    assert json.loads(out)["precision"] == "bfloat16"


def test_a_device_that_was_assumed_is_said(octavo) -> None:
    code, out, err = octavo("llama-3-8b", "--json")
    assert (code, json.loads(out)["device"]["name"]) == (0, "H200")
    assert "no device was named: H200 is assumed" in " ".join(err.split())
    for named in (("--device", "H200"), ("--memory-gb", "10", "--bandwidth-gb", "100", "--peak-tflops", "5")):
        code, out, err = octavo("llama-3-8b", "--json", *named)
        assert code == 0 and "assumed" not in err
        assert json.loads(out)["device"]["name"] == ("H200" if named[0] == "--device" else "own figures")


def test_a_device_may_be_given_by_its_figures(octavo) -> None:
    words = ("--device", "mine", "--memory-gb", "10", "--bandwidth-gb", "100", "--peak-tflops", "5")
    code, out, _ = octavo("llama-3.2-1b", *words, "--json")
    device = json.loads(out)["device"]
    assert code == 0
    assert device == {
        "name": "mine", "memory_bytes": 10**10, "bytes_per_s": 1e11, "flops_per_s": 5e12, "ridge_flops_per_byte": 50,
    }  # fmt: skip


def test_this_machine_is_measured() -> None:
    device = measure(SystemClock())
    assert 1e8 < device.bandwidth < 1e13
    assert 1e8 < device.peak(Arithmetic.FLOAT32) < 1e15
    assert device.memory_bytes > 1e8


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "no model is named"),
        (("no-such-model",), 1, "octavo plan --known"),
        (("org/model",), 1, "models pull org/model"),
        (("llama-3-8b", "--device", "Z80"), 1, "H200"),
        (("llama-3-8b", "--precision", "w1a1"), 1, "w8a8"),
        (("llama-3-8b", "--kv", "int1"), 1, "int8"),
        (("llama-3-8b", "--prompt", "0"), 1, "num_prompt_tokens is 0"),
        (("llama-3-8b", "--tensor-parallel", "5"), 1, "possible: 1, 2, 4, 8"),
        (("llama-3-8b", "--plot", "roof.png"), 2, ".svg"),
        (("llama-3-8b", "--memory-gb", "-1"), 1, "more than 0 bytes"),
        (("llama-3-8b", "--plot", "/nowhere/at/all.svg"), 1, "/nowhere/at/all.svg"),
    ],
)
def test_wrong_questions_are_answered_in_one_line_with_a_hint(octavo, words, code, says) -> None:
    got, out, err = octavo(*words)
    assert got == code and out == ""
    assert says in err and err.startswith("error: ") and err.count("\n") == 1


def test_what_is_known_by_name_is_listed(octavo) -> None:
    code, out, _ = octavo("--known")
    assert code == 0 and all(word in out for word in ("H200", "llama-3-70b", "w4a8", "int8"))
    code, out, _ = octavo("--known", "--json")
    assert code == 0 and json.loads(out)["devices"][0] == "cpu"
