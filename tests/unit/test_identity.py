"""Claims, tokens, the handshake, marks: what is not as it was given out is worth nothing."""

import base64
import string

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from diskless import paths
from diskless.errors import BadRequest, Unauthorized
from diskless.identity.claims import (
    KEY_BYTES,
    NAME,
    PATHS_MAX,
    TOKEN_CHARS_MAX,
    Claims,
    Credential,
    Keyring,
    Role,
    make_root,
    parse_token,
    read_claims,
)
from diskless.identity.grants import Grants
from diskless.identity.handshake import Caller, Challenge, Doorkeeper, Knock, Proof

KEYRING = Keyring(cluster="c1", root=bytes(range(32)))
OTHER = Keyring(cluster="c1", root=bytes(32))
SIGNS = string.ascii_letters + string.digits

names = st.from_regex(NAME, fullmatch=True)
own_paths = st.lists(
    st.lists(st.text("ab.%é", min_size=1, max_size=3), max_size=3)
    .filter(lambda parts: not {".", ".."} & set(parts))
    .map(lambda parts: "/" + "/".join(parts)),
    min_size=1,
    max_size=4,
)
tokens = st.builds(
    lambda name, chosen, writes, expires_s: KEYRING.client(
        name, paths=chosen, writes=writes, expires_s=expires_s
    ),
    names,
    own_paths,
    st.booleans(),
    st.integers(0, 2**40),
)


# Claims and tokens.


@given(tokens)
def test_a_token_comes_back_as_it_was(credential):
    assert parse_token(credential.token) == credential
    assert parse_token(f" {credential.token}\n") == credential
    assert read_claims(credential.text) == credential.claims
    assert KEYRING.credential(credential.claims) == credential


@given(tokens, st.data())
def test_a_token_has_one_text_only(credential, data):
    """What is not written as we write it is no token, even if it meant the same."""
    token = credential.token
    at = data.draw(st.integers(0, len(token) - 1))
    changed = data.draw(
        st.one_of(
            st.sampled_from(SIGNS + "=._- ").map(lambda sign: token[:at] + sign + token[at + 1 :]),
            st.sampled_from(SIGNS + "=._").map(lambda sign: token[:at] + sign + token[at:]),
            st.just(token[:at] + token[at + 1 :]),
            st.just(token[:at]),
        )
    )
    assume(changed.strip() != token)
    try:
        found = parse_token(changed)
    except Unauthorized:
        return
    assert (found.text, found.key) != (credential.text, credential.key)
    assert found.key != KEYRING.key_of(found.text)


@pytest.mark.parametrize(
    "token",
    ["", "d1", "d1.", "d1..", "d1.e30.AAAA", "d2.e30.AAAA", "x" * (TOKEN_CHARS_MAX + 1), "d1.é.é",
     "d1." + "W" * 3000 + ".AAAA", "d1.bnVsbA.AAAA", "d1.\ud800.x"],
)  # fmt: skip
def test_what_is_no_token_is_refused_without_showing_it(token):
    with pytest.raises(Unauthorized) as refused:
        parse_token(token)
    assert not token or token not in str(refused.value)


def test_a_truncated_token_is_called_damaged():
    token = KEYRING.client("q").token
    for lost in (1, 4, 8, 20):
        with pytest.raises(Unauthorized, match="damaged: copy all of it"):
            parse_token(token[:-lost])


def test_nothing_that_is_shown_holds_a_key():
    credential = KEYRING.client("q", paths=["/q"])
    for shown in (repr(credential), repr(KEYRING), str(KEYRING)):
        assert credential.key.hex() not in shown
        assert credential.token not in shown
        assert KEYRING.hex() not in shown


@pytest.mark.parametrize(
    "claims",
    [
        Claims(cluster="c1", role=Role.CLIENT, name="q"),
        Claims(cluster="c1", role=Role.CLIENT, name="q", paths=("/a",) * (PATHS_MAX + 1)),
        Claims(cluster="c1", role=Role.CLIENT, name="q", paths=("a",)),
        Claims(cluster="c1", role=Role.CLIENT, name="q", paths=("/a/../b",)),
        Claims(cluster="c1", role=Role.CLIENT, name="q", paths=("/a/",)),
        Claims(cluster="c1", role=Role.CLIENT, name="", paths=("/a",)),
        Claims(cluster="c1", role=Role.CLIENT, name="-q", paths=("/a",)),
        Claims(cluster="c1", role=Role.CLIENT, name="q\n", paths=("/a",)),
        Claims(cluster="c1", role=Role.CLIENT, name="q", paths=("/a",), expires_s=-1),
        Claims(cluster="c1", role=Role.ADMIN, name="q", paths=("/a",)),
        Claims(cluster="c2", role=Role.ADMIN, name="q"),
    ],
)
def test_what_nobody_may_claim_gets_no_key(claims):
    with pytest.raises(BadRequest):
        KEYRING.credential(claims)


@pytest.mark.parametrize("extra", [{"admin": True}, {"role": "god"}, {"paths": "/"}])
def test_claims_with_what_we_do_not_know_are_none(extra):
    known = {"cluster": "c1", "role": "client", "name": "q", "paths": ["/a"]}
    with pytest.raises(Unauthorized):
        read_claims(_text(known | extra))
    read_claims(_text(known))


def _text(claims: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=").decode()


@given(own_paths, own_paths)
def test_a_path_is_covered_if_it_is_below_an_own_one_and_led_to_if_above(own, asked):
    claims = Claims(cluster="c1", role=Role.CLIENT, name="q", paths=tuple(own))
    for path in asked:
        parts = paths.split(path)
        covered = any(parts[: len(paths.split(one))] == paths.split(one) for one in own)
        above = any(
            paths.split(one)[: len(parts)] == parts and len(paths.split(one)) > len(parts)
            for one in own
        )
        assert claims.covers(path) == covered
        assert claims.leads_to(path) == above


def test_every_root_gives_other_keys_and_every_use_another():
    assert len(make_root()) == KEY_BYTES
    text = KEYRING.client("q").text
    uses = {KEYRING.key_of(text), OTHER.key_of(text), KEYRING.derive(text), KEYRING.derive("x")}
    assert len(uses) == 4
    with pytest.raises(BadRequest):
        Keyring(cluster="c1", root=b"short")
    for wrong in ("", "zz", "00" * 31, "00" * 33):
        with pytest.raises(BadRequest):
            Keyring.from_hex("c1", wrong)


# The handshake.


def shake(
    caller_credential: Credential,
    keeper: Doorkeeper,
    *,
    caller_door: str = "gateway",
    keeper_door: str = "gateway",
    caller_about: str = "",
    keeper_about: str = "",
) -> bool:
    """Whether both sides believe each other."""
    caller = Caller(caller_credential, door=caller_door, about=caller_about)
    pending = keeper.challenge(caller.knock(), door=keeper_door, about=keeper_about)
    proof = caller.answer(pending.challenge)
    if proof is None:
        return False
    return pending.admit(proof).text == caller_credential.text


@given(tokens, st.integers(0, 2**16), st.text("ab:/", max_size=5), st.text("ab:/", max_size=5))
def test_two_sides_of_one_cluster_believe_each_other_if_they_mean_the_same(
    credential, slot, door, about
):
    assume(not credential.claims.expires_s)
    keeper = Doorkeeper(KEYRING, slot=slot)
    same = {"caller_door": door, "keeper_door": door, "caller_about": about, "keeper_about": about}
    assert shake(credential, keeper, **same)
    assert not shake(credential, Doorkeeper(OTHER, slot=slot), **same)
    assert not shake(credential, keeper, **(same | {"keeper_door": door + "x"}))
    assert not shake(credential, keeper, **(same | {"keeper_about": about + "x"}))
    # What moves from one fact to its neighbour is not the same either.
    if door:
        assert not shake(credential, keeper, **(same | {"caller_about": about + door}))


@given(st.data())
def test_any_changed_field_of_a_challenge_gets_no_proof(data):
    caller = Caller(KEYRING.client("q"), door="gateway")
    true = Doorkeeper(KEYRING, slot=3).challenge(caller.knock(), door="gateway").challenge
    assert caller.answer(true) is not None
    changed = data.draw(
        st.one_of(
            st.integers(-5, 99).map(lambda slot: msgspec.structs.replace(true, slot=slot)),
            _changed(true.nonce).map(lambda nonce: msgspec.structs.replace(true, nonce=nonce)),
            _changed(true.proof).map(lambda proof: msgspec.structs.replace(true, proof=proof)),
        )
    )
    assume(changed != true)
    assert caller.answer(changed) is None


def _changed(text: str) -> st.SearchStrategy[str]:
    signs = st.characters(exclude_categories=())
    return st.one_of(
        st.text(signs, max_size=70),
        st.tuples(st.integers(0, len(text) - 1), signs).map(
            lambda at: text[: at[0]] + at[1] + text[at[0] + 1 :]
        ),
        st.just(text[:-1]),
        st.just(text + "0"),
    ).filter(lambda changed: changed != text)


@given(st.data())
def test_any_changed_proof_is_refused(data):
    caller = Caller(KEYRING.client("q"), door="gateway")
    pending = Doorkeeper(KEYRING, slot=3).challenge(caller.knock(), door="gateway")
    proof = caller.answer(pending.challenge)
    with pytest.raises(Unauthorized, match="key of 'q' is wrong"):
        pending.admit(Proof(data.draw(_changed(proof.proof))))
    with pytest.raises(Unauthorized):  # what an agent says is not what a caller says
        pending.admit(Proof(pending.challenge.proof))
    assert pending.admit(proof).name == "q"


def test_a_recorded_handshake_is_of_no_use():
    keeper = Doorkeeper(KEYRING, slot=3)
    caller = Caller(KEYRING.client("q"), door="gateway")
    knock = caller.knock()
    pending = keeper.challenge(knock, door="gateway")
    proof = caller.answer(pending.challenge)
    assert pending.admit(proof).name == "q"
    for other in (keeper, Doorkeeper(KEYRING, slot=4)):
        with pytest.raises(Unauthorized):  # the agent's nonce is another
            other.challenge(knock, door="gateway").admit(proof)
    # And an agent's recorded proof convinces nobody who asks with another nonce.
    assert Caller(KEYRING.client("q"), door="gateway").answer(pending.challenge) is None


def test_claims_with_another_key_convince_nobody():
    true = KEYRING.client("q", paths=["/q"])
    wider = KEYRING.client("q", paths=["/"]).text
    for text, key in ((wider, true.key), (true.text, OTHER.key_of(true.text)), (wider, bytes(32))):
        caller = Caller(Credential(text, key), door="gateway")
        pending = Doorkeeper(KEYRING, slot=0).challenge(caller.knock(), door="gateway")
        assert caller.answer(pending.challenge) is None


@pytest.mark.parametrize("nonce", ["", "0" * 31, "0" * 33, "é" * 32, " " * 32, "\ud800" * 32])
def test_a_knock_without_a_nonce_is_refused(nonce):
    with pytest.raises(Unauthorized):
        Doorkeeper(KEYRING, slot=0).challenge(Knock(KEYRING.admin().text, nonce), door="x")
    challenge = Challenge(0, nonce, "0" * 64)
    assert Caller(KEYRING.admin(), door="x").answer(challenge) is None


def test_expired_revoked_and_foreign_claims_are_refused_in_words():
    now_s = 1000.0
    revoked: set[str] = set()
    keeper = Doorkeeper(KEYRING, slot=0, revoked=revoked, wall_s=lambda: now_s)
    brief = KEYRING.client("brief", expires_s=1001)
    assert shake(brief, keeper)
    now_s = 1001.0
    with pytest.raises(Unauthorized, match=r"'brief' has expired.*token create"):
        shake(brief, keeper)
    stolen = KEYRING.client("stolen")
    assert shake(stolen, keeper)
    revoked.add("stolen")
    with pytest.raises(Unauthorized, match="'stolen' was revoked"):
        shake(stolen, keeper)
    assert shake(KEYRING.admin("stolen"), keeper)  # a name of a token, and of nothing else
    foreign = Keyring(cluster="c2", root=bytes(range(32))).client("q")
    with pytest.raises(Unauthorized, match="another cluster"):
        shake(foreign, keeper)
    knock = Caller(KEYRING.client("q"), door="lane").knock()
    with pytest.raises(Unauthorized, match="for agents, and 'q' is client"):
        keeper.challenge(knock, door="lane", role=Role.AGENT)


# Marks.


@given(
    st.lists(st.one_of(st.text(max_size=4), st.integers()), max_size=3),
    st.lists(st.one_of(st.text(max_size=4), st.integers()), max_size=3),
)
def test_a_mark_is_good_for_its_facts_and_its_holder(facts, others):
    grants = Grants(KEYRING)
    mark = grants.mark("extent", "holder", *facts)
    assert grants.holds(mark, "extent", "holder", *facts)
    assert not grants.holds(mark, "stripe", "holder", *facts)
    assert not grants.holds(mark, "extent", "other", *facts)
    assert not Grants(OTHER).holds(mark, "extent", "holder", *facts)
    if len(others) == len(facts) and list(map(str, others)) != list(map(str, facts)):
        assume(not any("\0" in str(fact) for fact in (*facts, *others)))
        assert not grants.holds(mark, "extent", "holder", *others)
