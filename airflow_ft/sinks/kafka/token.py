"""The token: Kafka's marker and head, a group offset committed inside the transaction of the rows.

The offset is the number of the last delivered checkpoint; its metadata say by whom and what. What a token means for
a plan is decided here, by pure functions; reading and writing it is `transaction`'s part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.errors import (
    ConfigurationError,
    FencedError,
    ForeignOwnerError,
    StoreBehindSinkError,
    TokenLostError,
)
from airflow_ft.protocol.formats import refuse_newer
from airflow_ft.protocol.model import Fence

FORMAT = 1
METADATA_LIMIT = 4095  # characters: below the broker's default of offset.metadata.max.bytes
HISTORY = 8  # how many delivered numbers a token remembers with their digests
RENEW_AFTER = timedelta(hours=1)  # group offsets vanish offsets.retention.minutes (7 days) after the last commit


class TokenKind(StrEnum):
    """Origin of a token at its number."""

    GENESIS = "genesis"  # nothing was delivered yet
    DELIVERED = "delivered"  # written in the transaction of the rows
    SEEDED = "seeded"  # set again after it had vanished, or by a person


class TokenStatus(StrEnum):
    """Meaning of a token for a plan."""

    DONE = "done"  # the plan's rows are in the topics
    READY = "ready"  # they are not, and everything before them is
    WAITING = "waiting"  # an earlier number is still to be delivered; allowed before the decision only


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """Acknowledged records of a checkpoint in one partition, and the offset of the last of them."""

    records: int
    last: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered number with its plan digest and, by sink, the acknowledged records of this id."""

    number: int
    digest: str
    counts: Mapping[str, int]


Ends = Mapping[str, Mapping[int, PartitionEnd]]


@dataclass(frozen=True, slots=True)
class Token:
    """Memory of one transactional id about a pipeline.

    `epoch` and `attempt` are the head: the newest that wrote here. `delivered_by` are those of the transaction that
    delivered `number`, or set it without a delivery. `history` are the last deliveries, the newest last. `ends` are
    the acknowledged records of the newest by topic and partition (None: too many to keep), `topics` the ids of these
    topics (empty: unknown). `slots` is how many ids took part in `number`. `aside` names the note in the dead letters
    that lists the set-aside rows of `number`.
    """

    number: int
    kind: TokenKind
    installation: str
    epoch: int
    attempt: int
    slots: int
    written_at: datetime
    delivered_by: tuple[int, int] = (0, 0)
    history: tuple[Delivery, ...] = ()
    ends: Ends | None = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    aside: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """Return what is compared with a fence."""
        return (self.epoch, self.attempt)

    @property
    def birth(self) -> tuple[int, int, int]:
        """Number, and epoch and attempt that brought it there: stays the same while the token is only taken over."""
        return (self.number, *self.delivered_by)

    def delivery(self, number: int) -> Delivery | None:
        """Return how `number` was delivered; None if the token does not hold it."""
        return next((delivery for delivery in self.history if delivery.number == number), None)

    def taken_over(self, fence: Fence, now: datetime) -> Token:
        """The same number under the newer of both heads."""
        epoch, attempt = max(self.rank, fence.rank)
        return replace(self, epoch=epoch, attempt=attempt, written_at=now)

    def needs_renewal(self, now: datetime) -> bool:
        """Return whether it is old enough to be committed again, or has an impossible time."""
        return not timedelta(0) <= now - self.written_at < RENEW_AFTER

    def metadata(self) -> str:
        """Return JSON of at most `METADATA_LIMIT` characters.

        Drops parts that do not fit, in this order: ends, older history, the topics' ids. Without ends, readers wait for
        the end of the whole partition. Without ids, a recreated topic looks like the old one.

        Raises:
            ValueError: the rest is still too long: too many sinks on one connection.
        """
        for ends, history, topics in (
            (self.ends, self.history, self.topics),
            (None, self.history, self.topics),
            (None, self.history[-2:], self.topics),
            (None, self.history[-1:], self.topics),
            (None, self.history[-1:], {}),
        ):
            token = replace(self, ends=ends, history=history, topics=topics)
            text = json.dumps(_plain(token), separators=(",", ":"))
            if len(text) <= METADATA_LIMIT:
                return text
        raise ValueError(f"the token would have {len(text)} characters, more than {METADATA_LIMIT}")


def genesis(fence: Fence, slots: int, now: datetime) -> Token:
    """The token of a participant that has delivered nothing: number 0."""
    return seeded(fence, 0, slots, now)


def seeded(fence: Fence, number: int, slots: int, now: datetime) -> Token:
    """A token set to `number` without a delivery. For number 0 its kind is GENESIS."""
    kind = TokenKind.SEEDED if number else TokenKind.GENESIS
    return Token(number, kind, fence.installation, *fence.rank, slots, now, fence.rank)


def delivered(
    before: Token,
    fence: Fence,
    delivery: Delivery,
    slots: int,
    ends: Ends,
    now: datetime,
    topics: Mapping[str, str] | None = None,
    aside: str = "",
) -> Token:
    """The token that travels with the rows of a delivery, after `before`."""
    return Token(
        number=delivery.number,
        kind=TokenKind.DELIVERED,
        installation=fence.installation,
        epoch=fence.epoch,
        attempt=fence.attempt,
        slots=slots,
        written_at=now,
        delivered_by=fence.rank,
        history=(*before.history, delivery)[-HISTORY:],
        ends=ends,
        topics=topics or {},
        aside=aside,
    )


def parse(offset: int, metadata: str | None) -> Token:
    """The token at a group offset. ValueError when the metadata are not ours, or of a later format."""
    try:
        data: Mapping[str, Any] = json.loads(metadata or "")
        refuse_newer("the token", data.get("format"), FORMAT)
        ends = data["ends"]
        return Token(
            number=offset,
            kind=TokenKind(data["kind"]),
            installation=str(data["installation"]),
            epoch=int(data["epoch"]),
            attempt=int(data["attempt"]),
            slots=int(data["slots"]),
            written_at=datetime.fromisoformat(data["at"]).astimezone(UTC),
            delivered_by=(int(data["by"][0]), int(data["by"][1])),
            history=tuple(
                Delivery(int(number), str(digest), {str(sink): int(count) for sink, count in counts.items()})
                for number, digest, counts in data["history"]
            ),
            ends=None
            if ends is None
            else {
                topic: {int(p): PartitionEnd(int(records), int(last)) for p, (records, last) in partitions.items()}
                for topic, partitions in ends.items()
            },
            topics={str(topic): str(found) for topic, found in data["topics"].items()},
            aside=str(data.get("aside", "")),
        )
    except ConfigurationError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a token of airflow-ft: {error!r}") from error


def _plain(token: Token) -> Mapping[str, Any]:
    return {
        "format": FORMAT,
        "kind": token.kind.value,
        "installation": token.installation,
        "epoch": token.epoch,
        "attempt": token.attempt,
        "slots": token.slots,
        "at": token.written_at.astimezone(UTC).isoformat(timespec="seconds"),
        "by": list(token.delivered_by),
        "history": [[entry.number, entry.digest, dict(entry.counts)] for entry in token.history],
        "ends": None
        if token.ends is None
        else {
            topic: {str(p): [end.records, end.last] for p, end in sorted(partitions.items())}
            for topic, partitions in token.ends.items()
        },
        "topics": dict(token.topics),
        **({"aside": token.aside} if token.aside else {}),
    }


_DELETE = (
    "delete the group's offset (kafka-consumer-groups.sh --delete-offsets) and run `airflow ft in-doubt --redeliver`,"
    " which sends them."
)

# --- what a token means ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ballot:
    """Upon which token a vote was cast (its birth), and in which epoch."""

    birth: tuple[int, int, int]
    epoch: int

    def counts_for(self, token: Token) -> bool:
        """Return whether it is that token, or one that a person has set since (`airflow ft in-doubt --redeliver`).

        A person acts in an epoch of their own. A prepare that slept has the epoch of the vote, or an older one.
        """
        return token.birth == self.birth or token.delivered_by[0] > self.epoch


@dataclass(frozen=True, slots=True)
class Expectation:
    """Token that a plan expects, with names for the place in an error. `ballot`: None before the vote."""

    pipeline: str
    participant: str
    group: str
    number: int
    digest: str
    predecessor: int
    ballot: Ballot | None = None

    def where(self) -> dict[str, Any]:
        """Keyword arguments of an error."""
        where = {"pipeline": self.pipeline, "checkpoint": self.number, "participant": self.participant}
        return {**where, "group": self.group}


def check_owner(token: Token, fence: Fence, participant: str, group: str, number: int = 0) -> None:
    """Refuses a token of another decision log, and a fence that is older than the token's head (I5).

    Raises:
        ForeignOwnerError: another decision log's store delivers here.
        FencedError: a newer epoch or attempt has written here.
    """
    where: dict[str, Any] = {"pipeline": fence.pipeline, "checkpoint": number, "participant": participant}
    if token.installation != fence.installation:
        raise ForeignOwnerError(
            f"the token of group {group!r} belongs to the decision log {token.installation} (checkpoint"
            f" {token.number}). This decision log is {fence.installation}.",
            remedy="Give this pipeline another name. If that decision log is gone for good, take its pipeline over with"
            " `airflow ft adopt`.",
            group=group,
            number=token.number,
            installation=token.installation,
            **where,
        )
    if token.rank > fence.rank:
        raise FencedError(
            f"the token of group {group!r} was written by epoch {token.epoch}, attempt {token.attempt}."
            f" This process is epoch {fence.epoch}, attempt {fence.attempt}.",
            remedy="Do nothing: the newer owner finishes the checkpoint.",
            head_epoch=token.epoch,
            head_attempt=token.attempt,
            group=group,
            **where,
        )


def judge(token: Token | None, expected: Expectation, fence: Fence, *, may_wait: bool) -> TokenStatus:
    """Return whether the plan's rows are delivered (DONE) or may be sent now (READY); anything else stops the
    pipeline.

    READY demands equality with the predecessor: '>=' would call an undelivered number delivered after an abort, and a
    vanished token looks like 'never' (R12). It must be the very token that the vote saw. If that one has vanished,
    perhaps with the proof of this number's delivery, a prepare that slept could set it again.

    Several numbers may be prepared before the first is committed: with `may_wait` a lower token is WAITING for them, if
    it is not lower than `fence.delivered`. A delivery never waits.

    Raises:
        ForeignOwnerError, FencedError: as `check_owner`; they come first, so that a zombie halts nothing.
        TokenLostError: the token is gone, not the one of the vote, or lower than the predecessor or `fence.delivered`.
        StoreBehindSinkError: the sink delivered a number that the store does not know.
    """
    if token is None:
        raise TokenLostError(
            f"the token of group {expected.group!r} is gone. It should be at checkpoint {expected.predecessor}. Kafka"
            " deletes offsets of a group offsets.retention.minutes after their last commit, and with their topic.",
            remedy="Find out whether the topics hold the rows of this checkpoint. Then run `airflow ft resume` to try"
            " again, or `airflow ft adopt` to accept what the sinks hold."
            if may_wait
            else "Find out whether the topics hold the rows that this transactional id sends. If not, run"
            " `airflow ft in-doubt --redeliver`, which sends them.",
            predecessor=expected.predecessor,
            **expected.where(),
        )
    check_owner(token, fence, expected.participant, expected.group, expected.number)
    if token.number == expected.predecessor and expected.predecessor < expected.number:
        if expected.ballot is not None and not expected.ballot.counts_for(token):
            raise TokenLostError(
                f"the token of group {expected.group!r} is not the one that `prepare` found. That one is gone, and"
                f" epoch {token.delivered_by[0]}, attempt {token.delivered_by[1]} wrote a new one.",
                code="token_replaced",
                remedy=f"Find out whether the topics hold the rows that this transactional id sends. If not, {_DELETE}",
                **expected.where(),
            )
        return TokenStatus.READY
    if token.number >= expected.number:
        delivery = token.delivery(expected.number)
        if delivery is not None and delivery.digest == expected.digest:
            return TokenStatus.DONE
        raise StoreBehindSinkError(
            f"the token of group {expected.group!r} is at checkpoint {token.number}, but does not know checkpoint"
            f" {expected.number} with this plan's digest: other rows were delivered under this number.",
            code="digest_mismatch",
            remedy="Compare the decision log with the topics: it was restored from a backup, or is a copy. Then run"
            " `airflow ft resume` to try again, or `airflow ft adopt` to accept what the sinks hold.",
            number=token.number,
            **expected.where(),
        )
    if token.number < expected.predecessor and may_wait:
        if token.number < fence.delivered:
            raise TokenLostError(
                f"the token of group {expected.group!r} is at checkpoint {token.number}, but it was at"
                f" {fence.delivered}: the cluster has lost a token that it had acknowledged.",
                remedy="Find out whether the topics hold the rows up to that checkpoint. Then run `airflow ft adopt` to"
                " accept what the sinks hold. If the cluster gets its token back, run `airflow ft resume`.",
                number=token.number,
                delivered=fence.delivered,
                **expected.where(),
            )
        return TokenStatus.WAITING
    if token.number < expected.predecessor:
        raise TokenLostError(
            f"the token of group {expected.group!r} is at checkpoint {token.number}, before the predecessor"
            f" {expected.predecessor}: the cluster has lost a token that it had acknowledged.",
            remedy="Find out which checkpoint the topics hold last. If they lack the rows of this one that this"
            f" transactional id sends, {_DELETE}",
            number=token.number,
            predecessor=expected.predecessor,
            **expected.where(),
        )
    raise StoreBehindSinkError(
        f"the token of group {expected.group!r} is at checkpoint {token.number}, but the decision log has no delivery"
        f" after {expected.predecessor}.",
        remedy="Compare the decision log with the topics: it was restored from a backup, or is a copy. Restore the"
        " newer one, then run `airflow ft resume`. Or run `airflow ft adopt` to accept what the sinks hold.",
        number=token.number,
        predecessor=expected.predecessor,
        **expected.where(),
    )
