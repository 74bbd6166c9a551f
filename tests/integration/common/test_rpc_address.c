/* Where a server listens, what clients are told, and that they reach it there. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/program/socket_folder.h"
#include "common/rpc/rpc.h"
#include "common/shm/shm_socket.h"
#include "tests/lib/suite.h"

#define BYTES_MAX       (1u << 20)
#define LARGE_BYTES_MAX (KELP_RPC_LOCAL_LARGE_BYTES + 1)
#define DESCRIPTORS     256

static void echo(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                 void *server_user)
{
    (void)server_user;
    kelp_rpc_message_ref(message);
    kelp_rpc_request_answer(request, message);
}

static const struct kelp_rpc_method methods[] = {{.path = "/test/Echo", .unary = echo}};

static struct kelp_rpc_loop *loop;
static size_t bytes_max; /* of servers and channels */
static struct kelp_error error;
static char folder[KELP_SOCKET_FOLDER_MAX + 1];
static int held;
static char address[KELP_SOCKET_FOLDER_MAX + 32]; /* unix:FOLDER/shard-0 */

static void setup(void)
{
    bytes_max = BYTES_MAX;
    kelp_rpc_global_init();
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, &error), KELP_OK);
    ck_assert_msg(kelp_socket_folder_make(folder, &held, &error) == KELP_OK, "%s", error.text);
    (void)snprintf(address, sizeof(address), "unix:%s/shard-0", folder);
}

static void teardown(void)
{
    kelp_rpc_loop_destroy(loop);
    kelp_rpc_global_fini();
    ck_assert_int_eq(close(held), 0);
    kelp_socket_folder_remove(folder);
    ck_assert_int_ne(access(folder, F_OK), 0);
}

static kelp_status serve(const char *at, struct kelp_rpc_server **ret_server)
{
    struct kelp_rpc_server_options options = {.address = at,
                                              .message_bytes_max = bytes_max,
                                              .methods = methods,
                                              .method_count = KELP_ARRAY_COUNT(methods)};
    return kelp_rpc_server_open(loop, &options, ret_server, &error);
}

static void *run_loop(void *user)
{
    while (!atomic_load((atomic_bool *)user)) {
        (void)kelp_rpc_loop_run(loop, 10);
    }
    return NULL;
}

/* The send buffers of the process's connections, as the system counts them. */
struct send_buffers {
    int count, least, most;
};

static struct send_buffers local, other; /* when expect_reached() had its answer */

static void look_at_sockets(void)
{
    local = other = (struct send_buffers){.count = 0};
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        struct sockaddr_storage peer;
        socklen_t peer_length = sizeof(peer), length = sizeof(int);
        int bytes = 0;
        if (getpeername(fd, (struct sockaddr *)&peer, &peer_length) != 0 ||
            getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length) != 0) {
            continue;
        }
        struct send_buffers *buffers = peer.ss_family == AF_UNIX ? &local : &other;
        buffers->least = buffers->count == 0 || bytes < buffers->least ? bytes : buffers->least;
        buffers->most = bytes > buffers->most ? bytes : buffers->most;
        buffers->count++;
    }
}

/* What a socket has that was asked for so many bytes: the system has a bound of its own. */
static int send_buffer_of(int bytes)
{
    socklen_t length = sizeof(bytes);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    if (bytes > 0) {
        ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
    }
    ck_assert_int_eq(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length), 0);
    ck_assert_int_eq(close(fd), 0);
    return bytes;
}

/* A server at that address; a client that dials what it is told gets an answer. */
static void expect_reached(const char *at, const char *start)
{
    struct kelp_rpc_server *server = NULL;
    struct kelp_rpc_channel *channel = NULL;
    struct kelp_rpc_message *message = kelp_rpc_message_create(), *answer = NULL;
    atomic_bool stop = false;
    pthread_t thread;

    ck_assert_msg(serve(at, &server) == KELP_OK, "%s", error.text);
    const char *dial = kelp_rpc_server_address(server);
    ck_assert_msg(strncmp(dial, start, strlen(start)) == 0, "%s for %s", dial, at);
    ck_assert_int_eq(
        kelp_rpc_channel_open(loop, dial, KELP_ROLE_SHARD, bytes_max, &channel, &error), KELP_OK);
    ck_assert_int_eq(kelp_rpc_message_copy(message, "hello", 5), KELP_OK);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_loop, &stop), 0);
    kelp_status status = kelp_rpc_call(channel, "/test/Echo", message, 10000, &answer, &error);
    ck_assert_msg(status == KELP_OK, "%s: %s", dial, error.text);
    ck_assert_uint_eq(kelp_rpc_message_length(answer), 5);
    kelp_rpc_message_unref(answer);
    look_at_sockets();
    atomic_store(&stop, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    kelp_rpc_channel_close(channel);
    kelp_rpc_server_close(server);
}

/* A socket as a process that was killed leaves it. */
static void leave_socket(void)
{
    struct sockaddr_un left = {.sun_family = AF_UNIX};

    (void)snprintf(left.sun_path, sizeof(left.sun_path), "%s", address + strlen("unix:"));
    (void)unlink(left.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&left, sizeof(left)), 0);
    ck_assert_int_eq(close(fd), 0);
}

KELP_CASE("address", .setup = setup, .teardown = teardown, .timeout_s = 60)

/* A host is told as numbers, with the port that was bound; what stands for every interface is not
 * told at all. */
KELP_TEST(hosts)
{
    struct kelp_rpc_server *server = NULL;

    expect_reached("127.0.0.1:0", "127.0.0.1:");
    expect_reached("localhost:0", "");
    expect_reached("0.0.0.0:0", "");
    ck_assert_int_eq(serve("0.0.0.0:0", &server), KELP_OK);
    ck_assert_ptr_null(strstr(kelp_rpc_server_address(server), "0.0.0.0:"));
    kelp_rpc_server_close(server);
    ck_assert_int_eq(serve("127.0.0.1", &server), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "HOST:PORT is expected"));
}

KELP_TEST(unix_socket)
{
    struct stat about;

    expect_reached(address, address);
    ck_assert_int_eq(stat(folder, &about), 0);
    ck_assert_uint_eq(about.st_mode & 07777, 0700);
}

/* Where large messages may pass, both ends of a local connection take more to be sent at a time;
 * where they may not, and at a port, they have what the system gives. */
KELP_TEST(send_buffers_of_local_sockets)
{
    const int usual = send_buffer_of(0);

    expect_reached(address, address);
    ck_assert_int_eq(local.count, 2);
    ck_assert_int_eq(local.most, usual);
    bytes_max = LARGE_BYTES_MAX;
    expect_reached("127.0.0.1:0", "127.0.0.1:");
    const struct send_buffers at_port = other;
    expect_reached(address, address);
    ck_assert_int_eq(local.count, 2);
    ck_assert_int_eq(local.least, send_buffer_of(KELP_RPC_LOCAL_SEND_BYTES));
    ck_assert_int_eq(local.most, local.least);
    expect_reached("127.0.0.1:0", "127.0.0.1:");
    ck_assert_int_eq(at_port.count, 2);
    ck_assert_int_eq(other.most, at_port.most);
}

/* One that serves keeps its socket; what a process that was killed left is replaced. */
KELP_TEST(unix_socket_in_use)
{
    struct kelp_rpc_server *first = NULL, *second = NULL;

    ck_assert_int_eq(serve(address, &first), KELP_OK);
    ck_assert_int_eq(serve(address, &second), KELP_ERR_EXISTS);
    ck_assert_ptr_nonnull(strstr(error.text, address));
    kelp_rpc_server_close(first);

    leave_socket();
    expect_reached(address, address);
}

/* What is advertised is what clients are told, with the port where it listens if it has none. */
KELP_TEST(advertised)
{
    static const struct {
        const char *advertise, *told;
    } cases[] = {{"203.0.113.7:7001", "203.0.113.7:7001"},
                 {"203.0.113.7", "203.0.113.7:"},
                 {"[2001:db8::7]", "[2001:db8::7]:"}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_rpc_server *server = NULL;
        struct kelp_rpc_server_options options = {.address = "127.0.0.1:0",
                                                  .advertise = cases[i].advertise,
                                                  .message_bytes_max = bytes_max,
                                                  .methods = methods,
                                                  .method_count = KELP_ARRAY_COUNT(methods)};
        char told[64];

        ck_assert_int_eq(kelp_rpc_server_open(loop, &options, &server, &error), KELP_OK);
        bool whole = cases[i].told[strlen(cases[i].told) - 1] != ':';
        (void)snprintf(told, sizeof(told), whole ? "%s" : "%s%u", cases[i].told,
                       kelp_rpc_server_port(server));
        ck_assert_str_eq(kelp_rpc_server_address(server), told);
        kelp_rpc_server_close(server);
    }
}

KELP_TEST(unix_paths)
{
    char path[200] = "unix:/";
    struct kelp_rpc_server *server = NULL;

    memset(path + 6, 'a', 150);
    ck_assert_int_eq(serve(path, &server), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "at most 107 bytes"));
    ck_assert_int_eq(serve("unix:shard-0", &server), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "absolute path"));
    ck_assert_int_eq(serve("unix:/nowhere/at/all", &server), KELP_ERR_EXISTS);
}

/* Only sockets go that nobody serves, and only from a folder that was made for them. */
KELP_TEST(removal)
{
    struct kelp_rpc_server *server = NULL;
    const char *path = address + strlen("unix:");

    ck_assert_int_eq(serve(address, &server), KELP_OK);
    kelp_socket_folder_remove(folder);
    ck_assert_int_eq(access(path, F_OK), 0);
    kelp_rpc_server_close(server);
    leave_socket();
    ck_assert_int_eq(chmod(folder, 0755), 0); /* as any other folder is */
    kelp_socket_folder_remove(folder);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(chmod(folder, 0700), 0);
}

/* What a process that was killed has left goes, and what is held, served or of others stays. */
KELP_TEST(left_by_a_killed_process)
{
    char left[3][KELP_SOCKET_FOLDER_MAX + 1], path[KELP_SOCKET_FOLDER_MAX + 32];
    struct sockaddr_un served = {.sun_family = AF_UNIX};
    int lock = -1;

    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(kelp_socket_folder_make(left[i], &lock, &error), KELP_OK);
        (void)snprintf(served.sun_path, sizeof(served.sun_path), "%.64s/shard-0", left[i]);
        int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(bind(server, (struct sockaddr *)&served, sizeof(served)), 0);
        ck_assert_int_eq(close(server), 0);
        kelp_socket_folder_clear();
        ck_assert_int_eq(access(served.sun_path, F_OK), 0); /* it is held */
        if (i == 1) {
            ck_assert_int_eq(chmod(left[1], 0755), 0);
        }
        ck_assert_int_eq(close(lock), 0); /* as when the process dies */
    }
    (void)snprintf(path, sizeof(path), "%s/of-another", left[2]);
    ck_assert_int_eq(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
    kelp_socket_folder_clear();
    ck_assert_int_ne(access(left[0], F_OK), 0);
    ck_assert_int_eq(access(left[1], F_OK), 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(access(folder, F_OK), 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(chmod(left[1], 0700), 0);
    kelp_socket_folder_clear();
    ck_assert_int_ne(access(left[1], F_OK), 0);
    ck_assert_int_ne(access(left[2], F_OK), 0);
}

/* So do those of shared memory, which have packets: a served one keeps the folder, a dead one goes.
 */
KELP_TEST(sockets_of_shared_memory)
{
    char path[KELP_SOCKET_FOLDER_MAX + 32];
    int listener = -1;

    (void)snprintf(path, sizeof(path), "%s/shard-0.0.shm", folder);
    ck_assert_int_eq(kelp_shm_listen(path, &listener, NULL), KELP_OK);
    kelp_socket_folder_remove(folder);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(close(listener), 0);
    kelp_socket_folder_remove(folder);
    ck_assert_int_ne(access(folder, F_OK), 0);
}
