#include "tests/lib/attack/message_dice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MANY 300 /* items of an occasional long list */

static size_t below(struct kelp_dice *dice, size_t bound)
{
    return kelp_test_random_below(&dice->random, bound);
}

bool kelp_dice_once_in(struct kelp_dice *dice, size_t of)
{
    return below(dice, of) == 0;
}

void kelp_dice_fini(struct kelp_dice *dice)
{
    for (size_t i = 0; i < KELP_DICE_MESSAGES; i++) {
        free(dice->messages[i].bytes);
        dice->messages[i].bytes = NULL;
    }
}

/* ---- learning ------------------------------------------------------------------------------- */

static void learn_number(struct kelp_dice *dice, const char *field, uint64_t number)
{
    dice->numbers[dice->number_count++ % KELP_DICE_NUMBERS] =
        (struct kelp_dice_number){field, number};
}

static void learn_message(struct kelp_dice *dice, const ProtobufCMessage *message)
{
    size_t count = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = count < KELP_DICE_PAYLOAD ? malloc(count + 1) : NULL;

    if (bytes) {
        struct kelp_dice_message *slot =
            &dice->messages[dice->message_count++ % KELP_DICE_MESSAGES];
        (void)protobuf_c_message_pack(message, bytes);
        free(slot->bytes);
        *slot = (struct kelp_dice_message){message->descriptor, bytes, count};
    }
}

static const void *member(const ProtobufCMessage *message, size_t offset)
{
    return (const uint8_t *)message + offset;
}

static void learn_field(struct kelp_dice *dice, const ProtobufCMessage *message,
                        const ProtobufCFieldDescriptor *field)
{
    const void *at = member(message, field->offset);
    size_t count = 1;

    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        memcpy(&count, member(message, field->quantifier_offset), sizeof(count));
        memcpy(&at, at, sizeof(at));
    }
    for (size_t i = 0; i < count && i < 4; i++) {
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            const ProtobufCMessage *inner = ((const ProtobufCMessage *const *)at)[i];
            if (inner) {
                kelp_dice_learn(dice, inner);
            }
        } else if (field->type == PROTOBUF_C_TYPE_UINT64 ||
                   field->type == PROTOBUF_C_TYPE_FIXED64) {
            learn_number(dice, field->name, ((const uint64_t *)at)[i]);
        } else if (field->type == PROTOBUF_C_TYPE_UINT32 || field->type == PROTOBUF_C_TYPE_ENUM) {
            learn_number(dice, field->name, ((const uint32_t *)at)[i]);
        }
    }
}

void kelp_dice_learn(struct kelp_dice *dice, const ProtobufCMessage *message)
{
    learn_message(dice, message);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        learn_field(dice, message, &message->descriptor->fields[i]);
    }
}

void kelp_dice_teach(struct kelp_dice *dice, const ProtobufCMessage *message)
{
    if (dice->taught_count < KELP_DICE_TAUGHT) {
        dice->taught[dice->taught_count++] = message;
        kelp_dice_learn(dice, message);
    }
}

void kelp_dice_learn_bytes(struct kelp_dice *dice, const ProtobufCMessageDescriptor *descriptor,
                           const uint8_t *bytes, size_t count)
{
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, NULL, count, bytes);

    if (message) {
        kelp_dice_learn(dice, message);
        protobuf_c_message_free_unpacked(message, NULL);
    }
}

/* ---- rolling -------------------------------------------------------------------------------- */

/* A random value among those that fields of this name have held. */
static uint64_t recall(struct kelp_dice *dice, const char *field)
{
    size_t known = dice->number_count < KELP_DICE_NUMBERS ? dice->number_count : KELP_DICE_NUMBERS;
    size_t first = known > 0 ? below(dice, known) : 0;

    for (size_t i = 0; i < known; i++) {
        const struct kelp_dice_number *number = &dice->numbers[(first + i) % known];
        if (strcmp(number->field, field) == 0) {
            return number->value;
        }
    }
    return 0;
}

static uint64_t roll_number(struct kelp_dice *dice, const char *field)
{
    static const uint64_t edges[] = {
        255,       1024,       INT32_MAX, UINT64_C(1) << 31, UINT32_MAX, UINT64_C(1) << 40,
        INT64_MAX, UINT64_MAX, 1u << 16,  UINT64_C(1) << 63, 4096,       UINT64_MAX - 1};
    size_t known = dice->number_count < KELP_DICE_NUMBERS ? dice->number_count : KELP_DICE_NUMBERS;

    if (dice->calm && !kelp_dice_once_in(dice, 24)) {
        return recall(dice, field);
    }
    switch (below(dice, 8)) {
    case 0:
        return kelp_test_random_next(&dice->random);
    case 1:
        return edges[below(dice, KELP_ARRAY_COUNT(edges))];
    case 2:
    case 3:
        return below(dice, 9);
    case 4:
        return known > 0 ? dice->numbers[below(dice, known)].value + 1 - 2 * below(dice, 2) : 1;
    default:
        return known > 0 ? dice->numbers[below(dice, known)].value : 0;
    }
}

static double roll_real(struct kelp_dice *dice)
{
    const double edges[] = {0, 1, -1, 0.5, 1e-300, 1e308, -1e308, NAN, INFINITY, -INFINITY};

    return edges[below(dice, dice->calm ? 4 : KELP_ARRAY_COUNT(edges))];
}

static char *roll_text(struct kelp_dice *dice, const char *field)
{
    static const char *const odd[] = {"",
                                      "worker-0",
                                      "\x1b[2J\r\nkelp",
                                      "../../etc",
                                      "-",
                                      "\xff",
                                      "{\"a\":[[[[[[[[]]]]]]]]}",
                                      ("0123456789012345678901234567890123456789012345678901234567"
                                       "8901234567890123456789")};
    const char *text = odd[below(dice, KELP_ARRAY_COUNT(odd))];

    for (size_t i = 0; i < dice->text_count; i++) {
        bool fits = strcmp(dice->texts[i].field, field) == 0;
        bool alone = fits && dice->texts[i].text[0] == '\0';
        text = alone || (fits && (dice->calm || !kelp_dice_once_in(dice, 4))) ? dice->texts[i].text
                                                                              : text;
    }
    return strdup(text);
}

/* Floats, mostly small. */
static ProtobufCBinaryData roll_bytes(struct kelp_dice *dice, const char *field)
{
    size_t count = (size_t)roll_number(dice, field);

    count = !dice->calm && kelp_dice_once_in(dice, 3) ? below(dice, 5000) : count;
    count = count > KELP_DICE_PAYLOAD ? 0 : count;
    ProtobufCBinaryData data = {.len = count, .data = malloc(count + 1)};
    for (size_t i = 0; data.data && i < count; i++) {
        data.data[i] = i % 4 == 3 ? 0x3c : (uint8_t)i;
    }
    data.len = data.data ? data.len : 0;
    return data;
}

static ProtobufCMessage *roll(struct kelp_dice *dice, const ProtobufCMessageDescriptor *descriptor);

/* A whole message that was learned; NULL: there is none. */
static ProtobufCMessage *repeat(struct kelp_dice *dice,
                                const ProtobufCMessageDescriptor *descriptor)
{
    size_t known =
        dice->message_count < KELP_DICE_MESSAGES ? dice->message_count : KELP_DICE_MESSAGES;
    size_t first = known > 0 ? below(dice, known) : 0;

    for (size_t i = 0; i < known; i++) {
        const struct kelp_dice_message *seen = &dice->messages[(first + i) % known];
        if (seen->descriptor == descriptor) {
            return protobuf_c_message_unpack(descriptor, NULL, seen->count, seen->bytes);
        }
    }
    return NULL;
}

static ProtobufCMessage *roll_inner(struct kelp_dice *dice,
                                    const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *seen =
        kelp_dice_once_in(dice, dice->calm ? 8 : 2) ? NULL : repeat(dice, descriptor);

    return seen ? seen : roll(dice, descriptor);
}

static size_t width(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return 8;
    default:
        return 4;
    }
}

static void roll_value(struct kelp_dice *dice, const ProtobufCFieldDescriptor *field, void *at)
{
    uint64_t number = roll_number(dice, field->name);
    double real = roll_real(dice);
    protobuf_c_boolean yes = (protobuf_c_boolean)(number & 1);
    void *made = NULL;
    ProtobufCBinaryData data;

    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        made = roll_text(dice, field->name);
        memcpy(at, &made, sizeof(made));
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        made = roll_inner(dice, field->descriptor);
        memcpy(at, &made, sizeof(made));
        break;
    case PROTOBUF_C_TYPE_BYTES:
        data = roll_bytes(dice, field->name);
        memcpy(at, &data, sizeof(data));
        break;
    case PROTOBUF_C_TYPE_BOOL:
        memcpy(at, &yes, sizeof(yes));
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(at, &real, sizeof(real));
        break;
    case PROTOBUF_C_TYPE_ENUM:
        number = dice->calm || kelp_dice_once_in(dice, 8) ? number : below(dice, 5);
        memcpy(at, &number, 4); /* little-endian, like all of Kelp's machines */
        break;
    default:
        memcpy(at, &number, width(field));
        break;
    }
}

static void roll_list(struct kelp_dice *dice, const ProtobufCFieldDescriptor *field,
                      ProtobufCMessage *message)
{
    size_t count = kelp_dice_once_in(dice, 64) ? MANY : below(dice, 5);
    uint8_t *items = count > 0 ? calloc(count, width(field)) : NULL;

    count = items ? count : 0;
    for (size_t i = 0; i < count; i++) {
        roll_value(dice, field, items + i * width(field));
    }
    memcpy((uint8_t *)message + field->quantifier_offset, &count, sizeof(count));
    memcpy((uint8_t *)message + field->offset, &items, sizeof(items));
}

static ProtobufCMessage *roll(struct kelp_dice *dice, const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = calloc(1, descriptor->sizeof_message);

    if (!message) {
        return NULL;
    }
    protobuf_c_message_init(descriptor, message);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        if (kelp_dice_once_in(dice, dice->calm ? 16 : 4)) {
            continue; /* the field stays absent */
        }
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            roll_list(dice, field, message);
        } else {
            roll_value(dice, field, (uint8_t *)message + field->offset);
        }
    }
    return message;
}

static void swap(void *a, void *b, size_t bytes)
{
    uint8_t kept[sizeof(ProtobufCBinaryData)];

    memcpy(kept, a, bytes);
    memcpy(a, b, bytes);
    memcpy(b, kept, bytes);
}

static void swap_field(ProtobufCMessage *a, ProtobufCMessage *b,
                       const ProtobufCFieldDescriptor *field)
{
    bool list = field->label == PROTOBUF_C_LABEL_REPEATED;

    swap((uint8_t *)a + field->offset, (uint8_t *)b + field->offset,
         list ? sizeof(void *) : width(field));
    if (list) {
        swap((uint8_t *)a + field->quantifier_offset, (uint8_t *)b + field->quantifier_offset,
             sizeof(size_t));
    }
}

/* A valid message with one field rolled anew. */
static ProtobufCMessage *change_one(struct kelp_dice *dice, ProtobufCMessage *rolled)
{
    const ProtobufCMessageDescriptor *descriptor = rolled->descriptor;
    ProtobufCMessage *seen = descriptor->n_fields > 0 ? repeat(dice, descriptor) : NULL;

    if (!seen) {
        return rolled;
    }
    swap_field(seen, rolled, &descriptor->fields[below(dice, descriptor->n_fields)]);
    protobuf_c_message_free_unpacked(rolled, NULL);
    return seen;
}

ProtobufCMessage *kelp_dice_roll(struct kelp_dice *dice,
                                 const ProtobufCMessageDescriptor *descriptor)
{
    dice->calm = !kelp_dice_once_in(dice, 3);
    if (dice->taught_count > 0 && kelp_dice_once_in(dice, 16)) {
        kelp_dice_learn(dice, dice->taught[below(dice, dice->taught_count)]);
    }
    ProtobufCMessage *rolled = roll(dice, descriptor);
    return rolled && dice->calm && kelp_dice_once_in(dice, 2) ? change_one(dice, rolled) : rolled;
}
