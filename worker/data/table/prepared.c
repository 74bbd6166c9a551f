#include "worker/data/table/prepared.h"

#include <assert.h>
#include <string.h>

/* Change it with the layout, and with the rules by which data and job are prepared. */
static const char magic[16] = "kelp prepared 1";

/* Bytes of each section; all are multiples of 8, so that every section is aligned for its type. */
struct sizes {
    uint64_t series;
    uint64_t scales;
    uint64_t planes[KELP_PREPARED_PLANES];
    uint64_t floats; /* both planes, padded to 8 */
    uint64_t all;
};
_Static_assert(sizeof(magic) % 8 == 0 && sizeof(struct kelp_prepared_shape) % 8 == 0 &&
                   sizeof(struct kelp_prepared_series) % 8 == 0,
               "pieces are aligned");
_Static_assert(sizeof(struct kelp_prepared_shape) ==
                   (5 + KELP_SPLIT_COUNT + KELP_PREPARED_PLANES) * sizeof(uint64_t) +
                       (2 + KELP_SAMPLE_VOCAB_MAX) * sizeof(uint32_t),
               "without padding: all of it is in the digest");

/* False: larger than any file can be. */
static bool add_up(const struct kelp_prepared_shape *shape, struct sizes *sizes)
{
    uint64_t floats = 0;
    bool over = __builtin_mul_overflow(shape->series_count, sizeof(struct kelp_prepared_series),
                                       &sizes->series);
    over |= __builtin_mul_overflow(shape->scale_rows, shape->target_count, &sizes->scales);
    over |= __builtin_mul_overflow(sizes->scales, sizeof(struct kelp_target_scale), &sizes->scales);
    for (int i = 0; i < KELP_PREPARED_PLANES; i++) {
        over |= __builtin_mul_overflow(shape->rows, shape->widths[i], &sizes->planes[i]);
        over |= __builtin_mul_overflow(sizes->planes[i], sizeof(float), &sizes->planes[i]);
        over |= __builtin_add_overflow(floats, sizes->planes[i], &floats);
    }
    sizes->floats = (floats + 7) / 8 * 8;
    over |= sizes->floats < floats;
    sizes->all = sizeof(magic) + sizeof(*shape) + sizeof(uint64_t);
    over |= __builtin_add_overflow(sizes->all, sizes->series, &sizes->all);
    over |= __builtin_add_overflow(sizes->all, sizes->scales, &sizes->all);
    over |= __builtin_add_overflow(sizes->all, sizes->floats, &sizes->all);
    return !over;
}

/* ---- reading --------------------------------------------------------------------------------- */

static kelp_status corrupt(const char *what, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_CORRUPT, "prepared data %s", what);
}

static bool are_finite(const float *values, uint64_t count)
{
    /* x * 0 is 0 unless x is not finite: one loop without branches. */
    float sum = 0.0f;
    for (uint64_t i = 0; i < count; i++) {
        sum += values[i] * 0.0f;
    }
    return sum == 0.0f;
}

/* Check what readers index with and models compute with: the digest finds accidental damage,
 * this finds everything else. */
static bool shape_holds(const struct kelp_prepared *prepared)
{
    const struct kelp_prepared_shape *shape = prepared->shape;
    if (shape->vocab_count > KELP_SAMPLE_VOCAB_MAX || shape->target_count == 0 ||
        shape->scale_rows == 0 || shape->target_count > KELP_TABLE_COLUMNS_MAX) {
        return false;
    }
    uint64_t rows = 0;
    for (int i = 0; i < KELP_SPLIT_COUNT; i++) {
        if (__builtin_add_overflow(rows, shape->file_rows[i], &rows)) {
            return false;
        }
    }
    for (uint64_t i = 0; i < shape->series_count; i++) {
        const struct kelp_prepared_series *series = &prepared->series[i];
        if (!memchr(series->name, '\0', sizeof(series->name)) || series->first_row > shape->rows ||
            series->row_count > shape->rows - series->first_row) {
            return false;
        }
    }
    return rows == shape->rows && are_finite(prepared->planes[0], rows * shape->widths[0]) &&
           are_finite(prepared->planes[1], rows * shape->widths[1]);
}

/* The card follows the data. */
static bool look_at_card(const unsigned char *at, size_t count, struct kelp_prepared *prepared)
{
    uint64_t bytes = 0;
    uint64_t digest = 0;
    if (count < 2 * sizeof(uint64_t)) {
        return false;
    }
    memcpy(&bytes, at, sizeof(bytes));
    memcpy(&digest, at + count - sizeof(digest), sizeof(digest));
    prepared->card = (const char *)at + sizeof(bytes);
    prepared->card_bytes = (size_t)bytes;
    return bytes == count - 2 * sizeof(uint64_t) &&
           kelp_digest_bytes(at, count - sizeof(digest)) == digest;
}

kelp_status kelp_prepared_look(const void *bytes, size_t count, struct kelp_prepared *ret_prepared,
                               struct kelp_error *reterr)
{
    const unsigned char *at = bytes;
    struct kelp_prepared prepared = {0};
    struct sizes sizes = {0};
    if (count < sizeof(magic) + sizeof(*prepared.shape) || memcmp(at, magic, sizeof(magic)) != 0) {
        return corrupt("are of another version", reterr);
    }
    at += sizeof(magic);
    prepared.shape = (const struct kelp_prepared_shape *)(const void *)at;
    if (!add_up(prepared.shape, &sizes) || sizes.all > count) {
        return corrupt("are cut off", reterr);
    }
    at += sizeof(*prepared.shape);
    prepared.series = (const struct kelp_prepared_series *)(const void *)at;
    at += sizes.series;
    prepared.scales = (const struct kelp_target_scale *)(const void *)at;
    at += sizes.scales;
    prepared.planes[0] = (const float *)(const void *)at;
    prepared.planes[1] = (const float *)(const void *)(at + sizes.planes[0]);
    at += sizes.floats;
    memcpy(&prepared.digest, at, sizeof(prepared.digest));
    at += sizeof(prepared.digest);
    if (kelp_digest_bytes(bytes, (size_t)sizes.all - sizeof(prepared.digest)) != prepared.digest ||
        !look_at_card(at, count - (size_t)sizes.all, &prepared)) {
        return corrupt("are damaged", reterr);
    }
    if (!shape_holds(&prepared)) {
        return corrupt("do not hold together", reterr);
    }
    *ret_prepared = prepared;
    return KELP_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static kelp_status put(struct kelp_prepared_writer *writer, const void *bytes, size_t count,
                       struct kelp_error *reterr)
{
    kelp_digest_update(&writer->digest, bytes, count);
    writer->written += count;
    return kelp_spool_write(writer->spool, bytes, count, reterr);
}

kelp_status kelp_prepared_begin(struct kelp_prepared_writer *writer, struct kelp_spool *spool,
                                const struct kelp_prepared_parts *parts, struct kelp_error *reterr)
{
    struct sizes sizes = {0};
    if (!add_up(&parts->shape, &sizes)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the data have too many values");
    }
    *writer = (struct kelp_prepared_writer){.spool = spool};
    kelp_digest_init(&writer->digest);
    kelp_status status = put(writer, magic, sizeof(magic), reterr);
    if (status == KELP_OK) {
        status = put(writer, &parts->shape, sizeof(parts->shape), reterr);
    }
    if (status == KELP_OK) {
        status = put(writer, parts->series, (size_t)sizes.series, reterr);
    }
    if (status == KELP_OK) {
        status = put(writer, parts->scales, (size_t)sizes.scales, reterr);
    }
    return status;
}

kelp_status kelp_prepared_floats(struct kelp_prepared_writer *writer, const float *values,
                                 uint64_t count, struct kelp_error *reterr)
{
    return put(writer, values, (size_t)count * sizeof(*values), reterr);
}

static kelp_status put_card(struct kelp_prepared_writer *writer, const char *card,
                            struct kelp_error *reterr)
{
    const uint64_t bytes = strlen(card);
    kelp_digest_init(&writer->digest);
    kelp_status status = put(writer, &bytes, sizeof(bytes), reterr);
    if (status == KELP_OK) {
        status = put(writer, card, (size_t)bytes, reterr);
    }
    uint64_t digest = kelp_digest_short(&writer->digest);
    return status == KELP_OK ? kelp_spool_write(writer->spool, &digest, sizeof(digest), reterr)
                             : status;
}

kelp_status kelp_prepared_end(struct kelp_prepared_writer *writer, const char *card,
                              struct kelp_prepared *ret_prepared, struct kelp_error *reterr)
{
    static const char padding[8] = {0};
    kelp_status status = put(writer, padding, (8 - writer->written % 8) % 8, reterr);
    uint64_t digest = kelp_digest_short(&writer->digest);
    if (status == KELP_OK) {
        status = kelp_spool_write(writer->spool, &digest, sizeof(digest), reterr);
    }
    if (status == KELP_OK) {
        status = put_card(writer, card, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_spool_map(writer->spool, reterr);
    }
    if (status == KELP_OK) {
        status =
            kelp_prepared_look(writer->spool->bytes, writer->spool->count, ret_prepared, reterr);
    }
    return status;
}
