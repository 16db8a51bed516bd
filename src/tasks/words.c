#include "tasks/words.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
    "Anna", "Tom",   "Maria", "Ben",   "Yuki",   "Omar",  "Lena",  "Paul",  "Mei",  "Jack",  "Nora",  "Ivan",   "Sara",
    "Leo",  "Aiko",  "Max",   "Emma",  "Noah",   "Olga",  "Hugo",  "Rosa",  "Ken",  "Lucy",  "Ali",   "Eva",    "Sam",
    "Mia",  "Adam",  "Jane",  "Bob",   "Alice",  "David", "Julia", "Peter", "Kate", "John",  "Mary",  "Luis",   "Chloe",
    "Hana", "Finn",  "Iris",  "Oscar", "Zoe",    "Karl",  "Nina",  "Theo",  "Vera", "Amir",  "Bella", "Carlos", "Dana",
    "Elif", "Felix", "Grace", "Henry", "Ines",   "Jonas", "Kai",   "Lara",  "Milo", "Nadia", "Owen",  "Priya",  "Quinn",
    "Rita", "Simon", "Tara",  "Uma",   "Victor", "Wendy", "Yara",  "Zack",  "Ruth", "Toby",  "Ella",  "Liam",   "Sofia",
};

static const char *const things[] = {
    "apples",  "books",   "coins",   "stones",   "cards",   "stamps",   "eggs",    "pens",       "shells",    "cakes",
    "balls",   "flowers", "keys",    "oranges",  "marbles", "tickets",  "boxes",   "letters",    "photos",    "cookies",
    "pencils", "buttons", "candles", "stickers", "beads",   "bottles",  "plates",  "toys",       "ribbons",   "nuts",
    "pears",   "lemons",  "plums",   "melons",   "carrots", "onions",   "muffins", "sandwiches", "notebooks", "erasers",
    "badges",  "tiles",   "bricks",  "seeds",    "leaves",  "feathers", "magnets", "postcards",  "cups",      "spoons",
};

static const char *const plain[] = {
    "apple",   "river",  "stone",    "cloud",   "house",   "window",  "table",  "garden",  "music",   "paper",
    "summer",  "winter", "silver",   "golden",  "quiet",   "little",  "happy",  "green",   "orange",  "yellow",
    "purple",  "flower", "mountain", "bridge",  "castle",  "forest",  "island", "market",  "morning", "evening",
    "number",  "letter", "story",    "animal",  "horse",   "tiger",   "rabbit", "chicken", "butter",  "sugar",
    "water",   "coffee", "bread",    "cheese",  "lemon",   "banana",  "cherry", "pepper",  "salt",    "spoon",
    "knife",   "plate",  "bottle",   "basket",  "candle",  "mirror",  "carpet", "curtain", "pillow",  "blanket",
    "jacket",  "button", "pocket",   "ticket",  "station", "engine",  "rocket", "planet",  "comet",   "thunder",
    "breeze",  "valley", "desert",   "ocean",   "harbor",  "anchor",  "sailor", "captain", "doctor",  "teacher",
    "student", "farmer", "painter",  "singer",  "writer",  "soldier", "friend", "mother",  "father",  "sister",
    "brother", "child",  "baby",     "king",    "queen",   "prince",  "wizard", "dragon",  "ghost",   "shadow",
    "secret",  "answer", "question", "problem", "reason",  "chance",  "moment", "minute",  "second",  "circle",
    "square",  "corner", "center",   "middle",  "border",  "north",   "south",  "east",    "west",    "red",
    "blue",    "black",  "white",    "brown",   "gray",
};

static const char *const syllables[] = {
    "ka",  "lo",  "mi",  "ra",  "to",  "ne",  "su",  "vi",  "bo",  "da",  "el",  "an",  "or",  "zi",
    "ta",  "ru",  "gel", "fin", "mar", "dor", "len", "pax", "ber", "cas", "dul", "fir", "gan", "hol",
    "jen", "kor", "lim", "mon", "nul", "pir", "qua", "ros", "sil", "tem", "ul",  "vak", "wes", "yor",
};

static const char *const systems[] = {
    "You are a helpful assistant.",
    "You are a helpful, respectful and honest assistant.",
    "You are a helpful AI assistant.",
    "Be helpful.",
    "You are an assistant.",
    "You are a friendly assistant.",
    "You are a math tutor.",
    "You are a careful calculator.",
    "Help the user.",
    "You are a helpful assistant that answers questions.",
    "Answer the user's questions.",
    "You are a knowledgeable expert.",
    "Be concise.",
    "Be brief.",
    "Answer briefly.",
    "Keep your answers short.",
    "Answer in English.",
    "You answer politely.",
    "You are a coding assistant.",
    "Please be kind.",
    "You are ChatGPT, a large language model.",
    "Respond to every message.",
    "Think carefully.",
    "Use plain language.",
    "You are a customer support agent.",
    "Do your best.",
    "You are an AI.",
};

const char *word_name(draw *d)
{
    return DRAW(d, names);
}

const char *word_thing(draw *d)
{
    return DRAW(d, things);
}

const char *word_plain(draw *d)
{
    return DRAW(d, plain);
}

const char *word_made_up(draw *d, char out[16])
{
    out[0] = 0;
    for (int64_t n = draw_between(d, 2, 3); n > 0; n--) strcat(out, DRAW(d, syllables));
    return out;
}

const char *word_title(const char *word, char out[32])
{
    snprintf(out, 32, "%s", word);
    out[0] = (char)toupper((unsigned char)out[0]);
    return out;
}

const char *word_system(draw *d)
{
    return DRAW(d, systems);
}
