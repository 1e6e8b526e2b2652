"""Other people's SQL on real databases: views answer, and nothing else can be read, written or called."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from db.connection.engine import Database, open_database
from db.query.query import QueryResult, query
from db.query.views import VIEWS
from db.store import Store
from jobs.errors import BadSetting
from tests.databases import PostgresServer
from tests.stored_jobs import everything, submit, succeed


def ask(database: Database, sql: str, limit: int = 100, timeout_s: float = 20.0) -> QueryResult:
    return query(database, sql, limit=limit, timeout_s=timeout_s)


def test_every_view_has_the_columns_that_are_told(database: Database) -> None:
    for name, view in VIEWS.items():
        answer = ask(database, f"SELECT * FROM {name}")
        assert (answer.columns, answer.rows) == (tuple(view.all_columns), [])


def test_views_answer_for_people_and_programs(database: Database, clocked: Store) -> None:
    job = submit(clocked)
    succeed(clocked, f"{job}-01")
    assert ask(database, "SELECT job, tasks, done, failed FROM jobs;").rows == [(job, 5, 1, 0)]
    found = ask(database, "SELECT variant, metric, median FROM results WHERE metric LIKE '%ms' -- a word")
    assert found.rows == [("tiny-llama-FP16-TP1", "ttft_ms", 2.5)]
    ranked = "WITH r AS (SELECT name, RANK() OVER (ORDER BY size_bytes DESC) n FROM artifacts) SELECT name FROM r"
    assert {row[0] for row in ask(database, ranked).rows} == {"log", "model.vmfb"}
    assert ask(database, "SELECT COUNT(*) > 2 FROM events").rows[0][0]
    assert ask(database, "SELECT substr(CAST(started_at AS text), 1, 10) FROM attempts").rows == [("2025-11-21",)]


def test_rows_are_bounded(database: Database, store: Store) -> None:
    submit(store)
    answer = ask(database, "SELECT task FROM tasks ORDER BY task", limit=3)
    assert (len(answer.rows), answer.is_cut) == (3, True)
    assert not ask(database, "SELECT task FROM tasks", limit=5).is_cut


def test_time_is_bounded(database: Database) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    with pytest.raises(BadSetting, match=r"0\.3 s.*--timeout"):
        ask(database, endless, timeout_s=0.3)


WRITES = [
    "DELETE FROM jobs",
    "DELETE FROM main.jobs",
    "DELETE FROM public.jobs",
    "UPDATE tasks SET state = 'succeeded'",
    "INSERT INTO events(detail) VALUES ('x')",
    "REPLACE INTO pins VALUES ('a', 'b', 'c', 'd')",
    "WITH gone AS (DELETE FROM public.jobs RETURNING *) SELECT * FROM gone",
    "DROP TABLE pins",
    "DROP VIEW jobs",
    "TRUNCATE public.events",
    "CREATE TABLE x (a int)",
    "CREATE TEMP VIEW x AS SELECT 1",
    "SELECT * INTO x FROM jobs",
    "SELECT 1; DELETE FROM jobs",
    "SELECT 1) AS x; COMMIT; DROP TABLE public.pins; SELECT (1",
    "SELECT * FROM jobs FOR UPDATE",
    "BEGIN",
    "COMMIT",
    "VACUUM",
    "ANALYZE",
    "",
]


def answered(database: Database, sqls: Iterable[str]) -> list[str]:
    """Those of some that are not refused."""
    found = []
    for sql in sqls:
        with suppress(BadSetting):
            ask(database, sql, timeout_s=5)
            found.append(sql)
    return found


def test_nothing_is_written(database: Database, store: Store) -> None:
    submit(store)
    before = everything(database)
    assert answered(database, WRITES) == []
    assert everything(database) == before


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT mediam FROM results", ("mediam", "(did you mean median?)", "results has job, task, attempt")),
        ("SELECT r.mediam FROM results r", ("mediam", "(did you mean median?)", "new_tokens")),
        ("SELECT speed FROM nodes", ("speed", "; nodes has node, host")),
        ("SELECT * FROM result", ("result", "(did you mean results?)", "there are jobs, tasks, cells")),
        ("SELECT * FROM measurements", ("measurements", "jobs, tasks, cells, attempts, results")),
        ("SELECT median FRM results", ("syntax error", "haloctl query --views")),
    ],
)
def test_a_name_that_is_not_there_is_told_with_those_that_are(
    database: Database, sql: str, told: tuple[str, ...]
) -> None:
    with pytest.raises(BadSetting) as refused:
        ask(database, sql)
    assert [part for part in told if part not in str(refused.value)] == []


HIDDEN = [
    "SELECT environment FROM main.attempts",
    "SELECT environment FROM public.attempts",
    "WITH attempts AS (SELECT environment FROM main.attempts) SELECT * FROM attempts",
    "WITH attempts AS (SELECT environment FROM public.attempts) SELECT * FROM attempts",
    "WITH jobs AS (SELECT COUNT(*) FROM main.pins) SELECT * FROM jobs",
    "SELECT * FROM pins",
    "SELECT * FROM haloctl_schema",
]


def test_only_views_are_read(database: Database) -> None:
    assert answered(database, HIDDEN) == []


@pytest.fixture
def sqlite(sqlite_template: Path) -> Iterator[Database]:
    with open_database(f"sqlite:///{sqlite_template}", create=False) as opened:
        yield opened


def test_sqlite_reaches_nothing_else(sqlite: Database, tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    reaching = [
        f"ATTACH DATABASE '{file}' AS x",
        f"VACUUM INTO '{file}'",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "SELECT * FROM pragma_table_info('jobs')",
        f"SELECT load_extension('{file}')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM sqlite_temp_master",
        "SELECT length(zeroblob(1000000000))",
        "CREATE VIRTUAL TABLE x USING fts5(a)",
    ]
    assert answered(sqlite, reaching) == []
    assert not file.exists()


def test_sqlite_reads_json(sqlite: Database) -> None:
    assert ask(sqlite, "SELECT value FROM json_each('[1, 2]')").rows == [(1,), (2,)]


@pytest.fixture(scope="module")
def superusers(postgres: PostgresServer) -> Iterator[Database]:
    """Whoever may do everything on the server."""
    with postgres.new_database() as url, open_database(url, create=False) as opened:
        with opened.writing() as connection:
            connection.execute(text("CREATE FUNCTION public.mine() RETURNS int IMMUTABLE LANGUAGE SQL AS 'SELECT 1'"))
            connection.execute(text("CREATE OPERATOR public.@@@ (PROCEDURE = int4pl, LEFTARG = int, RIGHTARG = int)"))
        yield opened


def test_postgres_calls_nothing_that_does_more_than_compute(superusers: Database) -> None:
    more = [
        "SELECT pg_terminate_backend(1)",
        "SELECT pg_cancel_backend(pid) FROM generate_series(1, 2) AS pid",
        "SELECT lo_import('/etc/hostname')",
        "SELECT lo_creat(-1)",
        "SELECT pg_read_file('/etc/hostname')",
        "SELECT * FROM jobs, LATERAL pg_ls_dir('/') AS files",
        "SELECT nextval('public.events_id_seq')",
        "SELECT set_config('role', 'none', false)",
        "SELECT current_setting('data_directory')",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_notify('haloctl', '')",
        "SELECT pg_sleep(60)",
        "SELECT query_to_xml('SELECT * FROM pg_authid', true, true, '')",
        "SELECT table_to_xml('pg_authid', true, true, '')",
        "SELECT * FROM ts_stat('SELECT pg_sleep(60)')",
        "SELECT count(*) FILTER (WHERE pg_try_advisory_lock(1)) FROM jobs",
        "SELECT rolpassword FROM pg_authid",
        "SELECT (SELECT rolpassword FROM pg_authid LIMIT 1)",
        "SELECT * FROM pg_stat_activity",
        "SELECT * FROM information_schema.tables",
        "SELECT 1) AS a, pg_authid AS b, (SELECT 1",
        "SELECT public.mine()",
        "SELECT 1 OPERATOR(public.@@@) 2",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "COPY public.jobs TO '/tmp/jobs'",
        "DO $$ BEGIN END $$",
        "SET ROLE NONE",
        "SHOW data_directory",
        "EXPLAIN ANALYZE SELECT 1",
    ]
    assert answered(superusers, more) == []


def test_postgres_computes(superusers: Database) -> None:
    told = """
        SELECT date_trunc('month', submitted_at), submitted_at::date, to_char(submitted_at, 'IYYY-IW') FROM jobs
        WHERE submitted_at > now() - interval '1 day' AND name ~ 'a+' AND job LIKE '%a'
    """
    assert ask(superusers, told).rows == []
    sums = "avg(x), percentile_cont(0.5) WITHIN GROUP (ORDER BY x), string_agg(x::text, ',')"
    assert ask(superusers, f"SELECT {sums} FROM generate_series(1, 3) x").rows == [(2, 2.0, "1,2,3")]
    assert ask(superusers, "SELECT '[1]'::jsonb -> 0, 2 ^ 3, coalesce(NULL, 'a' || 'b')").rows == [(1, 8.0, "ab")]


#: What SQLite computes within one of its own functions, where nothing can interrupt it; and what fills the memory.
ENDLESS = [
    "SELECT instr(zeroblob(8000000), CAST(zeroblob(4000000) AS text) || 'x')",
    "SELECT replace(printf('%.*c', 8000000, 'a'), printf('%.*c', 4000000, 'a') || 'b', 'c')",
]
NUMBERED = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000)"
LARGE = {
    "sqlite": [
        f"{NUMBERED} SELECT zeroblob(1000000) FROM n",
        f"{NUMBERED} SELECT group_concat(hex(zeroblob(100000))) FROM n",
        "SELECT zeroblob(1000000000)",
    ],
    "postgresql": [
        "SELECT repeat('x', 1000000) FROM generate_series(1, 1000000)",
        "SELECT repeat('x', 1000000000)",
        "SELECT repeat('x', 100000000) AS a, 1 AS a",
    ],
}


def test_time_is_bounded_within_one_function(sqlite_template: Path) -> None:
    with open_database(f"sqlite:///{sqlite_template}", create=False) as database:
        for sql in ENDLESS:
            with pytest.raises(BadSetting, match="not answered within"):
                ask(database, sql, timeout_s=0.3)


def test_answers_are_bounded(database: Database) -> None:
    for sql in LARGE[database.url.get_backend_name()]:
        with pytest.raises(BadSetting, match=r"larger than 64 MiB|not answered|invalid memory alloc"):
            ask(database, sql, limit=200, timeout_s=2)


def test_rows_keep_their_order_and_names(database: Database, store: Store) -> None:
    submit(store)
    answer = ask(database, "SELECT task AS a, stage AS a, 1 AS total FROM tasks ORDER BY task DESC")
    assert (answer.columns, len(answer.rows)) == (("a", "a", "total"), 5)
    assert answer.rows == sorted(answer.rows, reverse=True)


def test_odd_texts_are_refused_or_answered(database: Database) -> None:
    assert answered(database, ["SELECT '\0'", "SELECT '\udc80'", "SELECT 1 -- " + "a" * 200_000]) == []
    answered(database, ["SELECT " + "(" * 5000 + "1" + ")" * 5000, "SELECT " + ", ".join("1" * 3000)])
    answered(database, ["SELECT CAST('infinity' AS timestamp)", "SELECT CAST('nan' AS numeric)", "SELECT 9e999"])
