"""Errors keep their class over every wire, and users can catch them as built-in ones."""

import inspect
import pickle

import pytest

from diskless import errors
from diskless.errors import BY_REASON, DisklessError, error_from_wire
from diskless.namespace import commands as c
from diskless.rpc.v1 import common_pb2

CLASSES = sorted(
    (
        cls
        for cls in vars(errors).values()
        if inspect.isclass(cls) and issubclass(cls, DisklessError)
    ),
    key=lambda cls: cls.__name__,
)
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)

BUILT_IN = {
    "BadSettings": ValueError,
    "BadRequest": ValueError,
    "BadFrame": ValueError,
    "NotFound": FileNotFoundError,
    "AlreadyExists": FileExistsError,
    "PathIsDirectory": IsADirectoryError,
    "PathIsFile": NotADirectoryError,
    "DirectoryNotEmpty": OSError,
    "HasSnapshots": OSError,
    "TooFewShards": OSError,
    "ShardsAway": OSError,
    "CorruptData": OSError,
    "CapacityExceeded": OSError,
    "MemoryFull": OSError,
    "TooFewAgents": OSError,
    "StaleShards": OSError,
    "SessionExpired": OSError,
    "UploadLost": OSError,
    "ClusterExists": OSError,
    "FilesExist": OSError,
    "Unavailable": ConnectionError,
    "AgentGone": ConnectionError,
    "Garbled": ConnectionError,
    "NoQuorum": ConnectionError,
    "StoreDown": ConnectionError,
    "StoreDenied": PermissionError,
    "NoSuchBucket": FileNotFoundError,
    "WrongKey": ValueError,
    "Superseded": OSError,
    "Restored": OSError,
    "TierBehind": TimeoutError,
    "DamagedTier": OSError,
    "NotDurable": ConnectionError,
    "Closing": ConnectionError,
    "NotLeader": ConnectionError,
    "DeadlineExceeded": TimeoutError,
    "Unauthorized": PermissionError,
    "Forbidden": PermissionError,
    "ReadOnly": PermissionError,
    "CheckpointInUse": OSError,
    "CannotReturn": ValueError,
    "UnknownFormat": ValueError,
    "NoCluster": LookupError,
    "LaunchFailed": RuntimeError,
    "SparkUnusable": RuntimeError,
    "OverBudget": RuntimeError,
    "PromiseBroken": RuntimeError,
    "NotHealed": RuntimeError,
    "BeyondPromise": RuntimeError,
    "InternalError": RuntimeError,
}


def test_every_class_can_be_found_by_its_reason() -> None:
    assert {cls.__name__: cls for cls in CLASSES} == BY_REASON


@every_class
def test_an_error_survives_the_wire_with_its_class_and_its_text(cls: type[DisklessError]) -> None:
    error = cls("stripe 7: 3 of 4 shards — 'ä'")
    sent = common_pb2.Refusal(reason=error.reason, message=str(error)).SerializeToString()
    refusal = common_pb2.Refusal.FromString(sent)
    built = error_from_wire(refusal.reason, refusal.message)
    assert type(built) is cls
    assert (str(built), built.reason) == (str(error), cls.__name__)
    assert built.retryable == error.retryable


@every_class
def test_a_refusal_of_the_namespace_is_the_error_that_caused_it(cls: type[DisklessError]) -> None:
    (refused,) = c.decode_results(c.encode((c.Refused.of(cls("why")),)))
    assert isinstance(refused, c.Refused)
    assert type(refused.error()) is cls
    assert str(refused.error()) == "why"
    assert refused.error().retryable == cls.retryable


@every_class
def test_an_error_can_be_pickled_because_ray_does(cls: type[DisklessError]) -> None:
    built = pickle.loads(pickle.dumps(cls("why")))
    assert type(built) is cls
    assert str(built) == "why"


def test_an_unknown_reason_keeps_its_name_in_the_text() -> None:
    error = error_from_wire("FromTheFuture", "a message")
    assert type(error) is DisklessError
    assert str(error) == "FromTheFuture: a message"
    assert not error.retryable


@every_class
def test_an_error_is_also_the_built_in_one_for_its_case(cls: type[DisklessError]) -> None:
    if cls is DisklessError:
        return
    assert issubclass(cls, BUILT_IN[cls.__name__])


@every_class
def test_exit_codes_are_from_1_to_30_and_stay_clear_of_shells(cls: type[DisklessError]) -> None:
    assert 1 <= cls.exit_code <= 30
    if cls not in (DisklessError, errors.InternalError):
        assert cls.exit_code > 1, "1 is for what has no code of its own"


def test_exit_codes_have_no_gap_and_2_is_for_wrong_use() -> None:
    bench_alone = 22
    assert {cls.exit_code for cls in CLASSES} == set(range(1, 31)) - {bench_alone}
    assert {cls.__name__ for cls in CLASSES if cls.exit_code == 2} == {"BadSettings", "BadRequest"}


def test_only_refusals_that_changed_nothing_may_be_repeated_blindly() -> None:
    retryable = {cls.__name__ for cls in CLASSES if cls.retryable}
    unreached = {"Unavailable", "AgentGone", "Garbled", "NoQuorum", "ShardsAway", "StoreDown"}
    unreached |= {"Closing"}
    done_and_answered_again = {"NotDurable"}
    assert retryable == unreached | done_and_answered_again | {
        "NotLeader", "StaleShards", "MemoryFull"
    }  # fmt: skip
    assert not errors.SessionExpired.retryable


@every_class
def test_every_error_but_those_that_say_it_in_their_name_explains_itself(
    cls: type[DisklessError],
) -> None:
    plain = {"NotFound", "AlreadyExists", "PathIsDirectory", "DirectoryNotEmpty"}
    plain |= {"DeadlineExceeded"}
    assert cls.__name__ in plain or vars(cls).get("__doc__")
