/*
 * Fields of JSON that a test takes for granted: what is missing, or of another kind, fails it.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_JSON_FIELDS_H
#define KELP_TESTS_LIB_COMMANDS_JSON_FIELDS_H

#include <cjson/cJSON.h>

/* The whole text, or FOLDER/name; owned by the caller (cJSON_Delete()). */
cJSON *kelp_test_json(const char *text);
cJSON *kelp_test_read_json(const char *folder, const char *name);

const cJSON *kelp_test_member(const cJSON *json, const char *name);
double kelp_test_number(const cJSON *json, const char *name);
const char *kelp_test_text(const cJSON *json, const char *name);

#endif
