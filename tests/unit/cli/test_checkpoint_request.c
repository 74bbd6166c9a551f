#include <stdlib.h>

#include "cli/checkpoint/checkpoint_request.h"
#include "common/base/status.h"
#include "tests/lib/suite.h"

static struct kelp_request request;
static Kelp__V1__StatusReply status;
static Kelp__V1__CheckpointStatus checkpoint;
static char leaders[2][16] = {"coordinator-0", "coordinator-1"};

static void setup(void)
{
    request = (struct kelp_request){.serial = 0};
    status = (Kelp__V1__StatusReply)KELP__V1__STATUS_REPLY__INIT;
    checkpoint = (Kelp__V1__CheckpointStatus)KELP__V1__CHECKPOINT_STATUS__INIT;
    status.leader = leaders[0];
    status.checkpoint = &checkpoint;
}

static enum kelp_request_news take(uint64_t requested, uint64_t answered, uint64_t refused)
{
    checkpoint.requested = requested;
    checkpoint.answered = answered;
    checkpoint.refused = refused;
    return kelp_request_read(&request, &status);
}

KELP_CASE("checkpoint_request", .setup = setup)

/* Asked once, then waited for; an older request's end is not ours. */
KELP_TEST(test_answered)
{
    ck_assert_int_eq(take(4, 3, 0), KELP_REQUEST_ASK);
    kelp_request_made(&request, 5);
    ck_assert_int_eq(take(5, 3, 4), KELP_REQUEST_WAITS);
    ck_assert_int_eq(take(6, 4, 4), KELP_REQUEST_WAITS);
    ck_assert_int_eq(take(6, 5, 4), KELP_REQUEST_DONE);
}

KELP_TEST(test_refused)
{
    kelp_request_made(&request, 5);
    ck_assert_int_eq(take(5, 4, 5), KELP_REQUEST_REFUSED);
}

/* What one leader took another one does not know of: it is asked again, whatever its numbers are,
 * and what it answered to others is not taken for our answer. */
KELP_TEST(test_other_leader)
{
    kelp_request_made(&request, 5);
    ck_assert_int_eq(take(5, 0, 0), KELP_REQUEST_WAITS);
    status.leader = leaders[1];
    ck_assert_int_eq(take(7, 7, 0), KELP_REQUEST_ASK);
    kelp_request_made(&request, 8);
    ck_assert_int_eq(take(8, 7, 0), KELP_REQUEST_WAITS);
    ck_assert_int_eq(take(8, 8, 0), KELP_REQUEST_DONE);
}

/* The same name, started again, counts from the beginning. */
KELP_TEST(test_leader_restarted)
{
    kelp_request_made(&request, 2);
    ck_assert_int_eq(take(2, 1, 0), KELP_REQUEST_WAITS);
    ck_assert_int_eq(take(0, 0, 0), KELP_REQUEST_ASK);
    ck_assert_int_eq(take(0, 0, 0), KELP_REQUEST_ASK);
    kelp_request_made(&request, 1);
    ck_assert_int_eq(take(1, 1, 0), KELP_REQUEST_DONE);
}

/* A coordinator that says nothing of checkpoints has taken no request. */
KELP_TEST(test_no_status)
{
    kelp_request_made(&request, 2);
    status.checkpoint = NULL;
    ck_assert_int_eq(kelp_request_read(&request, &status), KELP_REQUEST_ASK);
}
