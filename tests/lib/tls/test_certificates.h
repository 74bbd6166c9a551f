/*
 * Certificates for tests: an authority in a folder, and certificates that it issues. On an error
 * these functions fail the running test.
 */
#ifndef KELP_TESTS_LIB_TLS_TEST_CERTIFICATES_H
#define KELP_TESTS_LIB_TLS_TEST_CERTIFICATES_H

#include <stdint.h>

#include "common/tls/credentials.h"

/* Create the authority FOLDER/AUTHORITY. */
void kelp_test_authority(const char *folder, const char *authority);

/* Write FOLDER/OUT with a certificate from FOLDER/AUTHORITY for "JOB/ROLE[/ID]" or "etcd", valid
 * for so many days from now (negative: expired). host: NULL for none. An existing one is
 * overwritten. */
struct kelp_test_issue {
    const char *folder;
    const char *authority;
    const char *out;
    const char *name;
    const char *host;
    int days;
};
void kelp_test_issue(const struct kelp_test_issue *issue);
/* The same, valid for so many more seconds. */
void kelp_test_issue_for(const struct kelp_test_issue *issue, int seconds);

/* Open FOLDER/OUT; kelp_credentials_close() it. */
struct kelp_credentials *kelp_test_credentials(const char *folder, const char *out);

#endif
