/*
 * Savepoints. Somebody takes one beside a run, and two people restore it: also late, at once, and beside runs that take
 * over. What the other models have proven is one step: a commit under its marker, a tombstone. A pipeline has one number
 * under way at most; number and item part when a savepoint is restored, since numbers go on.
 *
 * Spark's locations: each owner works in its own, which begins as a copy of the base; a sweep deletes what is neither
 * referenced nor of the newest epoch. Whoever dies is not scheduled any more; a zombie is scheduled late.
 */
#include "rules.h"

#ifndef CALLS
#define CALLS 2                         /* restores */
#endif
#define ITEMS 2
#define EPOCHS 9

mtype = { NONE, STAGED, PREPARED };
mtype = { REFUSE, WRITE_AGAIN };

byte epoch;                             /* the decision log */
mtype state = NONE;                     /* of the newest number */
byte number, item;                      /* which, and what it holds */
byte confirmed;                         /* the newest confirmed number, */
byte stands, standsIn;                  /* and its position: an item, and the location that has it */
byte base, baseIn;                      /* where the next one goes on */

byte rows[ITEMS + 1];                   /* the sink: how often it shows an item, */
byte head, marker, tombstone;           /* the newest epoch that was there, the newest number that is decided there */

bool there[EPOCHS] = true;              /* locations, by the epoch that has made them; 0 is empty, and always there */
byte holds[EPOCHS];                     /* and up to which item they have state */
byte label[EPOCHS];                     /* the epoch in the folder's name */

bool whole;                             /* the savepoint: _metadata is there, */
byte saved, covers, savedState;         /* the item and the number that it names; up to where it has state */

byte line;                              /* for the assertions: the newest item since the last restore, */
byte again[ITEMS + 1];                  /* how often an item was announced to come again */
byte refusals = 1;                      /* so often the sink refuses rows */
byte working;                           /* all but the last run */
bool looked;                            /* whoever takes the savepoint is done, with one or without */
byte i;

#define OPEN (state != NONE)
#define CONFIRMS \
    state = NONE; confirmed = number; stands = base; standsIn = baseIn
#define GIVES_UP \
    state = NONE; base = stands; baseIn = standsIn
#define SHOWS(what) \
    assert(what == line + 1);           /* I2, I4: in order, none left out, none twice */ \
    line = what; rows[what]++
#define TAKES_EPOCH \
    epoch++; mine = epoch; assert(mine < EPOCHS)

/* A run goes on at the base, publishes an item and has it delivered; the last one all of them, until nobody restores. */
proctype Run(bool is_last) {
    byte mine, at, my_number, my_item;

begin:
    atomic { TAKES_EPOCH; at = 0 }
    if
    :: epoch == mine && OPEN -> goto deliver                    /* what another one has left */
    :: else
    fi;
compute:
    atomic {
        if
        :: epoch != mine -> goto fenced
        :: else -> assert(there[baseIn] && holds[baseIn] >= base)       /* I10 */
        fi;
        at = base; holds[mine] = at; label[mine] = mine         /* in a copy of its own, cut back */
    }
publish:
    atomic {
        if
        :: epoch != mine -> goto fenced
        :: epoch == mine && at >= ITEMS -> goto done
        :: else ->
            number++; item = at + 1; at = item; holds[mine] = at; state = STAGED; base = item; baseIn = mine
        fi
    }
deliver:
    atomic {
        if
        :: epoch != mine -> goto fenced
        :: epoch == mine && state == STAGED && refusals && !is_last -> refusals--; GIVES_UP; goto compute
        :: epoch == mine && state == STAGED -> state = PREPARED
        :: epoch == mine && state != STAGED
        fi;
        my_number = number; my_item = item
    }
    atomic {                                                    /* the sink's transaction */
        if
        :: head > mine || marker >= my_number || tombstone >= my_number
        :: else -> head = mine; marker = my_number; SHOWS(my_item)
        fi
    }
    atomic {
        if
        :: epoch != mine -> goto fenced
        :: epoch == mine && state == PREPARED && marker == number -> CONFIRMS
        :: epoch == mine && state == PREPARED && tombstone == number -> GIVES_UP; goto compute
        :: else -> goto fenced
        fi;
        if
        :: !is_last -> goto done
        :: is_last && at -> goto publish
        :: is_last && !at -> goto compute
        fi
    }
fenced:
    if
    :: is_last -> goto begin
    :: else
    fi;
done:
    if
    :: !is_last -> working--
    :: is_last && (OPEN || base < ITEMS) -> goto begin          /* somebody has restored meanwhile */
    :: is_last && !OPEN && base >= ITEMS && !working ->
        assert(rows[1] == 1 + again[1] && rows[2] == 1 + again[2])   /* I2, I10 */
    fi
}

/* Asks nobody, and waits for nothing. */
proctype Taker() {
    byte from, upto;

    atomic {
        if
        :: CONFIRMED_ONLY && confirmed -> covers = confirmed
        :: !CONFIRMED_ONLY && number -> covers = number
        fi
    }
    atomic { upto = (CONFIRMED_ONLY -> stands : base); from = (CONFIRMED_ONLY -> standsIn : baseIn) }
    if :: !METADATA_LAST -> atomic { saved = upto; whole = true } :: else fi;
    atomic {                                                    /* it is swept already: a later one, or none */
        if
        :: there[from] && holds[from] >= upto -> savedState = upto
        :: else -> goto done
        fi
    }
    atomic { saved = upto; whole = true };
done:
    atomic { looked = true; working-- }
}

#define REFUSED (later == REFUSE && covers < confirmed)

proctype Restorer(mtype later) {
    byte mine, copy;

    atomic {                                                    /* before anything is touched */
        (whole || looked);
        if :: !whole || REFUSED -> goto done :: else fi
    }
    atomic { TAKES_EPOCH }
    if                                                          /* what is undecided is given up: a tombstone first */
    :: epoch == mine && OPEN && GIVE_UP_FIRST ->
        atomic {
            if
            :: head > mine -> goto done
            :: head <= mine && marker < number -> head = mine; tombstone = number
            :: else -> head = mine
            fi
        }
        atomic {
            if
            :: epoch != mine -> goto done
            :: epoch == mine && OPEN && marker == number -> CONFIRMS
            :: epoch == mine && OPEN && marker != number -> GIVES_UP
            :: else
            fi
        }
    :: else
    fi;
    if
    :: EXAMINE_AGAIN && REFUSED -> goto done
    :: else
    fi;
    atomic {                                                    /* its own folder */
        copy = mine; label[copy] = (OWN_COPY -> mine : 0); holds[copy] = savedState; there[copy] = true
    }
    atomic {                                                    /* the one write: Store.restore */
        if
        :: RESTORE_EPOCH && epoch != mine -> goto done
        :: GIVE_UP_FIRST && OPEN -> goto done
        :: else
        fi;
        assert(epoch == mine);                                  /* I5 */
        assert(there[copy] && holds[copy] == saved);            /* I10: it is whole, and nobody has deleted it */
        assert(saved <= line || rows[saved]);                   /* nothing is left out */
        assert(later == WRITE_AGAIN || saved >= line);          /* nothing comes again, unless it was asked for */
        base = saved; baseIn = copy;
        if
        :: MOVE_POSITION -> stands = saved; standsIn = copy
        :: else
        fi;
        i = saved + 1;
        do
        :: i <= line -> again[i]++; i++
        :: else -> break
        od;
        line = saved; i = 0
    }
done:
    working--
}

/* Deletes what nobody references, and nobody can publish any more. */
proctype Sweeper() {
    byte below, one, other, e;

    if
    :: SWEEP_EPOCH_FIRST -> below = epoch; atomic { one = baseIn; other = standsIn }
    :: else -> atomic { one = baseIn; other = standsIn }; below = epoch
    fi;
    d_step {
        e = 1;
        do
        :: e < EPOCHS && label[e] < below && (holds[e] || label[e]) && e != one && e != other ->
            there[e] = false; e++
        :: e < EPOCHS && !(label[e] < below && (holds[e] || label[e]) && e != one && e != other) -> e++
        :: else -> break
        od;
        e = 0;
        assert(there[baseIn] && there[standsIn]);               /* I10 */
        working--
    }
}

init {
    atomic {
        working = 2 + CALLS;
        run Taker();
        if :: run Run(false) :: run Sweeper() fi;
        if :: run Restorer(REFUSE) :: run Restorer(WRITE_AGAIN) fi;
        if :: CALLS > 1 -> run Restorer(WRITE_AGAIN) :: else fi;
        run Run(true)
    }
}
