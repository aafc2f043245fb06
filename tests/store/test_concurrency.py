from __future__ import annotations

from airflow_ft.protocol.model import CheckpointState, Promise
from airflow_ft.store.decision_log import DecisionLog
from tests.store.races import PROCESSES, race
from tests.store.scene import PIPELINE, RUN, Scene, a_lease, a_position, a_segment

S = CheckpointState


class TestRaces:
    def test_one_of_many_challengers_takes_the_epoch(self, scene: Scene, store_url: str) -> None:
        def challenge(store: DecisionLog, index: int) -> object:
            return store.take_epoch(PIPELINE, 0, {}, a_lease(f"process-{index}"), "a race")

        answers = race(store_url, challenge)
        assert sorted(map(str, answers)) == ["1"] + ["LeaseHeldError"] * (PROCESSES - 1)
        assert [lease.holder for lease in scene.store.leases(PIPELINE)] == [f"process-{answers.index(1)}"]
        assert scene.kinds() == ["REGISTERED", "EPOCH"]

    def test_numbers_are_unique_and_without_gaps(self, scene: Scene, store_url: str) -> None:
        scene.take()

        def draw(store: DecisionLog, index: int) -> object:
            return [store.trigger(PIPELINE, 1, RUN) for _ in range(5)]

        answers = race(store_url, draw)
        assert sorted(number for numbers in answers for number in numbers) == list(range(1, 5 * PROCESSES + 1))
        assert all(numbers == sorted(numbers) for numbers in answers)
        ids = scene.store._database.read("SELECT id FROM event ORDER BY id")  # type: ignore[attr-defined]
        assert [row["id"] for row in ids] == list(range(1, len(scene.event_texts()) + 1))

    def test_a_checkpoint_is_published_by_one(self, scene: Scene, store_url: str) -> None:
        """I1: the rows of one attempt, and all of them."""
        scene.take()
        number = scene.trigger()

        def publish(store: DecisionLog, index: int) -> object:
            store.publish(PIPELINE, 1, number, 0, a_segment(number, rows=index), a_position(index), {"by": index})
            return "published"

        answers = race(store_url, publish)
        assert sorted(answers) == ["StateConflictError"] * (PROCESSES - 1) + ["published"]
        checkpoint, winner = scene.checkpoint(number), answers.index("published")
        assert checkpoint.segment == a_segment(number, rows=winner)
        assert (checkpoint.position, checkpoint.positions) == (a_position(winner), {"by": winner})
        assert scene.store.pipeline(PIPELINE).base == a_position(winner)

    def test_all_planners_read_the_same_plan(self, scene: Scene, store_url: str) -> None:
        scene.stage(3)

        def plan(store: DecisionLog, index: int) -> object:
            mine = Scene(store, epoch=1)
            segments = [3] if index % 2 else [1, 2, 3]
            return [segment.number for segment in mine.plan(3, segments).segments]

        answers = race(store_url, plan)
        assert all(answer == answers[0] for answer in answers)
        assert scene.kinds(3).count("PLANNED") == 1

    def test_the_last_of_many_votes_prepares_once(self, scene: Scene, store_url: str) -> None:
        scene.promises = {f"p{index}": Promise.REDO for index in range(PROCESSES)}
        scene.stage(1)
        scene.plan(1)

        def vote(store: DecisionLog, index: int) -> object:
            return Scene(store, epoch=1).vote(1, f"p{index}").state.value

        answers = race(store_url, vote)
        assert sorted(answers) == ["PREPARED"] + ["STAGED"] * (PROCESSES - 1)
        assert scene.kinds(1).count("PREPARED") == 1
        assert len(set(scene.votes(1).values())) == PROCESSES

    def test_only_the_newest_of_many_racing_attempts_votes(self, scene: Scene, store_url: str) -> None:
        scene.stage(1)
        scene.plan(1)
        attempts = [scene.attempt(1, "db") for _ in range(PROCESSES)]

        def vote(store: DecisionLog, index: int) -> object:
            store.vote(PIPELINE, 1, 1, "db", attempts[index])
            return "voted"

        assert race(store_url, vote) == ["StateConflictError"] * (PROCESSES - 1) + ["voted"]
        assert scene.checkpoint(1).votes["db"].prepared == attempts[-1]

    def test_a_decision_and_an_abort_exclude_each_other(self, scene: Scene, store_url: str) -> None:
        scene.stage(1)
        scene.prepare(1)
        votes = scene.votes(1)

        def decide_or_abort(store: DecisionLog, index: int) -> object:
            mine = Scene(store, epoch=1)
            if index % 2:
                return store.decide(PIPELINE, 1, 1, votes).state.value
            return mine.abort(1).state.value

        answers = race(store_url, decide_or_abort)
        state = scene.checkpoint(1).state.value
        assert state in ("COMMITTING", "ABORTED")
        assert set(answers) == {state, "StateConflictError"}
        assert scene.kinds(1).count(state) == 1

    def test_the_last_of_many_proofs_completes_once(self, scene: Scene, store_url: str) -> None:
        scene.promises = {f"p{index}": Promise.REDO for index in range(PROCESSES)}
        scene.stage(1)
        scene.prepare(1)
        scene.decide(1)

        def prove(store: DecisionLog, index: int) -> object:
            return Scene(store, epoch=1).prove(1, f"p{index}").state.value

        assert sorted(race(store_url, prove)) == ["COMMITTING"] * (PROCESSES - 1) + ["COMPLETED"]
        assert scene.checkpoint(1).delivered_by == 1
        assert scene.kinds(1).count("COMPLETED") == 1

    def test_all_who_inject_a_barrier_are_told_of_the_same_one(self, scene: Scene, store_url: str) -> None:
        others = ["payments", "refunds"]
        for name in others:
            scene.store.register(name)

        def inject(store: DecisionLog, index: int) -> object:
            names = [PIPELINE, *others]
            found = store.inject("closing", names if index % 2 else names[::-1], f"process-{index}")
            return [[each.pipeline, each.injected_at.isoformat(), each.injected_by] for each in found]

        answers = race(store_url, inject)
        assert all(answer == answers[0] for answer in answers)
        assert len({(at, by) for _, at, by in answers[0]}) == 1, "of one moment, by one of them"
        assert scene.kinds() == ["REGISTERED", "BARRIER"]
