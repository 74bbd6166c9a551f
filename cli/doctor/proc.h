/* What /proc says of processes: who belongs to a run, and what they listen at. */
#ifndef KELP_CLI_DOCTOR_PROC_H
#define KELP_CLI_DOCTOR_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KELP_PROC_TEXT_MAX 16384 /* bytes of a file that is read */

struct kelp_proc {
    pid_t pid;
    char program[32]; /* "kelp-ps" */
    char id[64];      /* of --id; "" without */
    bool certified;   /* started with certificates: its ports ask for one */
    bool open_urls;   /* etcd: it listens at an http:// address */
};

/* What tells the processes of a run: its launcher (0: none) and all below it, and daemons by hand
 * with its job's name that were given its etcd or its folder. */
struct kelp_proc_run {
    pid_t launcher;
    const char *job;
    const char *etcd;   /* "": not known */
    const char *folder; /* absolute */
};

/* Returns how many there are, at most room. */
size_t kelp_proc_list(const struct kelp_proc_run *run, struct kelp_proc *list, size_t room);

struct kelp_proc_port {
    char address[64]; /* "127.0.0.1:7000" */
    bool loopback;
};

/* What the process listens at; returns how many, at most room. *ret_hidden: it is another user's,
 * and nothing can be seen. */
size_t kelp_proc_ports(pid_t pid, struct kelp_proc_port *list, size_t room, bool *ret_hidden);

#endif
