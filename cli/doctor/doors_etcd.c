#include <string.h>

#include "cli/doctor/doors.h"

static void look_at_endpoint(const char *url, bool certified, struct kelp_findings *findings)
{
    if (strncmp(url, "unix:", 5) == 0) {
        kelp_findings_add(findings, "etcd", KELP_DOOR_CLOSED, "%s: who can open its folder", url);
    } else if (strncmp(url, "https://", 8) == 0) {
        kelp_findings_add(
            findings, "etcd", certified ? KELP_DOOR_CLOSED : KELP_DOOR_NOTE,
            certified ? "%s: with certificates of both" : "%s: nobody is asked who he is", url);
    } else {
        kelp_findings_add(findings, "etcd", KELP_DOOR_OPEN,
                          "%s: who reaches it steers the job, and names what is run", url);
    }
}

void kelp_doors_etcd(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    char urls[sizeof(run->cluster.etcd)];
    char *rest = urls;

    if (!run->has_cluster || (!run->running && run->cluster.private_etcd)) {
        kelp_findings_add(findings, "etcd", KELP_DOOR_CLOSED, "none runs for it");
        return;
    }
    memcpy(urls, run->cluster.etcd, sizeof(urls));
    for (char *url = strsep(&rest, ","); url; url = strsep(&rest, ",")) {
        look_at_endpoint(url, run->cluster.certs[0] != '\0', findings);
    }
}
