#include "worker/client/client_options.h"

#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "common/program/options/options.h"
#include "common/program/shm_option.h"
#include "kelp/worker.h"

static const struct kelp_option options_table[] = {
    {.name = "etcd",
     .type = KELP_OPTION_TEXT,
     .placeholder = "URL[,URL...]",
     .required = true,
     .help = "client addresses"},
    {.name = "job",
     .type = KELP_OPTION_TEXT,
     .placeholder = "NAME",
     .required = true,
     .help = "the job"},
    {.name = "id",
     .type = KELP_OPTION_TEXT,
     .placeholder = "NAME",
     .required = true,
     .help = "name in the job"},
    {.name = "spec-sha256",
     .type = KELP_OPTION_TEXT,
     .placeholder = "HEX",
     .help = "of the job's text"},
    {.name = "certs",
     .type = KELP_OPTION_TEXT,
     .placeholder = "FOLDER",
     .help = "folder of the certificate"},
    KELP_SHM_FOLDER_OPTION(NULL, ""),
    {.name = "log-level",
     .type = KELP_OPTION_CHOICE,
     .default_text = "info",
     .choices = kelp_log_level_names,
     .help = "least important lines"},
    {.name = "grace",
     .type = KELP_OPTION_DURATION,
     .min = 100,
     .max = 86400000,
     .default_text = "5s",
     .help = "time to send what was computed"},
};

static const struct kelp_program program = {.name = "worker",
                                            .summary = "",
                                            .options = options_table,
                                            .option_count = KELP_ARRAY_COUNT(options_table)};

/* For "--job" and "--job=NAME": how many words of the command line belong to the option; 0: not
 * an option of ours. */
static int words_of(const char *word, int left)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(options_table); i++) {
        const size_t length = strlen(options_table[i].name);
        if (strncmp(word, "--", 2) != 0 || strncmp(word + 2, options_table[i].name, length) != 0) {
            continue;
        }
        if (word[2 + length] == '=') {
            return 1;
        }
        if (word[2 + length] == '\0') {
            return left < 2 ? left : 2; /* the parser reports a missing value */
        }
    }
    return 0;
}

/* Sort the words into ours and the others, both in order and both with argv[0] in front. */
static void divide(int argc, char **argv, char **ours, int *ret_ours, char **others,
                   int *ret_others)
{
    int our_count = 0, other_count = 0;

    for (int i = 0; i < argc;) {
        const int count = i == 0 ? 0 : words_of(argv[i], argc - i);
        if (i == 0) {
            ours[our_count++] = argv[0];
        }
        if (i > 0 && strcmp(argv[i], "--") == 0) {
            while (i < argc) {
                others[other_count++] = argv[i++];
            }
            break;
        }
        if (count == 0) {
            others[other_count++] = argv[i++];
        }
        for (int end = i + count; i < end; i++) {
            ours[our_count++] = argv[i];
        }
    }
    *ret_ours = our_count;
    *ret_others = other_count;
}

static kelp_status read_ours(struct kelp_worker_options *options, int argc, char **argv,
                             struct kelp_error *reterr)
{
    enum kelp_options_wish wish;
    struct kelp_options *values = NULL;

    kelp_status status = kelp_options_parse(&program, argc, argv, &wish, &values, reterr);
    if (status != KELP_OK) {
        return status;
    }
    options->etcd = kelp_options_text(values, "etcd");
    options->job = kelp_options_text(values, "job");
    options->id = kelp_options_text(values, "id");
    options->spec_sha256 = kelp_options_text(values, "spec-sha256");
    options->certs = kelp_options_text(values, "certs");
    options->log_level = kelp_log_level_names[kelp_options_choice(values, "log-level")];
    options->grace_ms = (uint32_t)kelp_options_duration_ms(values, "grace");
    status = kelp_shm_option_read(values, &options->shm_folder, reterr);
    kelp_options_destroy(values);
    return status;
}

kelp_status kelp_client_options_read(struct kelp_worker_options *options, int *argc, char **argv,
                                     struct kelp_error *reterr)
{
    const size_t room = (size_t)(*argc > 0 ? *argc : 0) + 1;
    char **words = calloc(2 * room, sizeof(*words));
    int our_count = 0, other_count = 0;

    if (!words) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    divide(*argc, argv, words, &our_count, words + room, &other_count);
    kelp_status status = read_ours(options, our_count, words, reterr);
    if (status == KELP_OK) {
        memcpy(argv, words + room, (size_t)other_count * sizeof(*argv));
        argv[other_count] = NULL;
        *argc = other_count;
    }
    free(words);
    return status;
}
