/*
 * Where a daemon serves, and what it registers in etcd for others to dial. Only numbers are
 * registered, and they are those of an address that others reach: where etcd is on another machine,
 * that is the address which this host uses towards it, unless the options say another one.
 *
 *     --listen         etcd here                  etcd on another machine
 *     none             127.0.0.1:0                the source address, a free port   AT_SOURCE
 *     0.0.0.0, [::]    the first interface's      the source address                BY_SOURCE
 *     loopback         as it listens              refused
 *     another          as it listens              as it listens
 *
 * --advertise says what is registered instead; it is no loopback either where etcd is on another
 * machine.
 */
#ifndef KELP_COMMON_PROGRAM_SERVING_H
#define KELP_COMMON_PROGRAM_SERVING_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/address.h"
#include "common/base/status.h"

#define KELP_SERVING_ADDRESS_MAX 255 /* bytes of --listen */
#define KELP_SERVING_HOST_MAX    47  /* bytes of a host in numbers, with brackets */
#define KELP_SERVING_PEERS_MAX   16  /* addresses of etcd that are tried */

enum kelp_serving_rule {
    KELP_SERVING_AS_GIVEN,  /* by the options alone */
    KELP_SERVING_AT_SOURCE, /* listens at the source address */
    KELP_SERVING_BY_SOURCE  /* listens everywhere, and is known by the source address */
};

/* Texts are borrowed. */
struct kelp_serving_options {
    const char *etcd;      /* endpoints, which were checked */
    const char *listen;    /* NULL: not given */
    const char *advertise; /* NULL: not given; else kelp_address_is_dialled() */
    bool certified;        /* it has certificates */
    bool one_machine;      /* all of the job runs here, wherever etcd is */
};

/* A socket address of either family. */
union kelp_serving_peer {
    struct sockaddr any;
    struct sockaddr_in in4;
    struct sockaddr_in6 in6;
};

struct kelp_serving {
    struct kelp_serving_options options;
    enum kelp_serving_rule rule;
    /* In numbers, or a socket; with AT_SOURCE "" until the source is found. */
    char listen[KELP_SERVING_ADDRESS_MAX + 1];
    char source[KELP_SERVING_HOST_MAX + 1];                /* "": not found yet */
    union kelp_serving_peer peers[KELP_SERVING_PEERS_MAX]; /* of etcd, once the source is found */
    size_t peer_count;
};

/* What follows from where etcd is (remote: on another machine) and from the kind of --listen in
 * numbers. Pure. Errors: KELP_ERR_INVALID, whose text begins with the option that is wrong. */
kelp_status kelp_serving_choose(const struct kelp_serving_options *options, bool remote,
                                enum kelp_address_kind listen, enum kelp_serving_rule *ret_rule,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Decide, and look a name in --listen up. Errors: as kelp_serving_choose(). */
kelp_status kelp_serving_init(struct kelp_serving *serving,
                              const struct kelp_serving_options *options,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Find the source address where the rule needs one, else do nothing. Sends nothing; names of etcd
 * are looked up, which may take as long as the resolver does. Errors: KELP_ERR_UNREACHABLE (no way
 * to etcd now: try again), KELP_ERR_INVALID (etcd's name stands for this host, so nobody knows what
 * others dial). */
kelp_status kelp_serving_find(struct kelp_serving *serving,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* What is registered besides the port: --advertise, the source, or NULL: as it listens. */
const char *kelp_serving_advertise(const struct kelp_serving *serving);

/* Before something is registered, perhaps again: is it still what others can dial? */
enum kelp_serving_now {
    KELP_SERVING_SAME,
    KELP_SERVING_MOVED,  /* listens everywhere, and the source is another one: in ret_host */
    KELP_SERVING_GONE,   /* it listens where nobody finds it any more: it has to be started again */
    KELP_SERVING_UNKNOWN /* no way to etcd now: try again */
};
/* registered: the host that was registered last, when the rule is BY_SOURCE. No name is looked up,
 * and nothing waits. reterr has a line unless it is SAME. Any thread. */
enum kelp_serving_now kelp_serving_look(const struct kelp_serving *serving, const char *registered,
                                        char ret_host[KELP_SERVING_HOST_MAX + 1],
                                        struct kelp_error *reterr) KELP_MUST_USE;

#endif
