"""SIGTERM in a process of Ray's, where the handler is Ray's and the main thread is not ours."""

import signal
import threading
from collections.abc import Iterator

import pytest
import ray._private.worker as ray_worker

from diskless.launch import sigterm

said: list[str] = []


def raise_sys_exit_with_custom_error_message(message: str, exit_code: int = 0) -> None:
    """Ray's function of that name, as far as this module's handler is concerned."""
    said.append(f"{message} {exit_code}")


def handler(signum: int, frame: object) -> None:
    """As Ray's."""
    raise_sys_exit_with_custom_error_message("The process receives a SIGTERM.", exit_code=1)


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before, end = signal.getsignal(signal.SIGTERM), raise_sys_exit_with_custom_error_message
    said.clear()
    yield
    signal.signal(signal.SIGTERM, before)
    globals()[sigterm.ENDING] = end


def heed_elsewhere(told: list[str]) -> bool:
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(
            sigterm.heed(lambda: told.append(threading.current_thread().name))
        )
    )
    thread.start()
    thread.join(60)
    return found[0]


def test_on_the_main_thread_it_is_a_handler() -> None:
    told: list[int] = []
    assert sigterm.heed(lambda: told.append(1))
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert told == [1, 1]


def test_elsewhere_rays_handler_tells_us_and_all_else_that_ends_an_actor_does_so() -> None:
    signal.signal(signal.SIGTERM, handler)
    told: list[str] = []
    assert heed_elsewhere(told)
    signal.raise_signal(signal.SIGTERM)
    assert (told, said) == (["MainThread"], [])
    raise_sys_exit_with_custom_error_message("exit_actor() is called.", exit_code=0)
    assert said == ["exit_actor() is called. 0"]


def test_a_handler_that_is_not_as_rays_is_left_alone() -> None:
    signal.signal(signal.SIGTERM, lambda *_: said.append("other"))
    assert not heed_elsewhere([])
    signal.raise_signal(signal.SIGTERM)
    assert said == ["other"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert not heed_elsewhere([])


def test_rays_handler_is_one_that_can_be_redirected() -> None:
    """What this is built on: its handler, made in `main_loop`, finds that function by name."""
    assert hasattr(ray_worker, sigterm.ENDING)
    (made,) = [
        code
        for code in ray_worker.Worker.main_loop.__code__.co_consts
        if getattr(code, "co_name", "") == "sigterm_handler"
    ]
    assert sigterm.ENDING in made.co_names
