"""Lone statements keep their connection; the pool, restarts and transactions get along with that."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from octavo_common.db.engine import connect

pytestmark = pytest.mark.db
PID = text("select pg_backend_pid() as pid")


@pytest.fixture
async def database(pg_dsn):
    database = connect(pg_dsn, pool_size=2)
    yield database
    await database.dispose()


async def pid(database) -> int:
    return (await database.run(PID))[0].pid


async def test_one_statement_after_the_other_uses_one_connection(database):
    first = await pid(database)
    assert [await pid(database) for _ in range(5)] == [first] * 5
    assert database.num_in_use == 0


async def test_a_lone_statement_is_committed_when_it_returns(database):
    await database.run(text("create table kept (value int)"))
    await database.run(text("insert into kept values (1)"))
    async with database.begin() as other:
        assert (await other.execute(text("select value from kept"))).scalars().all() == [1]


async def test_a_setting_of_one_statement_is_gone_with_it(database):
    await database.run(text("select set_config('synchronous_commit', 'off', true)"))
    assert (await database.run(text("select current_setting('synchronous_commit') as is_set")))[0].is_set == "on"


async def test_a_connection_that_the_server_has_ended_is_not_used_again(database):
    first = await pid(database)
    async with database.begin() as other:
        await other.execute(text("select pg_terminate_backend(:pid, 5000)"), {"pid": first})
    assert await pid(database) != first


async def test_after_a_statement_that_failed_the_next_one_works(database):
    with pytest.raises(Exception, match="division by zero"):
        await database.run(text("select 1 / 0"))
    assert await pid(database) > 0
    assert database.num_in_use == 0


async def test_many_at_once_are_no_more_connections_than_the_pool_has(database):
    pids = await asyncio.gather(*(pid(database) for _ in range(40)))
    assert len(set(pids)) <= 4
    assert database.num_in_use == 0


async def test_transactions_find_places_while_connections_are_kept(database):
    await asyncio.gather(*(pid(database) for _ in range(8)))

    async def transaction() -> None:
        async with database.begin() as connection:
            await connection.execute(text("select pg_sleep(0.05)"))

    async with asyncio.timeout(4):
        await asyncio.gather(*(transaction() for _ in range(9)))
