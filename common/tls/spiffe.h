/*
 * The name in a certificate: "spiffe://kelp/<job>/<role>[/<id>]". A role is what methods are
 * allowed to; without an id the certificate stands for every id of its role. An etcd belongs to no
 * job: "spiffe://kelp/etcd".
 */
#ifndef KELP_COMMON_TLS_SPIFFE_H
#define KELP_COMMON_TLS_SPIFFE_H

#include "common/base/status.h"

#define KELP_SPIFFE_NAME_MAX 63  /* bytes of a job's name or an id */
#define KELP_SPIFFE_MAX      191 /* bytes of the whole name */

enum kelp_role {
    KELP_ROLE_COORDINATOR, /* leads, and stands by to lead */
    KELP_ROLE_SHARD,
    KELP_ROLE_WORKER,
    KELP_ROLE_OPERATOR, /* a person who steers */
    KELP_ROLE_READER,   /* a person or program that looks */
    KELP_ROLE_ETCD,
};
#define KELP_ROLE_BIT(role) (1u << (role))
/* In the order of the roles, then NULL. */
extern const char *const kelp_role_names[];

struct kelp_spiffe {
    enum kelp_role role;
    char job[KELP_SPIFFE_NAME_MAX + 1]; /* "" for an etcd alone */
    char id[KELP_SPIFFE_NAME_MAX + 1];  /* "": every id */
};

/* 1 to 63 letters, digits, '-', '_' or '.', and neither "." nor "..". */
bool kelp_spiffe_is_name(const char *text, size_t length);

/* text need not end after length. Errors: KELP_ERR_FORMAT. */
kelp_status kelp_spiffe_parse(const char *text, size_t length, struct kelp_spiffe *ret_name,
                              struct kelp_error *reterr) KELP_MUST_USE;
void kelp_spiffe_print(const struct kelp_spiffe *name, char text[KELP_SPIFFE_MAX + 1]);

/* The name that a server of this role has among its DNS names, whatever its address. */
#define KELP_ROLE_HOST_MAX 31
void kelp_role_host(enum kelp_role role, char host[KELP_ROLE_HOST_MAX + 1]);

/* May a process of that name call itself id? */
bool kelp_spiffe_allows(const struct kelp_spiffe *name, const char *id);

#endif
