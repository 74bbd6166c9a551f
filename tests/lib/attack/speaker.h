/*
 * A client that speaks the whole protocol to a server with arbitrary content: well-formed messages
 * of rolled values (message_dice.h) in any order, on a few streams at a time. It starts most
 * streams with a valid hello, learns from the answers, and reconnects after it was disconnected.
 */
#ifndef KELP_TESTS_LIB_ATTACK_SPEAKER_H
#define KELP_TESTS_LIB_ATTACK_SPEAKER_H

#include "tests/lib/attack/http2_client.h"
#include "tests/lib/attack/message_dice.h"

struct kelp_speaker_options {
    struct kelp_http2_target target; /* borrowed until close, like all below */
    const char *const *paths;        /* methods to call; ends with NULL */
    const char *const *ids;          /* ids to use; ends with NULL */
    const char *job;
    uint64_t spec_digest;
    const struct kelp_dice_text *texts;
    size_t text_count;
    uint64_t seed;
};

struct kelp_speaker;

/* options are borrowed until close. NULL: out of memory. */
struct kelp_speaker *kelp_speaker_open(const struct kelp_speaker_options *options);
void kelp_speaker_close(struct kelp_speaker *speaker); /* NULL does nothing */

/* Send this many messages. */
void kelp_speaker_say(struct kelp_speaker *speaker, unsigned count);
/* For messages that another client sends. */
struct kelp_dice *kelp_speaker_dice(struct kelp_speaker *speaker);

struct kelp_speaker_counts {
    uint64_t connections, streams, messages, answers;
};
struct kelp_speaker_counts kelp_speaker_counts(const struct kelp_speaker *speaker);

#endif
