"""octavo models: fetch and list."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

import octavo
from octavo_cli.context import Context
from octavo_cli.failures import reason
from octavo_cli.output import err, say, show_json, show_table
from octavo_common.errors import NotFound, OctavoError
from octavo_common.models.catalog import CATALOG, DEFAULT_MODEL
from octavo_common.models.fetch import fetch, find, pulled
from octavo_common.text.bundle import TokenizerBundle

# As long as gateways remember a model whose last worker is gone.
_REMEMBERED_S = 600.0


@click.group()
def models() -> None:
    """Fetch and list models, and take a tokenizer out."""


@models.command()
@click.argument("name", default=DEFAULT_MODEL)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def pull(context: Context, name: str, as_json: bool) -> None:
    """Fetch a model into the data directory; prints where it lies. NAME: a name of `list`, a path, or a hub id."""
    if find(name, data_dir=context.data_dir.root) is None:
        context.data_dir.make()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(f"fetching {name}", total=None)
        files = fetch(
            name,
            data_dir=context.data_dir.root,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if as_json:
        show_json(files)
    else:
        click.echo(files.path)


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(context: Context, as_json: bool) -> None:
    """List the models known by name, those fetched, and those served now."""
    here = {model.name: model for model in pulled(context.data_dir.root)}
    served, trouble = _served(context)
    names = sorted({*CATALOG, *here, *served})
    rows = [
        {
            "name": name,
            "fetched": name in here,
            "bytes": here[name].num_bytes if name in here else None,
            "path": here[name].path if name in here else None,
            "workers": served.get(name, 0),
            "summary": CATALOG[name].summary if name in CATALOG else "",
        }
        for name in names
    ]
    if as_json:
        show_json(rows)
        return
    if trouble:
        say(f"what is served is not known: {trouble}")
    table = [(r["name"], r["fetched"], _mib(r["bytes"]), r["workers"], r["summary"]) for r in rows]
    show_table(("name", "fetched", "size", "workers", "summary"), table, empty="there are no models")


@models.command("export-tokenizer")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--model", default="", help="Name of a served model; may be left out when there is one.")
@click.pass_obj
def export_tokenizer(context: Context, folder: Path, model: str) -> None:
    """Write a served model's tokenizer as a Hugging Face directory. FOLDER is made if need be.

    Load generators want one to count tokens; the files of a GGUF model have none.
    """
    family, bundle = asyncio.run(_tokenizer(context, model))
    bundle.to_directory(folder, model_type=family)
    click.echo(folder)


async def _tokenizer(context: Context, name: str) -> tuple[str, TokenizerBundle]:
    from octavo_common.db.engine import connect
    from octavo_common.store import ArtifactStore, ProcessStore

    database = connect(context.database_url(), pool_size=1, application_name="octavo models")
    try:
        workers = await ProcessStore(database).list("worker", _REMEMBERED_S)
        cards = {worker.card.name: worker.card for worker in workers if worker.card is not None}
        card = cards.get(name) if name else next(iter(cards.values()), None) if len(cards) == 1 else None
        if card is None:
            known = ", ".join(sorted(cards)) or "none"
            raise NotFound(f"there is no served model {name!r}", hint=f"give one with --model; served: {known}")
        data = await ArtifactStore(database).get(card.tokenizer_digest)
        return card.family, TokenizerBundle.from_bytes(data)
    finally:
        await database.dispose()


def _mib(num_bytes: object) -> str:
    return f"{num_bytes / 2**20:.0f} MiB" if isinstance(num_bytes, int) else ""


def _served(context: Context) -> tuple[dict[str, int], str]:
    quick = octavo.RetryPolicy(max_attempts=1)
    key = context.key or context.data_dir.secret("user_key")
    try:
        with octavo.Client(context.addresses(), api_key=key, timeout_s=5.0, retry=quick) as client:
            return {model.name: model.num_workers for model in client.models()}, ""
    except (octavo.OctavoError, OctavoError) as error:
        return {}, reason(error, context)
