/* Tools as a conversation offers them, and requests for one: the sentence, the call, the result and what is told of it.
 */
#ifndef HAYATE_TASKS_TOOLS_REQUEST_H
#define HAYATE_TASKS_TOOLS_REQUEST_H

#include "tasks/tools.h"

enum { MEMBERS = 4, OFFERS = 5 };

typedef struct offer {
    const tool *tool;
    char name[TOOL_NAME], arguments[TOOL_ARGUMENTS][TOOL_NAME], members[TOOL_ARGUMENTS][MEMBERS][TOOL_NAME];
    bool described;
} offer;

/* `renamed`: the tool and its arguments have made-up names, so that only descriptions say what they are. */
void offer_make(offer *o, const tool *t, bool renamed, draw *d);
/* As the chat template takes it, owned. */
json_t *offer_schema(const offer *o, draw *d);

typedef struct request {
    const offer *offer;
    tool_value values[TOOL_ARGUMENTS]; /* JSON owned */
    bool given[TOOL_ARGUMENTS];
    int64_t computed;
    buffer ask, result, answer;
    char told[TOOL_RESULTS][TOOL_TEXT]; /* what of the result the answer has; "" for nothing */
} request;

/* Draws a request of the split: the hash of the tool and its arguments decides, with and without arguments[0] if that
 * is to be asked for (`vague`). False when the tool has no such request; to be freed all the same. */
bool request_draw(request *r, const offer *o, task_split split, bool vague, draw *d);
/* The same with another arguments[0], for two things in one sentence: then `first` asks for both. False: not this tool.
 */
bool request_double(request *first, request *second, task_split split, draw *d);
/* The call, owned: {"name", "arguments"}. */
json_t *request_call(const request *r);
void request_free(request *r);

#endif
