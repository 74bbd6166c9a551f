/*
 * Fields of JSON that a test requires: it fails if they are missing or have another type.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_JSON_FIELDS_H
#define KELP_TESTS_LIB_COMMANDS_JSON_FIELDS_H

#include <cjson/cJSON.h>

/* Parse the whole text, or FOLDER/name; the caller owns the result (cJSON_Delete()). */
cJSON *kelp_test_json(const char *text);
cJSON *kelp_test_read_json(const char *folder, const char *name);

const cJSON *kelp_test_member(const cJSON *json, const char *name);
double kelp_test_number(const cJSON *json, const char *name);
const char *kelp_test_text(const cJSON *json, const char *name);

#endif
