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
