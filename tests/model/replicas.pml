/* One partition's replicas, as ps/core/partition/replication.h has them: links keep order, and lose what is
 * under way when they break; each side learns the map late; what a follower has is said anew in
 * each epoch and over each link. Beside it another partition that has made `q` steps.
 *
 * A state is its number of steps, `ver`; weights of the step before are there when `old` is set.
 * Promotion by one witness, which may be wrong, planned promotion, attaching, crashes.
 */
#ifndef V
#define V 2        /* steps of the job */
#endif
#ifndef KILLS
#define KILLS 1    /* crashes */
#endif
#ifndef WRONG
#define WRONG 1    /* somebody alive is taken for lost */
#endif
#ifndef JOINERS
#define JOINERS 1
#endif
#ifndef BREAKS
#define BREAKS 1   /* links that break, and are up again */
#endif
#define N      3
#define NOBODY 3
#define EPOCHS (2 + KILLS + WRONG + 2 * JOINERS)

mtype = { forward, greet, state, copy };
/* kind, epoch, steps + 1 (0: nothing), with the older weights */
chan link[N * N] = [7] of { mtype, byte, byte, bit };
#define LINK(from, to) link[(from) * N + (to)]

/* the map, and what was reported in each epoch */
byte epoch = 1;
byte mapP[EPOCHS], mapB[EPOCHS], mapJ[EPOCHS];
bit insync[EPOCHS];

/* processes */
bit up[N], has[N], old[N];
byte ver[N], vis[N], root[N], known[N], myP[N], myB[N], myJ[N];
/* what a primary knows of a process: [primary * N + follower] */
bit stated[N * N], streams[N * N], sent[N * N], counts[N * N];
byte held[N * N], since[N * N];
#define AT(n, f) ((n) * N + (f))

byte q, shown, kills = KILLS, wrong = WRONG, joiners = JOINERS, breaks = BREAKS;
bit restored;
byte to; /* within one step */

#define DONE       (restored || (q == V && shown == V))
#define LEADS(n)   (up[n] && has[n] && myP[n] == n)
#define FOLLOWS(n) (up[n] && (myB[n] == n || myJ[n] == n))
#define ALONE(n)   (myB[n] == NOBODY && myJ[n] == NOBODY)
#ifdef EARLY                  /* a version is shown before it is acknowledged */
#define COVERS(n, f) 1
#else
#define COVERS(n, f) ((f) == NOBODY || !counts[AT(n, f)] || held[AT(n, f)] > ver[n])
#endif
#ifdef COPYSYNCING            /* a copy is taken while an acknowledgement is outstanding */
#define BOUNDARY(n) 1
#else
#define BOUNDARY(n) (vis[n] == ver[n])
#endif
#ifdef LAG                    /* in sync is who has as much as is shown */
#define LEVEL(n, f) (held[AT(n, f)] > vis[n])
#else
#define LEVEL(n, f) (held[AT(n, f)] > ver[n])
#endif
#define GOOD(p) (!up[p] || (has[p] && ver[p] >= shown && (ver[p] <= q || (ver[p] == q + 1 && old[p]))))

inline check() {
    assert(restored || GOOD(mapP[epoch]));
    assert(restored || mapB[epoch] == NOBODY || GOOD(mapB[epoch]));
    assert(restored || !insync[epoch] || mapJ[epoch] == NOBODY || GOOD(mapJ[epoch]))
}
inline put(pf, pt, pk, pe, pv, po) {
    to = pt;
    if
    :: up[to] -> assert(len(LINK(pf, to)) < 7); LINK(pf, to)!pk, pe, pv, po
    :: else
    fi;
    to = 0
}
inline say(sn) { /* a follower says what it has */
    put(sn, myP[sn], state, known[sn], has[sn] * (ver[sn] + 1), 0)
}
inline forget(gn, gf) {
    stated[AT(gn, gf)] = 0; streams[AT(gn, gf)] = 0; sent[AT(gn, gf)] = 0
}
inline serve(vn, vf) {
    if
    :: vf != NOBODY && streams[AT(vn, vf)] && !sent[AT(vn, vf)] && root[vn] > since[AT(vn, vf)] ->
       sent[AT(vn, vf)] = 1; put(vn, vf, forward, known[vn], root[vn], 0)
    :: else
    fi
}
inline meet(mn, mf) { /* a follower of a new epoch */
    if
    :: mf != NOBODY -> forget(mn, mf); held[AT(mn, mf)] = 0;
#ifndef NOGREET               /* the primary asks: it may be the last to learn the epoch */
       put(mn, mf, greet, known[mn], 0, 0)
#endif
    :: else
    fi
}
inline learn(ln, le) {
    if
    :: mapP[le] == ln && myP[ln] != ln && has[ln] ->
#ifdef SHOWNOW                /* promoted, it shows what it has */
       vis[ln] = ver[ln]; shown = (vis[ln] > shown -> vis[ln] : shown)
#else
       vis[ln] = (ver[ln] > 0 -> ver[ln] - 1 : 0)
#endif
    :: mapP[le] != ln -> vis[ln] = 0
    :: else
    fi;
    known[ln] = le; myP[ln] = mapP[le]; myB[ln] = mapB[le]; myJ[ln] = mapJ[le];
    if
    :: myP[ln] == ln ->
       meet(ln, myB[ln]); meet(ln, myJ[ln]);
       if
       :: myB[ln] != NOBODY -> counts[AT(ln, myB[ln])] = 1
       :: else
       fi;
       if
       :: myJ[ln] != NOBODY -> counts[AT(ln, myJ[ln])] = 0
       :: else
       fi
    :: myP[ln] != ln && FOLLOWS(ln) -> say(ln)
    :: else -> has[ln] = 0; old[ln] = 0; ver[ln] = 0; vis[ln] = 0; root[ln] = 0
    fi
}
inline take(tn) { /* a follower applies a root */
    ver[tn] = ver[tn] + 1; old[tn] = 1;
#ifdef NOKEEP                 /* it keeps the root for when it is promoted */
    root[tn] = 0
#else
    root[tn] = ver[tn]
#endif
}

/* One message of the link from `f` to `n`. */
inline receive(rn, rf) {
    LINK(rf, rn)?kind, e, v, o;
    if
    :: e > known[rn] -> learn(rn, epoch)        /* it gets the map, and the message is lost */
    :: e < known[rn] && kind == greet && FOLLOWS(rn) -> say(rn)
#ifdef NOFENCE                /* a follower takes roots of any epoch */
    :: e < known[rn] && kind == forward && FOLLOWS(rn) && has[rn] && v == ver[rn] + 1 ->
       take(rn); put(rn, rf, state, e, ver[rn] + 1, 0)
#endif
    :: e == known[rn] && kind == greet && FOLLOWS(rn) -> say(rn)
    :: e == known[rn] && kind == forward && FOLLOWS(rn) ->
       if
       :: has[rn] && v == ver[rn] + 1 -> take(rn)
       :: else
       fi;
       say(rn)
    :: e == known[rn] && kind == copy && FOLLOWS(rn) ->
       if
       :: !has[rn] || ver[rn] + 1 < v -> has[rn] = 1; ver[rn] = v - 1; old[rn] = o; root[rn] = 0; say(rn)
       :: else
       fi
    :: e == known[rn] && kind == state && LEADS(rn) && (rf == myB[rn] || rf == myJ[rn]) ->
       if
       :: v > held[AT(rn, rf)] -> held[AT(rn, rf)] = v
       :: else
       fi;
       stated[AT(rn, rf)] = 1;
       /* what it lacks is at most the newest root, or it needs a copy */
       if
       :: !streams[AT(rn, rf)] && v > 0 && v > ver[rn] - (root[rn] == ver[rn] && ver[rn] > 0 -> 1 : 0) ->
          streams[AT(rn, rf)] = 1; since[AT(rn, rf)] = v - 1
       :: else
       fi;
       serve(rn, rf)
    :: else
    fi;
    kind = 0; e = 0; v = 0; o = 0
}

proctype Process(byte n) {
    mtype kind; byte e, v, f; bit o;
end:
    do
    :: d_step { !DONE && up[n] && known[n] < epoch -> learn(n, epoch); check() }
    :: d_step { !DONE && up[n] && known[n] + 1 < epoch -> /* an older notice comes first */
       e = known[n] + 1; learn(n, e); e = 0; check() }
    :: d_step { !DONE && up[n] && len(LINK((n + 1) % N, n)) > 0 ->
       f = (n + 1) % N; receive(n, f); f = 0; check() }
    :: d_step { !DONE && up[n] && len(LINK((n + 2) % N, n)) > 0 ->
       f = (n + 2) % N; receive(n, f); f = 0; check() }
    /* all lanes of a step: forwarded, and applied */
    :: d_step { !DONE && LEADS(n) && vis[n] == ver[n] && ver[n] < V && q >= ver[n] ->
       root[n] = (ALONE(n) -> 0 : ver[n] + 1);
       if
       :: myB[n] != NOBODY -> sent[AT(n, myB[n])] = 0; serve(n, myB[n])
       :: else
       fi;
       if
       :: myJ[n] != NOBODY -> sent[AT(n, myJ[n])] = 0; serve(n, myJ[n])
       :: else
       fi;
       ver[n] = ver[n] + 1; old[n] = 1; check() }
    :: d_step { !DONE && LEADS(n) && ver[n] > vis[n] && COVERS(n, myB[n]) && COVERS(n, myJ[n]) ->
       vis[n] = ver[n]; shown = (vis[n] > shown -> vis[n] : shown); check() }
    :: d_step { !DONE && LEADS(n) && myJ[n] != NOBODY && !counts[AT(n, myJ[n])] && LEVEL(n, myJ[n]) &&
                !insync[known[n]] ->
#ifndef LATE                  /* it counts from the moment in which it is reported */
       counts[AT(n, myJ[n])] = 1;
#endif
       insync[known[n]] = 1; check() }
    :: d_step { !DONE && LEADS(n) && myJ[n] != NOBODY && stated[AT(n, myJ[n])] && !streams[AT(n, myJ[n])] &&
                BOUNDARY(n) ->
       streams[AT(n, myJ[n])] = 1; since[AT(n, myJ[n])] = ver[n]; sent[AT(n, myJ[n])] = 0;
#ifdef NOOLDER                /* the copy has the older weights too */
       put(n, myJ[n], copy, known[n], ver[n] + 1, 0)
#else
       put(n, myJ[n], copy, known[n], ver[n] + 1, old[n])
#endif
     }
    :: d_step { !DONE && up[n] && kills > 0 ->
       do
       :: len(LINK((n + 1) % N, n)) > 0 -> LINK((n + 1) % N, n)?_, _, _, _
       :: len(LINK((n + 2) % N, n)) > 0 -> LINK((n + 2) % N, n)?_, _, _, _
       :: else -> break
       od;
       kills--; up[n] = 0; has[n] = 0; ver[n] = 0; old[n] = 0; root[n] = 0 }
    /* the link to the next process breaks, and is up again */
    :: d_step { !DONE && up[n] && up[(n + 1) % N] && breaks > 0 -> breaks--; f = (n + 1) % N;
       do
       :: len(LINK(n, f)) > 0 -> LINK(n, f)?_, _, _, _
       :: len(LINK(f, n)) > 0 -> LINK(f, n)?_, _, _, _
       :: else -> break
       od;
#ifndef NORESTATE             /* what was under way is lost: both sides begin anew */
       if
       :: LEADS(n) && (f == myB[n] || f == myJ[n]) -> forget(n, f); put(n, f, greet, known[n], 0, 0)
       :: else
       fi;
       if
       :: LEADS(f) && (n == myB[f] || n == myJ[f]) -> forget(f, n); put(f, n, greet, known[f], 0, 0)
       :: else
       fi;
#endif
       f = 0 }
    od
}

/* Another partition makes its step `q` with w_q of this one. */
#define SERVES(n) (LEADS(n) && vis[n] >= q && (ver[n] == q || (ver[n] == q + 1 && old[n])))
proctype Other() {
end:
    do
    :: d_step { !DONE && q < V && (SERVES(0) || SERVES(1) || SERVES(2)) -> q++; check() }
    od
}

#define P mapP[epoch]
#define B mapB[epoch]
#define J mapJ[epoch]
#define LOST(n) ((n) != NOBODY && (!up[n] || wrong > 0))
#define FREE(n) ((n) != P && (n) != B && (n) != J && up[n])
inline pay(yn) {
    if
    :: up[yn] -> wrong--
    :: else
    fi
}
inline write(wp, wb, wj) {
    epoch++; mapP[epoch] = wp; mapB[epoch] = wb; mapJ[epoch] = wj; check()
}
#ifdef ANYREPORT              /* the report is bound to its epoch */
#define INSYNC (insync[epoch] || insync[epoch - 1])
#else
#define INSYNC insync[epoch]
#endif
proctype Leader() {
    byte p, b, j;
end:
    do
    :: d_step { kills + wrong + joiners + breaks > 0 -> kills = 0; wrong = 0; joiners = 0; breaks = 0 }
    :: d_step { !DONE && B != NOBODY && up[B] && LOST(P) ->
       pay(P); p = B; j = J; write(p, NOBODY, j); p = 0; j = 0 }
    :: d_step { !DONE && J != NOBODY && up[J] && INSYNC && LOST(P) ->
       pay(P); p = J; b = B; write(p, b, NOBODY); p = 0; b = 0 }
    :: d_step { !DONE && up[P] && LOST(B) -> pay(B); p = P; j = J; write(p, NOBODY, j); p = 0; j = 0 }
    :: d_step { !DONE && up[P] && LOST(J) -> pay(J); p = P; b = B; write(p, b, NOBODY); p = 0; b = 0 }
    :: d_step { !DONE && up[P] && J == NOBODY && joiners > 0 && FREE(2) ->
       joiners--; p = P; b = B; write(p, b, 2); p = 0; b = 0 }
    :: d_step { !DONE && up[P] && J == NOBODY && joiners > 0 && FREE(1) ->
       joiners--; p = P; b = B; write(p, b, 1); p = 0; b = 0 }
    :: d_step { !DONE && J != NOBODY && up[J] && INSYNC -> p = P; j = J; write(p, j, NOBODY); p = 0; j = 0 }
    :: d_step { !DONE && J != NOBODY && up[J] && INSYNC ->
       p = J; b = (B != NOBODY -> B : P); write(p, b, NOBODY); p = 0; b = 0 }
    :: d_step { !DONE && !up[P] && (B == NOBODY || !up[B]) && !(J != NOBODY && up[J] && INSYNC) -> restored = 1 }
    od
}
proctype Watch() { timeout -> assert(DONE) }

init {
    atomic {
        byte i;
        mapP[1] = 0; mapB[1] = 1; mapJ[1] = NOBODY;
        for (i : 0 .. N - 1) {
            up[i] = 1; known[i] = 1; myP[i] = 0; myB[i] = 1; myJ[i] = NOBODY
        }
        i = 0;
        has[0] = 1; has[1] = 1; counts[AT(0, 1)] = 1; streams[AT(0, 1)] = 1; stated[AT(0, 1)] = 1; held[AT(0, 1)] = 1;
        run Other(); run Leader(); run Watch();
        run Process(0); run Process(1); run Process(2)
    }
}
