/* What one peer can make a real kelp-ps hold or do, before its hello and after. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "tests/lib/attack/http2_client.h"
#include "tests/lib/cluster/shard_worker.h"
#include "tests/lib/suite.h"

#define ELEMENTS    5000 /* four partitions, the last one shorter */
#define SAMPLES     16   /* two steps of 8 an epoch */
#define STRANGERS   120
#define HALF        (12u << 20) /* bytes that a message of a stranger announces */
#define RSS_MAX_KIB (200L << 10)
#define IDLERS      8     /* workers who ask and do not read */
#define ASKED       40000 /* times */

#define EXCHANGE "/kelp.v1.ParameterServer/Exchange"
#define CONTROL  "/kelp.v1.ParameterServer/Control"
#define STATUS   "/kelp.v1.ParameterServer/Status"

static struct shard_fixture fixture;
static struct shard_stream control;
static uint8_t bytes[HALF];

static void set_up(void)
{
    static const char *const settings[] = {"train.epochs", "1", NULL};

    shard_fixture_start(&fixture, settings, ELEMENTS, SAMPLES);
    shard_stream_open(&control, &fixture, "Control");
    shard_load(&control, 1);
}

static void tear_down(void)
{
    shard_stream_close(&control);
    shard_fixture_stop(&fixture);
}

KELP_SUITE(.before = etcd_fixture_require)

/* The most memory that the shard has had; 0 where memory says nothing. */
static long rss_max_kib(void)
{
    char path[64];
    char line[256];
    long kib = 0;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#endif
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)kelp_process_pid(fixture.process));
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "VmHWM: %ld", &kib) != 1) {
    }
    if (file) {
        (void)fclose(file);
    }
    ck_assert_int_gt(kib, 0);
    return kib;
}

static struct kelp_http2 *open_stranger(bool reads_little)
{
    struct kelp_http2_target target = {.address = fixture.address, .reads_little = reads_little};
    struct kelp_http2 *stranger = kelp_http2_open(&target);

    ck_assert_ptr_nonnull(stranger);
    return stranger;
}

/* A worker is served as ever. */
static void assert_serves(void)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    float *weights = shard_worker_new_flat(&fixture);

    shard_worker_open(&worker, &fixture, 1, weights, &word);
    shard_stream_close(&worker);
    free(weights);
}

KELP_CASE("strangers", .timeout_s = 120, .setup = set_up, .teardown = tear_down)

/* Messages that never end, on many connections: the shard keeps a few bytes of each. */
KELP_TEST(half_messages)
{
    struct kelp_http2 *strangers[STRANGERS];

    for (size_t i = 0; i < STRANGERS; i++) {
        strangers[i] = open_stranger(false);
        uint32_t stream = kelp_http2_call(strangers[i], i % 2 == 0 ? EXCHANGE : STATUS);
        (void)kelp_http2_send(strangers[i], stream, bytes, HALF - 1, HALF);
    }
    assert_serves();
    long kib = rss_max_kib();
    ck_assert_msg(kib < RSS_MAX_KIB, "the shard had %ld KiB", kib);
    for (size_t i = 0; i < STRANGERS; i++) {
        kelp_http2_close(strangers[i]);
    }
}

/* Who says nothing, or half a word, is not waited for. */
KELP_TEST(silence_ends)
{
    static const struct {
        const char *path;
        size_t sent; /* of 1000 bytes */
    } calls[] = {{EXCHANGE, 0}, {EXCHANGE, 500}, {CONTROL, 0}, {STATUS, 0}, {STATUS, 500}};
    struct kelp_http2 *strangers[KELP_ARRAY_COUNT(calls)];
    uint32_t streams[KELP_ARRAY_COUNT(calls)];
    uint64_t began_ms = kelp_clock_ms();

    for (size_t i = 0; i < KELP_ARRAY_COUNT(calls); i++) {
        strangers[i] = open_stranger(false);
        streams[i] = kelp_http2_call(strangers[i], calls[i].path);
        ck_assert(calls[i].sent == 0 ||
                  kelp_http2_send(strangers[i], streams[i], bytes, calls[i].sent, 1000));
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(calls); i++) {
        kelp_http2_run(strangers[i], streams[i], SHARD_WAIT_MS);
        ck_assert_msg(kelp_http2_answer(strangers[i], streams[i]).ended, "call %zu", i);
        kelp_http2_close(strangers[i]);
    }
    ck_assert_uint_ge(kelp_clock_ms() - began_ms, KELP_RPC_HELLO_MS - 100);
}

/* ---- after the hello --------------------------------------------------------------------------
 */

KELP_CASE("workers", .timeout_s = 120, .setup = set_up, .teardown = tear_down)

/* A message of 900,000 empty pulls is refused before it takes memory. */
KELP_TEST(empty_pulls)
{
    static uint8_t pulls[1800000];
    struct shard_stream worker;
    struct shard_request request;

    for (size_t i = 0; i < sizeof(pulls); i += 2) {
        pulls[i] = 0x2a; /* ExchangeRequest.pull, of no bytes */
    }
    shard_stream_open(&worker, &fixture, "Exchange");
    shard_request_init(&request, 1);
    shard_request_hello(&request, &fixture);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    long before_kib = rss_max_kib();
    shard_stream_send_raw(&worker, pulls, sizeof(pulls));
    shard_stream_await_closed(&worker);
    ck_assert_int_eq(worker.status, KELP_ERR_LIMIT);
    shard_stream_close(&worker);
    ck_assert_int_lt(rss_max_kib() - before_kib, 20L << 10);
    assert_serves();
}

static void greet(struct kelp_http2 *peer, uint32_t stream)
{
    struct shard_request request;

    shard_request_init(&request, 1);
    shard_request_hello(&request, &fixture);
    ck_assert(kelp_http2_send_message(peer, stream, &request.message.base));
}

/* Answers that nobody reads wait, but not without end: those streams are ended, and others served.
 */
KELP_TEST(answers_nobody_reads)
{
    struct kelp_http2 *idlers[IDLERS];
    uint32_t streams[IDLERS];
    struct shard_request request;

    for (size_t i = 0; i < IDLERS; i++) {
        idlers[i] = open_stranger(true);
        streams[i] = kelp_http2_call(idlers[i], EXCHANGE);
        greet(idlers[i], streams[i]);
        kelp_http2_run(idlers[i], 0, 1);
    }
    shard_request_init(&request, 1);
    (void)shard_request_pull(&request, 0, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
    for (size_t asked = 0; asked < ASKED; asked++) {
        for (size_t i = 0; i < IDLERS; i++) {
            (void)kelp_http2_send_message(idlers[i], streams[i], &request.message.base);
            if (asked % 500 == 0) {
                kelp_http2_run(idlers[i], 0, 1);
            }
        }
    }
    bool ended = false;
    uint64_t end_ms = kelp_clock_ms() + SHARD_WAIT_MS;
    for (size_t i = 0; !ended && kelp_clock_ms() < end_ms; i = (i + 1) % IDLERS) {
        kelp_http2_run(idlers[i], streams[i], 10);
        ended = kelp_http2_answer(idlers[i], streams[i]).ended;
    }
    ck_assert(ended);
    assert_serves();
    long kib = rss_max_kib();
    ck_assert_msg(kib < RSS_MAX_KIB, "the shard had %ld KiB", kib);
    for (size_t i = 0; i < IDLERS; i++) {
        kelp_http2_close(idlers[i]);
    }
}
