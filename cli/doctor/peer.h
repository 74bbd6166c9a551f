/*
 * Who answers at an address with TLS, also when it is not believed: for saying why a handshake
 * fails.
 */
#ifndef KELP_CLI_DOCTOR_PEER_H
#define KELP_CLI_DOCTOR_PEER_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/tls/certificate.h"

struct kelp_peer {
    char trouble[256]; /* of the handshake with its certificate checked; "": it is believed */
    bool silent;       /* it does not answer in time */
    bool has_certificate;
    struct kelp_certificate certificate; /* believed or not */
};

/* address: numbers and a port; certs: the folder that is shown and believed. Says nothing to it but
 * the handshakes. Errors: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_peer_look(const char *address, const char *certs, uint32_t within_ms,
                           struct kelp_peer *ret_peer, struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Why its certificate is not to be believed as that of the role of a job, for people; false: it is,
 * or there is none. now_s: seconds since 1970. Pure.
 */
bool kelp_peer_judge(const struct kelp_peer *peer, enum kelp_role role, const char *job,
                     int64_t now_s, char *text, size_t text_bytes) KELP_MUST_USE;

#endif
