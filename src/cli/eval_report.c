#include "cli/eval_report.h"

#include <math.h>
#include <stdio.h>

const char *eval_set_name(int set)
{
    return set == EVAL_PERPLEXITY ? "perplexity" : task_set_name((task_set)set);
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

static void put_score(int set, const eval_score *s)
{
    if (set == EVAL_PERPLEXITY)
        printf("  %8.4f +- %-7.4f", exp(s->score), exp(s->score) * s->stderr_);
    else
        printf("  %7.1f %% +- %-5.1f", 100 * s->score, 100 * s->stderr_);
}

static void put_difference(int set, const eval_score *d)
{
    if (set == EVAL_PERPLEXITY)
        printf("   %+.4f +- %.4f (log)", d->score, d->stderr_);
    else
        printf("   %+.1f +- %.1f points", 100 * d->score, 100 * d->stderr_);
}

static void set_table(const eval_way *ways, int count, int set)
{
    for (int w = 0; w < count; w++) {
        const eval_marks *m = &ways[w].marks[set];
        if (!m->count) continue;
        eval_score s = eval_score_of(m, -1, -1);
        printf("%-11s  %-16s", w ? "" : eval_set_name(set), ways[w].name);
        put_score(set, &s);
        printf("  %5zu", s.n);
        if (set == EVAL_PERPLEXITY)
            printf("          ");
        else
            printf("  %6.1f %%", 100 * s.valid);
        printf("  %6.0f s", ways[w].seconds[set]);
        if (w) {
            eval_score d = eval_difference(&ways[0].marks[set], m);
            put_difference(set, &d);
        }
        putchar('\n');
    }
}

static void family_table(const eval_way *ways, int count, int set)
{
    if (!ways[0].marks[set].count || set == TASK_RETRIEVAL || set == EVAL_PERPLEXITY) return;
    printf("\n%s by kind:\n", eval_set_name(set));
    for (int f = 0; task_family_name((task_set)set, f); f++) {
        if (!eval_score_of(&ways[0].marks[set], f, -1).n) continue;
        printf("  %-24s", task_family_name((task_set)set, f));
        for (int w = 0; w < count; w++) {
            eval_score s = eval_score_of(&ways[w].marks[set], f, -1);
            put_score(set, &s);
        }
        printf("  %5zu\n", eval_score_of(&ways[0].marks[set], f, -1).n);
    }
}

static void depth_table(const eval_way *way, const int *lengths, int length_count)
{
    const eval_marks *m = &way->marks[TASK_RETRIEVAL];
    if (!m->count) return;
    printf("\nretrieval by tokens and depth, %s:\n  tokens", way->name);
    for (int depth = 0; depth <= 100; depth++)
        if (eval_score_of(m, -1, depth).n) printf("  %3d %%", depth);
    putchar('\n');
    for (int l = 0; l < length_count; l++) {
        printf("  %6d", lengths[l]);
        for (int depth = 0; depth <= 100; depth++) {
            if (!eval_score_of(m, -1, depth).n) continue;
            eval_score s = eval_score_of(m, l, depth);
            if (s.n)
                printf("  %5.0f", 100 * s.score);
            else
                printf("      -");
        }
        putchar('\n');
    }
}

void eval_report_table(const eval_way *ways, int count, const int *lengths, int length_count)
{
    printf("set          way               score             n     understood    time%s\n",
           count > 1 ? "   difference to the first" : "");
    for (int set = 0; set < EVAL_SETS; set++) set_table(ways, count, set);
    for (int set = 0; set < EVAL_SETS; set++) family_table(ways, count, set);
    for (int w = 0; w < count; w++) depth_table(&ways[w], lengths, length_count);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void write_score(json_writer *w, int set, const eval_score *s)
{
    bool logs = set == EVAL_PERPLEXITY;
    writer_key(w, "score"), writer_number(w, logs ? exp(s->score) : s->score);
    writer_key(w, "stderr"), writer_number(w, logs ? exp(s->score) * s->stderr_ : s->stderr_);
    writer_key(w, "n"), writer_unsigned(w, s->n);
}

static void write_families(json_writer *w, const eval_marks *m, int set)
{
    if (set == TASK_RETRIEVAL || set == EVAL_PERPLEXITY) return;
    writer_key(w, "families"), writer_object(w);
    for (int f = 0; task_family_name((task_set)set, f); f++) {
        eval_score s = eval_score_of(m, f, -1);
        if (!s.n) continue;
        writer_key(w, task_family_name((task_set)set, f)), writer_object(w);
        write_score(w, set, &s);
        writer_end(w);
    }
    writer_end(w);
}

/* [{"tokens", "depth", "score", "n"}] */
static void write_depths(json_writer *w, const eval_marks *m, const int *lengths, int length_count)
{
    writer_key(w, "by_depth"), writer_array(w);
    for (int l = 0; l < length_count; l++)
        for (int depth = 0; depth <= 100; depth++) {
            eval_score s = eval_score_of(m, l, depth);
            if (!s.n) continue;
            writer_object(w);
            writer_key(w, "tokens"), writer_integer(w, lengths[l]);
            writer_key(w, "depth"), writer_integer(w, depth);
            write_score(w, TASK_RETRIEVAL, &s);
            writer_end(w);
        }
    writer_end(w);
}

static void write_set(json_writer *w, const eval_way *way, const eval_way *first, int set, const int *lengths,
                      int length_count)
{
    const eval_marks *m = &way->marks[set];
    eval_score s = eval_score_of(m, -1, -1);
    writer_key(w, eval_set_name(set)), writer_object(w);
    write_score(w, set, &s);
    if (set != EVAL_PERPLEXITY) writer_key(w, "valid"), writer_number(w, s.valid);
    if (way != first) {
        eval_score d = eval_difference(&first->marks[set], m);
        writer_key(w, "difference"), writer_number(w, d.score);
        writer_key(w, "difference_stderr"), writer_number(w, d.stderr_);
    }
    writer_key(w, "seconds"), writer_number(w, way->seconds[set]);
    write_families(w, m, set);
    if (set == TASK_RETRIEVAL) write_depths(w, m, lengths, length_count);
    writer_end(w);
}

void eval_report_json(const eval_way *ways, int count, const int *lengths, int length_count, buffer *out)
{
    json_writer w = {.out = out};
    writer_object(&w);
    for (int i = 0; i < count; i++) {
        writer_key(&w, ways[i].name), writer_object(&w);
        for (int set = 0; set < EVAL_SETS; set++)
            if (ways[i].marks[set].count) write_set(&w, &ways[i], &ways[0], set, lengths, length_count);
        writer_end(&w);
    }
    writer_end(&w);
}
