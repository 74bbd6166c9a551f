/*
 * Mutual TLS at a port of --metrics: libmicrohttpd serves with the certificates of --certs, and
 * whoever asks shows one of the job's authority, of the role reader, operator or coordinator.
 * GnuTLS checks chains and dates; names are checked here.
 */
#ifndef KELP_COMMON_SCRAPE_SCRAPE_TLS_H
#define KELP_COMMON_SCRAPE_SCRAPE_TLS_H

#include <microhttpd.h>

#include "common/tls/spiffe.h"

/* Why whoever asks over this connection may not look, a text that stays; NULL: it may. own: the
 * name of the process. */
const char *kelp_scrape_why_denied(struct MHD_Connection *connection,
                                   const struct kelp_spiffe *own);

#endif
