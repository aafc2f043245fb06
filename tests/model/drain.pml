/*
 * The end of a stream with windows: it is asked to stop, or to drain, which emits what is still open; and what it leaves
 * is deleted, where nothing is to be kept. Two tasks, the second one another try of the first one's run or the next run,
 * at any moment; each with its driver as one process, since what those two do to each other is in stream.pml.
 *
 * A window holds the item that was read last, and closes when the next one is read. So behind position p item p is open,
 * unless the state was dropped there. A drain is a number that emits it, and leaves the position where it was.
 *
 * CALLS is how many events there are: a process dies, or its job raises, and the next try or attempt begins; a sink
 * refuses rows. People ask twice while the stream is at work; where a drained pipeline is to be read on, one drops its
 * state, or (resume_drained) runs go on from the state before, and what was drained comes once more.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2
#endif
#define ITEMS 2
#define NUMBERS 9
#define REQUESTS CALLS

byte events = CALLS;
bool resumes, deletes, paused;
byte second;                            /* the run of the second task: 1, of which it is another try, or the next */

/* the decision log */
byte epoch, published, oldest = 1;      /* `oldest`: of the numbers that live */
byte newest, confirmed;                 /* the newest number that was not rewound; and that is delivered */
byte emits[NUMBERS], at[NUMBERS];       /* the item that comes out of a number, and where the state stands behind it */
byte of_run[NUMBERS], of_epoch[NUMBERS];
bool drains[NUMBERS], delivered[NUMBERS];
byte base, fresh;                       /* where the state stands; where it was dropped last */
byte gone;                              /* a position whose state was swept */
bool needs_stage;
byte stage, run_epoch[3];               /* the run whose stage was begun last */
bool staged[3];
byte asked, to_drain, answered;         /* requests, a bit each */

byte visible, drained, dropped;         /* items, a bit each: in the sink; by a drain; open in a state that was dropped */

#define LIVES (oldest <= published)
#define BIT(item) ((1 << (item)) >> 1)
#define IS_OPEN(p) ((p) > fresh)
#define RUN(t) (t == 1 -> 1 : second)
#define OPEN (asked & ~answered)
#define DRAINED (newest && drains[newest] && IS_OPEN(base) && (at[newest] == base || !REFUSED_IS_NO_DRAIN))
#define LACKS_DRAIN(some) ((some & to_drain) && !DRAINED && IS_OPEN(base))

inline publish(item, is_drain) {
    published++; assert(published < NUMBERS);
    newest = published; of_run[published] = RUN(t); of_epoch[published] = mine; drains[published] = is_drain;
    emits[published] = (IS_OPEN(base) -> base : 0);
    base = item; at[published] = base
}

/* The oldest number becomes visible: I2. */
inline deliver() {
    assert(!(visible & BIT(emits[oldest])) || resumes && (drained & BIT(emits[oldest])));
    visible = visible | BIT(emits[oldest]);
    if :: drains[oldest] -> drained = drained | BIT(emits[oldest]) :: else fi;
    if
    :: !KEPT_BEFORE_DRAIN && drains[oldest] -> gone = at[oldest]
    :: else
    fi;
    delivered[oldest] = true; confirmed = oldest; oldest++
}

/* Refused: all that waits is computed again. */
inline rewind() {
    oldest = published + 1;
    if :: REFUSED_IS_NO_DRAIN -> newest = confirmed :: else fi;
    assert(!gone || gone != at[confirmed] || base == at[confirmed]);    /* I10: the base itself is not swept */
    assert(at[confirmed] >= fresh);                             /* I10: nor is a state needed that was dropped */
    base = at[confirmed]; needs_stage = true
}

/* Store.reset_state */
inline drop() {
    fresh = base;
    if :: newest -> at[newest] = base :: else fi
}

proctype Task(byte t) {
    byte mine, last, position, heard, through, ended;
    bool told, drain;

begin:
    atomic {
        (t == 1 || epoch);                                      /* the second task comes second */
        last = epoch; mine = 0; position = 0; heard = 0; through = 0; ended = 0; told = false; drain = false
    };
compute:
    if
    :: atomic { (OPEN || paused) && !LACKS_DRAIN(OPEN) -> goto stop }   /* there is nothing to compute any more */
    :: atomic { !(OPEN || paused) || LACKS_DRAIN(OPEN) ->
        epoch++; assert(epoch < 16);                            /* Store.take_epoch */
        mine = epoch;
        if
        :: !resumes && DRAINED && DRAIN_IS_KNOWN ->
            if
            :: of_run[newest] != RUN(t) || staged[RUN(t)] -> goto refused
            :: else -> stage = RUN(t); run_epoch[stage] = mine; staged[stage] = true; ended = mine; goto finish
            fi
        :: else
        fi;
        stage = RUN(t); run_epoch[stage] = mine; staged[stage] = false; needs_stage = false;    /* Store.begin_stage */
        position = base
      }
    fi;
driver:
    atomic {
        if
        :: mine != epoch -> goto end                            /* FENCED */
        :: mine == epoch && events -> events--; goto begin      /* dies, or the job raises */
        :: mine == epoch && events && !FAILS_BEHIND_DRAIN && DRAINED && of_epoch[newest] == mine ->
            events--; told = false; goto driver                 /* the job is restarted in its driver */
        :: mine == epoch && position < ITEMS && !told -> position++; publish(position, false); goto driver
        :: mine == epoch && LIVES -> deliver(); goto driver
        :: mine == epoch && LIVES && events -> events--; rewind(); goto begin
        :: mine == epoch && (OPEN || paused) && !told -> told = true; drain = OPEN & to_drain; goto driver
        :: mine == epoch && told && drain && IS_OPEN(base) && !DRAINED -> publish(base, true); goto driver
        :: mine == epoch && told && (!drain || !IS_OPEN(base) || DRAINED) ->
            staged[stage] = true; ended = mine; goto finish     /* Store.end_stage */
        fi
    };
stop:
    atomic {
        epoch++; assert(epoch < 16);
        mine = epoch;
        stage = RUN(t); run_epoch[stage] = mine; needs_stage = false;
        if
        :: LACKS_DRAIN(OPEN) -> staged[stage] = false; goto begin       /* refused meanwhile: it is drained once more */
        :: else -> staged[stage] = true; ended = (mine == last + 1 -> mine : 0)
        fi
    };
finish:
    atomic {
        if
        :: mine != epoch -> goto end
        :: mine == epoch && LIVES -> deliver(); goto finish
        :: mine == epoch && LIVES && events -> events--; rewind(); goto begin
        :: mine == epoch && events -> events--; goto begin
        :: mine == epoch && !LIVES -> heard = OPEN
        fi
    };
    atomic {
        if
        :: deletes && (!LACKS_DRAIN(heard) || !KEEPS_FOR_DRAIN) && (ended == epoch || !ENDED_LAST)
        :: else -> goto answer
        fi
    };
    atomic {
        if
        :: ENDED_LAST && epoch != ended -> if :: TAKES_NONE_IN_VAIN :: !TAKES_NONE_IN_VAIN -> epoch++ fi; goto answer
        :: else
        fi;
        epoch++; assert(epoch < 16);
        mine = epoch; run_epoch[RUN(t)] = mine                  /* Store.adopt_run */
    };
    atomic {
        if
        :: mine == epoch && !LIVES && !(OPEN & ~heard) ->
            assert(!LACKS_DRAIN(OPEN));                         /* I10: somebody has asked for what is open */
            assert(stage == RUN(t) && staged[stage]);           /* I5: no other run has staged since */
            if :: IS_OPEN(base) && !(visible & BIT(base)) -> dropped = dropped | BIT(base) :: else fi;
            drop()
        :: else -> goto answer
        fi
    };
answer:
    atomic { if :: events -> events--; goto begin :: true -> heard = OPEN fi };
    atomic {
        if
        :: run_epoch[RUN(t)] == epoch && staged[RUN(t)] && !LIVES -> last = epoch
        :: else -> goto end
        fi
    };
    atomic {
        if
        :: heard && (epoch == last || !ANSWER_OF_EPOCH) ->
            assert(staged[stage] && !LIVES);                    /* I9: the stream is said to have stopped */
            through = published;                                /* the newest drain of this run that is confirmed */
            do
            :: through && !(drains[through] && of_run[through] == RUN(t) && (delivered[through] || !TOLD_CONFIRMED)) ->
                through--
            :: else -> break
            od;
            assert(!through || (visible & BIT(emits[through])));        /* I9: who is told that it is drained */
            answered = answered | heard
        :: else
        fi;
        goto end
    };
refused:
    atomic {
        if
        :: mine == epoch && LIVES -> deliver(); goto refused
        :: else -> goto end
        fi
    };
end:
    atomic { mine = 0; last = 0; position = 0; heard = 0; through = 0; ended = 0; told = false; drain = false }
}

active proctype Person() {              /* asks while a stream is at work */
    byte request;

end_quiet:
    do
    :: atomic {
        request < REQUESTS && stage && !staged[stage] && !needs_stage ->
            if :: to_drain = to_drain | (1 << request) :: true fi;
            asked = asked | (1 << request); request++
    }
    od
}

active proctype Reset() {               /* somebody who was told that it is drained drops the state */
    byte mine;

end_quiet:
    atomic { !resumes && DRAINED && !LIVES && !OPEN -> epoch++; assert(epoch < 16); mine = epoch };
    atomic {
        if
        :: mine == epoch && DRAINED && !LIVES -> assert(visible & BIT(base)); drop()
        :: else
        fi;
        mine = 0
    }
}

active proctype Judge() {               /* when all is quiet the DAG is paused; in the end everything is settled */
    do
    :: timeout -> if :: !paused -> paused = true :: else -> break fi
    od;
    assert(!LIVES && (!OPEN || second == 2));                   /* I7, I9: where another run came beside, the next answers */
    /* I10: but what is open, or was open in a state that was given up, all that was read is there */
    assert(((visible | dropped | (IS_OPEN(base) -> BIT(base) : 0)) & ((1 << base) - 1)) == (1 << base) - 1)
}

init {
    atomic {
        if :: resumes = true :: true fi;
        if :: deletes = true :: true fi;
        if :: second = 1 :: second = 2 fi;
        run Task(1); run Task(2)
    }
}
