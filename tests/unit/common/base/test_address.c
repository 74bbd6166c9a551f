/* Network addresses: which of them other machines reach. */
#include <string.h>

#include "common/base/address.h"
#include "common/base/status.h"
#include "tests/lib/suite.h"

/* Numbers of loopback, and the one name for it, with and without a port. */
KELP_TEST(loopback)
{
    static const char *const inside[] = {"127.0.0.1:0",    "127.0.0.1", "127.200.3.4:7001",
                                         "localhost:2379", "localhost", "[::1]:7000",
                                         "[::1]"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(inside); i++) {
        ck_assert_msg(kelp_address_is_loopback(inside[i], strlen(inside[i])), "%s", inside[i]);
    }
}

/* What only looks like it is somebody else's. */
KELP_TEST(elsewhere)
{
    static const char *const outside[] = {"0.0.0.0:7000",
                                          "10.0.0.5:2379",
                                          "[::]:7000",
                                          "[::1",
                                          "[fe80::1]:1",
                                          "::1",
                                          "127.example.org:7000",
                                          "127.0.0.1.example.org",
                                          "localhost.example.org:1",
                                          "127.0.0.1@10.0.0.5:1",
                                          "127.1:0",
                                          "",
                                          ":0"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(outside); i++) {
        ck_assert_msg(!kelp_address_is_loopback(outside[i], strlen(outside[i])), "%s", outside[i]);
    }
}

/* Only as many bytes as said are read. */
KELP_TEST(length)
{
    const char text[] = "127.0.0.1:1,10.0.0.5:1";

    ck_assert(kelp_address_is_loopback(text, strlen("127.0.0.1")));
    ck_assert(!kelp_address_is_loopback(text, strlen("127.0.0.")));
    ck_assert(!kelp_address_is_loopback("localhost", strlen("local")));
}

/* What can be dialled without asking anybody for a name. */
KELP_TEST(dialled)
{
    static const struct {
        const char *text;
        bool good, port;
    } cases[] = {
        {"203.0.113.7", true, false},
        {"203.0.113.7:7001", true, true},
        {"[2001:db8::7]", true, false},
        {"[2001:db8::7]:1", true, true},
        {"127.0.0.1:65535", true, true},
        {"0.0.0.0", false, false},
        {"0.0.0.0:7001", false, false},
        {"[::]:7001", false, false},
        {"a.example.org", false, false},
        {"localhost:1", false, false},
        {"203.0.113.7:", false, false},
        {"203.0.113.7:0", false, false},
        {"203.0.113.7:70000", false, false},
        {"203.0.113.7:1x", false, false},
        {"203.0.113.7:+1", false, false},
        {"203.0.113", false, false},
        {"2001:db8::7", false, false},
        {"[2001:db8::7", false, false},
        {"[203.0.113.7]:1", false, false},
        {"", false, false},
        {":7001", false, false},
        {"203.0.113.7 :1", false, false},
        {"[2001:db8::7]x", false, false},
        {"[::ffff:0.0.0.0]:1", false, false},
        {"[::ffff:203.0.113.7]:1", true, true},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        bool port = false;
        bool good = kelp_address_is_dialled(cases[i].text, &port);
        ck_assert_msg(good == cases[i].good && (!good || port == cases[i].port), "%s",
                      cases[i].text);
    }
}

/* Who reaches an address, in any way to write its numbers. */
KELP_TEST(kinds)
{
    static const struct {
        const char *text;
        enum kelp_address_kind kind;
    } cases[] = {
        {"unix:/run/shard-0", KELP_ADDRESS_SOCKET},
        {"127.0.0.1:0", KELP_ADDRESS_LOOPBACK},
        {"127.255.0.1", KELP_ADDRESS_LOOPBACK},
        {"localhost:7000", KELP_ADDRESS_LOOPBACK},
        {"[::1]:7000", KELP_ADDRESS_LOOPBACK},
        {"[0:0:0:0:0:0:0:1]", KELP_ADDRESS_LOOPBACK},
        {"[::ffff:127.0.0.1]:7000", KELP_ADDRESS_LOOPBACK},
        {"0.0.0.0:7000", KELP_ADDRESS_EVERY},
        {"[::]:7000", KELP_ADDRESS_EVERY},
        {"[0::0]", KELP_ADDRESS_EVERY},
        {"[::ffff:0.0.0.0]:7000", KELP_ADDRESS_EVERY},
        {"10.0.0.5:7000", KELP_ADDRESS_NUMBERS},
        {"[2001:db8::7]", KELP_ADDRESS_NUMBERS},
        {"[::ffff:10.0.0.5]:7000", KELP_ADDRESS_NUMBERS},
        {"128.0.0.1", KELP_ADDRESS_NUMBERS},
        {"a.example.org:7000", KELP_ADDRESS_NAME},
        {"localhost.example.org", KELP_ADDRESS_NAME},
        {"2001:db8::7", KELP_ADDRESS_NAME},
        {"", KELP_ADDRESS_NAME},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        ck_assert_msg(kelp_address_kind(cases[i].text) == cases[i].kind, "%s", cases[i].text);
    }
}

/* What is dialled without a resolver: numbers need a port, a socket needs a path from the root. */
KELP_TEST(targets)
{
    static const char *const good[] = {"unix:/run/s", "10.0.0.5:7000", "[2001:db8::7]:1"};
    static const char *const bad[] = {
        "unix:run/s", "10.0.0.5",           "a.example.org:7000",    "dns:///10.0.0.5:1",
        "0.0.0.0:1",  "ipv4:10.0.0.5:7000", "10.0.0.5:1,10.0.0.6:1", ""};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(good); i++) {
        ck_assert_msg(kelp_address_is_target(good[i]), "%s", good[i]);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        ck_assert_msg(!kelp_address_is_target(bad[i]), "%s", bad[i]);
    }
}
