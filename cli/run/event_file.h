/*
 * What a run measures, in the form that TensorBoard reads: a file of TFRecords, each an Event.
 *
 *     record   length uint64 | masked CRC-32C of it | bytes | masked CRC-32C of these
 *     Event    wall_time = 1 (double), step = 2 (varint), file_version = 3, summary = 5
 *     Summary  value = 1, repeated: tag = 1, simple_value = 2 (float)
 *
 * Numbers of a record are little endian; Event and Summary are protobuf.
 *
 * Source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto and
 * tensorflow/core/framework/summary.proto.
 */
#ifndef KELP_CLI_RUN_EVENT_FILE_H
#define KELP_CLI_RUN_EVENT_FILE_H

#include <stdint.h>

#include "common/base/status.h"

#define KELP_EVENT_VALUES_MAX 64
#define KELP_EVENT_TAG_MAX    63
#define KELP_EVENT_BYTES_MAX  8192 /* of a record: all values with tags of that length */

struct kelp_event_value {
    const char *tag; /* borrowed; longer ones are left out */
    float value;
};

/* CRC-32C (Castagnoli). Pure. */
uint32_t kelp_crc32c(const void *bytes, size_t count);

/* One record; returns its bytes. count 0: the first record of a file, which says its version. At
 * most KELP_EVENT_VALUES_MAX values. Pure. */
size_t kelp_event_encode(double wall_time, uint64_t step, const struct kelp_event_value *values,
                         size_t count, unsigned char ret_record[KELP_EVENT_BYTES_MAX]);

/* Follows metrics.jsonl of a run. */
struct kelp_event_file {
    int fd;          /* of the events; -1: none */
    char log[1088];  /* path of metrics.jsonl */
    uint64_t offset; /* bytes of it that are taken in */
};

/* A new file in the run's folder, events.out.tfevents.TIME.PID: it begins with what metrics.jsonl
 * gets from now on, as earlier files of a run that is resumed have the rest. Errors: KELP_ERR_IO,
 * KELP_ERR_LIMIT. */
kelp_status kelp_event_file_open(const char *run_path, struct kelp_event_file *ret_file,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* Take in the lines that are new. A line that says no step is passed over. Errors: KELP_ERR_IO. */
kelp_status kelp_event_file_follow(struct kelp_event_file *file,
                                   struct kelp_error *reterr) KELP_MUST_USE;
void kelp_event_file_close(struct kelp_event_file *file); /* one with fd -1 is fine */

#endif
