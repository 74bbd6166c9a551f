/* Where a daemon serves, what it registers, and what is refused. */
#include <string.h>

#include "common/program/serving.h"
#include "tests/lib/suite.h"

#define FAR  "https://192.0.2.5:2379"
#define HERE "http://127.0.0.1:2379"

/* A label of 64 letters: no name, which is known without asking anybody. */
#define NO_NAME "aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbccccccccccccccccdddddddddddddddd.invalid"

/* NULL advertise and listen: not given. */
struct given {
    const char *etcd, *listen, *advertise;
    bool open; /* without certificates */
    bool one_machine;
};

static kelp_status init(const struct given *given, struct kelp_serving *serving,
                        struct kelp_error *error)
{
    const struct kelp_serving_options options = {.etcd = given->etcd,
                                                 .listen = given->listen,
                                                 .advertise = given->advertise,
                                                 .certified = !given->open,
                                                 .one_machine = given->one_machine};
    return kelp_serving_init(serving, &options, error);
}

/* Where etcd is on this machine, everything is as the options say. */
KELP_TEST(etcd_here)
{
    static const struct {
        struct given given;
        const char *listen;
    } cases[] = {
        {{HERE, NULL, NULL, false, false}, "127.0.0.1:0"},
        {{"unix:/tmp/etcd", NULL, NULL, true, false}, "127.0.0.1:0"},
        {{"https://localhost:2379," HERE, NULL, NULL, false, false}, "127.0.0.1:0"},
        {{HERE, "0.0.0.0:7000", NULL, false, false}, "0.0.0.0:7000"},
        {{HERE, "[::1]:7000", NULL, false, false}, "[::1]:7000"},
        {{HERE, "127.0.0.1:7000", "127.0.0.1:7001", false, false}, "127.0.0.1:7000"},
        {{FAR, NULL, NULL, true, true}, "127.0.0.1:0"},
        {{FAR, "127.0.0.1:0", NULL, true, true}, "127.0.0.1:0"},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_serving serving;
        struct kelp_error error = {.text = ""};
        char host[KELP_SERVING_HOST_MAX + 1];

        ck_assert_msg(init(&cases[i].given, &serving, &error) == KELP_OK, "%s", error.text);
        ck_assert_int_eq(serving.rule, KELP_SERVING_AS_GIVEN);
        ck_assert_int_eq(kelp_serving_find(&serving, &error), KELP_OK);
        ck_assert_str_eq(serving.listen, cases[i].listen);
        ck_assert_ptr_eq(kelp_serving_advertise(&serving), cases[i].given.advertise);
        ck_assert_int_eq(kelp_serving_look(&serving, "", host, &error), KELP_SERVING_SAME);
    }
}

/* Where it is on another one, the source address is used unless the options say another that others
 * reach. One of several endpoints that is elsewhere is enough. */
KELP_TEST(etcd_elsewhere)
{
    static const struct {
        struct given given;
        enum kelp_serving_rule rule;
        const char *listen;
    } cases[] = {
        {{FAR, NULL, NULL, false, false}, KELP_SERVING_AT_SOURCE, ""},
        {{HERE "," FAR, NULL, NULL, false, false}, KELP_SERVING_AT_SOURCE, ""},
        {{"https://[2001:db8::5]:2379", NULL, NULL, false, false}, KELP_SERVING_AT_SOURCE, ""},
        {{"https://etcd.example.org", NULL, NULL, false, false}, KELP_SERVING_AT_SOURCE, ""},
        {{FAR, NULL, "203.0.113.7:7001", false, false}, KELP_SERVING_AT_SOURCE, ""},
        {{FAR, "0.0.0.0:7000", NULL, false, false}, KELP_SERVING_BY_SOURCE, "0.0.0.0:7000"},
        {{FAR, "[::]:7000", NULL, false, false}, KELP_SERVING_BY_SOURCE, "[::]:7000"},
        {{FAR, "0.0.0.0:7000", "203.0.113.7", false, false}, KELP_SERVING_AS_GIVEN, "0.0.0.0:7000"},
        {{FAR, "127.0.0.1:7000", "203.0.113.7", false, false},
         KELP_SERVING_AS_GIVEN,
         "127.0.0.1:7000"},
        {{FAR, "192.0.2.7:7000", NULL, false, false}, KELP_SERVING_AS_GIVEN, "192.0.2.7:7000"},
        {{FAR, "unix:/run/shard-0", NULL, true, false}, KELP_SERVING_AS_GIVEN, "unix:/run/shard-0"},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_serving serving;
        struct kelp_error error = {.text = ""};

        ck_assert_msg(init(&cases[i].given, &serving, &error) == KELP_OK, "%zu: %s", i, error.text);
        ck_assert_msg(serving.rule == cases[i].rule, "%zu", i);
        ck_assert_str_eq(serving.listen, cases[i].listen);
        if (cases[i].given.advertise) {
            ck_assert_str_eq(kelp_serving_advertise(&serving), cases[i].given.advertise);
        }
    }
}

/* What others could not dial is refused, in any way to write it. */
KELP_TEST(refused)
{
    static const struct {
        struct given given;
        const char *says;
    } cases[] = {
        {{FAR, "127.0.0.1:7000", NULL, false, false},
         "--listen 127.0.0.1:7000: etcd is on another"},
        {{FAR, "localhost:7000", NULL, false, false},
         "--listen localhost:7000: etcd is on another"},
        {{FAR, "[0:0::1]:7000", NULL, false, false}, "--listen [0:0::1]:7000: etcd is on another"},
        {{FAR, "127.1:7000", NULL, false, false}, "--listen 127.1:7000: etcd is on another"},
        {{FAR, "127.0.0.1:0", NULL, true, false}, "--listen 127.0.0.1:0: etcd is on another"},
        {{FAR, "0.0.0.0:7000", "127.0.0.1", false, false}, "--advertise 127.0.0.1: etcd is on an"},
        {{FAR, NULL, "[::1]:7000", false, false}, "--advertise [::1]:7000: etcd is on another"},
        {{FAR, NULL, NULL, true, false}, "it needs certificates: --certs FOLDER"},
        {{HERE, NO_NAME ":7000", NULL, false, false}, "--listen " NO_NAME ":7000: "},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_serving serving;
        struct kelp_error error = {.text = ""};

        ck_assert_int_eq(init(&cases[i].given, &serving, &error), KELP_ERR_INVALID);
        ck_assert_msg(strstr(error.text, cases[i].says) != NULL, "%zu: %s", i, error.text);
        ck_assert_ptr_null(strchr(error.text, '\n'));
    }
}

/* --listen is bounded. */
KELP_TEST(too_long)
{
    char listen[KELP_SERVING_ADDRESS_MAX + 2];
    struct kelp_serving serving;
    struct kelp_error error = {.text = ""};

    memset(listen, '1', sizeof(listen) - 1);
    listen[sizeof(listen) - 1] = '\0';
    ck_assert_int_eq(init(&(struct given){.etcd = HERE, .listen = listen}, &serving, &error),
                     KELP_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "more than 255 bytes"));
}

/* Only numbers are registered: a name in --listen becomes those that it stands for. */
KELP_TEST(name)
{
    struct kelp_serving serving;
    struct kelp_error error = {.text = ""};

    ck_assert_int_eq(
        init(&(struct given){.etcd = HERE, .listen = "localhost:7000"}, &serving, &error), KELP_OK);
    ck_assert_int_eq(kelp_address_kind(serving.listen), KELP_ADDRESS_LOOPBACK);
    ck_assert_msg(strcmp(serving.listen, "127.0.0.1:7000") == 0 ||
                      strcmp(serving.listen, "[::1]:7000") == 0,
                  "%s", serving.listen);
}

/* An address that this host does not have (a documentation one) is no use any more: who listened
 * there ends. */
KELP_TEST(gone)
{
    struct kelp_serving serving;
    struct kelp_error error = {.text = ""};
    char host[KELP_SERVING_HOST_MAX + 1];

    ck_assert_int_eq(
        init(&(struct given){.etcd = FAR, .listen = "192.0.2.7:7000"}, &serving, &error), KELP_OK);
    ck_assert_int_eq(kelp_serving_look(&serving, "", host, &error), KELP_SERVING_GONE);
    ck_assert_str_eq(
        error.text,
        "it listens at 192.0.2.7:7000, which this host no longer has: it ends, to be restarted");
}

/* A name of etcd that stands for this host says nothing about what others dial. */
KELP_TEST(own_name)
{
    struct kelp_serving serving;
    struct kelp_error error = {.text = ""};

    ck_assert_int_eq(init(&(struct given){.etcd = "https://127.1:2379"}, &serving, &error),
                     KELP_OK);
    ck_assert_int_eq(serving.rule, KELP_SERVING_AT_SOURCE);
    ck_assert_int_eq(kelp_serving_find(&serving, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(
        error.text, "on this host that is 127.0.0.1, which no other machine can reach: give"));
}

/* A name that nobody knows is asked for again. */
KELP_TEST(no_name)
{
    struct kelp_serving serving;
    struct kelp_error error = {.text = ""};

    ck_assert_int_eq(init(&(struct given){.etcd = "https://" NO_NAME ":2379"}, &serving, &error),
                     KELP_OK);
    ck_assert_int_eq(kelp_serving_find(&serving, &error), KELP_ERR_UNREACHABLE);
    ck_assert_ptr_nonnull(strstr(error.text, "--etcd https://" NO_NAME ":2379: "));
}
