/*
 * The other side of a channel, held by a test: it says and writes whatever the test wants, in the
 * form of common/shm/layout.h or not.
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

/* Two ends of a socket as kelp_shm_accept() and kelp_shm_connect() make them. */
void kelp_shm_pair_of_sockets(int ret_sockets[2]);
/* Wait for something to come, or for room after KELP_ERR_BUSY of a send; at most timeout_ms, -1:
 * without end. False: that is over. */
bool kelp_shm_pair_wait(struct kelp_shm_channel *channel, int timeout_ms);

/* With a channel that has not heard of it yet. */
void kelp_shm_puppet_open(struct kelp_shm_puppet *puppet);
void kelp_shm_puppet_close(struct kelp_shm_puppet *puppet);
/* Say hello as the version of the header does. */
void kelp_shm_puppet_greet(struct kelp_shm_puppet *puppet);
/* fd -1: none. */
void kelp_shm_puppet_note(struct kelp_shm_puppet *puppet, uint32_t kind, uint32_t value,
                          uint64_t length, int fd);
/* Into the ring, without saying so. */
void kelp_shm_puppet_put(struct kelp_shm_puppet *puppet, const void *bytes, size_t length);
/* All that was put was sent. */
void kelp_shm_puppet_publish(struct kelp_shm_puppet *puppet);

/* A memfd of `length` bytes. */
int kelp_shm_memfd(size_t length, int seals, bool filled);

/* Descriptors of this process. */
unsigned kelp_shm_descriptor_count(void);

#endif
