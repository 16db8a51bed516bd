/*
 * The parts of tool tasks: a catalogue of tools, values of their arguments, and requests in words.
 *
 * A tool is described once: its arguments with the kind of values that they take, how people ask for it, what it
 * returns and how that is told. Its schema, a call and the sentence that asks for the call all come from that.
 */
#ifndef HAYATE_TASKS_TOOLS_H
#define HAYATE_TASKS_TOOLS_H

#include "tasks/make.h"

enum { TOOL_ARGUMENTS = 4, TOOL_ASKS = 5, TOOL_RESULTS = 2, TOOL_NAME = 32, TOOL_TEXT = 200 };

/* What a value is; its JSON type follows. */
typedef enum value_domain {
    V_NONE, /* no argument */
    /* strings */
    V_CITY,
    V_PERSON,
    V_WORD,
    V_THING,
    V_MESSAGE,
    V_DATE,
    V_TIME,
    V_EMAIL,
    V_PATH,
    V_PHONE,
    V_CODE,
    V_SUM,
    V_TICKER,
    V_NAME,
    V_ROOM,
    V_TOPIC,
    V_SKY,
    V_TABLE,
    V_ONE_OF, /* an enum */
    /* integers, numbers, booleans by how a sentence spells them */
    V_FEW,
    V_INTEGER,
    V_LARGE,
    V_NUMBER,
    V_DEGREES,
    V_ON,
    V_LOCK,
    V_WITH,
    V_COMPUTED, /* the value of the last V_SUM */
    /* lists and objects */
    V_PEOPLE,
    V_WORDS,
    V_INTEGERS,
    V_OBJECT,
    V_OBJECTS,
} value_domain;

typedef struct tool_argument {
    char letter; /* in patterns */
    const char *name, *noun;
    value_domain domain;
    const char *phrase;                  /* an optional argument's: the sentence that gives it; NULL: required */
    const char *const *options;          /* V_ONE_OF: a NULL at the end */
    const struct tool_argument *members; /* V_OBJECT, V_OBJECTS: [..] and one without a letter */
    const char *spelled;                 /* of these: how they stand in a sentence */
} tool_argument;

/* Tools of a group are alike. */
typedef enum tool_group {
    GROUP_WEATHER,
    GROUP_SEARCH,
    GROUP_PRICE,
    GROUP_SUMS,
    GROUP_CALENDAR,
    GROUP_MESSAGES,
    GROUP_HOME,
    GROUP_SHOP,
    GROUP_WORDS,
    GROUP_ROBOT,
    GROUP_FILES,
    GROUP_DATA,
} tool_group;

typedef struct tool {
    const char *name, *about;
    tool_group group;
    tool_argument arguments[TOOL_ARGUMENTS]; /* until one without a letter */
    const char *asks[TOOL_ASKS];             /* with the required arguments */
    const char *vague;                       /* without arguments[0]; NULL if nobody would forget it */
    tool_argument results[TOOL_RESULTS];     /* letters R and S */
    const char *result, *answer;
} tool;

extern const tool tool_table[];
extern const int tool_count;

/* A value: as JSON (owned) and as the sentence has it. */
typedef struct tool_value {
    json_t *json;
    char text[TOOL_TEXT];
} tool_value;

/* `names` are those of an object's members, in order; NULL: the table's. *computed carries V_SUM to V_COMPUTED. */
tool_value tool_value_draw(const tool_argument *a, char (*names)[TOOL_NAME], int64_t *computed, draw *d);

/* The schema of an argument, owned. `described`: with a description, where the name says nothing. */
json_t *tool_argument_schema(const tool_argument *a, char (*names)[TOOL_NAME], bool described, bool nullable);

/* Whether a value fits a schema: types, required members, no unknown ones, enum, items. */
bool schema_fits(const json_t *schema, const json_t *value);
/* Equal as values: numbers by value, members in any order, null members are none. */
bool values_equal(const json_t *a, const json_t *b);

#endif
