#include "common/tls/spiffe.h"

#include <stdio.h>
#include <string.h>

#define SCHEME    "spiffe://kelp/"
#define PARTS_MAX 3
#define NAME_BYTES                                                                                 \
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_." /* of job names and ids */

const char *const kelp_role_names[] = {
    [KELP_ROLE_COORDINATOR] = "coordinator",
    [KELP_ROLE_SHARD] = "shard",
    [KELP_ROLE_WORKER] = "worker",
    [KELP_ROLE_OPERATOR] = "operator",
    [KELP_ROLE_READER] = "reader",
    [KELP_ROLE_ETCD] = "etcd",
    [KELP_ROLE_ETCD + 1] = NULL,
};

bool kelp_spiffe_is_name(const char *text, size_t length)
{
    if (length == 0 || length > KELP_SPIFFE_NAME_MAX) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\0' || !strchr(NAME_BYTES, text[i])) {
            return false;
        }
    }
    return !(text[0] == '.' && (length == 1 || (length == 2 && text[1] == '.')));
}

struct part {
    const char *text;
    size_t length;
};

/* Split at slashes. Returns the number of parts; 0: one of them is not a name, or too many. */
static size_t split(const char *text, size_t length, struct part parts[PARTS_MAX])
{
    size_t count = 0;

    for (;;) {
        const char *slash = memchr(text, '/', length);
        size_t used = slash ? (size_t)(slash - text) : length;
        if (count == PARTS_MAX || !kelp_spiffe_is_name(text, used)) {
            return 0;
        }
        parts[count++] = (struct part){.text = text, .length = used};
        if (!slash) {
            return count;
        }
        text = slash + 1;
        length -= used + 1;
    }
}

static bool find_role(const struct part *part, enum kelp_role *ret_role)
{
    for (size_t i = 0; kelp_role_names[i]; i++) {
        if (strlen(kelp_role_names[i]) == part->length &&
            memcmp(kelp_role_names[i], part->text, part->length) == 0) {
            *ret_role = (enum kelp_role)i;
            return true;
        }
    }
    return false;
}

static bool read_parts(const struct part parts[PARTS_MAX], size_t count, struct kelp_spiffe *name)
{
    if (count == 1) {
        return find_role(&parts[0], &name->role) && name->role == KELP_ROLE_ETCD;
    }
    if (count == 0 || !find_role(&parts[1], &name->role)) {
        return false;
    }
    memcpy(name->job, parts[0].text, parts[0].length);
    if (count == 3) {
        memcpy(name->id, parts[2].text, parts[2].length);
    }
    return true;
}

kelp_status kelp_spiffe_parse(const char *text, size_t length, struct kelp_spiffe *ret_name,
                              struct kelp_error *reterr)
{
    const size_t scheme = strlen(SCHEME);
    struct part parts[PARTS_MAX] = {{.text = NULL}};
    struct kelp_spiffe name = {.role = KELP_ROLE_READER};
    size_t count = 0;

    if (length > scheme && memcmp(text, SCHEME, scheme) == 0) {
        count = split(text + scheme, length - scheme, parts);
    }
    if (!read_parts(parts, count, &name)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "'%.*s' is not a name of Kelp, which is spiffe://kelp/JOB/ROLE[/ID]",
                         (int)(length < KELP_SPIFFE_MAX ? length : KELP_SPIFFE_MAX), text);
    }
    *ret_name = name;
    return KELP_OK;
}

void kelp_spiffe_print(const struct kelp_spiffe *name, char text[KELP_SPIFFE_MAX + 1])
{
    (void)snprintf(text, KELP_SPIFFE_MAX + 1, SCHEME "%s%s%s%s%s", name->job,
                   name->job[0] ? "/" : "", kelp_role_names[name->role], name->id[0] ? "/" : "",
                   name->id);
}

void kelp_role_host(enum kelp_role role, char host[KELP_ROLE_HOST_MAX + 1])
{
    (void)snprintf(host, KELP_ROLE_HOST_MAX + 1, "%s.kelp", kelp_role_names[role]);
}

bool kelp_spiffe_allows(const struct kelp_spiffe *name, const char *id)
{
    return name->id[0] == '\0' || strcmp(name->id, id) == 0;
}
