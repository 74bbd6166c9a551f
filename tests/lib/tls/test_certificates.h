/*
 * Certificates for tests: an authority in a folder, and what it issues. Everything here fails the
 * running test when it cannot do its work.
 */
#ifndef KELP_TESTS_LIB_TLS_TEST_CERTIFICATES_H
#define KELP_TESTS_LIB_TLS_TEST_CERTIFICATES_H

#include <stdint.h>

#include "common/tls/credentials.h"

/* FOLDER/AUTHORITY. */
void kelp_test_authority(const char *folder, const char *authority);

/* FOLDER/OUT with a certificate of FOLDER/AUTHORITY for "JOB/ROLE[/ID]" or "etcd", valid until
 * days from now (negative: it has expired). host: NULL for none. Written again when it is
 * there. */
struct kelp_test_issue {
    const char *folder;
    const char *authority;
    const char *out;
    const char *name;
    const char *host;
    int days;
};
void kelp_test_issue(const struct kelp_test_issue *issue);
/* The same, that many seconds longer. */
void kelp_test_issue_for(const struct kelp_test_issue *issue, int seconds);

/* FOLDER/OUT, opened; kelp_credentials_close() it. */
struct kelp_credentials *kelp_test_credentials(const char *folder, const char *out);

#endif
