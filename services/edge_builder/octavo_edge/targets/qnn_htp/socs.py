"""The SoCs that a binary can be made for: those that the compiler was seen to take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARCHITECTURES", "DEFAULT_SOC", "SOCS", "Soc", "find_soc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Soc:
    """One SoC: the compiler's number of it, the version of its HTP, part number and trade name where they are known."""

    number: int
    htp_arch: int
    part: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.number} ({self.name}, {self.part}, v{self.htp_arch})" if self.name else f"{self.number}"


SOCS = (
    Soc(number=30, htp_arch=68, part="SM8350", name="Snapdragon 888"),
    Soc(number=36, htp_arch=69, part="SM8450", name="Snapdragon 8 Gen 1"),
    Soc(number=43, htp_arch=73, part="SM8550", name="Snapdragon 8 Gen 2"),
    Soc(number=57, htp_arch=75, part="SM8650", name="Snapdragon 8 Gen 3"),
    Soc(number=60, htp_arch=75),
    Soc(number=69, htp_arch=79, part="SM8750", name="Snapdragon 8 Elite"),
    Soc(number=87, htp_arch=81, part="SM8850", name="Snapdragon 8 Elite Gen 5"),
    Soc(number=88, htp_arch=81),
)
DEFAULT_SOC = next(soc for soc in SOCS if soc.number == 69)
ARCHITECTURES = tuple(sorted({soc.htp_arch for soc in SOCS}))


def find_soc(asked: str) -> Soc | None:
    """The SoC with a number ("43"), part number ("SM8550") or name ("snapdragon 8 gen 2"); None if there is none."""
    plain = _plain(asked)
    return next((soc for soc in SOCS if plain and plain in (str(soc.number), _plain(soc.part), _plain(soc.name))), None)


def _plain(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())
