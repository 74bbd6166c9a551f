#include "cli/certs/certs_verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/files.h"
#include "common/etcd/etcd.h"
#include "common/tls/authority.h"
#include "common/tls/credentials.h"
#include "common/tls/login.h"

#define FOLDERS_MAX  64
#define CALL_MS      10000
#define ROOT         "root"         /* etcd's own name for who may do anything */
#define ROOT_VALID_S INT64_C(86400) /* it is issued again each time */
#define EARLY_S      300
#define PATH_BYTES   (KELP_AUTHORITY_PATH_MAX + 64)
#define KEY_BYTES    256
#define PERMISSION_S 8 /* at most, of one role */

static const struct kelp_option options[] = {
    KELP_CERTS_AUTHORITY,
    {.name = "etcd",
     .type = KELP_OPTION_TEXT,
     .placeholder = "URL[,URL...]",
     .required = true,
     .help = "etcd's client addresses, https://"},
};

static const struct kelp_program program = {
    .name = "kelp certs users",
    .summary = "makes etcd users that may write only what the role of their certificate needs",
    .positional = "FOLDER...",
    .positional_min = 1,
    .positional_max = FOLDERS_MAX,
    .examples = "  kelp certs users authority/etth1/* --etcd https://10.0.0.5:2379\n",
    KELP_VERB_OPTIONS(options),
};

/* ---- what a role may do --------------------------------------------------------------------- */

struct rights {
    struct kelp_etcd_permission permissions[PERMISSION_S];
    char keys[PERMISSION_S][KEY_BYTES];
    size_t count;
};

static void allow(struct rights *rights, const struct kelp_spiffe *name, const char *key,
                  bool prefix, bool write)
{
    char *text = rights->keys[rights->count];

    (void)snprintf(text, KEY_BYTES, "/kelp/%s/%s", name->job, key);
    rights->permissions[rights->count++] =
        (struct kelp_etcd_permission){.key = text, .prefix = prefix, .write = write};
}

/* Everybody of the job reads all of it. */
static void set_rights(const struct kelp_spiffe *name, struct rights *rights)
{
    static const char *const leads[] = {"coordinator", "plan",  "map",
                                        "state",       "scale", "checkpoint_fence"};
    char own[KELP_SPIFFE_NAME_MAX + 8];

    *rights = (struct rights){.count = 0};
    allow(rights, name, "", true, name->role == KELP_ROLE_OPERATOR);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(leads) && name->role == KELP_ROLE_COORDINATOR; i++) {
        allow(rights, name, leads[i], false, true);
    }
    if (name->role == KELP_ROLE_COORDINATOR) {
        allow(rights, name, "checkpoint/", true, true);
    }
    if (name->role == KELP_ROLE_SHARD) {
        (void)snprintf(own, sizeof(own), "ps/%s", name->id);
        allow(rights, name, own, name->id[0] == '\0', true);
    }
}

static const char *writes(enum kelp_role role)
{
    switch (role) {
    case KELP_ROLE_COORDINATOR:
        return "writes plan, map, state and checkpoints";
    case KELP_ROLE_SHARD:
        return "writes its own key";
    case KELP_ROLE_OPERATOR:
        return "writes all of the job";
    case KELP_ROLE_WORKER:
    case KELP_ROLE_READER:
    case KELP_ROLE_ETCD:
        break;
    }
    return "reads";
}

/* ---- the users ------------------------------------------------------------------------------ */

static kelp_status read_name(const char *folder, struct kelp_spiffe *ret_name,
                             struct kelp_error *reterr)
{
    struct kelp_credentials *credentials = NULL;

    kelp_status status = kelp_credentials_open(folder, &credentials, reterr);
    if (status != KELP_OK) {
        return status;
    }
    *ret_name = *kelp_credentials_name(credentials);
    kelp_credentials_close(credentials);
    return ret_name->role != KELP_ROLE_ETCD
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID, "'%s' is for etcd itself, which needs no user",
                           folder);
}

/* The one that is there, when it is that user's; else a new one. */
static kelp_status find_login(const char *folder, const char *user, struct kelp_login *ret_login,
                              struct kelp_error *reterr)
{
    kelp_status status = kelp_login_read(folder, ret_login, reterr);

    if (status == KELP_ERR_NOT_FOUND || (status == KELP_OK && strcmp(ret_login->user, user) != 0)) {
        status = kelp_login_make(folder, user, ret_login, reterr);
    }
    return status;
}

static kelp_status make_user(struct kelp_etcd *etcd, const char *folder, struct kelp_error *reterr)
{
    static const char scheme[] = "spiffe://";
    char text[KELP_SPIFFE_MAX + 1];
    struct kelp_login login = {.user = ""};
    struct kelp_spiffe name;
    struct rights rights;

    kelp_status status = read_name(folder, &name, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_spiffe_print(&name, text);
    const char *user = text + strlen(scheme);
    set_rights(&name, &rights);
    status = find_login(folder, user, &login, reterr);
    if (status == KELP_OK) {
        status = kelp_etcd_set_role(etcd, user, rights.permissions, rights.count, CALL_MS, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_etcd_set_user(etcd, user, login.password, user, CALL_MS, reterr);
    }
    kelp_login_wipe(&login);
    if (status == KELP_OK) {
        (void)printf("%s: user %s %s\n", folder, user, writes(name.role));
    }
    return status;
}

/* Who may make users: AUTHORITY/etcd-root, a certificate like etcd's own. */
static kelp_status open_root(const struct kelp_options *given, char folder[PATH_BYTES],
                             struct kelp_etcd **ret_etcd, struct kelp_error *reterr)
{
    const char *authority = kelp_options_text(given, "authority");
    int64_t now_s = (int64_t)time(NULL);
    struct kelp_authority_request request = {.authority = authority,
                                             .out = folder,
                                             .name = {.role = KELP_ROLE_ETCD},
                                             .from_s = now_s - EARLY_S,
                                             .until_s = now_s + ROOT_VALID_S};

    (void)snprintf(folder, PATH_BYTES, "%.*s/etcd-root", KELP_AUTHORITY_PATH_MAX, authority);
    kelp_status status = kelp_authority_issue(&request, reterr);
    return status == KELP_OK ? kelp_etcd_open_certified(kelp_options_text(given, "etcd"), folder,
                                                        ret_etcd, reterr)
                             : status;
}

static kelp_status make_root(struct kelp_etcd *etcd, const char *folder, struct kelp_error *reterr)
{
    struct kelp_login login = {.user = ""};

    kelp_status status = find_login(folder, ROOT, &login, reterr);
    if (status == KELP_OK) {
        status = kelp_etcd_set_role(etcd, ROOT, NULL, 0, CALL_MS, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_etcd_set_user(etcd, ROOT, login.password, ROOT, CALL_MS, reterr);
    }
    kelp_login_wipe(&login);
    return status;
}

static kelp_status check_folders(const struct kelp_options *given, struct kelp_error *reterr)
{
    struct kelp_spiffe name;
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < kelp_options_positional_count(given) && status == KELP_OK; i++) {
        status = read_name(kelp_options_positional(given, i), &name, reterr);
    }
    return status;
}

static int users(const struct kelp_options *given)
{
    char folder[PATH_BYTES];
    struct kelp_etcd *etcd = NULL;
    struct kelp_error error;

    if (check_folders(given, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    kelp_status status = open_root(given, folder, &etcd, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    status = make_root(etcd, folder, &error);
    for (size_t i = 0; i < kelp_options_positional_count(given) && status == KELP_OK; i++) {
        status = make_user(etcd, kelp_options_positional(given, i), &error);
    }
    if (status == KELP_OK) {
        status = kelp_etcd_enable_users(etcd, CALL_MS, &error);
    }
    kelp_etcd_close(etcd);
    if (status != KELP_OK) {
        bool away = status == KELP_ERR_UNREACHABLE || status == KELP_ERR_TIMEOUT;
        return kelp_complain(away ? KELP_EXIT_UNREACHABLE : KELP_EXIT_FAILED, "%s", error.text);
    }
    (void)printf("%s: user root; keep it with the authority\n", folder);
    return KELP_EXIT_OK;
}

const struct kelp_verb kelp_certs_verb_users = {"users", "make users of etcd for certificates",
                                                &program, users, NULL};
