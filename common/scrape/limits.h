/* Limits of common/scrape/: each with its unit and the reason for it. */
#ifndef KELP_COMMON_SCRAPE_LIMITS_H
#define KELP_COMMON_SCRAPE_LIMITS_H

/* Connections at a time: a few that scrape, and some that hang. More wait in the kernel's queue. */
#define KELP_SCRAPE_CONNECTIONS 16
/* Connections, and so requests, that are taken in a second: whoever scrapes comes every few
 * seconds, and a flood must not take the time of training. */
#define KELP_SCRAPE_RATE 20
/* Milliseconds that a connection may last, whatever comes over it: a scrape takes a few. */
#define KELP_SCRAPE_CONNECTION_MS 5000
/* Bytes of a request, headers and all; Prometheus sends 300. */
#define KELP_SCRAPE_REQUEST_BYTES (8u << 10)
/* Milliseconds without a sign of the loop after which it does not answer. A host on which all
 * processors compute takes seconds. */
#define KELP_SCRAPE_LOOP_MS 10000
/* Milliseconds between two looks at what is measured, in the loop. */
#define KELP_SCRAPE_LOOK_MS 250

#endif
