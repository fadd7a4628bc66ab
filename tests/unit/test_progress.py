"""What `status` tells of a repair, and when."""

from diskless.agent.leading.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_estimate_follows_from_what_was_done_and_what_is_left() -> None:
    clock = Clock()
    progress = Progress(clock)
    assert progress.report().state == "idle"
    progress.plan(stripes=3, payload_bytes=60, reshaping=False)
    assert (progress.report().state, progress.report().eta_s) == ("rebuilding", None)
    clock.now_s += 2.0
    progress.done([20])
    report = progress.report()
    assert (report.stripes_left, report.bytes_left, report.bytes_done) == (2, 40, 20)
    assert (report.bytes_per_s, report.eta_s) == (10, 4.0)


def test_planning_again_in_the_middle_goes_on_counting_and_a_new_repair_begins_anew() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.plan(stripes=2, payload_bytes=20, reshaping=False)
    progress.done([10])
    progress.plan(stripes=1, payload_bytes=10, reshaping=True)
    assert progress.report().bytes_done == 10
    assert progress.report().state == "reshaping"
    progress.done([10])
    assert (progress.report().state, progress.report().bytes_done) == ("idle", 20)
    progress.plan(stripes=1, payload_bytes=10, reshaping=False)
    assert progress.report().bytes_done == 0


def test_what_there_is_no_room_for_is_not_left_but_unprotectable() -> None:
    progress = Progress(Clock())
    progress.plan(stripes=2, payload_bytes=20, reshaping=True)
    progress.no_room()
    report = progress.report()
    assert (report.stripes_left, report.unprotectable, report.state) == (0, 2, "idle")


def test_it_waits_only_when_there_is_nothing_to_do() -> None:
    progress = Progress(Clock())
    progress.waiting = 3
    assert progress.report().state == "waiting"
    progress.plan(stripes=1, payload_bytes=1, reshaping=False)
    assert progress.report().state == "rebuilding"


def test_what_was_done_without_being_planned_leaves_no_less_than_nothing() -> None:
    progress = Progress(Clock())
    progress.plan(stripes=1, payload_bytes=10, reshaping=False)
    progress.done([10, 30])
    report = progress.report()
    assert (report.stripes_left, report.bytes_left, report.bytes_done) == (0, 0, 40)
