/* Training sets: the same bytes from any number of threads, what set.json says is in the files, nothing half-written. */
#include <sys/stat.h>
#include <unistd.h>

#include "tasks/write_set.h"
#include "tasks_helpers.h"

static char folder[] = "/tmp/hayate-write-set-XXXXXX";

static write_set_options options(char *path, const char *name, int threads)
{
    sprintf(path, "%s/%s", folder, name);
    return (write_set_options){.path = path,
                               .tokens = 200000,
                               .lengths = {{512, 2}, {1024, 1}},
                               .length_count = 2,
                               .seed = 9,
                               .threads = threads};
}

static char *contents(const char *path, const char *name, size_t *size)
{
    char file[512], *data;
    hy_error err = {0};
    snprintf(file, sizeof file, "%s/%s", path, name);
    if (file_read(file, 1 << 26, &data, size, &err) != HY_OK) fail_msg("%s", err.message);
    return data;
}

static void threads_do_not_matter(void **state)
{
    static const char *const files[] = {"rows-512.ids", "rows-512.weights", "rows-1024.ids", "rows-1024.weights", "set.json"};
    char one[256], four[256];
    write_set_report report;
    hy_error err = {0};
    (void)state;
    write_set_options o = options(one, "one", 1);
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_OK);
    o = options(four, "four", 4);
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_OK);
    for (int i = 0; i < 5; i++) {
        size_t a, b;
        char *x = contents(one, files[i], &a), *y = contents(four, files[i], &b);
        assert_int_equal(a, b);
        assert_memory_equal(x, y, a);
        free(x), free(y);
    }
    /* A row does not depend on what else is written. */
    o = options(four, "alone", 2);
    o.lengths[0] = o.lengths[1], o.length_count = 1;
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_OK);
    size_t a, b;
    char *x = contents(one, "rows-1024.ids", &a), *y = contents(four, "rows-1024.ids", &b);
    assert_true(b > a);
    assert_memory_equal(x, y, a);
    free(x), free(y);
}

static void rows_hold_what_is_said(void **state)
{
    char path[256];
    size_t ids_size, weights_size;
    write_set_report report;
    hy_error err = {0};
    (void)state;
    write_set_options o = options(path, "said", 2);
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_OK);
    for (int i = 0; i < 2; i++) {
        char name[32];
        size_t length = (size_t)o.lengths[i].length, used = 0, written = 0, all = 0, said = 0;
        sprintf(name, "rows-%zu.ids", length);
        unsigned char *ids = (unsigned char *)contents(path, name, &ids_size);
        sprintf(name, "rows-%zu.weights", length);
        unsigned char *weights = (unsigned char *)contents(path, name, &weights_size);
        assert_int_equal(ids_size, 2 * weights_size);
        assert_int_equal(weights_size, report.rows[i] * length);
        for (size_t k = 0; k < report.rows[i]; k++) {
            const unsigned char *w = weights + k * length;
            size_t end = length;
            while (end && w[end - 1] == ROW_PADDING) end--;
            assert_true(end > 0);
            assert_int_equal(w[end - 1], ROW_WRITTEN);
            for (size_t j = 0; j < length; j++) {
                int id = ids[2 * (k * length + j)] | ids[2 * (k * length + j) + 1] << 8;
                assert_true(id < text_tokenizer_vocab_size(tokenizer()));
                if (j < end)
                    assert_true(w[j] == ROW_GIVEN || w[j] == ROW_WRITTEN);
                else
                    assert_int_equal(id, tokens()->pad);
                written += w[j] == ROW_WRITTEN;
            }
            used += end;
        }
        for (int set = 0; set < TASK_SETS; set++) {
            said += report.by_set[i][set].used, all += report.by_set[i][set].rows;
            written -= report.by_set[i][set].written;
        }
        assert_int_equal(said, used);
        assert_int_equal(all, report.rows[i]);
        assert_int_equal(written, 0);
        free(ids), free(weights);
    }
}

static void lines_are_conversations(void **state)
{
    char path[256];
    size_t size, lines = 0;
    write_set_report report;
    hy_error err = {0};
    (void)state;
    write_set_options o = options(path, "some.jsonl", 2);
    o.tokens = 20000;
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_OK);
    char *text = contents(folder, "some.jsonl", &size), *at = text;
    for (char *end; (end = strchr(at, '\n')); at = end + 1, lines++) {
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(line);
        assert_true(task_set_find(json_string_value(json_object_get(line, "set"))) < TASK_SETS);
        assert_true(json_array_size(json_object_get(line, "messages")) >= 2);
        json_decref(line);
    }
    assert_int_equal(lines, report.rows[0] + report.rows[1]);
    free(text);
}

static bool stop(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    (void)user, (void)what, (void)done, (void)total, (void)unit;
    return false;
}

static void faults_leave_nothing(void **state)
{
    char path[256], other[512];
    write_set_report report;
    hy_error err = {0};
    (void)state;
    write_set_options o = options(path, "stopped", 2);
    o.on_progress = stop;
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_FAILED);
    assert_int_not_equal(access(path, F_OK), 0);
    o = options(path, "one", 1);
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_USAGE); /* there is one already */
    snprintf(other, sizeof other, "%s/rows-512.ids", path);
    assert_int_equal(access(other, F_OK), 0);
    o = options(path, "bad", 1);
    o.lengths[0].length = 100;
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_USAGE);
    o.lengths[0].length = 1024;
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_USAGE);
    o = options(path, "no/such", 1);
    assert_int_equal(write_set(tokenizer(), &o, &report, &err), HY_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(rows_hold_what_is_said),
        cmocka_unit_test(lines_are_conversations),
        cmocka_unit_test(faults_leave_nothing),
    };
    if (!mkdtemp(folder)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) || failed;
}
