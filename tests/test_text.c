/* Tokenizers: WordPiece and byte-level BPE on small vocabularies, what is put around texts, truncation, batches, the way back, and files that
   are not what they should be. Against Hugging Face's on random texts: tests/conformance/tokens.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_text.h>

#include "core/unicode.h"
#include "support/in_scope.h"

/* Without utf8proc texts beyond ASCII are refused, and their tests pass over them. */
static bool has_unicode(void) {
    const bool has = rp__unicode_need("a test") == RP_OK;
    (void)rp_error_take();
    return has;
}

static const char *put_file(const char *name, const char *text) {
    FILE *f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    return name;
}

static void encodes(const rp_tokenizer *t, const char *text, const char *pair, const rp_encode_options *o,
                    const char *want) {
    int64_t ids[64], types[64];
    char have[512] = "";
    const size_t n = rp_tokenizer_encode(t, text, pair, o, ids, types, 64);
    assert_false(rp_failed());
    for (size_t i = 0, at = 0; i < n; i++)
        at += (size_t)snprintf(have + at, sizeof have - at, "%s%lld%s", i ? " " : "", (long long)ids[i],
                               types[i] ? "'" : "");
    assert_string_equal(have, want);
}

static void decodes(const rp_tokenizer *t, const int64_t *ids, size_t n, bool skip, const char *want) {
    char text[256];
    assert_int_equal(rp_tokenizer_decode(t, ids, n, skip, text, sizeof text), strlen(want));
    assert_string_equal(text, want);
}

static void fails(rp_status status, const char *part, const char *second) {
    assert_true(rp_failed());
    if (!strstr(rp_error_message(), part) || !strstr(rp_error_message(), second))
        fail_msg("message: %s\nwithout: %s, %s", rp_error_message(), part, second);
    assert_int_equal(rp_error_take(), status);
}

/* 0 [PAD] 1 [UNK] 2 [CLS] 3 [SEP] 4 [MASK] 5 play 6 ##ing 7 ##ed 8 , 9 the 10 cafe 11 ##s 12 U+6C34 13 ' 14 t 15 don 16 I */
static const char vocab[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n##ed\n,\nthe\ncafe\n##s\n\xE6\xB0\xB4\n'\nt\ndon\nI\n";

static rp_tokenizer *small(const rp_wordpiece_options *o) {
    rp_tokenizer *t = rp_tokenizer_wordpiece(put_file("test_text_vocab.txt", vocab), o);
    assert_false(rp_failed());
    remove("test_text_vocab.txt");
    return t;
}

static void wordpiece(void **state) {
    (void)state;
    rp_tokenizer *t = small(NULL);
    assert_int_equal(rp_tokenizer_count(t), 17);
    assert_int_equal(rp_tokenizer_id(t, "##ing"), 6);
    assert_int_equal(rp_tokenizer_id(t, "absent"), -1);
    assert_string_equal(rp_tokenizer_token(t, 10), "cafe");
    assert_null(rp_tokenizer_token(t, 17));
    encodes(t, "PLAYing,played", NULL, NULL, "2 5 6 8 5 7 3");
    encodes(t, "the plays", "playing", NULL, "2 9 5 11 3 5' 6' 3'");
    encodes(t, "playful don't \t\r\nI", NULL, NULL, "2 1 15 13 14 1 3"); /* small i is no token */
    encodes(t, "", NULL, NULL, "2 3");
    encodes(t, "the [MASK], [mask]", NULL, RP_OPTIONS(rp_encode_options, .no_special = true), "9 4 8 1 1 1");
    char longest[120];
    memset(longest, 'a', 101);
    longest[101] = 0;
    encodes(t, longest, NULL, NULL, "2 1 3");
    rp_tokenizer *cased = small(RP_OPTIONS(rp_wordpiece_options, .keep_case = true));
    encodes(cased, "I play The", NULL, NULL, "2 16 5 1 3");
    rp_tokenizer_release(cased);
    if (has_unicode()) {
        encodes(t, "caf\xC3\xA9s Cafe\xCC\x81", NULL, NULL, "2 10 11 10 3");  /* one character, and a mark of its own */
        encodes(t, "the\xE6\xB0\xB4the", NULL, NULL, "2 9 12 9 3");           /* a Chinese character is a word */
        encodes(t, "the\xE2\x80\x8B\xC2\xA0play\xFF", NULL, NULL, "2 9 5 3"); /* no width, no break, no UTF-8 */
        encodes(t, "play\xE3\x80\x81the", NULL, NULL, "2 5 1 9 3");           /* a comma of another script */
        rp_tokenizer *plain = small(RP_OPTIONS(rp_wordpiece_options, .no_accents = RP_FALSE, .whole_chinese = true));
        encodes(plain, "caf\xC3\xA9 the\xE6\xB0\xB4", NULL, NULL, "2 1 1 3");
        rp_tokenizer_release(plain);
    }
    const int64_t ids[] = {2, 9, 5, 6, 8, 15, 13, 14, 3};
    decodes(t, ids, 9, true, "the playing, don ' t");
    decodes(t, ids, 3, false, "[CLS] the play");
    char two[4];
    assert_int_equal(rp_tokenizer_decode(t, ids + 1, 2, false, two, sizeof two), 8);
    assert_string_equal(two, "the");
    rp_tokenizer_decode(t, (const int64_t[]){9, 17}, 2, false, NULL, 0);
    fails(RP_ERROR_INVALID_ARGUMENT, "number 1, 17", "of no token");
    rp_tokenizer_release(t);
}

static void truncation(void **state) {
    (void)state;
    rp_tokenizer *t = small(NULL);
    const char *a = "the the the the the", *b = "play play play";
#define CUT(most, how) RP_OPTIONS(rp_encode_options, .max_tokens = most, .truncation = how)
    encodes(t, a, NULL, CUT(4, RP_TRUNCATION_LONGEST), "2 9 9 3");
    encodes(t, a, b, CUT(9, RP_TRUNCATION_LONGEST), "2 9 9 9 3 5' 5' 5' 3'");
    encodes(t, a, b, CUT(8, RP_TRUNCATION_LONGEST), "2 9 9 9 3 5' 5' 3'");
    encodes(t, a, b, CUT(8, RP_TRUNCATION_FIRST), "2 9 9 3 5' 5' 5' 3'");
    encodes(t, a, b, CUT(9, RP_TRUNCATION_SECOND), "2 9 9 9 9 9 3 5' 3'");
    encodes(t, a, b, CUT(11, RP_TRUNCATION_ERROR), "2 9 9 9 9 9 3 5' 5' 5' 3'");
    assert_int_equal(rp_tokenizer_encode(t, a, b, CUT(10, RP_TRUNCATION_ERROR), NULL, NULL, 0), 0);
    fails(RP_ERROR_INVALID_ARGUMENT, "8 tokens", "7 have room");
    assert_int_equal(rp_tokenizer_encode(t, a, b, CUT(7, RP_TRUNCATION_SECOND), NULL, NULL, 0), 0);
    fails(RP_ERROR_INVALID_ARGUMENT, "the second text has 3 tokens", "4 would have to go");
    assert_int_equal(rp_tokenizer_encode(t, a, b, CUT(2, RP_TRUNCATION_LONGEST), NULL, NULL, 0), 0);
    fails(RP_ERROR_INVALID_ARGUMENT, "max_tokens is 2", "3 are put around");
    rp_tokenizer_release(t);
}

static void batches(void **state) {
    (void)state;
    rp_tokenizer *t = small(NULL);
    const char *const texts[] = {"the", "playing, the"}, *const pairs[] = {"play", ","};
    rp_tensor *ids = NULL, *types = NULL, *mask = NULL;
    int64_t have[3][16];
    OK(rp_tokenizer_batch(t, texts, NULL, 2, NULL, &ids, NULL, &mask));
    assert_int_equal(rp_size(ids, 0), 2);
    assert_int_equal(rp_size(ids, 1), 6);
    OK(rp_to_host(ids, have[0], 96));
    OK(rp_to_host(mask, have[1], 96));
    static const int64_t want_ids[] = {2, 9, 3, 0, 0, 0, 2, 5, 6, 8, 9, 3},
                         want_mask[] = {1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1};
    assert_memory_equal(have[0], want_ids, 96);
    assert_memory_equal(have[1], want_mask, 96);
    OK(rp_tokenizer_batch(t, texts, pairs, 1,
                          RP_OPTIONS(rp_encode_options, .pad_to = 8, .pad_left = true, .pad_token = "[MASK]"), &ids,
                          &types, &mask));
    OK(rp_to_host(ids, have[0], 64));
    OK(rp_to_host(types, have[1], 64));
    OK(rp_to_host(mask, have[2], 64));
    static const int64_t left[3][8] = {{4, 4, 4, 2, 9, 3, 5, 3}, {0, 0, 0, 0, 0, 0, 1, 1}, {0, 0, 0, 1, 1, 1, 1, 1}};
    for (int i = 0; i < 3; i++) assert_memory_equal(have[i], left[i], 64);
    assert_int_equal(
        rp_tokenizer_batch(t, texts, NULL, 2, RP_OPTIONS(rp_encode_options, .pad_token = "none"), &ids, NULL, NULL),
        RP_ERROR_INVALID_ARGUMENT);
    fails(RP_ERROR_INVALID_ARGUMENT, "no none", "pad with");
    const char *const missing[] = {"the", NULL};
    assert_int_equal(rp_tokenizer_batch(t, missing, NULL, 2, NULL, &ids, NULL, NULL), RP_ERROR_INVALID_ARGUMENT);
    fails(RP_ERROR_INVALID_ARGUMENT, "text 1", "NULL");
    OK(rp_tokenizer_batch(t, NULL, NULL, 0, NULL, &ids, NULL, NULL));
    assert_int_equal(rp_numel(ids), 0);
    rp_tokenizer_release(t);
}

/* ---------------------------------------------------------------- byte-level BPE */

/* Every byte, then what merges make of "low", "lower", " new": numbers 256 and up, <|endoftext|> last. */
static rp_tokenizer *bytes(bool prefix_space, const char *merges) {
    FILE *f = fopen("test_text_vocab.json", "wb");
    assert_non_null(f);
    fputs("{", f);
    for (int b = 0, n = 256; b < 256; b++) { /* printable ones are themselves, the others U+0100 and up */
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        fprintf(f, "\"\\u%04x\": %d, ", itself ? b : n, b);
        n += !itself;
    }
    fputs(
        "\"lo\": 256, \"low\": 257, \"er\": 258, \"lower\": 259, \"\\u0120n\": 260, \"ew\": 261, \"\\u0120new\": 262, "
        "\"<|endoftext|>\": 263}",
        f);
    assert_int_equal(fclose(f), 0);
    put_file("test_text_merges.txt", merges);
    rp_tokenizer *t = rp_tokenizer_bpe("test_text_vocab.json", "test_text_merges.txt", prefix_space);
    remove("test_text_vocab.json");
    remove("test_text_merges.txt");
    return t;
}
static const char merges[] = "#version: 0.2\nl o\nlo w\ne r\nlow er\n\xC4\xA0 n\ne w\n\xC4\xA0n ew\n";

static void byte_level(void **state) {
    (void)state;
    rp_tokenizer *t = bytes(false, merges);
    assert_false(rp_failed());
    encodes(t, "lower new", NULL, NULL, "259 262");
    encodes(t, "low\n\n  new", NULL, NULL, "257 10 10 32 262"); /* all blanks but the last one are a word */
    encodes(t, "lows'low", NULL, NULL, "257 115 39 257");       /* 's with a letter behind it is none */
    encodes(t, "low'll ", NULL, NULL, "257 39 108 108 32");
    encodes(t, "lo<|endoftext|>lo", "er", NULL, "256 263 256 258'");
    const int64_t ids[] = {259, 262, 263};
    decodes(t, ids, 3, false, "lower new<|endoftext|>");
    decodes(t, ids, 3, true, "lower new");
    if (has_unicode()) {
        encodes(t, "\xC3\xA9lo", NULL, NULL, "195 169 256");
        encodes(t, "\xFFlo", NULL, NULL, "255 256"); /* no UTF-8: taken as it is */
        decodes(t, (const int64_t[]){195, 169}, 2, false, "\xC3\xA9");
    }
    /* A word of a million letters takes no more than its length times a logarithm. */
    enum { LONG = 1 << 20 };
    char *word = malloc(LONG + 1);
    assert_non_null(word);
    for (int i = 0; i < LONG; i++) word[i] = "low"[i % 3];
    word[LONG] = 0;
    assert_int_equal(rp_tokenizer_encode(t, word, NULL, NULL, NULL, NULL, 0), LONG / 3 + 1);
    free(word);
    rp_tokenizer_release(t);
    t = bytes(true, merges);
    encodes(t, "new new", NULL, NULL, "262 262");
    const char *const texts[] = {"new", "new new"};
    rp_tensor *none = NULL;
    assert_int_equal(rp_tokenizer_batch(t, texts, NULL, 2, NULL, &none, NULL, NULL), RP_ERROR_INVALID_ARGUMENT);
    fails(RP_ERROR_INVALID_ARGUMENT, "[PAD] or <pad>", "pad with");
    rp_tokenizer_release(t);
}

/* ---------------------------------------------------------------- files that are not what they should be */

static void bad_vocabularies(void **state) {
    (void)state;
    static const struct {
        const char *text, *line, *why;
    } bad[] = {
        {"", "no tokens", ""},
        {"[UNK]\n[CLS]\n[SEP]\na\n[CLS]\n", "line 5, byte 20", "comes twice"},
        {"[UNK]\n[CLS]\n[SEP]\n\xFFx\n", "line 4, byte 18", "not UTF-8"},
        {"[UNK]\n[SEP]\na\n", "no [CLS]", ""},
        {"a\nb\n", "no [UNK]", ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rp_tokenizer *t = rp_tokenizer_wordpiece(put_file("test_text_bad.txt", bad[i].text), NULL);
        fails(RP_ERROR_IO, bad[i].line, bad[i].why);
        rp_tokenizer_release(t);
    }
    remove("test_text_bad.txt");
    rp_tokenizer *t = rp_tokenizer_wordpiece("/nonexistent/vocab.txt", NULL);
    fails(RP_ERROR_IO, "/nonexistent/vocab.txt", "");
    assert_int_equal(rp_tokenizer_encode(t, "a", NULL, NULL, NULL, NULL, 0), 0); /* every call on it fails */
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    rp_tokenizer_release(t);

    static const struct {
        const char *text, *line, *why;
    } bad_merges[] = {
        {"#version: 0.2\nl o\nlo\n", "line 3, byte 18", "two tokens"},
        {"l o\nlo w w\n", "line 2, byte 4", "two tokens"},
        {"l q\n", "line 1", "what it makes is no token"},
        {"lx o\n", "line 1", "first part is no token"},
        {"l o\nlo w\nl o\n", "line 3, byte 9", "comes twice"},
    };
    for (size_t i = 0; i < sizeof bad_merges / sizeof *bad_merges; i++) {
        rp_tokenizer_release(bytes(false, bad_merges[i].text));
        fails(RP_ERROR_IO, bad_merges[i].line, bad_merges[i].why);
    }
}

#define MODEL(more) "\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"[UNK]\": 0, \"the\": 1, \"[X]\": 2" more "}}"
#define CUTS ", \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}"

static void documents(void **state) {
    (void)state;
    rp_tokenizer *t = rp_tokenizer_open(put_file(
        "test_text.json", "{\"added_tokens\": [{\"id\": 2, \"content\": \"[X]\", \"special\": true, \"lstrip\": true}, "
                          "{\"id\": 7, \"content\": \"The End\", \"special\": false}], "
                          "\"normalizer\": {\"type\": \"BertNormalizer\"}, \"post_processor\": {\"type\": "
                          "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\", \"type_id\": 1}}, "
                          "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": \"B\", "
                          "\"type_id\": 1}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"special_tokens\": "
                          "{\"x\": {\"id\": \"x\", \"ids\": [2, 1], \"tokens\": []}}}, " MODEL("") CUTS "}"));
    if (!has_unicode()) { /* a token that is looked for in cleaned texts must be cleaned itself */
        fails(RP_ERROR_UNAVAILABLE, "utf8proc", "");
        rp_tokenizer_release(t);
        return;
    }
    assert_false(rp_failed());
    encodes(t, "the  [X] the end THE END", NULL, NULL, "2' 1' 1 2 7 7");
    encodes(t, "the", "[X]", NULL, "2' 1");
    assert_int_equal(rp_tokenizer_count(t), 8);
    assert_null(rp_tokenizer_token(t, 5));
    decodes(t, (const int64_t[]){1, 7}, 2, false, "the The End");
    rp_tokenizer_release(t);
    static const struct {
        const char *text, *place, *why;
    } bad[] = {
        {"", "not JSON", ""},
        {"{\"model\"", "not JSON: line 1", ""},
        {"[]", "`model`", "none"},
        {"{\"model\": {\"type\": \"Unigram\"}}", "`model`", "Unigram is not served"},
        {"{" MODEL(", \"x\": 1") CUTS "}", "model.vocab.x", "another token"},
        {"{" MODEL(", \"x\": -1") CUTS "}", "model.vocab.x", "below 0"},
        {"{" MODEL(", \"x\": 99999999999") CUTS "}", "model.vocab.x", "above 16777215"},
        {"{" MODEL(", \"x\": 0.5") CUTS "}", "model.vocab.x", "its number is none"},
        {"{" MODEL("") "}", "`pre_tokenizer`", "not served"},
        {"{" MODEL("") CUTS ", \"normalizer\": {\"type\": \"NFKC\"}}", "`normalizer`", "NFKC is not served"},
        {"{" MODEL("") CUTS ", \"normalizer\": {\"type\": \"BertNormalizer\", \"lowercase\": 1}}",
         "normalizer.lowercase", "neither true"},
        {"{" MODEL("") CUTS ", \"added_tokens\": [{\"id\": 5, \"content\": \"the\"}]}", "added_tokens[0]",
         "another id"},
        {"{" MODEL("") CUTS ", \"added_tokens\": [{\"id\": 5}]}", "added_tokens[0]", "no content"},
        {"{" MODEL("") CUTS ", \"decoder\": {\"type\": \"Fuse\"}}", "`decoder`", "Fuse is not served"},
        {"{" MODEL("") CUTS
         ", \"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"the\", 2], \"sep\": [\"the\", 1]}}",
         "post_processor.cls", "no token with its number"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b\"]}}", "model.merges[0]",
         "what it makes"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}", "model.merges[0]",
         "two tokens"},
        {"{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {\"a\": 0}, \"merges\": []}}",
         "model.byte_fallback", "not served"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
         "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x+\"}, \"behavior\": \"Isolated\"}, {\"type\": "
         "\"ByteLevel\"}]}}",
         "`pre_tokenizer`", "neither GPT-2's"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rp_tokenizer_release(rp_tokenizer_open(put_file("test_text.json", bad[i].text)));
        fails(RP_ERROR_IO, bad[i].place, bad[i].why);
    }
    remove("test_text.json");
}

/* Every prefix of a document, and each of its bytes changed, is an error or a tokenizer that works. */
static void torn_documents(void **state) {
    (void)state;
    static const char whole[] = "{\"added_tokens\": [{\"id\": 2, \"content\": \"[X]\", \"special\": true}], " MODEL("")
        CUTS ", \"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"the\", 1], \"sep\": [\"[X]\", 2]}}";
    char text[sizeof whole];
    for (size_t i = 0; i < 2 * sizeof whole; i++) {
        memcpy(text, whole, sizeof whole);
        if (i < sizeof whole)
            text[i] = 0;
        else
            text[i - sizeof whole] ^= (char)(1 << (i % 7));
        text[sizeof whole - 1] = 0;
        rp_tokenizer *t = rp_tokenizer_open(put_file("test_text.json", text));
        if (!rp_failed()) rp_tokenizer_encode(t, "the other [X]", NULL, NULL, NULL, NULL, 0);
        (void)rp_error_take();
        rp_tokenizer_release(t);
    }
    remove("test_text.json");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scope_setup, scope_teardown)
    const struct CMUnitTest tests[] = {
        TEST(wordpiece),        TEST(truncation), TEST(batches),        TEST(byte_level),
        TEST(bad_vocabularies), TEST(documents),  TEST(torn_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
