/*
 * Mapped delivery: one checkpoint of a participant of two phases with two branches, which the processes of other tasks
 * prepare (docs/adr/0038-mapped-delivery.md). An attempt has been announced when it begins; it may be announced again.
 *
 * As in two_phase.pml, workers call any step in any order, and recovery comes at any moment and has to end it. A
 * `load` takes whatever announcement was there when it began. An attempt's number is its rank.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2                         /* 1: no prepared branch is lost, and nobody aborts; 2: each happens once */
#endif
#define STEPS 1                         /* that each worker calls */

mtype = { STAGED, PREPARED, COMMITTING, COMPLETED, ABORTED };
mtype = { NOTHING, COMMITTED, TOMBSTONE };
mtype = { ANNOUNCE, LOAD, PREPARE, COMMIT, ABORT, ROLL_BACK, END };

/* the decision log; `vote` is the attempt that voted yes (0: none), `newest` the last one that began */
byte epoch = 1, attempts = 1, newest = 1, vote;
mtype state = STAGED;
bool rollback_pending;
byte announced = 1, announced_epoch = 1;        /* XCom: what the newest task `announce` returned */

/* The database. The place of a branch's marker is taken once: by a session at work on it (`working` its attempt,
   `session` its process), by a prepared transaction, or by a marker that is there. */
byte head = 1;
byte working[2], session[2], prepared[2], rows[2];
mtype marker[2] = NOTHING;
mtype whole = NOTHING;                  /* the marker of the checkpoint */

byte losses = CALLS - 1, orders = CALLS - 1;            /* at most one of each */

#define is_open (state == STAGED || state == PREPARED)
#define is_free(b) (marker[b] == NOTHING && !working[b] && !prepared[b])

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

inline end_sessions(b) { if :: working[b] && working[b] < a -> working[b] = 0; session[b] = 0 :: else fi }

inline raise_head() {
    atomic {
        if
        :: head > a -> goto next
        :: else -> head = a; end_sessions(0); end_sessions(1)
        fi
    }
}

/* Of attempts up to this one (`own`: this one too), but not of the one that is counted. */
inline roll_back(b, own, kept) {
    atomic {
        if
        :: prepared[b] && prepared[b] != kept && (prepared[b] < a || (own) && prepared[b] == a) ->
            assert(!(state == COMMITTING && prepared[b] == vote));      /* I3 */
            prepared[b] = 0
        :: else
        fi
    }
}

inline leave(b) { if :: session[b] == me -> working[b] = 0; session[b] = 0 :: else fi }

/* One branch of attempt `a`, prepared or found so; else control goes to `failed`. */
inline prepare_branch(b) {
    if
    :: ended[b] == a
    :: ended[b] != a ->                                         /* once: then it waits for that session */
        atomic { ended[b] = a; if :: working[b] == a -> working[b] = 0; session[b] = 0 :: else fi }
    fi;
    if
    :: atomic { prepared[b] == a -> skip }
    :: atomic { prepared[b] != a && is_free(b) -> working[b] = a; session[b] = me };    /* its marker goes in first */
        atomic { if :: LOAD_LOOKS_AGAIN && head != a -> leave(b); goto failed :: else fi };
        if
        :: atomic { session[b] == me && working[b] == a ->
                working[b] = 0; session[b] = 0; prepared[b] = a; assert(a >= head) }    /* I5 */
        :: atomic { session[b] != me || working[b] != a -> goto failed }        /* another process has ended it */
        :: atomic { session[b] == me && !last_actor -> leave(b); goto failed }
        :: atomic { session[b] == me && !last_actor -> goto asleep }
        fi
    :: atomic { prepared[b] != a && !is_free(b) -> goto failed }
    fi
}

proctype Actor(byte me; bool joins, last_actor) {
    byte mine, a, calls, counted, ended[2], b;
    bool is_own;
    mtype call;

    atomic {
        if
        :: joins -> mine = 1                                    /* a task of the first run, or another try of it */
        :: else -> epoch++; mine = epoch                        /* somebody who takes over */
        fi
    }
next:
    atomic {
        a = 0; counted = 0; is_own = false; b = 0; ended[0] = 0; ended[1] = 0;    /* a call is a process */
        if
        :: !last_actor && (calls == STEPS || epoch != mine) -> calls = 0; goto done
        :: !last_actor && calls < STEPS && epoch == mine ->
            calls++;
            if
            :: call = ANNOUNCE
            :: call = LOAD; b = 0
            :: call = LOAD; b = 1
            :: call = PREPARE
            :: call = COMMIT
            :: rollback_pending -> call = ROLL_BACK
            :: orders -> orders--; call = ABORT
            fi
        :: last_actor ->
            if :: epoch != mine -> epoch++; mine = epoch :: else fi;     /* fenced: the next one comes */
            call = (is_open && !vote -> PREPARE :
                   (state == PREPARED || state == COMMITTING -> COMMIT : (rollback_pending -> ROLL_BACK : END)))
        fi
    }
    if
    :: call == ANNOUNCE ->
        begin(is_open && !vote);                                /* who has voted is left alone */
        raise_head();
        roll_back(0, true, 0); roll_back(1, true, 0);
        atomic { announced = a; announced_epoch = mine; goto next }
    :: call == LOAD ->
        atomic {                                                /* the announcement holds, says the log */
            a = announced;
            if :: a == newest && !vote && is_open && epoch == announced_epoch :: else -> goto next fi
        }
        atomic { if :: head != a -> goto next :: else fi }      /* and the head */
        if
        :: b == 0 -> roll_back(0, !OWN_RANK_STAYS, 0); prepare_branch(0)
        :: b == 1 -> roll_back(1, !OWN_RANK_STAYS, 0); prepare_branch(1)
        fi;
        goto next
    :: call == PREPARE ->
        atomic { if :: is_open && !vote :: else -> goto next fi }
        atomic {
            if
            :: announced == newest && !vote && is_open && epoch == mine && announced_epoch == mine && head == announced ->
                a = announced
            :: else -> is_own = true
            fi
        }
attempt:
        if
        :: is_own ->
            begin(is_open && !vote);
            raise_head();
            roll_back(0, true, 0); roll_back(1, true, 0)
        :: else -> roll_back(0, !OWN_RANK_STAYS, 0); roll_back(1, !OWN_RANK_STAYS, 0)
        fi;
        prepare_branch(0);
        prepare_branch(1);
        atomic { if :: prepared[0] == a && prepared[1] == a :: else -> goto failed fi }         /* listed */
        atomic { if :: head != a -> goto next :: else fi }
        atomic {                                                /* Store.vote */
            if
            :: epoch == mine && (newest == a || !VOTE_OF_NEWEST) && is_open -> vote = a; state = PREPARED
            :: else
            fi;
            goto next
        }
    :: call == COMMIT ->
        atomic { counted = vote; if :: state == PREPARED && vote || state == COMMITTING :: else -> goto next fi }
        atomic {                                                /* Store.decide: the commit point */
            if
            :: epoch == mine && state == PREPARED && vote && vote == counted ->
                assert(prepared[0] == vote && prepared[1] == vote || !losses);  /* it counts what is durable */
                state = COMMITTING
            :: epoch == mine && state == COMMITTING
            :: else -> goto next
            fi
        }
        begin(state == COMMITTING);
        atomic { counted = vote };
        raise_head();
        do
        :: b < 2 ->
            atomic {                                            /* COMMIT PREPARED: rows and the branch's marker */
                if
                :: prepared[b] && prepared[b] == counted ->
                    assert(marker[b] == NOTHING);
                    prepared[b] = 0; rows[b]++; assert(rows[b] == 1); marker[b] = COMMITTED
                :: else
                fi
            };
            roll_back(b, true, counted);
            b++
        :: b == 2 -> break
        od;
        atomic {                                                /* one transaction: what is lost, and the whole's marker */
            if
            :: whole == COMMITTED
            :: whole != COMMITTED && head > a -> goto next
            :: whole != COMMITTED && head <= a && !WHOLE_LOOKS_FOR_ALL -> whole = COMMITTED
            :: whole != COMMITTED && head <= a && WHOLE_LOOKS_FOR_ALL ->
                if
                :: (marker[0] == COMMITTED || is_free(0)) && (marker[1] == COMMITTED || is_free(1)) ->
                    if :: marker[0] == NOTHING -> marker[0] = COMMITTED; rows[0]++ :: else fi;
                    if :: marker[1] == NOTHING -> marker[1] = COMMITTED; rows[1]++ :: else fi;
                    assert(rows[0] == 1 && rows[1] == 1);
                    whole = COMMITTED
                :: else -> goto next
                fi
            fi
        }
        atomic {
            if
            :: epoch == mine && state == COMMITTING -> state = COMPLETED; assert(rows[0] == 1 && rows[1] == 1)   /* I2 */
            :: else
            fi;
            goto next
        }
    :: call == ABORT ->
        atomic {                                                /* Store.abort: the decision */
            if
            :: epoch == mine && is_open ->
                state = ABORTED; rollback_pending = true; assert(rows[0] == 0 && rows[1] == 0)
            :: else
            fi;
            goto next
        }
    :: call == ROLL_BACK ->
        begin(state == ABORTED && rollback_pending);
        raise_head();
        roll_back(0, true, 0); roll_back(1, true, 0);
        atomic {                                                /* tombstones take all places */
            if
            :: whole == TOMBSTONE
            :: whole == NOTHING && head <= a && is_free(0) && is_free(1) ->
                whole = TOMBSTONE; marker[0] = TOMBSTONE; marker[1] = TOMBSTONE
            :: else -> goto next
            fi
        }
        atomic { if :: epoch == mine -> rollback_pending = false :: else fi; goto next }
    :: call == END -> goto done
    fi;

failed:                                                         /* an announced attempt that cannot be finished */
    atomic {
        if
        :: call == PREPARE && !is_own -> is_own = true; goto attempt
        :: else -> goto next
        fi
    }
asleep:
end_asleep:
    false;
done:
    (!last_actor || true);
    if
    :: last_actor ->
        atomic { assert(state == COMPLETED && rows[0] == 1 && rows[1] == 1 ||
                        state == ABORTED && rows[0] == 0 && rows[1] == 0) }
    :: else
    fi
}

active proctype Server() {              /* forgets a prepared branch, or a person rolls it back */
end_quiet:
    atomic { losses && (prepared[0] || prepared[1]) ->
        losses--;
        if
        :: prepared[0] -> prepared[0] = 0
        :: prepared[1] -> prepared[1] = 0
        fi
    }
}

active proctype Judge() {               /* when all has ended: nothing is left in the way of others (I7) */
    timeout;
    assert(state == COMPLETED || state == ABORTED);
    assert(!prepared[0] && !prepared[1])
}

init {
    atomic {
        run Actor(1, true, false);
        if :: run Actor(2, true, false) :: run Actor(2, false, false) fi;
        run Actor(3, false, true)
    }
}
