"""What a token means for a plan, as a table; and that every token fits where it is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_ft.protocol.errors import (
    AirflowFtError,
    FencedError,
    ForeignOwnerError,
    StoreBehindSinkError,
    TokenLostError,
)
from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.kafka.token import (
    HISTORY,
    METADATA_LIMIT,
    Ballot,
    Delivery,
    Expectation,
    PartitionEnd,
    Token,
    TokenStatus,
    delivered,
    genesis,
    judge,
    parse,
    seeded,
)
from tests.raising import raises

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FENCE = Fence("orders", "installation-1", 5, 50)
OLDER = replace(FENCE, epoch=4, attempt=40)
Refusal = tuple[type[AirflowFtError], str]
OTHER_ROWS: Refusal = (StoreBehindSinkError, "digest_mismatch")
BEHIND: Refusal = (StoreBehindSinkError, "store_behind_sink")
LOST: Refusal = (TokenLostError, "token_lost")
FENCED: Refusal = (FencedError, "fenced")
FOREIGN: Refusal = (ForeignOwnerError, "foreign_owner")


def expectation(number: int, predecessor: int, digest: str = "") -> Expectation:
    return Expectation(
        "orders",
        "kafka_default",
        "airflow_ft.orders.kafka_default.0",
        number,
        digest or f"digest-{number}",
        predecessor,
    )


def token(*numbers: int, fence: Fence = OLDER) -> Token:
    """A token after deliveries of these numbers."""
    result = genesis(fence, 1, NOW)
    for number in numbers:
        result = delivered(result, fence, Delivery(number, f"digest-{number}", {"alerts": number}), 1, {}, NOW)
    return result


@pytest.mark.parametrize("may_wait", [True, False])
@pytest.mark.parametrize(
    ("present", "number", "predecessor", "expected"),
    [
        (token(), 1, 0, TokenStatus.READY),
        (token(1, 2), 3, 2, TokenStatus.READY),
        (token(1), 4, 1, TokenStatus.READY),  # 2 and 3 were aborted
        (token(1, 2), 2, 1, TokenStatus.DONE),
        (token(1, 2, 3), 2, 1, TokenStatus.DONE),
        (
            token(1, 2, 5),
            3,
            2,
            (StoreBehindSinkError, "digest_mismatch"),
        ),  # an undelivered number is not called delivered by a later one
        (
            token(1, 2),
            4,
            1,
            (StoreBehindSinkError, "store_behind_sink"),
        ),  # between predecessor and number: unknown to the store
        (token(*range(1, 30)), 2, 1, OTHER_ROWS),  # too long ago to be known
        (seeded(OLDER, 7, 1, NOW), 7, 6, OTHER_ROWS),  # seeded, not delivered
        (seeded(OLDER, 7, 1, NOW), 8, 7, TokenStatus.READY),
        (None, 1, 0, LOST),
        (None, 2, 1, LOST),
        (replace(token(1), installation="other"), 2, 1, FOREIGN),
        (token(1, fence=replace(FENCE, epoch=6)), 2, 1, FENCED),
        (token(1, fence=replace(FENCE, attempt=51)), 2, 1, FENCED),
        (token(1, fence=FENCE), 2, 1, TokenStatus.READY),
        (token(1, 2, 3, fence=replace(FENCE, epoch=6)), 2, 1, FENCED),  # a zombie halts nothing
    ],
)
def test_what_a_token_means(
    present: Token | None,
    number: int,
    predecessor: int,
    expected: TokenStatus | tuple[type[AirflowFtError], str],
    may_wait: bool,
) -> None:
    if isinstance(expected, TokenStatus):
        assert judge(present, expectation(number, predecessor), FENCE, may_wait=may_wait) is expected
    else:
        kind, code = expected
        where = {"pipeline": "orders", "participant": "kafka_default", "checkpoint": number}
        with raises(kind, code, group="airflow_ft.orders.kafka_default.0", **where):
            judge(present, expectation(number, predecessor), FENCE, may_wait=may_wait)


def test_a_token_that_was_set_again_does_not_match_the_vote() -> None:
    """Unless a person did it, in an epoch after that of the vote."""
    ballot = Ballot(token(1, 2).birth, FENCE.epoch)
    expected = replace(expectation(3, 2), ballot=ballot)
    later = replace(FENCE, epoch=6, attempt=70)
    assert judge(token(1, 2).taken_over(FENCE, NOW), expected, FENCE, may_wait=False) is TokenStatus.READY
    assert judge(seeded(later, 2, 1, NOW), expected, later, may_wait=False) is TokenStatus.READY
    for straggler in (FENCE, replace(OLDER, attempt=41)):
        with raises(TokenLostError, "token_replaced"):
            judge(seeded(straggler, 2, 1, NOW), expected, FENCE, may_wait=False)
    first = replace(expectation(1, 0), ballot=Ballot(token().birth, FENCE.epoch))
    assert judge(token(), first, FENCE, may_wait=False) is TokenStatus.READY
    with raises(TokenLostError, "token_replaced"):
        judge(genesis(FENCE, 1, NOW), first, FENCE, may_wait=False)


def test_another_digest_of_a_number_reveals_a_restored_log() -> None:
    with raises(StoreBehindSinkError, "digest_mismatch", number=2):
        judge(token(1, 2), expectation(2, 1, "of other rows"), FENCE, may_wait=False)


def test_a_lower_token_counts_as_lost_only_after_the_decision() -> None:
    assert judge(token(1), expectation(3, 2), FENCE, may_wait=True) is TokenStatus.WAITING
    with raises(TokenLostError, "token_lost", number=1, predecessor=2):
        judge(token(1), expectation(3, 2), FENCE, may_wait=False)


def test_a_vote_demands_what_was_delivered() -> None:
    proven = replace(FENCE, delivered=2)
    assert judge(token(1, 2), expectation(5, 4), proven, may_wait=True) is TokenStatus.WAITING
    assert judge(token(1, 2), expectation(3, 2), proven, may_wait=True) is TokenStatus.READY
    with raises(TokenLostError, "token_lost", number=1, delivered=2, checkpoint=5):
        judge(token(1), expectation(5, 4), proven, may_wait=True)
    with raises(FencedError, "fenced"):  # a zombie halts nothing
        judge(token(1, fence=replace(FENCE, epoch=6)), expectation(5, 4), proven, may_wait=True)


def test_a_token_survives_its_text() -> None:
    ends = {"alerts": {0: PartitionEnd(3, 41), 11: PartitionEnd(1, 2**40)}}
    before = delivered(token(1), FENCE, Delivery(2, "d", {"alerts": 4}), 3, ends, NOW)
    assert parse(2, before.metadata()) == before
    assert parse(0, token().metadata()) == token()
    over = before.taken_over(replace(FENCE, epoch=9), NOW + timedelta(days=1))
    assert (over.number, over.rank, over.delivered_by, over.history) == (2, (9, 50), (5, 50), before.history)
    assert before.taken_over(OLDER, NOW).rank == FENCE.rank, "a head never goes back"


def test_history_is_bounded_and_keeps_the_newest() -> None:
    assert [entry.number for entry in token(*range(1, 30)).history] == list(range(30 - HISTORY, 30))


@pytest.mark.parametrize(("sinks", "partitions"), [(1, 5000), (20, 10), (30, 1000)])
def test_metadata_always_fit_and_keep_what_proves(sinks: int, partitions: int) -> None:
    counts = {f"sink-{i}-{'x' * 40}": 10**9 for i in range(sinks)}
    present = token()
    for number in range(1, 12):
        ends = {"alerts": {p: PartitionEnd(10**6, 10**12) for p in range(partitions)}}
        present = delivered(present, FENCE, Delivery(number, "d" * 64, counts), 1, ends, NOW)
    text = present.metadata()
    assert len(text) <= METADATA_LIMIT
    read = parse(11, text)
    assert read.delivery(11) == present.delivery(11)
    assert read.rank == present.rank
    assert read.ends in (None, present.ends), "either all ends or none"


def test_too_many_sinks_are_an_error_not_a_shorter_proof() -> None:
    counts = {f"sink-{i}-{'x' * 50}": 1 for i in range(100)}
    with pytest.raises(ValueError) as caught:
        delivered(token(), FENCE, Delivery(1, "d", counts), 1, {}, NOW).metadata()
    assert str(METADATA_LIMIT) in caught.value.args[0]


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "null", '{"kind": "new"}', "not json"])
def test_what_is_not_ours_is_not_a_token(text: str | None) -> None:
    with pytest.raises(ValueError):
        parse(3, text)


@pytest.mark.parametrize(("age", "renew"), [(0, False), (59, False), (61, True), (-5, True)])
def test_old_tokens_are_renewed_and_those_of_a_clock_that_jumped(age: int, renew: bool) -> None:
    assert token().needs_renewal(NOW + timedelta(minutes=age)) is renew


def test_the_ids_of_the_topics_travel_with_it() -> None:
    ends = {"alerts": {0: PartitionEnd(3, 7)}}
    ids = {"alerts": "JwcWRb1xRkGVThHSY_KpcA"}
    written = delivered(token(), FENCE, Delivery(1, "d", {"a": 3}), 1, ends, NOW, ids)
    assert parse(1, written.metadata()).topics == ids
    assert parse(1, written.taken_over(FENCE, NOW).metadata()).topics == ids


def test_what_proves_goes_last_when_there_is_no_room() -> None:
    counts = {f"sink-{i}-{'x' * 40}": 10**9 for i in range(30)}
    ids = {f"topic-{i}-{'y' * 100}": "JwcWRb1xRkGVThHSY_KpcA" for i in range(30)}
    text = delivered(token(), FENCE, Delivery(1, "d" * 64, counts), 1, {}, NOW, ids).metadata()
    assert (parse(1, text).topics, parse(1, text).history[-1].counts) == ({}, counts)
