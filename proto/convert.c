#include "proto/convert.h"

#include <math.h>
#include <string.h>

void kelp_wire_put_word(const struct kelp_control_word *word, Kelp__V1__ControlWord *ret_message)
{
    kelp__v1__control_word__init(ret_message);
    ret_message->version = word->version;
    ret_message->step = word->step;
    ret_message->kind = (uint32_t)word->kind;
    ret_message->epoch = word->epoch;
    ret_message->step_in_epoch = word->step_in_epoch;
    ret_message->sample_first = word->sample_first;
    ret_message->sample_count = word->sample_count;
    ret_message->lr = word->lr;
    ret_message->digest_due = word->digest_due;
    ret_message->skipped = word->skipped;
    ret_message->steps_skipped = word->steps_skipped;
}

bool kelp_wire_get_word(const Kelp__V1__ControlWord *message, struct kelp_control_word *ret_word)
{
    if (message->kind < KELP_STEP_TRAIN || message->kind > KELP_STEP_KIND_MAX ||
        !isfinite(message->lr)) {
        return false;
    }
    *ret_word = (struct kelp_control_word){
        .version = message->version,
        .step = message->step,
        .kind = (enum kelp_step_kind)message->kind,
        .epoch = message->epoch,
        .step_in_epoch = message->step_in_epoch,
        .sample_first = message->sample_first,
        .sample_count = message->sample_count,
        .lr = message->lr,
        .digest_due = message->digest_due,
        .skipped = message->skipped,
        .steps_skipped = message->steps_skipped,
    };
    return true;
}

static void put_metrics(const struct kelp_metrics *metrics, Kelp__V1__Measures *ret_message)
{
    kelp__v1__measures__init(ret_message);
    ret_message->present = metrics->present;
    ret_message->n_value = metrics->present != 0 ? KELP_METRIC_COUNT : 0;
    ret_message->value = (double *)(uintptr_t)metrics->of; /* only read */
}

bool kelp_wire_get_metrics(const Kelp__V1__Measures *message, struct kelp_metrics *ret_metrics)
{
    struct kelp_metrics metrics = {.present = 0};

    if (message) {
        if (message->present >> KELP_METRIC_COUNT != 0 ||
            (message->present != 0 &&
             (message->n_value > KELP_METRIC_COUNT || message->present >> message->n_value != 0))) {
            return false;
        }
        metrics.present = message->present;
        for (size_t i = 0; metrics.present != 0 && i < message->n_value; i++) {
            metrics.of[i] = message->value[i];
        }
    }
    *ret_metrics = metrics;
    return true;
}

void kelp_wire_put_best(const struct kelp_best *best, struct kelp_wire_best *ret_message)
{
    Kelp__V1__Best *message = &ret_message->message;

    kelp__v1__best__init(message);
    message->step = best->step;
    message->epoch = best->epoch;
    put_metrics(&best->val, &ret_message->val);
    put_metrics(&best->test, &ret_message->test);
    message->val = &ret_message->val;
    message->test = &ret_message->test;
}

bool kelp_wire_get_best(const Kelp__V1__Best *message, struct kelp_best *ret_best)
{
    struct kelp_best best = {.known = true, .step = message->step, .epoch = message->epoch};

    if (!kelp_wire_get_metrics(message->val, &best.val) || best.val.present == 0 ||
        !kelp_wire_get_metrics(message->test, &best.test)) {
        return false;
    }
    *ret_best = best;
    return true;
}

void kelp_wire_put_record(const struct kelp_record *record, struct kelp_wire_record *ret_message)
{
    Kelp__V1__Record *message = &ret_message->message;

    kelp__v1__record__init(message);
    kelp_wire_put_word(&record->word, &ret_message->word);
    message->word = &ret_message->word;
    put_metrics(&record->metrics, &ret_message->metrics);
    message->measures = &ret_message->metrics;
    message->best = record->best;
    message->skipped = record->skipped;
    message->epoch_end = record->epoch_end;
    message->epoch_loss = record->epoch_loss;
    message->window_end = record->window_end;
    message->window_loss = record->window_loss;
    message->digest = (char *)(uintptr_t)record->digest; /* only read */
}

bool kelp_wire_get_record(const Kelp__V1__Record *message, struct kelp_record *ret_record)
{
    struct kelp_record record = {.best = message->best,
                                 .skipped = message->skipped,
                                 .epoch_end = message->epoch_end,
                                 .epoch_loss = message->epoch_loss,
                                 .window_end = message->window_end,
                                 .window_loss = message->window_loss};
    size_t digest_length = message->digest ? strlen(message->digest) : 0;

    if (!message->word || !kelp_wire_get_word(message->word, &record.word) ||
        !kelp_wire_get_metrics(message->measures, &record.metrics)) {
        return false;
    }
    if (digest_length != 0) {
        if (digest_length != 32 || strspn(message->digest, "0123456789abcdef") != 32) {
            return false;
        }
        memcpy(record.digest, message->digest, sizeof(record.digest));
    }
    *ret_record = record;
    return true;
}
