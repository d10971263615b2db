"""AIMET's encodings files: entries as AIMET 2.42 writes them, and both schemas read back."""

import json

import numpy as np
import pytest

from octavo_edge.quant import encodings as enc
from octavo_edge.quant.grid import INT4, INT8, UINT16, quantise

PRODUCER = {"package": "octavo", "version": "0"}
RNG = np.random.default_rng(0)
MASK = enc.PerTensor(grid=UINT16, scale=0.0015259021893143654, zero_point=65535)
CACHE = enc.PerTensor(grid=INT8, scale=0.25, zero_point=0)
CHANNELS = enc.PerChannel(grid=INT8, axis=0, scales=RNG.uniform(0.1, 1, 4).astype(np.float32))
BLOCKS = enc.PerBlock(grid=INT4, axis=1, block_size=64, scales=RNG.uniform(0.1, 1, (4, 2)).astype(np.float32), rank=4)
LPBQ = enc.Lpbq(
    grid=INT4,
    axis=1,
    block_size=64,
    int_scales=RNG.integers(1, 17, (4, 2)).astype(np.uint8),
    channel_scales=RNG.uniform(0.001, 0.01, 4).astype(np.float32),
    rank=4,
)
EVERY = enc.Encodings(
    activations={"attention_mask": MASK, "past_key_0": CACHE}, params={"w": CHANNELS, "b": BLOCKS, "l": LPBQ}
)


def written(tmp_path, what=EVERY):
    enc.write_v1(tmp_path / "v1.json", what, producer=PRODUCER, activation_bits=16)
    enc.write_v2(tmp_path / "v2.json", what, producer=PRODUCER)
    return (json.loads((tmp_path / name).read_text()) for name in ("v1.json", "v2.json"))


def test_schema_one_is_as_aimet_writes_it(tmp_path):
    document, _ = written(tmp_path)
    assert list(document) == [
        "version",
        "producer",
        "quantizer_args",
        "activation_encodings",
        "param_encodings",
    ]
    assert document["version"] == "1.0.0"
    assert document["quantizer_args"] == {
        "activation_bitwidth": 16,
        "dtype": "int",
        "is_symmetric": True,
        "param_bitwidth": 4,
        "per_channel_quantization": True,
        "quant_scheme": "min_max",
    }
    mask, cache = document["activation_encodings"]
    assert mask == {
        "name": "attention_mask",
        "dtype": "INT",
        "bw": 16,
        "is_sym": False,
        "enc_type": "PER_TENSOR",
        "scale": [MASK.scale],
        "offset": [-65535.0],
    }
    assert (cache["is_sym"], cache["bw"], cache["offset"]) == (True, 8, [-128.0])
    channels, _, lpbq = document["param_encodings"]
    assert (channels["enc_type"], channels["offset"], len(channels["scale"])) == ("PER_CHANNEL", [-128.0] * 4, 4)
    assert {key: lpbq[key] for key in ("bw", "compressed_bw", "block_size", "is_sym", "enc_type")} == {
        "bw": 8,
        "compressed_bw": 4,
        "block_size": 64,
        "is_sym": True,
        "enc_type": "LPBQ",
    }
    assert lpbq["per_block_int_scale"] == LPBQ.int_scales.reshape(-1).tolist()
    assert lpbq["offset"] == [-128.0] * 4 and len(lpbq["scale"]) == 4


def test_schema_two_is_as_aimet_writes_it(tmp_path):
    _, document = written(tmp_path)
    assert document["version"] == "2.0.0"
    entries = {entry["name"]: entry for entry in document["encodings"]}
    assert entries["attention_mask"] == {
        "name": "attention_mask",
        "output_dtype": "uint16",
        "y_scale": MASK.scale,
        "y_zero_point": 65535,
    }
    assert entries["past_key_0"] == {"name": "past_key_0", "output_dtype": "int8", "y_scale": 0.25}
    assert set(entries["w"]) == {"name", "output_dtype", "axis", "y_scale"} and entries["w"]["axis"] == 0
    lpbq = entries["l"]
    assert (lpbq["output_dtype"], lpbq["axis"], lpbq["block_size"]) == ("int4", 1, 64)
    assert np.shape(lpbq["per_block_int_scale"]) == (4, 2, 1, 1)
    assert np.shape(lpbq["per_channel_float_scale"]) == (4, 1, 1, 1)


@pytest.mark.parametrize("name", ["v1.json", "v2.json"])
def test_what_is_written_is_read_back(tmp_path, name):
    without_blocks = enc.Encodings(activations=EVERY.activations, params={"w": CHANNELS, "l": LPBQ})
    list(written(tmp_path, without_blocks if name == "v1.json" else EVERY))
    back = enc.read(tmp_path / name)
    assert back.activations == EVERY.activations
    assert isinstance(back.params["w"], enc.PerChannel) and isinstance(back.params["l"], enc.Lpbq)
    np.testing.assert_array_equal(back.params["w"].scales, CHANNELS.scales)
    np.testing.assert_array_equal(back.params["l"].scales, LPBQ.scales)
    np.testing.assert_array_equal(back.params["l"].int_scales, LPBQ.int_scales)
    if name == "v2.json":
        assert isinstance(back.params["b"], enc.PerBlock)
        np.testing.assert_array_equal(back.params["b"].scales, BLOCKS.scales)


def test_offsets_of_schema_one_count_integers_from_zero(tmp_path):
    encoding = enc.PerTensor(grid=UINT16, scale=0.5, zero_point=100)
    document, _ = written(tmp_path, enc.Encodings(activations={"x": encoding}, params={}))
    (entry,) = document["activation_encodings"]
    values = np.array([-50.0, 0.0, 3.5], np.float32)
    unsigned = quantise(values, 0.5, UINT16, 100).astype(int)
    np.testing.assert_array_equal((unsigned + entry["offset"][0]) * entry["scale"][0], values)


@pytest.mark.parametrize("text", ['{"version": "0.6.1"}', '{"version": "2.0.0", "encodings": [{"name": "x"}]}', "{}"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="encodings"):
        enc.read(tmp_path / "x.json")
