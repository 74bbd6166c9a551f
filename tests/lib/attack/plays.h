/*
 * Single well-formed messages, and floods of them, that do harm if their sender is trusted. Each
 * play starts on a stream that was just opened, and does not wait for the result.
 */
#ifndef KELP_TESTS_LIB_ATTACK_PLAYS_H
#define KELP_TESTS_LIB_ATTACK_PLAYS_H

#include "tests/lib/attack/http2_client.h"

/* Set the job that all later hellos name, and its plan. Both are borrowed. */
void kelp_plays_name(const char *job, uint64_t spec_digest, const char *plan);

/* Coordinator/Join: the id worker-0, and a plan without samples. */
void kelp_play_join(struct kelp_http2 *client, uint32_t stream);
/* 30 workers on as many streams that report but compute nothing. */
void kelp_play_join_idle(struct kelp_http2 *client, uint32_t stream);
/* Coordinator/Checkpoint, with pause. */
void kelp_play_pause_job(struct kelp_http2 *client, uint32_t stream);
/* Any method that takes an empty message, such as Status. */
void kelp_play_look(struct kelp_http2 *client, uint32_t stream);

/* ParameterServer/Control: a map of generation 2^40; an order with the largest serial; silence. */
void kelp_play_open_generation(struct kelp_http2 *client, uint32_t stream);
void kelp_play_order_last(struct kelp_http2 *client, uint32_t stream);
void kelp_play_stay_silent(struct kelp_http2 *client, uint32_t stream);

/* ParameterServer/Exchange: zeros for all lanes with an invented control word; 900,000 empty
 * pulls in one message; half a message; pulls whose answers are never read
 * (client->reads_little). */
void kelp_play_push_zeros(struct kelp_http2 *client, uint32_t stream);
void kelp_play_pull_nothing(struct kelp_http2 *client, uint32_t stream);
void kelp_play_send_half(struct kelp_http2 *client, uint32_t stream);
void kelp_play_pull_unread(struct kelp_http2 *client, uint32_t stream);

/* Without a given stream: 40 MiB of endless headers; 1,000 streams that are reset at once. */
void kelp_play_flood_headers(struct kelp_http2 *client, uint32_t stream);
void kelp_play_reset_streams(struct kelp_http2 *client, uint32_t stream);

#endif
