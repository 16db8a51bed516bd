/* The formats of JSON Schema as patterns: what they produce is valid, not everything that is valid is produced. */
#include <string.h>

#include "text/grammar_parts.h"

#define DATE                                                                                                           \
    "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2["  \
    "0-8]))"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9\\-]{0,30}[A-Za-z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,4}"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEX4 "[0-9A-Fa-f]{1,4}"
#define UNRESERVED "[A-Za-z0-9\\-._~!$&'()*+,;=:@]"
#define PATH "(/" UNRESERVED "{0,24}){0,6}"
#define QUERY "[A-Za-z0-9\\-._~!$&'()*+,;=:@/?]{0,40}"
#define REST "(\\?" QUERY ")?(#" QUERY ")?"

const char *grammar_format(const char *name)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "(?:" DATE ")"},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"duration", "P([0-9]{1,4}W|[0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D)?|[0-9]{1,4}D|"
                     "T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S))"},
        {"email", "[A-Za-z0-9_+\\-]{1,32}(\\.[A-Za-z0-9_+\\-]{1,32}){0,3}@" LABEL "(\\." LABEL "){1,3}"},
        {"hostname", HOST},
        {"ipv4", BYTE "(\\." BYTE "){3}"},
        {"ipv6", "(" HEX4 "(:" HEX4 "){7}|::|::" HEX4 "(:" HEX4 "){0,5}|" HEX4 "(:" HEX4 "){0,2}::" HEX4 "(:" HEX4
                 "){0,3}|" HEX4 "(:" HEX4 "){0,5}::)"},
        {"uri", "[a-z][a-z0-9+.\\-]{0,15}://" HOST "(:[0-9]{1,4})?" PATH REST},
        {"uri-reference", "([a-z][a-z0-9+.\\-]{0,15}://" HOST "(:[0-9]{1,4})?)?" PATH REST},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
        {"json-pointer", "(/([^~/\\x00-\\x1F\"\\\\]|~[01])*)*"},
        {"relative-json-pointer", "(0|[1-9][0-9]{0,8})(#|(/([^~/\\x00-\\x1F\"\\\\]|~[01])*)*)"},
        {"idn-email", ""},
        {"idn-hostname", ""},
        {"iri", ""},
        {"iri-reference", ""},
        {"uri-template", ""},
        {"regex", ""},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
    return NULL;
}
