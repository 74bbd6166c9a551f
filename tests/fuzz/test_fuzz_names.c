/* Names in certificates, addresses of etcd and logins to it, damaged: refused, or what was taken
 * holds together. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/files.h"
#include "common/etcd/etcd_endpoint.h"
#include "common/tls/login.h"
#include "common/tls/spiffe.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/fuzz.h"

#define INPUTS 50000
#define FILES  1000 /* each is written and read again */

static char *copy(const uint8_t *bytes, size_t count)
{
    char *text = malloc(count + 1);

    ck_assert_ptr_nonnull(text);
    memcpy(text, bytes, count);
    text[count] = '\0';
    return text;
}

/* ---- names ---------------------------------------------------------------------------------- */

static const struct kelp_fuzz_seed name_seeds[] = {
    KELP_FUZZ_TEXT("spiffe://kelp/etth1/worker/worker-0"),
    KELP_FUZZ_TEXT("spiffe://kelp/etth1/coordinator"), KELP_FUZZ_TEXT("spiffe://kelp/etcd"),
    KELP_FUZZ_TEXT("spiffe://kelp/a.b_c-d/reader/x"),
    KELP_FUZZ_TEXT("spiffe://kelp/"
                   "012345678901234567890123456789012345678901234567890123456789012/shard/"
                   "012345678901234567890123456789012345678901234567890123456789012")};
static const char *const name_words[] = {
    "spiffe://kelp/", "/", "//", "..",      ".",  "%2f",       "etcd",
    "/operator",      "?", "#",  "\x1b[2J", "\n", "SPIFFE://", "kelp"};

/* The bytes need not end after count, and here they do not. */
static const char *read_name(const uint8_t *bytes, size_t count)
{
    struct kelp_spiffe name;
    struct kelp_spiffe again;
    char text[KELP_SPIFFE_MAX + 1];

    if (kelp_spiffe_parse((const char *)bytes, count, &name, NULL) != KELP_OK) {
        return NULL;
    }
    kelp_spiffe_print(&name, text);
    if (strlen(text) != count || memcmp(text, bytes, count) != 0) {
        return "it is printed as another name";
    }
    if (kelp_spiffe_parse(text, count, &again, NULL) != KELP_OK || again.role != name.role) {
        return "what was printed is not read";
    }
    if (name.role != KELP_ROLE_ETCD && !kelp_spiffe_is_name(name.job, strlen(name.job))) {
        return "a job that is no name was taken";
    }
    if (name.id[0] && !kelp_spiffe_is_name(name.id, strlen(name.id))) {
        return "an id that is no name was taken";
    }
    return kelp_spiffe_allows(&name, name.id[0] ? name.id : "worker-1") ? NULL
                                                                        : "it denies its own id";
}

KELP_CASE("names", .timeout_s = 60)

KELP_FUZZ_TEST(name, INPUTS, name_seeds, name_words, read_name)

/* ---- addresses ------------------------------------------------------------------------------ */

static const struct kelp_fuzz_seed endpoint_seeds[] = {
    KELP_FUZZ_TEXT("http://127.0.0.1:2379"),
    KELP_FUZZ_TEXT("https://10.0.0.5:2379,https://etcd-1.example:2379"),
    KELP_FUZZ_TEXT("unix:/run/kelp/etcd.sock"),
    KELP_FUZZ_TEXT("https://[2001:db8::1]:2379/"),
    KELP_FUZZ_TEXT("http://localhost:2379,http://[::1]:2379,unix:/a"),
};
static const char *const endpoint_words[] = {
    "http://", "https://", "unix:",     "unix:/",       ",",       ",,",      "@",  "/",
    "?",       "#",        "127.0.0.1", "[::1]",        "0.0.0.0", ":0",      ":",  ":99999",
    "%00",     " ",        "10.0.0.5",  "127.0.0.1.ru", "\r\n",    "HTTP://", "\\", "user:pw@"};

/* Does the host of http:// look like this machine's? Numbers and the name are all that is taken. */
static bool is_near(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strncmp(host, "localhost", 9) == 0 ||
           strncmp(host, "[::1]", 5) == 0;
}

static const char *check_endpoint(const char *endpoint)
{
    size_t count = strnlen(endpoint, KELP_ETCD_ENDPOINT_MAX + 1);

    if (count > KELP_ETCD_ENDPOINT_MAX) {
        return "an endpoint without an end";
    }
    for (size_t i = 0; i < count; i++) {
        if ((unsigned char)endpoint[i] <= ' ' || endpoint[i] == 0x7f) {
            return "a control character or a space was taken";
        }
    }
    if (strncmp(endpoint, "http://", 7) == 0) {
        return is_near(endpoint + 7) ? NULL : "an etcd in clear beyond this machine was taken";
    }
    return strncmp(endpoint, "https://", 8) == 0 || strncmp(endpoint, "unix:/", 6) == 0
               ? NULL
               : "an endpoint of no known kind was taken";
}

static const char *read_endpoints(const uint8_t *bytes, size_t count)
{
    char *text = copy(bytes, count);
    char(*endpoints)[KELP_ETCD_ENDPOINT_MAX + 1] = NULL;
    size_t found = 0;
    const char *wrong = NULL;
    struct kelp_error error = {.text = ""};

    if (kelp_etcd_endpoints_parse(text, &endpoints, &found, &error) != KELP_OK) {
        wrong = error.text[0] ? NULL : "refused without a word";
    } else if (found == 0 || found > KELP_ETCD_ENDPOINTS_MAX) {
        wrong = "none or too many endpoints";
    }
    for (size_t i = 0; i < found && !wrong; i++) {
        wrong = check_endpoint(endpoints[i]);
    }
    free(endpoints);
    free(text);
    return wrong;
}

KELP_CASE("addresses", .timeout_s = 60)

KELP_FUZZ_TEST(endpoints, INPUTS, endpoint_seeds, endpoint_words, read_endpoints)

/* ---- logins --------------------------------------------------------------------------------- */

static struct kelp_test_folder folder;

static void folder_setup(void)
{
    kelp_test_folder_init(&folder);
}

static void folder_teardown(void)
{
    kelp_test_folder_fini(&folder);
}

static const struct kelp_fuzz_seed login_seeds[] = {
    KELP_FUZZ_TEXT("etth1/worker\n0123456789abcdef0123456789abcdef\n"),
    KELP_FUZZ_TEXT("etth1/shard/shard-0\nA-b_c.d~!#$%&()*+,/:;<=>?@[]^`{|}\n")};
static const char *const login_words[] = {"\n", "\r\n", "\"",   "\\", " ", "\x1b[2J", "'",
                                          "{}", "user", "\xff", "/",  "=", "\t"};

/* The password goes into JSON as it is. */
static const char *read_login(const uint8_t *bytes, size_t count)
{
    char path[200];
    struct kelp_login login;
    struct kelp_error error = {.text = ""};

    (void)snprintf(path, sizeof(path), "%s/" KELP_LOGIN_FILE, folder.path);
    ck_assert_int_eq(kelp_files_write(path, bytes, count, NULL), KELP_OK);
    ck_assert_int_eq(chmod(path, 0600), 0);
    if (kelp_login_read(folder.path, &login, &error) != KELP_OK) {
        return error.text[0] ? NULL : "refused without a word";
    }
    for (const char *at = login.password; *at; at++) {
        if (*at <= ' ' || *at >= 0x7f || *at == '"' || *at == '\\') {
            return "a password that JSON would not hold was taken";
        }
    }
    for (const char *at = login.user; *at; at++) {
        if (!isalnum((unsigned char)*at) && !strchr("-_./", *at)) {
            return "a user that is no name was taken";
        }
    }
    return login.user[0] && login.password[0] ? NULL : "an empty login was taken";
}

KELP_CASE("logins", .timeout_s = 60, .setup = folder_setup, .teardown = folder_teardown)

KELP_FUZZ_TEST(login, FILES, login_seeds, login_words, read_login)
