#include "cli/chaos/chaos_net.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/chaos/network/netlink.h"

#define PRIORITY_SPLIT 10  /* before the look-up of local addresses, which is moved to: */
#define PRIORITY_LOCAL 100 /* the kernel has it at 0, where nothing can come before it */
#define SOCKETS_MAX    4096
#define LINE_MAX_BYTES 512
#define SOCKET_PREFIX  "socket:[" /* and the inode */
#define FIELD_LOCAL    1          /* of a line of /proc/net/tcp, from 0: "0100007F:9C41" */
#define FIELD_INODE    9

/* ---- rules of the kernel's routing --------------------------------------------------------- */

static void begin_rule(struct kelp_netlink *rule, bool add, uint8_t action, uint8_t table,
                       uint32_t priority)
{
    const struct fib_rule_hdr fields = {.family = AF_INET, .action = action, .table = table};

    kelp_netlink_begin(rule, add ? RTM_NEWRULE : RTM_DELRULE, add ? NLM_F_CREATE | NLM_F_EXCL : 0,
                       &fields, sizeof(fields));
    kelp_netlink_add(rule, FRA_PRIORITY, &priority, sizeof(priority));
}

/* 0 or an errno. */
static int tell_kernel(const struct kelp_netlink *rule)
{
    int fd = kelp_netlink_open();

    if (fd < 0) {
        return errno;
    }
    int error = kelp_netlink_tell(fd, rule);
    (void)close(fd);
    return error;
}

static void add_port(struct kelp_netlink *rule, uint16_t port, uint16_t type)
{
    struct fib_rule_port_range range = {.start = port, .end = port};

    if (port != 0) {
        kelp_netlink_add(rule, type, &range, sizeof(range));
    }
}

/* The rule that drops what goes from a port to another. */
static int drop_rule(bool add, struct kelp_chaos_cut cut)
{
    struct kelp_netlink rule;
    uint8_t protocol = IPPROTO_TCP;

    begin_rule(&rule, add, FR_ACT_BLACKHOLE, RT_TABLE_UNSPEC, PRIORITY_SPLIT);
    kelp_netlink_add(&rule, FRA_IP_PROTO, &protocol, sizeof(protocol));
    add_port(&rule, cut.from, FRA_SPORT_RANGE);
    add_port(&rule, cut.to, FRA_DPORT_RANGE);
    return tell_kernel(&rule);
}

static int local_rule(bool add, uint32_t priority)
{
    struct kelp_netlink rule;

    begin_rule(&rule, add, FR_ACT_TO_TBL, RT_TABLE_LOCAL, priority);
    return tell_kernel(&rule);
}

/* ---- the namespace ------------------------------------------------------------------------- */

static int loopback_up(void)
{
    struct ifreq request;
    int error = 0;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return errno;
    }
    memset(&request, 0, sizeof(request));
    (void)snprintf(request.ifr_name, sizeof(request.ifr_name), "lo");
    request.ifr_flags = IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &request) < 0) {
        error = errno;
    }
    (void)close(fd);
    return error;
}

kelp_status kelp_chaos_net_enter(struct kelp_error *reterr)
{
    const struct kelp_chaos_cut probe = {.to = 1};

    if (unshare(CLONE_NEWNET) < 0) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "cannot make a network namespace, which needs root: %s", strerror(errno));
    }
    int error = loopback_up();
    if (error == 0) {
        error = local_rule(true, PRIORITY_LOCAL);
    }
    if (error == 0) {
        error = local_rule(false, 0);
    }
    if (error == 0) { /* whether the kernel knows rules by port is seen by making one */
        error = drop_rule(true, probe);
    }
    if (error == 0) {
        error = drop_rule(false, probe);
    }
    return error == 0 ? KELP_OK
                      : kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "routing rules by port: %s",
                                  strerror(error));
}

/* ---- the ports of a process ---------------------------------------------------------------- */

/* Inodes of the sockets that the process has open. */
static uint32_t list_sockets(pid_t pid, unsigned long *inodes)
{
    char path[64];
    uint32_t count = 0;

    (void)snprintf(path, sizeof(path), "/proc/%ld/fd", (long)pid);
    DIR *folder = opendir(path);
    if (!folder) {
        return 0;
    }
    for (struct dirent *entry = readdir(folder); entry && count < SOCKETS_MAX;
         entry = readdir(folder)) {
        char target[64];
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, SOCKET_PREFIX, strlen(SOCKET_PREFIX)) == 0) {
            inodes[count++] = strtoul(target + strlen(SOCKET_PREFIX), NULL, 10);
        }
    }
    (void)closedir(folder);
    return count;
}

static bool is_listed(const unsigned long *inodes, uint32_t count, unsigned long inode)
{
    for (uint32_t i = 0; i < count; i++) {
        if (inodes[i] == inode) {
            return true;
        }
    }
    return false;
}

static bool is_cut(const struct kelp_chaos_split *split, struct kelp_chaos_cut cut)
{
    for (uint32_t i = 0; i < split->count; i++) {
        if (split->cuts[i].from == cut.from && split->cuts[i].to == cut.to) {
            return true;
        }
    }
    return false;
}

kelp_status kelp_chaos_split_drop(struct kelp_chaos_split *split, struct kelp_chaos_cut cut,
                                  struct kelp_error *reterr)
{
    if (is_cut(split, cut) || split->count == KELP_CHAOS_CUTS_MAX) {
        return KELP_OK;
    }
    int error = drop_rule(true, cut);
    if (error != 0 && error != EEXIST) { /* EEXIST: another split has it already */
        return kelp_fail(reterr, KELP_ERR_IO, "cannot split off ports %u to %u: %s", cut.from,
                         cut.to, strerror(error));
    }
    split->cuts[split->count++] = cut;
    return KELP_OK;
}

static kelp_status cut_off(struct kelp_chaos_split *split, uint16_t port, struct kelp_error *reterr)
{
    if (port == 0) {
        return KELP_OK;
    }
    kelp_status status = kelp_chaos_split_drop(split, (struct kelp_chaos_cut){.to = port}, reterr);
    return status == KELP_OK
               ? kelp_chaos_split_drop(split, (struct kelp_chaos_cut){.from = port}, reterr)
               : status;
}

/* "  0: 0100007F:9C41 00000000:0000 0A …": the local address and its port in hexadecimal, and the
 * inode. The heading and what is cut off have none: inode 0. */
static void parse_socket(char *line, uint16_t *ret_port, unsigned long *ret_inode)
{
    char *rest = NULL;
    const char *word = strtok_r(line, " ", &rest);

    *ret_inode = 0;
    for (int field = 0; word && field <= FIELD_INODE; field++) {
        const char *colon = strchr(word, ':');
        if (field == FIELD_LOCAL && colon) {
            *ret_port = (uint16_t)strtoul(colon + 1, NULL, 16);
        } else if (field == FIELD_INODE) {
            *ret_inode = strtoul(word, NULL, 10);
        }
        word = strtok_r(NULL, " ", &rest);
    }
}

static kelp_status cut_listed(struct kelp_chaos_split *split, const char *path,
                              const unsigned long *inodes, uint32_t count,
                              struct kelp_error *reterr)
{
    char line[LINE_MAX_BYTES];
    FILE *in = fopen(path, "re");
    kelp_status status = KELP_OK;

    while (in && status == KELP_OK && fgets(line, sizeof(line), in)) {
        uint16_t port = 0;
        unsigned long inode = 0;
        parse_socket(line, &port, &inode);
        if (inode != 0 && is_listed(inodes, count, inode)) {
            status = cut_off(split, port, reterr);
        }
    }
    if (in) {
        (void)fclose(in); /* only read from */
    }
    return status;
}

kelp_status kelp_chaos_split_renew(struct kelp_chaos_split *split, pid_t pid,
                                   struct kelp_error *reterr)
{
    unsigned long *inodes = calloc(SOCKETS_MAX, sizeof(*inodes));

    if (!inodes) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    uint32_t count = list_sockets(pid, inodes);
    /* The tables are those of the reader's namespace, which is the process's too. */
    kelp_status status = cut_listed(split, "/proc/thread-self/net/tcp", inodes, count, reterr);
    if (status == KELP_OK) {
        status = cut_listed(split, "/proc/thread-self/net/tcp6", inodes, count, reterr);
    }
    free(inodes);
    return status;
}

kelp_status kelp_chaos_split_heal(struct kelp_chaos_split *split, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; i < split->count; i++) {
        int error = drop_rule(false, split->cuts[i]);
        if (error != 0 && error != ENOENT && status == KELP_OK) {
            status = kelp_fail(reterr, KELP_ERR_IO, "cannot heal the split of ports %u to %u: %s",
                               split->cuts[i].from, split->cuts[i].to, strerror(error));
        }
    }
    split->count = 0;
    return status;
}
