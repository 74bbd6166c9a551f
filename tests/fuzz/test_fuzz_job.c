/*
 * Job files, damaged: each input is refused with one line, or is a job whose canonical text is a
 * fixed point.
 */
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"

#define INPUTS 40000

static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT("name: etth1-dlinear\nseed: 2021\ndata:\n  kind: csv\n  path: ETTh1.csv\n"
                   "  target: OT\n  features: S\n  seq_len: 96\n  pred_len: 96\n"
                   "  split: [8640, 2880, 2880]\nmodel:\n  kind: dlinear\n  kernel_size: 25\n"
                   "train:\n  epochs: 10\n  batch_size: 32\n  optimizer: adam\n  lr: 0.005\n"
                   "  schedule: type1\ncluster:\n  workers: 2:8\n  shards: 1\n"),
    KELP_FUZZ_TEXT("# comment\nname: \"a b\\n\\x41\"\nmodel: {kind: mlp, hidden: [64, 32]}\n"
                   "data: {kind: tensors, path: 'x''y', input_name: x}\n"
                   "failure: {detect: 250ms, shard_wait: 1m, max_failures: -1}\n"),
    KELP_FUZZ_TEXT(
        "transport:\n  piece: 64KiB\n  connect_timeout: 5s\ntrain: &t\n"
        "  optimizer: sgd\n  momentum: 0.9\n  nesterov: true\n  lr: 1e-2\nrun:\n  dir: |\n"
        "    text\nmodel: {kind: mlp}\ndata: {kind: synthetic}\n"),
    KELP_FUZZ_TEXT("%YAML 1.1\n---\n? name\n: !!str x\n? [a, b]\n: *t\n...\n"),
};
static const char *const words[] = {
    "train:",
    "\n  lr: ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "- ",
    "? ",
    ": ",
    "!!int ",
    "\"",
    "'",
    "|\n",
    ">-\n",
    "\t",
    "\n---\n",
    "...\n",
    "# ",
    "1e308",
    "-1",
    ".5",
    "ms",
    "GiB",
    "2:2",
    "~",
    "null",
    "true",
    "kind: ",
    "\\u0000",
    "\xc3\xa9",
    "\xef\xbb\xbf",
    "\xe2\x80\xa8",
    "18446744073709551616",
    "hidden: [1]",
};

static const char *check_fixed_point(const struct kelp_job_file *file)
{
    struct kelp_error error;
    char *text = NULL, *again = NULL;
    const char *wrong = NULL;
    struct kelp_job_file *second = kelp_job_file_create();

    if (!second || kelp_job_file_print(file, false, &text, &error) != KELP_OK) {
        wrong = "out of memory";
    } else if (kelp_job_file_parse(second, "canonical", text, strlen(text), &error) != KELP_OK ||
               kelp_job_file_finish(second, &error) != KELP_OK) {
        wrong = "the canonical text is refused";
    } else if (kelp_job_file_print(second, false, &again, &error) != KELP_OK ||
               strcmp(text, again) != 0) {
        wrong = "the canonical text changes";
    } else if (kelp_job_file_digest(file) != kelp_job_file_digest(second)) {
        wrong = "the digest changes";
    }
    free(text);
    free(again);
    kelp_job_file_destroy(second);
    return wrong;
}

static const char *target(const uint8_t *bytes, size_t count)
{
    struct kelp_error error = {.status = KELP_OK};
    struct kelp_job_file *file = kelp_job_file_create();
    const char *wrong = NULL;

    if (!file) {
        return "out of memory";
    }
    kelp_status status = kelp_job_file_parse(file, "job.yaml", (const char *)bytes, count, &error);
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, &error);
    }
    if (status == KELP_OK) {
        wrong = check_fixed_point(file);
    } else if (error.status != status || error.text[0] == '\0' || strchr(error.text, '\n')) {
        wrong = "the error is not one line";
    }
    kelp_job_file_destroy(file);
    return wrong;
}

KELP_CASE("fuzz job", .timeout_s = 120)

KELP_FUZZ_TEST(test_damaged, INPUTS, seeds, words, target)
