"""What questions to the namespace are answered, from its state. Nothing is changed."""

from typing import Any

from diskless import paths, policy
from diskless.errors import DisklessError, NotFound, PathIsFile
from diskless.model import FileRecord, Stripe
from diskless.namespace import queries as q
from diskless.namespace import quotas
from diskless.namespace.behind import pieces_behind
from diskless.namespace.compare import DiffPage, diff_page
from diskless.namespace.health import judge
from diskless.namespace.lookback import Events
from diskless.namespace.state import NamespaceState
from diskless.namespace.tier import is_cold
from diskless.namespace.tree import Directory, File
from diskless.namespace.usage import usage_page
from diskless.namespace.views import (
    SnapshotStatus,
    snapshot_status,
    tier_place,
    tier_places,
    tier_status,
)

NEWEST_MAX = 200
NEWEST_NAMES_MAX = 4000
"""That one question looks at: about a millisecond."""
TIER_PARTS_MAX = 64
"""Of a file's places in one answer."""
PAGE_BYTES_MAX = 3 << 20
"""Of one page's entries as JSON, where a character takes up to 6 bytes: a frame holds 4 MiB."""
ENTRY_BYTES = 200
"""Of an entry without its path."""
CARE_EXTENTS_MAX = 2000
"""Parts of a file that are looked at to say how well it is: about 2 GiB."""
LEASES_SHOWN_MAX = 1000


def answer(state: NamespaceState, query: q.Query) -> Any:
    """The answer from `state`. Raises what the question deserves, such as NotFound."""
    match query:
        case q.Stat(path):
            return state.stat(path)
        case q.Page(path, after, limit):
            entries, more = state.page(
                path, after=after, limit=min(max(limit, 1), q.PAGE_ENTRIES_MAX)
            )
            return _that_fits(q.Listed(entries, more))
        case q.Newest(path, after, limit):
            return q.NewestFound(
                *state.newest(
                    path,
                    after=after,
                    limit=min(max(limit, 1), NEWEST_MAX),
                    names_max=NEWEST_NAMES_MAX,
                )
            )
        case q.Open(path):
            return _opened(state, path)
        case q.OpenMany(wanted):
            return _opened_many(state, wanted[: q.OPEN_FILES_MAX])
        case q.Locate(stripes):
            return state.locate(stripes)
        case q.Summarize(path):
            return state.summary(path)
        case q.Snapshots(path, after, limit):
            return _snapshots(state, path, after, min(max(limit, 1), q.PAGE_ENTRIES_MAX))
        case q.SnapshotNumber(number):
            return snapshot_status(state.history.numbered(number))
        case q.Usage(path, cursor, limit):
            return usage_page(
                state, path, cursor=cursor, limit=min(max(limit, 1), q.WALK_STEPS_MAX)
            )
        case q.Diff():
            return _diff(state, query)
        case q.Review(place, shards):
            return [state.ledger.verdict(shard, place) for shard in shards]
        case q.Placed(place):
            return state.health.shards_at[place]
        case q.Tokens(after, limit):
            return _tokens(state, after, min(max(limit, 1), q.PAGE_ENTRIES_MAX))
        case q.Policy(path):
            return _policy(state, path)
        case q.TierState():
            return tier_status(state.tier)
        case q.TierPlaces(ids):
            return [tier_place(state.tier, id_) for id_ in ids[: q.PAGE_ENTRIES_MAX]]
        case q.TierParts(id_, at):
            return tier_places(state.tier, id_, at, limit=TIER_PARTS_MAX)
        case q.Behind(extent):
            return pieces_behind(state, extent)
        case q.LeasesOf(path):
            return state.leases.page(state, path, LEASES_SHOWN_MAX)
        case q.Report() | Events() | q.NotesOf():
            raise AssertionError("for the agent to answer, which knows more than the state")


def _opened(state: NamespaceState, path: str) -> q.OpenedFile:
    record, stripes = state.open(path)
    if is_cold(record):
        return q.OpenedFile(record, stripes, tier_place(state.tier, record.id))
    return q.OpenedFile(record, stripes)


def _opened_many(state: NamespaceState, wanted: tuple[str, ...]) -> q.OpenedFiles:
    records: list[FileRecord | None] = []
    refusals: dict[int, q.NotOpened] = {}
    stripes: dict[str, Stripe] = {}
    for number, path in enumerate(wanted):
        try:
            record, found = state.open(path)
        except DisklessError as error:
            records.append(None)
            refusals[number] = q.NotOpened(error.reason, str(error))
        else:
            records.append(record)
            stripes.update((stripe.id, stripe) for stripe in found)
    return q.OpenedFiles(records, refusals, list(stripes.values()))


def _policy(state: NamespaceState, path: str) -> q.PolicyShown:
    paths.split(path)
    defaults = {key: known.default for key, known in policy.KEYS.items()}
    defaults[policy.DURABILITY] = state.tier.default_durability
    defaults[policy.PARITY] = str(state.parity_shards)
    found = []
    for key, default in defaults.items():
        value, source = state.policies.effective(path, key, default=default)
        found.append((key, value, source))
    held = [
        (above, state.policies.quotas[above], quotas.used(state, above))
        for above in quotas.at_or_above(path)
        if above in state.policies.quotas
    ]
    try:
        node = state.get(path)
    except NotFound:
        return q.PolicyShown(found, held)
    return q.PolicyShown(found, held, _care(state, node.record) if type(node) is File else None)


def _care(state: NamespaceState, record: FileRecord) -> q.FileCare:
    k, ledger = state.parity_shards, state.ledger
    parity = margin = k
    for extent in record.extents[:CARE_EXTENTS_MAX]:
        stripe = ledger.get(extent.stripe)
        parity = min(parity, stripe.parity_shards)
        margin = min(margin, max(judge(stripe, state.agents).spare, -1))
    priority, asked = policy.priority_of(record.grade), policy.parity_of(record.grade, k)
    return q.FileCare(priority, asked, parity, margin)


def _snapshots(state: NamespaceState, path: str, after: int, limit: int) -> q.SnapshotsListed:
    history = state.history
    known = history.at(path).values() if path else history.by_id.values()
    if path and not known:
        state.get(path)
    found: list[SnapshotStatus] = []
    size, more = 0, False
    for snapshot in known:
        if snapshot.id <= after:
            continue
        size += 6 * (len(snapshot.path) + 2 * len(snapshot.name)) + ENTRY_BYTES
        if len(found) == limit or (found and size > PAGE_BYTES_MAX):
            more = True
            break
        found.append(snapshot_status(snapshot))
    return q.SnapshotsListed(found, more)


def _tokens(state: NamespaceState, after: str, limit: int) -> q.TokensListed:
    entries, more = state.tokens.page(after=after, limit=limit)
    size = 0
    for count, token in enumerate(entries):
        size += 6 * (len(token.name) + sum(map(len, token.paths))) + ENTRY_BYTES
        if count and size > PAGE_BYTES_MAX:
            return q.TokensListed(entries[:count], True)
    return q.TokensListed(entries, more)


def _diff(state: NamespaceState, query: q.Diff) -> DiffPage:
    before = state.history.get(query.path, query.before).root
    if query.after:
        after = state.history.get(query.path, query.after).root
    else:
        node = state.get(query.path)
        if not isinstance(node, Directory):
            raise PathIsFile(f"{query.path} is a file now")
        after = node
    return diff_page(
        before,
        after,
        cursor=query.cursor,
        limit=min(max(query.limit, 1), q.WALK_STEPS_MAX),
        chars_max=PAGE_BYTES_MAX // 6 - ENTRY_BYTES * q.WALK_STEPS_MAX // 6,
    )


def _that_fits(page: q.Listed) -> q.Listed:
    size = 0
    for count, entry in enumerate(page.entries):
        size += 6 * len(entry.path) + ENTRY_BYTES
        if count and size > PAGE_BYTES_MAX:
            return q.Listed(page.entries[:count], True)
    return page
