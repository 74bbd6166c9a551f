#include "tests/lib/commands/json_fields.h"

#include <check.h>
#include <stdlib.h>

#include "tests/lib/commands/run_command.h"

cJSON *kelp_test_json(const char *text)
{
    cJSON *json = cJSON_Parse(text);
    ck_assert_msg(json != NULL, "no JSON: %s", text);
    return json;
}

cJSON *kelp_test_read_json(const char *folder, const char *name)
{
    char *text = kelp_test_read(folder, name, NULL);
    cJSON *json = kelp_test_json(text);
    free(text);
    return json;
}

const cJSON *kelp_test_member(const cJSON *json, const char *name)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(json, name);
    ck_assert_msg(found != NULL, "no '%s' in %s", name,
                  json == NULL ? "nothing" : cJSON_PrintUnformatted(json));
    return found;
}

double kelp_test_number(const cJSON *json, const char *name)
{
    const cJSON *value = kelp_test_member(json, name);
    ck_assert_msg(cJSON_IsNumber(value), "'%s' is no number in %s", name,
                  cJSON_PrintUnformatted(json));
    return value->valuedouble;
}

const char *kelp_test_text(const cJSON *json, const char *name)
{
    const cJSON *value = kelp_test_member(json, name);
    ck_assert_msg(cJSON_IsString(value), "'%s' is no text in %s", name,
                  cJSON_PrintUnformatted(json));
    return value->valuestring;
}
