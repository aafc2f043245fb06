/*
 * The commit protocol where a sink decides: MySQL (strategy `local`, ATOMIC) carries the commit point, Kafka (strategy
 * `transaction`, REDO) follows. Numbers 1 and 2 are published, a segment each; 1 is planned, 2 is not yet.
 *
 * Two workers may call any step of the coordinator, in any order: a process that dies is one that is not scheduled
 * again, a zombie one that is scheduled late, a lost reply one that calls again. The first holds the run's epoch, the
 * second either shares it (another task, another try) or takes over. The last actor is the recovery of the next run: it
 * comes at any moment, beside them, and has to end with everything settled, in a bounded number of attempts (I7); what
 * is then free waits for the next number. Each step is one transaction of a server; what a process reads only to save
 * work is merged with the write that follows. Attempts are drawn from one counter by holders of the current epoch
 * alone, so that their order is the order of (epoch, attempt).
 *
 * I2 to I5 are the assertions on the way. Whatever is switched off in rules.h gives a counterexample.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2                         /* steps that each worker calls */
#endif
#define MYSQL 1                         /* bits of `proven` */
#define KAFKA 2
#define NUMBERS 2
#define ALL 3                           /* both segments, one bit each */

mtype = { STAGED, SUBSUMED, PREPARED, COMMITTING, COMPLETED, ABORTED };
mtype = { NOTHING, COMMITTED, CARRIED, REWOUND };           /* kinds of marker: the last two are tombstones */
mtype = { PLAN, PREPARE, COMMIT_MYSQL, COMMIT_KAFKA, ABORT, END };

/* the decision log: each write is one transaction that checks the writer's epoch */
byte epoch = 1, attempts = 1;
mtype state[NUMBERS + 1];
bool planned[NUMBERS + 1];
byte segments[NUMBERS + 1], predecessor[NUMBERS + 1], newest[NUMBERS + 1], proven[NUMBERS + 1];
byte rewound, delivered;                /* segments */

/* MySQL: `lock` is the attempt whose transaction holds the head (0: none); `mysql` the segments that are visible */
byte head = 1, lock, last, mysql;
mtype marker[NUMBERS + 1];

/* Kafka: `producer` is the attempt that initialised the transactional id last */
byte producer, token, token_rank = 1, kafka;

byte refusals = 1, orders = 1;          /* MySQL refuses rows once; a person orders one abort */

#define LIVE(i) (planned[i] && (state[i] == STAGED || state[i] == PREPARED || state[i] == COMMITTING))
#define FREE (ALL & ~(delivered | rewound | (LIVE(1) -> segments[1] : 0) | (LIVE(2) -> segments[2] : 0)))
#define UNPLANNED (state[2] == STAGED && !planned[2])

/* I2: nothing twice. I4: segment 2 after 1. I3: nothing of what is given up. */
inline make_visible(sink, what) {
    assert(!(sink & what));
    assert(!(what & rewound));
    sink = sink | what;
    assert(!(sink & 2) || (sink & 1) || (rewound & 1))
}

/* Store.plan of number 2: its own segment, and the other one if no living plan holds it. */
inline plan() {
    d_step {
        segments[2] = FREE;
        if
        :: !SUBSUME_STAGED_ONLY && state[1] == PREPARED -> segments[2] = ALL; state[1] = SUBSUMED
        :: else
        fi;
        predecessor[2] = (LIVE(1) || state[1] == COMPLETED -> 1 : 0);
        planned[2] = true
    }
}

/* Store.begin_attempt, and the reads before it */
inline begin(allowed) {
    atomic {
        if
        :: epoch == mine && (allowed) -> attempts++; assert(attempts < 16); a = attempts; newest[n] = a
        :: else -> goto next
        fi
    }
}

/* Raise the head; end an older session that holds its lock. */
inline announce() {
    atomic {
        (head > a || lock == 0 || (KILL && lock < a));
        if
        :: HEAD && head > a -> goto next
        :: else -> lock = 0; head = (head > a -> head : a)
        fi
    }
}

/* One transaction in MySQL that puts a marker of `kind`: announce; lock the head and look; commit. `found` is what
   stands there in the end; NOTHING: it did not come to that. */
inline transact(kind) {
    found = NOTHING;
    announce();
    atomic {
        (lock == 0 || (HEAD && head != a) || (KILL && lock < a));
        if
        :: HEAD && head != a -> goto next
        :: else -> lock = a; found = marker[n]
        fi;
        if
        :: found != NOTHING -> lock = 0
        :: else -> assert(kind != COMMITTED || last == predecessor[n])
        fi
    }
    if
    :: found == NOTHING ->
        if
        :: atomic { lock != a -> goto next }                    /* killed meanwhile: nothing has happened */
        :: atomic { lock == a && !last_actor -> lock = 0; goto next }   /* dies: the server rolls back */
        :: atomic { lock == a && kind == COMMITTED && refusals && state[n] == PREPARED ->
                    refusals--; lock = 0; after = REWOUND; goto abort }
        :: atomic { lock == a && !last_actor -> goto asleep }   /* stopped for ever, its transaction open */
        :: atomic { lock == a ->
                assert(a >= head);                              /* I5 */
                marker[n] = kind; found = kind; lock = 0;
                if :: kind == COMMITTED -> make_visible(mysql, segments[n]); last = n :: else fi
            }
        fi
    :: else
    fi;
    if :: !KIND -> found = COMMITTED :: else fi
}

/* Coordinator._settle: what MySQL's marker says is recorded; two writes. */
inline decide_and_record() {
    atomic {
        if
        :: epoch == mine && (state[n] == PREPARED || state[n] == COMMITTING || state[n] == COMPLETED) ->
            if :: state[n] == PREPARED -> state[n] = COMMITTING :: else fi
        :: else -> assert(epoch != mine); goto next             /* I3: decided in the sink, and ABORTED here? */
        fi
    }
    record(MYSQL)
}

inline record(sink) {
    d_step {
        if
        :: epoch == mine && state[n] == COMMITTING ->
            proven[n] = proven[n] | sink;
            if
            :: proven[n] == (MYSQL | KAFKA) ->
                state[n] = COMPLETED; delivered = delivered | segments[n];
                assert((mysql & segments[n]) == segments[n] && (kafka & segments[n]) == segments[n])    /* I2, I3 */
            :: else
            fi
        :: else
        fi
    }
}

/* I4: what comes before is decided, and delivered in this sink */
#define IN_ORDER(sink) (n == 1 || !LIVE(1) || (state[1] == COMMITTING && (proven[1] & sink)))
#define MAY_COMMIT(sink) (!(proven[n] & sink) && IN_ORDER(sink))

proctype Actor(bool joins, last_actor) {
    byte mine, n, a, seen, calls, m;
    mtype call, found, after, was;

    atomic {
        if
        :: joins -> mine = 1                                    /* a task of the first run, or another try of it */
        :: !joins -> epoch++; mine = epoch                      /* somebody who takes over */
        fi
    }
next:
    atomic {
        a = 0; found = 0; after = 0; was = 0; m = 0; seen = 0; n = 0;
        if
        :: epoch != mine && !last_actor -> calls = 0; goto done /* its next write would be refused: FENCED */
        :: else
        fi;
        if
        :: !last_actor && calls == CALLS -> calls = 0; goto done
        :: !last_actor && calls < CALLS ->
            calls++;
            if :: n = 1 :: n = 2 fi;
            if
            :: call = PREPARE :: call = COMMIT_MYSQL :: call = COMMIT_KAFKA
            :: orders && mine > 1 -> orders--; after = CARRIED; call = ABORT
            :: n == 2 && UNPLANNED -> call = PLAN
            fi
        :: last_actor ->                                        /* recover, then a run: whatever is left to do */
            if :: epoch != mine -> epoch++; mine = epoch :: else fi;     /* fenced: the next one comes */
            n = (LIVE(1) -> 1 : (LIVE(2) || UNPLANNED -> 2 : 0));
            if
            :: n == 0 -> call = END
            :: n == 2 && UNPLANNED -> call = PLAN
            :: n > 0 && state[n] == STAGED && planned[n] -> call = PREPARE
            :: n > 0 && state[n] == PREPARED -> call = COMMIT_MYSQL
            :: n > 0 && state[n] == COMMITTING -> call = (proven[n] & MYSQL -> COMMIT_KAFKA : COMMIT_MYSQL)
            fi
        fi
    }
    if
    :: call == PLAN -> atomic { if :: epoch == mine && UNPLANNED -> plan() :: else fi; goto next }
    :: call == END -> goto done
    :: call == ABORT -> goto abort
    :: call == PREPARE ->
        begin(state[n] == STAGED && planned[n]);
        announce();
        if                                                      /* MySQL looks at the rows, and may decline them */
        :: atomic { refusals && marker[n] == NOTHING -> refusals--; after = REWOUND; goto abort }
        :: true
        fi;
        atomic { if :: token_rank > a -> goto next :: else -> producer = a fi }
        atomic {                                                /* Kafka: the same token under the new head */
            if
            :: producer == a && token_rank <= a -> token_rank = a
            :: else -> goto next
            fi
        }
        atomic {
            if
            :: epoch == mine && newest[n] == a && state[n] == STAGED -> state[n] = PREPARED
            :: else
            fi;
            goto next
        }
    :: call == COMMIT_MYSQL ->
        begin((state[n] == PREPARED || state[n] == COMMITTING) && MAY_COMMIT(MYSQL));
        transact(COMMITTED);
        if
        :: found == COMMITTED -> decide_and_record(); goto next
        :: found == CARRIED || found == REWOUND -> after = found; goto abort
        :: else -> goto next
        fi
    :: call == COMMIT_KAFKA ->
        begin(state[n] == COMMITTING && MAY_COMMIT(KAFKA));
        if :: !TOKEN_AFTER_INIT -> seen = token :: else fi;
        atomic { if :: TOKEN_RANK && token_rank > a -> goto next :: else -> producer = a fi }
        atomic {                                                /* read the token: what does it say? */
            if :: TOKEN_RANK && token_rank > a -> goto next :: else fi;
            if :: TOKEN_AFTER_INIT -> seen = token :: else fi;
            assert(seen >= n || seen == predecessor[n])         /* else: TOKEN_LOST, without a reason */
        }
        if
        :: seen < n ->
            atomic {                                            /* rows and token, in one transaction */
                if
                :: producer == a ->
                    assert(a >= token_rank);                    /* I5 */
                    make_visible(kafka, segments[n]); token = n; token_rank = a
                :: else -> goto next                            /* fenced */
                fi
            }
        :: else
        fi;
        atomic { record(KAFKA); goto next }
    fi;

abort:  /* newest first, every later planned number; then n itself */
    m = n; n = NUMBERS;
    do
    :: n > m || n == m ->
        atomic {
            was = state[n];
            if :: n == m || (LIVE(n) && state[n] != COMMITTING) -> skip :: else -> goto skip_number fi
        }
        if
        :: was == PREPARED && TOMBSTONE_FIRST ->
            begin(state[n] == PREPARED);
            if
            :: n == m && after == REWOUND -> transact(REWOUND)
            :: else -> transact(CARRIED)
            fi;
            if
            :: found == COMMITTED -> decide_and_record(); goto next
            :: n == m && (found == CARRIED || found == REWOUND) -> after = found
            :: n != m && (found == CARRIED || found == REWOUND)
            :: found == NOTHING -> goto next
            fi
        :: else
        fi;
        atomic {
            if
            :: epoch == mine && (state[n] == STAGED ||
               state[n] == PREPARED && (was == PREPARED || !TOMBSTONE_KNOWN)) ->
                assert(marker[n] != COMMITTED);                 /* I3 */
                if
                :: n == 1 && m == 1 && after == REWOUND && LIVE(2) -> goto next     /* abort the later one first */
                :: n == m && after == REWOUND && !(n == 1 && LIVE(2)) ->
                    rewound = rewound | (ALL & ~delivered & ((segments[n] & 1) || n == 1 -> ALL : 2));
                    if :: n == 1 && UNPLANNED -> state[2] = ABORTED :: else fi
                :: else -> if :: !CARRY_OR_REWIND -> delivered = delivered | segments[n] :: else fi
                fi;
                state[n] = ABORTED
            :: else -> goto next
            fi
        }
skip_number:
        if :: n == m -> goto next :: n > m -> n-- fi
    od;

asleep:
end_asleep:
    false;
done:
    if
    :: last_actor ->                                            /* I7, I10: all is settled */
        atomic {
            assert(mysql == kafka && (mysql | rewound | FREE) == ALL && !(mysql & (rewound | FREE)))
        }
    :: else
    fi
}

init {
    atomic {
        state[1] = STAGED; planned[1] = true; segments[1] = 1; state[2] = STAGED;
        marker[1] = NOTHING; marker[2] = NOTHING;
        run Actor(true, false);
        if :: run Actor(true, false) :: run Actor(false, false) fi;
        run Actor(false, true)
    }
}
