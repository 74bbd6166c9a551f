/* Network addresses as texts: "HOST:PORT" or "HOST", an IPv6 host in brackets. Pure. */
#ifndef KELP_COMMON_BASE_ADDRESS_H
#define KELP_COMMON_BASE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

/* Who can reach it, as far as the text tells: nobody is asked for a name. */
enum kelp_address_kind {
    KELP_ADDRESS_SOCKET,   /* "unix:/PATH" */
    KELP_ADDRESS_LOOPBACK, /* no other machine: numbers of loopback, or localhost */
    KELP_ADDRESS_EVERY,    /* 0.0.0.0 or [::], which stand for every address of a host */
    KELP_ADDRESS_NUMBERS,  /* any other numbers */
    KELP_ADDRESS_NAME      /* what has to be looked up, if it is an address at all */
};
enum kelp_address_kind kelp_address_kind(const char *text);

/* Is it loopback, which no other machine reaches? A name may be any machine's, but for localhost.
 * text need not end after length. */
bool kelp_address_is_loopback(const char *text, size_t length);

/* Can it be dialled as it stands: numbers, none of them 0.0.0.0 or [::], and a port from 1 on or
 * none? *ret_port says whether there is one. */
bool kelp_address_is_dialled(const char *text, bool *ret_port);

/* Can gRPC dial it without a resolver: "unix:/PATH", or numbers with a port? What comes from etcd
 * or in a message must be that; a resolver waits half a minute for a server that is gone. */
bool kelp_address_is_target(const char *text);

#endif
