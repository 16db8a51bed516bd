#include "server/dialect_fields.h"

#include <string.h>

#include "model/model.h"

static void pick(json_t *out, const json_t *body, const char *name)
{
    json_t *value = request_value(body, name);
    if (value) json_object_set(out, name, value);
}

json_t *dialect_fields(const json_t *body)
{
    static const char *const more[] = {"model",
                                       "stream",
                                       "priority",
                                       "cache_salt",
                                       "structured_outputs",
                                       "hayate_deadline_s",
                                       "skip_special_tokens",
                                       "repetition_detection",
                                       "speculation"};
    json_t *out = json_object();
    for (size_t i = 0; i < request_sampling_field_count; i++) pick(out, body, request_sampling_fields[i].name);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) pick(out, body, more[i]);
    return out;
}

bool dialect_effort(const json_t *body, dialect_kind own, json_t **effort, request_fault *fault)
{
    static const struct {
        const char *parent, *place, *name;
    } fields[] = {{NULL, "body", "reasoning_effort"},
                  {"output_config", "body.output_config", "effort"},
                  {"reasoning", "body.reasoning", "effort"}};
    json_t *found = NULL;
    for (int i = -1; i < 3; i++) {
        int k = i < 0 ? (int)own : i;
        const json_t *parent = fields[k].parent ? request_value(body, fields[k].parent) : body;
        json_t *value = request_value(parent, fields[k].name);
        if (value && !json_is_string(value))
            return request_schema(fault, fields[k].place, fields[k].name, "string_type",
                                  "Input should be a valid string");
        if (!found) found = value;
    }
    *effort = json_incref(found);
    return true;
}

bool dialect_always_thinks(const generation_room *room)
{
    static const char *const ways[] = {"thinking_mode", "enable_thinking", "thinking"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (model_template_reads(room->model, ways[i])) return false;
    return true;
}

bool dialect_can_think_so(const generation *g, request_fault *fault)
{
    const json_t *kwargs = g->plan.kwargs;
    const char *effort = json_string_value(g->plan.effort);
    const char *mode = json_string_value(json_object_get(kwargs, "thinking_mode"));
    bool off = (effort && strcmp(effort, "none") == 0) || (mode && strcmp(mode, "disabled") == 0) ||
               json_is_false(json_object_get(kwargs, "enable_thinking")) ||
               json_is_false(json_object_get(kwargs, "thinking"));
    if (!off || !dialect_always_thinks(g->room)) return true;
    return request_refuse(fault, NULL,
                          "this model always thinks, so thinking cannot be switched off; ask for less with a "
                          "lower effort");
}
