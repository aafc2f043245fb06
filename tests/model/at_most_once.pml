/*
 * AT_MOST_ONCE, which is for streams: each attempt begins where the source stands then, without state, whatever was
 * published; so what nobody had published by then is lost. What is published is delivered once, as in EXACTLY_ONCE. Two
 * tasks, each with a driver, as in stream.pml; each has a mode, so that a pipeline also comes from EXACTLY_ONCE, or goes
 * back to it, with a zombie of the other mode beside it.
 *
 * The source holds ITEMS items in the end, a micro-batch takes one. Items may lack, so what a number has, and what is
 * visible, are sets of items, a bit each. A delivery under its marker is one step: the other models prove that.
 *
 * CALLS is how many events there are, each of any kind: the job raises, the driver dies, the answer to a publication is
 * lost (and the request arrives late, or never), a checkpoint expires, its rows are refused.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2
#endif
#define ITEMS 2
#define NUMBERS 9

mtype = { AT_MOST, EXACTLY };
mtype = { NONE, AT_WORK, ENDED, DIED };

byte held, events = CALLS;
mtype mode[3];
bool paused;

/* the decision log: each write is one transaction that checks the writer's epoch */
byte epoch, of_task, attempts;          /* `of_task`: which task has the epoch, and its driver */
byte published, oldest = 1;             /* `oldest`: of the numbers that live */
byte rows[NUMBERS];                     /* the items of a number that lives */
byte stranded;                          /* items that have EXPIRED, and wait for another number */
byte triggered;                         /* the attempt of which a number is TRIGGERED; 0: none */
byte base;                              /* the newest item that Spark had read when the newest number was published */
bool needs_stage;                       /* rewound, and not begun since */
byte read_as_of, read_rows;             /* so many items the source held then; of them those are to be waited for */

byte visible;                           /* the sink */

byte kept;                              /* for the assertions: what is published, and was not refused */
byte may_lack;                          /* an attempt has begun behind these, and nobody had published them */
byte without;                           /* a gate has opened without these */

mtype driver[3] = NONE;
bool to_end[3];
chan start[3] = [0] of { byte, byte, byte };

#define LIVES (oldest <= published)
#define STRANDED (stranded && !LIVES)
#define BIT(item) (1 << ((item) - 1))
#define UPTO(item) ((1 << (item)) - 1)
#define LOWEST(some) ((some) & (0 - (some)))
#define BEGINS(t) (mode[t] == AT_MOST -> held : base)

/* Store.publish */
#define ACCEPTED(is_newest, attempt, after) (is_newest && !needs_stage && \
    (triggered == attempt && published == after || !GIVEN_UP_FOR_GOOD))

/* Item `what`, or a number for rows that wait (0). */
inline publish(what, keeps_position) {
    published++; assert(published < NUMBERS);
    rows[published] = stranded; stranded = 0; triggered = 0;
    if
    :: what ->
        rows[published] = rows[published] | BIT(what); kept = kept | BIT(what);
        if :: keeps_position || POSITION_IS_KEPT -> base = what :: else fi
    :: else
    fi
}

/* The attempt reads on behind item `from`. What no attempt has published by then is lost, unless it is read now. */
inline begins_behind(from) {
    if
    :: of_task == t && mode[t] == AT_MOST -> may_lack = may_lack | (UPTO(from) & ~kept)
    :: of_task == t && mode[t] == EXACTLY -> may_lack = may_lack & UPTO(from)
    :: else                                                     /* a zombie: it publishes nothing */
    fi
}

/* A request to publish whose sender does not wait for it any more. */
proctype Late(byte by, attempt, after, what; bool keeps_position) {
    atomic {
        if :: ACCEPTED(by == epoch, attempt, after) -> publish(what, keeps_position) :: else fi;
        by = 0; attempt = 0; after = 0; what = 0; keeps_position = false
    }
}

proctype Driver(byte t) {
    byte a, position, after, first, mine;

end_of_driver:
    atomic { start[t] ? a, position, after };
    atomic {                                                    /* Spark asks its source where it ends */
        if :: END_AFTER_EPOCH -> position = BEGINS(t) :: else fi;
        first = position; mine = 0;
        begins_behind(position)
    };
next:
    atomic {
        if
        :: to_end[t] || of_task != t -> driver[t] = ENDED; goto ended
        :: events -> events--; driver[t] = DIED; goto ended     /* it dies */
        :: position < held && of_task == t -> triggered = a     /* computes an item; Spark commits it */
        :: stranded && !LIVES && of_task == t && after == published && !needs_stage && position == held ->
            publish(0, true); after = published; goto next
        :: position == held && read_as_of < held && of_task == t && !needs_stage ->     /* all is read: it tells */
            read_as_of = held; read_rows = (WAITS_FOR_EARLIER -> kept & ~visible : mine & ~visible); goto next
        :: !ONE_QUERY && mode[t] == AT_MOST && position < held -> position = held; goto next
        fi
    };
    atomic {
        if
        :: ACCEPTED(of_task == t, a, after) ->
            position++; mine = mine | BIT(position);
            publish(position, mode[t] == EXACTLY); after = published
        :: !ACCEPTED(of_task == t, a, after) ->
            assert(of_task != t || needs_stage);               /* I7: nobody is in the newest driver's way */
            driver[t] = DIED; goto ended
        :: events && !LOST_ANSWER_ENDS -> events--; position++
        :: events && LOST_ANSWER_ENDS ->                        /* no answer: it arrives now, or later, or never */
            events--; run Late(epoch, a, after, position + 1, mode[t] == EXACTLY);
            if :: goto failed :: driver[t] = DIED; goto ended fi
        :: events -> events--; if :: goto failed :: driver[t] = DIED; goto ended fi     /* the job raises, or it dies */
        fi;
        goto next
    };
failed:
    atomic {                                                    /* Store.begin_again: what is TRIGGERED is ABORTED */
        if
        :: of_task == t -> attempts++; a = attempts; triggered = 0; needs_stage = false; after = published
        :: else -> driver[t] = ENDED; goto ended
        fi
    };
    atomic {
        position = (ANEW_AT_END || mode[t] == EXACTLY -> BEGINS(t) : first);
        mine = 0;
        begins_behind(position);
        goto next
    };
ended:
    atomic { to_end[t] = false; a = 0; position = 0; after = 0; first = 0; mine = 0; goto end_of_driver }
}

proctype Task(byte t) {
    byte from, some;
    bool declined;                                              /* what the task raises when its driver has ended */

begin:
    if
    :: !END_AFTER_EPOCH -> atomic { from = BEGINS(t) }
    :: else
    fi;
    atomic {                                                    /* Store.take_epoch: what is TRIGGERED is ABORTED */
        (t == 1 || epoch);                                      /* the second task comes second */
        epoch++; assert(epoch < 12);                            /* I7: not in turns for ever */
        of_task = t; triggered = 0; driver[t] = NONE; declined = false;
        if :: STRANDED -> publish(0, true) :: else fi;
        if
        :: !ONLY_UNPUBLISHED && mode[t] == AT_MOST ->           /* what waits for delivery is given up, too */
            do :: LIVES -> rows[oldest] = 0; oldest++ :: else -> break od
        :: else
        fi;
        attempts++; needs_stage = false;                        /* Store.begin_stage */
        if
        :: paused -> driver[t] = ENDED
        :: else -> driver[t] = AT_WORK; start[t] ! attempts, from, published
        fi;
        from = 0
    };
next:
    atomic {
        some = 0;
        if
        :: of_task != t -> goto end                             /* FENCED */
        :: driver[t] == AT_WORK && paused && !to_end[t] -> to_end[t] = true; goto next
        :: driver[t] == DIED && of_task == t -> goto begin
        :: driver[t] == ENDED && of_task == t ->
            if :: needs_stage || declined -> goto begin :: else -> driver[t] = NONE; goto next fi
        :: driver[t] == NONE && !LIVES && of_task == t -> if :: STRANDED -> goto begin :: else -> goto end fi
        :: LIVES && of_task == t ->                             /* delivered */
            some = rows[oldest];
            assert(!(visible & some) && (!some || LOWEST(some) > visible));     /* I2: once. I4: in order */
            assert(!(without & some));                          /* I9: whoever did not wait for it, was right */
            visible = visible | some;
            rows[oldest] = 0; oldest++; goto next
        :: LIVES && of_task == t && events ->                   /* EXPIRED: the next number has its rows */
            events--;
            some = (EXPIRED_IS_CARRIED -> rows[oldest] : 0);
            rows[oldest] = 0; oldest++;
            if :: LIVES -> rows[oldest] = rows[oldest] | some :: else -> stranded = stranded | some fi;
            goto next
        :: LIVES && of_task == t && events ->                   /* refused: with all that waits, and the driver ends */
            events--;
            do :: LIVES -> some = some | rows[oldest]; rows[oldest] = 0; oldest++ :: else -> break od;
            some = some | stranded; stranded = 0;
            kept = kept & ~some; triggered = 0; needs_stage = true; declined = true;
            if :: read_rows & some -> read_as_of = 0; read_rows = 0 :: else fi;
            base = 0;                                           /* where the newest delivered number stands */
            do :: visible >> base -> base++ :: else -> break od;
            if :: driver[t] == AT_WORK -> to_end[t] = true :: else -> driver[t] = DIED fi;
            goto next
        fi
    };
end:
    atomic { from = 0; some = 0; declined = false }
}

active proctype Source() {
end_quiet:
    do
    :: atomic { held < ITEMS -> held++ }
    od
}

active proctype Gate() {                /* opens when all that the source held at some time is visible, or lost */
end_quiet:
    do
    :: atomic {
        read_as_of && !(read_rows & ~visible) && (UPTO(read_as_of) & ~visible & ~without) &&
        mode[1] == AT_MOST && mode[2] == AT_MOST ->             /* else what is lost is read again, one day */
            without = without | (UPTO(read_as_of) & ~visible)
    }
    od
}

active proctype Judge() {               /* when all is quiet the DAG is paused; in the end everything is settled */
    do
    :: timeout ->
        if
        :: !paused ->
            atomic {                                            /* what lacks was left behind by an attempt that ended */
                assert(held == ITEMS && (visible | may_lack) == UPTO(ITEMS) && visible == kept);
                paused = true
            }
        :: else -> break
        fi
    od;
    assert(!LIVES && !stranded && visible == kept)              /* I7, and I2: what is published comes */
}

init {
    atomic {
        if
        :: mode[1] = AT_MOST; mode[2] = AT_MOST
        :: mode[1] = AT_MOST; mode[2] = EXACTLY
        :: mode[1] = EXACTLY; mode[2] = AT_MOST
        fi;
        run Driver(1); run Driver(2);
        run Task(1); run Task(2)
    }
}
