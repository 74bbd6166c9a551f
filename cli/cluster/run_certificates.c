#include "cli/cluster/run_certificates.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "common/base/files.h"
#include "common/base/json.h"

#define DAY_S INT64_C(86400)

/* The last certificate of its kind: false where there is none that can be read. */
static bool add(const char *folder, const char *file, const char *what, int64_t now_s,
                struct kelp_run_certificate *ret_item)
{
    char path[KELP_CREDENTIALS_PATH_MAX + 16];
    struct kelp_certificate certificate;
    char *text = NULL;
    size_t count = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    bool found = kelp_files_read(path, KELP_CREDENTIALS_FILE_MAX, &text, &count, NULL) == KELP_OK &&
                 kelp_certificate_read(text, &certificate, NULL) == KELP_OK;
    free(text);
    if (found) {
        *ret_item =
            (struct kelp_run_certificate){.what = what,
                                          .until_s = certificate.until_s,
                                          .soon = kelp_certificate_ends_soon(&certificate, now_s),
                                          .over = certificate.until_s < now_s};
        (void)snprintf(ret_item->folder, sizeof(ret_item->folder), "%s", folder);
    }
    return found;
}

uint32_t kelp_run_certificates(const char *run_path, int64_t now_s,
                               struct kelp_run_certificate list[KELP_RUN_CERTIFICATES_MAX])
{
    static const enum kelp_role roles[] = {KELP_ROLE_COORDINATOR, KELP_ROLE_SHARD,
                                           KELP_ROLE_WORKER};
    struct kelp_run_cluster cluster;
    char folder[KELP_CREDENTIALS_PATH_MAX + 1];
    uint32_t count = 0;

    if (kelp_run_cluster_read(run_path, &cluster, NULL) != KELP_OK || cluster.certs[0] == '\0') {
        return 0;
    }
    count += add(cluster.certs, KELP_CREDENTIALS_CERTIFICATE, kelp_role_names[KELP_ROLE_OPERATOR],
                 now_s, &list[count]);
    count += add(cluster.certs, KELP_CREDENTIALS_CA, "authority", now_s, &list[count]);
    const char *slash = strrchr(cluster.certs, '/');
    for (size_t i = 0; slash && i < KELP_ARRAY_COUNT(roles); i++) {
        int length = snprintf(folder, sizeof(folder), "%.*s/%s", (int)(slash - cluster.certs),
                              cluster.certs, kelp_role_names[roles[i]]);
        if (length > 0 && (size_t)length < sizeof(folder)) {
            count += add(folder, KELP_CREDENTIALS_CERTIFICATE, kelp_role_names[roles[i]], now_s,
                         &list[count]);
        }
    }
    return count;
}

void kelp_run_certificates_warn(const char *run_path, int64_t now_s, FILE *out)
{
    struct kelp_run_certificate list[KELP_RUN_CERTIFICATES_MAX];
    char until[KELP_CERTIFICATE_DATE_BYTES];

    const uint32_t count = kelp_run_certificates(run_path, now_s, list);
    for (uint32_t i = 0; i < count; i++) {
        kelp_certificate_date(list[i].until_s, until);
        if (list[i].over) {
            (void)fprintf(out, "warning    the certificate of %s has ended: %s\n", list[i].what,
                          until);
        } else if (list[i].soon) {
            (void)fprintf(out, "warning    the certificate of %s ends in %" PRId64 " days: %s\n",
                          list[i].what, (list[i].until_s - now_s) / DAY_S, until);
        }
    }
}

void kelp_run_certificates_json(const char *run_path, int64_t now_s, FILE *out)
{
    struct kelp_run_certificate list[KELP_RUN_CERTIFICATES_MAX];
    char until[KELP_CERTIFICATE_DATE_BYTES];

    const uint32_t count = kelp_run_certificates(run_path, now_s, list);
    (void)fputs(",\"certificates\":[", out);
    for (uint32_t i = 0; i < count; i++) {
        kelp_certificate_date(list[i].until_s, until);
        kelp_json_print_member(out, i > 0 ? ",{" : "{", "what", list[i].what);
        kelp_json_print_member(out, ",", "until", until);
        (void)fprintf(out, ",\"soon\":%s}", list[i].soon ? "true" : "false");
    }
    (void)fputc(']', out);
}
