/*
 * The commit protocol where the decision log decides: one checkpoint, and one participant of two phases (MySQL `xa`)
 * that prepares before the decision and commits after it. Participants meet in the decision alone, so that one stands
 * for all: each is to follow it, whatever the others do (I3).
 *
 * As in commit_point.pml, workers call any step in any order, and recovery comes at any moment and has to end it.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2                         /* steps that each worker calls */
#endif

mtype = { STAGED, PREPARED, COMMITTING, COMPLETED, ABORTED };
mtype = { NOTHING, COMMITTED, TOMBSTONE };
mtype = { PREPARE, COMMIT, ABORT, ROLL_BACK, END };

/* the decision log; `vote` is the attempt that voted yes (0: none), `newest` the last one that began */
byte epoch = 1, attempts = 1, newest, vote;
mtype state = STAGED;
bool rollback_pending;

/* MySQL. The place of the marker is taken by one branch at most: an `working` one (it ends with its session) or a
   `prepared` one (it stays until somebody ends it); both hold the attempt, 0 is none. */
byte head = 1, working, prepared, rows;
mtype marker = NOTHING;

byte losses = 1, orders = 1;            /* a prepared branch is lost once; somebody aborts once */

inline begin(allowed) {
    atomic {
        if
        :: epoch == mine && (allowed) ->
            attempts++; assert(attempts < 24); a = attempts; newest = a;
            if :: state != COMMITTING -> vote = 0 :: else fi    /* what it prepares replaces what was voted upon */
        :: else -> goto next
        fi
    }
}

/* XA RECOVER, then XA ROLLBACK of what older attempts have left; their sessions are ended. */
inline clear_the_way() {
    atomic {
        if :: head > a -> goto next :: else fi;
        if :: working && working < a -> working = 0 :: else fi
    }
    seen = prepared;
    atomic {
        if
        :: seen && seen == prepared && seen != a && (seen < a || !ONLY_OLDER) ->
            assert(!(state == COMMITTING && prepared == vote)); /* I3: what the decision counts is not rolled back */
            prepared = 0
        :: else
        fi
    }
}

inline announce() {
    atomic {
        if
        :: head > a -> goto next
        :: else -> head = (head > a -> head : a); if :: working && working < a -> working = 0 :: else fi
        fi
    }
}

proctype Actor(bool joins, last_actor) {
    byte mine, a, seen, calls, counted;
    mtype call;

    atomic {
        if
        :: joins -> mine = 1                                    /* a task of the first run, or another try of it */
        :: else -> epoch++; mine = epoch                        /* somebody who takes over */
        fi
    }
next:
    atomic {
        a = 0; seen = 0; counted = 0;
        if
        :: !last_actor && (calls == CALLS || epoch != mine) -> calls = 0; goto done
        :: !last_actor && calls < CALLS && epoch == mine ->
            calls++;
            if
            :: call = PREPARE
            :: call = COMMIT
            :: rollback_pending -> call = ROLL_BACK
            :: orders -> orders--; call = ABORT
            fi
        :: last_actor ->
            if :: epoch != mine -> epoch++; mine = epoch :: else fi;     /* fenced: the next one comes */
            call = (state == STAGED || (state == PREPARED && !vote) -> PREPARE :
                   (state == PREPARED || state == COMMITTING -> COMMIT : (rollback_pending -> ROLL_BACK : END)))
        fi
    }
    if
    :: call == PREPARE ->

        atomic { if :: state == STAGED || (state == PREPARED && !vote) :: else -> goto next fi }
        begin(state == STAGED || state == PREPARED || state == COMMITTING);
        atomic { if :: TOUCH_NOTHING_DECIDED && state != STAGED && state != PREPARED -> goto next :: else fi }
claim:
        clear_the_way();
        announce();
        atomic {                                                /* the marker goes in first: it takes the place */
            if
            :: marker != NOTHING -> goto next
            :: else -> if :: working || prepared -> goto occupied :: else -> working = a fi
            fi
        }
        atomic {
            if
            :: HEAD_AFTER_PLACE && head != a -> working = (working == a -> 0 : working); goto next
            :: else
            fi
        }
        if
        :: atomic { working == a -> working = 0; prepared = a; assert(a >= head) }                /* I5 */
        :: atomic { working != a -> goto next }                  /* ended by somebody newer */
        :: atomic { working == a && !last_actor -> working = 0; goto next }
        :: atomic { working == a && !last_actor -> goto asleep }
        fi;
        atomic { if :: prepared == a && head == a :: else -> goto next fi }     /* listed, and still mine */
        atomic {                                                /* Store.vote */
            if
            :: epoch == mine && newest == a && (state == STAGED || state == PREPARED) -> vote = a; state = PREPARED
            :: else
            fi;
            goto next
        }
occupied:
        atomic { if :: head > a -> goto next :: last_actor || working == 0 -> goto claim :: else -> goto next fi }
    :: call == COMMIT ->
        atomic { counted = vote; if :: state == PREPARED && vote || state == COMMITTING :: else -> goto next fi }
        atomic {                                                /* Store.decide: the commit point */
            if
            :: epoch == mine && state == PREPARED && (!ATTEMPT_IN_DECISION || (vote && vote == counted)) ->
                assert(prepared == vote && vote || !losses);    /* it counts what is durable, if nothing was lost */
                state = COMMITTING
            :: epoch == mine && state == COMMITTING
            :: else -> goto next
            fi
        }
        begin(state == COMMITTING);
        announce();
        atomic { seen = prepared; counted = vote }              /* XA RECOVER */
        atomic {
            if
            :: seen && seen == prepared && seen == counted ->   /* XA COMMIT */
                assert(marker == NOTHING);
                prepared = 0; rows++; assert(rows == 1);
                if :: MARKER_IN_BRANCH -> marker = COMMITTED :: else -> goto late_marker fi
            :: seen && seen == prepared && seen != counted && seen < a -> prepared = 0
            :: else
            fi
        }
        if
        :: NOTA_IS_NO_PROOF ->
            atomic { if :: marker == COMMITTED -> goto proven :: else fi }
            atomic {                                            /* lost: again from the log, under the same marker */
                if
                :: marker != NOTHING || head > a || working || prepared -> goto next
                :: else -> marker = COMMITTED; rows++; assert(rows == 1)
                fi
            }
        :: else
        fi;
        if
        :: false ->
late_marker: marker = COMMITTED
        :: else
        fi;
proven: atomic {
            if
            :: epoch == mine && state == COMMITTING -> state = COMPLETED; assert(rows == 1)     /* I2 */
            :: else
            fi;
            goto next
        }
    :: call == ABORT ->
        atomic {                                                /* Store.abort: the decision */
            if
            :: epoch == mine && (state == STAGED || state == PREPARED) ->
                state = ABORTED; rollback_pending = (newest > 0); assert(rows == 0)
            :: else
            fi;
            goto next
        }
    :: call == ROLL_BACK ->
        begin(state == ABORTED && rollback_pending);
        clear_the_way();
        announce();
        atomic {                                                /* the tombstone takes the place */
            if
            :: !TOMBSTONE_AFTER_ABORT || marker == TOMBSTONE
            :: TOMBSTONE_AFTER_ABORT && marker == NOTHING && !working && !prepared -> marker = TOMBSTONE
            :: else -> goto next
            fi
        }
        atomic { if :: epoch == mine -> rollback_pending = false :: else fi; goto next }
    :: call == END -> goto done
    fi;

asleep:
end_asleep:
    false;
done:
    (!last_actor || true);
    if
    :: last_actor -> atomic { assert(state == COMPLETED && rows == 1 || state == ABORTED && rows == 0) }
    :: else
    fi
}

active proctype Server() {              /* forgets a prepared branch, or a person rolls it back */
end_quiet:
    atomic { prepared && losses -> losses--; prepared = 0 }
}

active proctype Judge() {               /* when all has ended: nothing is left in the way of others (I7) */
    timeout;
    assert(state == COMPLETED || state == ABORTED);
    assert(!prepared)
}

init {
    atomic {
        run Actor(true, false);
        if :: run Actor(true, false) :: run Actor(false, false) fi;
        run Actor(false, true)
    }
}
