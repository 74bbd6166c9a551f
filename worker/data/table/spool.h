/*
 * A file that is written once from front to end and then read as memory: data that may be larger
 * than memory is prepared in it. It is in a folder without a name, so that nothing is left there
 * by a process that dies, or in memory when there is no folder for it.
 */
#ifndef KELP_WORKER_DATA_TABLE_SPOOL_H
#define KELP_WORKER_DATA_TABLE_SPOOL_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

struct kelp_spool {
    FILE *out;    /* NULL of one that was opened again */
    char *folder; /* where it lies, for people; NULL: in memory, or opened again */
    char *path;   /* of its temporary name in the folder; NULL: it has none */
    void *bytes;  /* set once it is mapped */
    size_t count;
};

/*
 * folder: where it lies; NULL: in memory. named: it will be kept (kelp_spool_keep()). Freed with
 * kelp_spool_fini(), in every case. Errors: KELP_ERR_IO, KELP_ERR_NO_SPACE, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_spool_open(struct kelp_spool *spool, const char *folder, bool named,
                            struct kelp_error *reterr) KELP_MUST_USE;
void kelp_spool_fini(struct kelp_spool *spool);

/* Errors: KELP_ERR_IO, KELP_ERR_NO_SPACE. */
kelp_status kelp_spool_write(struct kelp_spool *spool, const void *bytes, size_t count,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* End the writing: spool->bytes has what was written, to be read by any thread. Errors: as above.
 */
kelp_status kelp_spool_map(struct kelp_spool *spool, struct kelp_error *reterr) KELP_MUST_USE;

/* Give a named one that is mapped its final name, whole and synced; one of that name is replaced.
 */
kelp_status kelp_spool_keep(struct kelp_spool *spool, const char *path,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Map a file that was kept. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_IO, KELP_ERR_INVALID (no file),
 * KELP_ERR_MISMATCH (another user's, or one that others may write). */
kelp_status kelp_spool_reopen(struct kelp_spool *spool, const char *path,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif
