/*
 * Between the structs of common/control.h and their messages. What comes from outside is checked.
 */
#ifndef KELP_PROTO_CONVERT_H
#define KELP_PROTO_CONVERT_H

#include "common/control.h"
#include "proto/kelp.pb-c.h"

/* *ret_message holds no pointers. */
void kelp_wire_put_word(const struct kelp_control_word *word, Kelp__V1__ControlWord *ret_message);
/* False: a kind that does not exist, or a learning rate that is not finite. */
bool kelp_wire_take_word(const Kelp__V1__ControlWord *message, struct kelp_control_word *ret_word);

/* A record's message with what it points at: valid as long as this and the record are. */
struct kelp_wire_record {
    Kelp__V1__Record message;
    Kelp__V1__ControlWord word;
};
void kelp_wire_put_record(const struct kelp_record *record, struct kelp_wire_record *ret_message);
/* False: no word, a bad word, or a digest that is not "" or 32 hexadecimal digits. */
bool kelp_wire_take_record(const Kelp__V1__Record *message, struct kelp_record *ret_record);

#endif
