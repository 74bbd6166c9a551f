#include "common/base/address.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOCKET_SCHEME "unix:"

/* Bytes of HOST in "HOST:PORT" or "HOST". */
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

/* Read a numeric host, IPv6 in brackets; false: not one. IPv4 becomes a mapped IPv6 address. */
static bool read_numbers(const char *text, size_t length, struct in6_addr *ret_address)
{
    char host[INET6_ADDRSTRLEN + 1];
    struct in_addr in4;
    bool brackets = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    size_t count = brackets ? length - 2 : length;

    if (count >= sizeof(host)) {
        return false;
    }
    (void)snprintf(host, sizeof(host), "%.*s", (int)count, brackets ? text + 1 : text);
    if (brackets) {
        return inet_pton(AF_INET6, host, ret_address) == 1;
    }
    if (inet_pton(AF_INET, host, &in4) != 1) {
        return false;
    }
    *ret_address = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(&ret_address->s6_addr[12], &in4, sizeof(in4));
    return true;
}

static bool is_every(const struct in6_addr *address)
{
    static const uint8_t none[4] = {0};

    return IN6_IS_ADDR_UNSPECIFIED(address) ||
           (IN6_IS_ADDR_V4MAPPED(address) && memcmp(&address->s6_addr[12], none, 4) == 0);
}

enum kelp_address_kind kelp_address_kind(const char *text)
{
    struct in6_addr address;
    size_t host = host_length(text, strlen(text));

    if (strncmp(text, SOCKET_SCHEME, strlen(SOCKET_SCHEME)) == 0) {
        return KELP_ADDRESS_SOCKET;
    }
    if (host == strlen("localhost") && strncmp(text, "localhost", host) == 0) {
        return KELP_ADDRESS_LOOPBACK;
    }
    if (!read_numbers(text, host, &address)) {
        return KELP_ADDRESS_NAME;
    }
    if (is_every(&address)) {
        return KELP_ADDRESS_EVERY;
    }
    return IN6_IS_ADDR_LOOPBACK(&address) ||
                   (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127)
               ? KELP_ADDRESS_LOOPBACK
               : KELP_ADDRESS_NUMBERS;
}

bool kelp_address_is_dialled(const char *text, bool *ret_port)
{
    struct in6_addr address;
    size_t host = host_length(text, strlen(text));
    const char *port = text + host + 1;

    *ret_port = text[host] == ':';
    if (!read_numbers(text, host, &address) || is_every(&address) ||
        (!*ret_port && text[host] != '\0')) {
        return false;
    }
    size_t digits = *ret_port ? strspn(port, "0123456789") : 0;
    return !*ret_port || (digits > 0 && digits <= 5 && port[digits] == '\0' && port[0] != '0' &&
                          strtoul(port, NULL, 10) <= UINT16_MAX);
}

bool kelp_address_is_target(const char *text)
{
    bool has_port = false;

    return strncmp(text, SOCKET_SCHEME "/", strlen(SOCKET_SCHEME "/")) == 0 ||
           (kelp_address_is_dialled(text, &has_port) && has_port);
}
