/* What people read when a connection could not be made, or broke: the texts are gRPC's own. */
#include "common/rpc/rpc_internal.h"
#include "tests/lib/suite.h"

#define FAILED "failed to connect to all addresses; last error: "

KELP_TEST(causes)
{
    static const struct {
        const char *says, *means;
    } cases[] = {
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: Failed to connect to remote host: Connection refused",
         "connection refused"},
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: tcp handshaker shutdown", "timed out"},
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: connection attempt timed out before receiving SETTINGS "
                "frame",
         "timed out: the connection was made, and nobody answers"},
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: Handshake read failed",
         "handshake failed: no answer in time"},
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL "
                "routines::certificate verify failed",
         "handshake failed: certificate ended or of another authority"},
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: Verify peer callback returned a failure (1)",
         "handshake failed: its certificate is another process's"},
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL "
                "routines::wrong version number",
         "handshake failed"},
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: Network is unreachable", "network is unreachable"},
        {FAILED "UNKNOWN: ipv4:10.0.0.6:1: No route to host", "no route to host"},
        {FAILED "UNKNOWN: unix:/tmp/s: No such file or directory", "its socket is gone"},
        {FAILED "UNAVAILABLE: ipv4:10.0.0.6:1: recvmsg:Connection reset by peer",
         "connection reset: its log may say why"},
        {FAILED "UNAVAILABLE: ipv4:10.0.0.6:1: Socket closed",
         "connection closed: its log may say why"},
        {"Socket closed", "connection closed: its log may say why"},
        {"recvmsg:Connection reset by peer", "connection reset: its log may say why"},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        ck_assert_str_eq(kelp__rpc_cause(cases[i].says), cases[i].means);
    }
}

/* What a server says, and what nobody has foreseen, stays as it is. */
KELP_TEST(other_texts)
{
    static const char *const texts[] = {"Connection refused by the door-keeper",
                                        "Socket closed by the door-keeper",
                                        FAILED "INTERNAL: ipv4:10.0.0.6:1: something new", ""};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(texts); i++) {
        ck_assert_str_eq(kelp__rpc_cause(texts[i]), texts[i]);
    }
}
