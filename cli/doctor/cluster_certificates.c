/* The certificates of --certs, and those of other roles that lie beside them on this host. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/doctor/cluster.h"
#include "common/base/files.h"
#include "common/tls/credentials.h"

#define CHECK      "certificates"
#define DAY_S      INT64_C(86400)
#define PATH_BYTES (KELP_CREDENTIALS_PATH_MAX + 32)

/* NULL: it is not there, or cannot be read. Owned. */
static char *read_file(const char *folder, const char *file)
{
    char path[PATH_BYTES];
    char *text = NULL;
    size_t count = 0;

    int length = snprintf(path, sizeof(path), "%s/%s", folder, file);
    if (length < 0 || (size_t)length >= sizeof(path) ||
        kelp_files_read(path, KELP_CREDENTIALS_FILE_MAX, &text, &count, NULL) != KELP_OK) {
        return NULL;
    }
    return text;
}

/* How long it lasts, by this host's clock. */
static void tell_time(struct kelp_doctor_cluster *cluster, const char *what,
                      const struct kelp_certificate *certificate)
{
    const int64_t now_s = (int64_t)time(NULL);
    char from[KELP_CERTIFICATE_DATE_BYTES], until[KELP_CERTIFICATE_DATE_BYTES];

    kelp_certificate_date(certificate->from_s, from);
    kelp_certificate_date(certificate->until_s, until);
    if (now_s > certificate->until_s) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "that of %s has ended: %s (kelp certs issue)", what, until);
    } else if (now_s < certificate->from_s) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "that of %s is not valid yet by this host's clock: %s", what, from);
    } else if (kelp_certificate_ends_soon(certificate, now_s)) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "that of %s ends soon: %s (kelp certs issue)", what, until);
    } else {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          "that of %s lasts %" PRId64 " more days", what,
                          (certificate->until_s - now_s) / DAY_S);
    }
}

static void tell_file(struct kelp_doctor_cluster *cluster, const char *what, const char *text)
{
    struct kelp_certificate certificate;
    struct kelp_error error;

    if (kelp_certificate_read(text, &certificate, &error) == KELP_OK) {
        tell_time(cluster, what, &certificate);
    } else {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM, "that of %s: %.300s",
                          what, error.text);
    }
}

/* What a process of that role on this host would show, and whom it would believe. */
static void tell_role(struct kelp_doctor_cluster *cluster, const char *folder, enum kelp_role role,
                      const char *own_ca)
{
    char *text = read_file(folder, KELP_CREDENTIALS_CERTIFICATE);
    char *ca = read_file(folder, KELP_CREDENTIALS_CA);
    char name[KELP_SPIFFE_MAX + 1];
    struct kelp_certificate certificate = {.has_name = false};

    if (text) {
        tell_file(cluster, kelp_role_names[role], text);
    }
    if (text && kelp_certificate_read(text, &certificate, NULL) == KELP_OK &&
        (!certificate.has_name || certificate.name.role != role ||
         strcmp(certificate.name.job, cluster->job) != 0)) {
        kelp_spiffe_print(&certificate.name, name);
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "that in %.200s is for %s, not for a %s of job %s", folder,
                          certificate.has_name ? name : "nobody of Kelp", kelp_role_names[role],
                          cluster->job);
    }
    if (text && ca && own_ca && strcmp(ca, own_ca) != 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "%.150s/ca.pem differs from that of --certs: two authorities, or one is "
                          "being replaced",
                          folder);
    }
    free(text);
    free(ca);
}

/* Folders of the other roles, where kelp node has them: beside ours. */
static void tell_beside(struct kelp_doctor_cluster *cluster, const char *own_ca)
{
    static const enum kelp_role roles[] = {KELP_ROLE_COORDINATOR, KELP_ROLE_SHARD,
                                           KELP_ROLE_WORKER};
    char folder[PATH_BYTES];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        int length =
            snprintf(folder, sizeof(folder), "%s/../%s", cluster->certs, kelp_role_names[roles[i]]);
        if (length > 0 && (size_t)length < sizeof(folder)) {
            tell_role(cluster, folder, roles[i], own_ca);
        }
    }
}

void kelp_doctor_certificates(struct kelp_doctor_cluster *cluster)
{
    if (!cluster->certs) {
        return;
    }
    char *own = read_file(cluster->certs, KELP_CREDENTIALS_CERTIFICATE);
    char *ca = read_file(cluster->certs, KELP_CREDENTIALS_CA);
    if (own) {
        tell_file(cluster, "--certs", own);
    }
    if (ca) {
        tell_file(cluster, "the authority", ca);
    }
    tell_beside(cluster, ca);
    free(own);
    free(ca);
}
