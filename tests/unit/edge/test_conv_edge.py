"""Convolutions in the place of linear layers and of convolutions over frames, against what torch computes for those."""

import pytest
import torch
from torch import nn

from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.models.config import UnsupportedModel
from octavo_edge.models.conv import Conv3dSum, convs_of


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_gives_what_its_linear_layer_gives(bias):
    linear = nn.Linear(24, 40, bias=bias)
    conv = convs_of({"layer": linear})["layer"]
    assert isinstance(conv, nn.Conv2d)
    rows = random(7, 24)
    columns = rows.T[None, :, None]
    with torch.inference_mode():
        expected, got = linear(rows), conv(columns)[0, :, 0].T
    assert sqnr_db(expected.numpy(), got.numpy()) > 120


def test_conversion_takes_the_weights_as_they_are_and_draws_no_random_numbers():
    linear = nn.Linear(8, 4)
    before = torch.random.get_rng_state()
    conv = convs_of({"layer": linear})["layer"]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert conv.weight.data_ptr() == linear.weight.data_ptr()
    assert conv.weight.shape == (4, 8, 1, 1)


def test_shared_weights_stay_shared():
    first, second, other = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    convs = convs_of({"first": first, "second": second, "other": other})
    assert convs["first"].weight is convs["second"].weight
    assert convs["first"].bias is not convs["second"].bias
    assert convs["other"].weight is not convs["first"].weight


def test_a_head_tied_to_an_embedding_stays_its_memory():
    embedding, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    head.weight = embedding.weight
    conv = convs_of({"head": head})["head"]
    with torch.no_grad():
        embedding.weight[3] = 42.0
    assert bool((conv.weight[3] == 42.0).all())


SPATIAL = {
    "patches": {"kernel_size": (2, 14, 14), "stride": (2, 14, 14), "bias": False},
    "bias": {"kernel_size": (3, 2, 2), "stride": (3, 2, 2)},
    "any stride in time": {"kernel_size": (2, 3, 3), "stride": (5, 1, 2)},
    "padding": {"kernel_size": (2, 3, 3), "padding": (0, 1, 2)},
    "valid": {"kernel_size": (2, 3, 3), "padding": "valid"},
    "dilation": {"kernel_size": (2, 3, 3), "dilation": (1, 2, 3)},
    "groups": {"kernel_size": (2, 3, 3), "groups": 2},
    "reflected": {"kernel_size": (2, 3, 3), "padding": (0, 2, 2), "padding_mode": "reflect"},
    "one frame, same": {"kernel_size": (1, 3, 3), "padding": "same", "dilation": (4, 1, 1)},
}


@pytest.mark.parametrize("options", SPATIAL.values(), ids=SPATIAL.keys())
def test_a_convolution_over_all_frames_is_a_sum_of_one_for_each(options):
    conv = nn.Conv3d(4, 6, **options)
    frames = conv.kernel_size[0]
    x = random(2, 4, frames, 28, 28)
    with torch.inference_mode():
        expected = conv(x)
        got = Conv3dSum(conv, name="patch_embed", num_frames=frames)(x)
    assert got.shape == expected.shape
    assert sqnr_db(expected.numpy(), got.numpy()) > 110


@pytest.mark.parametrize(
    ("options", "num_frames", "word"),
    [
        ({"kernel_size": (2, 3, 3)}, 4, "kernel of 2"),
        ({"kernel_size": (2, 3, 3), "padding": (1, 0, 0)}, 2, "pads in time"),
        ({"kernel_size": (3, 3, 3), "padding": "same"}, 3, "pads in time"),
        ({"kernel_size": (2, 3, 3), "dilation": (2, 1, 1)}, 2, "dilated in time"),
    ],
)
def test_what_is_no_such_sum_is_refused_by_name(options, num_frames, word):
    with pytest.raises(UnsupportedModel, match=f"visual.patch_embed.*{word}"):
        Conv3dSum(nn.Conv3d(4, 6, **options), name="visual.patch_embed", num_frames=num_frames)
