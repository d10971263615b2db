"""What a process needs to turn text into a model's tokens and back, as one value with a digest.

Knows the files of a Hugging Face directory; knows nothing of weights, and nothing of GGUF files (their reader builds
the same value from metadata). Equal bundles have equal bytes, so the digest names the artifact.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from octavo_common.errors import FailedPrecondition

_FORMAT = 1


class UnsupportedTokenizer(FailedPrecondition):
    """The model's tokenizer is missing, damaged, or of a kind that cannot be served exactly."""

    code = "UNSUPPORTED_TOKENIZER"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerBundle:
    """A tokenizer with its chat template and special tokens."""

    # The text of tokenizer.json, verbatim.
    tokenizer_json: str
    # Jinja source; None when the model has no chat template.
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    # Every id that ends a generation by default, ascending.
    eos_ids: tuple[int, ...] = ()
    # Whether plain text (not a rendered chat) gets the beginning-of-sequence token in front.
    add_bos: bool = False
    # Further special tokens by the name that templates use, for example ("unk_token", "<unk>"); sorted by name.
    special_tokens: tuple[tuple[str, str], ...] = ()

    def to_bytes(self) -> bytes:
        """The canonical form: equal bundles give equal bytes on every machine."""
        value = {"format": _FORMAT, **asdict(self)}
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> TokenizerBundle:
        """Inverse of to_bytes; raises UnsupportedTokenizer when the bytes are no bundle."""
        try:
            value = json.loads(data)
            if value.pop("format") != _FORMAT:
                raise UnsupportedTokenizer("the tokenizer bundle was written by a newer version")
            value["eos_ids"] = tuple(int(i) for i in value["eos_ids"])
            value["special_tokens"] = tuple((str(k), str(v)) for k, v in value["special_tokens"])
            return cls(**value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsupportedTokenizer(f"the tokenizer bundle cannot be read: {error}") from error

    @property
    def digest(self) -> str:
        """sha256 of to_bytes, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_directory(cls, path: Path) -> TokenizerBundle:
        """Read a Hugging Face model directory; raises UnsupportedTokenizer when there is no usable tokenizer.json."""
        file = path / "tokenizer.json"
        if not file.is_file():
            raise UnsupportedTokenizer(
                f"{path} has no tokenizer.json",
                hint="save the tokenizer with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`",
            )
        tokenizer_json = _read_text(file)
        ids = _token_ids(tokenizer_json)
        config = _read_json(path / "tokenizer_config.json")
        tokens = _special_tokens({**_read_json(path / "special_tokens_map.json"), **config})
        bos, eos = tokens.pop("bos_token", None), tokens.pop("eos_token", None)
        add_bos = config.get("add_bos_token")
        if not isinstance(add_bos, bool):
            add_bos = bos is not None and _post_processor_adds(tokenizer_json, bos)
        return cls(
            tokenizer_json=tokenizer_json,
            chat_template=_chat_template(path, config),
            bos_token=bos,
            eos_token=eos,
            eos_ids=_eos_ids(path, ids.get(eos) if eos is not None else None),
            add_bos=add_bos and bos in ids,
            special_tokens=tuple(sorted(tokens.items())),
        )

    def to_directory(self, path: Path, *, model_type: str) -> None:
        """Write what `from_directory` and Hugging Face's tools read; `model_type` names the family to them."""
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.add_bos,
            "clean_up_tokenization_spaces": False,
            **dict(self.special_tokens),
        }
        config |= {k: v for k, v in (("bos_token", self.bos_token), ("eos_token", self.eos_token)) if v is not None}
        path.mkdir(parents=True, exist_ok=True)
        (path / "tokenizer.json").write_text(self.tokenizer_json, encoding="utf-8")
        for name, value in (
            ("tokenizer_config.json", config),
            ("generation_config.json", {"eos_token_id": list(self.eos_ids)}),
            ("config.json", {"model_type": model_type}),
        ):
            (path / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        if self.chat_template is not None:
            (path / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8", newline="")


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnsupportedTokenizer(f"{file.name} cannot be read: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    """The object in the file; empty when there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read_text(file))
    except ValueError as error:
        raise UnsupportedTokenizer(f"{file.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedTokenizer(f"{file.name} is not a JSON object")
    return cast(dict[str, Any], value)


def _token_ids(tokenizer_json: str) -> dict[str, int]:
    """Id of each added token (special tokens are always among them)."""
    try:
        value = json.loads(tokenizer_json)
        return {str(t["content"]): int(t["id"]) for t in value.get("added_tokens") or ()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedTokenizer(f"tokenizer.json cannot be read: {error}") from error


def _post_processor_adds(tokenizer_json: str, token: str) -> bool:
    """Whether the post-processor puts the token in front of a text."""
    processor = json.loads(tokenizer_json).get("post_processor") or {}
    for part in processor.get("processors") or [processor]:
        first = (part.get("single") or [{}])[0]
        if first.get("SpecialToken", {}).get("id") == token:
            return True
    return False


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Special tokens by the name that templates use; a token is text, or an object with its content."""
    found: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    """The default template: a file of its own wins over the configuration, which holds one or a list of named ones."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    template = config.get("chat_template")
    if template is None:
        template = _read_json(path / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _eos_ids(path: Path, eos: int | None) -> tuple[int, ...]:
    """What the model's own configuration says, together with the tokenizer's end-of-sequence token."""
    declared = _read_json(path / "generation_config.json").get("eos_token_id")
    if declared is None:
        declared = _read_json(path / "config.json").get("eos_token_id")
    ids = declared if isinstance(declared, list) else [declared]
    found = {i for i in ids if isinstance(i, int) and not isinstance(i, bool)}
    if eos is not None:
        found.add(eos)
    return tuple(sorted(found))
