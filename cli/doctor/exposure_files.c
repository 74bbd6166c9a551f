#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/cluster/run_certificates.h"
#include "cli/doctor/exposure.h"
#include "cli/run/plugin_consent.h"
#include "common/base/environment.h"

#define DAY_S INT64_C(86400)

/* Owner and mode, as people know them. */
static unsigned mode_of(const struct stat *about)
{
    return (unsigned)(about->st_mode & 07777);
}

static bool is_foreign(const struct stat *about)
{
    return about->st_uid != geteuid() && about->st_uid != 0;
}

/* May others change what is in the folder, or the file? A sticky folder is none of ours either. */
static bool others_write(const struct stat *about)
{
    return is_foreign(about) || (about->st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

/* ---- folders ------------------------------------------------------------------------------- */

static void look_at_run(const char *path, struct kelp_findings *findings)
{
    struct stat about;

    if (stat(path, &about) != 0) {
        kelp_findings_add(findings, "run folder", KELP_FINDING_WARNING, "%.300s: %s", path,
                          strerror(errno));
    } else if (others_write(&about)) {
        kelp_findings_add(findings, "run folder", KELP_FINDING_PROBLEM,
                          "others can put another job or other weights into %.200s (mode %04o)",
                          path, mode_of(&about));
    } else if ((about.st_mode & S_IRWXO) != 0) {
        kelp_findings_add(findings, "run folder", KELP_FINDING_PROBLEM,
                          "all users can read weights and logs in %.200s (mode %04o)", path,
                          mode_of(&about));
    } else if ((about.st_mode & S_IRWXG) != 0) {
        kelp_findings_add(findings, "run folder", KELP_FINDING_OK,
                          "you and the folder's group can read %.200s (mode %04o); run.private: "
                          "true keeps it to you",
                          path, mode_of(&about));
    } else {
        kelp_findings_add(findings, "run folder", KELP_FINDING_OK, "you alone (mode %04o)",
                          mode_of(&about));
    }
}

static void look_at_cache(const struct kelp_job *job, struct kelp_findings *findings)
{
    char path[PATH_MAX];
    struct stat about;

    if (job->data.cache[0] != '\0') {
        (void)snprintf(path, sizeof(path), "%s", job->data.cache);
    } else if (!kelp_environment_cache(path, sizeof(path))) {
        return;
    }
    if (stat(path, &about) != 0) {
        kelp_findings_add(findings, "data.cache", KELP_FINDING_OK, "there is none");
    } else if (others_write(&about)) {
        kelp_findings_add(findings, "data.cache", KELP_FINDING_PROBLEM,
                          "others can write into %.200s (mode %04o): they can keep prepared data "
                          "from being used, or fill the disk",
                          path, mode_of(&about));
    } else {
        kelp_findings_add(findings, "data.cache", KELP_FINDING_OK,
                          "nobody else writes into %.200s (mode %04o)", path, mode_of(&about));
    }
}

void kelp_exposure_folders(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    look_at_run(run->path, findings);
    look_at_cache(run->job, findings);
}

void kelp_exposure_sockets(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    const char *path = run->cluster.sockets;
    struct stat about;

    if (!run->running || !run->has_cluster || path[0] == '\0') {
        return;
    }
    if (lstat(path, &about) != 0) {
        kelp_findings_add(findings, "sockets", KELP_FINDING_WARNING, "%s: %s", path,
                          strerror(errno));
    } else if (!S_ISDIR(about.st_mode) || is_foreign(&about) ||
               (about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        kelp_findings_add(findings, "sockets", KELP_FINDING_PROBLEM,
                          "others can reach the run's sockets in %s (mode %04o, not 0700)", path,
                          mode_of(&about));
    } else {
        kelp_findings_add(findings, "sockets", KELP_FINDING_OK,
                          "the run's processes meet in %s, which only you can open", path);
    }
}

/* ---- keys ---------------------------------------------------------------------------------- */

/* True: there is such a key. */
static bool look_at_key(const char *folder, const char *file, const char *what,
                        struct kelp_findings *findings)
{
    char path[PATH_MAX];
    struct stat about;

    int length = snprintf(path, sizeof(path), "%s/%s", folder, file);
    if (length < 0 || (size_t)length >= sizeof(path) || stat(path, &about) != 0) {
        return false;
    }
    if (is_foreign(&about) || (about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        kelp_findings_add(findings, "keys", KELP_FINDING_PROBLEM,
                          "others can read the key of %s, %.250s (mode %04o): chmod 600", what,
                          path, mode_of(&about));
    }
    return true;
}

/* The key of the authority, where kelp certs keeps it: above the folder of the job. */
static void look_at_authority(const char *operator_folder, struct kelp_findings *findings)
{
    char folder[KELP_CREDENTIALS_PATH_MAX + 1];

    (void)snprintf(folder, sizeof(folder), "%s", operator_folder);
    for (int level = 0; level < 2; level++) {
        char *slash = strrchr(folder, '/');
        if (!slash) {
            return;
        }
        *slash = '\0';
    }
    if (look_at_key(folder, "ca-key.pem", "the authority", findings)) {
        kelp_findings_add(findings, "keys", KELP_FINDING_WARNING,
                          "the authority's key is next to the run's keys, in %.250s: keep it on a "
                          "machine that takes no part in the job",
                          folder);
    }
}

static void look_at_end(const struct kelp_run_certificate *certificate, int64_t now_s,
                        struct kelp_findings *findings)
{
    char until[KELP_CERTIFICATE_DATE_BYTES];

    kelp_certificate_date(certificate->until_s, until);
    if (certificate->over || certificate->soon) {
        kelp_findings_add(findings, "certificates", KELP_FINDING_WARNING, "that of %s %s %s",
                          certificate->what,
                          certificate->over ? "has ended:" : "ends soon:", until);
    } else {
        kelp_findings_add(findings, "certificates", KELP_FINDING_OK,
                          "that of %s lasts %lld more days", certificate->what,
                          (long long)((certificate->until_s - now_s) / DAY_S));
    }
}

void kelp_exposure_certificates(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    struct kelp_run_certificate list[KELP_RUN_CERTIFICATES_MAX];
    const int64_t now_s = (int64_t)time(NULL);
    const bool before = findings->problem;

    const uint32_t count = kelp_run_certificates(run->path, now_s, list);
    for (uint32_t i = 0; i < count; i++) {
        look_at_end(&list[i], now_s, findings);
        if (strcmp(list[i].what, "authority") != 0) {
            (void)look_at_key(list[i].folder, KELP_CREDENTIALS_KEY, list[i].what, findings);
        }
    }
    if (count > 0) {
        look_at_authority(run->cluster.certs, findings);
        if (findings->problem == before) {
            kelp_findings_add(findings, "keys", KELP_FINDING_OK, "nobody else reads them");
        }
    }
}

/* ---- the library --------------------------------------------------------------------------- */

static void look_at_program(const struct kelp_job *job, struct kelp_findings *findings)
{
    const bool script = job->model.python[0] != '\0';
    const char *key = script ? "model.python" : "model.program";
    const char *path = script ? job->model.python : job->model.program;
    struct stat about;

    if (stat(path, &about) != 0) {
        kelp_findings_add(findings, "library", KELP_FINDING_WARNING, "%s: %.250s: %s", key, path,
                          strerror(errno));
    } else if (others_write(&about)) {
        kelp_findings_add(findings, "library", KELP_FINDING_PROBLEM,
                          "%s: %.250s runs as you, but others can write it", key, path);
    } else if (!kelp_program_is_known(job)) {
        kelp_findings_add(
            findings, "library", KELP_FINDING_WARNING,
            "%s: %.250s is a program that you have not allowed: commands ask for --allow-plugin",
            key, path);
    } else {
        kelp_findings_add(findings, "library", KELP_FINDING_OK,
                          "%s: %.250s is a program that you have allowed", key, path);
    }
}

void kelp_exposure_library(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    const char *path = run->job->model.plugin;
    struct stat about;

    if (run->job->model.kind == KELP_MODEL_PROGRAM) {
        look_at_program(run->job, findings);
    } else if (run->job->model.kind != KELP_MODEL_PLUGIN) {
        kelp_findings_add(findings, "library", KELP_FINDING_OK, "the job names none");
    } else if (stat(path, &about) != 0) {
        kelp_findings_add(findings, "library", KELP_FINDING_WARNING, "model.plugin: %.250s: %s",
                          path, strerror(errno));
    } else if (run->job->model.plugin_sha256[0] == '\0') {
        kelp_findings_add(findings, "library",
                          others_write(&about) ? KELP_FINDING_PROBLEM : KELP_FINDING_WARNING,
                          "model.plugin: %.250s is code that runs as you, but the job does not fix "
                          "its contents (model.plugin_sha256)%s",
                          path, others_write(&about) ? "; others can write it" : "");
    } else if (!kelp_plugin_is_known(run->job->model.plugin_sha256)) {
        kelp_findings_add(findings, "library", KELP_FINDING_WARNING,
                          "model.plugin: %.250s is code that you have not allowed: commands ask "
                          "for --allow-plugin",
                          path);
    } else {
        kelp_findings_add(
            findings, "library", KELP_FINDING_OK,
            "model.plugin: %.250s is code that you have allowed, and no other code is accepted",
            path);
    }
}
