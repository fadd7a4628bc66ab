"""How repair gives way to clients."""

from diskless.agent.leading.pacer import (
    PAUSE_S_MAX,
    SHARE_MAX,
    SHARE_MIN,
    WAVE_STRIPES,
    WAVE_STRIPES_BUSY_MAX,
    WAVE_STRIPES_BUSY_MIN,
    Pacer,
)


def wave(pacer: Pacer, *, command_s: float | None, calm_s: float | None = 0.001) -> float:
    """A wave of 10 ms, with two commands in it and one after it; the pause that it earns."""
    pacer.wave_begins()
    if command_s is not None:
        pacer.note_command(command_s)
        pacer.note_command(command_s)
    pause_s = pacer.wave_ends(0.01, clients_at_work=False)
    if calm_s is not None:
        pacer.note_command(calm_s)
    return pause_s


def test_without_clients_one_wave_follows_the_other() -> None:
    pacer = Pacer(share=0.5)
    for _ in range(5):
        assert wave(pacer, command_s=None, calm_s=None) == 0
    assert pacer.share == 0.5
    assert pacer.wave_stripes(clients_at_work=False) == WAVE_STRIPES


def test_clients_that_only_read_get_their_share_too() -> None:
    pacer = Pacer(share=0.5)
    pacer.wave_begins()
    assert pacer.wave_ends(0.01, clients_at_work=True) == 0.01


def test_repair_takes_more_while_commands_are_as_quick_as_ever() -> None:
    pacer = Pacer(share=0.5)
    pauses = [wave(pacer, command_s=0.0012) for _ in range(40)]
    assert pacer.share == SHARE_MAX
    assert pauses == sorted(pauses, reverse=True)
    assert pacer.wave_stripes(clients_at_work=True) == WAVE_STRIPES_BUSY_MAX
    for _ in range(40):
        wave(pacer, command_s=0.01)
    assert pacer.wave_stripes(clients_at_work=True) == WAVE_STRIPES_BUSY_MIN
    assert pacer.share < SHARE_MAX


def test_repair_takes_less_the_more_it_slows_commands_down_but_never_stops() -> None:
    pacer = Pacer(share=0.5)
    pauses = [wave(pacer, command_s=0.01) for _ in range(60)]
    assert pacer.share == SHARE_MIN
    assert pauses == sorted(pauses)
    assert 0 < pauses[-1] <= PAUSE_S_MAX


def test_a_few_slow_commands_among_many_quick_ones_do_not_hold_repair_up() -> None:
    pacer = Pacer(share=0.5)
    for _ in range(40):
        wave(pacer, command_s=0.005)
        for _ in range(5):
            pacer.note_command(0.001)
    assert pacer.share > 0.5


def test_a_pause_is_never_longer_than_its_limit() -> None:
    pacer = Pacer(share=SHARE_MIN)
    pacer.wave_begins()
    assert pacer.wave_ends(60.0, clients_at_work=True) == PAUSE_S_MAX


def test_what_is_chosen_has_a_reason_as_soon_as_there_are_commands_to_tell() -> None:
    pacer = Pacer(share=0.5)
    assert pacer.slower is None
    for _ in range(40):
        wave(pacer, command_s=0.01)
    assert pacer.slower is not None
    assert pacer.slower > 2.8
    assert pacer.share < 0.5
