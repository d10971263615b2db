"""What a user asks of quantisation: precision by kind of tensor, calibration, methods, gates. Does no arithmetic.

The keys are those of Qualcomm's quantisation recipes where those have one. YAML is in recipe_file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar

from octavo_common.errors import InvalidArgument


class RecipeInvalid(InvalidArgument):
    """The recipe asks for what does not exist; ``param`` is the key at fault, as ``precision.blocks.qtype``."""

    code = "RECIPE_INVALID"


class QType(StrEnum):
    """How numbers are stored."""

    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return int(self.value.removeprefix("float").removeprefix("int"))

    @property
    def is_float(self) -> bool:
        """Whether it is stored as it is, without scale."""
        return self.value.startswith("float")


class Granularity(StrEnum):
    """How many scales a weight has."""

    PTQ = "PTQ"  # one for the tensor
    PCQ = "PCQ"  # one for every output channel
    BQ = "BQ"  # a float one for every block of inputs of every output channel
    LPBQ = "LPBQ"  # as BQ, the scales of blocks being 1 to 16 times one of the channel


class Method(StrEnum):
    """How the range of an activation comes from what calibration saw of it."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    MSE = "mse"


class SensitivityMetric(StrEnum):
    """What rounding a layer costs, at the logits."""

    KL = "kl"  # divergence from the float graph
    SQNR = "sqnr"  # noise to signal


class Unit(StrEnum):
    """What changes precision as a whole."""

    LAYER = "layer"
    WEIGHT = "weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPrecision:
    """How the weights of one kind are stored; ``block_size`` is for BQ and LPBQ alone."""

    qtype: QType = QType.INT8
    granularity: Granularity = Granularity.PCQ
    block_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How every kind of tensor is stored. ``float32`` leaves a kind as it is.

    ``residual`` are the sums around attention and feed-forward. Their first token may be 1000 times larger than all
    others, so that even 16 bits leave these few steps; ``float16`` adds them in floating point.
    """

    activations: QType = QType.INT16
    residual: QType = QType.FLOAT16
    kv_cache: QType = QType.INT8
    embedding: QType = QType.INT16
    lm_head: WeightPrecision = WeightPrecision()
    blocks: WeightPrecision = WeightPrecision()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Where the ranges of activations come from.

    ``texts`` are files of plain text, relative to the recipe's own place; none means the text that comes with the
    builder. ``percentile`` is for the method of that name: 99.99 cuts 0.005 % at either end.
    """

    method: Method = Method.MINMAX
    num_windows: int = 60
    percentile: float = 99.99
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the quantised graph is compared with the float one on: other texts than calibration's."""

    num_windows: int = 8
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqMSE:
    """Layer after layer, the scale of every output channel that leaves the least squared error of its output."""

    name: ClassVar[str] = "SeqMSE"
    num_candidates: int = 20
    num_windows: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTQ:
    """Weights are rounded input by input; what that loses is put onto the inputs that are rounded after."""

    name: ClassVar[str] = "GPTQ"
    num_windows: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrecision:
    """The layers of the blocks that lose most by their precision get the one of ``to``.

    ``max_share`` bounds what that costs: a share of the bytes that raising all of them would take. ``max_count`` bounds
    how many they are.
    """

    name: ClassVar[str] = "MixedPrecision"
    metric: SensitivityMetric = SensitivityMetric.KL
    by: Unit = Unit.LAYER
    num_windows: int = 4
    max_share: float = 0.1
    max_count: int | None = None
    to: WeightPrecision = WeightPrecision()


Step = SeqMSE | GPTQ | MixedPrecision
STEPS: dict[str, type[Step]] = {step.name: step for step in (SeqMSE, GPTQ, MixedPrecision)}
# What Qualcomm's tools know besides, for an error that says so.
UNBUILT_STEPS = ("AdaRound", "AdaScale", "Clip", "Skip", "SpinQuant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Limits on the quantised graph against the float one; None asks nothing."""

    max_mean_kl_nats: float | None = None
    max_ppl_ratio: float | None = None
    min_top1_ratio: float | None = None
    min_sqnr_db: float | None = None
    min_centred_sqnr_db: float | None = None


# A token of the prefix: its id, or a text that is one or several; the word ``bos`` is the model's first token.
PrefixItem = int | str
BOS = "bos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to quantise a model.

    ``prefix`` are tokens before every text, here and on the device. Their keys and values are made in floating point,
    so that the massive activation of the first token never passes a quantised graph.
    """

    name: str
    precision: Precision = Precision()
    prefix: tuple[PrefixItem, ...] = ()
    calibration: Calibration = Calibration()
    recipe: tuple[Step, ...] = ()
    evaluation: Evaluation = Evaluation()
    gates: Gates = field(default_factory=Gates)

    def fingerprint(self) -> str:
        """sha256 over what decides the result, but the words of texts: not the name, the gates or where texts are."""
        values: dict[str, Any] = asdict(self)
        values["recipe"] = [{"name": step.name, **asdict(step)} for step in self.recipe]
        del values["name"], values["gates"], values["calibration"]["texts"], values["evaluation"]["texts"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


_INTEGERS = (QType.INT8, QType.INT16)


def checked(recipe: Recipe) -> Recipe:
    """The recipe itself, if its values make sense together.

    Raises:
        RecipeInvalid: Otherwise; names the first key at fault.
    """
    precision = recipe.precision
    for key, value in (("activations", precision.activations), ("kv_cache", precision.kv_cache)):
        if not (value in _INTEGERS or value is QType.FLOAT32):
            raise _bad(f"precision.{key}", f"is {value}; it is one of int8, int16, float32")
    if precision.residual not in (QType.INT16, QType.FLOAT16, QType.FLOAT32):
        raise _bad("precision.residual", f"is {precision.residual}; it is one of int16, float16, float32")
    if precision.embedding is QType.INT4:
        raise _bad("precision.embedding", "is int4; it is one of int8, int16, float16, float32")
    if precision.activations.is_float and not precision.kv_cache.is_float:
        raise _bad("precision.kv_cache", f"is {precision.kv_cache} although activations are float32")
    for kind, weights in (("lm_head", precision.lm_head), ("blocks", precision.blocks)):
        _check_weights(f"precision.{kind}", weights)
    _check_prefix(recipe.prefix)
    calibration = recipe.calibration
    if not 50 < calibration.percentile <= 100:
        raise _bad("calibration.percentile", f"is {calibration.percentile}; it is over 50 and at most 100")
    counts = [
        ("calibration.num_windows", calibration.num_windows),
        ("evaluation.num_windows", recipe.evaluation.num_windows),
    ]
    for index, step in enumerate(recipe.recipe):
        counts += [(f"recipe[{index}].{name}", count) for name, count in _counts(step)]
        if isinstance(step, MixedPrecision):
            _check_mixed(f"recipe[{index}]", step, recipe)
    for key, count in counts:
        if count < 1:
            raise _bad(key, f"is {count}; it is at least 1")
    return recipe


def _check_prefix(prefix: tuple[PrefixItem, ...]) -> None:
    for index, item in enumerate(prefix):
        if item == "" or (isinstance(item, int) and item < 0):
            raise _bad(f"prefix[{index}]", f"is {item!r}; it is a token's id from 0 on, or a text")


def _counts(step: Step) -> list[tuple[str, int]]:
    found = [(entry.name, getattr(step, entry.name)) for entry in fields(step)]
    return [(name, value) for name, value in found if type(value) is int]


def _check_mixed(where: str, step: MixedPrecision, recipe: Recipe) -> None:
    low, high = recipe.precision.blocks, step.to
    if not 0 < step.max_share <= 1:
        raise _bad(f"{where}.max_share", f"is {step.max_share}; it is over 0 and at most 1")
    _check_weights(f"{where}.to", high)
    if low.qtype.is_float or high.qtype.is_float:
        raise _bad(f"{where}.to.qtype", f"is {high.qtype} and the blocks' is {low.qtype}; both are integers")
    if _fineness(high) <= _fineness(low):
        raise _bad(f"{where}.to", "is no finer than precision.blocks: it has more bits, or as many in finer groups")
    if sum(isinstance(other, MixedPrecision) for other in recipe.recipe) > 1:
        raise _bad(f"{where}.name", "is MixedPrecision, which comes once")


def _fineness(weights: WeightPrecision) -> tuple[int, int, int]:
    order = (Granularity.PTQ, Granularity.PCQ, Granularity.LPBQ, Granularity.BQ)
    return weights.qtype.bits, order.index(weights.granularity), -(weights.block_size or 0)


def _check_weights(where: str, weights: WeightPrecision) -> None:
    blocked = weights.granularity in (Granularity.BQ, Granularity.LPBQ)
    if blocked and weights.block_size is None:
        raise _bad(f"{where}.block_size", f"is needed for {weights.granularity}")
    if not blocked and weights.block_size is not None:
        raise _bad(f"{where}.block_size", f"is for BQ and LPBQ; the granularity is {weights.granularity}")
    if weights.block_size is not None and weights.block_size not in (16, 32, 64, 128, 256):
        raise _bad(f"{where}.block_size", f"is {weights.block_size}; it is one of 16, 32, 64, 128, 256")
    if weights.granularity is Granularity.LPBQ and weights.qtype is not QType.INT4:
        raise _bad(f"{where}.granularity", f"is LPBQ, which is for int4; the qtype is {weights.qtype}")
    if weights.qtype.is_float and blocked:
        raise _bad(f"{where}.granularity", f"is {weights.granularity}, and {weights.qtype} has no scales")


def _bad(key: str, why: str) -> RecipeInvalid:
    return RecipeInvalid(f"recipe: {key} {why}", param=key)


# Measured on 135M real parameters, 20 windows: w8a16 KL 0.007 and perplexity +0.3 %; w4a16 KL 0.12 and +7 % at 44 % of
# its bytes, where MinMax alone has +50 %. The table and the head of a tied model have the same integers at 8 bits,
# which are stored once.
_W8A16 = Recipe(
    name="w8a16",
    precision=replace(Precision(), kv_cache=QType.INT16),
    gates=Gates(max_mean_kl_nats=0.01, max_ppl_ratio=1.01, min_sqnr_db=20.0),
)
_W4A16 = Recipe(
    name="w4a16",
    precision=replace(
        Precision(),
        embedding=QType.INT8,
        blocks=WeightPrecision(qtype=QType.INT4, granularity=Granularity.LPBQ, block_size=64),
    ),
    recipe=(SeqMSE(num_windows=24), GPTQ(num_windows=24)),
    gates=Gates(max_mean_kl_nats=0.2, max_ppl_ratio=1.15),
)
PRESETS: dict[str, Recipe] = {recipe.name: recipe for recipe in (_W8A16, _W4A16)}
