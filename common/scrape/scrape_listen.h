/* A listening socket at an address of --metrics: HOST:PORT or unix:/PATH. */
#ifndef KELP_COMMON_SCRAPE_SCRAPE_LISTEN_H
#define KELP_COMMON_SCRAPE_SCRAPE_LISTEN_H

#include "common/base/status.h"

#define KELP_SCRAPE_ADDRESS_MAX 300

/*
 * *ret_fd does not block, and is closed by the caller, who removes the socket of a file system.
 * ret_address: as it came, with the port that was taken in place of 0. A socket that a killed
 * process left is replaced. Errors: KELP_ERR_INVALID, KELP_ERR_EXISTS (it is in use).
 */
kelp_status kelp_scrape_listen(const char *address, int *ret_fd,
                               char ret_address[KELP_SCRAPE_ADDRESS_MAX + 1],
                               struct kelp_error *reterr) KELP_MUST_USE;

/* The path of "unix:/PATH", or NULL. */
const char *kelp_scrape_path(const char *address);

#endif
