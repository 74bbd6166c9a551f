/* A snapshot order is outstanding while partition 0 is moved or fails over, as
 * coordinator/core/checkpoints/checkpoints.h and ps/core/snapshot/snapshot.h have it. Nodes 0 and 1
 * replicate partition 0; a third process has partition 1, to which nothing happens. An order names
 * a step and the process that is to capture; the capture lies in memory and is written later. What
 * was ordered, captured or written can be heard at any time after. A committed manifest needs both
 * parts. */
#ifndef STEPS
#define STEPS 2      /* training ends here, or stalls before */
#endif
#ifndef ORDERS
#define ORDERS 1
#endif
#ifndef MOVES
#define MOVES 1      /* planned promotions that somebody wants; the old primary leaves the map then */
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef WRONG
#define WRONG 0      /* wrong suspicions */
#endif
#define EPOCHS (2 + 2 * MOVES + KILLS + WRONG)
byte newest = 1, primary[EPOCHS + 1];    /* the map in etcd, for each epoch of the entry */
bit alone[EPOCHS + 1];                   /* it has no backup */
bit up[2]; byte epoch[2], version[2], other;
byte wanted, leaving, moves = MOVES, kills = KILLS, wrong = WRONG; bit stalled;
byte order;                              /* the newest: 1 to ORDERS; 0 none */
byte step[ORDERS + 1], process[ORDERS + 1], bound[ORDERS + 1];
bit abandoned[ORDERS + 1], committed[ORDERS + 1], past[ORDERS + 1];
bit captured[(ORDERS + 1) * 3], written[(ORDERS + 1) * 3], kept[(ORDERS + 1) * 3];
#define AT(o, n) ((o) * 3 + (n))
#define LEADS(n) (up[n] && primary[epoch[n]] == n)
#define OPEN (order > 0 && !abandoned[order] && !committed[order])
#define CAPTURED (captured[AT(order, 0)] || captured[AT(order, 1)])
#define WRITTEN (written[AT(order, 0)] || written[AT(order, 1)])
#define IN_MAP(n) (primary[newest] == n || !alone[newest])
#define UNWRITTEN(n) (captured[AT(order, n)] && !written[AT(order, n)])
#define DEAD(n) (!up[n] && UNWRITTEN(n))
#ifdef NOTNAMED       /* whoever leads captures */
#define NAMED(o, n) 1
#elif defined(EPOCHBOUND) /* an order holds in one map epoch */
#define NAMED(o, n) (epoch[n] == bound[o])
#else
#define NAMED(o, n) (process[o] == n)
#endif
#ifdef EARLYMOVE      /* a planned promotion does not wait for the capture */
#define MAY_MOVE 1
#else
#define MAY_MOVE (!OPEN || CAPTURED)
#endif
#ifdef NODEADLINE     /* an order whose step does not come stays */
#define LATE 0
#else
#define LATE ((stalled || (version[primary[newest]] == STEPS && other == STEPS)) \
              && (version[primary[newest]] < step[order] || other < step[order]))
#endif
#ifdef NOTGONE        /* a process that is in no map any more is not missed */
#define LOST(n) (DEAD(n) && IN_MAP(n))
#else
#define LOST(n) DEAD(n)
#endif

inline capture(o, n, v) {
  if
  :: v > step[o] -> past[o] = 1
  :: v == step[o] -> captured[AT(o, n)] = 1; kept[AT(o, n)] = 1; assert(!(captured[AT(o, 0)] && captured[AT(o, 1)]))
  :: else
  fi
}

proctype Node(byte n) {
end:
  do
  :: d_step { up[n] && epoch[n] < newest -> epoch[n] = newest;
#ifdef DROPCAPTURE    /* who leaves the entry forgets what it captured */
       if :: order > 0 && UNWRITTEN(n) && primary[newest] != n -> kept[AT(order, n)] = 0 :: else fi
#endif
     }
  /* a step; partition 1 is never more than one behind */
  :: d_step { !stalled && LEADS(n) && version[n] < STEPS && other >= version[n] &&
       (!up[1 - n] || alone[epoch[n]] || version[1 - n] >= version[n]) &&
       (!OPEN || !NAMED(order, n) || captured[AT(order, n)] || version[n] != step[order]) -> version[n]++ }
  :: d_step { up[n] && up[1 - n] && epoch[n] == epoch[1 - n] && primary[epoch[n]] != n && !alone[epoch[n]] &&
       version[n] < version[1 - n] -> version[n] = version[1 - n] }
  :: d_step { order > 0 && LEADS(n) && NAMED(order, n) && !past[order] && !captured[AT(order, n)] &&
       version[n] >= step[order] -> capture(order, n, version[n]) }
  :: d_step { order > 0 && up[n] && kept[AT(order, n)] && UNWRITTEN(n) -> written[AT(order, n)] = 1 }
  :: d_step { up[n] && up[1 - n] && kills > 0 -> kills--; up[n] = 0 }
  od
}
proctype Other() {
end:
  do
  :: d_step { !stalled && other < STEPS && version[primary[newest]] >= other &&
       (!OPEN || captured[AT(order, 2)] || other != step[order]) -> other++ }
  :: d_step { order > 0 && !past[order] && !captured[AT(order, 2)] && other >= step[order] -> capture(order, 2, other) }
  :: d_step { order > 0 && captured[AT(order, 2)] && !written[AT(order, 2)] -> written[AT(order, 2)] = 1 }
  :: d_step { !stalled -> stalled = 1 }
  od
}
inline map(n, a) { assert(newest < EPOCHS); newest++; primary[newest] = n; alone[newest] = a }
proctype Leader() {
  byte to;
end:
  do
  :: d_step { kills + wrong + moves > 0 -> kills = 0; wrong = 0; moves = 0 }
  :: d_step { moves > 0 && wanted == 0 && leaving == 0 -> moves--; wanted = 1 }
  /* no order while a promotion waits */
  :: d_step { !OPEN && order < ORDERS && wanted == 0 && up[primary[newest]] -> order++; bound[order] = newest;
       process[order] = primary[newest];
       step[order] = (stalled || version[primary[newest]] == STEPS -> version[primary[newest]]
                                                                     : version[primary[newest]] + 1) }
  :: d_step { OPEN && (past[order] || LATE) -> abandoned[order] = 1 }
  :: d_step { OPEN && (LOST(0) || LOST(1)) -> abandoned[order] = 1 }
  :: d_step { OPEN && WRITTEN && written[AT(order, 2)] -> committed[order] = 1 }
  /* a planned promotion; the old primary is the backup first, and then leaves the map */
  :: d_step { wanted > 0 && up[0] && up[1] && !alone[newest] && MAY_MOVE -> wanted--; to = 1 - primary[newest];
       map(to, 0); leaving = 1 }
  :: d_step { leaving > 0 && up[primary[newest]] && !alone[newest] && epoch[primary[newest]] == newest -> leaving = 0;
       to = primary[newest]; map(to, 1) }
  :: d_step { leaving > 0 && alone[newest] -> leaving = 0 }
  :: d_step { wanted > 0 && (!up[0] || !up[1] || alone[newest]) -> wanted = 0 }
  /* failover ends the order */
  :: d_step { up[1 - primary[newest]] && !alone[newest] && (!up[primary[newest]] || wrong > 0) ->
       if :: up[primary[newest]] -> wrong-- :: else fi;
#ifdef REORDER        /* it goes to the new primary instead */
       if :: OPEN -> process[order] = 1 - primary[newest] :: else fi;
#elif !defined(KEEPORDER)
       if :: OPEN -> abandoned[order] = 1 :: else fi;
#endif
       to = 1 - primary[newest]; wanted = 0; map(to, 1) }
  /* nobody is left: a generation opens, which ends the order */
  :: d_step { !up[primary[newest]] && alone[newest] && (OPEN || wanted > 0) -> wanted = 0;
       if :: OPEN -> abandoned[order] = 1 :: else fi }
  :: d_step { !alone[newest] && !up[1 - primary[newest]] && up[primary[newest]] -> to = primary[newest]; map(to, 1) }
  od
}
/* Every order ends, and every promotion that is wanted is made. */
proctype Monitor() { timeout -> assert(!OPEN && wanted == 0) }
init {
  atomic {
    primary[1] = 0; epoch[0] = 1; epoch[1] = 1; up[0] = 1; up[1] = 1;
    run Node(0); run Node(1); run Other(); run Leader(); run Monitor()
  }
}
