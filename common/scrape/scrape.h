/*
 * A daemon's HTTP server for monitoring: /metrics (figures.h), /healthz (does the event loop run?)
 * and /readyz (does the process take part?), with libmicrohttpd.
 *
 * Without --metrics nothing listens. Its address is unix:/PATH, which only this user may open, or
 * HOST:PORT. With --certs a port asks for a certificate (scrape_tls.h); without, it must be at
 * loopback. A scrape only reads numbers, so it blocks nobody and nobody blocks it.
 *
 * A separate thread does everything, and accepts connections itself: KELP_SCRAPE_CONNECTIONS at a
 * time, KELP_SCRAPE_RATE a second, each for at most KELP_SCRAPE_CONNECTION_MS and one request.
 */
#ifndef KELP_COMMON_SCRAPE_SCRAPE_H
#define KELP_COMMON_SCRAPE_SCRAPE_H

#include "common/base/status.h"
#include "common/program/options/options.h"
#include "common/scrape/figures.h"
#include "common/tls/credentials.h"

struct kelp_scrape;

/* Who is watched. */
struct kelp_scrape_process {
    unsigned of;                          /* KELP_FIGURE_OF_PS, ... */
    const char *role;                     /* "ps" */
    struct kelp_credentials *credentials; /* borrowed; NULL: none */
};

/*
 * Listen at --metrics of the options. *ret_scrape is owned, and NULL without that option. On a
 * mistake: one line to standard error and false; the exit status is KELP_EXIT_USAGE then.
 */
bool kelp_scrape_begin(const struct kelp_program *program, const struct kelp_options *options,
                       const struct kelp_scrape_process *process, struct kelp_scrape **ret_scrape);
/* After whoever sets figures has ended. NULL does nothing. */
void kelp_scrape_close(struct kelp_scrape *scrape);

/* Borrowed until the close; NULL for NULL, so that what is optional can be handed on. */
struct kelp_figures *kelp_scrape_figures(struct kelp_scrape *scrape);
/* "127.0.0.1:9400" with the port that was taken, or "unix:/PATH". */
const char *kelp_scrape_address(const struct kelp_scrape *scrape);

#endif
