"""What the database objects to, in words of ours."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from store_world import World

from octavo_common.errors import InvalidArgument


@pytest.mark.parametrize("model", ["a\0b", "\0"])
async def test_a_value_that_no_row_can_hold_is_the_callers_error_and_tells_nothing_of_the_database(
    world: World, model: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await world.jobs.list(tenant=None, states=(), model=model, limit=1, before=None)
    assert "PostgreSQL" not in caught.value.message and "NUL" in caught.value.hint


async def test_errors_do_not_show_what_a_statement_was_given(world: World) -> None:
    """Logs have the errors, and prompts are what statements are given."""
    with pytest.raises(DBAPIError) as caught:
        async with world.database.engine.connect() as connection:
            await connection.execute(text("select 1 / (length(:words) - 6)"), {"words": "s3cret"})
    assert "division by zero" in str(caught.value) and "s3cret" not in f"{caught.value}{caught.value!r}"
