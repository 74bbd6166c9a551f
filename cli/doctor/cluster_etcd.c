/* etcd, by each of its members: do they answer here, who leads, how far away are they? */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/doctor/cluster.h"
#include "cli/doctor/side_by_side.h"
#include "common/base/clock.h"

#define CHECK "etcd"
/*
 * A tenth of a leader's lease, which has 3 s and is kept alive every second. Besides this way that
 * takes one between etcd's members and one to their disks, and what is lost is sent again. A longer
 * way leaves too little for them.
 */
#define ROUND_TRIP_US_MAX 300000
#define ROUND_TRIPS       5 /* of which the median counts: the first one connects as well */

/* ---- asking -------------------------------------------------------------------------------- */

/* So much is our clock behind theirs, which they have told in whole seconds while we waited. */
static int64_t behind(int64_t date_s, int64_t before_s, int64_t after_s)
{
    if (date_s == 0 || (date_s >= before_s - 1 && date_s <= after_s)) {
        return 0;
    }
    return date_s > after_s ? date_s - after_s : date_s - before_s;
}

static kelp_status ask_once(struct kelp_doctor_member *member, struct kelp_etcd *client,
                            uint32_t left_ms, uint64_t *ret_us)
{
    const int64_t before_s = (int64_t)time(NULL);
    const uint64_t begin_us = kelp_clock_us();

    kelp_status status = kelp_etcd_health(client, left_ms, &member->health, &member->error);
    *ret_us = kelp_clock_us() - begin_us;
    if (status == KELP_OK) {
        member->behind_s = behind(member->health.date_s, before_s, (int64_t)time(NULL));
    }
    return status;
}

static void ask_member(const struct kelp_doctor_cluster *cluster, struct kelp_doctor_member *member,
                       struct kelp_etcd *client)
{
    const uint64_t end_ms = kelp_clock_ms() + kelp_doctor_left(cluster);
    uint64_t us[ROUND_TRIPS];
    size_t count = 0;

    for (uint64_t now_ms = kelp_clock_ms(); count < ROUND_TRIPS && now_ms < end_ms;
         now_ms = kelp_clock_ms()) {
        if (ask_once(member, client, (uint32_t)(end_ms - now_ms), &us[count]) != KELP_OK) {
            break;
        }
        count++;
    }
    if (count > 0) { /* one answer says that it is there */
        member->error = (struct kelp_error){.status = KELP_OK};
        member->round_trip_us = kelp_doctor_median(us, count);
    } else if (member->error.status == KELP_OK) {
        (void)kelp_fail(&member->error, KELP_ERR_TIMEOUT, "not asked: the time was up");
    }
}

struct asked {
    struct kelp_doctor_cluster *cluster;
    size_t first;
};

static void look_at_member(size_t index, void *user)
{
    const struct asked *asked = user;
    struct kelp_doctor_member *member = &asked->cluster->members[asked->first + index];
    struct kelp_etcd *client = NULL;

    if (kelp_etcd_open_certified(member->url, asked->cluster->certs, &client, &member->error) ==
        KELP_OK) {
        ask_member(asked->cluster, member, client);
        kelp_etcd_close(client);
    }
}

/* Those from that one on. */
static void ask_members(struct kelp_doctor_cluster *cluster, size_t first)
{
    struct asked asked = {.cluster = cluster, .first = first};

    kelp_side_by_side(cluster->member_count - first, look_at_member, &asked);
}

/* ---- who belongs to it --------------------------------------------------------------------- */

static struct kelp_doctor_member *find_answer(struct kelp_doctor_cluster *cluster, uint64_t id)
{
    for (size_t i = 0; i < cluster->member_count; i++) {
        struct kelp_doctor_member *member = &cluster->members[i];
        if (member->error.status == KELP_OK && (id == 0 || member->health.member == id)) {
            return member;
        }
    }
    return NULL;
}

static struct kelp_doctor_member *find_url(struct kelp_doctor_cluster *cluster, const char *url)
{
    for (size_t i = 0; i < cluster->member_count; i++) {
        if (strcmp(cluster->members[i].url, url) == 0) {
            return &cluster->members[i];
        }
    }
    return NULL;
}

/* One that a member has named. Is it among those that were asked? Else it is added. */
static void add_member(struct kelp_doctor_cluster *cluster, const struct kelp_etcd_member *named)
{
    struct kelp_doctor_member *member = find_answer(cluster, named->id);

    member = member ? member : find_url(cluster, named->url);
    if (!member) {
        member = &cluster->members[cluster->member_count++];
        (void)snprintf(member->url, sizeof(member->url), "%s", named->url);
    }
    (void)snprintf(member->name, sizeof(member->name), "%s", named->name);
}

static void find_members(struct kelp_doctor_cluster *cluster,
                         const struct kelp_doctor_member *answered,
                         struct kelp_etcd_members *members)
{
    struct kelp_etcd *client = NULL;
    struct kelp_error error;

    kelp_status status = kelp_etcd_open_certified(answered->url, cluster->certs, &client, &error);
    if (status == KELP_OK) {
        status = kelp_etcd_members(client, kelp_doctor_left(cluster), members, &error);
    }
    kelp_etcd_close(client);
    if (status != KELP_OK) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "its members are not known: %.250s", error.text);
        return;
    }
    for (size_t i = 0; i < members->count; i++) {
        add_member(cluster, &members->list[i]);
    }
}

/* ---- telling ------------------------------------------------------------------------------- */

static void tell_member(struct kelp_doctor_cluster *cluster,
                        const struct kelp_doctor_member *member)
{
    const char *name = member->name[0] ? member->name : "a member";

    if (member->error.status != KELP_OK && member->url[0] == '\0') {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "%s has not started: it has no address", name);
    } else if (member->error.status != KELP_OK) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING, "%s does not answer: %s",
                          name, member->error.text);
    } else if (member->round_trip_us > ROUND_TRIP_US_MAX) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "%s at %s answers in %.0f ms: over %d ms, a tenth of the leader's lease, "
                          "so a leader may lose its lease for no other reason",
                          name, member->url, (double)member->round_trip_us / 1000,
                          ROUND_TRIP_US_MAX / 1000);
    } else {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          "%s at %s answers in %.1f ms, %s", name, member->url,
                          (double)member->round_trip_us / 1000, member->health.version);
    }
    if (member->error.status == KELP_OK && member->health.errors[0]) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "%s at %s says: %s (etcdctl alarm list, etcdctl endpoint status)", name,
                          member->url, member->health.errors);
    }
}

static void tell_silence(struct kelp_doctor_cluster *cluster)
{
    for (size_t i = 0; i < cluster->member_count; i++) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM, "%s",
                          cluster->members[i].error.text);
    }
}

/* Does a majority agree on who leads? Otherwise it can be asked for its members, and not for keys.
 */
static void tell_leader(struct kelp_doctor_cluster *cluster, size_t members)
{
    size_t answered = 0, led = 0;
    const struct kelp_doctor_member *leader = NULL;

    for (size_t i = 0; i < cluster->member_count; i++) {
        const struct kelp_doctor_member *member = &cluster->members[i];
        answered += member->error.status == KELP_OK;
        led += member->error.status == KELP_OK && member->health.leader != 0;
        if (member->error.status == KELP_OK && member->health.leader == member->health.member) {
            leader = member;
        }
    }
    if (led == 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "it has no leader, so nothing can be read or written: %zu of %zu members "
                          "answer, and most are needed",
                          answered, members);
    } else if (answered * 2 <= members) { /* if they are gone, one says so within a second */
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "%zu of %zu members answer here; without most of them nothing can be "
                          "read or written",
                          answered, members);
    } else if (leader && members > 1) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          "%zu of %zu members answer, and %s leads", answered, members,
                          leader->name[0] ? leader->name : leader->url);
    } else if (members > 1) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "%zu of %zu members answer; the one that leads does not answer here",
                          answered, members);
    }
}

static void tell_encryption(struct kelp_doctor_cluster *cluster)
{
    const struct kelp_doctor_member *member = find_answer(cluster, 0);

    assert(member); /* else there is nothing to tell */
    if (strncmp(member->url, "https://", 8) == 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          cluster->certs ? "encrypted, and both sides show a certificate"
                                         : "encrypted; it asks no client for a certificate");
    } else {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          "not encrypted: it is on this host only");
    }
}

/* ---- all of it ----------------------------------------------------------------------------- */

/* As --etcd has them. */
static kelp_status read_urls(struct kelp_doctor_cluster *cluster, struct kelp_error *reterr)
{
    char(*urls)[KELP_ETCD_ENDPOINT_MAX + 1] = NULL;
    size_t count = 0;

    kelp_status status = kelp_etcd_endpoints_parse(cluster->etcd, &urls, &count, reterr);
    for (size_t i = 0; status == KELP_OK && i < count; i++) {
        if (!find_url(cluster, urls[i])) {
            struct kelp_doctor_member *member = &cluster->members[cluster->member_count++];
            memcpy(member->url, urls[i], sizeof(member->url));
        }
    }
    free(urls);
    return status;
}

bool kelp_doctor_etcd(struct kelp_doctor_cluster *cluster, struct kelp_error *reterr)
{
    struct kelp_etcd_members members = {.count = 0};

    if (read_urls(cluster, reterr) != KELP_OK) {
        return false;
    }
    const size_t given = cluster->member_count;
    ask_members(cluster, 0);
    const struct kelp_doctor_member *answered = find_answer(cluster, 0);
    if (!answered) {
        tell_silence(cluster);
        *reterr = cluster->members[0].error;
        return false;
    }
    find_members(cluster, answered, &members);
    ask_members(cluster, given);
    for (size_t i = 0; i < cluster->member_count; i++) {
        tell_member(cluster, &cluster->members[i]);
    }
    tell_leader(cluster, members.count > 0 ? members.count : cluster->member_count);
    tell_encryption(cluster);
    return true;
}
