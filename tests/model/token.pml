/*
 * Kafka alone: the decision log decides, Kafka (strategy `transaction`, REDO) follows, and its token can vanish, as
 * group offsets do. One checkpoint, the first: nothing was delivered before it, so a prepare that finds no token writes
 * one.
 *
 * As in commit_point.pml, workers call any step in any order, and recovery comes at any moment and has to end it:
 * settled, or HALTED with TOKEN_LOST if the token has vanished.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2                         /* steps that each worker calls */
#endif
#define GONE 255                        /* what a reader sees of a token that has vanished, or was never written */

mtype = { STAGED, PREPARED, COMMITTING, COMPLETED, ABORTED };
mtype = { PREPARE, COMMIT, ABORT, END };

/* the decision log; `vote` is the attempt that voted yes, `vote_birth` the attempt that wrote the token it found */
byte epoch = 1, attempts = 1, newest, vote, vote_birth;
mtype state = STAGED;
bool halted;

/* Kafka: the token is the number that was delivered last, with who wrote it (rank) and who brought that number there */
byte producer, token = GONE, rank, birth, rows;

byte vanishings = 1, orders = 1;

inline begin(allowed) {
    atomic {
        if
        :: epoch == mine && !halted && (allowed) -> attempts++; assert(attempts < 20); a = attempts; newest = a
        :: else -> goto next
        fi
    }
}

/* Looks whether somebody newer was there, then initialises: fences every other producer, ends its transaction. */
inline initialise() {
    atomic { if :: token != GONE && rank > a -> goto next :: else -> producer = a fi }
}

proctype Actor(bool joins, last_actor) {
    byte mine, a, seen, calls, counted, found_birth;
    mtype call;

    atomic {
        if
        :: joins -> mine = 1                                    /* a task of the first run, or another try of it */
        :: else -> epoch++; mine = epoch                        /* somebody who takes over */
        fi
    }
next:
    atomic {
        a = 0; seen = 0; counted = 0; found_birth = 0;
        if
        :: !last_actor && (calls == CALLS || epoch != mine || halted) -> calls = 0; goto done
        :: !last_actor && calls < CALLS && epoch == mine && !halted ->
            calls++;
            if :: call = PREPARE :: call = COMMIT :: orders -> orders--; call = ABORT fi
        :: last_actor ->
            if :: epoch != mine -> epoch++; mine = epoch :: else fi;     /* fenced: the next one comes */
            call = (halted -> END : (state == STAGED -> PREPARE :
                   (state == PREPARED || state == COMMITTING -> COMMIT : END)))
        fi
    }
    if
    :: call == PREPARE ->
        begin(state == STAGED);
        initialise();
        atomic {                                                /* the token of the same number under the new head */
            if
            :: producer != a || (token != GONE && rank > a) -> goto next
            :: producer == a && token == GONE -> token = 0; rank = a; birth = a
            :: producer == a && token != GONE && rank <= a -> rank = a
            fi;
            seen = token; found_birth = birth
        }
        atomic {
            if
            :: epoch == mine && newest == a && !halted && (state == STAGED || state == PREPARED) ->
                vote = a; vote_birth = (seen == 0 -> found_birth : 0); state = PREPARED
            :: else
            fi;
            goto next
        }
    :: call == COMMIT ->
        atomic { counted = vote; if :: state == PREPARED || state == COMMITTING :: else -> goto next fi }
        if
        :: KAFKA_NEVER_DECIDES ->
            atomic {                                            /* Store.decide: the commit point */
                if
                :: epoch == mine && state == PREPARED && vote == counted -> state = COMMITTING
                :: epoch == mine && state == COMMITTING
                :: else -> goto next
                fi
            }
        :: else
        fi;
        found_birth = vote_birth;
        begin(state == COMMITTING || (!KAFKA_NEVER_DECIDES && state == PREPARED));
        initialise();
        atomic {
            seen = token;
            if
            :: token == GONE && VANISHED_IS_LOST -> halted = true; assert(!vanishings); goto next
            :: token == GONE && !VANISHED_IS_LOST -> seen = 0
            :: token != GONE && rank > a -> goto next
            :: token == 0 && rank <= a && TOKEN_BIRTH && found_birth && birth != found_birth ->
                halted = true; assert(!vanishings); goto next
            :: else
            fi
        }
        atomic {
            if
            :: seen == 0 && producer == a ->                    /* rows and token, in one transaction */
                assert(token == GONE || rank <= a);             /* I5 */
                assert(state != ABORTED);                       /* I3 */
                rows++; assert(rows == 1);                      /* I2 */
                token = 1; rank = a; birth = a
            :: seen == 0 && producer != a -> goto next          /* fenced */
            :: else
            fi
        }
        atomic {
            if
            :: epoch == mine && (state == COMMITTING || state == PREPARED) -> state = COMPLETED; assert(rows == 1)
            :: else
            fi;
            goto next
        }
    :: call == ABORT ->
        if
        :: !KAFKA_NEVER_DECIDES && state == PREPARED ->         /* 'initialised, and no token there: it cannot come' */
            begin(state == PREPARED);
            initialise();
            atomic { if :: token == 0 :: else -> goto next fi }
        :: else
        fi;
        atomic {
            if
            :: epoch == mine && (state == STAGED || state == PREPARED) ->
                state = ABORTED; assert(rows == 0)              /* I3 */
            :: else
            fi;
            goto next
        }
    :: call == END -> goto done
    fi;
done:
    if
    :: last_actor -> atomic { assert(halted || (state == COMPLETED && rows == 1) || (state == ABORTED && rows == 0)) }
    :: else
    fi
}

active proctype Broker() {              /* the group's offsets expire once; nobody is writing them then */
end_quiet:
    atomic { vanishings && token != GONE -> vanishings--; token = GONE; rank = 0; birth = 0 }
}

init {
    atomic {
        run Actor(true, false);
        if :: run Actor(true, false) :: run Actor(false, false) fi;
        run Actor(false, true)
    }
}
