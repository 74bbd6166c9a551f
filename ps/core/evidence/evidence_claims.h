/*
 * What was said of the nodes of an entry (ps/core/evidence/evidence.h), and by whom.
 */
#ifndef KELP_PS_CORE_EVIDENCE_EVIDENCE_CLAIMS_H
#define KELP_PS_CORE_EVIDENCE_EVIDENCE_CLAIMS_H

#include "ps/core/partition_events.h"

/* What was said of a node; nodes lie in heap order, as in ps/core/lanes/reduction.c. */
struct claim {
    struct kelp_content content;
    uint64_t sums; /* hash of the metric sums */
    uint32_t author;
    uint16_t node;
    bool is_sum;     /* nobody pushed it; it is the sum of nodes that were pushed */
    bool is_taken;   /* pushed, and part of what counts */
    bool is_spent;   /* its content has been added to its sibling's */
    bool is_coming;  /* its content is still being computed ... */
    bool is_doubted; /* ... and `author` has pushed the node too, with `content` */
};

/* Small: those of all partitions are gone through in each step. */
struct entry {
    uint64_t serial; /* 0: none */
    uint64_t key;
    struct kelp_control_word word;
    struct claim *claims;
    uint32_t claim_count;
    uint32_t claim_capacity;
    uint64_t digest; /* hash of what was said of the weights; 0: nothing */
    uint32_t digest_author;
    bool is_complete;
    bool is_left_out; /* nothing of it is compared */
    bool is_told;     /* one conflict of an entry is enough */
};

/* NULL: nobody has said anything of the node. */
struct claim *kelp__claim_find(struct entry *entry, uint32_t node);
/* Somebody pushed a larger node, which this one is part of. */
bool kelp__claim_is_above(struct entry *entry, uint32_t node);
/* Of two contents; of a claim that came from another shard there are the low 32 bits alone. */
bool kelp__claim_same_content(const struct kelp_content *a, const struct kelp_content *b);
/* What another shard is told of them, at most `max`: pushed ones first. */
uint32_t kelp__claims_tell(const struct entry *entry, struct kelp_node_claim *ret_claims,
                           uint32_t max);
/* False: out of memory. */
bool kelp__claim_add(struct entry *entry, const struct claim *claim);
/* Of a claim; of a sum those who pushed its parts: parts of what counts, or duplicates. */
struct kelp_authors kelp__claim_authors(const struct entry *entry, const struct claim *claim,
                                        bool of_taken);
/* The node is `above` or part of it. */
bool kelp__node_is_below(uint32_t node, uint32_t above);

/* Zeros at the end do not count, and all values that are not numbers are one. */
uint64_t kelp__hash_sums(const double *sums, uint32_t count);
/* Never 0. */
uint64_t kelp__hash_text(const char *text);

#endif
