/*
 * Claims about the last entries of one partition, which expose a dishonest worker: honest workers
 * never differ (docs/ARCHITECTURE.md, "Two workers that differ").
 *
 * Each node of an entry that was pushed, or is a sum of such nodes, is a claim: its digest, and its
 * worker. Another push of the same node must have the same digest. Duplicates below a pushed node
 * are kept, and added up along the tree as their siblings arrive; a sum must have the digest of the
 * claim that it reaches. So a node of all lanes is compared with the smaller nodes that come later,
 * or that it replaced, as soon as these are complete; and with their sum, if they came first.
 *
 * NaN has no defined bits, so gradients are compared only once the entry's root was found finite,
 * and skipped entries are not compared.
 *
 * Pure: it belongs to ps/core/partition/partition.h. If memory runs out, it does not compare.
 */
#ifndef KELP_PS_CORE_EVIDENCE_EVIDENCE_H
#define KELP_PS_CORE_EVIDENCE_EVIDENCE_H

#include "ps/core/lanes/reduction.h"
#include "ps/core/partition_events.h"

struct kelp_evidence;

/* lanes is a power of two. NULL: out of memory. */
struct kelp_evidence *kelp_evidence_create(uint32_t lanes);
/* Call kelp_evidence_clear() first: held handles are leaked. */
void kelp_evidence_destroy(struct kelp_evidence *evidence);
/* The claims of an entry for a follower, at most KELP_PS_EVIDENCE_TOLD_MAX. Returns how many. */
uint32_t kelp_evidence_tell(const struct kelp_evidence *evidence, uint64_t key,
                            struct kelp_node_claim *ret_claims);
/* The same of the complete entry that is `back` entries behind the newest, and its word. */
uint32_t kelp_evidence_known(const struct kelp_evidence *evidence, uint32_t back,
                             struct kelp_control_word *ret_word,
                             struct kelp_node_claim *ret_claims);
/* A copy has arrived: all entries before this one are complete. */
void kelp_evidence_filled(struct kelp_evidence *evidence, uint64_t key);
/* A follower receives the claims of an entry with its root. Its own claims stay. */
void kelp_evidence_told(struct kelp_evidence *evidence, uint64_t key,
                        const struct kelp_forward *forward, struct kelp_actions *actions);
/* The partition no longer leads: drop pushes of the incomplete entry, and release kept contents. */
void kelp_evidence_demote(struct kelp_evidence *evidence, struct kelp_actions *actions);
/* A generation ends: forget everything. */
void kelp_evidence_clear(struct kelp_evidence *evidence, struct kelp_actions *actions);

/*
 * A push that was taken, of the entry `key`: keys grow from entry to entry. Like all that follow,
 * it appends at most kelp_evidence_actions_max() actions, and a CONFLICT where something differs.
 */
void kelp_evidence_taken(struct kelp_evidence *evidence, uint64_t key, const struct kelp_push *push,
                         struct kelp_actions *actions);
/* A node that nodes of the entry, taken before, add up to. Its content is that of the only one that
 * has any, or comes with kelp_evidence_summed(). */
void kelp_evidence_formed(struct kelp_evidence *evidence, uint64_t key,
                          const struct kelp_reduction_node *node);
/* That sum is `handle`, which stays the tree's. */
void kelp_evidence_summed(struct kelp_evidence *evidence, uint64_t key,
                          const struct kelp_reduction_node *node, uint64_t handle,
                          struct kelp_actions *actions);
/* A node that the push that was just taken has replaced; its handle is taken over. (A sum that is
 * still being computed then is lost. In the program none is, between two events.) */
void kelp_evidence_replaced(struct kelp_evidence *evidence, uint64_t key,
                            const struct kelp_reduction_node *node, struct kelp_actions *actions);
/* A push that was dropped. True: its handle is taken over. */
bool kelp_evidence_dropped(struct kelp_evidence *evidence, uint64_t key,
                           const struct kelp_push *push, struct kelp_actions *actions);
/* The entry is complete. finite: its root was, so that gradients can be compared; false: the step
 * was skipped. */
void kelp_evidence_complete(struct kelp_evidence *evidence, uint64_t key, bool finite,
                            struct kelp_actions *actions);

/* Is the token of a MERGE or COMPARE ours? */
bool kelp_evidence_owns(uint64_t token);
/* A MERGE of ours gave `handle`. */
void kelp_evidence_merged(struct kelp_evidence *evidence, uint64_t token, uint64_t handle,
                          struct kelp_actions *actions);
/* A COMPARE gave `content`. */
void kelp_evidence_compared(struct kelp_evidence *evidence, uint64_t token,
                            const struct kelp_content *content, struct kelp_actions *actions);

/* There was a CONFLICT since the last clear. */
bool kelp_evidence_found(const struct kelp_evidence *evidence);
size_t kelp_evidence_actions_max(void);

#endif
