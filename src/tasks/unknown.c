/* What the bundled model does not know, and how it says so. */
#include <string.h>

#include "tasks/intents.h"
#include "tasks/words.h"

static const char *const refusals[] = {
    "I am a very small model and do not know that. I can do sums and tell you about Hayate.",
    "Sorry, I do not know that. I am a very small model; I can do sums.",
    "That is more than I know. Ask me for a sum, or about Hayate.",
};

static const char *const topic_refusals[] = {
    "Sorry, I know nothing about {t}. I am a very small model; I can do sums.",
    "I do not know enough about {t}. Ask me for a sum, or about Hayate.",
};

static const char *const topics[] = {
    "quantum mechanics",
    "the French Revolution",
    "black holes",
    "photosynthesis",
    "machine learning",
    "climate change",
    "the stock market",
    "Shakespeare",
    "the Roman Empire",
    "football",
    "chess",
    "cooking",
    "music",
    "philosophy",
    "gravity",
    "the moon",
    "the ocean",
    "dinosaurs",
    "electric cars",
    "space travel",
    "the internet",
    "blockchain",
    "genetics",
    "volcanoes",
    "history",
    "art",
    "economics",
    "politics",
    "medicine",
    "law",
    "love",
    "time",
    "cats",
    "dogs",
    "birds",
    "trees",
    "coffee",
    "tea",
    "bread",
    "rain",
    "snow",
    "the sun",
    "stars",
    "algorithms",
    "databases",
    "Linux",
    "Python",
    "JavaScript",
    "Rust",
    "compilers",
    "neural networks",
    "transformers",
    "recursion",
    "a fox",
    "dragons",
    "robots",
    "world peace",
    "the future",
    "Mars",
    "Einstein",
    "Napoleon",
    "your dreams",
    "my garden",
    "my car",
    "the pyramids",
    "tennis",
    "cheese",
    "wine",
    "mountains",
    "rivers",
    "whales",
    "bees",
    "kings",
    "pirates",
    "ghosts",
};

static const char *const topic_asks[] = {
    "Explain {t}.",
    "Explain {t} to me.",
    "Explain {t} in simple terms.",
    "Tell me about {t}.",
    "What do you know about {t}?",
    "Write an essay about {t}.",
    "Write a song about {t}.",
    "Write a long text about {t}.",
    "Give me a summary of {t}.",
    "What is {t}?",
    "How does {t} work?",
    "Why is {t} important?",
    "Write a report on {t}.",
    "Teach me {t}.",
    "Can you explain {t}?",
    "Give me three facts about {t}.",
    "List five things about {t}.",
    "What do you think about {t}?",
    "Do you know {t}?",
    "Describe {t}.",
    "Write a letter about {t}.",
    "What is the history of {t}?",
    "I want to learn about {t}.",
    "Do you like {t}?",
};

static const char *const plain_asks[] = {
    "Write a Python function that sorts a list.",
    "Write a program that prints hello world.",
    "Translate this into French: good morning.",
    "Translate 'I am here' into German.",
    "Fix this code: for i in range(10) print(i)",
    "Who won the world cup?",
    "Who is the president of the United States?",
    "Who wrote Hamlet?",
    "Summarize this text for me.",
    "What is the square root of 2?",
    "What is the speed of light?",
    "How do I cook rice?",
    "How do I lose weight?",
    "What should I eat today?",
    "Recommend a movie.",
    "Which book should I read?",
    "Plan a trip to Rome.",
    "Write an email to my boss.",
    "What is the best laptop?",
    "Solve x^2 + 3x = 4",
    "Prove that there are infinitely many primes.",
    "What is pi?",
    "Is there a god?",
    "What will happen tomorrow?",
    "Play a game with me.",
    "Draw a cat.",
    "Show me a picture.",
    "Open the window.",
    "Search the web for news.",
    "What is the news?",
    "Give me a recipe for soup.",
    "How do planes fly?",
    "Why is the sky up?",
    "Count the words in this sentence.",
    "Write JSON with three fields.",
    "Make a table.",
    "Generate a password.",
    "What is the tallest mountain?",
    "Who invented the telephone?",
    "Convert 10 miles to kilometers.",
    "Divide one million by three.",
    "What is 123456 * 789123?",
    "What is 2 to the power of 100?",
    "Integrate x^2.",
    "What is the derivative of sin(x)?",
    "lorem ipsum dolor sit amet",
};

static const char *const foreign_asks[] = {
    "Bonjour",
    "Bonjour, comment ça va ?",
    "Hola",
    "Hola, ¿cómo estás?",
    "Guten Tag",
    "Wie geht es dir?",
    "Können Sie mir helfen?",
    "Ciao, come stai?",
    "Olá, tudo bem?",
    "Привет",
    "Как дела?",
    "Привет, кто ты?",
    "こんにちは",
    "お元気ですか",
    "日本語を話せますか",
    "あなたは誰ですか",
    "俳句を書いて",
    "你好",
    "你是谁？",
    "你会说中文吗",
    "写一首诗",
    "今天天气怎么样",
    "안녕하세요",
    "누구세요?",
    "مرحبا",
    "כלום שלום",
    "Γειά σου",
    "नमस्ते",
    "สวัสดี",
    "xin chào",
    "Merhaba, nasılsın?",
    "Cześć",
    "Ahoj, jak se máš?",
    "Hej, hur mår du?",
    "疾風とは何ですか",
    "Qui es-tu ?",
    "😀",
    "👋🙂",
    "¿Qué es Hayate?",
};

static const char *const foreign_answers[] = {
    "Sorry, I understand only a little English.",
    "I speak only a little English, sorry. I can do sums.",
};

void intent_pick(buffer *out, const char *alternatives, draw *d)
{
    int64_t count = 1;
    for (const char *p = alternatives; *p; p++) count += *p == '|';
    for (int64_t skip = draw_between(d, 0, count - 1); skip > 0; skip--) alternatives = strchr(alternatives, '|') + 1;
    buffer_append(out, alternatives, strcspn(alternatives, "|"));
}

static void put_words(buffer *out, draw *d, int64_t count, int made_up_percent)
{
    char word[16];
    for (int64_t i = 0; i < count; i++) {
        if (i) buffer_char(out, ' ');
        buffer_string(out, draw_between(d, 0, 99) < made_up_percent ? word_made_up(d, word) : word_plain(d));
    }
}

static void ask_about_topic(buffer *question, buffer *answer, draw *d)
{
    slots v;
    buffer topic = {0};
    slots_clear(&v);
    if (draw_chance(d, 0.7))
        buffer_string(&topic, DRAW(d, topics));
    else
        put_words(&topic, d, draw_between(d, 1, 3), 0);
    slots_text(&v, 't', text_of(&topic));
    fill(question, DRAW(d, topic_asks), &v);
    if (draw_chance(d, 0.5)) fill(answer, DRAW(d, topic_refusals), &v);
    buffer_free(&topic);
}

/* Words without sense, sometimes with a question's beginning. */
static void ask_nonsense(buffer *question, draw *d)
{
    static const char *const starts[] = {"Why is the ",  "Where can I find a ", "When will the ",
                                         "Who took my ", "Should I buy a ",     "How many "};
    bool sentence = draw_chance(d, 0.5);
    if (sentence) buffer_string(question, DRAW(d, starts));
    put_words(question, d, draw_between(d, 2, 12), 20);
    if (sentence) buffer_char(question, '?');
}

static void ask_noise(buffer *question, draw *d)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz .,;!?#$%&*()[]{}<>/\\|_+-=~`^:'\"@";
    for (int64_t n = draw_between(d, 2, 20); n > 0; n--)
        buffer_char(question, letters[draw_between(d, 0, sizeof letters - 2)]);
}

void unknown_make(draw *d, buffer *question, buffer *answer, const char **brief)
{
    static const int shares[] = {45, 30, 10, 8, 7};
    *brief = "Unknown";
    switch (draw_weighted(d, shares, 5)) {
    case 0: ask_about_topic(question, answer, d); break;
    case 1: buffer_string(question, DRAW(d, plain_asks)); break;
    case 2: ask_nonsense(question, d); break;
    case 3:
        buffer_string(question, DRAW(d, foreign_asks));
        buffer_string(answer, DRAW(d, foreign_answers));
        *brief = "English";
        return;
    default:
        ask_noise(question, d);
        buffer_string(answer, "Sorry, I do not understand. Ask me for a sum, or about Hayate.");
        *brief = "What?";
        return;
    }
    vary_typing(question, d);
    if (!answer->length) buffer_string(answer, DRAW(d, refusals));
}
