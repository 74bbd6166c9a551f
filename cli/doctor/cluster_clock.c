/* This host's clock against those of etcd's hosts, as far as their answers tell: whole seconds. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/doctor/cluster.h"

#define CHECK "clock"
/* Nothing that Kelp computes or decides depends on the date, but certificates begin five minutes
 * before they are made, and logs of several hosts are read together. */
#define WARNING_S 3 /* hosts that keep time differ by milliseconds; answers tell whole seconds */
#define PROBLEM_S 60

void kelp_doctor_clock(struct kelp_doctor_cluster *cluster)
{
    size_t known = 0, off = 0;

    for (size_t i = 0; i < cluster->member_count; i++) {
        const struct kelp_doctor_member *member = &cluster->members[i];
        const uint64_t by_s = (uint64_t)llabs(member->behind_s);

        if (member->error.status != KELP_OK || member->health.date_s == 0) {
            continue;
        }
        known++;
        if (by_s < WARNING_S) {
            continue;
        }
        off++;
        kelp_findings_add(cluster->findings, CHECK,
                          by_s >= PROBLEM_S ? KELP_FINDING_PROBLEM : KELP_FINDING_WARNING,
                          "clock of this host is %" PRIu64 " s %s etcd's host %s (use NTP)", by_s,
                          member->behind_s > 0 ? "behind" : "ahead of", member->url);
    }
    if (known == 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "not known: etcd's answers have no date");
    } else if (off == 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          "clock of this host is within %d s of etcd's", WARNING_S);
    }
}
