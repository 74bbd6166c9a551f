/* Network addresses as texts: "HOST:PORT" or "HOST", an IPv6 host in brackets. Pure. */
#ifndef KELP_COMMON_BASE_ADDRESS_H
#define KELP_COMMON_BASE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

/* Is it loopback, which no other machine reaches? A name may be any machine's, but for localhost.
 * text need not end after length. */
bool kelp_address_is_loopback(const char *text, size_t length);

/* Can it be dialled as it stands: numbers, none of them 0.0.0.0 or [::], and a port from 1 on or
 * none? *ret_port says whether there is one. */
bool kelp_address_is_dialled(const char *text, bool *ret_port);

#endif
