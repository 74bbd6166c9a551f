/* Doors of a run, each made open and found. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/doctor/cluster.h"
#include "cli/doctor/exposure.h"
#include "cli/doctor/peer.h"
#include "cli/doctor/proc.h"
#include "cli/doctor/reach.h"
#include "cli/doctor/side_by_side.h"
#include "common/base/clock.h"
#include "common/program/options/version.h"
#include "common/tls/authority.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

static struct kelp_test_folder folder;
static struct kelp_findings *findings;
static struct kelp_job *job;
static struct kelp_doctor_run run;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    findings = calloc(1, sizeof(*findings));
    job = calloc(1, sizeof(*job));
    ck_assert(findings && job);
    (void)snprintf(job->name, sizeof(job->name), "j");
    (void)snprintf(job->data.cache, sizeof(job->data.cache), "%s/cache", folder.path);
    run = (struct kelp_doctor_run){.path = folder.path, .job = job};
}

static void teardown(void)
{
    free(findings);
    free(job);
    kelp_test_folder_fini(&folder);
}

/* The mode of a folder in the folder ("": of itself). */
static void set_mode(const char *name, mode_t mode)
{
    char path[400];

    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    ck_assert_int_eq(chmod(path, mode), 0);
}

/* Is there a finding of that check and state with these words? Forgets all. */
static bool found(const char *check, enum kelp_finding_state state, const char *words)
{
    bool is = false;

    for (uint32_t i = 0; i < findings->count; i++) {
        const struct kelp_finding *item = &findings->items[i];
        is = is || (strcmp(item->check, check) == 0 && item->state == state &&
                    strstr(item->text, words) != NULL);
    }
    ck_assert(findings->problem || state != KELP_FINDING_PROBLEM);
    memset(findings, 0, sizeof(*findings));
    return is;
}

KELP_CASE("doctor", .setup = setup, .teardown = teardown)

/* A port of this process is found, with who can connect, and not once it is closed. */
KELP_TEST(ports)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    struct kelp_proc_port ports[4];
    bool hidden = true;
    char wanted[64];

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_uint_eq(kelp_proc_ports(getpid(), ports, 4, &hidden), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    (void)snprintf(wanted, sizeof(wanted), "127.0.0.1:%u", ntohs(address.sin_port));
    ck_assert_uint_eq(kelp_proc_ports(getpid(), ports, 4, &hidden), 1);
    ck_assert(!hidden && ports[0].loopback);
    ck_assert_str_eq(ports[0].address, wanted);
    run.running = run.has_cluster = true;
    run.cluster.pid = getpid();
    kelp_exposure_ports(&run, findings);
    ck_assert(found("ports", KELP_FINDING_PROBLEM, "every user of this machine can connect"));
    ck_assert_int_eq(close(fd), 0);
    kelp_exposure_ports(&run, findings);
    ck_assert(found("ports", KELP_FINDING_OK, "none of the 1 processes listens on a port"));
    run.running = false;
    kelp_exposure_ports(&run, findings);
    ck_assert(found("ports", KELP_FINDING_OK, "no process of the run is on this machine"));
}

/* The processes of run->folder, at most four. */
static size_t list_by_hand(struct kelp_proc list[4])
{
    const struct kelp_proc_run who = {
        .job = "j", .etcd = "http://127.0.0.1:9", .folder = folder.path};

    return kelp_proc_list(&who, list, 4);
}

/* Daemons that somebody started are found by their job and their etcd or folder, by arguments and
 * by variables. */
KELP_TEST(by_hand)
{
    static char *const argv[] = {"/bin/kelp-ps", "-c", "read nothing", "--job", "j",
                                 "--id=s-1",     NULL};
    static char *const environment[] = {"KELP_ETCD=http://127.0.0.1:9", "KELP_CERTS=shard", NULL};
    struct kelp_proc list[4];
    int ends[2], wait_status = 0;

    ck_assert_uint_eq(list_by_hand(list), 0);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(ends[0], STDIN_FILENO); /* it waits for that to end */
        (void)execve("/bin/sh", argv, environment);
        _exit(127);
    }
    KELP_TEST_AWAIT(list_by_hand(list) == 1, "it is not found");
    ck_assert_int_eq(list[0].pid, child);
    ck_assert_str_eq(list[0].program, "kelp-ps");
    ck_assert_str_eq(list[0].id, "s-1");
    ck_assert(list[0].certified);
    ck_assert_int_eq(close(ends[0]), 0);
    ck_assert_int_eq(close(ends[1]), 0);
    ck_assert_int_eq(waitpid(child, &wait_status, 0), child);
    ck_assert_uint_eq(list_by_hand(list), 0);
}

KELP_TEST(etcds)
{
    static const struct {
        const char *urls, *certs;
        enum kelp_finding_state state;
        const char *words;
    } cases[] = {
        {"unix:/tmp/kelp-x/localhost:1", "", KELP_FINDING_OK, "only users who can open its folder"},
        {"http://127.0.0.1:2379", "", KELP_FINDING_PROBLEM,
         "anybody who can reach it can steer the job"},
        {"https://a:1,https://b:1", "/c", KELP_FINDING_OK, "https://b:1: both sides"},
        {"https://a:1", "", KELP_FINDING_WARNING, "it asks no client"},
    };

    run.running = run.has_cluster = true;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        (void)snprintf(run.cluster.etcd, sizeof(run.cluster.etcd), "%s", cases[i].urls);
        (void)snprintf(run.cluster.certs, sizeof(run.cluster.certs), "%s", cases[i].certs);
        kelp_exposure_etcd(&run, findings);
        ck_assert_msg(found("etcd", cases[i].state, cases[i].words), "%s", cases[i].urls);
    }
    run.has_cluster = false;
    kelp_exposure_etcd(&run, findings);
    ck_assert(found("etcd", KELP_FINDING_WARNING, "daemons that were started by hand"));
}

KELP_TEST(folders)
{
    char path[400];

    (void)snprintf(path, sizeof(path), "%s/cache", folder.path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    set_mode("", 0700);
    kelp_exposure_folders(&run, findings);
    ck_assert(!findings->problem);
    ck_assert(found("run folder", KELP_FINDING_OK, "you alone"));
    set_mode("", 0750);
    kelp_exposure_folders(&run, findings);
    ck_assert(found("run folder", KELP_FINDING_OK, "the folder's group"));
    set_mode("", 0755);
    kelp_exposure_folders(&run, findings);
    ck_assert(found("run folder", KELP_FINDING_PROBLEM, "all users can read"));
    set_mode("", 0770);
    kelp_exposure_folders(&run, findings);
    ck_assert(found("run folder", KELP_FINDING_PROBLEM, "others can put another job"));
    set_mode("cache", 01777);
    kelp_exposure_folders(&run, findings);
    ck_assert(found("data.cache", KELP_FINDING_PROBLEM, "others can write into"));
}

KELP_TEST(sockets)
{
    run.running = run.has_cluster = true;
    (void)snprintf(run.cluster.sockets, sizeof(run.cluster.sockets), "%s", folder.path);
    kelp_exposure_sockets(&run, findings);
    ck_assert(found("sockets", KELP_FINDING_OK, "only you can open"));
    set_mode("", 0711);
    kelp_exposure_sockets(&run, findings);
    ck_assert(found("sockets", KELP_FINDING_PROBLEM, "mode 0711, not 0700"));
}

/* One that has ended, a key that others read, and the authority's beside it. */
KELP_TEST(certificates)
{
    char text[500];

    kelp_test_authority(folder.path, "authority");
    kelp_test_issue(&(struct kelp_test_issue){folder.path, "authority", "authority/j/operator",
                                              "j/operator", NULL, 5});
    kelp_test_issue(&(struct kelp_test_issue){folder.path, "authority", "authority/j/worker",
                                              "j/worker", NULL, -1});
    (void)snprintf(text, sizeof(text),
                   "{\"job\":\"j\",\"etcd\":\"https://127.0.0.1:1\",\"private\":false,\"pid\":1,"
                   "\"certs\":\"%s/authority/j/operator\"}",
                   folder.path);
    (void)kelp_test_write(folder.path, "cluster.json", text);
    ck_assert_int_eq(kelp_run_cluster_read(folder.path, &run.cluster, NULL), KELP_OK);
    kelp_exposure_certificates(&run, findings);
    ck_assert(!findings->problem);
    ck_assert(found("certificates", KELP_FINDING_WARNING, "that of worker has ended: "));
    kelp_exposure_certificates(&run, findings);
    ck_assert(found("keys", KELP_FINDING_WARNING, "the authority's key is next to"));
    set_mode("authority/j/worker/key.pem", 0640);
    kelp_exposure_certificates(&run, findings);
    ck_assert(found("keys", KELP_FINDING_PROBLEM, "others can read the key of worker"));
    set_mode("authority/j/worker/key.pem", 0600);
    set_mode("authority/ca-key.pem", 0644);
    kelp_exposure_certificates(&run, findings);
    ck_assert(found("keys", KELP_FINDING_PROBLEM, "others can read the key of the authority"));
}

KELP_TEST(library)
{
    kelp_exposure_library(&run, findings);
    ck_assert(found("library", KELP_FINDING_OK, "the job names none"));
    job->model.kind = KELP_MODEL_PLUGIN;
    (void)snprintf(job->model.plugin, sizeof(job->model.plugin), "%s",
                   kelp_test_write(folder.path, "model.so", ""));
    set_mode("model.so", 0644);
    kelp_exposure_library(&run, findings);
    ck_assert(found("library", KELP_FINDING_WARNING, "the job does not fix its contents"));
    set_mode("model.so", 0666);
    kelp_exposure_library(&run, findings);
    ck_assert(found("library", KELP_FINDING_PROBLEM, "others can write it"));
    memset(job->model.plugin_sha256, 'a', sizeof(job->model.plugin_sha256) - 1);
    kelp_exposure_library(&run, findings);
    ck_assert(found("library", KELP_FINDING_WARNING, "you have not allowed"));
}

/* ---- a cluster ----------------------------------------------------------------------------- */

/* Why somebody is not believed, in the order in which it is said; and who is. */
KELP_TEST(peers)
{
    static const struct {
        const char *trouble;
        bool has_certificate;
        const char *name; /* NULL: none */
        int64_t from_s, until_s;
        const char *words; /* NULL: believed */
    } cases[] = {
        {"", true, "spiffe://kelp/j/shard/s-1", 0, 100, NULL},
        {"no handshake", false, NULL, 0, 0, NULL},
        {"", false, NULL, 0, 0, NULL},
        {"expired", true, "spiffe://kelp/j/shard", 0, 49, "its certificate has ended by this host"},
        {"early", true, "spiffe://kelp/j/shard", 51, 100,
         "its certificate is not valid yet by this"},
        {"no issuer", true, "spiffe://kelp/j/shard", 0, 100, "of another authority than ca.pem"},
        {"", true, "spiffe://kelp/j/worker", 0, 100,
         "its certificate names spiffe://kelp/j/worker, not"},
        {"", true, "spiffe://kelp/other/shard", 0, 100, "not a shard of job j"},
        {"", true, NULL, 0, 100, "its certificate names no process of Kelp"},
    };
    char text[300];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_peer peer = {.has_certificate = cases[i].has_certificate};
        (void)snprintf(peer.trouble, sizeof(peer.trouble), "%s", cases[i].trouble);
        peer.certificate.from_s = cases[i].from_s;
        peer.certificate.until_s = cases[i].until_s;
        peer.certificate.has_name = cases[i].name != NULL;
        if (cases[i].name) {
            ck_assert_int_eq(kelp_spiffe_parse(cases[i].name, strlen(cases[i].name),
                                               &peer.certificate.name, NULL),
                             KELP_OK);
        }
        bool wrong = kelp_peer_judge(&peer, KELP_ROLE_SHARD, "j", 50, text, sizeof(text));
        ck_assert_msg(wrong == (cases[i].words != NULL), "%zu", i);
        ck_assert_msg(!wrong || strstr(text, cases[i].words) != NULL, "%zu: %s", i, text);
    }
}

/* A cluster of which nothing is asked. */
static struct kelp_doctor_cluster *cluster;
static struct kelp_doctor_process processes[3];

static void begin_cluster(void)
{
    cluster = calloc(1, sizeof(*cluster));
    ck_assert_ptr_nonnull(cluster);
    memset(processes, 0, sizeof(processes));
    cluster->job = "j";
    cluster->findings = findings;
    cluster->processes = processes;
}

/* What the leader says becomes findings, worse ones for what does not mend itself. */
KELP_TEST(jobs)
{
    static const struct {
        const char *state, *reason;
        enum kelp_finding_state found;
    } cases[] = {
        {"running", "", KELP_FINDING_OK},       {"running", "it waits", KELP_FINDING_WARNING},
        {"starting", "", KELP_FINDING_WARNING}, {"paused", "", KELP_FINDING_WARNING},
        {"failed", "it", KELP_FINDING_PROBLEM}, {"done", "", KELP_FINDING_OK},
    };
    Kelp__V1__StatusReply status = KELP__V1__STATUS_REPLY__INIT;
    Kelp__V1__WorkerStatus worker = KELP__V1__WORKER_STATUS__INIT, *workers[] = {&worker};
    Kelp__V1__ShardInfo shard = KELP__V1__SHARD_INFO__INIT, *shards[] = {&shard};
    Kelp__V1__CheckpointStatus checkpoint = KELP__V1__CHECKPOINT_STATUS__INIT;
    char text[6][16] = {"w-1", "no way", "s-1", "10.0.0.6:1", "disk full", ""};

    begin_cluster();
    cluster->process_count = 1;
    processes[0].status = &status;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        status.state = (char *)(uintptr_t)cases[i].state;
        status.reason = (char *)(uintptr_t)cases[i].reason;
        kelp_doctor_job(cluster);
        ck_assert_uint_eq(findings->count, 1);
        ck_assert_msg(found("job", cases[i].found, cases[i].state), "%s", cases[i].state);
    }
    worker.id = text[0];
    worker.trouble = text[1];
    shard.shard = text[2];
    shard.address = text[3];
    checkpoint.error = text[4];
    status.workers = workers;
    status.silent = shards;
    status.checkpoint = &checkpoint;
    status.n_workers = status.n_silent = 1;
    kelp_doctor_job(cluster);
    ck_assert_uint_eq(findings->count, 4);
    ck_assert_str_eq(findings->items[1].text, "worker w-1: no way");
    ck_assert_ptr_nonnull(strstr(findings->items[2].text, "shard s-1 at 10.0.0.6:1 is lost"));
    ck_assert(found("job", KELP_FINDING_WARNING, "the last checkpoint failed: disk full"));
    free(cluster);
}

/* Processes of this command's version, of another commit and of another version. */
KELP_TEST(versions)
{
    begin_cluster();
    cluster->process_count = 3;
    kelp_doctor_version(kelp_version(), kelp_version_commit(), processes[0].version);
    kelp_doctor_version(kelp_version(), "fffffff", processes[1].version);
    processes[2] = processes[1];
    (void)snprintf(processes[1].id, sizeof(processes[1].id), "s-1");
    kelp_doctor_versions(cluster);
    ck_assert_uint_eq(findings->count, 2);
    ck_assert_ptr_nonnull(strstr(findings->items[0].text, "1 process is of "));
    ck_assert(found("versions", KELP_FINDING_WARNING, "s-1 and 1 others are of "));
    (void)snprintf(processes[2].version, sizeof(processes[2].version), "%s", kelp_version());
    kelp_doctor_versions(cluster); /* of the time before processes told their commit */
    ck_assert(!findings->problem);
    memset(findings, 0, sizeof(*findings));
    (void)snprintf(processes[2].version, sizeof(processes[2].version), "9.9.9");
    (void)snprintf(processes[2].id, sizeof(processes[2].id), "s-2");
    kelp_doctor_versions(cluster);
    ck_assert(found("versions", KELP_FINDING_PROBLEM, "s-2 is of 9.9.9, and this command of "));
    free(cluster);
}

/* One that is yet to begin, and one that is none, beside that of --certs. */
KELP_TEST(certificates_of_a_cluster)
{
    char authority[300], out[300], certs[300];
    const int64_t now_s = (int64_t)time(NULL);
    struct kelp_authority_request request = {.authority = authority,
                                             .out = out,
                                             .name = {.role = KELP_ROLE_SHARD, .job = "j"},
                                             .from_s = now_s + 3600,
                                             .until_s = now_s + 7200};

    kelp_test_authority(folder.path, "authority");
    kelp_test_issue(&(struct kelp_test_issue){folder.path, "authority", "certs/operator",
                                              "j/operator", NULL, 5});
    (void)snprintf(authority, sizeof(authority), "%s/authority", folder.path);
    (void)snprintf(out, sizeof(out), "%s/certs/shard", folder.path);
    ck_assert_int_eq(kelp_authority_issue(&request, NULL), KELP_OK);
    kelp_test_issue(
        &(struct kelp_test_issue){folder.path, "authority", "certs/worker", "j/worker", NULL, 5});
    (void)kelp_test_write(folder.path, "certs/worker/cert.pem", "nothing");
    begin_cluster();
    (void)snprintf(certs, sizeof(certs), "%s/certs/operator", folder.path);
    cluster->certs = certs;
    kelp_doctor_certificates(cluster);
    ck_assert_uint_eq(findings->count, 4);
    ck_assert_ptr_nonnull(strstr(findings->items[0].text, "that of --certs lasts "));
    ck_assert_ptr_nonnull(
        strstr(findings->items[2].text, "that of shard is not valid yet by this host's clock: "));
    ck_assert(found("certificates", KELP_FINDING_PROBLEM, "that of worker: "));
    free(cluster);
}

/* Numbers of either family and sockets are reached, and are on this host; nobody is said so. */
KELP_LOOP_TEST(reach, 0, 3)
{
    struct sockaddr_in in4 = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr *const all[] = {(struct sockaddr *)&in4, (struct sockaddr *)&in6,
                                    (struct sockaddr *)&local};
    socklen_t length[] = {sizeof(in4), sizeof(in6), sizeof(local)};
    char address[200];
    bool here = false;

    in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)snprintf(local.sun_path, sizeof(local.sun_path), "%.90s/s", folder.path);
    int fd = socket(all[_i]->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, all[_i], length[_i]) != 0) {
        (void)printf("skipped: reach: this machine has no IPv6\n");
        return;
    }
    ck_assert_int_eq(getsockname(fd, all[_i], &length[_i]), 0);
    (void)snprintf(address, sizeof(address), "unix:%s", local.sun_path);
    if (_i < 2) {
        (void)snprintf(address, sizeof(address), "%s:%u", _i == 0 ? "127.0.0.1" : "[::1]",
                       ntohs(_i == 0 ? in4.sin_port : in6.sin6_port));
    }
    ck_assert_int_eq(kelp_reach(address, 5000, &here), ECONNREFUSED);
    ck_assert(!here);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_int_eq(kelp_reach(address, 5000, &here), 0);
    ck_assert(here);
    ck_assert_int_eq(close(fd), 0);
}

#define LOOKS 100

static void count_look(size_t index, void *user)
{
    atomic_uint *looks = user;

    (void)atomic_fetch_add(&looks[index], 1);
}

/* Each is looked at once, whatever their number. */
KELP_LOOP_TEST(side_by_side, 0, LOOKS)
{
    atomic_uint looks[LOOKS] = {0};

    kelp_side_by_side((size_t)_i, count_look, looks);
    for (int i = 0; i < LOOKS; i++) {
        ck_assert_uint_eq(atomic_load(&looks[i]), i < _i ? 1 : 0);
    }
}

static void read_byte(void *user)
{
    const int *fd = user;
    char byte;

    (void)!read(*fd, &byte, 1);
}

/* A look that does not come back is left alone once the time is over; one that does is waited for.
 */
KELP_TEST(look_that_hangs)
{
    static int ends[2]; /* the look has it longer than this function */

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert(!kelp_side_wait(read_byte, &ends[0], kelp_clock_ms() + 20));
    ck_assert_int_eq(write(ends[1], "xy", 2), 2); /* it ends */
    ck_assert(kelp_side_wait(read_byte, &ends[0], kelp_clock_ms() + KELP_TEST_HANG_MS));
}

/* More findings than there is room for: a problem is not forgotten, and no name of a file plays
 * with the terminal. */
KELP_TEST(many)
{
    for (uint32_t i = 0; i <= KELP_FINDINGS_MAX; i++) {
        kelp_findings_add(findings, "ports",
                          i < KELP_FINDINGS_MAX ? KELP_FINDING_OK : KELP_FINDING_PROBLEM,
                          "a\033[2Jb");
    }
    ck_assert_uint_eq(findings->left_out, 1);
    ck_assert(findings->problem);
    ck_assert_str_eq(findings->items[0].text, "a [2Jb");
}
