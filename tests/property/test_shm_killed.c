/*
 * Two processes exchange messages as fast as they can, and one of them is killed at a drawn moment:
 * the other one sees the end, gets back all that it lent, and waits for nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/tensors/philox.h"
#include "tests/lib/shm_puppet.h"
#include "tests/lib/suite.h"

#define SEEDS       60
#define AREA_BYTES  (64u << 10)
#define MESSAGE_MAX (1u << 20)
#define PATIENCE_MS 30000

/* Exit statuses of a process. */
enum { SAW_THE_END = 10, WAS_WRONG, WAITED_TOO_LONG };

struct side {
    struct kelp_shm_channel *channel;
    struct kelp_shm_area *area;
    uint64_t lent, returned;
    uint64_t draws; /* so far */
    int told;       /* a byte for each message that came; -1: nobody counts */
};

static void on_done(void *user, bool read)
{
    struct side *side = user;

    (void)read;
    side->returned++;
}

static uint32_t draw(struct side *side, int seed, uint32_t below)
{
    uint32_t words[4];

    kelp_philox((uint64_t)seed, KELP_PHILOX_TEST, 1, side->draws++, words);
    return words[0] % below;
}

/* A new area at times, so that descriptors are under way too. */
static void maybe_new_area(struct side *side, int seed)
{
    if (side->area && draw(side, seed, 20) > 0) {
        return;
    }
    if (side->area) {
        kelp_shm_area_retire(side->area);
        kelp_shm_area_unref(side->area);
        kelp_shm_channel_sweep(side->channel);
    }
    if (kelp_shm_area_create(AREA_BYTES, &side->area, NULL) != KELP_OK) {
        _exit(WAS_WRONG);
    }
    memset(kelp_shm_area_bytes(side->area), 0x5a, AREA_BYTES);
}

static kelp_status send_some(struct side *side, int seed)
{
    uint8_t head[3000];
    struct kelp_shm_part parts[2] = {{.bytes = head, .length = 1 + draw(side, seed, 2999)}};

    maybe_new_area(side, seed);
    memset(head, 0x5a, parts[0].length);
    parts[1] = (struct kelp_shm_part){.bytes = kelp_shm_area_bytes(side->area),
                                      .length = draw(side, seed, AREA_BYTES),
                                      .area = side->area};
    kelp_status status = kelp_shm_channel_send(side->channel, parts, 2, on_done, side, NULL);
    side->lent += status == KELP_OK ? 1 : 0;
    return status;
}

/* Each byte was written before it was sent. */
static void check_message(const struct kelp_shm_message *message)
{
    for (size_t i = 0; i < kelp_shm_message_part_count(message); i++) {
        const struct kelp_shm_bytes part = kelp_shm_message_part(message, i);
        for (size_t at = 0; at < part.length; at += 97) {
            if (part.bytes[at] != 0x5a) {
                _exit(WAS_WRONG);
            }
        }
    }
}

/* Until the end of the channel. KELP_ERR_CLOSED is how it should end. */
static kelp_status exchange(struct side *side, int seed)
{
    for (;;) {
        struct kelp_shm_message *message = NULL;
        kelp_status status = send_some(side, seed);
        if (status != KELP_OK && status != KELP_ERR_BUSY) {
            return status;
        }
        status = kelp_shm_channel_receive(side->channel, &message, NULL);
        if (status == KELP_OK) {
            check_message(message);
            kelp_shm_message_release(message);
            if (side->told >= 0 && write(side->told, "x", 1) < 0 && errno != EAGAIN) {
                _exit(WAS_WRONG);
            }
        } else if (status != KELP_ERR_BUSY) {
            return status;
        } else if (!kelp_shm_pair_wait(side->channel, PATIENCE_MS)) {
            _exit(WAITED_TOO_LONG);
        }
    }
}

static _Noreturn void run_side(int socket, int seed, int told)
{
    struct side side = {.told = told};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (kelp_shm_channel_open(socket, MESSAGE_MAX, &side.channel, NULL) != KELP_OK) {
        _exit(SAW_THE_END); /* the other one was killed before */
    }
    kelp_status status = exchange(&side, seed);
    if (status != KELP_ERR_CLOSED) {
        _exit(WAS_WRONG);
    }
    kelp_shm_channel_close(side.channel);
    _exit(side.lent == side.returned ? SAW_THE_END : WAS_WRONG);
}

/* Some time passes: so many messages are received, or a while if none is. */
static void pass_time(int counted, unsigned messages)
{
    struct pollfd readable = {.fd = counted, .events = POLLIN};
    char bytes[64];

    while (messages > 0 && poll(&readable, 1, PATIENCE_MS) > 0) {
        ssize_t count = read(counted, bytes, messages < 64 ? messages : 64);
        ck_assert_int_gt(count, 0);
        messages -= (unsigned)count;
    }
    ck_assert_uint_eq(messages, 0);
}

KELP_CASE("killed", .timeout_s = 120)

KELP_LOOP_TEST(one_is_killed, 0, SEEDS)
{
    static const unsigned most[] = {1, 4, 100, 2000};
    struct side dice = {.told = -1};
    const int seed = kelp_suite_seed() >= 0 ? kelp_suite_seed() : _i;
    const unsigned messages = draw(&dice, seed + 1000, most[seed % 4]);
    const int victim = (int)draw(&dice, seed + 1000, 2);
    pid_t pids[2];
    int sockets[2], counted[2], status = 0;

    kelp_shm_pair_of_sockets(sockets);
    ck_assert_int_eq(pipe2(counted, O_CLOEXEC), 0);
    ck_assert_int_eq(fcntl(counted[1], F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        ck_assert_int_ge(pids[i], 0);
        if (pids[i] == 0) {
            (void)close(sockets[1 - i]);
            run_side(sockets[i], 2 * seed + i, i == 0 ? counted[1] : -1);
        }
    }
    (void)close(sockets[0]);
    (void)close(sockets[1]);
    pass_time(counted[0], messages);
    ck_assert_int_eq(kill(pids[victim], SIGKILL), 0);
    ck_assert_int_eq(waitpid(pids[victim], &status, 0), pids[victim]);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(waitpid(pids[1 - victim], &status, 0), pids[1 - victim]);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == SAW_THE_END,
                  "seed %d: the one that was left ended with %d", seed, status);
    (void)close(counted[0]);
    (void)close(counted[1]);
}
