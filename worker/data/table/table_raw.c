#include "worker/data/table/table_raw.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* Offsets within a row. */
struct layout {
    uint32_t words;
    uint32_t time;
    uint32_t file; /* number among the files of all three keys */
    uint32_t line;
    uint32_t width;
};

static struct layout layout_of(const struct kelp_table_schema *schema)
{
    uint32_t time = schema->number_count + schema->word_count;
    return (struct layout){.words = schema->number_count,
                           .time = time,
                           .file = time + 1,
                           .line = time + 2,
                           .width = time + 3};
}

static const double *row_at(const struct kelp_table_raw *raw, uint64_t row)
{
    assert(row < raw->row_count);
    const double *values = raw->spool.bytes;
    return values + row * layout_of(raw->schema).width;
}

/* A class is stored as the index of its field. */
static bool is_class(const struct kelp_table_schema *schema, uint32_t number)
{
    return schema->has_class && !schema->unlabelled && number == schema->class_number;
}

double kelp_table_raw_number(const struct kelp_table_raw *raw, uint64_t row, uint32_t number)
{
    return is_class(raw->schema, number) ? raw->classes.values[kelp_table_raw_class(raw, row)]
                                         : row_at(raw, row)[number];
}

uint32_t kelp_table_raw_class(const struct kelp_table_raw *raw, uint64_t row)
{
    return (uint32_t)row_at(raw, row)[raw->schema->class_number];
}

uint32_t kelp_table_raw_word(const struct kelp_table_raw *raw, uint64_t row, uint32_t word)
{
    return (uint32_t)row_at(raw, row)[layout_of(raw->schema).words + word];
}

double kelp_table_raw_time(const struct kelp_table_raw *raw, uint64_t row)
{
    return row_at(raw, row)[layout_of(raw->schema).time];
}

void kelp_table_raw_place(const struct kelp_table_raw *raw,
                          const struct kelp_table_files files[KELP_SPLIT_COUNT], uint64_t row,
                          char *ret_text, size_t text_bytes)
{
    struct layout layout = layout_of(raw->schema);
    const double *values = row_at(raw, row);
    uint32_t file = (uint32_t)values[layout.file];
    int split = 0;
    while (file >= files[split].count) {
        file -= files[split].count;
        split++;
        assert(split < KELP_SPLIT_COUNT);
    }
    (void)snprintf(ret_text, text_bytes, "%s:%" PRIu64, files[split].paths[file],
                   (uint64_t)values[layout.line]);
}

static kelp_status write_class(struct kelp_table_raw *raw, const struct kelp_table_class *field,
                               double *values, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = raw->schema;
    uint32_t index = 0;
    kelp_status status = kelp_table_classes_add(&raw->classes, field, &index, reterr);
    values[schema->class_number] = (double)index;
    kelp_error_prefix(status == KELP_OK ? NULL : reterr, "column %s",
                      schema->numbers[schema->class_number].name);
    return status;
}

static kelp_status write_row(struct kelp_table_raw *raw, const struct kelp_table_reader *reader,
                             const struct kelp_table_row *row, uint32_t file_base,
                             struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = raw->schema;
    struct layout layout = layout_of(schema);
    double values[KELP_TABLE_COLUMNS_MAX + KELP_TABLE_WORDS_MAX + 3];
    for (uint32_t i = 0; i < schema->number_count; i++) {
        values[i] = row->numbers[i];
        kelp_status status =
            is_class(schema, i) ? write_class(raw, row->class_field, values, reterr) : KELP_OK;
        if (status != KELP_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < schema->word_count; i++) {
        uint32_t number = 0;
        kelp_status status = kelp_words_add(&raw->words[i], row->words[i], &number, reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "column %s", schema->words[i].name);
            return status;
        }
        values[layout.words + i] = (double)number;
    }
    values[layout.time] = row->time;
    values[layout.file] = (double)(file_base + kelp_table_reader_file(reader));
    values[layout.line] = (double)kelp_table_reader_line(reader);
    return kelp_spool_write(&raw->spool, values, layout.width * sizeof(*values), reterr);
}

static void tell(const struct kelp_dataset_watch *watch, const struct kelp_table_raw *raw,
                 const char *path)
{
    if (watch && raw->row_count % KELP_DATASET_WATCH_ROWS == 0) {
        watch->rows(watch->user, path, raw->row_count);
    }
}

static kelp_status read_files(struct kelp_table_raw *raw, const struct kelp_table_reading *source,
                              const struct kelp_table_files *files, uint32_t file_base,
                              struct kelp_error *reterr)
{
    struct kelp_table_reader *reader = NULL;
    kelp_status status =
        kelp_table_reader_open(raw->schema, files, source->missing, &reader, reterr);
    while (status == KELP_OK) {
        struct kelp_table_row row = {0};
        bool found = false;
        status = kelp_table_reader_next(reader, &row, &found, reterr);
        if (status != KELP_OK || !found) {
            break;
        }
        status = write_row(raw, reader, &row, file_base, reterr);
        raw->row_count++;
        tell(source->watch, raw, files->paths[kelp_table_reader_file(reader)]);
    }
    raw->has_dates = raw->has_dates || (reader && kelp_table_reader_saw_dates(reader));
    kelp_table_reader_close(reader);
    return status;
}

kelp_status kelp_table_raw_read(struct kelp_table_raw *raw, const struct kelp_table_reading *source,
                                struct kelp_error *reterr)
{
    *raw = (struct kelp_table_raw){.schema = source->schema};
    const struct kelp_table_files *files = source->files;
    uint32_t file_base = 0;
    kelp_status status = kelp_spool_open(&raw->spool, source->folder, false, reterr);
    for (int split = 0; split < KELP_SPLIT_COUNT && status == KELP_OK; split++) {
        uint64_t before = raw->row_count;
        status = read_files(raw, source, &files[split], file_base, reterr);
        raw->file_rows[split] = raw->row_count - before;
        file_base += files[split].count;
        if (status == KELP_OK && files[split].count > 0 && raw->file_rows[split] == 0) {
            status = kelp_fail(reterr, KELP_ERR_INVALID,
                               "%s: no rows: the file has none, or data.filter and data.missing "
                               "exclude them all",
                               files[split].paths[0]);
        }
    }
    return status == KELP_OK ? kelp_spool_map(&raw->spool, reterr) : status;
}

void kelp_table_raw_fini(struct kelp_table_raw *raw)
{
    for (int i = 0; i < KELP_TABLE_WORDS_MAX; i++) {
        kelp_words_fini(&raw->words[i]);
    }
    kelp_table_classes_fini(&raw->classes);
    kelp_spool_fini(&raw->spool);
}
