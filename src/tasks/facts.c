#include "tasks/facts.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "tasks/sums.h"

static const char *const capitals[][2] = {
    {"France", "Paris"},     {"Germany", "Berlin"},     {"Italy", "Rome"},        {"Spain", "Madrid"},
    {"Japan", "Tokyo"},      {"China", "Beijing"},      {"Norway", "Oslo"},       {"Sweden", "Stockholm"},
    {"Finland", "Helsinki"}, {"Denmark", "Copenhagen"}, {"Poland", "Warsaw"},     {"Austria", "Vienna"},
    {"Greece", "Athens"},    {"Portugal", "Lisbon"},    {"Ireland", "Dublin"},    {"Belgium", "Brussels"},
    {"Hungary", "Budapest"}, {"Russia", "Moscow"},      {"Egypt", "Cairo"},       {"Kenya", "Nairobi"},
    {"Canada", "Ottawa"},    {"Mexico", "Mexico City"}, {"Brazil", "Brasilia"},   {"Argentina", "Buenos Aires"},
    {"Chile", "Santiago"},   {"Peru", "Lima"},          {"Cuba", "Havana"},       {"India", "New Delhi"},
    {"Thailand", "Bangkok"}, {"Vietnam", "Hanoi"},      {"Korea", "Seoul"},       {"Australia", "Canberra"},
    {"England", "London"},   {"Turkey", "Ankara"},      {"Iran", "Tehran"},       {"Iraq", "Baghdad"},
    {"Switzerland", "Bern"}, {"Ukraine", "Kyiv"},       {"Iceland", "Reykjavik"}, {"Indonesia", "Jakarta"},
};

static const char *const opposites[][2] = {
    {"hot", "cold"},    {"big", "small"},  {"up", "down"},    {"left", "right"},  {"day", "night"},
    {"black", "white"}, {"old", "new"},    {"fast", "slow"},  {"open", "closed"}, {"early", "late"},
    {"high", "low"},    {"light", "dark"}, {"rich", "poor"},  {"happy", "sad"},   {"wet", "dry"},
    {"full", "empty"},  {"hard", "soft"},  {"long", "short"}, {"strong", "weak"}, {"near", "far"},
};

static const char *const animals[][2] = {
    {"dog", "woof"}, {"cat", "meow"},  {"cow", "moo"},     {"duck", "quack"}, {"sheep", "baa"},
    {"pig", "oink"}, {"lion", "roar"}, {"frog", "ribbit"}, {"bee", "buzz"},   {"owl", "hoot"},
};

static const char *const colours[][2] = {
    {"sky", "blue"},   {"grass", "green"},   {"snow", "white"}, {"coal", "black"},
    {"blood", "red"},  {"lemon", "yellow"},  {"sea", "blue"},   {"fire", "red"},
    {"tomato", "red"}, {"banana", "yellow"}, {"milk", "white"}, {"night", "black"},
};

static const struct count {
    const char *ask, *what;
    int number;
} counts[] = {
    {"How many days are in a week?", "days in a week", 7},
    {"How many hours are in a day?", "hours in a day", 24},
    {"How many minutes are in an hour?", "minutes in an hour", 60},
    {"How many seconds are in a minute?", "seconds in a minute", 60},
    {"How many months are in a year?", "months in a year", 12},
    {"How many days are in a year?", "days in a year", 365},
    {"How many legs does a dog have?", "legs on a dog", 4},
    {"How many legs does a spider have?", "legs on a spider", 8},
    {"How many wheels does a car have?", "wheels on a car", 4},
    {"How many sides does a triangle have?", "sides of a triangle", 3},
    {"How many letters are in the alphabet?", "letters in the alphabet", 26},
    {"How many fingers are on a hand?", "fingers on a hand", 5},
};

static const char *const days[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Question and answer from patterns with k and v; v is the brief answer. */
static void put_pair(fact *f, draw *d, const char *const *asks, size_t n, const char *answer, const char *k,
                     const char *v)
{
    slots s;
    slots_clear(&s);
    slots_text(&s, 'k', k), slots_text(&s, 'v', v);
    fill(&f->question, draw_one(d, asks, n), &s);
    fill(&f->answer, answer, &s);
    snprintf(f->brief, sizeof f->brief, "%s", v);
}

static void capital(draw *d, fact *f)
{
    static const char *const asks[] = {"What is the capital of {k}?",
                                       "What's the capital of {k}?",
                                       "Capital of {k}?",
                                       "Which city is the capital of {k}?",
                                       "Tell me the capital of {k}.",
                                       "Name the capital of {k}.",
                                       "The capital of {k} is"};
    const char *const *c = capitals[draw_between(d, 0, COUNT(capitals) - 1)];
    put_pair(f, d, asks, COUNT(asks), "The capital of {k} is {v}.", c[0], c[1]);
}

static void opposite(draw *d, fact *f)
{
    static const char *const asks[] = {"What is the opposite of {k}?", "The opposite of {k}?", "Opposite of {k}",
                                       "Which word is the opposite of {k}?"};
    const char *const *c = opposites[draw_between(d, 0, COUNT(opposites) - 1)];
    int turned = draw_chance(d, 0.5);
    put_pair(f, d, asks, COUNT(asks), "The opposite of {k} is {v}.", c[turned], c[!turned]);
}

static void animal(draw *d, fact *f)
{
    static const char *const asks[] = {"What does a {k} say?", "What sound does a {k} make?", "How does a {k} sound?"};
    static const char *const vowel_asks[] = {"What does an {k} say?", "What sound does an {k} make?",
                                             "How does an {k} sound?"};
    const char *const *c = animals[draw_between(d, 0, COUNT(animals) - 1)];
    bool vowel = strchr("aeiou", c[0][0]) != NULL;
    put_pair(f, d, vowel ? vowel_asks : asks, 3, vowel ? "An {k} says {v}." : "A {k} says {v}.", c[0], c[1]);
}

static void colour(draw *d, fact *f)
{
    static const char *const asks[] = {"What color is {k}?", "What colour is {k}?", "Which color does {k} have?"};
    static const char *const definite[] = {"sky", "sea", "night", "lemon", "tomato", "banana"};
    const char *const *c = colours[draw_between(d, 0, COUNT(colours) - 1)];
    char name[32];
    snprintf(name, sizeof name, "%s", c[0]);
    for (size_t i = 0; i < COUNT(definite); i++)
        if (!strcmp(definite[i], c[0])) snprintf(name, sizeof name, "the %s", c[0]);
    put_pair(f, d, asks, COUNT(asks), "The color of {k} is {v}.", name, c[1]);
}

static void neighbour(draw *d, fact *f)
{
    static const char *const asks[2][2][3] = {
        {{"What day comes after {k}?", "Which day is after {k}?", "What is the day after {k}?"},
         {"What day comes before {k}?", "Which day is before {k}?", "What is the day before {k}?"}},
        {{"What month comes after {k}?", "Which month is after {k}?", "What is the month after {k}?"},
         {"What month comes before {k}?", "Which month is before {k}?", "What is the month before {k}?"}}};
    bool month = draw_chance(d, 0.5), back = draw_chance(d, 0.4);
    const char *const *names = month ? months : days;
    int64_t n = month ? 12 : 7, i = draw_between(d, 0, n - 1);
    put_pair(f, d, asks[month][back], 3, back ? "{v} comes before {k}." : "{v} comes after {k}.", names[i],
             names[(i + (back ? n - 1 : 1)) % n]);
}

static void parity(draw *d, fact *f)
{
    static const char *const asks[] = {"Is {k} even or odd?", "Is {k} odd or even?", "Even or odd: {k}?"};
    char number[24];
    int64_t n = sum_number(d, (int)draw_between(d, 1, 4));
    snprintf(number, sizeof number, "%lld", (long long)n);
    put_pair(f, d, asks, COUNT(asks), "{k} is {v}.", number, n % 2 ? "odd" : "even");
}

static void larger_one(draw *d, fact *f)
{
    static const char *const asks[2][4] = {
        {"Which is larger, {k}?", "Which number is bigger: {k}?", "What is larger, {k}?", "Which is bigger, {k}?"},
        {"Which is smaller, {k}?", "Which number is smaller: {k}?", "What is smaller, {k}?", "Which is less, {k}?"}};
    char both[64], result[24];
    int64_t x = sum_number(d, (int)draw_between(d, 1, 4)), y = sum_number(d, (int)draw_between(d, 1, 4));
    bool small = draw_chance(d, 0.4);
    if (x == y) y++;
    snprintf(both, sizeof both, "%lld or %lld", (long long)x, (long long)y);
    snprintf(result, sizeof result, "%lld", (long long)(small == (x < y) ? x : y));
    put_pair(f, d, asks[small], 4, small ? "{v} is smaller." : "{v} is larger.", both, result);
}

static void counted(draw *d, fact *f)
{
    const struct count *c = &counts[draw_between(d, 0, COUNT(counts) - 1)];
    buffer_string(&f->question, c->ask);
    buffer_printf(&f->answer, "There are %d %s.", c->number, c->what);
    snprintf(f->brief, sizeof f->brief, "%d", c->number);
}

/* A sum that is answered at once, of a result below 100. */
static void small_sum(draw *d, fact *f)
{
    bool wants_steps;
    sum s;
    do s = (sum){.kind = (sum_kind)draw_between(d, 0, 4), .x = {draw_between(d, 1, 50), draw_between(d, 1, 20), 0}};
    while (s.kind == SUM_THREE || (s.kind == SUM_DIVIDE && (s.x[0] % s.x[1] || s.x[0] > 10 * s.x[1])) ||
           (s.kind == SUM_MULTIPLY && (s.x[0] > 10 || s.x[1] > 10)) || sum_result(&s) < 0 || sum_result(&s) > 99 ||
           sum_held_out(&s));
    do {
        buffer_clear(&f->question);
        sum_ask(&f->question, &s, d, &wants_steps);
    } while (wants_steps);
    sum_sentence(&f->answer, &s);
    snprintf(f->brief, sizeof f->brief, "%d", (int)sum_result(&s));
    f->sum = true;
}

void fact_make(draw *d, fact *out)
{
    static const int shares[] = {22, 12, 6, 7, 10, 12, 6, 8, 17};
    static void (*const kinds[])(draw *, fact *) = {capital,   opposite, animal,     colour,   counted,
                                                    neighbour, parity,   larger_one, small_sum};
    *out = (fact){0};
    kinds[draw_weighted(d, shares, 9)](d, out);
}

void fact_number(draw *d, fact *out)
{
    *out = (fact){0};
    if (draw_chance(d, 0.25)) do {
            fact_free(out);
            counted(d, out);
        } while (strlen(out->brief) > 2);
    else
        small_sum(d, out);
}

void fact_yes_no(draw *d, fact *out)
{
    static const char *const larger_asks[] = {"Is {a} larger than {b}?", "Is {a} bigger than {b}?",
                                              "Is {a} more than {b}?"};
    static const char *const smaller_asks[] = {"Is {a} smaller than {b}?", "Is {a} less than {b}?"};
    slots v;
    bool yes;
    *out = (fact){0};
    slots_clear(&v);
    switch (draw_between(d, 0, 3)) {
    case 0: {
        const char *const *c = capitals[draw_between(d, 0, COUNT(capitals) - 1)];
        const char *city = draw_chance(d, 0.5) ? c[1] : capitals[draw_between(d, 0, COUNT(capitals) - 1)][1];
        yes = !strcmp(city, c[1]);
        slots_text(&v, 'a', city), slots_text(&v, 'b', c[0]), slots_text(&v, 'c', c[1]);
        fill(&out->question, "Is {a} the capital of {b}?", &v);
        fill(&out->answer, yes ? "Yes, {a} is the capital of {b}." : "No, the capital of {b} is {c}.", &v);
        break;
    }
    case 1: {
        int64_t n = sum_number(d, (int)draw_between(d, 1, 3));
        bool even = draw_chance(d, 0.5);
        yes = even == (n % 2 == 0);
        slots_number(&v, 'a', n);
        fill(&out->question, even ? "Is {a} even?" : "Is {a} odd?", &v);
        fill(&out->answer,
             n % 2 ? (yes ? "Yes, {a} is odd." : "No, {a} is odd.") : (yes ? "Yes, {a} is even." : "No, {a} is even."),
             &v);
        break;
    }
    default: {
        int64_t a = sum_number(d, (int)draw_between(d, 1, 3)), b = sum_number(d, (int)draw_between(d, 1, 3));
        bool large = draw_chance(d, 0.6);
        if (a == b) b++;
        yes = large == (a > b);
        slots_number(&v, 'a', a), slots_number(&v, 'b', b);
        fill(&out->question, large ? DRAW(d, larger_asks) : DRAW(d, smaller_asks), &v);
        fill(&out->answer,
             a > b ? (yes ? "Yes, {a} is larger than {b}." : "No, {a} is larger than {b}.")
                   : (yes ? "Yes, {a} is smaller than {b}." : "No, {a} is smaller than {b}."),
             &v);
        break;
    }
    }
    snprintf(out->brief, sizeof out->brief, "%s", yes ? "Yes" : "No");
}

void fact_free(fact *f)
{
    buffer_free(&f->question), buffer_free(&f->answer);
}

/* ---- Lists ---------------------------------------------------------------------------------------------------- */

static const struct list {
    const char *name, *items[LIST_LONGEST];
} lists[] = {
    {"fruits", {"apple", "banana", "cherry", "pear", "plum", "lemon", "orange"}},
    {"colors", {"red", "blue", "green", "yellow", "white", "black", "brown"}},
    {"animals", {"dog", "cat", "horse", "cow", "sheep", "duck", "lion"}},
    {"days", {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"}},
    {"months", {"January", "February", "March", "April", "May", "June", "July"}},
    {"planets", {"Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus"}},
    {"vegetables", {"carrot", "onion", "potato", "tomato", "pepper", "cabbage", "bean"}},
    {"countries", {"France", "Germany", "Italy", "Spain", "Japan", "China", "Norway"}},
    {"cities", {"Paris", "Berlin", "Rome", "Madrid", "Tokyo", "London", "Oslo"}},
    {"drinks", {"water", "tea", "coffee", "milk", "juice", "wine", "beer"}},
    {"tools", {"hammer", "saw", "knife", "needle", "spoon", "axe", "rake"}},
    {"instruments", {"piano", "guitar", "violin", "flute", "drum", "trumpet", "harp"}},
    {"clothes", {"shirt", "jacket", "hat", "coat", "dress", "shoe", "glove"}},
    {"metals", {"iron", "gold", "silver", "copper", "tin", "lead", "zinc"}},
    {"shapes", {"circle", "square", "triangle", "cube", "sphere", "cone", "star"}},
    {"trees", {"oak", "pine", "birch", "maple", "willow", "cedar", "palm"}},
    {"birds", {"owl", "eagle", "robin", "swan", "crow", "goose", "parrot"}},
    {"numbers", {"one", "two", "three", "four", "five", "six", "seven"}},
};

size_t list_count(void)
{
    return COUNT(lists);
}

const char *list_name(size_t list)
{
    return lists[list].name;
}

const char *list_item(size_t list, size_t i)
{
    return lists[list].items[i];
}

bool list_has(size_t list, const char *word, size_t length)
{
    for (size_t i = 0; i < LIST_LONGEST; i++)
        if (strlen(lists[list].items[i]) == length && !strncasecmp(lists[list].items[i], word, length)) return true;
    return false;
}

/* ---- Numbers as words ----------------------------------------------------------------------------------------- */

static const char *const small[] = {"zero",     "one",     "two",     "three",     "four",     "five",    "six",
                                    "seven",    "eight",   "nine",    "ten",       "eleven",   "twelve",  "thirteen",
                                    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};

const char *number_word(int n)
{
    return small[n];
}

void number_words(buffer *out, int64_t n)
{
    static const char *const tens[] = {"",      "",      "twenty",  "thirty", "forty",
                                       "fifty", "sixty", "seventy", "eighty", "ninety"};
    if (n >= 100) {
        buffer_string(out, small[n / 100]), buffer_string(out, " hundred");
        n %= 100;
        if (!n) return;
        buffer_char(out, ' ');
    }
    if (n < 20) {
        buffer_string(out, small[n]);
        return;
    }
    buffer_string(out, tens[n / 10]);
    if (n % 10) buffer_char(out, '-'), buffer_string(out, small[n % 10]);
}
