#include "common/base/address.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

/* The numbers of a host, an IPv6 one in brackets. */
static bool is_numeric_host(const char *text, size_t length)
{
    char host[INET6_ADDRSTRLEN + 1];
    struct in6_addr address = IN6ADDR_ANY_INIT;
    bool brackets = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    size_t count = brackets ? length - 2 : length;

    if (count >= sizeof(host)) {
        return false;
    }
    (void)snprintf(host, sizeof(host), "%.*s", (int)count, brackets ? text + 1 : text);
    return inet_pton(brackets ? AF_INET6 : AF_INET, host, &address) == 1 &&
           !IN6_IS_ADDR_UNSPECIFIED(&address); /* the bytes behind an IPv4 one are 0 */
}

bool kelp_address_is_dialled(const char *text, bool *ret_port)
{
    size_t host = host_length(text, strlen(text));
    const char *port = text + host + 1;

    *ret_port = text[host] == ':';
    if (!is_numeric_host(text, host) || (!*ret_port && text[host] != '\0')) {
        return false;
    }
    size_t digits = *ret_port ? strspn(port, "0123456789") : 0;
    return !*ret_port || (digits > 0 && digits <= 5 && port[digits] == '\0' && port[0] != '0' &&
                          strtoul(port, NULL, 10) <= UINT16_MAX);
}
