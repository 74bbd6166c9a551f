#include "tests/lib/etcd/etcd_certified.h"

#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATH_BYTES 400

static uint16_t free_port(int *ret_fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *ret_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(*ret_fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(*ret_fd, (struct sockaddr *)&address, &length), 0);
    return ntohs(address.sin_port);
}

static const char *path_of(const char *folder, const char *name, const char *rest,
                           char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/%s%s", folder, name, rest);
    return path;
}

struct kelp_process *etcd_certified_start(const char *folder, const char *certs, const char *host,
                                          char ret_url[64])
{
    char data[PATH_BYTES], log[PATH_BYTES], certificate[PATH_BYTES], key[PATH_BYTES],
        ca[PATH_BYTES], peer[64], initial[80], program[KELP_PROCESS_PATH_MAX];
    struct kelp_process *etcd = NULL;
    int fds[2];
    struct kelp_error error;
    static const char *const unset[] = {"ETCD_*", NULL};

    (void)snprintf(ret_url, 64, "https://%s:%u", host, free_port(&fds[0]));
    (void)snprintf(peer, sizeof(peer), "http://127.0.0.1:%u", free_port(&fds[1]));
    (void)snprintf(initial, sizeof(initial), "default=%s", peer);
    (void)close(fds[0]);
    (void)close(fds[1]);
    if (kelp_process_find("etcd", program, NULL) != KELP_OK) {
        (void)snprintf(program, sizeof(program), "/usr/bin/etcd");
    }
    const char *argv[] = {program,
                          "--data-dir",
                          path_of(folder, "etcd-data", "", data),
                          "--listen-client-urls",
                          ret_url,
                          "--advertise-client-urls",
                          ret_url,
                          "--listen-peer-urls",
                          peer,
                          "--initial-advertise-peer-urls",
                          peer,
                          "--initial-cluster",
                          initial,
                          "--cert-file",
                          path_of(folder, certs, "/cert.pem", certificate),
                          "--key-file",
                          path_of(folder, certs, "/key.pem", key),
                          "--trusted-ca-file",
                          path_of(folder, certs, "/ca.pem", ca),
                          "--client-cert-auth",
                          NULL};
    int log_fd =
        open(path_of(folder, "etcd.log", "", log), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    struct kelp_process_options options = {
        .argv = argv, .unset_environment = unset, .stdout_fd = log_fd, .stderr_fd = log_fd};
    ck_assert_msg(kelp_process_start(&options, &etcd, &error) == KELP_OK, "%s", error.text);
    (void)close(log_fd);
    return etcd;
}
