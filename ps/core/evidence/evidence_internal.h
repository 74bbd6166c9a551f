/* What evidence.c and evidence_told.c share; nobody else includes it. */
#ifndef KELP_PS_CORE_EVIDENCE_EVIDENCE_INTERNAL_H
#define KELP_PS_CORE_EVIDENCE_EVIDENCE_INTERNAL_H

#include "ps/core/evidence/evidence.h"
#include "ps/core/evidence/evidence_claims.h"
#include "ps/core/evidence/evidence_held.h"
#include "ps/core/limits.h"

struct kelp_evidence {
    uint32_t lanes;
    uint64_t serial;   /* of the newest entry */
    bool found;        /* a conflict, since the last clear */
    uint64_t disputed; /* serial of the entry whose `dispute` is to be told once its root is known
                          to be finite; 0: none */
    struct kelp_conflict dispute;
    struct entry entries[KELP_PS_EVIDENCE_ENTRIES];
    struct held_list held;
};

/* NULL: 0, or one that is not kept any more. */
struct entry *kelp__evidence_entry(struct kelp_evidence *evidence, uint64_t serial);
/* NULL: it is not kept. */
struct entry *kelp__evidence_find(const struct kelp_evidence *evidence, uint64_t key);
/* A new one, instead of the oldest. */
struct entry *kelp__evidence_open(struct kelp_evidence *evidence, uint64_t key,
                                  const struct kelp_control_word *word,
                                  struct kelp_actions *actions);

#endif
