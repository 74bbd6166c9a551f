/*
 * A job that trains at open ports while strangers play against it what would harm it: each attack
 * without TLS, without a certificate, with that of another job, an expired one, one of another role
 * and one for another id. Nobody is heard, the log names them, and the job ends as if it had been
 * alone. Each message is well-formed and would do what it says if its sender were believed.
 */
#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "tests/lib/attack/plays.h"
#include "tests/lib/attack/speaker.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

#define JOB         "attacked"
#define ANSWER_MS   30000 /* only reached by a failure, or at the end of the run */
#define ENDING_MS   60000
#define RSS_MAX_KIB (200L << 10)
#define SHARDS      2
#define CONNECTIONS 1300
#define STOLEN_MS   30 /* for an answer that need not come */

/* A rate that does not change, so that a step done twice or left out would be seen; and nobody is
 * lost because the machine is busy. */
static const char job_text[] = "name: " JOB "\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "failure: {detect: 60s}\n"
                               "checkpoint: {digest_steps: 5, epochs: 5}\n";

static struct kelp_run run;
static uint64_t spec_digest;
static char *plan;
static char coordinator[256];
static char shards[SHARDS][256];

/* ---- attacks -------------------------------------------------------------------------------- */

static const struct attack {
    const char *path;
    const char *role;     /* whose certificate the method asks for */
    const char *wrong;    /* another role */
    const char *other_id; /* a certificate of the role for another id; NULL: the role needs none */
    void (*play)(struct kelp_http2 *client, uint32_t stream);
} attacks[] = {
    {"/kelp.v1.Coordinator/Join", "worker", "operator", "worker-9", kelp_play_join},
    {"/kelp.v1.Coordinator/Checkpoint", "operator", "worker", NULL, kelp_play_pause_job},
    {"/kelp.v1.Coordinator/Checkpoint", "operator", "reader", NULL, kelp_play_pause_job},
    {"/kelp.v1.Coordinator/Status", "reader", "worker", NULL, kelp_play_look},
    {"/kelp.v1.ParameterServer/Control", "coordinator", "worker", "coordinator-9",
     kelp_play_open_generation},
    {"/kelp.v1.ParameterServer/Control", "coordinator", "operator", "coordinator-9",
     kelp_play_order_last},
    {"/kelp.v1.ParameterServer/Control", "coordinator", "worker", NULL, kelp_play_stay_silent},
    {"/kelp.v1.ParameterServer/Exchange", "worker", "shard", "worker-9", kelp_play_push_zeros},
    {"/kelp.v1.ParameterServer/Exchange", "worker", "coordinator", NULL, kelp_play_pull_nothing},
    {"/kelp.v1.ParameterServer/Exchange", "worker", "shard", NULL, kelp_play_send_half},
    {"/kelp.v1.ParameterServer/Status", "reader", "worker", NULL, kelp_play_look},
};

/* ---- who attacks ---------------------------------------------------------------------------- */

/* The server must have said that the certificate does not allow it; otherwise it says nothing. */
struct intruder {
    const char *what;
    bool tls;
    const char *certs; /* NULL: none */
    bool denied;
};

static bool run_ends(void)
{
    uint64_t until_ms = kelp_clock_ms() + ENDING_MS;

    while (!kelp_test_command_ended(&run.command) && kelp_clock_ms() < until_ms) {
        kelp_test_look_later();
    }
    return kelp_test_command_ended(&run.command);
}

/* False: the run was over. */
static bool play(const struct attack *attack, const struct intruder *intruder, const char *address)
{
    char certs[400];
    struct kelp_http2_target target = {.address = address, .tls = intruder->tls};

    if (intruder->certs) {
        (void)snprintf(certs, sizeof(certs), "%s/%s", run.folder, intruder->certs);
        target.certs = certs;
    }
    struct kelp_http2 *client = kelp_http2_open(&target);
    ck_assert_ptr_nonnull(client);
    uint32_t stream = kelp_http2_call(client, attack->path);
    attack->play(client, stream);
    kelp_http2_run(client, stream, ANSWER_MS);
    struct kelp_http2_answer answer = kelp_http2_answer(client, stream);
    kelp_http2_close(client);
    ck_assert_msg(answer.grpc_status != 0 && (intruder->denied || answer.messages == 0),
                  "%s %s: it was heard", attack->path, intruder->what);
    if (answer.ended && answer.kelp_status == (intruder->denied ? KELP_ERR_DENIED : KELP_OK)) {
        return true;
    }
    ck_assert_msg(run_ends(), "%s %s: status %d, gRPC's %d, %sended", attack->path, intruder->what,
                  answer.kelp_status, answer.grpc_status, answer.ended ? "" : "not ");
    return false;
}

static bool play_by_all(const struct attack *attack, const char *address)
{
    char other[64];
    char expired[64];
    char wrong[64];

    (void)snprintf(other, sizeof(other), "other/%s", attack->role);
    (void)snprintf(expired, sizeof(expired), "expired/%s", attack->role);
    (void)snprintf(wrong, sizeof(wrong), "certs/%s", attack->wrong);
    const struct intruder intruders[] = {
        {"without TLS", false, NULL, false},
        {"without a certificate", true, NULL, false},
        {"with another authority's certificate", true, "foreign", false},
        {"with an expired certificate", true, expired, false},
        {"with another job's certificate", true, other, true},
        {"with another role's certificate", true, wrong, true},
        {"with another id's certificate", true, attack->other_id, true},
    };
    size_t count = KELP_ARRAY_COUNT(intruders) - (attack->other_id ? 0 : 1);

    for (size_t i = 0; i < count; i++) {
        if (!play(attack, &intruders[i], address)) {
            return false;
        }
    }
    return true;
}

/* One round of all attacks; false: the run was over before its end. */
static bool play_round(unsigned number)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(attacks); i++) {
        bool shard = strstr(attacks[i].path, "ParameterServer") != NULL;
        if (!play_by_all(&attacks[i], shard ? shards[(number + i) % SHARDS] : coordinator)) {
            return false;
        }
    }
    return true;
}

/* ---- stolen certificates -------------------------------------------------------------------- */

/* Of the right role and for every id of it. What they cannot do is lead, take a worker's place, or
 * make a shard large. Nothing is said of the answers: who is not refused waits in vain. */
static const struct stolen {
    const char *path;
    const char *role;
    unsigned streams;
    void (*play)(struct kelp_http2 *client, uint32_t stream);
} stolen[] = {
    {"/kelp.v1.Coordinator/Join", "worker", 1, kelp_play_join_idle},
    {"/kelp.v1.Coordinator/Join", "worker", 3, kelp_play_join},
    {"/kelp.v1.ParameterServer/Control", "coordinator", 1, kelp_play_open_generation},
    {"/kelp.v1.ParameterServer/Control", "coordinator", 1, kelp_play_order_last},
    {"/kelp.v1.ParameterServer/Control", "coordinator", 12, kelp_play_stay_silent},
    {"/kelp.v1.ParameterServer/Exchange", "worker", 1, kelp_play_pull_nothing},
    {"/kelp.v1.ParameterServer/Exchange", "worker", 4, kelp_play_send_half},
    {"/kelp.v1.ParameterServer/Exchange", "worker", 1, kelp_play_pull_unread},
    {"/kelp.v1.ParameterServer/Exchange", "worker", 1, kelp_play_flood_headers},
    {"/kelp.v1.ParameterServer/Exchange", "worker", 1, kelp_play_reset_streams},
};
static struct kelp_http2 *held[KELP_ARRAY_COUNT(stolen)];

static void let_go(void)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(held); i++) {
        kelp_http2_close(held[i]);
        held[i] = NULL;
    }
}

/* Connections stay open until the next round. */
static bool play_stolen(unsigned number)
{
    let_go();
    /* Idle members cost steps each time they join: they come in the first round alone. */
    for (size_t i = number > 0 ? 1 : 0; i < KELP_ARRAY_COUNT(stolen); i++) {
        bool shard = strstr(stolen[i].path, "ParameterServer") != NULL;
        char certs[400];
        (void)snprintf(certs, sizeof(certs), "%s/certs/%s", run.folder, stolen[i].role);
        const struct kelp_http2_target target = {.address = shard ? shards[(number + i) % SHARDS]
                                                                  : coordinator,
                                                 .tls = true,
                                                 .certs = certs};
        held[i] = kelp_http2_open(&target);
        ck_assert_ptr_nonnull(held[i]);
        for (unsigned stream = 0; stream < stolen[i].streams; stream++) {
            stolen[i].play(held[i], kelp_http2_call(held[i], stolen[i].path));
        }
        kelp_http2_run(held[i], 0, STOLEN_MS);
    }
    return true;
}

/* ---- many connections ----------------------------------------------------------------------- */

static void expect_status(const char *address)
{
    char certs[400];
    (void)snprintf(certs, sizeof(certs), "%s/certs/reader", run.folder);
    const struct kelp_http2_target target = {.address = address, .tls = true, .certs = certs};
    struct kelp_http2 *client = kelp_http2_open(&target);
    uint32_t stream = kelp_http2_call(client, "/kelp.v1.ParameterServer/Status");

    kelp_play_look(client, stream);
    kelp_http2_run(client, stream, ANSWER_MS);
    bool answered = kelp_http2_answer(client, stream).messages == 1;
    kelp_http2_close(client);
    ck_assert_msg(answered || run_ends(), "a shard does not answer after %d connections",
                  CONNECTIONS);
}

/* All at a time, as many as this process may have; they say nothing. */
static bool connect_many(unsigned number)
{
    static int fds[CONNECTIONS];
    struct sockaddr_in to = {.sin_family = AF_INET};
    const char *address = shards[number % SHARDS];

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    for (size_t i = 0; i < CONNECTIONS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ck_assert_int_ge(fds[i], 0);
        (void)connect(fds[i], (const struct sockaddr *)&to, sizeof(to)); /* in progress */
    }
    for (size_t i = 0; i < CONNECTIONS; i++) {
        (void)close(fds[i]);
    }
    expect_status(address);
    return true;
}

static bool play_stolen_and_connect(unsigned number)
{
    return play_stolen(number) && connect_many(number);
}

static void allow_descriptors(void)
{
    struct rlimit limit = {0};

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_uint_gt(limit.rlim_cur, CONNECTIONS + 100);
}

/* ---- the run -------------------------------------------------------------------------------- */

static void issue(const char *out, const char *name, int days)
{
    kelp_test_issue(&(struct kelp_test_issue){run.folder, "authority", out, name, NULL, days});
}

static const char *const roles[] = {"coordinator", "shard", "worker", "operator", "reader"};

static void issue_all(void)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        char out[64];
        char name[64];
        (void)snprintf(out, sizeof(out), "certs/%s", roles[i]);
        (void)snprintf(name, sizeof(name), JOB "/%s", roles[i]);
        issue(out, name, 5);
        (void)snprintf(out, sizeof(out), "expired/%s", roles[i]);
        issue(out, name, -1);
        (void)snprintf(out, sizeof(out), "other/%s", roles[i]);
        (void)snprintf(name, sizeof(name), "other/%s", roles[i]);
        issue(out, name, 5);
    }
    issue("worker-9", JOB "/worker/worker-9", 5);
    issue("coordinator-9", JOB "/coordinator/coordinator-9", 5);
    kelp_test_issue(
        &(struct kelp_test_issue){run.folder, "elsewhere", "foreign", JOB "/operator", NULL, 5});
}

static void setup(void)
{
    etcd_fixture_require();
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    kelp_rpc_global_init();
    kelp_run_prepare(&run);
    kelp_test_authority(run.folder, "authority");
    kelp_test_authority(run.folder, "elsewhere");
    issue_all();
    (void)kelp_test_write(run.folder, "job.yaml", job_text);
}

static void teardown(void)
{
    free(plan);
    kelp_run_fini(&run);
    kelp_rpc_global_fini();
}

static void read_address(struct kelp_job_client *client, const char *key, char address[256])
{
    char *value = NULL;
    cJSON *json = NULL;

    ck_assert_int_eq(kelp_job_client_get(client, key, ANSWER_MS, &value, NULL), KELP_OK);
    ck_assert_int_eq(kelp_json_parse(value, strlen(value), &json, NULL), KELP_OK);
    ck_assert_int_eq(kelp_json_string(json, "address", address, 256, NULL), KELP_OK);
    cJSON_Delete(json);
    free(value);
}

static void find_servers(void)
{
    struct kelp_job_client *client = NULL;
    struct kelp_error error;

    ck_assert_msg(kelp_run_client_open(run.run_folder, &client, &error) == KELP_OK, "%s",
                  error.text);
    read_address(client, "coordinator", coordinator);
    for (unsigned i = 0; i < SHARDS; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "ps/shard-%u", i);
        read_address(client, key, shards[i]);
    }
    free(plan); /* of a run that was too short */
    ck_assert_int_eq(kelp_job_client_get(client, "plan", ANSWER_MS, &plan, NULL), KELP_OK);
    kelp_job_client_close(client);
    ck_assert_int_eq(kelp_run_spec_digest(run.run_folder, &spec_digest, NULL), KELP_OK);
    kelp_plays_name(JOB, spec_digest, plan);
}

/* The most memory that the shards have had; 0 when they are gone. */
static void expect_small_shards(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    pid_t pids[32];
    size_t count = kelp_test_command_processes(&run.command, pids, KELP_ARRAY_COUNT(pids));

    for (size_t i = 0; i < count; i++) {
        char path[64], line[256], name[64] = "";
        long kib = 0;
        (void)snprintf(path, sizeof(path), "/proc/%ld/status", (long)pids[i]);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file) && sscanf(line, "VmHWM: %ld", &kib) != 1) {
            (void)sscanf(line, "Name: %63s", name);
        }
        if (file) {
            (void)fclose(file);
        }
        ck_assert_msg(strcmp(name, "kelp-ps") != 0 || kib < RSS_MAX_KIB, "a shard had %ld KiB",
                      kib);
    }
#endif
}

/* The job in FOLDER/run, attacked until its end. Returns how many whole rounds there were. */
static unsigned train_attacked(const char *epochs, bool (*round)(unsigned number))
{
    char certs[400];
    unsigned rounds = 0;

    (void)snprintf(certs, sizeof(certs), "%s/certs", run.folder);
    const char *args[] = {"--listen", "127.0.0.1", "--certs", certs, "--set", epochs, NULL};
    (void)kelp_files_remove(run.run_folder, NULL); /* of a run that was too short */
    kelp_run_start(&run, "job.yaml", args);
    kelp_run_await_step(&run, 5);
    find_servers();
    while (!kelp_test_command_ended(&run.command) && round(rounds)) {
        expect_small_shards();
        rounds++;
    }
    kelp_run_finish(&run, 0);
    return rounds;
}

/* The same job alone, on unix sockets, in FOLDER/plain: its digest. */
static void train_alone(const char *epochs, char digest[33])
{
    const char *args[] = {"train", "job.yaml", "--run", "plain", "--set", epochs, NULL};
    struct kelp_test_command command;

    kelp_test_command_run(&command, run.folder, args, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    kelp_test_command_fini(&command);
    cJSON *result = kelp_test_read_json(run.folder, "plain/result.json");
    (void)snprintf(digest, 33, "%s", kelp_test_text(result, "digest"));
    cJSON_Delete(result);
}

static void expect_log(const char *name, const char *text)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "run/logs/%s.log", name);
    char *log = kelp_test_read(run.folder, path, NULL);
    ck_assert_msg(strstr(log, text) != NULL, "%s does not say '%s'", name, text);
    free(log);
}

/* Each kind of refusal is in the log; which of a kind is, when there are many, is not said. */
static void expect_named(void)
{
    expect_log("shard-0", "connection refused: the handshake failed");
    expect_log("coordinator-0", "connection refused: the handshake failed");
    expect_log("shard-0", "call refused method=/kelp.v1.ParameterServer/");
    expect_log("coordinator-0", "call refused method=/kelp.v1.Coordinator/");
    expect_log("shard-0", "does not allow the id 'worker-0'");
    expect_log("shard-0", "does not allow the id 'coordinator-0'");
    expect_log("coordinator-0", "does not allow the id 'worker-0'");
}

/* ---- who may not act, and speaks ------------------------------------------------------------ */

static const char *const ids[] = {"worker-0", "worker-1", "coordinator-0", "shard-0", NULL};
static struct kelp_speaker *speakers[6];
static char speaker_certs[KELP_ARRAY_COUNT(speakers)][400];

/* Readers kelp_play_look, shards may do nothing, nor may another job's worker; to shards and
 * coordinator. */
static void open_speakers(void)
{
    static const char *const paths[] = {"/kelp.v1.ParameterServer/Exchange",
                                        "/kelp.v1.ParameterServer/Control",
                                        "/kelp.v1.ParameterServer/Status",
                                        "/kelp.v1.Coordinator/Join",
                                        "/kelp.v1.Coordinator/Status",
                                        "/kelp.v1.Coordinator/Checkpoint",
                                        NULL};
    static const char *const certs[] = {"certs/reader", "certs/shard", "other/worker"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(speakers); i++) {
        (void)snprintf(speaker_certs[i], sizeof(speaker_certs[i]), "%s/%s", run.folder,
                       certs[i / 2]);
        kelp_speaker_close(speakers[i]); /* of a run that was too short */
        speakers[i] = kelp_speaker_open(&(struct kelp_speaker_options){
            .target = {i % 2 ? coordinator : shards[i / 2 % SHARDS], true, speaker_certs[i], false},
            .paths = paths,
            .ids = ids,
            .job = JOB,
            .spec_digest = spec_digest,
            .seed = i});
        ck_assert_ptr_nonnull(speakers[i]);
    }
}

static bool speak(unsigned number)
{
    if (number == 0) {
        open_speakers();
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(speakers); i++) {
        kelp_speaker_say(speakers[i], 20);
    }
    return true;
}

static uint64_t close_speakers(void)
{
    uint64_t answers = 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(speakers); i++) {
        struct kelp_speaker_counts counts = kelp_speaker_counts(speakers[i]);
        (void)printf("%s: %llu messages, %llu answers\n", speaker_certs[i],
                     (unsigned long long)counts.messages, (unsigned long long)counts.answers);
        answers += counts.answers;
        kelp_speaker_close(speakers[i]);
        speakers[i] = NULL;
    }
    return answers;
}

/* No line of a key's body is in a file of the run: logs, checkpoints, results. */
static void expect_no_keys(void)
{
    char name[64], command[900];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        (void)snprintf(name, sizeof(name), "certs/%s/key.pem", roles[i]);
        char *text = kelp_test_read(run.folder, name, NULL);
        const char *line = strchr(text, '\n') + 1;
        int count = (int)strcspn(line, "\n");
        ck_assert_int_ge(count, 40);
        (void)snprintf(command, sizeof(command), "grep -rqF -- '%.*s' '%s'", count, line,
                       run.run_folder);
        ck_assert_msg(system(command) != 0, "the key of %s is in %s", /* NOLINT(cert-env33-c) */
                      roles[i], run.run_folder);
        free(text);
    }
    ck_assert_int_gt(kelp_run_newest(&run, (struct kelp_run_wanted){NULL, 0, 0}).step, 0);
}

KELP_CASE("attacks", .timeout_s = KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* A run that is over before so many rounds were played says nothing; then a longer one is attacked.
 */
static void expect_undisturbed(bool (*round)(unsigned number), unsigned at_least)
{
    char digest[33];
    char epochs[64];
    unsigned rounds = 0;

    for (unsigned count = 20; rounds < at_least; count *= 3) {
        ck_assert_uint_lt(count, 10000);
        (void)snprintf(epochs, sizeof(epochs), "train.epochs=%u", count);
        rounds = train_attacked(epochs, round);
        (void)printf("%s: %u rounds\n", epochs, rounds);
    }
    train_alone(epochs, digest);
    ck_assert_str_eq(kelp_run_digest(&run), digest);
    ck_assert_msg(!kelp_run_logged(&run, "generation=2"), "there was a second generation");
}

KELP_TEST(nobody_is_heard)
{
    expect_undisturbed(play_round, 1);
    expect_named();
    expect_no_keys();
}

/* Beside them come 1,300 connections at a time; the shard answers after each round of them. */
KELP_TEST(stolen_certificates)
{
    allow_descriptors();
    expect_undisturbed(play_stolen_and_connect, 3);
    let_go();
}

/* Who has a certificate, but no right to act, says whatever the protocol has. */
KELP_TEST(speaking_changes_nothing)
{
    expect_undisturbed(speak, 5);
    ck_assert_uint_gt(close_speakers(), 0); /* or nobody was heard at all */
}
