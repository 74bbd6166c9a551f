#include <string.h>

#include "cli/doctor/exposure.h"

static void look_at_endpoint(const char *url, bool certified, struct kelp_findings *findings)
{
    if (strncmp(url, "unix:", 5) == 0) {
        kelp_findings_add(findings, "etcd", KELP_FINDING_OK,
                          "%s: only users who can open its folder reach it", url);
    } else if (strncmp(url, "https://", 8) == 0) {
        kelp_findings_add(findings, "etcd", certified ? KELP_FINDING_OK : KELP_FINDING_WARNING,
                          certified ? "%s: both sides show a certificate"
                                    : "%s: it asks no client for a certificate",
                          url);
    } else {
        kelp_findings_add(
            findings, "etcd", KELP_FINDING_PROBLEM,
            "%s: anybody who can reach it can steer the job, and choose the code that runs", url);
    }
}

void kelp_exposure_etcd(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    char urls[sizeof(run->cluster.etcd)];
    char *rest = urls;

    if (!run->has_cluster) {
        kelp_findings_add(
            findings, "etcd", KELP_FINDING_WARNING,
            "the run names none; daemons that were started by hand got theirs from --etcd");
        return;
    }
    if (!run->running && run->cluster.private_etcd) {
        kelp_findings_add(findings, "etcd", KELP_FINDING_OK, "none runs for it");
        return;
    }
    memcpy(urls, run->cluster.etcd, sizeof(urls));
    for (char *url = strsep(&rest, ","); url; url = strsep(&rest, ",")) {
        look_at_endpoint(url, run->cluster.certs[0] != '\0', findings);
    }
}
