/* Which rows a report on followers has. */
#include "ps/service/told.h"
#include "tests/lib/suite.h"

static struct kelp__service_told told;

static void setup(void)
{
    kelp__service_told_forget(&told);
    kelp__service_told_map(&told, 2, 5);
}

KELP_CASE("told", .setup = setup)

/* What is as it was is not told again, until the map changes or a report was lost. */
KELP_TEST(changes_alone)
{
    Kelp__V1__ReplicaReport row = KELP__V1__REPLICA_REPORT__INIT;
    row.partition = KELP_PARTITIONS_MAX - 1;
    row.map_epoch = 3;
    ck_assert(kelp__service_told_take(&told, &row));
    ck_assert(!kelp__service_told_take(&told, &row));
    kelp__service_told_map(&told, 2, 5);
    ck_assert(!kelp__service_told_take(&told, &row));
    kelp__service_told_map(&told, 2, 6);
    ck_assert(kelp__service_told_take(&told, &row));
    kelp__service_told_forget(&told);
    ck_assert(kelp__service_told_take(&told, &row));
    ck_assert(!kelp__service_told_take(&told, &row));
}

/* Each member counts. */
KELP_LOOP_TEST(each_member, 0, 6)
{
    Kelp__V1__ReplicaReport row = KELP__V1__REPLICA_REPORT__INIT;
    row.map_epoch = 3;
    ck_assert(kelp__service_told_take(&told, &row));
    row.map_epoch += _i == 0;
    row.lag += _i == 1;
    row.copied += _i == 2;
    row.to_copy += _i == 3;
    row.backup_in_sync = _i == 4;
    row.joiner_in_sync = _i == 5;
    ck_assert(kelp__service_told_take(&told, &row));
    ck_assert(!kelp__service_told_take(&told, &row));
}
