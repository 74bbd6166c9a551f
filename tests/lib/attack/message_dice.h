/*
 * Messages that are well-formed and mean anything: each field is rolled, from what peers have said,
 * from its edges, or at random. The same seed and the same answers give the same messages.
 */
#ifndef KELP_TESTS_LIB_ATTACK_MESSAGE_DICE_H
#define KELP_TESTS_LIB_ATTACK_MESSAGE_DICE_H

#include <protobuf-c/protobuf-c.h>

#include "common/base/status.h"
#include "tests/lib/wire_split.h"

#define KELP_DICE_NUMBERS  256
#define KELP_DICE_MESSAGES 64
#define KELP_DICE_TAUGHT   16
#define KELP_DICE_PAYLOAD  (256u << 10) /* most bytes of a field of bytes */

/* What a text field of that name would hold. */
struct kelp_dice_text {
    const char *field;
    const char *text; /* "": and nothing else */
};

struct kelp_dice {
    struct kelp_test_random random;
    const struct kelp_dice_text *texts; /* borrowed */
    size_t text_count;
    bool calm; /* the message that is rolled now keeps to what such a field has held */
    struct kelp_dice_number {
        const char *field;
        uint64_t value;
    } numbers[KELP_DICE_NUMBERS]; /* the newest that peers have said */
    size_t number_count;
    struct kelp_dice_message { /* the newest of their messages, whole */
        const ProtobufCMessageDescriptor *descriptor;
        uint8_t *bytes;
        size_t count;
    } messages[KELP_DICE_MESSAGES];
    size_t message_count;
    const ProtobufCMessage *taught[KELP_DICE_TAUGHT]; /* borrowed */
    size_t taught_count;
};

void kelp_dice_fini(struct kelp_dice *dice);

/* Remember what a message holds: its numbers, and itself and those in it for fields of their kinds.
 */
void kelp_dice_learn(struct kelp_dice *dice, const ProtobufCMessage *message);
/* A good message, learned again now and then: what peers say displaces it. Borrowed. */
void kelp_dice_teach(struct kelp_dice *dice, const ProtobufCMessage *message);
/* Learn of bytes; what cannot be read is left out. */
void kelp_dice_learn_bytes(struct kelp_dice *dice, const ProtobufCMessageDescriptor *descriptor,
                           const uint8_t *bytes, size_t count);

/* Owned (protobuf_c_message_free_unpacked()); NULL: no memory. */
ProtobufCMessage *kelp_dice_roll(struct kelp_dice *dice,
                                 const ProtobufCMessageDescriptor *descriptor);
/* One time in `of`. */
bool kelp_dice_once_in(struct kelp_dice *dice, size_t of);

#endif
