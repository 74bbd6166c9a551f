/*
 * What is decided about a first job: job_choice.c and target_choice.c fill it in, job_print.c and
 * job_lists.c write it down.
 */
#ifndef KELP_CLI_INIT_CHOICE_H
#define KELP_CLI_INIT_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* Classes of a target, and words of a column that becomes a 0 or 1 for each. */
#define KELP_INIT_CLASSES_MAX 20
#define KELP_INIT_ONE_HOT_MAX 12

enum kelp_init_shape {
    KELP_INIT_SERIES, /* data.kind csv */
    KELP_INIT_PANEL,
    KELP_INIT_TABLE,
};

enum kelp_init_target {
    KELP_INIT_AMOUNT,
    KELP_INIT_CHANCE,       /* 0 or 1 */
    KELP_INIT_OTHER_CHANCE, /* two other numbers, or two words: 1 where it is `likely` */
    KELP_INIT_CLASS,        /* whole numbers from 0 on, or from another one on */
    KELP_INIT_WORD_CLASS,   /* words: classes with names */
};

enum kelp_init_use {
    KELP_INIT_LEFT_OUT,
    KELP_INIT_IS_TARGET,
    KELP_INIT_NUMBER,
    KELP_INIT_LOG_NUMBER, /* its logarithm: a few values are far larger than the others */
    KELP_INIT_CATEGORY,
    KELP_INIT_ONE_HOT,
    KELP_INIT_DATE,
    KELP_INIT_SINCE, /* the time since the first date of the row */
    KELP_INIT_TIME,  /* orders the rows of a series */
    KELP_INIT_GROUP, /* tells one series from another */
};

struct kelp_init_column {
    enum kelp_init_use use;
    const char *why; /* of one that is left out */
};

struct kelp_init_choice {
    enum kelp_init_shape shape;
    enum kelp_init_target target_kind;
    uint32_t target, time, group;     /* columns; group: UINT32_MAX where there is none */
    bool target_given;                /* by name, not guessed */
    struct kelp_init_column *columns; /* one for each of the table; owned */
    bool has_categories;              /* columns, or parts of dates */
    bool missing;                     /* some value of the inputs is missing */
    bool random_split;                /* the file is sorted by the target */
    uint32_t classes;
    uint32_t likely; /* the word, or number, whose chance is learnt, among the column's words */
    uint32_t seq_len, pred_len;
    uint64_t split[3];
    uint32_t epochs, batch_size, patience;
    double lr, weight_decay;
    bool decay_weights_alone; /* no biases */
};

#endif
