/*
 * The other side of a channel through shared memory, as an input of commands: whatever it writes,
 * says and claims, this side refuses it or takes a message of which every byte can be read.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/fuzz.h"
#include "tests/lib/shm_puppet.h"

#define INPUTS 10000

/* Commands: a letter, and what follows it. */
#define GREET   "g"
#define RECEIVE "r"
#define PUBLISH "p"
#define AREA    "a" /* passed as area 3, of 8192 bytes */
#define PUT     "w" /* a length, then so many bytes into the ring */
#define NOTE    "n" /* which descriptor, then a note */
#define SENT    "s" /* 8 bytes: the number */
#define TAKEN   "t"
#define SEND    "c" /* this side sends something */
#define FREE    "f" /* it sends something that lies in an area */

#define U32(value) (value) & 0xff, (value) >> 8 & 0xff, (value) >> 16 & 0xff, (value) >> 24 & 0xff
#define U64(value) U32(value), 0, 0, 0, 0

/* A copied message of five bytes; one that lies in an area; a drop; notes. */
static const uint8_t copied[] = {'g',    'w',    48,     U32(1), U32(5), U32(UINT32_MAX),
                                 U32(0), U32(0), U32(0), U64(0), U64(5), 'h',
                                 'e',    'l',    'l',    'o',    0,      0,
                                 0,      'p',    'r',    'r',    'c',    'f'};
static const uint8_t shared[] = {'g',    'a',    'w',    40,     U32(1),   U32(0),
                                 U32(7), U32(1), U32(3), U32(0), U64(100), U64(8092),
                                 'p',    'r',    'f',    'r'};
static const uint8_t dropped[] = {'g',    'a', 'r', 'w', 16, U32(0), U32(0), U32(UINT32_MAX),
                                  U32(3), 'p', 'r', 'a', 'r'};
static const uint8_t notes[] = {'n',
                                1,
                                U32(1),
                                U32(1),
                                U64(KELP_SHM_PAGE_BYTES),
                                'r',
                                'n',
                                1,
                                U32(2),
                                U32(9),
                                U64(KELP_SHM_PAGE_BYTES),
                                'r',
                                'n',
                                0,
                                U32(3),
                                U32(0),
                                U64(0),
                                'r'};
static const uint8_t numbers[] = {'g', 'r',     'c', 't', U64(8),  'c',
                                  's', U64(32), 'r', 't', U64(48), 'c'};
static const struct kelp_fuzz_seed seeds[] = {{copied, sizeof(copied)},
                                              {shared, sizeof(shared)},
                                              {dropped, sizeof(dropped)},
                                              {notes, sizeof(notes)},
                                              {numbers, sizeof(numbers)}};
static const char *const words[] = {GREET,
                                    RECEIVE,
                                    PUBLISH,
                                    AREA RECEIVE,
                                    PUT,
                                    NOTE,
                                    SENT,
                                    TAKEN,
                                    SEND,
                                    FREE,
                                    "\xff\xff\xff\xff",
                                    "\xff\xff\xff\xff\xff\xff\xff",
                                    "\x01\x01",
                                    "\x03",
                                    "\x20",
                                    "w\x10",
                                    "w\x28",
                                    "w\x30"};

struct input {
    const uint8_t *bytes;
    size_t left;
};

static bool take(struct input *input, void *to, size_t count)
{
    if (input->left < count) {
        input->left = 0;
        return false;
    }
    memcpy(to, input->bytes, count);
    input->bytes += count;
    input->left -= count;
    return true;
}

static struct kelp_shm_puppet puppet;
static struct kelp_shm_area *ours, *theirs;
static volatile uint64_t sum; /* so that bytes are read */

static void put(struct input *input)
{
    uint8_t count = 0;
    uint8_t bytes[UINT8_MAX];

    if (take(input, &count, 1) && take(input, bytes, count)) {
        kelp_shm_puppet_put(&puppet, bytes, count);
    }
}

static void say(struct input *input)
{
    uint8_t which = 0;
    uint8_t note[sizeof(struct kelp_shm_note)];

    if (take(input, &which, 1) && take(input, note, sizeof(note))) {
        const int fds[] = {-1, kelp__shm_area_fd(puppet.own), kelp__shm_area_fd(theirs),
                           puppet.socket};
        struct kelp_shm_note said;
        memcpy(&said, note, sizeof(said));
        kelp_shm_puppet_note(&puppet, said.kind, said.value, said.length, fds[which % 4]);
    }
}

/* "": go on. NULL: refused. */
static const char *receive(void)
{
    struct kelp_error error = {.text = ""};
    struct kelp_shm_message *message = NULL;

    kelp_shm_channel_wake(puppet.channel);
    kelp_status status = kelp_shm_channel_receive(puppet.channel, &message, &error);
    if (status == KELP_ERR_BUSY) {
        return "";
    }
    if (status != KELP_OK) {
        return error.text[0] ? NULL : "refused without a word";
    }
    if (kelp_shm_message_length(message) > KELP_SHM_PUPPET_MESSAGE_MAX) {
        return "longer than it may be";
    }
    for (size_t i = 0; i < kelp_shm_message_part_count(message); i++) {
        const struct kelp_shm_bytes part = kelp_shm_message_part(message, i);
        for (size_t at = 0; at < part.length; at++) {
            sum += part.bytes[at];
        }
    }
    kelp_shm_message_release(message);
    return "";
}

static const char *send_part(struct kelp_shm_area *area)
{
    struct kelp_error error = {.text = ""};
    const struct kelp_shm_part part = {
        .bytes = area ? kelp_shm_area_bytes(area) : "mine", .length = 4, .area = area};
    kelp_status status = kelp_shm_channel_send(puppet.channel, &part, 1, NULL, NULL, &error);

    if (status == KELP_OK || status == KELP_ERR_BUSY) {
        return "";
    }
    return error.text[0] ? NULL : "not sent without a word";
}

static const char *obey(uint8_t command, struct input *input)
{
    uint64_t number = 0;

    switch (command) {
    case 'g':
        kelp_shm_puppet_greet(&puppet);
        return "";
    case 'a':
        kelp_shm_puppet_note(&puppet, KELP_SHM_NOTE_AREA, 3, 8192, kelp__shm_area_fd(theirs));
        return "";
    case 'w':
        put(input);
        return "";
    case 'p':
        kelp_shm_puppet_publish(&puppet);
        return "";
    case 'n':
        say(input);
        return "";
    case 's':
    case 't':
        if (take(input, &number, sizeof(number))) {
            atomic_store(command == 's' ? &puppet.page->sent : &puppet.page->taken, number);
        }
        return "";
    case 'c':
    case 'f':
        return send_part(command == 'f' ? ours : NULL);
    default:
        return receive();
    }
}

static const char *play(const uint8_t *bytes, size_t count)
{
    struct input input = {.bytes = bytes, .left = count};
    const char *result = "";
    uint8_t command = 0;

    kelp_shm_puppet_open(&puppet);
    for (unsigned i = 0; i < 100 && result && !result[0] && take(&input, &command, 1); i++) {
        result = obey(command, &input);
    }
    kelp_shm_puppet_close(&puppet);
    return result && result[0] ? result : NULL;
}

static void setup(void)
{
    ck_assert_int_eq(kelp_shm_area_create(8192, &ours, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_area_create(8192, &theirs, NULL), KELP_OK);
}

static void teardown(void)
{
    kelp_shm_area_unref(ours);
    kelp_shm_area_unref(theirs);
}

KELP_CASE("shm", .timeout_s = 120, .setup = setup, .teardown = teardown)

KELP_FUZZ_TEST(other_side, INPUTS, seeds, words, play)
