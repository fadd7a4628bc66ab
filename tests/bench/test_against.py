"""The comparison with another tree's code, here with this one itself."""

from pathlib import Path

import pytest

from diskless.bench import against

HERE = Path(__file__).parents[2]


def test_what_is_no_tree_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        against.main([str(tmp_path)])
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith("was not run in it")


@pytest.mark.slow
def test_each_work_gets_a_ratio() -> None:
    said: list[str] = []
    against.compare((HERE, HERE), rounds=2, turns=1, idle_s=0.4, say=said.append)
    assert [line.split()[0] for line in said] == [*against.WORKS, "idle"]
    assert all("ratio" in line for line in said)
