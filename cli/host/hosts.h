/*
 * The hosts that run a job, as etcd has them: /kelp/<job>/hosts/<host>, each with a lease and what
 * the host has room for. A host stands there as long as its kelp node lives, so the list also says
 * whether anybody runs the job.
 */
#ifndef KELP_CLI_HOST_HOSTS_H
#define KELP_CLI_HOST_HOSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/host/share.h"
#include "common/base/status.h"
#include "common/etcd/etcd.h"

#define KELP_HOST_NAME_MAX 20   /* bytes of a host's name: HOST.coordinator-15 names a process */
#define KELP_HOSTS_MAX     1024 /* of one job */
#define KELP_HOST_ROOM_MAX 1024 /* processes of a kind */
#define KELP_HOSTS_TTL_S   5    /* a host that is lost is gone after that */

struct kelp_hosts_entry {
    char host[KELP_HOST_NAME_MAX + 1];
    struct kelp_room shards;
    struct kelp_room workers;
    /* The process that stands for it: known to be gone by those who share its kernel. */
    char kernel[64]; /* its boot, and its namespace of processes */
    uint32_t pid;
    uint64_t nonce; /* of the entry */
};

/* ---- an entry (pure) ----------------------------------------------------------------------- */

/* As etcd has it: *ret_text is owned (free()). Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_hosts_print(const struct kelp_hosts_entry *host, char **ret_text,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* key: the entry's whole key. Errors: KELP_ERR_FORMAT, KELP_ERR_LIMIT. */
kelp_status kelp_hosts_parse(const char *key, const char *text, struct kelp_hosts_entry *ret_host,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* ---- who is there -------------------------------------------------------------------------- */

struct kelp_hosts_list {
    struct kelp_hosts_entry *hosts; /* in the order of their names; owned (free()) */
    size_t count;
};

/* Ask once. Errors: those of etcd and of kelp_hosts_parse(). */
kelp_status kelp_hosts_list(struct kelp_etcd *etcd, const char *job, uint32_t deadline_ms,
                            struct kelp_hosts_list *ret_list,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* Their names, "a, b, c"; the text is cut where it is full. */
void kelp_hosts_names(const struct kelp_hosts_list *list, char *text, size_t text_bytes);

/* ---- to be one of them --------------------------------------------------------------------- */

/* Threads: one; etcd's client works on its own. */
struct kelp_hosts;

/*
 * Stand in the list, and see who else does. What of the host is the caller's to fill: its name and
 * its room. An entry of that name whose process is dead gives way. Errors: KELP_ERR_EXISTS (its
 * process lives on this machine), KELP_ERR_BUSY (it is elsewhere; if it is lost, its entry is gone
 * after KELP_HOSTS_TTL_S), those of etcd. etcd is borrowed until the close.
 */
kelp_status kelp_hosts_join(struct kelp_etcd *etcd, const char *job,
                            const struct kelp_hosts_entry *host, struct kelp_hosts **ret_hosts,
                            struct kelp_error *reterr) KELP_MUST_USE;
/*
 * Stand there again when etcd has lost the entry, at most once a second; now in ms. Errors:
 * KELP_ERR_EXISTS and KELP_ERR_BUSY: somebody else goes by that name now. What etcd has not
 * answered is tried again by the next call.
 */
kelp_status kelp_hosts_tend(struct kelp_hosts *hosts, uint64_t now,
                            struct kelp_error *reterr) KELP_MUST_USE;

enum kelp_hosts_kind { KELP_HOSTS_SHARDS, KELP_HOSTS_WORKERS };
/* Of the processes of a kind that are wanted in all, how many are this host's to run? Those of
 * hosts that are not in the list do not count. */
uint32_t kelp_hosts_share(struct kelp_hosts *hosts, enum kelp_hosts_kind kind, uint32_t wanted);

/* The entry goes, as far as etcd answers. NULL is fine. */
void kelp_hosts_leave(struct kelp_hosts *hosts);

#endif
