/* A decision about a step, carried by workers, while the partition that waits for it fails over:
 * ps/core/partition/partition_decision.c. Partition 0 decides once it has this partition's share, and never
 * loses that (its backup has it). Workers bring a decision once to each primary. A promoted primary
 * waits for its follower, and hears decisions meanwhile.
 */
#ifndef V
#define V 2       /* steps of the job */
#endif
#ifndef MOVES
#define MOVES 2   /* failovers */
#endif
#ifndef W
#define W 2       /* workers */
#endif

byte ver, backup;       /* applied by the primary, and by its backup */
byte epoch, moves = MOVES;
bit syncing;            /* promoted: it has not heard its follower */
bit root;               /* all lanes of its step are in */
byte early;             /* a decision that came before the lanes: its step + 1; 0: none */
byte decided;           /* steps that partition 0 has decided */
byte at[W], known[W];   /* workers: step that they are at, epoch that they know */
bit pushed[W], told[W];

#define DONE     (ver == V && backup == V && !syncing)
#define SHOWN    (ver < backup -> ver : backup)
#define READS(w) (known[w] == epoch)

#ifdef STALE             /* what is remembered ends with its step */
#define FITS    (early > 0)
#define FORGOTTEN skip
#else
#define FITS    (early == ver + 1)
#define FORGOTTEN early = 0
#endif

inline apply() { ver++; root = 0; FORGOTTEN }

/* What it hears about its step. */
inline hear() {
    if
    :: root -> apply()
#ifdef FORGET            /* a decision that comes early is remembered */
    :: else
#elif defined(FORGETSYNCING) /* also while the followers have not been heard */
    :: !root && !syncing -> early = ver + 1
    :: else
#else
    :: else -> early = ver + 1
#endif
    fi
}

proctype Worker(byte w) {
end:
    do
    :: d_step { !DONE && known[w] != epoch -> known[w] = epoch; pushed[w] = 0;
#ifndef NOREASK          /* after a change of the map, the new primary is told as well */
       told[w] = 0
#endif
     }
#ifdef NORESEND          /* a push that is refused is sent again */
    :: d_step { !DONE && at[w] < V && !pushed[w] -> pushed[w] = 1;
       if
       :: READS(w) && !syncing && ver == at[w] && ver == backup -> root = 1
       :: else
       fi }
#else
    :: d_step { !DONE && at[w] < V && !pushed[w] && READS(w) && !syncing && ver == backup -> pushed[w] = 1;
       if
       :: ver == at[w] -> root = 1
       :: else
       fi }
#endif
    /* the share of this partition, to partition 0 */
    :: d_step { READS(w) && root && ver == at[w] && decided == at[w] -> decided++ }
    :: d_step { !DONE && READS(w) && decided == at[w] + 1 && !told[w] -> told[w] = 1;
       if
       :: ver == at[w] -> hear()
       :: else
       fi }
    :: d_step { READS(w) && !syncing && decided > at[w] && SHOWN > at[w] ->
       at[w]++; pushed[w] = 0; told[w] = 0 }
    od
}

proctype Partition() {
end:
    do
    :: d_step { moves > 0 -> moves = 0 }
    :: d_step { !syncing && root && FITS -> apply() }
    :: d_step { backup < ver -> backup = ver }
    /* another backup has what this one had; nothing of what was pushed or heard */
    :: d_step { !DONE && moves > 0 -> moves--; epoch++; ver = backup; root = 0; early = 0; syncing = 1 }
    :: d_step { syncing -> syncing = 0 }
    od
}
/* It never goes ahead of what was decided. */
active proctype Check() { end: d_step { ver > decided -> assert(false) } }
active proctype Watch() { timeout -> assert(DONE) }

init {
    atomic {
        byte i;
        for (i : 0 .. W - 1) { run Worker(i) }
        i = 0;
        run Partition()
    }
}
