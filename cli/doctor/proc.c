#include "cli/doctor/proc.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/process/proc_file.h"

#define INODES_MAX 4096
#define LISTENING  0x0a /* of the kernel's table of sockets */
#define DEPTH_MAX  8    /* of a process below the launcher */

static size_t read_of(pid_t pid, const char *file, char text[KELP_PROC_TEXT_MAX])
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%ld/%s", (long)pid, file);
    return kelp_proc_file_read(name, text, KELP_PROC_TEXT_MAX);
}

/* ---- who ----------------------------------------------------------------------------------- */

/* "PID (NAME) STATE PPID …": the name may hold anything. 0: it is gone. */
static pid_t parent_of(pid_t pid)
{
    char text[KELP_PROC_TEXT_MAX];
    size_t length = read_of(pid, "stat", text);
    const char *at = length > 0 ? strrchr(text, ')') : NULL;

    return at && at[1] == ' ' && at[2] != '\0' ? (pid_t)strtol(at + 3, NULL, 10) : 0;
}

static bool is_below(pid_t pid, pid_t launcher)
{
    for (int depth = 0; launcher > 0 && pid > 0 && depth < DEPTH_MAX; depth++) {
        if (pid == launcher) {
            return true;
        }
        pid = parent_of(pid);
    }
    return false;
}

/* The value of "--NAME VALUE" or "--NAME=VALUE" in a command line; NULL: it has none. */
static const char *argument(const char *text, size_t length, const char *name)
{
    size_t name_length = strlen(name);

    for (size_t at = 0; at < length; at += strlen(text + at) + 1) {
        if (strncmp(text + at, name, name_length) != 0) {
            continue;
        }
        if (text[at + name_length] == '=') {
            return text + at + name_length + 1;
        }
        if (text[at + name_length] == '\0') {
            size_t next = at + name_length + 1;
            return next < length ? text + next : "";
        }
    }
    return NULL;
}

static bool holds(const char *text, size_t length, const char *words)
{
    return memmem(text, length, words, strlen(words)) != NULL;
}

/* Does etcd, told these addresses, listen at one in clear? It does where it is told none. */
static bool is_clear(const char *urls)
{
    return !urls || strstr(urls, "http://") != NULL;
}

static bool is_daemon(const char *program)
{
    return strcmp(program, "kelp-ps") == 0 || strcmp(program, "kelp-worker") == 0 ||
           strcmp(program, "kelp-coordinator") == 0;
}

static bool equals(const char *text, const char *wanted)
{
    return text && text[0] != '\0' && strcmp(text, wanted) == 0;
}

/* What a process was started with. */
struct words {
    char arguments[KELP_PROC_TEXT_MAX];
    char environment[KELP_PROC_TEXT_MAX];
    size_t arguments_length, environment_length;
};

/* The value that a daemon has for an option, by its command line or its environment; NULL: none. */
static const char *given(const struct words *words, const char *option)
{
    char name[32], variable[32];

    (void)snprintf(name, sizeof(name), "--%s", option);
    const char *value = argument(words->arguments, words->arguments_length, name);
    if (value) {
        return value;
    }
    size_t length = (size_t)snprintf(variable, sizeof(variable), "KELP_%s", option);
    for (size_t i = 0; i < length; i++) {
        variable[i] = (char)toupper((unsigned char)variable[i]);
    }
    value = argument(words->environment, words->environment_length, variable);
    return value && value[0] != '\0' ? value : NULL;
}

/* Is it a daemon of the run that somebody started by hand? */
static bool is_by_hand(const struct words *words, const struct kelp_proc_run *run)
{
    return equals(given(words, "job"), run->job) &&
           (equals(given(words, "etcd"), run->etcd) || equals(given(words, "run"), run->folder));
}

static bool is_of_run(pid_t pid, const char *program, const struct words *words,
                      const struct kelp_proc_run *run)
{
    return is_below(pid, run->launcher) || (is_daemon(program) && is_by_hand(words, run));
}

/* False: it is none of the run's. */
static bool describe(pid_t pid, const struct kelp_proc_run *run, struct words *words,
                     struct kelp_proc *ret_proc)
{
    words->arguments_length = read_of(pid, "cmdline", words->arguments);
    words->environment_length = read_of(pid, "environ", words->environment);
    const char *text = words->arguments;
    const char *slash = strrchr(text, '/');
    struct kelp_proc proc = {.pid = pid};
    (void)snprintf(proc.program, sizeof(proc.program), "%.31s", slash ? slash + 1 : text);
    if (words->arguments_length == 0 || !is_of_run(pid, proc.program, words, run)) {
        return false;
    }
    if (is_daemon(proc.program)) {
        const char *id = given(words, "id");
        (void)snprintf(proc.id, sizeof(proc.id), "%.63s", id ? id : "");
        proc.certified = given(words, "certs") != NULL;
    } else {
        proc.certified = holds(text, words->arguments_length, "client-cert-auth");
        proc.open_urls =
            is_clear(argument(text, words->arguments_length, "--listen-client-urls")) ||
            is_clear(argument(text, words->arguments_length, "--listen-peer-urls"));
    }
    *ret_proc = proc;
    return true;
}

size_t kelp_proc_list(const struct kelp_proc_run *run, struct kelp_proc *list, size_t room)
{
    struct words *words = malloc(sizeof(*words));
    DIR *folder = words ? opendir("/proc") : NULL;
    size_t count = 0;

    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry && count < room;
         entry = readdir(folder)) {
        pid_t pid =
            isdigit((unsigned char)entry->d_name[0]) ? (pid_t)strtol(entry->d_name, NULL, 10) : 0;
        if (pid > 0 && describe(pid, run, words, &list[count])) {
            count++;
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
    free(words);
    return count;
}

/* ---- ports --------------------------------------------------------------------------------- */

/* The sockets that it has open. */
static size_t list_sockets(pid_t pid, unsigned long inodes[INODES_MAX], bool *ret_hidden)
{
    char path[64], target[64];
    size_t count = 0;

    (void)snprintf(path, sizeof(path), "/proc/%ld/fd", (long)pid);
    DIR *folder = opendir(path);
    *ret_hidden = !folder && errno == EACCES;
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry && count < INODES_MAX;
         entry = readdir(folder)) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);
        target[length < 0 ? 0 : length] = '\0';
        if (strncmp(target, "socket:[", 8) == 0) {
            inodes[count++] = strtoul(target + 8, NULL, 10);
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

/* The kernel writes addresses as words of this machine, in hexadecimal digits. */
static bool parse_address(const char *hex, bool six, struct kelp_proc_port *ret_port)
{
    uint32_t words[4] = {0};
    char host[INET6_ADDRSTRLEN];
    unsigned port = 0;
    bool whole =
        six ? sscanf(hex, "%8x%8x%8x%8x:%x", &words[0], &words[1], &words[2], &words[3], &port) == 5
            : sscanf(hex, "%8x:%x", &words[0], &port) == 2;

    if (!whole || !inet_ntop(six ? AF_INET6 : AF_INET, words, host, sizeof(host))) {
        return false;
    }
    if (six && strncmp(host, "::ffff:", 7) == 0 && strchr(host, '.')) { /* of both kinds */
        memmove(host, host + 7, strlen(host + 7) + 1);
        six = false;
    }
    ret_port->loopback = six ? strcmp(host, "::1") == 0 : strncmp(host, "127.", 4) == 0;
    (void)snprintf(ret_port->address, sizeof(ret_port->address), "%s%s%s:%u", six ? "[" : "", host,
                   six ? "]" : "", port);
    return true;
}

/* Does one of these sockets listen by this line of the table? */
static bool parse_line(const char *line, bool six, const unsigned long *inodes, size_t count,
                       struct kelp_proc_port *ret_port)
{
    char local[64];
    unsigned state = 0;
    unsigned long inode = 0;

    if (sscanf(line, " %*d: %63s %*s %x %*s %*s %*s %*s %*s %lu", local, &state, &inode) != 3 ||
        state != LISTENING) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (inodes[i] == inode) {
            return parse_address(local, six, ret_port);
        }
    }
    return false;
}

size_t kelp_proc_ports(pid_t pid, struct kelp_proc_port *list, size_t room, bool *ret_hidden)
{
    static const char *const tables[] = {"tcp", "tcp6"};
    unsigned long *inodes = calloc(INODES_MAX, sizeof(*inodes));
    char path[64], line[512];
    size_t found = 0;

    *ret_hidden = false;
    const size_t count = inodes ? list_sockets(pid, inodes, ret_hidden) : 0;
    for (int i = 0; i < 2 && count > 0; i++) {
        (void)snprintf(path, sizeof(path), "/proc/%ld/net/%s", (long)pid, tables[i]);
        FILE *in = fopen(path, "re");
        while (in && found < room && fgets(line, sizeof(line), in)) {
            found += parse_line(line, i == 1, inodes, count, &list[found]);
        }
        if (in) {
            (void)fclose(in); /* only read */
        }
    }
    free(inodes);
    return found;
}
