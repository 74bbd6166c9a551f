#include "worker/data/dataset_strided.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/text/calendar.h"

static kelp_status read_strided(const struct kelp_dataset *dataset, enum kelp_split split,
                                const uint64_t *indices, uint32_t count, float *input,
                                float *target)
{
    const struct kelp_strided *strided = dataset->state;
    size_t input_bytes = (size_t)dataset->input_count * sizeof(float);
    size_t target_bytes = (size_t)dataset->target_count * sizeof(float);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = strided->first[split] + indices[i];
        memcpy(input + i * dataset->input_count, strided->input + at * strided->input_stride,
               input_bytes);
        memcpy(target + i * dataset->target_count, strided->target + at * strided->target_stride,
               target_bytes);
    }
    return KELP_OK;
}

static void read_time(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                      uint32_t row, char ret_text[KELP_DATASET_LABEL_BYTES])
{
    const struct kelp_strided *strided = dataset->state;
    if (strided->times) {
        kelp_calendar_print(
            strided->times[strided->first[split] + index + strided->time_ahead + row], ret_text);
    }
}

static kelp_status copy_columns(const struct kelp_card_column *from, uint32_t count,
                                struct kelp_card_columns *ret_columns, struct kelp_error *reterr)
{
    kelp_status status = kelp_card_columns_init(ret_columns, count, reterr);
    for (uint32_t i = 0; i < count && status == KELP_OK; i++) {
        ret_columns->items[i] = from[i];
    }
    return status;
}

/* A series: all columns are targets, or with data.features MS only the last ones. */
static kelp_status describe_strided(const struct kelp_dataset *dataset,
                                    struct kelp_model_card *card, struct kelp_error *reterr)
{
    const struct kelp_strided *strided = dataset->state;
    uint32_t count = strided->columns.count;
    if (count == 0) {
        return KELP_OK;
    }
    uint32_t targets = dataset->info.target_columns;
    kelp_status status = copy_columns(strided->columns.items, count, &card->inputs, reterr);
    return status == KELP_OK ? copy_columns(strided->columns.items + count - targets, targets,
                                            &card->targets, reterr)
                             : status;
}

static void close_strided(void *state)
{
    struct kelp_strided *strided = state;
    free(strided->columns.items);
    free(strided->values);
    free(strided->times);
    free(strided);
}

kelp_status kelp__dataset_make_strided(struct kelp_dataset *dataset, uint64_t value_count,
                                       struct kelp_strided **ret_strided, struct kelp_error *reterr)
{
    static const struct kelp_dataset_functions functions = {.read = read_strided,
                                                            .time = read_time,
                                                            .describe = describe_strided,
                                                            .close = close_strided};
    struct kelp_strided *strided = calloc(1, sizeof(*strided));
    if (strided && value_count < SIZE_MAX / sizeof(float)) {
        strided->values = calloc((size_t)value_count + 1, sizeof(*strided->values));
    }
    if (!strided || !strided->values) {
        free(strided);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %" PRIu64 " elements",
                         value_count);
    }
    dataset->functions = &functions;
    dataset->state = strided;
    dataset->info.memory_bytes = value_count * sizeof(*strided->values);
    *ret_strided = strided;
    return KELP_OK;
}
