#include "common/program/options/options.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/value.h"
#include "common/program/options/version.h"

#define NAME_MAX_BYTES 63

/* A value in effect, read from its text. */
struct value {
    const char *text; /* borrowed; NULL: none */
    bool given;
    union {
        bool flag;
        uint64_t integer; /* DURATION in ms, CHOICE by index */
        struct kelp_range range;
    };
};

struct kelp_options {
    const struct kelp_program *program; /* borrowed */
    struct value *values;               /* one for each option */
    const char **repeats;               /* values of all repeatable options, in order */
    size_t *repeat_of;                  /* which option each belongs to */
    size_t repeat_count;
    const char **positional;
    size_t positional_count;
};

/* The typed text, while the command line is read. */
struct reader {
    struct kelp_options *options;
    int argc;
    char **argv;
    int at;
    enum kelp_options_wish wish;
};

/* The candidate most similar to the typed text so far. */
struct nearest {
    const char *word;
    uint32_t distance;
};

static void consider(struct nearest *nearest, const char *typed, const char *word)
{
    uint32_t distance = kelp_value_distance(typed, word);

    if (!nearest->word || distance < nearest->distance) {
        *nearest = (struct nearest){.word = word, .distance = distance};
    }
}

static const char *suggestion(const struct nearest *nearest)
{
    return nearest->word && kelp_value_near(nearest->distance, nearest->word) ? nearest->word
                                                                              : NULL;
}

const char *kelp_options_nearest(const char *typed, const char *const *names, size_t count)
{
    struct nearest nearest = {0};

    for (size_t i = 0; i < count; i++) {
        consider(&nearest, typed, names[i]);
    }
    return suggestion(&nearest);
}

static kelp_status unknown_option(const struct kelp_program *program, const char *typed,
                                  struct kelp_error *reterr)
{
    struct nearest nearest = {0};

    for (size_t i = 0; i < program->option_count; i++) {
        consider(&nearest, typed, program->options[i].name);
    }
    if (suggestion(&nearest)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "no option --%.63s; did you mean --%s?", typed,
                         suggestion(&nearest));
    }
    return kelp_fail(reterr, KELP_ERR_INVALID, "no option --%.63s; %s --help lists them", typed,
                     program->name);
}

static uint64_t upper(const struct kelp_option *option, uint64_t type_max)
{
    return option->max > 0 ? option->max : type_max;
}

static kelp_status read_value(const struct kelp_option *option, const char *text,
                              struct value *value, struct kelp_error *reterr)
{
    uint32_t index = 0;
    kelp_status status;

    switch (option->type) {
    case KELP_OPTION_FLAG:
        return kelp_value_bool(text, &value->flag, reterr);
    case KELP_OPTION_TEXT:
        return kelp_value_text(text, 4095, reterr);
    case KELP_OPTION_INTEGER:
        return kelp_value_u64(text, option->min, upper(option, UINT64_MAX), &value->integer,
                              reterr);
    case KELP_OPTION_DURATION:
        return kelp_value_duration(text, option->min, upper(option, UINT64_MAX), &value->integer,
                                   reterr);
    case KELP_OPTION_RANGE:
        return kelp_value_range(text, (uint32_t)option->min, (uint32_t)upper(option, UINT32_MAX),
                                &value->range, reterr);
    case KELP_OPTION_CHOICE:
        status = kelp_value_choice(text, option->choices, &index, reterr);
        value->integer = index;
        return status;
    }
    assert(false && "option type");
    return KELP_ERR_INTERNAL;
}

static kelp_status set_value(struct kelp_options *options, size_t index, const char *text,
                             struct kelp_error *reterr)
{
    const struct kelp_option *option = &options->program->options[index];
    struct value value = {.text = text, .given = true};
    kelp_status status = read_value(option, text, &value, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (option->repeatable) {
        if (options->repeat_count == KELP_OPTIONS_REPEAT_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "given more than %d times",
                             KELP_OPTIONS_REPEAT_MAX);
        }
        options->repeats[options->repeat_count] = text;
        options->repeat_of[options->repeat_count++] = index;
    } else if (options->values[index].given) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "given twice");
    }
    options->values[index] = value;
    return KELP_OK;
}

/* Set an option from the command line; text is NULL when no value was attached with '='. */
static kelp_status read_option(struct reader *reader, size_t index, const char *text,
                               struct kelp_error *reterr)
{
    const struct kelp_option *option = &reader->options->program->options[index];
    kelp_status status;

    if (!text && option->type == KELP_OPTION_FLAG) {
        text = "true";
    } else if (!text && reader->at + 1 < reader->argc) {
        text = reader->argv[++reader->at];
    }
    status = text ? set_value(reader->options, index, text, reterr)
                  : kelp_fail(reterr, KELP_ERR_INVALID, "needs a value");
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "--%s", option->name);
    }
    return status;
}

static kelp_status read_long(struct reader *reader, const char *typed, struct kelp_error *reterr)
{
    const struct kelp_program *program = reader->options->program;
    char name[NAME_MAX_BYTES + 1];
    const char *equals = strchr(typed, '=');
    size_t name_bytes = equals ? (size_t)(equals - typed) : strlen(typed);

    (void)snprintf(name, sizeof(name), "%.*s",
                   (int)(name_bytes < sizeof(name) ? name_bytes : sizeof(name) - 1), typed);
    if (!equals && strcmp(name, "help") == 0) {
        reader->wish = KELP_WISH_HELP;
        return KELP_OK;
    }
    if (!equals && strcmp(name, "version") == 0) {
        reader->wish = KELP_WISH_VERSION;
        return KELP_OK;
    }
    for (size_t i = 0; i < program->option_count && name_bytes < sizeof(name); i++) {
        if (strcmp(name, program->options[i].name) == 0) {
            return read_option(reader, i, equals ? equals + 1 : NULL, reterr);
        }
    }
    return unknown_option(program, name, reterr);
}

static kelp_status read_short(struct reader *reader, const char *typed, struct kelp_error *reterr)
{
    const struct kelp_program *program = reader->options->program;

    if (strcmp(typed, "h") == 0) {
        reader->wish = KELP_WISH_HELP;
        return KELP_OK;
    }
    for (size_t i = 0; i < program->option_count; i++) {
        if (program->options[i].letter != '\0' && program->options[i].letter == typed[0] &&
            typed[1] == '\0') {
            return read_option(reader, i, NULL, reterr);
        }
    }
    return kelp_fail(reterr, KELP_ERR_INVALID, "no option -%.63s; %s --help lists them", typed,
                     program->name);
}

static kelp_status read_positional(struct reader *reader, const char *typed,
                                   struct kelp_error *reterr)
{
    const struct kelp_program *program = reader->options->program;

    if (reader->options->positional_count == program->positional_max) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "unexpected argument '%.63s'; usage: %s %s",
                         typed, program->name,
                         program->positional ? program->positional : "[options]");
    }
    reader->options->positional[reader->options->positional_count++] = typed;
    return KELP_OK;
}

static kelp_status read_arguments(struct reader *reader, struct kelp_error *reterr)
{
    bool options_ended = false;
    kelp_status status = KELP_OK;

    for (reader->at = 1; reader->at < reader->argc && status == KELP_OK; reader->at++) {
        const char *typed = reader->argv[reader->at];
        if (options_ended || typed[0] != '-' || typed[1] == '\0') {
            status = read_positional(reader, typed, reterr);
            options_ended = options_ended || reader->options->program->positional_ends;
        } else if (strcmp(typed, "--") == 0) {
            options_ended = true;
        } else {
            status = typed[1] == '-' ? read_long(reader, typed + 2, reterr)
                                     : read_short(reader, typed + 1, reterr);
        }
        if (reader->wish != KELP_WISH_RUN) {
            return KELP_OK; /* whatever follows */
        }
    }
    return status;
}

void kelp_option_variable(const struct kelp_option *option, char text[KELP_OPTION_VARIABLE_MAX + 1])
{
    text[0] = '\0';
    if (option->no_environment || option->repeatable) {
        return;
    }
    (void)snprintf(text, KELP_OPTION_VARIABLE_MAX + 1, "KELP_%s", option->name);
    for (char *c = text; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    }
}

/* Values that the command line did not give: from the environment, otherwise the default. */
static kelp_status fill_in(struct kelp_options *options, size_t index, struct kelp_error *reterr)
{
    const struct kelp_option *option = &options->program->options[index];
    struct value *value = &options->values[index];
    char variable[KELP_OPTION_VARIABLE_MAX + 1], placeholder[KELP_OPTION_VALUE_MAX + 1];

    if (value->given || option->repeatable) {
        return KELP_OK;
    }
    kelp_option_variable(option, variable);
    const char *text = variable[0] != '\0' ? getenv(variable) : NULL;
    if (text && text[0] != '\0') {
        kelp_status status = set_value(options, index, text, reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "environment %s", variable);
        }
        return status;
    }
    if (option->required) {
        kelp_option_value(option, placeholder);
        return kelp_fail(reterr, KELP_ERR_INVALID, "--%s%s%s is missing (or %s in the environment)",
                         option->name, placeholder[0] != '\0' ? " " : "", placeholder, variable);
    }
    if (option->default_text) {
        value->text = option->default_text;
        kelp_status status = read_value(option, option->default_text, value, reterr);
        assert(status == KELP_OK); /* the table's own default */
        (void)status;
    }
    return KELP_OK;
}

static kelp_status fill_in_all(struct kelp_options *options, struct kelp_error *reterr)
{
    const struct kelp_program *program = options->program;

    if (options->positional_count < program->positional_min) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "an argument is missing; usage: %s %s",
                         program->name, program->positional);
    }
    for (size_t i = 0; i < program->option_count; i++) {
        kelp_status status = fill_in(options, i, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static struct kelp_options *create(const struct kelp_program *program)
{
    struct kelp_options *options = calloc(1, sizeof(*options));

    if (!options) {
        return NULL;
    }
    options->program = program;
    options->values = calloc(program->option_count + 1, sizeof(*options->values));
    options->repeats = calloc(KELP_OPTIONS_REPEAT_MAX, sizeof(*options->repeats));
    options->repeat_of = calloc(KELP_OPTIONS_REPEAT_MAX, sizeof(*options->repeat_of));
    options->positional = calloc(program->positional_max + 1, sizeof(*options->positional));
    if (!options->values || !options->repeats || !options->repeat_of || !options->positional) {
        kelp_options_destroy(options);
        return NULL;
    }
    return options;
}

void kelp_options_destroy(struct kelp_options *options)
{
    if (!options) {
        return;
    }
    free(options->values);
    free(options->repeats);
    free(options->repeat_of);
    free(options->positional);
    free(options);
}

kelp_status kelp_options_parse(const struct kelp_program *program, int argc, char **argv,
                               enum kelp_options_wish *ret_wish, struct kelp_options **ret_options,
                               struct kelp_error *reterr)
{
    struct reader reader = {.argc = argc, .argv = argv, .wish = KELP_WISH_RUN};

    reader.options = create(program);
    if (!reader.options) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = read_arguments(&reader, reterr);
    if (status == KELP_OK && reader.wish == KELP_WISH_RUN) {
        status = fill_in_all(reader.options, reterr);
    }
    if (status != KELP_OK || reader.wish != KELP_WISH_RUN) {
        kelp_options_destroy(reader.options);
        reader.options = NULL;
    }
    if (status == KELP_OK) {
        *ret_wish = reader.wish;
        *ret_options = reader.options;
    }
    return status;
}

bool kelp_options_read(const struct kelp_program *program, int argc, char **argv,
                       struct kelp_options **ret_options, int *ret_exit_code)
{
    enum kelp_options_wish wish = KELP_WISH_RUN;
    struct kelp_error error;
    kelp_status status = kelp_options_parse(program, argc, argv, &wish, ret_options, &error);

    if (status != KELP_OK) {
        (void)fprintf(stderr, "%s: %s\n", program->name, error.text);
        *ret_exit_code = KELP_EXIT_USAGE;
        return false;
    }
    if (wish == KELP_WISH_HELP) {
        kelp_options_help(program, stdout);
    } else if (wish == KELP_WISH_VERSION) {
        kelp_version_print(program->name, stdout);
    } else {
        return true;
    }
    *ret_exit_code = fflush(stdout) == 0 ? KELP_EXIT_OK : KELP_EXIT_FAILED;
    return false;
}

/* ---- values ---- */

static size_t find(const struct kelp_options *options, const char *name)
{
    for (size_t i = 0; i < options->program->option_count; i++) {
        if (strcmp(options->program->options[i].name, name) == 0) {
            return i;
        }
    }
    assert(false && "the program has no such option");
    return 0;
}

static const struct value *value_of(const struct kelp_options *options, const char *name,
                                    enum kelp_option_type type)
{
    size_t index = find(options, name);

    assert(options->program->options[index].type == type);
    (void)type;
    return &options->values[index];
}

bool kelp_options_given(const struct kelp_options *options, const char *name)
{
    return options->values[find(options, name)].given;
}

bool kelp_options_flag(const struct kelp_options *options, const char *name)
{
    return value_of(options, name, KELP_OPTION_FLAG)->flag;
}

const char *kelp_options_text(const struct kelp_options *options, const char *name)
{
    return value_of(options, name, KELP_OPTION_TEXT)->text;
}

uint64_t kelp_options_integer(const struct kelp_options *options, const char *name)
{
    return value_of(options, name, KELP_OPTION_INTEGER)->integer;
}

uint64_t kelp_options_duration_ms(const struct kelp_options *options, const char *name)
{
    return value_of(options, name, KELP_OPTION_DURATION)->integer;
}

struct kelp_range kelp_options_range(const struct kelp_options *options, const char *name)
{
    return value_of(options, name, KELP_OPTION_RANGE)->range;
}

uint32_t kelp_options_choice(const struct kelp_options *options, const char *name)
{
    return (uint32_t)value_of(options, name, KELP_OPTION_CHOICE)->integer;
}

size_t kelp_options_repeat_count(const struct kelp_options *options, const char *name)
{
    size_t option = find(options, name), count = 0;

    for (size_t i = 0; i < options->repeat_count; i++) {
        count += options->repeat_of[i] == option;
    }
    return count;
}

const char *kelp_options_repeat(const struct kelp_options *options, const char *name, size_t index)
{
    size_t option = find(options, name);

    for (size_t i = 0; i < options->repeat_count; i++) {
        if (options->repeat_of[i] == option && index-- == 0) {
            return options->repeats[i];
        }
    }
    return NULL;
}

size_t kelp_options_positional_count(const struct kelp_options *options)
{
    return options->positional_count;
}

const char *kelp_options_positional(const struct kelp_options *options, size_t index)
{
    return index < options->positional_count ? options->positional[index] : NULL;
}
