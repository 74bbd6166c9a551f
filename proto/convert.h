/*
 * Between the structs of common/training/control.h and their messages. What comes from outside is
 * checked.
 */
#ifndef KELP_PROTO_CONVERT_H
#define KELP_PROTO_CONVERT_H

#include "common/training/control.h"
#include "proto/kelp.pb-c.h"

/* *ret_message holds no pointers. */
void kelp_wire_put_word(const struct kelp_control_word *word, Kelp__V1__ControlWord *ret_message);
/* False: a kind that does not exist, or a learning rate that is not finite. */
bool kelp_wire_get_word(const Kelp__V1__ControlWord *message, struct kelp_control_word *ret_word);

/* NULL: none. False: more values than there are metrics, or fewer than are present. */
bool kelp_wire_get_metrics(const Kelp__V1__Measures *message, struct kelp_metrics *ret_metrics);

/* Messages with what they point at: valid as long as these and what they were made of are. */
struct kelp_wire_best {
    Kelp__V1__Best message;
    Kelp__V1__Measures val, test;
};
void kelp_wire_put_best(const struct kelp_best *best, struct kelp_wire_best *ret_message);
/* False: nothing of the validation split, or bad metrics. */
bool kelp_wire_get_best(const Kelp__V1__Best *message, struct kelp_best *ret_best);

struct kelp_wire_record {
    Kelp__V1__Record message;
    Kelp__V1__ControlWord word;
    Kelp__V1__Measures metrics;
};
void kelp_wire_put_record(const struct kelp_record *record, struct kelp_wire_record *ret_message);
/* False: no word, a bad word, bad metrics, or a digest that is not "" or 32 hexadecimal digits. */
bool kelp_wire_get_record(const Kelp__V1__Record *message, struct kelp_record *ret_record);

#endif
