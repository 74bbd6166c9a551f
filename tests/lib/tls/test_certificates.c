#include "tests/lib/tls/test_certificates.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/tls/authority.h"

#define PATH_BYTES 400
#define DAY_S      INT64_C(86400)

static int64_t now_s(void)
{
    return (int64_t)time(NULL);
}

void kelp_test_authority(const char *folder, const char *authority)
{
    char path[PATH_BYTES];
    struct kelp_error error;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, authority);
    kelp_status status =
        kelp_authority_init(path, now_s() - 10 * DAY_S, now_s() + 10 * DAY_S, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

void kelp_test_issue_for(const struct kelp_test_issue *issue, int seconds)
{
    char authority[PATH_BYTES];
    char out[PATH_BYTES];
    char name[KELP_SPIFFE_MAX + 1];
    struct kelp_error error;
    struct kelp_authority_request request = {.authority = authority,
                                             .out = out,
                                             .host_count = issue->host ? 1 : 0,
                                             .hosts = {issue->host},
                                             .from_s = now_s() - 9 * DAY_S,
                                             .until_s = now_s() + issue->days * DAY_S + seconds};

    (void)snprintf(authority, sizeof(authority), "%s/%s", issue->folder, issue->authority);
    (void)snprintf(out, sizeof(out), "%s/%s", issue->folder, issue->out);
    (void)snprintf(name, sizeof(name), "spiffe://kelp/%s", issue->name);
    ck_assert_msg(kelp_spiffe_parse(name, strlen(name), &request.name, &error) == KELP_OK, "%s",
                  error.text);
    ck_assert_msg(kelp_authority_issue(&request, &error) == KELP_OK, "%s", error.text);
}

void kelp_test_issue(const struct kelp_test_issue *issue)
{
    kelp_test_issue_for(issue, 0);
}

struct kelp_credentials *kelp_test_credentials(const char *folder, const char *out)
{
    char path[PATH_BYTES];
    struct kelp_credentials *credentials = NULL;
    struct kelp_error error;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, out);
    ck_assert_msg(kelp_credentials_open(path, &credentials, &error) == KELP_OK, "%s", error.text);
    return credentials;
}
