#include "tests/lib/rpc_process.h"

#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- in the child process ---- */

static void serve(const struct kelp_rpc_server_options *options, const char *address, int report)
{
    struct kelp_rpc_server_options here = *options;
    struct kelp_rpc_loop *loop = NULL;
    struct kelp_rpc_server *server = NULL;
    struct kelp_error error = {0};

    here.address = address;
    kelp_rpc_global_init();
    if (kelp_rpc_loop_create(&loop, &error) != KELP_OK ||
        kelp_rpc_server_open(loop, &here, &server, &error) != KELP_OK) {
        (void)fprintf(stderr, "server: %s\n", error.text);
        _exit(1);
    }
    uint16_t port = kelp_rpc_server_port(server);
    if (write(report, &port, sizeof(port)) != sizeof(port)) {
        _exit(1);
    }
    for (;;) {
        (void)kelp_rpc_loop_run(loop, -1);
    }
}

/* ---- in the test ---- */

void kelp_test_rpc_fork(struct kelp_test_rpc_process *process,
                        const struct kelp_rpc_server_options *options, void (*prepare)(void))
{
    int go[2], report[2];
    char address[KELP_TEST_RPC_ADDRESS_BYTES];

    ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(report, O_CLOEXEC), 0);
    *process = (struct kelp_test_rpc_process){.pid = fork(), .go = go[1], .report = report[0]};
    ck_assert_int_ge(process->pid, 0);
    if (process->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(go[1]);
        if (read(go[0], address, sizeof(address)) != sizeof(address)) {
            _exit(1);
        }
        if (prepare) {
            prepare();
        }
        serve(options, address, report[1]);
    }
    (void)close(go[0]);
    (void)close(report[1]);
}

void kelp_test_rpc_serve(struct kelp_test_rpc_process *process, const char *address)
{
    char told[KELP_TEST_RPC_ADDRESS_BYTES] = "";

    ck_assert_uint_lt(strlen(address), sizeof(told));
    (void)snprintf(told, sizeof(told), "%s", address);
    ck_assert_int_eq(write(process->go, told, sizeof(told)), sizeof(told));
    ck_assert_int_eq(read(process->report, &process->port, sizeof(process->port)),
                     sizeof(process->port));
}

void kelp_test_rpc_address(const struct kelp_test_rpc_process *process, const char *host,
                           char address[KELP_TEST_RPC_ADDRESS_BYTES])
{
    (void)snprintf(address, KELP_TEST_RPC_ADDRESS_BYTES, "%s:%u", host, process->port);
}

int kelp_test_rpc_connect(const struct kelp_test_rpc_process *process)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(process->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

void kelp_test_rpc_end(struct kelp_test_rpc_process *process)
{
    if (process->pid > 0) {
        (void)kill(process->pid, SIGKILL);
        (void)waitpid(process->pid, NULL, 0);
        (void)close(process->go);
        (void)close(process->report);
        process->pid = 0;
    }
}

/* ---- methods and events ---- */

void kelp_test_rpc_echo(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                        void *server_user)
{
    (void)server_user;
    kelp_rpc_message_ref(message);
    kelp_rpc_request_answer(request, message);
}

const struct kelp_rpc_stream_events *kelp_test_rpc_accept(struct kelp_rpc_stream *stream,
                                                          void *server_user, void **ret_user)
{
    (void)stream;
    *ret_user = NULL;
    return server_user;
}

void kelp_test_rpc_ignore_closed(struct kelp_rpc_stream *stream, kelp_status status,
                                 const char *text, void *user)
{
    (void)stream;
    (void)status;
    (void)text;
    (void)user;
}
