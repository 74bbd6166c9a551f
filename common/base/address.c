#include "common/base/address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

/* The bytes of HOST in "HOST:PORT" or "HOST". */
static size_t host_length(const char *text, size_t length)
{
    const char *end = length > 0 && text[0] == '[' ? memchr(text, ']', length) : NULL;
    const char *colon = memchr(text, ':', length);

    if (end) {
        return (size_t)(end - text) + 1;
    }
    return colon ? (size_t)(colon - text) : length;
}

bool kelp_address_is_loopback(const char *text, size_t length)
{
    char host[INET6_ADDRSTRLEN + 2];
    struct in_addr address;
    size_t count = host_length(text, length);

    if (count >= sizeof(host)) {
        return false;
    }
    (void)snprintf(host, sizeof(host), "%.*s", (int)count, text);
    return strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
           (inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}
