"""The table of files: a dictionary to all who use it, in pages to itself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.namespace.paged import PAGE_BITS, Paged

keys = st.integers(0, 3 << PAGE_BITS)


@settings(deadline=None)
@given(st.lists(st.tuples(keys, st.booleans())))
def test_it_is_what_a_dictionary_would_be(steps: list[tuple[int, bool]]) -> None:
    table: Paged[int] = Paged()
    model: dict[int, int] = {}
    for value, (key, put) in enumerate(steps):
        assert (key in table, table.get(key)) == (key in model, model.get(key))
        if put:
            table[key] = model[key] = value
        elif key in model:
            del table[key], model[key]
        assert len(table) == len(model)
    assert table == model


def test_keys_that_grow_stay_in_order_and_empty_pages_go() -> None:
    table: Paged[str] = Paged()
    for key in range(0, 5 << PAGE_BITS, 100):
        table[key] = str(key)
    assert list(table) == list(range(0, 5 << PAGE_BITS, 100))
    for key in range(0, 4 << PAGE_BITS, 100):
        del table[key]
    assert len(table._pages) == 1
    assert list(table.values())[-1] == str(list(table)[-1])


@settings(deadline=None)
@given(st.sets(keys), keys, st.integers(1, 5))
def test_keys_come_in_slices_either_way(known: set[int], at: int, limit: int) -> None:
    table: Paged[None] = Paged()
    for key in known:
        table[key] = None
    assert table.ascending(after=at, limit=limit) == sorted(k for k in known if k > at)[:limit]
    below = sorted((k for k in known if k < at), reverse=True)
    assert table.descending(below=at, limit=limit) == below[:limit]
