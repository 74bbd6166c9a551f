#include "cli/doctor/findings.h"

#include <stdarg.h>

#include "common/base/json.h"

const struct kelp_finding_words kelp_exposure_words = {
    .states = {"closed", "note", "OPEN"},
    .json_states = {"closed", "note", "open"},
};
const struct kelp_finding_words kelp_cluster_words = {
    .states = {"OK", "warning", "PROBLEM"},
    .json_states = {"ok", "warning", "problem"},
};

void kelp_findings_add(struct kelp_findings *findings, const char *check,
                       enum kelp_finding_state state, const char *format, ...)
{
    va_list arguments;

    findings->problem = findings->problem || state == KELP_FINDING_PROBLEM;
    if (findings->count == KELP_FINDINGS_MAX) {
        findings->left_out++;
        return;
    }
    struct kelp_finding *item = &findings->items[findings->count++];
    item->check = check;
    item->state = state;
    va_start(arguments, format);
    (void)vsnprintf(item->text, sizeof(item->text), format, arguments);
    va_end(arguments);
    for (char *at = item->text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            *at = ' '; /* names of files may hold anything */
        }
    }
}

void kelp_findings_text(const struct kelp_findings *findings,
                        const struct kelp_finding_words *words, FILE *out)
{
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct kelp_finding *item = &findings->items[i];
        (void)fprintf(out, "%-12s %-7s %s\n", item->check, words->states[item->state], item->text);
    }
    if (findings->left_out > 0) {
        (void)fprintf(out, "%u more\n", findings->left_out);
    }
}

void kelp_findings_json(const struct kelp_findings *findings,
                        const struct kelp_finding_words *words, FILE *out)
{
    (void)fputc('[', out);
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct kelp_finding *item = &findings->items[i];
        kelp_json_print_member(out, i > 0 ? ",{" : "{", "check", item->check);
        kelp_json_print_member(out, ",", "state", words->json_states[item->state]);
        kelp_json_print_member(out, ",", "text", item->text);
        (void)fputc('}', out);
    }
    (void)fputc(']', out);
}
