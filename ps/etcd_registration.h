/*
 * A shard's entry in etcd: /kelp/<job>/ps/<shard> with a lease, value
 * {"address":"host:port","incarnation":"<decimal>","build":"<text>","zone":"<name>"}, the zone if
 * it has one. One thread puts it there, and again after the lease was lost; it never gives up. A
 * process that finds another incarnation in its entry has been replaced. One that finds shards of
 * another build waits until they are gone; when they stay for longer than a lease it is refused,
 * and has changed nothing.
 *
 * Each time it registers, and while it is registered, it looks its address up again
 * (kelp_serving_look()). When the address that
 * others know it by is not its own any more, it ends: an incarnation has one address, by which the
 * map, workers and other shards know it. The process that is started next has the new one.
 */
#ifndef KELP_PS_ETCD_REGISTRATION_H
#define KELP_PS_ETCD_REGISTRATION_H

#include <stdint.h>

#include "common/etcd/etcd.h"
#include "common/program/serving.h"
#include "ps/etcd_build.h"

struct kelp_registration;

/* Everything is borrowed until the close. */
struct kelp_registration_options {
    struct kelp_etcd *etcd;
    const char *job;
    const char *shard;
    const char *address;
    const struct kelp_serving *serving;
    uint64_t incarnation;
    const char *zone; /* "": none; as an id */
    bool mixed;       /* shards of a job need not compute alike */
    /* Another process has taken the entry: this one must end. Any thread, at most once. */
    void (*replaced)(void *user);
    /* The job's shards are of another build, or nobody finds this one any more
     * (KELP_ERR_UNREACHABLE): it must end. Any thread, at most once. */
    void (*refused)(const struct kelp_error *why, void *user);
    void *user;
};

kelp_status kelp_registration_open(const struct kelp_registration_options *options,
                                   struct kelp_registration **ret_registration,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Does its entry be in etcd now, as far as we know? Any thread. */
bool kelp_registration_holds(struct kelp_registration *registration);
/* Takes the entry away, as far as etcd answers. NULL does nothing. */
void kelp_registration_close(struct kelp_registration *registration);

#endif
