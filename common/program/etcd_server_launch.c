#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/program/etcd_server_internal.h"

enum {
    ARGUMENTS_MAX = 32,
    ARGUMENT_BYTES = KELP_PROCESS_PATH_MAX + 32,
};

struct arguments {
    char texts[ARGUMENTS_MAX][ARGUMENT_BYTES];
    const char *argv[ARGUMENTS_MAX + 1];
    size_t count;
};

/* "--name=value" */
static void add(struct arguments *arguments, const char *name, const char *value)
{
    char *text = arguments->texts[arguments->count];

    assert(arguments->count < ARGUMENTS_MAX);
    (void)snprintf(text, ARGUMENT_BYTES, "--%s=%s", name, value);
    arguments->argv[arguments->count++] = text;
}

/* Who may connect, apart from the protection by the sockets' folder: no one without a
 * certificate, and no web page that finds the port, whichever host name it uses. */
static void add_doors(struct arguments *arguments, const struct kelp_etcd_server *server)
{
    const struct kelp_etcd_certificates *certificates = server->certificates;

    add(arguments, "cors", server->client_port != 0 ? server->url : "http://" CLIENT_SOCKET);
    add(arguments, "host-whitelist", "127.0.0.1,localhost");
    if (certificates) {
        add(arguments, "cert-file", certificates->certificate);
        add(arguments, "key-file", certificates->key);
        add(arguments, "trusted-ca-file", certificates->ca);
        add(arguments, "client-cert-auth", "true");
    }
}

static void fill_arguments(struct arguments *arguments, const struct kelp_etcd_server *server)
{
    char cluster[sizeof(server->name) + URL_BYTES];

    (void)snprintf(cluster, sizeof(cluster), "%s=%s", server->name, server->advertise);
    add(arguments, "name", server->name);
    add(arguments, "data-dir", server->data_folder);
    add(arguments, "listen-client-urls", server->client);
    add(arguments, "advertise-client-urls", server->client);
    add(arguments, "listen-peer-urls", server->peer);
    add(arguments, "initial-advertise-peer-urls", server->advertise);
    add(arguments, "initial-cluster", cluster);
    add(arguments, "initial-cluster-state", "new");
    add(arguments, "heartbeat-interval", "50");
    add(arguments, "election-timeout", "500");
    /* Old revisions would let the store grow without bound: shards renew their keys for weeks. */
    add(arguments, "auto-compaction-mode", "periodic");
    add(arguments, "auto-compaction-retention", "1h");
    add(arguments, "logger", "zap");
    add(arguments, "log-outputs", "stderr");
    /* etcd 3.4 warns of each request if certificates have no common name. */
    add(arguments, "log-level", server->certificates ? "error" : "warn");
    add_doors(arguments, server);
}

kelp_status kelp__etcd_server_launch(struct kelp_etcd_server *server, const char *program,
                                     const struct kelp_etcd_server_options *options, int log_fd,
                                     struct kelp_error *reterr)
{
    static const char *const unset[] = {"ETCD_*",   "http_proxy", "https_proxy", "all_proxy",
                                        "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
                                        "NO_PROXY", NULL};
#ifdef __aarch64__
    static const char *const set[] = {"ETCD_UNSUPPORTED_ARCH=arm64", NULL};
#else
    static const char *const set[] = {NULL};
#endif
    struct arguments *arguments = calloc(1, sizeof(*arguments));

    if (!arguments) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    arguments->argv[arguments->count++] = program;
    fill_arguments(arguments, server);
    struct kelp_process_options process = {.argv = arguments->argv,
                                           .set_environment = set,
                                           .unset_environment = unset,
                                           .folder = options->socket_folder,
                                           .stdout_fd = log_fd,
                                           .stderr_fd = log_fd};
    kelp_status status = kelp_process_start(&process, &server->process, reterr);
    free(arguments);
    return status;
}
