/*
 * A worker's place in the job: its stream to the leading coordinator, on a thread of its own, so
 * that reports go out while lanes are computed.
 *
 * The thread finds the leader in etcd, sends the hello with the plan, reports, and keeps
 * the newest map and assignment for the trainer to take. worker/core/joining.h decides.
 */
#ifndef KELP_WORKER_LINKS_COORDINATOR_LINK_H
#define KELP_WORKER_LINKS_COORDINATOR_LINK_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/etcd/etcd.h"
#include "common/tls/credentials.h"
#include "proto/kelp.pb-c.h"
#include "worker/core/joining.h"

struct kelp_coordinator_link_options {
    struct kelp_etcd *etcd;               /* borrowed until close */
    struct kelp_credentials *credentials; /* the same; NULL: no TLS */
    const Kelp__V1__Hello *hello;         /* the same */
    const char *plan;                     /* canonical text; borrowed until close */
    uint32_t connect_timeout_ms;
    void (*changed)(void *user); /* on the membership's thread: there is news to take */
    void *user;
};

struct kelp_coordinator_link;
kelp_status kelp_coordinator_link_open(const struct kelp_coordinator_link_options *options,
                                       struct kelp_coordinator_link **ret_link,
                                       struct kelp_error *reterr) KELP_MUST_USE;
void kelp_coordinator_link_close(struct kelp_coordinator_link *link);

/* Is there a stream to the leader? Threads: any. */
bool kelp_coordinator_link_joined(struct kelp_coordinator_link *link);

/* Take what is new: news->map is a struct kelp_worker_map (worker/links/wire_map.h). False:
 * nothing. Threads: the trainer's.
 */
bool kelp_coordinator_link_take_news(struct kelp_coordinator_link *link,
                                     struct kelp_news *ret_news);

/* What reports tell from now on (kelp_joining_trouble(), kelp_joining_leave()). Threads:
 * any. */
void kelp_coordinator_link_trouble(struct kelp_coordinator_link *link, const char *text);
void kelp_coordinator_link_leave(struct kelp_coordinator_link *link);
/* What the next reports tell. Threads: the trainer's. */
void kelp_coordinator_link_progress(struct kelp_coordinator_link *link,
                                    const struct kelp_joining_progress *progress);
/* The next report goes now. Threads: any. */
void kelp_coordinator_link_report(struct kelp_coordinator_link *link);
void kelp_coordinator_link_times(struct kelp_coordinator_link *link,
                                 const struct kelp_joining_times *times);

#endif
