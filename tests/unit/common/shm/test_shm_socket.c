/* Where two processes meet for shared memory: who listens, who may connect, and what is replaced.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/shm/shm_channel.h"
#include "common/shm/shm_socket.h"
#include "tests/lib/suite.h"

static char folder[] = "/tmp/kelp-test-XXXXXX";
static char path[64];

static void folder_setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/meet", folder);
}

static void folder_teardown(void)
{
    (void)unlink(path);
    (void)rmdir(folder);
}

/* A message goes from one to the other; both sockets are used up. */
static void say(int from_socket, int to_socket)
{
    const struct kelp_shm_part part = {.bytes = "x", .length = 1};
    struct kelp_shm_channel *from, *to;
    struct kelp_shm_message *message = NULL;

    ck_assert_int_eq(kelp_shm_channel_open(from_socket, 100, &from, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_channel_open(to_socket, 100, &to, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_channel_receive(from, &message, NULL), KELP_ERR_BUSY); /* the hello */
    ck_assert_int_eq(kelp_shm_channel_send(from, &part, 1, NULL, NULL, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_channel_receive(to, &message, NULL), KELP_OK);
    kelp_shm_message_release(message);
    kelp_shm_channel_close(from);
    kelp_shm_channel_close(to);
}

KELP_SUITE(.fork_each = true)
KELP_CASE("meeting", .setup = folder_setup, .teardown = folder_teardown)

/* Two ends meet at a path of mode 0600. */
KELP_TEST(listen_and_connect)
{
    struct kelp_error error;
    struct stat about;
    int listener, server, client, none;

    ck_assert_int_eq(kelp_shm_connect(path, &none, &error), KELP_ERR_UNREACHABLE);
    ck_assert_int_eq(kelp_shm_listen(path, &listener, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_accept(listener, &none, NULL), KELP_ERR_BUSY);
    ck_assert_int_eq(kelp_shm_listen(path, &none, &error), KELP_ERR_EXISTS);
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert_uint_eq(about.st_mode & 0777, 0600);
    ck_assert_int_eq(kelp_shm_accept(listener, &none, NULL), KELP_OK); /* somebody has looked */
    (void)close(none);
    ck_assert_int_eq(kelp_shm_connect(path, &client, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_accept(listener, &server, NULL), KELP_OK);
    say(server, client);
    (void)close(listener);
    ck_assert_int_eq(kelp_shm_connect(path, &none, NULL), KELP_ERR_UNREACHABLE);
}

/* What a dead process left is replaced, and nothing else is. */
KELP_TEST(listen_where_something_is)
{
    struct kelp_error error;
    int dead, listener, client, file;

    ck_assert_int_eq(kelp_shm_listen(path, &dead, NULL), KELP_OK);
    (void)close(dead);
    ck_assert_int_eq(kelp_shm_listen(path, &listener, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_connect(path, &client, NULL), KELP_OK);
    (void)close(client);
    (void)close(listener);
    ck_assert_int_eq(unlink(path), 0);
    file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_ge(file, 0);
    (void)close(file);
    ck_assert_int_eq(kelp_shm_listen(path, &listener, &error), KELP_ERR_EXISTS);
    ck_assert_ptr_nonnull(strstr(error.text, "cannot listen at '"));
    ck_assert_int_eq(access(path, F_OK), 0);
}

/* Paths that no socket can have. */
KELP_TEST(paths)
{
    char longest[200];
    struct kelp_error error;
    int none;

    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    ck_assert_int_eq(kelp_shm_listen(longest, &none, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "its path has 1 to 107 bytes"));
    ck_assert_int_eq(kelp_shm_connect("", &none, NULL), KELP_ERR_INVALID);
    (void)snprintf(path, sizeof(path), "%s/none/meet", folder);
    ck_assert_int_eq(kelp_shm_listen(path, &none, &error), KELP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "cannot listen at '"));
}

/* Another user's process is turned away, on both sides (root alone can be another one). */
KELP_TEST(another_user)
{
    struct kelp_error error;
    int listener, fd;

    if (geteuid() != 0) {
        return;
    }
    ck_assert_int_eq(kelp_shm_listen(path, &listener, NULL), KELP_OK);
    ck_assert_int_eq(chmod(folder, 0755), 0);
    ck_assert_int_eq(seteuid(12345), 0);
    ck_assert_int_eq(kelp_shm_connect(path, &fd, &error), KELP_ERR_DENIED);
    ck_assert_ptr_nonnull(strstr(error.text, "Permission denied"));
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert_int_eq(seteuid(12345), 0);
    ck_assert_int_eq(kelp_shm_connect(path, &fd, &error), KELP_ERR_DENIED);
    ck_assert_str_eq(error.text, "the other process is user 0's, and this one user 12345's");
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(kelp_shm_accept(listener, &fd, &error), KELP_ERR_DENIED);
    ck_assert_str_eq(error.text, "the other process is user 12345's, and this one user 0's");
    (void)close(listener);
}
