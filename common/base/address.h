/* Network addresses as texts: "HOST:PORT" or "HOST", an IPv6 host in brackets. Pure. */
#ifndef KELP_COMMON_BASE_ADDRESS_H
#define KELP_COMMON_BASE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

/* Is it loopback, which no other machine reaches? A name may be any machine's, but for localhost.
 * text need not end after length. */
bool kelp_address_is_loopback(const char *text, size_t length);

#endif
