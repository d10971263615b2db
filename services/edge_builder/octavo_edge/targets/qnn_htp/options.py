"""What a user may ask of the HTP's compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from octavo_common.errors import InvalidArgument
from octavo_edge.target import CompileOptions
from octavo_edge.targets.qnn_htp.socs import ARCHITECTURES, DEFAULT_SOC, SOCS, Soc, find_soc

__all__ = ["HtpOptions", "read_options"]

Simulate = Literal["yes", "no", "auto"]
_YES_NO, _SIMULATE, _OPTIMISATIONS = ("yes", "no"), ("yes", "no", "auto"), ("1", "2", "3")


@dataclass(frozen=True, slots=True, kw_only=True)
class HtpOptions:
    """Options as the target uses them."""

    soc: Soc
    htp_arch: int
    optimisation: int  # of the compiler: 3 takes longest and runs fastest
    simulate: Simulate
    share_weights: bool

    def provider(self) -> dict[str, str]:
        """As the execution provider reads them."""
        return {
            "soc_model": str(self.soc.number),
            "htp_arch": str(self.htp_arch),
            "htp_graph_finalization_optimization_mode": str(self.optimisation),
            # Quantisers at the borders are part of the graph: callers see floats.
            "offload_graph_io_quantization": "0",
        }


def read_options(options: CompileOptions) -> HtpOptions:
    """The options, checked.

    Raises:
        InvalidArgument: A key that is not known or a value that is none; says what there is.
    """
    known = {
        "soc": str(DEFAULT_SOC.number),
        "htp_arch": "",
        "optimisation": "3",
        "simulate": "auto",
        "share_weights": "yes",
    }
    if unknown := sorted(set(options.values) - set(known)):
        raise _bad(unknown[0], "is no option of qnn-htp", f"options are: {', '.join(known)}")
    values = known | dict(options.values)
    soc = find_soc(values["soc"])
    if soc is None:
        raise _bad("soc", f"{values['soc']!r} is not known", f"known are: {'; '.join(map(str, SOCS))}")
    architectures = tuple(map(str, ARCHITECTURES))
    arch = values["htp_arch"] or str(soc.htp_arch)
    for key, value, allowed in (
        ("htp_arch", arch, architectures),
        ("optimisation", values["optimisation"], _OPTIMISATIONS),
        ("simulate", values["simulate"], _SIMULATE),
        ("share_weights", values["share_weights"], _YES_NO),
    ):
        if value not in allowed:
            raise _bad(key, f"is {value!r}", f"it is one of: {', '.join(allowed)}")
    return HtpOptions(
        soc=soc,
        htp_arch=int(arch),
        optimisation=int(values["optimisation"]),
        simulate=cast(Simulate, values["simulate"]),
        share_weights=values["share_weights"] == "yes",
    )


def _bad(key: str, why: str, hint: str) -> InvalidArgument:
    return InvalidArgument(f"qnn-htp: {key} {why}", hint=hint, param=f"target_options.{key}")
