/*
 * A real etcd that serves with a certificate and admits only clients with one.
 */
#ifndef KELP_TESTS_LIB_ETCD_ETCD_CERTIFIED_H
#define KELP_TESTS_LIB_ETCD_ETCD_CERTIFIED_H

#include "common/process/process.h"

/* Start it at a free port of that numeric host, with its data and log in the folder, and
 * cert.pem, key.pem and ca.pem in FOLDER/certs. It may not answer yet. Owned
 * (kelp_process_destroy()). Fails the running test on an error. */
struct kelp_process *etcd_certified_start(const char *folder, const char *certs, const char *host,
                                          char ret_url[64]);

#endif
