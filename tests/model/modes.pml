/*
 * The modes. EXACTLY_ONCE: the decision follows the votes, and rows enter a sink in one transaction with their marker.
 * AT_LEAST_ONCE: the plan is the decision, there are no votes, and sink 1 (Kafka) gets the rows without a marker; so
 * what it has acknowledged, and the log has not recorded, is sent again. Sink 0 (MySQL) keeps markers all the same.
 * One checkpoint; what fences a sink is left out, so that everything here also holds where nothing does.
 *
 * As in commit_point.pml, workers call any step in any order, and recovery comes at any moment and has to end it.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2                         /* steps that each worker calls */
#endif
#define ALL 3                           /* both sinks, a bit each */

mtype = { EXACTLY_ONCE, AT_LEAST_ONCE };
mtype = { STAGED, PREPARED, COMMITTING, COMPLETED, ABORTED };
mtype = { PLAN, COMMIT, ABORT, END };

mtype mode;
byte epoch = 1, begun, proven;          /* the decision log; sinks, a bit each */
mtype state = STAGED;
byte rows[2], marker[2];                /* the sinks; rows: how often they are there */

#define BIT (1 << s)
#define KEEPS_MARKERS (mode == EXACTLY_ONCE || s == 0)
#define MAY_GO (state == COMMITTING || state == PREPARED && mode == AT_LEAST_ONCE)
#define RECORDS atomic { \
        if \
        :: epoch == mine && MAY_GO -> \
            state = COMMITTING; proven = proven | BIT; \
            if :: proven == ALL -> state = COMPLETED :: else fi \
        :: else \
        fi \
    }

proctype Actor(bool joins, last_actor) {
    byte mine, s, calls;
    bool sent;
    mtype call;

    atomic {
        if
        :: joins -> mine = 1                                    /* a task of the first run, or another try of it */
        :: else -> epoch++; mine = epoch                        /* somebody who takes over */
        fi
    }
next:
    atomic {
        s = 0; sent = false;
        if
        :: !last_actor && (calls == CALLS || epoch != mine) -> calls = 0; goto done
        :: !last_actor && calls < CALLS && epoch == mine ->
            calls++;
            if :: call = PLAN :: call = COMMIT :: call = COMMIT; s = 1 :: call = ABORT fi
        :: last_actor ->
            if :: epoch != mine -> epoch++; mine = epoch :: else fi;     /* fenced: the next one comes */
            s = (proven & 1 -> 1 : 0);
            call = (state == STAGED -> PLAN : (state == PREPARED || state == COMMITTING -> COMMIT : END))
        fi
    }
    if
    :: call == PLAN ->
        atomic {                                                /* with its votes, where there are any */
            if
            :: epoch == mine && state == STAGED ->
                state = (mode == AT_LEAST_ONCE && PLAN_DECIDES -> COMMITTING : PREPARED)
            :: else
            fi;
            goto next
        }
    :: call == COMMIT ->
        atomic {                                                /* Store.decide */
            if
            :: epoch == mine && state == PREPARED && mode == EXACTLY_ONCE -> state = COMMITTING
            :: epoch == mine && MAY_GO && !(proven & BIT)
            :: else -> goto next
            fi
        }
        atomic {                                                /* Store.begin_attempt */
            if
            :: epoch == mine -> sent = !UNPROVEN_IS_SENT_AGAIN && (begun & BIT); begun = begun | BIT
            :: else -> goto next
            fi
        }
        if :: !RECORD_AFTER_ACK -> RECORDS :: else fi;
        atomic {                                                /* the sink's transaction */
            if
            :: sent || (KEEPS_MARKERS && MARKER_WITH_ROWS && marker[s])
            :: else -> rows[s]++; assert(rows[s] < 12); marker[s] = 1
            fi;
            assert(!KEEPS_MARKERS || rows[s] == 1);             /* I2 where there are markers: never twice */
            assert(state != ABORTED)                            /* I3 of both: nothing of what is given up */
        }
        if :: RECORD_AFTER_ACK -> RECORDS :: else fi;
        goto next
    :: call == ABORT ->
        atomic {
            if
            :: epoch == mine && (state == STAGED || state == PREPARED) ->
                state = ABORTED; assert(!rows[0] && !rows[1])
            :: else
            fi;
            goto next
        }
    :: call == END -> goto done
    fi;
done:
    if
    :: last_actor ->
        atomic {
            assert(state == COMPLETED && rows[0] && rows[1] ||  /* I2 of AT_LEAST_ONCE: never lost */
                   state == ABORTED && !rows[0] && !rows[1])
        }
    :: else
    fi
}

init {
    atomic {
        if :: mode = EXACTLY_ONCE :: mode = AT_LEAST_ONCE fi;
        run Actor(true, false);
        if :: run Actor(true, false) :: run Actor(false, false) fi;
        run Actor(false, true)
    }
}
