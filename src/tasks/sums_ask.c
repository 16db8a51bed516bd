/* How people ask for a sum. */
#include "tasks/sums.h"

#include <string.h>

/* {e} is the expression. */
static const char *const by_expression[] = {
    "What is {e}?",
    "What is {e}?",
    "What is {e}?",
    "{e}",
    "{e} =",
    "{e}=",
    "{e} = ?",
    "{e}?",
    "Compute {e}.",
    "Calculate {e}",
    "Calculate {e}.",
    "How much is {e}?",
    "What's {e}?",
    "what's {e}",
    "Can you compute {e} for me?",
    "Please compute {e}.",
    "Tell me what {e} is.",
    "Solve {e}",
    "Solve: {e}",
    "I need {e}.",
    "Work out {e}.",
    "And {e}?",
    "Now {e}.",
    "Next: {e}",
    "Could you tell me the result of {e}?",
    "Do you know what {e} is?",
    "What does {e} make?",
    "What does {e} equal?",
    "{e} please",
    "Quick question: {e}?",
    "Evaluate {e}.",
    "Find {e}.",
    "Give me {e}.",
    "My homework says {e}. What is it?",
    "Can you do {e}?",
    "Show me how to compute {e}.",
    "Think step by step: what is {e}?",
    "Explain {e} step by step.",
    "What do I get for {e}?",
    "Result of {e}?",
    "Help me with {e}.",
    "I am stuck at {e}.",
    "What would {e} be?",
    "Please solve {e} for me.",
    "{e} is how much?",
    "Let's do {e}.",
    "Check this one: {e}",
    "The next task is {e}.",
    "Figure out {e}.",
    "How do I work out {e}?",
};

static const char *const by_words[SUM_KINDS][14] = {
    [SUM_ADD] = {"What is {a} plus {b}?", "{a} plus {b}", "Add {a} and {b}.", "Please add {a} and {b}.",
                 "add {a} to {b}", "What is the sum of {a} and {b}?", "The sum of {a} and {b}?",
                 "How much is {a} plus {b}?", "Can you add {a} and {b}?", "what do you get when you add {a} and {b}",
                 "I have {a} and get {b} more. How much is that?", "Sum up {a} and {b}.", "{a} and {b} together?",
                 "Increase {a} by {b}."},
    [SUM_SUBTRACT] = {"What is {a} minus {b}?", "{a} minus {b}", "Subtract {b} from {a}.", "Take {b} away from {a}.",
                      "How much is {a} minus {b}?", "What is the difference of {a} and {b}?", "subtract {b} from {a}",
                      "Please subtract {b} from {a}.", "{a} less {b}?", "Decrease {a} by {b}.",
                      "What remains of {a} when {b} is taken away?", "Take {b} off {a}.", "From {a} subtract {b}.",
                      "What is {a} take away {b}?"},
    [SUM_THREE] = {"Add {a}, {b} and {c}.", "What is {a} plus {b} plus {c}?", "What is the sum of {a}, {b} and {c}?",
                   "add {a}, {b}, {c}", "Please add up {a}, {b} and {c}.", "{a} plus {b} plus {c}",
                   "Sum of {a}, {b} and {c}?", "How much are {a}, {b} and {c} together?", "Add up {a}, {b}, {c}.",
                   "What do {a}, {b} and {c} make?", "Total of {a}, {b} and {c}?", "Put {a}, {b} and {c} together.",
                   "What is the total of {a}, {b} and {c}?", "Can you add {a}, {b} and {c}?"},
    [SUM_MULTIPLY] = {"What is {a} times {b}?", "{a} times {b}", "Multiply {a} by {b}.", "Multiply {a} and {b}.",
                      "How much is {a} times {b}?", "What is the product of {a} and {b}?", "multiply {a} with {b}",
                      "The product of {a} and {b}?", "{a} multiplied by {b}?", "Please multiply {a} by {b}.",
                      "What is {a} multiplied by {b}?", "How many are {a} times {b}?", "Take {a} times {b}.",
                      "Can you multiply {a} and {b}?"},
    [SUM_DIVIDE] = {"What is {a} divided by {b}?", "Divide {a} by {b}.", "{a} divided by {b}",
                    "How much is {a} divided by {b}?", "How often does {b} go into {a}?", "Please divide {a} by {b}.",
                    "What is the quotient of {a} and {b}?", "How many times does {b} fit into {a}?", "{a} over {b}?",
                    "Can you divide {a} by {b}?", "divide {a} by {b}", "Split {a} into {b} equal parts.",
                    "Share {a} among {b}.", "What do I get when I divide {a} by {b}?"},
};

void sum_ask(buffer *out, const sum *s, draw *d, bool *wants_steps)
{
    slots v;
    buffer e = {0};
    slots_clear(&v);
    if (draw_chance(d, 0.35)) {
        for (int i = 0; i < 3; i++) slots_number(&v, (char)('a' + i), s->x[i]);
        fill(out, draw_one(d, by_words[s->kind], 14), &v);
        *wants_steps = false;
        return;
    }
    bool spaced = draw_chance(d, 0.6);
    sum_expression(&e, s, spaced, draw_chance(d, 0.7) ? '*' : 'x');
    slots_text(&v, 'e', text_of(&e));
    const char *pattern = DRAW(d, by_expression);
    *wants_steps = strstr(pattern, "step") || strstr(pattern, "Show") || strstr(pattern, "How do");
    fill(out, pattern, &v);
    buffer_free(&e);
}
