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
