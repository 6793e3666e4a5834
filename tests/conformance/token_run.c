/* A tokenizer on texts of standard input, for tokens.py, which compares: a line is MAX TRUNCATION SPECIAL TEXT PAIR, the texts in
 * hexadecimal ("-": none), and gets a line with the numbers, the types, the text decoded with and without special
 * tokens, each behind a bar.
 *     token_run wordpiece vocab.txt [cased] | bpe vocab.json merges.txt [space] | open tokenizer.json */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>
#include <reprise_text.h>

enum { ROOM = 1 << 16 };

static void from_hex(char *text) {
    char *to = text;
    if (strcmp(text, "-") == 0) *text = 0;
    for (const char *p = text; p[0] && p[1]; p += 2) {
        const char pair[3] = {p[0], p[1], 0};
        *to++ = (char)strtol(pair, NULL, 16);
    }
    *to = 0;
}

static void put_decoded(const rp_tokenizer *t, const int64_t *ids, size_t n, bool skip) {
    static char text[16 * ROOM];
    const size_t length = rp_tokenizer_decode(t, ids, n, skip, text, sizeof text);
    putchar('|');
    for (size_t i = 0; i < length; i++) printf("%02x", (unsigned char)text[i]);
}

int main(int argc, char **argv) {
    static char line[4 * ROOM], text[2 * ROOM], pair[2 * ROOM];
    static int64_t ids[ROOM], types[ROOM];
    const char *kind = argc > 2 ? argv[1] : "";
    rp_tokenizer *t = strcmp(kind, "wordpiece") == 0
                          ? rp_tokenizer_wordpiece(argv[2], RP_OPTIONS(rp_wordpiece_options, .keep_case = argc > 3))
                      : strcmp(kind, "bpe") == 0 && argc > 3 ? rp_tokenizer_bpe(argv[2], argv[3], argc > 4)
                      : strcmp(kind, "open") == 0            ? rp_tokenizer_open(argv[2])
                                                             : NULL;
    if (!t) return fprintf(stderr, "usage: token_run wordpiece VOCAB | bpe VOCAB MERGES | open FILE\n"), 2;
    while (!rp_failed() && fgets(line, sizeof line, stdin)) {
        unsigned most, truncation, special;
        if (sscanf(line, "%u %u %u %s %s", &most, &truncation, &special, text, pair) != 5) return 2;
        const bool one = strcmp(pair, "-") == 0;
        from_hex(text);
        from_hex(pair);
        const rp_encode_options o = {.struct_size = sizeof o,
                                     .no_special = !special,
                                     .max_tokens = most,
                                     .truncation = (rp_truncation)truncation};
        const size_t n = rp_tokenizer_encode(t, text, one ? NULL : pair, &o, ids, types, ROOM);
        if (n > ROOM) return 2;
        for (size_t i = 0; i < n; i++) printf("%lld ", (long long)ids[i]);
        putchar('|');
        for (size_t i = 0; i < n; i++) printf("%lld ", (long long)types[i]);
        put_decoded(t, ids, n, false);
        put_decoded(t, ids, n, true);
        putchar('\n');
    }
    if (rp_failed()) fprintf(stderr, "token_run: %s\n", rp_error_message());
    rp_tokenizer_release(t);
    return rp_failed();
}
