/*
 * What `kelp init` makes of tables: which column it learns, as what, from which others.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/init/job_choice.h"
#include "cli/init/job_print.h"
#include "cli/init/name_guess.h"
#include "cli/init/table_read.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/test_files.h"
#include "tests/lib/suite.h"

static struct kelp_test_folder folder;
static struct kelp_table_facts facts;
static struct kelp_init_choice choice;
static struct kelp_test_text table;

static void begin(void)
{
    kelp_test_folder_init(&folder);
    table = (struct kelp_test_text){.text = calloc(1, KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    facts = (struct kelp_table_facts){0};
    choice = (struct kelp_init_choice){0};
}

static void end(void)
{
    kelp_init_choice_fini(&choice);
    kelp_table_facts_fini(&facts);
    free(table.text);
    kelp_test_folder_fini(&folder);
}

/* Read what was added to the table, and choose. */
static kelp_status choose(const char *target, struct kelp_error *error)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s", kelp_test_write(folder.path, "t.csv", table.text));
    char *paths[] = {path};
    kelp_status status = kelp_table_read(paths, 1, &facts, error);
    return status == KELP_OK ? kelp_init_choose(&facts, target, &choice, error) : status;
}

static void choose_well(const char *target)
{
    struct kelp_error error;
    ck_assert_msg(choose(target, &error) == KELP_OK, "%s", error.text);
}

static void expect_refusal(const char *target, const char *text)
{
    struct kelp_error error;
    ck_assert_int_ne(choose(target, &error), KELP_OK);
    ck_assert_msg(strstr(error.text, text), "'%s' is not in: %s", text, error.text);
}

static enum kelp_init_use use_of(const char *name)
{
    for (uint32_t i = 0; i < facts.column_count; i++) {
        if (strcmp(facts.columns[i].name, name) == 0) {
            return choice.columns[i].use;
        }
    }
    ck_abort_msg("no column %s", name);
}

/* The job as text; owned by the caller. */
static char *print(void)
{
    const struct kelp_init_source source = {"t.csv", "t.csv", "t", "t.yaml"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    kelp_init_print_table(&source, &facts, &choice, out);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

static void expect_printed(const char *text)
{
    char *job = print();
    ck_assert_msg(strstr(job, text), "'%s' is not in:\n%s", text, job);
    free(job);
}

KELP_CASE("choices", .setup = begin, .teardown = end)

/* Names decide among columns; without a telling one it is the last that can be learnt. */
KELP_TEST(target_names)
{
    ck_assert_uint_gt(kelp_name_target_rank("Label"), kelp_name_target_rank("price"));
    ck_assert_uint_gt(kelp_name_target_rank("price"), kelp_name_target_rank("target_price"));
    ck_assert_uint_gt(kelp_name_target_rank("fareAmount"), 0);
    ck_assert_uint_eq(kelp_name_target_rank("welfare"), 0);
    ck_assert(kelp_name_is_category("PULocationID"));
    ck_assert(kelp_name_is_category("zip_code"));
    ck_assert(!kelp_name_is_category("width"));
    ck_assert(kelp_name_is_row("Unnamed: 0"));
}

/* Each kind of column gets its use; those that teach nothing are left out. */
KELP_TEST(columns_of_a_table)
{
    kelp_test_add(&table, "id,size,city,empty,one,note,when,ages,rooms,spend,price\n");
    for (int i = 0; i < 200; i++) {
        kelp_test_add(&table, "%d,%d,%s,,7,note-%d,03/%02d/2017,%d-%d,%s,%d,%d.5\n", i + 1,
                      40 + i * 7 % 90, i % 3 ? "Rome" : "Oslo", i, i % 28 + 1, i % 3, i % 3 + 9,
                      i % 11 ? "3" : "NA", i == 5 ? 900000 : i % 13, 100 + i * 7 % 90);
    }
    choose_well(NULL);
    ck_assert_int_eq(choice.shape, KELP_INIT_TABLE);
    ck_assert_int_eq(choice.target_kind, KELP_INIT_AMOUNT);
    ck_assert_int_eq(use_of("price"), KELP_INIT_IS_TARGET);
    ck_assert_int_eq(use_of("size"), KELP_INIT_NUMBER);
    ck_assert_int_eq(use_of("city"), KELP_INIT_CATEGORY);
    ck_assert_int_eq(use_of("ages"), KELP_INIT_CATEGORY);
    ck_assert_int_eq(use_of("spend"), KELP_INIT_LOG_NUMBER);
    static const char *const left[] = {"id", "empty", "one", "note", "when", "rooms"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(left); i++) {
        ck_assert_msg(use_of(left[i]) == KELP_INIT_LEFT_OUT, "%s", left[i]);
    }
    expect_printed("kind: deepfm");
    expect_printed("spend: whole numbers from 0 to 900000; its logarithm");
    ck_assert(!choice.random_split);
    expect_printed("id: whole numbers from 1 to 200; left out: it numbers the rows");
}

/* Two words become the chance of the second, several become numbered classes. */
KELP_TEST(targets_of_words)
{
    static const char *const kinds[] = {"setosa", "versi color", "o'hara"};
    kelp_test_add(&table, "width,left,species\n");
    for (int i = 0; i < 60; i++) {
        kelp_test_add(&table, "%d,%s,%s\n", i * 7 % 31, i % 4 ? "no" : "yes", kinds[i % 3]);
    }
    choose_well(NULL);
    ck_assert_int_eq(choice.target_kind, KELP_INIT_WORD_CLASS);
    ck_assert_uint_eq(choice.classes, 3);
    ck_assert_int_eq(use_of("left"), KELP_INIT_ONE_HOT);
    expect_printed("left_is_no = left == ''no''");
    expect_printed("# Classes: 0 o'hara, 1 setosa, 2 versi color\n");
    expect_printed("targets: [species]");
    expect_printed("loss: cross_entropy");

    kelp_init_choice_fini(&choice);
    kelp_table_facts_fini(&facts);
    choose_well("left");
    ck_assert_int_eq(choice.target_kind, KELP_INIT_OTHER_CHANCE);
    expect_printed("left_is_yes = left == ''yes''");
    expect_printed("# The model learns how likely yes is");
    expect_printed("left == ''yes'' or left == ''no''");
    expect_printed("loss: bce_with_logits");
}

/* Of two words that say neither yes nor no the second, of two numbers the larger one. */
KELP_TEST(which_of_two)
{
    kelp_test_add(&table, "width,side,level\n");
    for (int i = 0; i < 60; i++) {
        kelp_test_add(&table, "%d,%s,%d\n", i * 7 % 31, i % 4 ? "right" : "left", i % 3 ? 1 : 2);
    }
    choose_well("side");
    expect_printed("side_is_right = side == ''right''");
    kelp_init_choice_fini(&choice);
    kelp_table_facts_fini(&facts);
    choose_well("level");
    expect_printed(" = level == 2");
}

/* Rows without a number for the target are left out, and 0 and 1 are a chance. */
KELP_TEST(targets_of_numbers)
{
    kelp_test_add(&table, "a b,clicked,when\n");
    for (int i = 0; i < 50; i++) {
        kelp_test_add(&table, "%d,%s,2020-01-%02d %02d:00:00\n", i * 3 % 17,
                      i == 9      ? ""
                      : i % 3 > 0 ? "0"
                                  : "1",
                      i % 9 + 1, i % 24);
    }
    choose_well(NULL);
    ck_assert_int_eq(choice.target_kind, KELP_INIT_CHANCE);
    ck_assert_int_eq(use_of("when"), KELP_INIT_DATE);
    ck_assert(!choice.random_split);
    expect_printed("'not missing(clicked)'");
    expect_printed("'when_hour = hour(when)'");
    expect_printed("columns: [a b, when_hour, when_weekday]");
}

/* Numbers and names in a form that a job does not take: the comment says what to write. */
KELP_TEST(unusual_forms)
{
    kelp_test_add(&table, "cost, beds,share,size,price\n");
    for (int i = 0; i < 300; i++) {
        kelp_test_add(&table, "\"$1,%03d\",%d,%d.5%%,%d,%d\n", i, i % 5, i % 30, i * 7 % 91,
                      i * 7 % 31);
    }
    choose_well(NULL);
    expect_printed("cost: 300 different words; left out: write numbers as 1234.5");
    expect_printed("share: 30 different words; left out: write numbers as 1234.5");
    expect_printed(" beds: whole numbers from 0 to 4; left out: its name begins with a space");
}

/* Words that a few rows share each: of use in a small table alone. */
KELP_LOOP_TEST(words_that_hardly_repeat, 0, 2)
{
    int rows = _i == 0 ? 400 : 600;
    kelp_test_add(&table, "street,size,price\n");
    for (int i = 0; i < rows; i++) {
        kelp_test_add(&table, "s%d,%d,%d\n", i % (rows / 3), i * 5 % 37, i * 7 % 31);
    }
    choose_well(NULL);
    ck_assert_int_eq(use_of("street"), _i == 0 ? KELP_INIT_CATEGORY : KELP_INIT_LEFT_OUT);
}

/* Many words in few rows are learnt in few steps, with decay; few words are not. */
KELP_LOOP_TEST(few_rows_for_many_words, 0, 2)
{
    kelp_test_add(&table, "street,size,price\n");
    for (int i = 0; i < 400; i++) {
        kelp_test_add(&table, "s%d,%d,%d\n", i % (_i == 0 ? 51 : 50), i * 5 % 37, i * 7 % 31);
    }
    choose_well("price");
    ck_assert_int_eq(use_of("street"), KELP_INIT_CATEGORY);
    ck_assert_uint_eq(choice.epochs, _i == 0 ? 8 : 200);
    ck_assert(choice.weight_decay == (_i == 0 ? 10.0 : 0.01));
}

/* Columns that are derived keep the name of theirs, as far as it is clear and a word. */
KELP_TEST(names_of_derived_columns)
{
    kelp_test_add(&table, "Sold on,a b,a_b,street,price\n");
    for (int i = 0; i < 200; i++) {
        kelp_test_add(&table, "20%d-01-%02d,%d,%d,s%d,%d\n", 20 + i % 3, i * 5 % 28 + 1,
                      i == 5 ? 900000 : i % 13, i == 7 ? 900000 : i % 11, i % 2, i * 7 % 31);
    }
    choose_well(NULL);
    expect_printed("'Sold_on_weekday = weekday(`Sold on`)'");
    expect_printed("columns: [Sold_on_year, column_2_log, column_3_log]");
    expect_printed("categories: [Sold_on_weekday, street]");
    expect_printed("'column_2_log = log(max(`a b`, 0) + 1)'");
    expect_printed("'column_3_log = log(max(a_b, 0) + 1)'");
}

/* A file that is sorted by the target needs another order to be split. */
KELP_TEST(sorted_rows)
{
    kelp_test_add(&table, "width,species\n");
    for (int i = 0; i < 90; i++) {
        kelp_test_add(&table, "%d,%s\n", i * 7 % 31, i < 30 ? "a" : i < 60 ? "b" : "c");
    }
    choose_well(NULL);
    ck_assert(choice.random_split);
    expect_printed("random_split: true");
}

/* Evenly growing dates are a series, whatever the other columns have. */
KELP_TEST(series)
{
    kelp_test_add(&table, "day,shop,sold\n");
    for (int i = 0; i < 300; i++) {
        kelp_test_add(&table, "%04d-%02d-%02d,x%d,%d\n", 2000 + i / 336, i / 28 % 12 + 1,
                      i % 28 + 1, i % 2, i % 7);
    }
    choose_well("sold");
    ck_assert_int_eq(choice.shape, KELP_INIT_SERIES);
    ck_assert_uint_eq(choice.pred_len, 7);
    ck_assert_uint_eq(choice.seq_len, 28);
    ck_assert_uint_eq(choice.split[0] + choice.split[1] + choice.split[2], 300);
    expect_printed("kind: dlinear");
}

/* A grid of dates and names is a panel. */
KELP_TEST(panel)
{
    kelp_test_add(&table, "zone,hour,count\n");
    for (int i = 0; i < 480; i++) {
        kelp_test_add(&table, "z%d,2020-01-%02d %02d:00,%d\n", i % 4, i / 96 + 1, i / 4 % 24,
                      i * 7 % 50);
    }
    choose_well(NULL);
    ck_assert_int_eq(choice.shape, KELP_INIT_PANEL);
    ck_assert_uint_eq(choice.split[0] + choice.split[1] + choice.split[2], 120);
    expect_printed("group: zone");
    expect_printed("day_sin = sin(2 * pi * hour(`hour`) / 24)");
}

/* Mistakes say what was found and what would do. */
KELP_TEST(refusals)
{
    kelp_test_add(&table, "price,text\n");
    for (int i = 0; i < 10; i++) {
        kelp_test_add(&table, "%d,word %d\n", i, i);
    }
    expect_refusal(NULL, "the table has 10 rows");
    kelp_table_facts_fini(&facts);
    for (int i = 10; i < 60; i++) {
        kelp_test_add(&table, "%d,word %d\n", i * 7 % 23, i);
    }
    expect_refusal("prize", "did you mean 'price'?");
    kelp_table_facts_fini(&facts);
    expect_refusal("text", "column text has 60 different words");
    kelp_table_facts_fini(&facts);
    expect_refusal(NULL, "there is no column to learn price from");
}

/* Names that jobs and shells can have. */
KELP_TEST(job_names)
{
    char name[KELP_INIT_NAME_MAX + 1];
    kelp_init_job_name("/data/my trips.csv.gz", name);
    ck_assert_str_eq(name, "my-trips");
    kelp_init_job_name("folder/", name);
    ck_assert_str_eq(name, "folder");
    kelp_init_job_name("..", name);
    ck_assert_str_eq(name, "job");
}
