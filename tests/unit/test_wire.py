"""Batches with payload: protobuf to the letter, sliced instead of copied, never trusted."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diskless.errors import AlreadyExists, BadFrame
from diskless.rpc import wire
from diskless.rpc.services import MEMBERSHIP, NAMESPACE, SHARDS, Batch, Service
from diskless.rpc.v1 import membership_pb2, namespace_pb2, shards_pb2

SERVICES = [SHARDS, NAMESPACE, MEMBERSHIP]
every_service = pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.method)

payloads = st.one_of(st.none(), st.binary(max_size=300), st.binary(min_size=120, max_size=140))
numbers = st.integers(0, 2**64 - 1)
stripes = st.text("0123456789.", max_size=12)


def store(number: int, data: bytes, *, stripe: str = "0.1.2") -> shards_pb2.ShardCall:
    shard = shards_pb2.StoreShard(stripe=stripe, index=1, checksums=b"sums", data_bytes=len(data))
    return shards_pb2.ShardCall(id=number, store=shard)


@st.composite
def shard_calls(draw: st.DrawFn) -> list[tuple[shards_pb2.ShardCall, bytes | None]]:
    calls: list[tuple[shards_pb2.ShardCall, bytes | None]] = []
    for data in draw(st.lists(payloads, max_size=6)):
        number, stripe = draw(numbers), draw(stripes)
        if data is not None:
            calls.append((store(number, data, stripe=stripe), data))
            continue
        fetch = shards_pb2.FetchBlocks(stripe=stripe, index=3, first_block=1, blocks=2)
        calls.append((shards_pb2.ShardCall(id=number, fetch=fetch), None))
    return calls


@st.composite
def shard_answers(draw: st.DrawFn) -> list[tuple[shards_pb2.ShardAnswer, bytes | None]]:
    answers: list[tuple[shards_pb2.ShardAnswer, bytes | None]] = []
    for data in draw(st.lists(payloads, max_size=6)):
        number = draw(numbers)
        if data is None:
            refusal = SHARDS.refuse(AlreadyExists("why"))
            refusal.id = number
            answers.append((refusal, None))
        else:
            blocks = shards_pb2.Blocks(checksums=b"s", data_bytes=len(data))
            answers.append((shards_pb2.ShardAnswer(id=number, blocks=blocks), data))
    return answers


def items(batch: Batch, data: bytes) -> list[tuple[object, bytes]]:
    return [(item, bytes(payload)) for item, payload in batch.split(data)]


# Round trips


@given(shard_calls())
def test_calls_come_out_as_they_went_in_and_are_protobuf(
    calls: list[tuple[shards_pb2.ShardCall, bytes | None]],
) -> None:
    data = SHARDS.calls.join(calls)
    assert items(SHARDS.calls, data) == [(call, payload or b"") for call, payload in calls]
    whole = b"".join(payload or b"" for _, payload in calls)
    parsed = shards_pb2.ShardCalls.FromString(data)
    assert list(parsed.calls) == [call for call, _ in calls]
    assert (parsed.payload, parsed.payload_bytes) == (whole, len(whole))


@given(shard_answers())
def test_answers_come_out_as_they_went_in_and_are_protobuf(
    answers: list[tuple[shards_pb2.ShardAnswer, bytes | None]],
) -> None:
    data = SHARDS.answers.join(answers)
    assert items(SHARDS.answers, data) == [(answer, part or b"") for answer, part in answers]
    parsed = shards_pb2.ShardAnswers.FromString(data)
    assert list(parsed.answers) == [answer for answer, _ in answers]
    assert parsed.payload == b"".join(part or b"" for _, part in answers)


@given(shard_calls())
def test_what_the_generated_class_writes_is_read_too(
    calls: list[tuple[shards_pb2.ShardCall, bytes | None]],
) -> None:
    whole = b"".join(payload or b"" for _, payload in calls)
    written = shards_pb2.ShardCalls(
        payload_bytes=len(whole), calls=[call for call, _ in calls], payload=whole
    ).SerializeToString(deterministic=True)
    assert written == SHARDS.calls.join(calls)
    assert items(SHARDS.calls, written) == [(call, payload or b"") for call, payload in calls]


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_payload_of_every_length_of_length_round_trips(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    data = SHARDS.calls.join([(store(1, payload), memoryview(payload))])
    assert items(SHARDS.calls, data) == [(store(1, payload), payload)]
    assert shards_pb2.ShardCalls.FromString(data).payload == payload


def test_payload_is_a_view_of_the_message_and_no_copy() -> None:
    data = SHARDS.calls.join([(store(1, b"abc"), b"abc"), (store(2, b"de"), bytearray(b"de"))])
    views = [payload for _, payload in SHARDS.calls.split(data)]
    assert [view.obj is data for view in views] == [True, True]
    assert [bytes(view) for view in views] == [b"abc", b"de"]


def test_payload_that_looks_like_tags_is_payload() -> None:
    tricky = b"\x7a\x03\x7a\x03\x0d\x00\x00\x00\x00\x7a"
    data = SHARDS.calls.join([(store(1, tricky), tricky)])
    assert items(SHARDS.calls, data) == [(store(1, tricky), tricky)]


@given(st.lists(st.tuples(numbers, st.binary(max_size=50)), max_size=5))
def test_batches_without_payload_are_plain_protobuf(commands: list[tuple[int, bytes]]) -> None:
    calls = [namespace_pb2.NamespaceCall(id=n, command=data) for n, data in commands]
    data = NAMESPACE.calls.join([(call, None) for call in calls])
    assert data == namespace_pb2.NamespaceCalls(calls=calls).SerializeToString()
    assert [item for item, _ in NAMESPACE.calls.split(data)] == calls


def test_a_beat_and_its_answer_round_trip() -> None:
    beat = membership_pb2.Beat(id=1, leader=2, roster_version=3, roster=b"r", inline_room=True)
    hold = membership_pb2.Hold(slot=1, incarnation=2, counter=2**40)
    memory = {"shards": 2**40, "log": 0}
    answer = membership_pb2.BeatAnswer(id=1, boot="b", memory=memory, holds=[hold])
    assert items(MEMBERSHIP.calls, MEMBERSHIP.calls.join([(beat, None)])) == [(beat, b"")]
    assert items(MEMBERSHIP.answers, MEMBERSHIP.answers.join([(answer, None)])) == [(answer, b"")]


@every_service
def test_an_empty_batch_is_an_empty_message(service: Service) -> None:
    for batch in (service.calls, service.answers):
        assert batch.join([]) == b""
        assert items(batch, b"") == []


@every_service
def test_a_refusal_is_an_answer_of_the_service_with_its_reason(service: Service) -> None:
    refusal = service.refuse(AlreadyExists("/a exists already"))
    ((answer, _),) = service.answers.split(service.answers.join([(refusal, None)]))
    assert answer.HasField("refusal")
    assert answer.refusal.reason == "AlreadyExists"
    assert answer.refusal.message == "/a exists already"


@every_service
def test_the_method_is_one_of_a_service_in_the_protos(service: Service) -> None:
    _, name, method = service.method.split("/")
    modules = (shards_pb2, namespace_pb2, membership_pb2)
    found = {
        declared.full_name: declared
        for module in modules
        for declared in module.DESCRIPTOR.services_by_name.values()
    }[name].methods_by_name[method]
    assert found.input_type.full_name == service.calls.kind.DESCRIPTOR.full_name
    assert found.output_type.full_name == service.answers.kind.DESCRIPTOR.full_name


# Garbage


@every_service
@given(data=st.binary(max_size=200))
@example(data=b"\x0d")
@example(data=b"\x0d\xff\xff\xff\xff")
@example(data=b"\x0d\x01\x00\x00\x00\x7a\x01")
@example(data=b"\x0d\x00\x00\x00\x00")
def test_garbage_is_a_bad_frame_or_a_message_and_nothing_else(
    service: Service, data: bytes
) -> None:
    for batch in (service.calls, service.answers):
        try:
            found = items(batch, data)
        except BadFrame:
            continue
        assert sum(len(payload) for _, payload in found) <= len(data)


@given(shard_calls().filter(bool), st.data())
def test_a_message_cut_short_with_payload_is_a_bad_frame(
    calls: list[tuple[shards_pb2.ShardCall, bytes | None]], draw: st.DataObject
) -> None:
    data = SHARDS.calls.join([*calls, (store(1, b"payload"), b"payload")])
    cut = draw.draw(st.integers(5, len(data) - 1))
    with pytest.raises(BadFrame):
        items(SHARDS.calls, data[:cut])


def test_bytes_behind_the_payload_are_a_bad_frame() -> None:
    data = SHARDS.calls.join([(store(1, b"payload"), b"payload")])
    with pytest.raises(BadFrame):
        items(SHARDS.calls, data + b"\x00")


@pytest.mark.parametrize("claimed", [0, 1, 6, 8, 100, 2**31, 2**32 - 1])
def test_a_wrong_size_of_the_payload_is_a_bad_frame(claimed: int) -> None:
    data = SHARDS.calls.join([(store(1, b"payload"), b"payload")])
    with pytest.raises(BadFrame):
        items(SHARDS.calls, struct.pack("<BI", 0x0D, claimed) + data[5:])


def test_a_length_that_contradicts_the_size_is_a_bad_frame() -> None:
    """It would not be protobuf, whatever its payload."""
    data = bytearray(SHARDS.calls.join([(store(1, b"payload"), b"payload")]))
    assert data[-8] == len(b"payload")
    data[-8] += 1
    with pytest.raises(BadFrame, match="claims 7 bytes"):
        items(SHARDS.calls, bytes(data))


def test_a_call_that_claims_more_than_the_payload_is_a_bad_frame() -> None:
    data = SHARDS.calls.join([(store(1, b"1234567"), b"12345")])
    with pytest.raises(BadFrame, match="cut short"):
        items(SHARDS.calls, data)


def test_payload_that_no_call_claims_is_a_bad_frame() -> None:
    data = SHARDS.calls.join([(store(1, b"12345"), b"1234567")])
    with pytest.raises(BadFrame, match="2 bytes of payload that no item claims"):
        items(SHARDS.calls, data)


def test_payload_where_none_belongs_is_a_bad_frame() -> None:
    header = namespace_pb2.NamespaceCalls(calls=[namespace_pb2.NamespaceCall(id=1, query=b"q")])
    with pytest.raises(BadFrame):
        items(NAMESPACE.calls, wire.join(header, [b"payload"]))


def test_a_header_that_does_not_parse_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame, match="does not parse"):
        wire.split(shards_pb2.ShardCalls, b"\x12\x05\xff\xff")


def test_text_that_is_not_utf8_is_a_bad_frame() -> None:
    call = (
        store(1, b"", stripe="ascii").SerializeToString().replace(b"ascii", b"\xff\xfe\xfd\xfc\xfb")
    )
    broken = b"\x12" + bytes([len(call)]) + call
    with pytest.raises(BadFrame):
        items(SHARDS.calls, broken)
