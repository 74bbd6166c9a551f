/*
 * Well-formed messages with arbitrary content: each field is rolled from what peers have sent, from
 * its extreme values, or at random. The same seed and the same answers give the same messages.
 */
#ifndef KELP_TESTS_LIB_ATTACK_MESSAGE_DICE_H
#define KELP_TESTS_LIB_ATTACK_MESSAGE_DICE_H

#include <protobuf-c/protobuf-c.h>

#include "common/base/status.h"
#include "tests/lib/wire_split.h"

#define KELP_DICE_NUMBERS  256
#define KELP_DICE_MESSAGES 64
#define KELP_DICE_TAUGHT   16
#define KELP_DICE_PAYLOAD  (256u << 10) /* the longest bytes field */

/* A sensible value for text fields of this name. */
struct kelp_dice_text {
    const char *field;
    const char *text; /* "" is the only value */
};

struct kelp_dice {
    struct kelp_test_random random;
    const struct kelp_dice_text *texts; /* borrowed */
    size_t text_count;
    bool calm; /* the current message uses only values that its fields have held */
    struct kelp_dice_number {
        const char *field;
        uint64_t value;
    } numbers[KELP_DICE_NUMBERS]; /* the newest from peers */
    size_t number_count;
    struct kelp_dice_message { /* the newest messages of peers, complete */
        const ProtobufCMessageDescriptor *descriptor;
        uint8_t *bytes;
        size_t count;
    } messages[KELP_DICE_MESSAGES];
    size_t message_count;
    const ProtobufCMessage *taught[KELP_DICE_TAUGHT]; /* borrowed */
    size_t taught_count;
};

void kelp_dice_fini(struct kelp_dice *dice);

/* Remember what a message contains: its numbers, and itself and its submessages for fields of
 * their types. */
void kelp_dice_learn(struct kelp_dice *dice, const ProtobufCMessage *message);
/* Add a valid message that is learned again now and then, because messages of peers displace it.
 * Borrowed. */
void kelp_dice_teach(struct kelp_dice *dice, const ProtobufCMessage *message);
/* Learn from encoded bytes; unreadable ones are ignored. */
void kelp_dice_learn_bytes(struct kelp_dice *dice, const ProtobufCMessageDescriptor *descriptor,
                           const uint8_t *bytes, size_t count);

/* Owned (protobuf_c_message_free_unpacked()); NULL: out of memory. */
ProtobufCMessage *kelp_dice_roll(struct kelp_dice *dice,
                                 const ProtobufCMessageDescriptor *descriptor);
/* True once in `of` calls on average. */
bool kelp_dice_once_in(struct kelp_dice *dice, size_t of);

#endif
