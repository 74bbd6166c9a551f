/* Why a connection could not be made, or broke: a few words that replace gRPC's text. */
#include <string.h>

#include "common/rpc/rpc_internal.h"

static const char failed[] = "failed to connect to all addresses";

/* Parts of gRPC's texts and what they mean; the first match counts. */
static const struct {
    const char *says, *means;
} causes[] = {
    {"Connection refused", "connection refused"},
    {"tcp handshaker shutdown", "timed out"}, /* no answer to the first packet */
    {"timed out before receiving SETTINGS",
     "timed out: the connection was made, and nobody answers"},
    {"Handshake read failed", "handshake failed: no answer in time"},
    {"certificate verify failed", "handshake failed: certificate ended or of another authority"},
    {"Verify peer callback", "handshake failed: its certificate is another process's"},
    {"andshake failed", "handshake failed"},
    {"No route to host", "no route to host"},
    {"Network is unreachable", "network is unreachable"},
    {"No such file or directory", "its socket is gone"},
    {"reset by peer", "connection reset: its log may say why"},
    {"Socket closed", "connection closed: its log may say why"},
};

/* Texts of connections that were made and then broke. */
static const char *const broken[] = {"Socket closed", "recvmsg:Connection reset by peer"};

static bool is_grpcs(const char *text)
{
    bool is = strncmp(text, failed, strlen(failed)) == 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(broken); i++) {
        is = is || strcmp(text, broken[i]) == 0;
    }
    return is;
}

const char *kelp__rpc_cause(const char *text)
{
    for (size_t i = 0; is_grpcs(text) && i < KELP_ARRAY_COUNT(causes); i++) {
        if (strstr(text, causes[i].says)) {
            return causes[i].means;
        }
    }
    return text;
}
