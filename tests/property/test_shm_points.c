/*
 * A worker and a shard attach, push, pull and close through shared memory, and one of them is
 * killed by SIGKILL between any two things that the other could notice: before and behind each of
 * its system calls, and before each write into memory that the other has mapped. Whatever the
 * moment, the one that is left sees the end, has only whole messages with the right bytes, gets
 * back all that it lent, and waits for nothing.
 *
 * The one to be killed is traced. Its own page is read-only for itself: each write traps, is a
 * point, and is then carried out as a single step. Two rounds of messages are some 200 points of
 * each side, and it is killed at every one of them. KELP_SHM_ROUNDS=N makes N rounds.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "common/shm/shm_channel_internal.h"
#include "common/shm/shm_socket.h"
#include "tests/lib/shm_puppet.h"
#include "tests/lib/suite.h"

#define ROUNDS      2 /* messages each way; each lies in a new area, and the old one is dropped */
#define ROUNDS_MAX  1000
#define AREA_BYTES  5000u
#define HEAD_BYTES  120u
#define MESSAGE_MAX (1u << 20)
#define PATIENCE_MS 20000
#define TRAP_FLAG   0x100

enum phase { ATTACH, PUSH, PULL, CLOSE, PHASES };
static const char *const phase_names[PHASES] = {"attach", "push", "pull", "close"};

/* Exit statuses of a side. */
enum { FINISHED = 10, SAW_THE_END, WAS_WRONG, WAITED_TOO_LONG, STEPS_WERE_WRONG };

enum { WORKER, SHARD, SIDES };

static char folder[] = "/tmp/kelp-test-XXXXXX";
static char path[64];
static int *phase_now; /* of the one that is traced; shared with it */
static int rounds = ROUNDS;

struct side {
    struct kelp_shm_channel *channel;
    struct kelp_shm_area *area;
    bool traced;
    unsigned lent, returned;
};

/* ---- each write into its own page is a step ---------------------------------------------------
 */

static void *guarded; /* the page, with its ring */

static void guard(int protection)
{
    if (mprotect(guarded, KELP_SHM_PAGE_BYTES, protection) != 0) {
        _exit(STEPS_WERE_WRONG);
    }
}

/* The write that follows is let through, as one instruction. */
static void on_write(int signal_number, siginfo_t *about, void *context)
{
    ucontext_t *registers = context;
    const char *at = about->si_addr;

    if (at < (char *)guarded || at >= (char *)guarded + KELP_SHM_PAGE_BYTES) {
        (void)signal(signal_number, SIG_DFL); /* a mistake: it dies of the next */
        return;
    }
    guard(PROT_READ | PROT_WRITE);
    registers->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_step(int signal_number, siginfo_t *about, void *context)
{
    ucontext_t *registers = context;

    (void)signal_number;
    (void)about;
    guard(PROT_READ);
    registers->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

static void guard_page(const struct side *side)
{
    const struct sigaction write = {.sa_sigaction = on_write, .sa_flags = SA_SIGINFO | SA_NODEFER};
    const struct sigaction step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO | SA_NODEFER};

    if (side->traced) {
        guarded = side->channel->line->page;
        (void)sigaction(SIGSEGV, &write, NULL);
        (void)sigaction(SIGTRAP, &step, NULL);
        guard(PROT_READ);
    }
}

/* ---- a side -----------------------------------------------------------------------------------
 */

static void enter(const struct side *side, enum phase phase)
{
    if (side->traced) {
        *phase_now = (int)phase;
    }
}

static void on_done(void *user, bool read)
{
    struct side *side = user;

    (void)read;
    side->returned++;
}

/* The other side has gone: what was lent has come back. */
static _Noreturn void leave(struct side *side, int status)
{
    enter(side, CLOSE);
    kelp_shm_channel_close(side->channel);
    kelp_shm_area_unref(side->area);
    _exit(side->lent == side->returned ? status : WAS_WRONG);
}

static void wait_for_more(struct side *side)
{
    if (!kelp_shm_pair_wait(side->channel, PATIENCE_MS)) {
        _exit(WAITED_TOO_LONG);
    }
}

static void judge(struct side *side, kelp_status status)
{
    if (status == KELP_ERR_CLOSED) {
        leave(side, SAW_THE_END);
    }
    if (status != KELP_OK && status != KELP_ERR_BUSY) {
        _exit(WAS_WRONG);
    }
}

static struct kelp_shm_message *receive(struct side *side)
{
    struct kelp_shm_message *message = NULL;

    for (;;) {
        const kelp_status status = kelp_shm_channel_receive(side->channel, &message, NULL);
        judge(side, status);
        if (status == KELP_OK) {
            return message;
        }
        wait_for_more(side);
    }
}

static bool is_filled(struct kelp_shm_bytes part, size_t length, int byte)
{
    size_t right = 0;

    while (right < part.length && part.bytes[right] == (uint8_t)byte) {
        right++;
    }
    return part.length == length && right == length;
}

/* Round `round`, whole and as it was sent. */
static void pull(struct side *side, int round)
{
    enter(side, PULL);
    struct kelp_shm_message *message = receive(side);
    if (kelp_shm_message_part_count(message) != 2 ||
        !is_filled(kelp_shm_message_part(message, 0), HEAD_BYTES, 'a' + round % 26) ||
        !is_filled(kelp_shm_message_part(message, 1), AREA_BYTES, 'A' + round % 26)) {
        _exit(WAS_WRONG);
    }
    kelp_shm_message_release(message);
}

static void new_area(struct side *side, int round)
{
    if (side->area) {
        kelp_shm_area_retire(side->area);
        kelp_shm_area_unref(side->area);
        kelp_shm_channel_sweep(side->channel);
    }
    if (kelp_shm_area_create(AREA_BYTES, &side->area, NULL) != KELP_OK) {
        _exit(WAS_WRONG);
    }
    memset(kelp_shm_area_bytes(side->area), 'A' + round % 26, AREA_BYTES);
}

static void push(struct side *side, int round)
{
    uint8_t head[HEAD_BYTES];

    enter(side, PUSH);
    new_area(side, round);
    memset(head, 'a' + round % 26, sizeof(head));
    const struct kelp_shm_part parts[] = {
        {.bytes = head, .length = sizeof(head)},
        {.bytes = kelp_shm_area_bytes(side->area), .length = AREA_BYTES, .area = side->area}};
    for (;;) {
        struct kelp_shm_message *none = NULL;
        kelp_status status = kelp_shm_channel_send(side->channel, parts, 2, on_done, side, NULL);
        judge(side, status);
        if (status == KELP_OK) {
            side->lent++;
            return;
        }
        status = kelp_shm_channel_receive(side->channel, &none, NULL); /* its hello */
        judge(side, status == KELP_OK ? KELP_ERR_FORMAT : status);
        wait_for_more(side);
    }
}

/* The worker's connection; whoever waits in vain sees the worker's end, at `worker_lives`. */
static int take_worker(int listener, int worker_lives)
{
    struct pollfd items[] = {{.fd = listener, .events = POLLIN}, {.fd = worker_lives}};
    int socket = -1;

    while (kelp_shm_accept(listener, &socket, NULL) != KELP_OK) {
        if (poll(items, 2, PATIENCE_MS) == 0) {
            _exit(WAITED_TOO_LONG);
        }
        if (items[1].revents != 0 && (items[0].revents & POLLIN) == 0) {
            _exit(SAW_THE_END);
        }
    }
    return socket;
}

static _Noreturn void run_side(int which, bool traced, int listener, int worker_lives)
{
    struct side side = {.traced = traced};
    int socket = -1;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (traced && (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0 || raise(SIGSTOP) != 0)) {
        _exit(STEPS_WERE_WRONG);
    }
    enter(&side, ATTACH);
    if (which == SHARD) {
        socket = take_worker(listener, worker_lives);
    } else if (kelp_shm_connect(path, &socket, NULL) != KELP_OK) {
        _exit(SAW_THE_END);
    }
    if (kelp_shm_channel_open(socket, MESSAGE_MAX, &side.channel, NULL) != KELP_OK) {
        _exit(SAW_THE_END);
    }
    guard_page(&side);
    for (int round = 0; round < rounds; round++) {
        if (which == WORKER) {
            push(&side, round);
            pull(&side, round);
        } else {
            pull(&side, round);
            push(&side, round);
        }
    }
    if (which == SHARD) { /* the worker ends it */
        (void)receive(&side);
        _exit(WAS_WRONG);
    }
    leave(&side, FINISHED);
}

/* ---- the one who kills ------------------------------------------------------------------------
 */

struct ended {
    unsigned points; /* that were seen */
    bool killed;     /* at the last of them */
    int phase;
    int exit_status; /* of the one that was left; of both, where none was killed */
};

static bool is_of_the_steps(pid_t pid)
{
    struct user_regs_struct registers;

    if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) != 0) {
        return false;
    }
    return registers.orig_rax == SYS_mprotect || registers.orig_rax == SYS_rt_sigreturn;
}

/* Follow it, and kill it at point `at` (0: nowhere). */
static void follow(pid_t pid, unsigned at, struct ended *ended)
{
    int status = 0, signal_number = 0;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSTOPPED(status));
    ck_assert_int_eq(
        ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
    for (;;) {
        ck_assert_int_eq(ptrace(PTRACE_SYSCALL, pid, NULL, signal_number), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        if (!WIFSTOPPED(status)) {
            break;
        }
        const bool call = WSTOPSIG(status) == (SIGTRAP | 0x80);
        signal_number = call ? 0 : WSTOPSIG(status);
        if (call ? is_of_the_steps(pid) : signal_number != SIGSEGV) {
            continue;
        }
        if (++ended->points == at) {
            ended->killed = true;
            ended->phase = *phase_now;
            ck_assert_int_eq(kill(pid, SIGKILL), 0);
            ck_assert_int_eq(waitpid(pid, &status, 0), pid);
            break;
        }
    }
    ck_assert_msg(ended->killed ? WIFSIGNALED(status) : WIFEXITED(status),
                  "the one that was traced ended with %d after %u points", status, ended->points);
    if (!ended->killed) {
        ended->exit_status = WEXITSTATUS(status);
    }
}

static struct ended run_both(int victim, unsigned at)
{
    struct ended ended = {0};
    int listener, lives[2], status = 0;
    pid_t pids[SIDES];

    ck_assert_int_eq(kelp_shm_listen(path, &listener, NULL), KELP_OK);
    ck_assert_int_eq(pipe(lives), 0);
    for (int which = SHARD; which >= WORKER; which--) {
        pids[which] = fork();
        ck_assert_int_ge(pids[which], 0);
        if (pids[which] == 0) {
            (void)close(lives[which == SHARD ? 1 : 0]);
            run_side(which, which == victim, listener, lives[0]);
        }
        if (which == SHARD) {
            (void)close(listener); /* it is the shard's alone */
        }
    }
    (void)close(lives[0]);
    (void)close(lives[1]);
    follow(pids[victim], at, &ended);
    ck_assert_int_eq(waitpid(pids[1 - victim], &status, 0), pids[1 - victim]);
    const int left = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ck_assert_msg(left == SAW_THE_END || left == FINISHED,
                  "%s killed at point %u (%s): the other one ended with %d",
                  victim == WORKER ? "the worker" : "the shard", at, phase_names[ended.phase],
                  left);
    (void)unlink(path);
    return ended;
}

static void prepare(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    kelp_suite_skip("a sanitizer has the traps that this takes");
#endif
}

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/meet", folder);
    const char *wanted = getenv("KELP_SHM_ROUNDS");
    rounds = wanted ? (int)strtol(wanted, NULL, 10) : ROUNDS;
    ck_assert(rounds >= ROUNDS && rounds <= ROUNDS_MAX);
    phase_now =
        mmap(NULL, sizeof(*phase_now), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(phase_now != MAP_FAILED);
}

static void teardown(void)
{
    ck_assert_int_eq(munmap(phase_now, sizeof(*phase_now)), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

KELP_SUITE(.before = prepare)
KELP_CASE("points", .timeout_s = 600, .setup = setup, .teardown = teardown)

/* Each phase is met, and at each point the other side ends as it should. */
KELP_LOOP_TEST(killed_at_each_point, WORKER, SIDES)
{
    const struct ended whole = run_both(_i, 0);
    unsigned killed[PHASES] = {0}, sum = 0;

    ck_assert_int_eq(whole.exit_status, _i == WORKER ? FINISHED : SAW_THE_END);
    ck_assert_uint_gt(whole.points, 100);
    for (unsigned at = 1;; at++) {
        const struct ended ended = run_both(_i, at);
        if (!ended.killed) {
            break; /* it had fewer points this time */
        }
        killed[ended.phase]++;
        sum++;
    }
    printf("%s: killed at %u points:", _i == WORKER ? "worker" : "shard", sum);
    for (int phase = 0; phase < PHASES; phase++) {
        printf(" %s %u", phase_names[phase], killed[phase]);
        ck_assert_uint_gt(killed[phase], 0);
    }
    printf("\n");
}
