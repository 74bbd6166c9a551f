#include "cli/certs/certs_verbs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/json.h"
#include "common/base/value.h"
#include "common/tls/authority.h"
#include "common/tls/credentials.h"

#define DAY_S      INT64_C(86400)
#define EARLY_S    300 /* clocks of hosts differ: valid that much before now */
#define PATH_BYTES (KELP_AUTHORITY_PATH_MAX + 160)

const struct kelp_verb *const kelp_certs_verbs[] = {
    &kelp_certs_verb_init,
    &kelp_certs_verb_issue,
    &kelp_certs_verb_show,
    &kelp_certs_verb_users,
    NULL,
};

static int64_t days_from_now(const struct kelp_options *given)
{
    return (int64_t)time(NULL) + (int64_t)kelp_options_integer(given, "days") * DAY_S;
}

static int failed(kelp_status status, const struct kelp_error *error)
{
    bool usage = kelp_status_group(status) == KELP_GROUP_CALLER;

    return kelp_complain(usage ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "%s", error->text);
}

/* ---- init ---------------------------------------------------------------------------------- */

static const struct kelp_option init_options[] = {
    KELP_CERTS_AUTHORITY,
    KELP_VERB_NUMBER("days", INTEGER, 1, 36500, "3650", NULL, "how long the authority is valid"),
};

static const struct kelp_program init_program = {
    .name = "kelp certs init",
    .summary = "makes an authority: a signing key, in a folder that only you can open",
    .examples = "  kelp certs init\n"
                "  kelp certs init --authority /root/kelp-authority --days 365\n",
    KELP_VERB_OPTIONS(init_options),
};

static int init(const struct kelp_options *given)
{
    const char *folder = kelp_options_text(given, "authority");
    struct kelp_error error;

    kelp_status status =
        kelp_authority_init(folder, (int64_t)time(NULL) - EARLY_S, days_from_now(given), &error);
    if (status != KELP_OK) {
        return failed(status, &error);
    }
    (void)printf("%s: an authority; whoever reads its ca-key.pem can pose as anybody\n", folder);
    return KELP_EXIT_OK;
}

const struct kelp_verb kelp_certs_verb_init = {"init", "make an authority", &init_program, init,
                                               NULL};

/* ---- issue --------------------------------------------------------------------------------- */

static const struct kelp_option issue_options[] = {
    KELP_CERTS_AUTHORITY,
    KELP_VERB_TEXT("job", "NAME", NULL,
                   "job that the certificate is for; required for all roles but etcd"),
    KELP_VERB_TEXT("id", "NAME", NULL,
                   "--id of the process that the certificate is for (default: all of that role)"),
    KELP_VERB_TEXTS("host", "NAME|ADDRESS", NULL,
                    "name or address where clients reach etcd; required for the role etcd only"),
    KELP_VERB_TEXT("out", "FOLDER", NULL,
                   "where to write ca.pem, cert.pem and key.pem (default: AUTHORITY/JOB/ROLE, or "
                   "AUTHORITY/JOB/ROLE-ID with --id)"),
    KELP_VERB_NUMBER("days", INTEGER, 1, 3650, "90", NULL, "how long the certificate is valid"),
};

static const struct kelp_program issue_program = {
    .name = "kelp certs issue",
    .summary = "makes a key and a certificate for one role, or renews those in the folder",
    .positional = "coordinator|shard|worker|operator|reader|etcd",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp certs issue worker --job etth1\n"
                "  kelp certs issue shard --job etth1 --id shard-0 --days 30\n"
                "  kelp certs issue etcd --host 10.0.0.5 --host etcd.example.org\n",
    KELP_VERB_OPTIONS(issue_options),
};

static bool find_role(const char *typed, enum kelp_role *ret_role)
{
    for (size_t i = 0; kelp_role_names[i]; i++) {
        if (strcmp(kelp_role_names[i], typed) == 0) {
            *ret_role = (enum kelp_role)i;
            return true;
        }
    }
    return false;
}

static kelp_status set_name(const char *option, const char *typed,
                            char name[KELP_SPIFFE_NAME_MAX + 1], struct kelp_error *reterr)
{
    if (!typed) {
        return KELP_OK;
    }
    if (!kelp_spiffe_is_name(typed, strlen(typed))) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--%s '%.100s' is not 1 to %d letters, digits, '-', '_' or '.'", option,
                         typed, KELP_SPIFFE_NAME_MAX);
    }
    (void)snprintf(name, KELP_SPIFFE_NAME_MAX + 1, "%s", typed);
    return KELP_OK;
}

static kelp_status set_role(const struct kelp_options *given, struct kelp_spiffe *name,
                            struct kelp_error *reterr)
{
    const char *typed = kelp_options_positional(given, 0);

    if (find_role(typed, &name->role)) {
        return KELP_OK;
    }
    const char *near = kelp_value_nearest(typed, kelp_role_names);
    return near ? kelp_fail(reterr, KELP_ERR_INVALID,
                            "there is no role '%.60s'; did you mean '%s'?", typed, near)
                : kelp_fail(reterr, KELP_ERR_INVALID,
                            "there is no role '%.60s'; roles are coordinator, shard, worker, "
                            "operator, reader and etcd",
                            typed);
}

static kelp_status check_role(const struct kelp_spiffe *name, size_t host_count,
                              struct kelp_error *reterr)
{
    bool is_etcd = name->role == KELP_ROLE_ETCD;

    if (!is_etcd && name->job[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--job is missing: a %s belongs to a job",
                         kelp_role_names[name->role]);
    }
    if (name->id[0] != '\0' && name->job[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--id needs --job");
    }
    if (is_etcd && host_count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--host is missing: clients check etcd by its name or address");
    }
    return KELP_OK;
}

static kelp_status read_request(const struct kelp_options *given,
                                struct kelp_authority_request *request, struct kelp_error *reterr)
{
    request->host_count = kelp_options_repeat_count(given, "host");
    if (request->host_count > KELP_AUTHORITY_HOSTS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d --host", KELP_AUTHORITY_HOSTS_MAX);
    }
    for (size_t i = 0; i < request->host_count; i++) {
        request->hosts[i] = kelp_options_repeat(given, "host", i);
    }
    kelp_status status = set_role(given, &request->name, reterr);
    if (status == KELP_OK) {
        status = set_name("job", kelp_options_text(given, "job"), request->name.job, reterr);
    }
    if (status == KELP_OK) {
        status = set_name("id", kelp_options_text(given, "id"), request->name.id, reterr);
    }
    return status == KELP_OK ? check_role(&request->name, request->host_count, reterr) : status;
}

/* AUTHORITY/JOB/ROLE[-ID]; an id that begins with the role stands alone. */
static void default_out(const struct kelp_authority_request *request, char path[PATH_BYTES])
{
    const struct kelp_spiffe *name = &request->name;
    const char *role = kelp_role_names[name->role];
    size_t length = strlen(role);
    bool named = strncmp(name->id, role, length) == 0 && name->id[length] == '-';

    (void)snprintf(path, PATH_BYTES, "%s/%s%s%s%s%s", request->authority, name->job,
                   name->job[0] ? "/" : "", named ? "" : role, named || !name->id[0] ? "" : "-",
                   name->id);
}

static int issue(const struct kelp_options *given)
{
    struct kelp_authority_request request = {
        .authority = kelp_options_text(given, "authority"),
        .out = kelp_options_text(given, "out"),
        .from_s = (int64_t)time(NULL) - EARLY_S,
        .until_s = days_from_now(given),
    };
    char out[PATH_BYTES];
    char name[KELP_SPIFFE_MAX + 1];
    struct kelp_error error;

    kelp_status status = read_request(given, &request, &error);
    if (status == KELP_OK && !request.out) {
        default_out(&request, out);
        request.out = out;
    }
    if (status == KELP_OK) {
        status = kelp_authority_issue(&request, &error);
    }
    if (status != KELP_OK) {
        return failed(status, &error);
    }
    kelp_spiffe_print(&request.name, name);
    (void)printf("%s: %s\n", request.out, name);
    return KELP_EXIT_OK;
}

const struct kelp_verb kelp_certs_verb_issue = {"issue", "make a certificate for a role",
                                                &issue_program, issue, NULL};

/* ---- show ---------------------------------------------------------------------------------- */

static const struct kelp_option show_options[] = {
    KELP_VERB_OUTPUT("lines for people, or one JSON object"),
};

static const struct kelp_program show_program = {
    .name = "kelp certs show",
    .summary = "shows whom a certificate is for, and until when",
    .positional = "FOLDER|FILE",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp certs show authority/etth1/worker\n"
                "  kelp certs show authority/ca.pem -o json\n",
    KELP_VERB_OPTIONS(show_options),
};

static const char *role_of(const struct kelp_certificate *certificate)
{
    return certificate->has_name       ? kelp_role_names[certificate->name.role]
           : certificate->is_authority ? "authority"
                                       : "none";
}

static void print_text(const struct kelp_certificate *certificate, const char *name, int64_t now_s)
{
    char until[KELP_CERTIFICATE_DATE_BYTES];
    int64_t left_s = certificate->until_s - now_s;

    kelp_certificate_date(certificate->until_s, until);
    (void)printf("name     %s\n", certificate->has_name ? name : "-");
    (void)printf("role     %s\n", role_of(certificate));
    (void)printf("job      %s\n", certificate->name.job[0] ? certificate->name.job : "-");
    (void)printf("id       %s\n", certificate->name.id[0] ? certificate->name.id : "-");
    (void)printf("hosts    %s\n", certificate->hosts[0] ? certificate->hosts : "-");
    (void)printf("subject  %s\n", certificate->subject);
    if (left_s < 0) {
        (void)printf("until    %s, which is over\n", until);
    } else {
        (void)printf("until    %s, %" PRId64 " days left\n", until, left_s / DAY_S);
    }
}

static void print_json(const struct kelp_certificate *certificate, const char *name, int64_t now_s)
{
    char from[KELP_CERTIFICATE_DATE_BYTES];
    char until[KELP_CERTIFICATE_DATE_BYTES];

    kelp_certificate_date(certificate->from_s, from);
    kelp_certificate_date(certificate->until_s, until);
    kelp_json_print_member(stdout, "{", "name", certificate->has_name ? name : "");
    kelp_json_print_member(stdout, ",", "role", role_of(certificate));
    kelp_json_print_member(stdout, ",", "job", certificate->name.job);
    kelp_json_print_member(stdout, ",", "id", certificate->name.id);
    kelp_json_print_member(stdout, ",", "hosts", certificate->hosts);
    kelp_json_print_member(stdout, ",", "subject", certificate->subject);
    kelp_json_print_member(stdout, ",", "from", from);
    kelp_json_print_member(stdout, ",", "until", until);
    (void)printf(",\"valid\":%s}\n",
                 now_s >= certificate->from_s && now_s <= certificate->until_s ? "true" : "false");
}

/* The certificate in a folder: that of a process, or of an authority. */
static void look_inside(const char *folder, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/ca-key.pem", folder);
    bool is_authority = access(path, F_OK) == 0;
    (void)snprintf(path, PATH_BYTES, "%s/%s", folder,
                   is_authority ? KELP_CREDENTIALS_CA : KELP_CREDENTIALS_CERTIFICATE);
}

static int show(const struct kelp_options *given)
{
    const char *path = kelp_options_positional(given, 0);
    struct kelp_certificate certificate;
    char name[KELP_SPIFFE_MAX + 1] = "";
    char inside[PATH_BYTES];
    char *pem = NULL;
    size_t count = 0;
    struct stat info;
    struct kelp_error error;

    if (strlen(path) <= KELP_AUTHORITY_PATH_MAX && stat(path, &info) == 0 &&
        S_ISDIR(info.st_mode)) {
        look_inside(path, inside);
        path = inside;
    }
    if (kelp_files_read(path, KELP_CREDENTIALS_FILE_MAX, &pem, &count, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    kelp_status status = kelp_certificate_read(pem, &certificate, &error);
    free(pem);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s: %s", path, error.text);
    }
    if (certificate.has_name) {
        kelp_spiffe_print(&certificate.name, name);
    }
    (kelp_verb_json(given) ? print_json : print_text)(&certificate, name, (int64_t)time(NULL));
    return KELP_EXIT_OK;
}

const struct kelp_verb kelp_certs_verb_show = {"show", "show what a certificate says",
                                               &show_program, show, NULL};
