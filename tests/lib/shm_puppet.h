/*
 * The other side of a shared-memory channel, controlled by a test: it sends and writes whatever the
 * test wants, whether or not common/shm/layout.h allows it.
 */
#ifndef KELP_TESTS_LIB_SHM_PUPPET_H
#define KELP_TESTS_LIB_SHM_PUPPET_H

#include "common/shm/page_internal.h"
#include "common/shm/shm_area.h"
#include "common/shm/shm_channel.h"

#define KELP_SHM_PUPPET_MESSAGE_MAX (1u << 20)

struct kelp_shm_puppet {
    struct kelp_shm_channel *channel; /* the honest side */
    int socket;
    struct kelp_shm_area *own;
    struct kelp_shm_page *page;
    uint64_t at; /* bytes put into the ring */
};

/* Two ends of a socket, as kelp_shm_accept() and kelp_shm_connect() make them. */
void kelp_shm_pair_of_sockets(int ret_sockets[2]);
/* Wait until something comes, or until there is room after a send failed with KELP_ERR_BUSY; at
 * most timeout_ms, -1: without limit. False if the time is over. */
bool kelp_shm_pair_wait(struct kelp_shm_channel *channel, int timeout_ms);

/* Open it; the channel has not heard from it yet. */
void kelp_shm_puppet_open(struct kelp_shm_puppet *puppet);
void kelp_shm_puppet_close(struct kelp_shm_puppet *puppet);
/* Send the hello of the current version. */
void kelp_shm_puppet_greet(struct kelp_shm_puppet *puppet);
/* Send a note; fd -1: without a descriptor. */
void kelp_shm_puppet_note(struct kelp_shm_puppet *puppet, uint32_t kind, uint32_t value,
                          uint64_t length, int fd);
/* Write into the ring without announcing it. */
void kelp_shm_puppet_put(struct kelp_shm_puppet *puppet, const void *bytes, size_t length);
/* Announce everything that was written. */
void kelp_shm_puppet_publish(struct kelp_shm_puppet *puppet);

/* A memfd of `length` bytes. */
int kelp_shm_memfd(size_t length, int seals, bool filled);

/* The number of open descriptors of this process. */
unsigned kelp_shm_descriptor_count(void);

#endif
