#include "tasks/tasks.h"

#include <stdlib.h>
#include <string.h>

#include "tasks/make.h"

/* By task_set. A set without a generator has only its name. */
static const task_kind *const kinds[TASK_SETS] = {
    [TASK_ARITHMETIC] = &tasks_arithmetic,
    [TASK_SYNTHAIME] = &tasks_synthaime,
    [TASK_RETRIEVAL] = &tasks_retrieval,
    [TASK_FORM] = &tasks_form,
    [TASK_TALK] = &tasks_talk,
    [TASK_TOOLS] = &tasks_tools,
};

static const char *const names[TASK_SETS] = {"arithmetic", "synthaime", "retrieval", "tools", "form", "talk"};

const char *task_set_name(task_set set)
{
    return names[set];
}

task_set task_set_find(const char *name)
{
    int set = 0;
    while (set < TASK_SETS && strcmp(names[set], name) != 0) set++;
    return (task_set)set;
}

bool task_set_present(task_set set)
{
    return kinds[set] != NULL;
}

const char *task_family_name(task_set set, int family)
{
    const char *const *families = kinds[set] ? kinds[set]->families : NULL;
    for (int i = 0; families && families[i]; i++)
        if (i == family) return families[i];
    return NULL;
}

void task_make(task_set set, task_split split, draw *d, int length, task *out)
{
    if (!kinds[set]) abort();
    *out = (task){.set = set};
    kinds[set]->make(split, d, length, out);
}

void task_free(task *t)
{
    for (size_t i = 0; i < t->turn_count; i++) json_decref(t->turns[i].expect);
    free(t->turns);
    json_decref(t->messages);
    json_decref(t->tools);
    *t = (task){0};
}

bool task_mark(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid)
{
    bool understood = false;
    bool right = turn < t->turn_count &&
                 kinds[t->set]->mark(t, turn, reasoning ? reasoning : "", content ? content : "", &understood);
    if (valid) *valid = understood;
    return right && understood;
}
