/*
 * Hosts that have the files of a job at other places (kelp node --map-path): each is a process
 * here, and finds what it reads where it says. What is read counts as anywhere else: by its
 * contents.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/commands/run_doctor.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define HOSTS_MAX    3
#define DIGEST_CHARS 32
#define ROWS         1500
#define PATH_BYTES   300

static const char job_text[] =
    "name: hosts\nseed: 3\n"
    "model: {kind: dlinear}\n"
    "data: {kind: csv, path: data/x.csv, features: M, split: [1000, 200, 200],\n"
    "       seq_len: 48, pred_len: 24}\n"
    "train: {epochs: 20, batch_size: 32}\n"
    "cluster: {workers: 1:3, shards: 2, lanes: 4}\n";

static struct kelp_test_folder folder;
static struct etcd_fixture etcd;
static struct kelp_test_command hosts[HOSTS_MAX];
static struct kelp_test_command doctor;
static char quiet[DIGEST_CHARS + 1]; /* of kelp train */
static char spec_sha256[65];

/* ---- files --------------------------------------------------------------------------------- */

static const char *place(const char *name, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/%s", folder.path, name);
    return path;
}

/* "FOLDER/from=FOLDER/to" */
static const char *mapped(const char *from, const char *to, char text[2 * PATH_BYTES])
{
    (void)snprintf(text, 2 * PATH_BYTES, "%s/%s=%s/%s", folder.path, from, folder.path, to);
    return text;
}

static void move(const char *from, const char *to)
{
    char old[PATH_BYTES], new[PATH_BYTES];

    ck_assert_int_eq(rename(place(from, old), place(to, new)), 0);
}

/* FOLDER/name/x.csv; another number in it where it differs. */
static void write_data(const char *name, bool differs)
{
    char path[PATH_BYTES], file[PATH_BYTES + 8];

    ck_assert_int_eq(mkdir(place(name, path), 0755), 0);
    (void)snprintf(file, sizeof(file), "%s/x.csv", path);
    FILE *out = fopen(file, "w");
    ck_assert_ptr_nonnull(out);
    (void)fprintf(out, "date,a,OT\n");
    for (int row = 0; row < ROWS; row++) {
        int value = differs && row == 700 ? 5 : row % 24;
        (void)fprintf(out, "2026-%02d-%02d %02d:00:00,%d.25,%d.5\n", row / 24 / 28 + 1,
                      row / 24 % 28 + 1, row % 24, row * 7 % 13, value);
    }
    ck_assert_int_eq(fclose(out), 0);
}

/* ---- commands ------------------------------------------------------------------------------ */

static void read_field(const char *summary, const char *field, char *text, size_t text_bytes)
{
    const char *line = strstr(summary, field);

    ck_assert_msg(line != NULL, "no %s in: %s", field, summary);
    line += strlen(field);
    line += strspn(line, " ");
    (void)snprintf(text, text_bytes, "%.*s", (int)strcspn(line, "\n"), line);
}

static void run(struct kelp_test_command *command, const char *const *args)
{
    memset(command, 0, sizeof(*command));
    kelp_test_command_run(command, folder.path, args, KELP_TEST_HANG_MS);
}

/* What kelp train makes of the job as it stands, and the job into etcd. */
static void submit(void)
{
    struct kelp_test_command command;

    run(&command, (const char *[]){"train", "job.yaml", "--run", "quiet", NULL});
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    read_field(command.out, "\ndigest ", quiet, sizeof(quiet));
    kelp_test_command_fini(&command);
    run(&command, (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run", "run", NULL});
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    read_field(command.out, "\nsha256 ", spec_sha256, sizeof(spec_sha256));
    kelp_test_command_fini(&command);
}

/* A host of these options, with what stands in more before them. */
static void start(size_t host, const char *const *more)
{
    static const char *const names[HOSTS_MAX] = {"a", "b", "c"};
    const char *args[24] = {"node",   "--etcd",    etcd.url,        "--job",    "hosts",
                            "--host", names[host], "--spec-sha256", spec_sha256};
    size_t count = 9;

    for (size_t i = 0; more[i]; i++) {
        args[count++] = more[i];
    }
    args[count] = NULL;
    memset(&hosts[host], 0, sizeof(hosts[host]));
    kelp_test_command_start(&hosts[host], folder.path, args);
}

static void ends(size_t host, int exit_code)
{
    (void)kelp_test_command_wait(&hosts[host], KELP_TEST_HANG_MS);
    ck_assert_msg(hosts[host].exit_code == exit_code, "host %zu: exit %d: %s%s", host,
                  hosts[host].exit_code, hosts[host].out, hosts[host].err);
    kelp_test_command_gone(&hosts[host]);
}

static void ends_quietly(size_t host)
{
    char digest[DIGEST_CHARS + 1];

    ends(host, 0);
    read_field(hosts[host].out, "\ndigest ", digest, sizeof(digest));
    ck_assert_str_eq(digest, quiet);
}

static void said(size_t host, const char *words)
{
    ck_assert_msg(strstr(hosts[host].err, words) != NULL, "'%s' is not in: %s", words,
                  hosts[host].err);
}

/* Do these words stand in the log of a process? */
static void logged(const char *run_folder, const char *id, const char *words)
{
    char name[PATH_BYTES];

    (void)snprintf(name, sizeof(name), "%s/logs/%s.log", run_folder, id);
    char *log = kelp_test_read(folder.path, name, NULL);
    ck_assert_msg(strstr(log, words) != NULL, "'%s' is not in: %s", words, log);
    free(log);
}

static void setup(void)
{
    etcd_fixture_require();
    etcd_fixture_start(&etcd);
    kelp_test_folder_init(&folder);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", folder.path, 1), 0);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    write_data("data", false);
    memset(hosts, 0, sizeof(hosts));
    memset(&doctor, 0, sizeof(doctor));
}

static void teardown(void)
{
    kelp_test_command_fini(&doctor);
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        kelp_test_command_fini(&hosts[i]);
    }
    kelp_test_folder_fini(&folder);
    etcd_fixture_stop(&etcd);
}

KELP_CASE("node_paths", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* Three places for the data, none of them the job's: a file, a folder, and one of the longest of
 * several. */
KELP_TEST(data_elsewhere)
{
    char at_a[2 * PATH_BYTES], at_b[2 * PATH_BYTES], above[2 * PATH_BYTES];
    char words[2 * PATH_BYTES];

    submit();
    move("data", "data-a");
    write_data("data-b", false);
    move("data-b/x.csv", "data-b/y.csv");
    (void)mapped("data", "data-a", at_a);
    (void)mapped("data/x.csv", "data-b/y.csv", at_b);
    (void)mapped("data", "nowhere", above);
    start(0, (const char *[]){"--coordinator", "--shards", "1", "--workers", "1", "--map-path",
                              at_a, NULL});
    start(1, (const char *[]){"--coordinator", "--shards", "1", "--workers", "1", "--map-path",
                              above, "--map-path", at_b, NULL});
    ends_quietly(0);
    ends_quietly(1);
    (void)snprintf(words, sizeof(words), "key=data.path path=\"%s/data/x.csv\" here=\"%s/data-b",
                   folder.path, folder.path);
    logged("run", "b.worker-0", words);
    ck_assert_ptr_null(strstr(hosts[1].err, "--map-path"));
}

/* Other data at the place of --map-path are refused in one line that names it; the others go on. */
KELP_TEST(wrong_data)
{
    char at_b[2 * PATH_BYTES], words[PATH_BYTES];

    submit();
    write_data("data-b", true);
    start(0, (const char *[]){"--coordinator", "--shards", "2", "--workers", "1", NULL});
    start(1,
          (const char *[]){"--workers", "1", "--map-path", mapped("data", "data-b", at_b), NULL});
    ends(1, 2);
    (void)snprintf(words, sizeof(words), "%s/data-b/x.csv", folder.path);
    said(1, "the data is not what the run began with");
    said(1, words);
    ends_quietly(0);
}

/* What is missing is said before workers fail, with the place that was looked at; so does the
 * doctor, which is told the same. A FROM that says nothing about the job is said too. */
KELP_TEST(missing_data)
{
    char at_b[2 * PATH_BYTES], words[2 * PATH_BYTES];

    submit();
    move("data", "data-a");
    start(1, (const char *[]){"--workers", "1", "--map-path", mapped("data", "data-b", at_b),
                              "--map-path", "/typo=/x", NULL});
    ends(1, 2);
    (void)snprintf(words, sizeof(words),
                   "data.path: %s/data-b/x.csv is not on this host (the job has %s/data/x.csv); "
                   "--map-path FROM=TO says where it is",
                   folder.path, folder.path);
    said(1, words);
    said(1, "--map-path /typo=/x: no path of the job begins with /typo");
    kelp_test_doctor_run(&doctor, folder.path, "hosts", etcd.url, (const char *[]){NULL}, 0);
    (void)snprintf(words, sizeof(words),
                   "data.path: %s/data/x.csv is not on this host: ", folder.path);
    KELP_TEST_DOCTOR_FOUND(&doctor, "files", "warning", words);
    KELP_TEST_DOCTOR_FOUND(&doctor, "files", "warning", "--map-path FROM=TO says where it is");
    kelp_test_doctor_run(&doctor, folder.path, "hosts", etcd.url,
                         (const char *[]){"--map-path", at_b, NULL}, 0);
    (void)snprintf(words, sizeof(words), "(the job has %s/data/x.csv)", folder.path);
    KELP_TEST_DOCTOR_FOUND(&doctor, "files", "warning", words);
    kelp_test_doctor_run(&doctor, folder.path, "hosts", etcd.url,
                         (const char *[]){"--map-path", mapped("data", "data-a", at_b), NULL}, 0);
    KELP_TEST_DOCTOR_FOUND(&doctor, "files", "OK", "all 1 that the job reads are on this host");
}

/* The run's folder lies elsewhere, and with it the run's copy of a plug-in: by --run, by
 * --map-path, and on a host of workers alone. */
KELP_TEST(run_elsewhere)
{
    char text[1024], at[2 * PATH_BYTES], path[PATH_BYTES], data[PATH_BYTES];

    (void)snprintf(text, sizeof(text),
                   "name: hosts\nseed: 3\n"
                   "model: {kind: plugin, plugin: \"%s/plugins/windows.so\"}\n"
                   "data: {kind: csv, path: \"%s\", features: M, split: [1000, 200, 200],\n"
                   "       seq_len: 48, pred_len: 24}\n"
                   "train: {epochs: 20, batch_size: 32}\n"
                   "cluster: {workers: 3, shards: 2, lanes: 4}\n",
                   getenv("KELP_TEST_PROGRAMS"), place("data/x.csv", data));
    (void)kelp_test_write(folder.path, "job.yaml", text);
    submit();
    move("run", "moved");
    (void)mapped("run", "moved", at);
    start(0, (const char *[]){"--coordinator", "--shards", "1", "--workers", "1", "--run", "moved",
                              NULL});
    start(1, (const char *[]){"--coordinator", "--shards", "1", "--workers", "1", "--map-path", at,
                              NULL});
    start(2, (const char *[]){"--workers", "1", "--run", "logs-c", "--map-path", at, NULL});
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        ends_quietly(i);
    }
    ck_assert_int_ne(access(place("run", path), F_OK), 0); /* nobody made it again */
    logged("moved", "a.worker-0", "key=model.plugin");
    logged("logs-c", "c.worker-0", "key=model.plugin");
    kelp_test_doctor_run(&doctor, folder.path, "hosts", etcd.url,
                         (const char *[]){"--map-path", at, NULL}, 0);
    KELP_TEST_DOCTOR_FOUND(&doctor, "folder", "OK", "/moved is the run's folder");
    KELP_TEST_DOCTOR_FOUND(&doctor, "files", "OK", "all 2 that the job reads are on this host");
}
