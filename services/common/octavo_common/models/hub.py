"""Fetches a model's files from a Hugging Face hub, where `huggingface_hub` is installed and a hub can be reached."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from octavo_common.models.disk import folder_bytes

_PATTERNS = ["*.json", "*.jinja", "*.safetensors"]
_POLL_S = 0.2


class DownloadError(Exception):
    """One sentence about what went wrong."""


def download(repository: str, folder: Path, report: Callable[[int, int | None], None]) -> None:
    """Fill ``folder`` with the repository's configuration, tokenizer and safetensors; raises DownloadError."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DownloadError("the package huggingface_hub is not installed") from error
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-download") as pool:
        running = pool.submit(snapshot_download, repository, local_dir=folder, allow_patterns=_PATTERNS)
        while not wait([running], timeout=_POLL_S).done:
            report(folder_bytes(folder), None)
        failure = running.exception()
    if failure is not None:
        # Whatever its HTTP client, its cache or the network raised: the user needs the first line of it.
        lines = str(failure).strip().splitlines()
        raise DownloadError(lines[0] if lines else type(failure).__name__) from failure
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    if not any(folder.glob("*.safetensors")):
        raise DownloadError("the repository has no safetensors files")
