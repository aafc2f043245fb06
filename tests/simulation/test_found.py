"""Schedules that broke a law once, before the product was mended: what is not found again by chance stays found."""

from __future__ import annotations

import pytest

from tests.simulation.adapters import Running
from tests.simulation.explore import play, replaying, story
from tests.simulation.kernel import Deviation
from tests.simulation.scenarios import ALL

NAMED = {scenario.name: scenario for scenario in ALL}
FOUND = {
    # One server refused the rows of the first checkpoint before the other had ever seen the pipeline.
    "an_abort_at_a_server_that_was_never_prepared_halts_nothing": (
        "xa on two servers",
        ["A1:98:EVENT:maria refuses item 1", "A1:104:SLEEP"],
    ),
    # It slept between reading the head and looking for the marker, which was delivered before and pruned meanwhile.
    "a_late_prepare_whose_marker_was_pruned_halts_nothing": (
        "two runs, one after the other",
        ["B1:10:SLEEP", "B2:41:DELAY", "B3:21:YIELD:B1", "B1:88:SLEEP", "B3:27:SLEEP"],
    ),
    # The job had raised, and what kept it from being restarted was told as the job's error, which nothing restarts.
    "a_decision_log_that_is_away_while_a_job_is_restarted_is_not_the_jobs_fault": (
        "a stream, the job fails",
        ["A1o:20:EVENT:job fails", "A1d:8:LOSE_REQUEST"],
    ),
    # All that filled the room had expired: it waited for a number, which only the driver gives, which waited for room.
    "rows_that_were_given_up_get_a_number_while_the_driver_waits_for_room": (
        "a stream that runs ahead",
        ["A1o:31:LOSE_REQUEST", "A1o:32:EVENT:store-clock passes the time-out", "A1o:34:STALL"],
    ),
    # The try of a run that had ended answered what somebody had asked of the next one, which so never heard of it.
    "a_late_try_does_not_answer_a_stop_that_the_next_run_is_to_hear": (
        "streams one after another",
        ["A1:55:SLEEP", "B1o:1:YIELD:P2", "B1o:2:YIELD:A1"],
    ),
    # The restarted attempt had read where to go on before the rows there were refused, and forgot it by beginning.
    "a_job_that_is_restarted_while_rows_are_refused_does_not_go_on_behind_them": (
        "a stream into xa and Kafka",
        [
            "A1w:1:EVENT:maria refuses item 1",
            "A1dq:7:EVENT:job fails",
            "A1o:73:STALL",
            "A1d:3:YIELD:A1o",
            "A1o:80:STALL",
        ],
    ),
    # It planned, which decided, when the next run had looked for what is in doubt: a vote behind it missed the head.
    "a_late_decision_without_votes_halts_no_run_that_waits_for_them": (
        "the mode changes back",
        ["A1:33:SLEEP", "A2:8:LOSE_REPLY", "A3:7:SLEEP", "B1:11:DIE_AFTER", "B2:12:YIELD:A1"],
    ),
    # Who aborted had died behind the abort marker; the person was told that the rest can be delivered, for ever.
    "rows_committed_by_hand_beside_an_abort_marker_are_deleted": (
        "a commit by hand, MySQL decides",
        ["A1:188:YIELD:P1", "P1:18:YIELD:P2", "A2:49:EVENT:maria commits a branch by hand"],
    ),
    # A sink had refused the drain, and the person who drained was told that it has delivered what was open.
    "a_drain_that_a_sink_has_refused_is_not_named_in_the_answer": (
        "a drain beside a stop at once",
        ["A1dq:1:EVENT:db refuses item 1", "A1o:71:STALL"],
    ),
    # The run that drained gave up before it had delivered the drain; later ones were refused, and delivered nothing.
    "a_drain_is_delivered_by_a_run_that_is_refused_because_of_it": (
        "a drain, and all is deleted",
        ["A1o:29:LOSE_REQUEST", "A1o:82:SLEEP", "A2dp:4:DIE_BEFORE", "A2o2:20:DIE_BEFORE", "A3:38:SLEEP"],
    ),
    # The base was a copy in which nothing was published. The drain named it, so nobody knew it, and it came twice.
    "a_drain_by_a_run_that_has_read_nothing_is_recognised": (
        "a drain by a run that reads nothing new",
        ["A1o:22:SLEEP"],
    ),
    # The drain was the newest number, and has no position: the state before it was swept, and a rewind went there.
    "the_state_before_a_drain_is_kept_for_a_rewind_behind_it": (
        "a drain by each run that goes on",
        ["B1d:1:DIE_AFTER", "B1d2q2:3:DIE_AFTER", "B1o3:50:EVENT:prepare declines item 2"],
    ),
    # Asked to stop, it slept until another run had staged; then it took an epoch, and deleted that run's checkpoints.
    "a_stream_that_ends_late_deletes_nothing_of_a_run_that_came_after_it": (
        "a stream that deletes also when it fails",
        ["A1:53:DIE_BEFORE", "A2:18:SLEEP"],
    ),
    # It was taken when an older one had been restored, of the same number as a later one, which was restored then.
    "a_savepoint_behind_the_position_of_its_own_number_is_not_restored_unasked": ("savepoints, to and fro", []),
    # It stood still while it copied, and a newer owner swept the copy: then the savepoint was said to be damaged.
    "a_restore_whose_copy_is_swept_does_not_call_the_savepoint_damaged": (
        "a savepoint, which is restored",
        ["P2:18:SLEEP"],
    ),
    # It was restored, and could not be deleted then: whoever had claimed it was told that it had failed.
    "a_savepoint_that_is_claimed_and_cannot_be_deleted_is_restored_all_the_same": (
        "savepoints that are claimed",
        ["P3:23:LOSE_REQUEST"],
    ),
    # It had been restored, and had not caught up: what it was to catch up with was planned no more, and came again.
    "what_a_pipeline_has_not_caught_up_with_is_planned_again": (
        "savepoints, what came later stays, and again at once",
        [],
    ),
    # A rescaling adds a micro-batch, so the savepoint of an older place seemed to be as far as the later one.
    "a_rescaled_savepoint_is_not_further_on_for_its_micro_batch": ("savepoints, rescaled, to and fro", []),
    # Nothing was computed yet, so the stream was not restarted: it failed for good.
    "a_job_that_raises_while_its_state_is_brought_on_is_restarted": (
        "a stream, its savepoint, what came later stays, the job fails",
        ["A1o:114:SLEEP", "A2:22:EVENT:job fails"],
    ),
    # It had seen the drain of an earlier try, which a sink refused while it stood still: so it ended without one.
    "a_late_try_does_not_end_a_stream_whose_drain_was_refused_meanwhile": (
        "a drain, runs at once",
        ["A1o:14:STALL", "A2:1:EVENT:prepare declines item 2", "A2:35:DIE_AFTER", "A3:18:SLEEP"],
    ),
    # What it had begun to copy was pruned, and its folder could not be removed: the error was none of ours.
    "a_savepoint_whose_folder_cannot_be_removed_is_tried_again_by_whoever_asked": (
        "a savepoint, tasks side by side",
        ["P1:3:SLEEP", "P1:5:LOSE_REQUEST"],
    ),
    # A newer owner had deleted the state that it was to go on from, which it called a loss to be mended from a backup.
    "a_stream_whose_state_a_newer_owner_has_deleted_is_fenced": (
        "a drain, and all is deleted, runs at once",
        ["A1o:83:DIE_BEFORE", "A2:17:SLEEP", "A3:4:YIELD:P2", "A3:8:YIELD:A2"],
    ),
    # The job had raised, and before its query ended the driver waited for what was never to come, up to the time-out.
    "a_job_that_raises_is_not_waited_for": ("a stream, the job fails", ["A1dq2:3:EVENT:job fails"]),
    # It stood still while another place of the same number was restored, and took the sweep of the old one for damage.
    "a_savepoint_of_a_place_that_was_restored_away_meanwhile_is_of_the_new_one": (
        "savepoints, what came later stays, or comes again",
        ["A1:119:DIE_BEFORE", "P1:3:SLEEP", "B1:34:DELAY", "B2:1:DIE_AFTER", "B3:5:YIELD:P1"],
    ),
    # Spark had committed the drain, and failed then: the job was restarted, read on, and its windows came once more.
    "a_job_that_fails_behind_its_drain_is_not_restarted": (
        "a drain, and all is deleted, runs at once",
        ["A1o:126:YIELD:P1", "A1d:10:EVENT:source grows", "A1dq3:4:LOSE_REPLY"],
    ),
    # It woke up when a later run had drained, and told who had asked that one that an older drain had delivered all.
    "a_late_try_does_not_answer_for_a_later_run_whose_drain_is_not_delivered": (
        "a drain by each run that goes on",
        ["B1:13:SLEEP", "C1o:114:YIELD:B1"],
    ),
    # The simulator's own: it took a driver that waits until its third restart for one that waits for others.
    "a_job_that_waits_for_its_restart_leaves_nothing_behind": (
        "a stream, its savepoint, into xa",
        [
            "A1d:14:EVENT:job fails",
            "A1o:115:EVENT:store-clock passes the time-out",
            "A1o:141:EVENT:job fails",
            "A1o:159:STALL",
            "A1dq2:11:SLEEP",
            "A1w:16:EVENT:job fails",
        ],
    ),
    # It had read nothing yet, so nothing was written, also not that the run has done it: its next try did it again.
    "a_run_that_begins_anew_before_anything_was_read_has_done_it": (
        "a stream, everything is read anew, a run does it once",
        [],
    ),
    # It froze where the source had begun when everything was to be read anew: each later attempt looked for that.
    "a_late_attempt_of_a_former_life_does_not_say_where_the_next_one_begins": (
        "everything is read anew, and again",
        ["P2:6:SLEEP", "B1:21:YIELD:P2"],
    ),
    # The driver had ended, and its request for a number came between the task's last look and its answer.
    "a_request_of_a_driver_that_has_ended_triggers_nothing": (
        "a drain by a run that reads nothing new",
        ["A1dq2:4:EVENT:source grows", "A1dq2:6:DELAY", "A1:68:YIELD:A1dq2~6"],
    ),
    # The wall clock went back, so what was noted afterwards seemed to be from before Spark's last look at its source.
    "a_clock_that_goes_back_vouches_for_nothing_that_came_after_sparks_last_look": (
        "a stream that pauses, clocks jump",
        ["A1o:133:LOSE_REPLY", "A1d:7:EVENT:clock jumps back", "A1dq2:5:STALL"],
    ),
}


@pytest.mark.parametrize("name", list(FOUND))
def test_what_was_found_once_is_mended(running: Running, name: str) -> None:
    scenario, words = FOUND[name]
    schedule = [Deviation.parse(word) for word in words]
    outcome = play(NAMED[scenario], replaying(schedule), running)
    assert outcome.violation is None, story(outcome, running)
    assert list(outcome.schedule) == schedule, "it does not take place any more: find it again"
