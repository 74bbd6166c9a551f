#include "ps/service/told.h"

#include <assert.h>
#include <string.h>

void kelp__service_told_forget(struct kelp__service_told *told)
{
    memset(told, 0, sizeof(*told));
}

void kelp__service_told_map(struct kelp__service_told *told, uint64_t generation, uint64_t serial)
{
    if (told->generation != generation || told->serial != serial) {
        kelp__service_told_forget(told);
        told->generation = generation;
        told->serial = serial;
    }
}

bool kelp__service_told_take(struct kelp__service_told *told, const Kelp__V1__ReplicaReport *row)
{
    assert(row->partition < KELP_PARTITIONS_MAX);
    bool known = told->rows[row->partition].map_epoch == row->map_epoch &&
                 told->rows[row->partition].lag == row->lag &&
                 told->rows[row->partition].copied == row->copied &&
                 told->rows[row->partition].to_copy == row->to_copy &&
                 told->rows[row->partition].backup_in_sync == row->backup_in_sync &&
                 told->rows[row->partition].joiner_in_sync == row->joiner_in_sync;

    told->rows[row->partition].map_epoch = row->map_epoch;
    told->rows[row->partition].lag = row->lag;
    told->rows[row->partition].copied = row->copied;
    told->rows[row->partition].to_copy = row->to_copy;
    told->rows[row->partition].backup_in_sync = row->backup_in_sync;
    told->rows[row->partition].joiner_in_sync = row->joiner_in_sync;
    return !known;
}
