/* Requests to the etcd in memory, and what goes wrong with them. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/outside/etcd_internal.h"

#define DEADLINE_US (2 * SIM_SECOND)

struct request {
    struct sim_transaction transaction;
    sim_etcd_take *take; /* of a read; else NULL */
    bool answer_lost;
    bool unknown; /* an attempt may have been applied, or will be: it is never "certainly not" */
    uint64_t deadline_us;
    struct sim_process *process;
    uint64_t incarnation;
    sim_etcd_done *done;
    void *data;
    struct sim_outcome outcome;
};

static void free_request(void *data)
{
    struct request *request = data;
    sim_transaction_fini(&request->transaction);
    free(request);
}

static void send_request(struct sim *sim, struct request *request);

/* The client's process hears of the outcome. */
static void finish(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct request *request = data;
    (void)number;
    if (request->unknown && request->outcome.status == KELP_ERR_UNREACHABLE) {
        request->outcome.status = KELP_ERR_TIMEOUT;
    }
    request->done(sim, process, request->data, &request->outcome);
    free_request(request);
}

static void answer(struct sim *sim, struct request *request, uint64_t delay_us)
{
    if (!sim_lives(request->process, request->incarnation)) {
        free_request(request);
        return;
    }
    sim_after(
        sim, delay_us,
        &(struct sim_call){
            .process = request->process, .run = finish, .data = request, .drop = free_request});
}

/* The answer was lost: is our nonce there? (common/etcd/etcd_kv.c) */
static void look_again(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct request *request = data;
    (void)number;
    (void)process;
    if (!sim_lives(request->process, request->incarnation)) {
        free_request(request);
        return;
    }
    if (sim->now >= request->deadline_us) {
        request->outcome = (struct sim_outcome){.status = KELP_ERR_TIMEOUT};
        answer(sim, request, 0);
        return;
    }
    if (!sim_etcd_reachable(sim, request->process)) {
        sim_after(sim, 100 * SIM_MS,
                  &(struct sim_call){.run = look_again, .data = request, .drop = free_request});
        return;
    }
    const struct sim_key *key = sim_etcd_look(sim, request->transaction.nonce_key);
    for (size_t i = 0; i < request->transaction.operation_count; i++) {
        const struct sim_operation *operation = &request->transaction.operations[i];
        if (key && operation->value && strcmp(operation->key, key->name) == 0 &&
            operation->value->nonce == key->value->nonce) {
            request->outcome = (struct sim_outcome){
                .status = KELP_OK, .succeeded = true, .revision = key->mod_revision};
            answer(sim, request, 1);
            return;
        }
    }
    send_request(sim, request);
}

/* The request reaches etcd. number: 1 when nobody waits for it any more. */
static void reach(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct request *request = data;
    (void)process;
    if (number == 1) {
        if (!sim->etcd->away) {
            struct sim_outcome late = sim__etcd_apply(sim, &request->transaction);
            sim_say(sim, NULL, "etcd takes a request of %s that is late: %s", request->process->id,
                    late.succeeded ? "applied" : "refused");
        }
        free_request(request);
        return;
    }
    if (!sim_etcd_reachable(sim, request->process)) {
        request->outcome = (struct sim_outcome){.status = KELP_ERR_UNREACHABLE};
        answer(sim, request, sim_between(sim, SIM_MS, SIM_SECOND));
        return;
    }
    if (!request->take) {
        request->outcome = sim__etcd_apply(sim, &request->transaction);
    } else if (!request->answer_lost && sim_lives(request->process, request->incarnation)) {
        request->take(sim, request->process);
    }
    if (!request->answer_lost) {
        answer(sim, request, sim_between(sim, 100, 2 * SIM_MS));
    } else if (request->transaction.nonce_key[0] != '\0') {
        sim_after(sim, 100 * SIM_MS,
                  &(struct sim_call){.run = look_again, .data = request, .drop = free_request});
    } else {
        request->outcome =
            (struct sim_outcome){.status = request->take ? KELP_ERR_UNREACHABLE : KELP_ERR_TIMEOUT};
        answer(sim, request, DEADLINE_US);
    }
}

/* A copy that nobody waits for goes on its way: it will be applied when it likes. */
static void send_late_copy(struct sim *sim, const struct request *request)
{
    struct request *copy = sim_alloc(sizeof(*copy));
    *copy = *request;
    for (size_t i = 0; i < copy->transaction.operation_count; i++) {
        if (copy->transaction.operations[i].value) {
            (void)sim_value_ref(copy->transaction.operations[i].value);
        }
    }
    sim->counts[SIM_COUNT_ETCD_REQUEST_LATE]++;
    sim_after(sim, sim_between(sim, SIM_MS, 5 * SIM_SECOND),
              &(struct sim_call){.run = reach, .data = copy, .drop = free_request, .number = 1});
}

static void send_request(struct sim *sim, struct request *request)
{
    bool slow = sim->profile.sluggish && sim_chance(sim, 1, 5);
    uint64_t delay = sim_between(sim, 100, slow ? 2 * SIM_SECOND : 2 * SIM_MS);
    request->answer_lost = false;
    if (sim_chance(sim, sim->profile.etcd_rate, 1000)) {
        switch (sim_draw(sim, request->take ? 2 : 4)) {
        case 0:
            sim->counts[SIM_COUNT_ETCD_REQUEST_LOST]++;
            request->outcome = (struct sim_outcome){.status = KELP_ERR_UNREACHABLE};
            answer(sim, request, sim_between(sim, SIM_MS, SIM_SECOND));
            return;
        case 1:
            delay += sim_draw(sim, SIM_SECOND);
            break;
        case 2:
            sim->counts[SIM_COUNT_ETCD_ANSWER_LOST]++;
            request->answer_lost = true;
            request->unknown = true;
            break;
        case 3: /* the answer is lost, and the request comes through only later, or twice */
            send_late_copy(sim, request);
            request->unknown = true;
            request->answer_lost = sim_draw(sim, 2) == 0;
            break;
        }
    }
    sim_after(sim, delay, &(struct sim_call){.run = reach, .data = request, .drop = free_request});
}

static struct request *make_request(struct sim *sim, struct sim_process *process,
                                    sim_etcd_done *done, void *data)
{
    struct request *request = sim_alloc(sizeof(*request));
    request->process = process;
    request->incarnation = process->incarnation;
    request->done = done;
    request->data = data;
    request->deadline_us = sim->now + DEADLINE_US;
    return request;
}

void sim_etcd_read(struct sim *sim, struct sim_process *process, sim_etcd_take *take,
                   sim_etcd_done *done)
{
    struct request *request = make_request(sim, process, done, NULL);
    request->take = take;
    send_request(sim, request);
}

void sim_etcd_submit(struct sim *sim, struct sim_process *process,
                     const struct sim_transaction *transaction, sim_etcd_done *done, void *data)
{
    struct request *request = make_request(sim, process, done, data);
    request->transaction = *transaction;
    send_request(sim, request);
}
