#include "tests/lib/attack/speaker.h"

#include <stdlib.h>
#include <string.h>

#include "proto/kelp.pb-c.h"

#define STREAMS   6
#define CONNECTED 800 /* messages per connection, about */
#define WAIT_MS   2
#define HELLO_MS  5

static const struct method {
    const char *path;
    const ProtobufCMessageDescriptor *request, *answer;
    bool unary;
} methods[] = {
    {"/kelp.v1.ParameterServer/Exchange", &kelp__v1__exchange_request__descriptor,
     &kelp__v1__exchange_reply__descriptor, false},
    {"/kelp.v1.ParameterServer/Control", &kelp__v1__shard_command__descriptor,
     &kelp__v1__shard_report__descriptor, false},
    {"/kelp.v1.ParameterServer/Status", &kelp__v1__shard_status_request__descriptor,
     &kelp__v1__shard_status_reply__descriptor, true},
    {"/kelp.v1.Coordinator/Join", &kelp__v1__worker_report__descriptor,
     &kelp__v1__worker_command__descriptor, false},
    {"/kelp.v1.Coordinator/Status", &kelp__v1__status_request__descriptor,
     &kelp__v1__status_reply__descriptor, true},
    {"/kelp.v1.Coordinator/Checkpoint", &kelp__v1__checkpoint_request__descriptor,
     &kelp__v1__checkpoint_reply__descriptor, true},
};

struct talk {
    const struct method *method; /* NULL: none */
    uint32_t stream;
    unsigned said, heard;
};

struct kelp_speaker {
    struct kelp_speaker_options options;
    struct kelp_dice dice;
    struct kelp_http2 *client;
    struct talk talks[STREAMS];
    struct kelp_speaker_counts counts;
};

static size_t below(struct kelp_speaker *speaker, size_t bound)
{
    return kelp_test_random_below(&speaker->dice.random, bound);
}

static const char *choose(struct kelp_speaker *speaker, const char *const *list)
{
    size_t count = 0;

    while (list[count]) {
        count++;
    }
    return list[below(speaker, count)];
}

/* ---- messages ------------------------------------------------------------------------------- */

/* Replaces the rolled hello by a valid one. */
static void give_hello(struct kelp_speaker *speaker, ProtobufCMessage *message)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, "hello");
    Kelp__V1__Hello hello = KELP__V1__HELLO__INIT;
    ProtobufCMessage *copy = NULL;
    uint8_t bytes[512];

    if (!field) {
        return;
    }
    hello.job = (char *)(uintptr_t)speaker->options.job;
    hello.spec_digest = speaker->options.spec_digest;
    hello.id = (char *)(uintptr_t)choose(speaker, speaker->options.ids);
    hello.incarnation = 1 + below(speaker, 3);
    hello.protocol = 1;
    size_t count = kelp__v1__hello__pack(&hello, bytes);
    void *at = (uint8_t *)message + field->offset;
    memcpy(&copy, at, sizeof(copy));
    if (copy) {
        protobuf_c_message_free_unpacked(copy, NULL);
    }
    copy = protobuf_c_message_unpack(&kelp__v1__hello__descriptor, NULL, count, bytes);
    memcpy(at, &copy, sizeof(copy));
}

static void say(struct kelp_speaker *speaker, struct talk *talk)
{
    ProtobufCMessage *message = kelp_dice_roll(&speaker->dice, talk->method->request);

    if (!message) {
        return;
    }
    if (talk->said == 0 && !kelp_dice_once_in(&speaker->dice, 10)) {
        give_hello(speaker, message);
    }
    (void)kelp_http2_send_message(speaker->client, talk->stream, message);
    protobuf_c_message_free_unpacked(message, NULL);
    talk->said++;
    speaker->counts.messages++;
    if (talk->method->unary) {
        kelp_http2_finish(speaker->client, talk->stream);
    }
}

static void hear(struct kelp_speaker *speaker)
{
    for (size_t i = 0; i < STREAMS; i++) {
        struct talk *talk = &speaker->talks[i];
        struct kelp_http2_answer answer = {.messages = 0};
        size_t count = 0;
        if (talk->method) {
            answer = kelp_http2_answer(speaker->client, talk->stream);
        }
        if (answer.messages > talk->heard) {
            const uint8_t *bytes = kelp_http2_newest(speaker->client, talk->stream, &count);
            speaker->counts.answers += answer.messages - talk->heard;
            talk->heard = answer.messages;
            kelp_dice_learn_bytes(&speaker->dice, talk->method->answer, bytes, count);
        }
        talk->method = answer.ended ? NULL : talk->method;
    }
}

/* ---- connections and streams ---------------------------------------------------------------- */

static void connect_again(struct kelp_speaker *speaker)
{
    kelp_http2_close(speaker->client);
    speaker->client = kelp_http2_open(&speaker->options.target);
    memset(speaker->talks, 0, sizeof(speaker->talks));
    speaker->counts.connections++;
}

static void open_talk(struct kelp_speaker *speaker, struct talk *talk)
{
    const char *path = choose(speaker, speaker->options.paths);
    const struct method *method = methods;

    while (strcmp(method->path, path) != 0) {
        method++; /* path is in the table */
    }
    *talk = (struct talk){.method = method, .stream = kelp_http2_call(speaker->client, path)};
    speaker->counts.streams++;
}

static void end_talk(struct kelp_speaker *speaker, struct talk *talk)
{
    static const uint8_t cancel[4] = {0, 0, 0, 8};

    if (kelp_dice_once_in(&speaker->dice, 2)) {
        kelp_http2_finish(speaker->client, talk->stream);
    } else {
        (void)kelp_http2_frame(speaker->client, KELP_HTTP2_RST_STREAM, 0, talk->stream, cancel,
                               sizeof(cancel));
    }
    talk->method = NULL;
}

void kelp_speaker_say(struct kelp_speaker *speaker, unsigned count)
{
    for (uint64_t end = speaker->counts.messages + count; speaker->counts.messages < end;) {
        if (!speaker->client || !kelp_http2_alive(speaker->client) ||
            kelp_dice_once_in(&speaker->dice, CONNECTED)) {
            connect_again(speaker);
        }
        if (!speaker->client || !kelp_http2_alive(speaker->client)) {
            speaker->counts.messages++; /* counts, though there is no connection */
            continue;
        }
        struct talk *talk = &speaker->talks[below(speaker, STREAMS)];
        if (!talk->method) {
            open_talk(speaker, talk);
        }
        bool first = talk->said == 0;
        say(speaker, talk);
        if (first && !talk->method->unary) { /* more is accepted only after the hello */
            kelp_http2_await(speaker->client, talk->stream, 1, HELLO_MS);
        }
        if (kelp_dice_once_in(&speaker->dice, 24)) {
            end_talk(speaker, talk);
        }
        bool waits = kelp_dice_once_in(&speaker->dice, 4); /* to learn from answers */
        kelp_http2_run(speaker->client, 0, waits ? WAIT_MS : 0);
        hear(speaker);
    }
}

/* ---- life ----------------------------------------------------------------------------------- */

struct kelp_speaker *kelp_speaker_open(const struct kelp_speaker_options *options)
{
    struct kelp_speaker *speaker = calloc(1, sizeof(*speaker));

    if (speaker) {
        speaker->options = *options;
        speaker->dice.random.state = options->seed * 2 + 1;
        speaker->dice.texts = options->texts;
        speaker->dice.text_count = options->text_count;
    }
    return speaker;
}

void kelp_speaker_close(struct kelp_speaker *speaker)
{
    if (speaker) {
        kelp_http2_close(speaker->client);
        kelp_dice_fini(&speaker->dice);
        free(speaker);
    }
}

struct kelp_dice *kelp_speaker_dice(struct kelp_speaker *speaker)
{
    return &speaker->dice;
}

struct kelp_speaker_counts kelp_speaker_counts(const struct kelp_speaker *speaker)
{
    return speaker->counts;
}
