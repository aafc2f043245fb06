/* The rules of the models: 1 is on. `-DKIND=0` switches one off, and Spin has to find a counterexample. */

/* commit_point.pml */
#ifndef KIND                            /* 'duplicate key' on a marker is read: it may be a tombstone */
#define KIND 1
#endif
#ifndef TOMBSTONE_FIRST                 /* what is PREPARED gets its tombstone before ABORTED */
#define TOMBSTONE_FIRST 1
#endif
#ifndef TOMBSTONE_KNOWN                 /* what has become PREPARED is ABORTED on a tombstone only */
#define TOMBSTONE_KNOWN 1
#endif
#ifndef CARRY_OR_REWIND                 /* rows of an aborted number are carried by a later one, or computed again */
#define CARRY_OR_REWIND 1
#endif
#ifndef HEAD                            /* MySQL refuses whoever is older than the head */
#define HEAD 1
#endif
#ifndef KILL                            /* a successor ends an older attempt's session that holds the head's lock */
#define KILL 1
#endif
#ifndef SUBSUME_STAGED_ONLY             /* only what no sink can have seen is delivered with a later number */
#define SUBSUME_STAGED_ONLY 1
#endif
#ifndef TOKEN_AFTER_INIT                /* the token is read after the producer was initialised */
#define TOKEN_AFTER_INIT 1
#endif
#ifndef TOKEN_RANK                      /* Kafka's token holds epoch and attempt, and refuses whoever is older */
#define TOKEN_RANK 1
#endif

/* two_phase.pml */
#ifndef ONLY_OLDER                      /* only branches of older attempts are rolled back */
#define ONLY_OLDER 1
#endif
#ifndef TOUCH_NOTHING_DECIDED           /* a prepare whose attempt began after the decision touches nothing */
#define TOUCH_NOTHING_DECIDED 1
#endif
#ifndef HEAD_AFTER_PLACE                /* a branch looks at the head after it has taken the place of its marker */
#define HEAD_AFTER_PLACE 1
#endif
#ifndef ATTEMPT_IN_DECISION             /* the decision names the attempts whose votes it counts */
#define ATTEMPT_IN_DECISION 1
#endif
#ifndef NOTA_IS_NO_PROOF                /* an unknown branch is not a committed one: the marker tells */
#define NOTA_IS_NO_PROOF 1
#endif
#ifndef MARKER_IN_BRANCH                /* marker and rows become visible together */
#define MARKER_IN_BRANCH 1
#endif
#ifndef TOMBSTONE_AFTER_ABORT           /* a rollback leaves a tombstone, which a late branch meets */
#define TOMBSTONE_AFTER_ABORT 1
#endif

/* mapped.pml */
#ifndef LOAD_LOOKS_AGAIN                /* a branch looks at the head after it has taken the place of its marker */
#define LOAD_LOOKS_AGAIN 1
#endif
#ifndef OWN_RANK_STAYS                  /* no process rolls back what the announced attempt has prepared */
#define OWN_RANK_STAYS 1
#endif
#ifndef VOTE_OF_NEWEST                  /* the log takes a vote of the newest attempt only */
#define VOTE_OF_NEWEST 1
#endif
#ifndef WHOLE_LOOKS_FOR_ALL             /* the whole's marker waits for the markers of all branches */
#define WHOLE_LOOKS_FOR_ALL 1
#endif

/* token.pml */
#ifndef KAFKA_NEVER_DECIDES             /* Kafka sends after the decision of the log only */
#define KAFKA_NEVER_DECIDES 1
#endif
#ifndef VANISHED_IS_LOST                /* a token that is gone says nothing: TOKEN_LOST */
#define VANISHED_IS_LOST 1
#endif
#ifndef TOKEN_BIRTH                     /* rows are sent on the very token that the vote found */
#define TOKEN_BIRTH 1
#endif

/* stream.pml */
#ifndef COMMIT_FIRST                    /* a micro-batch is published after Spark's own commit of it */
#define COMMIT_FIRST 1
#endif
#ifndef CUT_BACK                        /* an attempt goes on behind what is published, whatever Spark has committed */
#define CUT_BACK 1
#endif
#ifndef NEWEST_BASE                     /* the newest that is published, not what was when its driver began */
#define NEWEST_BASE 1
#endif
#ifndef BASE_AFTER_BEGIN                /* an attempt in the same process begins, and then reads where it goes on */
#define BASE_AFTER_BEGIN 1
#endif
#ifndef BASE_AFTER_EPOCH                /* so does a new driver: the epoch first */
#define BASE_AFTER_EPOCH 1
#endif
#ifndef CHAIN                           /* a publication is of a TRIGGERED number, behind the one that it names */
#define CHAIN 1
#endif
#ifndef EPOCH_IN_LOG                    /* the log compares the epoch when a number is triggered and published */
#define EPOCH_IN_LOG 1
#endif
#ifndef FENCED_ENDS                     /* a task with an older epoch takes no other when its driver has died */
#define FENCED_ENDS 1
#endif
#ifndef NEEDS_STAGE                     /* what was computed before a rewind is not published after it */
#define NEEDS_STAGE 1
#endif
#ifndef ROOM                            /* so much waits for delivery as Spark keeps state for */
#define ROOM 1
#endif
#ifndef DRIVER_CARRIES                  /* beside a driver only the driver publishes, also what was given up */
#define DRIVER_CARRIES 1
#endif
#ifndef CARRY_WHILE_FULL                /* also while it waits for room */
#define CARRY_WHILE_FULL 1
#endif
#ifndef TOMBSTONE_BEFORE_EXPIRED        /* what may be in the sink that decides expires by a tombstone there */
#define TOMBSTONE_BEFORE_EXPIRED 1
#endif
#ifndef NO_EXPIRY_AFTER_DECISION        /* what is decided does not expire */
#define NO_EXPIRY_AFTER_DECISION 1
#endif
#ifndef END_WITH_EPOCH                  /* a stream that stops behind a dead driver takes an epoch first */
#define END_WITH_EPOCH 1
#endif
#ifndef STOP_WHEN_SETTLED               /* a stop is answered when all is settled */
#define STOP_WHEN_SETTLED 1
#endif
#ifndef STOP_OF_THIS_RUN                /* by a task whose run has the epoch */
#define STOP_OF_THIS_RUN 1
#endif
#ifndef STOPS_READ_FIRST                /* if it was asked before the task looked */
#define STOPS_READ_FIRST 1
#endif
#ifndef TOLD_WHEN_PUBLISHED             /* 'all is read' is told when all is published */
#define TOLD_WHEN_PUBLISHED 1
#endif
#ifndef CUT_BEFORE_LOOK                 /* as of a time before the look at the source */
#define CUT_BEFORE_LOOK 1
#endif
#ifndef REWOUND_IS_UNREAD               /* and not by a driver whose rows were rewound */
#define REWOUND_IS_UNREAD 1
#endif
#ifndef GATE_LOOKS_TWICE                /* a gate reads before and after what a rewind takes back */
#define GATE_LOOKS_TWICE 1
#endif

/* modes.pml */
#ifndef PLAN_DECIDES                    /* AT_LEAST_ONCE: what is planned is decided */
#define PLAN_DECIDES 1
#endif
#ifndef MARKER_WITH_ROWS                /* a sink that keeps markers, and has this one, gets nothing */
#define MARKER_WITH_ROWS 1
#endif
#ifndef UNPROVEN_IS_SENT_AGAIN          /* an attempt that has no proof is made again */
#define UNPROVEN_IS_SENT_AGAIN 1
#endif
#ifndef RECORD_AFTER_ACK                /* the log records what the sink has acknowledged */
#define RECORD_AFTER_ACK 1
#endif

/* at_most_once.pml */
#ifndef ANEW_AT_END                     /* each attempt begins where the source stands then, also in the same process */
#define ANEW_AT_END 1
#endif
#ifndef END_AFTER_EPOCH                 /* a new driver asks for the source's end when it has its epoch */
#define END_AFTER_EPOCH 1
#endif
#ifndef ONE_QUERY                       /* an attempt asks its source once: another query would ask anew */
#define ONE_QUERY 1
#endif
#ifndef LOST_ANSWER_ENDS                /* an attempt that does not know whether it has published has ended */
#define LOST_ANSWER_ENDS 1
#endif
#ifndef GIVEN_UP_FOR_GOOD               /* what is TRIGGERED when the next attempt begins is not published any more */
#define GIVEN_UP_FOR_GOOD 1
#endif
#ifndef ONLY_UNPUBLISHED                /* and nothing else: what is published is delivered, whatever begins */
#define ONLY_UNPUBLISHED 1
#endif
#ifndef EXPIRED_IS_CARRIED              /* what is not decided in time is delivered with the next number */
#define EXPIRED_IS_CARRIED 1
#endif
#ifndef WAITS_FOR_EARLIER               /* a gate waits for all that is published, whichever attempt has computed it */
#define WAITS_FOR_EARLIER 1
#endif
#ifndef POSITION_IS_KEPT                /* a publication keeps its position, though the mode does not use it */
#define POSITION_IS_KEPT 1
#endif

/* drain.pml */
#ifndef DRAIN_IS_KNOWN                  /* the log says which state was drained, and nobody goes on from that unasked */
#define DRAIN_IS_KNOWN 1
#endif
#ifndef REFUSED_IS_NO_DRAIN             /* a drain that a sink has refused is none */
#define REFUSED_IS_NO_DRAIN 1
#endif
#ifndef KEPT_BEFORE_DRAIN               /* the state before a drain is kept: a rewind behind it goes there */
#define KEPT_BEFORE_DRAIN 1
#endif
#ifndef FAILS_BEHIND_DRAIN              /* a job that fails behind its drain is not restarted in its driver */
#define FAILS_BEHIND_DRAIN 1
#endif
#ifndef TOLD_CONFIRMED                  /* whoever asked for a drain is told of one that is confirmed */
#define TOLD_CONFIRMED 1
#endif
#ifndef ANSWER_OF_EPOCH                 /* and answered under the epoch of which it is known that all is settled */
#define ANSWER_OF_EPOCH 1
#endif
#ifndef KEEPS_FOR_DRAIN                 /* state is kept that somebody has asked to drain, and nobody has */
#define KEEPS_FOR_DRAIN 1
#endif
#ifndef ENDED_LAST                      /* a stream deletes if nobody was at work since it has ended */
#define ENDED_LAST 1
#endif
#ifndef TAKES_NONE_IN_VAIN              /* and takes no epoch otherwise, which would fence who has a stop to answer */
#define TAKES_NONE_IN_VAIN 1
#endif

/* savepoint.pml */
#ifndef CONFIRMED_ONLY                  /* a savepoint is taken of what is confirmed */
#define CONFIRMED_ONLY 1
#endif
#ifndef METADATA_LAST                   /* what says that it is whole is written last */
#define METADATA_LAST 1
#endif
#ifndef GIVE_UP_FIRST                   /* nothing is undecided when the base is replaced */
#define GIVE_UP_FIRST 1
#endif
#ifndef EXAMINE_AGAIN                   /* whoever restores looks for later numbers again, when all is settled */
#define EXAMINE_AGAIN 1
#endif
#ifndef OWN_COPY                        /* the copy lies in a folder of the epoch that restores */
#define OWN_COPY 1
#endif
#ifndef RESTORE_EPOCH                   /* the one write of a restore compares the epoch */
#define RESTORE_EPOCH 1
#endif
#ifndef MOVE_POSITION                   /* and moves where a rewind of the next number goes to */
#define MOVE_POSITION 1
#endif
#ifndef SWEEP_EPOCH_FIRST               /* a sweep reads the epoch, and then what is referenced */
#define SWEEP_EPOCH_FIRST 1
#endif
