/*
 * A stream: a driver computes micro-batches and publishes them; its task delivers what is published, with the same
 * epoch, while the driver computes the next one. Both begin again when something goes wrong, and another task, a later
 * try or the next run, may take over at any moment: then the old task and the old driver are zombies.
 *
 * The source holds ITEMS items in the end, a micro-batch takes one. So a position is a number of items: what Spark has
 * read, what is published (`base`), what is delivered, what a sink shows. Numbers count publications; a number that was
 * never published has none. Delivery goes number by number: of those that live only the oldest is more than STAGED.
 * What the other models prove is one step here: a commit under its marker, a tombstone, a plan with its votes.
 *
 * CALLS is how many events there are, each of any kind: the job raises or is too slow, the driver dies, the answer to a
 * publication is lost (and the request arrives late), a checkpoint expires, its rows are refused, a person asks for the
 * end, a gate waits for all that the source held at some time. Where the second task is of the next run, the first may
 * also stop by itself, before any of these.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2
#endif
#define ITEMS 2
#define NUMBERS 9

mtype = { STAGED, PREPARED, COMMITTING };
mtype = { NOTHING, COMMITTED, TOMBSTONE };
mtype = { NONE, AT_WORK, ENDED, DIED };
mtype = { GO_ON, SOON, NOW };

byte held = ITEMS, events = CALLS;
bool watched;                           /* somebody waits at a gate: then the source grows beside the stream */
byte room;                              /* so many items may wait for delivery: Spark keeps the state of them */
byte second;                            /* the run of the second task: 1, of which it is another try, or the next */

/* the decision log: each write is one transaction that checks the writer's epoch */
byte epoch, of_task, attempts;          /* `of_task`: which task has the epoch, and its driver */
byte published, oldest = 1;             /* `oldest`: of the numbers that live */
mtype state = STAGED;                   /* of the oldest */
byte top[NUMBERS];                      /* the newest item when that number, which lives, was published */
byte triggered;                         /* the attempt of which a number is TRIGGERED; 0: none */
byte base, base_in, kept;               /* items; the attempt in whose location they were computed, and what it has */
byte delivered;
bool needs_stage, staged;               /* rewound, and not begun since; the run's stage has ended */
byte read_as_of, read_to;               /* so many items the source held then, and they are among so many */
bool asked, answered, paused;
bool asked_now;                         /* in this epoch */

/* the sinks: what they show. The carrier decides, the follower follows. */
byte carrier, follower;
mtype marker[NUMBERS] = NOTHING;

/* each task has a driver: how it is, and what it was told */
mtype driver[3] = NONE, told[3] = GO_ON;
chan start[3] = [0] of { byte, byte, byte };

#define LIVES (oldest <= published)
#define STRANDED (base > delivered && !LIVES)
#define START (kept < base -> kept : base)      /* what Spark has not committed it computes again */
#define IS_OPEN (asked && !answered)
#define RUN(t) (t == 1 -> 1 : second)

/* Store.publish: item `what`, or a number for rows that wait (0) */
#define ACCEPTED(is_newest, attempt, after) ((is_newest || !EPOCH_IN_LOG) && \
    (triggered == attempt && published == after || !CHAIN) && (!needs_stage || !NEEDS_STAGE))

inline publish(attempt, what) {
    if
    :: what ->
        assert(what == base + 1);                               /* I1: nothing computed twice, nothing left out */
        base = what;
        if :: COMMIT_FIRST -> kept = what :: else -> base_in = attempt fi
    :: else
    fi;
    assert(!staged && !(answered && asked_now));                /* I9: it is said to have ended */
    published++; assert(published < NUMBERS);
    top[published] = base; triggered = 0
}

/* Rows `first` to `last` become visible in a sink: I2 once, I4 in order. */
inline reveal(sink) { assert(first == sink + 1 && last >= first); sink = last }

inline settle() { top[oldest] = 0; oldest++; state = STAGED }

/* A request to publish whose sender does not wait for it any more. */
proctype Late(byte by, attempt, after, what) {
    atomic {
        if :: ACCEPTED(by == epoch, attempt, after) -> publish(attempt, what) :: else fi;
        by = 0; attempt = 0; after = 0; what = 0
    }
}

proctype Driver(byte t) {
    byte a, position, after, first, cut;

end_of_driver:
    atomic { start[t] ? a, position, after; first = position };
next:
    atomic {
        cut = 0;
        if
        :: told[t] == SOON || of_task != t -> driver[t] = ENDED; goto ended
        :: told[t] == NOW -> driver[t] = DIED; goto ended
        :: events -> events--; driver[t] = DIED; goto ended     /* it dies */
        :: position < held && (base - delivered < room || !ROOM) ->     /* computes an item; Spark commits it */
            if
            :: of_task == t || !EPOCH_IN_LOG -> triggered = a
            :: else -> driver[t] = ENDED; goto ended
            fi;
            if
            :: !TOLD_WHEN_PUBLISHED && position + 1 == held -> read_as_of = held; read_to = base
            :: else
            fi
        :: DRIVER_CARRIES && STRANDED && of_task == t && after == published && !needs_stage &&
           (position == held || base - delivered >= room && CARRY_WHILE_FULL) ->    /* waits: they get a number */
            publish(a, 0); after = published; goto next
        :: watched && position == held && read_as_of < held && of_task == t && !needs_stage -> cut = held; goto tell
        fi
    };
    atomic {
        if
        :: ACCEPTED(of_task == t, a, after) -> publish(a, position + 1); position++; after = published
        :: !ACCEPTED(of_task == t, a, after) ->
            assert(of_task != t || needs_stage);               /* I7: nobody is in the newest driver's way */
            driver[t] = DIED; goto ended
        :: events ->                                            /* no answer: it arrives now, or later, or never */
            events--; run Late(epoch, a, after, position + 1);
            if :: goto failed :: driver[t] = DIED; goto ended fi
        :: events -> events--; if :: goto failed :: driver[t] = DIED; goto ended fi     /* too slow, or dies */
        :: told[t] == NOW -> driver[t] = DIED; goto ended
        fi;
        if :: COMMIT_FIRST -> goto next :: else fi
    };
    if
    :: atomic { true -> if :: base_in == a -> kept = position :: else fi; goto next }
    :: atomic { events -> events--; driver[t] = DIED; goto ended }
    fi;
tell:
    atomic {                                                    /* Store.read_all */
        if
        :: of_task == t && (!needs_stage || !REWOUND_IS_UNREAD) ->
            read_as_of = (CUT_BEFORE_LOOK -> cut : held); read_to = base
        :: else
        fi;
        goto next
    };
failed:                                                         /* another attempt, in this process */
    if
    :: !BASE_AFTER_BEGIN -> atomic { cut = START; after = published }
    :: else
    fi;
    atomic {                                                    /* Store.begin_again: what is TRIGGERED is ABORTED */
        if
        :: of_task == t -> attempts++; a = attempts; triggered = 0; needs_stage = false
        :: else -> driver[t] = ENDED; goto ended
        fi
    };
    atomic {
        if :: BASE_AFTER_BEGIN -> cut = START; after = published :: else fi;
        position = (CUT_BACK -> (NEWEST_BASE -> cut : first) : position + 1);
        goto next
    };
ended:
    atomic { told[t] = GO_ON; a = 0; position = 0; after = 0; first = 0; cut = 0; goto end_of_driver }
}

proctype Task(byte t) {
    byte n, first, last;
    mtype found = NOTHING;
    bool over, heard;

begin:
    if
    :: !BASE_AFTER_EPOCH -> atomic { first = START; last = published }
    :: else
    fi;
    atomic {                                                    /* Store.take_epoch: what is TRIGGERED is ABORTED */
        (t == 1 || epoch);                                      /* the second task comes second */
        epoch++; assert(epoch < 12);                            /* I7: not in turns for ever */
        of_task = t; triggered = 0; asked_now = false; staged = false; driver[t] = NONE;
        if :: STRANDED -> publish(0, 0) :: else fi;
        if :: BASE_AFTER_EPOCH -> first = START; last = published :: else fi;
        attempts++; needs_stage = false;                        /* Store.begin_stage */
        over = over || IS_OPEN || paused;
        if
        :: over -> driver[t] = ENDED
        :: else -> driver[t] = AT_WORK; start[t] ! attempts, first, last
        fi
    };
next:
    atomic {
        n = 0; first = 0; last = 0; found = NOTHING;
        if
        :: of_task != t -> goto end                            /* FENCED */
        :: driver[t] == AT_WORK && told[t] == GO_ON && (IS_OPEN || paused || t < second && events == CALLS) ->
            over = true; told[t] = SOON; goto next
        :: driver[t] == DIED && (of_task == t || !FENCED_ENDS) ->
            if :: !END_WITH_EPOCH && (over || IS_OPEN) -> driver[t] = ENDED; goto next :: else -> goto begin fi
        :: driver[t] == ENDED && of_task == t ->               /* Store.end_stage */
            if :: needs_stage -> goto begin :: else -> staged = true; driver[t] = NONE; goto next fi
        :: driver[t] == NONE && (!LIVES || !STOP_WHEN_SETTLED) && of_task == t ->
            if :: STRANDED && STOP_WHEN_SETTLED -> goto begin :: else -> goto answer fi
        :: !DRIVER_CARRIES && STRANDED && of_task == t -> publish(0, 0); goto next
        :: LIVES && of_task == t ->
            if :: state == STAGED -> state = PREPARED :: else fi;
            n = oldest; first = delivered + 1; last = top[n]; found = state
        :: LIVES && of_task == t && state == STAGED && events -> events--; settle(); goto expired
        :: LIVES && of_task == t && state == STAGED && events ->       /* refused: the rows are computed again */
            events--;
            assert(base - delivered <= room);                   /* I10: Spark has the state */
            assert(carrier == delivered && follower == delivered);      /* I3 */
            do :: LIVES -> settle() :: else -> break od;
            base = delivered; kept = base; base_in = 0; triggered = 0; needs_stage = true;
            if :: read_to > delivered -> read_as_of = 0; read_to = 0 :: else fi;
            goto kill
        fi
    };
deliver:
    atomic {
        if
        :: found == PREPARED ->                                 /* the commit point */
            if :: marker[n] == NOTHING -> reveal(carrier); marker[n] = COMMITTED :: else fi;
            found = marker[n]
        :: found == PREPARED && events ->                       /* it expires: the tombstone first */
            events--;
            if :: marker[n] == NOTHING && TOMBSTONE_BEFORE_EXPIRED -> marker[n] = TOMBSTONE :: else fi;
            found = (TOMBSTONE_BEFORE_EXPIRED -> marker[n] : TOMBSTONE)
        :: found == COMMITTING -> if :: follower < last -> reveal(follower) :: else fi
        :: found == COMMITTING && events && !NO_EXPIRY_AFTER_DECISION -> events--; found = TOMBSTONE
        fi;
        if
        :: of_task != t || n != oldest -> goto next
        :: else
        fi;
        if
        :: found == COMMITTED -> state = COMMITTING; found = COMMITTING; goto deliver
        :: found == COMMITTING -> delivered = last; settle(); goto next
        :: found == TOMBSTONE ->                                /* ABORTED, its rows are carried */
            assert(marker[n] != COMMITTED);                     /* I3 */
            settle()
        fi
    };
expired:
    atomic {                                                    /* tolerable, or one too many in a row */
        if :: true :: driver[t] == AT_WORK -> told[t] = NOW :: driver[t] != AT_WORK -> driver[t] = DIED fi;
        goto next
    };
kill:
    atomic { if :: driver[t] == AT_WORK -> told[t] = NOW :: else -> driver[t] = DIED fi; goto next };
answer:
    atomic { if :: asked || events -> heard = IS_OPEN :: else -> goto end fi };    /* else nobody asks */
    atomic {                                                    /* has this run ended, with all delivered? */
        if
        :: (RUN(of_task) == RUN(t) && staged || !STOP_OF_THIS_RUN) &&
           (base == delivered && !LIVES || !STOP_WHEN_SETTLED)
        :: else -> goto end
        fi
    };
    atomic {
        if
        :: heard || (!STOPS_READ_FIRST && IS_OPEN) ->           /* I9: nothing is at work, nothing is left */
            assert(!asked_now || driver[of_task] != AT_WORK && base == delivered && !LIVES);
            answered = true
        :: else
        fi
    };
end:
    atomic { n = 0; first = 0; last = 0; found = NOTHING; over = false; heard = false }
}

active proctype Source() {
end_quiet:
    atomic { held == 1 -> held = ITEMS }
}

active proctype Person() {              /* asks a stream to stop */
end_quiet:
    atomic { events && of_task && driver[of_task] == AT_WORK -> events--; asked = true; asked_now = true }
}

active proctype Gate() {                /* opens when all is visible that the source held at some time */
    byte as_of, to;

end_quiet:
    atomic { read_as_of -> as_of = read_as_of; to = read_to };
end_settled:
    atomic {
        delivered >= to || base < to;                           /* confirmed, or rewound */
        if
        :: !GATE_LOOKS_TWICE || read_as_of >= as_of && read_to >= to ->
            assert(carrier >= as_of && follower >= as_of)       /* I9 */
        :: else
        fi;
        as_of = 0; to = 0
    }
}

active proctype Judge() {               /* when all is quiet the DAG is paused; in the end everything is settled */
    do
    :: timeout ->
        if
        :: !paused && (driver[1] == AT_WORK || driver[2] == AT_WORK) ->
            atomic { assert(delivered == ITEMS && (read_as_of == ITEMS || !watched)); paused = true }     /* I7, I10 */
        :: else -> break
        fi
    od;
    assert(!LIVES && base == delivered && carrier == base && follower == base);         /* I2, I7 */
    assert(!IS_OPEN)
}

init {
    atomic {
        if :: room = 1; second = 2 :: room = 2; second = 1 fi;
        if :: events -> events--; watched = true; held = 1 :: true fi;
        run Driver(1); run Driver(2);
        run Task(1); run Task(2)
    }
}
