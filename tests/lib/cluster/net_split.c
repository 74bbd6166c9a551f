#include "tests/lib/cluster/net_split.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SOCKETS_MAX 1024

struct endpoint {
    uint16_t local;
    uint16_t remote; /* 0: listening */
};

/* Does one of the process's descriptors lead to the socket with this inode? */
static bool owns(const unsigned long *inodes, size_t count, unsigned long inode)
{
    for (size_t i = 0; i < count; i++) {
        if (inodes[i] == inode) {
            return true;
        }
    }
    return false;
}

static size_t list_inodes(pid_t pid, unsigned long inodes[SOCKETS_MAX])
{
    char path[64];
    size_t count = 0;

    (void)snprintf(path, sizeof(path), "/proc/%ld/fd", (long)pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry && count < SOCKETS_MAX;
         entry = readdir(folder)) {
        char target[64];
        const ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        if (sscanf(target, "socket:[%lu]", &inodes[count]) == 1) {
            count++;
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

struct endpoints {
    unsigned long inodes[SOCKETS_MAX];
    size_t inode_count;
    struct endpoint items[SOCKETS_MAX];
    size_t count;
};

static void read_table(struct endpoints *endpoints, const char *path)
{
    char line[512];
    FILE *table = fopen(path, "re");

    ck_assert_msg(table != NULL, "%s cannot be read", path);
    while (endpoints->count < SOCKETS_MAX && fgets(line, sizeof(line), table)) {
        unsigned local = 0, remote = 0;
        unsigned long inode = 0;
        if (sscanf(line, "%*d: %*x:%x %*x:%x %*x %*x:%*x %*x:%*x %*x %*u %*u %lu", &local, &remote,
                   &inode) == 3 &&
            inode != 0 && owns(endpoints->inodes, endpoints->inode_count, inode)) {
            endpoints->items[endpoints->count++] =
                (struct endpoint){.local = (uint16_t)local, .remote = (uint16_t)remote};
        }
    }
    (void)fclose(table);
}

/* List the process's present TCP sockets; it shares our network namespace's tables. Sockets for
 * both IPv4 and IPv6 are in the second table. */
static void list_endpoints(pid_t pid, struct endpoints *endpoints)
{
    endpoints->inode_count = list_inodes(pid, endpoints->inodes);
    endpoints->count = 0;
    read_table(endpoints, "/proc/thread-self/net/tcp");
    read_table(endpoints, "/proc/thread-self/net/tcp6");
}

static void drop(struct kelp_chaos_split *split, uint16_t from, uint16_t to)
{
    const struct kelp_chaos_cut cut = {.from = from, .to = to};
    struct kelp_error error = {.text = ""};

    ck_assert_msg(kelp_chaos_split_drop(split, cut, &error) == KELP_OK, "%s", error.text);
}

void kelp_net_split_way(struct kelp_chaos_split *split, pid_t from, pid_t to)
{
    static struct endpoints senders, receivers;

    list_endpoints(from, &senders);
    list_endpoints(to, &receivers);
    for (size_t i = 0; i < senders.count; i++) {
        for (size_t j = 0; j < receivers.count; j++) {
            const struct endpoint *sender = &senders.items[i];
            const struct endpoint *receiver = &receivers.items[j];
            /* A listener stands for connections that are not accepted yet. */
            if (sender->remote == receiver->local && sender->remote != 0 &&
                (receiver->remote == sender->local || receiver->remote == 0)) {
                drop(split, sender->local, sender->remote);
            } else if (receiver->remote == sender->local && sender->remote == 0) {
                drop(split, sender->local, receiver->local);
            }
        }
    }
}
