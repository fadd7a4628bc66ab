"""The table of recoveries: its text, what it says of bounds, and which rows it keeps."""

import pytest

from diskless.bench.recovery_rows import (
    COLUMNS,
    DISKLESS,
    LOCAL,
    REMOTE,
    SIZES_MB,
    Recovery,
    Row,
    Table,
    as_text,
    key,
    verdict,
)
from diskless.cli.bench_recovery import parse_sizes
from diskless.errors import BadRequest


def row(input_mb: float, *, local_s: float = 5.0, near: float | None = None) -> Row:
    return Row(
        input_mb=input_mb,
        state_rows=1000,
        state_mb=input_mb / 2,
        recoveries={
            key(DISKLESS, LOCAL): Recovery(whole_s=local_s, near_share=near),
            key(DISKLESS, REMOTE): Recovery(whole_s=9.0),
        },
    )


def table(*rows: Row) -> Table:
    return Table(rows=list(rows), rate="1gbit", machine="2 cores")


def test_a_row_replaces_one_of_its_size_and_rows_are_in_order() -> None:
    small, large, again = row(1), row(50), row(50, local_s=7.0)
    assert table().replaced(large).replaced(small).replaced(again).rows == [small, again]


def test_the_text_has_what_was_measured_and_says_what_was_not() -> None:
    text = as_text(table(row(1, local_s=5.25)))
    assert "| 1 | 0.5 | 1,000 | 5.2 | 9.0 |  |  |" in text
    assert "Not measured: 10, 50, 100, 200, 250, 300, 350, 400, 600 MB" in text
    assert "Not measured" not in as_text(table(*map(row, SIZES_MB)))
    header = next(line for line in text.splitlines() if line.startswith("| input"))
    assert header.count("|") == 4 + len(COLUMNS)


def test_the_bound_on_near_bytes_is_about_every_row() -> None:
    near, far = row(1, near=0.9), row(10, near=0.5)
    assert verdict([near]).endswith("met, 90%.")
    assert verdict([near, far]).endswith("missed, 90%, 50%.")
    assert verdict([row(1)]).endswith("not measured.")


def test_sizes_are_megabytes_in_order_each_once() -> None:
    assert parse_sizes("50,1,10,1") == [1, 10, 50]
    for text in ("", "a", "1,-2", "0"):
        with pytest.raises(BadRequest):
            parse_sizes(text)
