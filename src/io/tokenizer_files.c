/* Files of tokenizers: vocab.txt, vocab.json with merges.txt, tokenizer.json. Whatever is not understood is an error
   that says where. */
#include "io/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/json.h"
#include "core/unicode.h"
#include "io/file.h"

static const uint64_t FILE_LIMIT = 1u << 30;

typedef char shown[160];
static const char *show(shown out, const char *name) {
    rp__printable(out, sizeof(shown), name);
    return out;
}

static rp__file *map(const char *path) {
    rp__file *f = rp__file_map("tokenizer", path);
    shown name;
    if (!f || f->bytes <= FILE_LIMIT) return f;
    (void)rp__fail(RP_ERROR_IO, "tokenizer: %s: it has more than %llu bytes", show(name, path),
                   (unsigned long long)FILE_LIMIT);
    rp__file_release(f);
    return NULL;
}

/* ---------------------------------------------------------------- lines */

typedef struct line {
    const char *text;
    size_t bytes, number, offset; /* number from 1, offset of its first byte */
} line;

/* The next line without its end; false behind the last one. Starts with *l all zero. */
static bool next_line(const rp__file *f, line *l) {
    const char *data = (const char *)f->data;
    const size_t at = l->number ? (size_t)(l->text - data) + l->bytes : 0;
    size_t begin = at;
    if (l->number) {
        if (begin < f->bytes && data[begin] == '\r') begin++;
        if (begin < f->bytes && data[begin] == '\n') begin++;
    }
    if (begin >= f->bytes) return false;
    const char *end = memchr(data + begin, '\n', (size_t)f->bytes - begin);
    size_t n = end ? (size_t)(end - data) - begin : (size_t)f->bytes - begin;
    if (n && data[begin + n - 1] == '\r') n--;
    *l = (line){data + begin, n, l->number + 1, begin};
    return true;
}

static rp_status wrong_line(const rp__file *f, const line *l, const char *why) {
    shown name;
    return rp__fail(RP_ERROR_IO, "tokenizer %s: line %zu, byte %zu: %s", show(name, f->name), l->number, l->offset,
                    why);
}

/* NULL, or why a name is none of a token. */
static const char *not_utf8(const char *text, size_t bytes) {
    size_t length;
    for (size_t i = 0; i < bytes; i += length) {
        if (!text[i]) return "it has a NUL";
        if (rp__utf8_read(text + i, bytes - i, &length) == RP__UNICODE_WRONG &&
            (length < 3 || memcmp(text + i, "\xEF\xBF\xBD", 3)))
            return "it is not UTF-8";
    }
    return NULL;
}

/* ---------------------------------------------------------------- vocab.txt */

static rp_status add_special(rp_tokenizer *t, const char *text) {
    const int64_t id = rp__vocab_find(&t->vocab, text, strlen(text));
    rp__added a = {.text = (char *)(uintptr_t)text, .bytes = strlen(text), .id = id, .special = true};
    const char *why = id < 0 ? NULL : rp__added_add(t, a);
    return why ? RP__OOM("a tokenizer") : RP_OK;
}

/* [CLS] A [SEP], and B [SEP] of type 1. */
static rp_status bert_template(rp_tokenizer *t, int64_t cls, int64_t sep) {
    for (int n = 1; n <= 2; n++) {
        rp__template *to = n == 1 ? &t->single : &t->pair;
        RP_TRY(rp__template_add(to, (rp__part){0, cls, 0}));
        RP_TRY(rp__template_add(to, (rp__part){1, 0, 0}));
        RP_TRY(rp__template_add(to, (rp__part){0, sep, 0}));
        if (n == 1) continue;
        RP_TRY(rp__template_add(to, (rp__part){2, 0, 1}));
        RP_TRY(rp__template_add(to, (rp__part){0, sep, 1}));
    }
    return RP_OK;
}

static rp_status text_or_oom(char **place, const char *text) {
    *place = rp__strdup(text);
    return *place ? RP_OK : RP__OOM("a tokenizer");
}

static rp_status vocab_lines(rp_tokenizer *t, const rp__file *f) {
    line l = {0};
    while (next_line(f, &l)) {
        const char *why = not_utf8(l.text, l.bytes);
        if (!why) why = rp__vocab_add(&t->vocab, l.text, l.bytes, (int64_t)l.number - 1);
        if (why) return wrong_line(f, &l, why);
    }
    shown name;
    if (!l.number) return rp__fail(RP_ERROR_IO, "tokenizer %s: it has no tokens", show(name, f->name));
    return RP_OK;
}

rp_status rp__tokenizer_read_vocab_txt(rp_tokenizer *t, const char *path, const rp_wordpiece_options *o) {
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    rp__file *f = map(path);
    if (!f) return rp_error_status();
    rp_status status = vocab_lines(t, f);
    rp__file_release(f);
    RP_TRY(status);
    t->bert = t->clean = t->wordpiece = t->cleanup = true;
    t->chinese = !o->whole_chinese;
    t->lower = !o->keep_case;
    t->no_accents = o->no_accents == RP_UNSET ? t->lower : o->no_accents == RP_TRUE;
    t->longest_word = o->longest_word ? o->longest_word : 100;
    t->decoder = RP__DECODE_WORDPIECE;
    RP_TRY(text_or_oom(&t->prefix, "##"));
    RP_TRY(text_or_oom(&t->decoder_prefix, "##"));
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) RP_TRY(add_special(t, special[i]));
    t->unknown = rp__vocab_find(&t->vocab, "[UNK]", 5);
    const int64_t cls = rp__vocab_find(&t->vocab, "[CLS]", 5), sep = rp__vocab_find(&t->vocab, "[SEP]", 5);
    shown name;
    if (t->unknown < 0 || cls < 0 || sep < 0)
        return rp__fail(RP_ERROR_IO, "tokenizer %s: it has no %s", show(name, path),
                        t->unknown < 0 ? "[UNK]"
                        : cls < 0      ? "[CLS]"
                                       : "[SEP]");
    return bert_template(t, cls, sep);
}

/* ---------------------------------------------------------------- vocab.json, merges.txt */

static rp__json *parse(rp__file *f) {
    shown name;
    char what[200];
    snprintf(what, sizeof what, "tokenizer %s", show(name, f->name));
    return rp__json_parse((const char *)f->data, (size_t)f->bytes, what);
}

static rp_status wrong_member(const char *file, const char *member, const char *why) {
    shown name, at;
    return rp__fail(RP_ERROR_IO, "tokenizer %s: `%s`: %s", show(name, file), show(at, member), why);
}

/* An object of names and numbers. */
static rp_status vocab_object(rp_tokenizer *t, const char *file, const char *member, rp__json *object) {
    void *at = NULL;
    const char *name;
    rp__json *value;
    if (!rp__json_count(object)) return wrong_member(file, member, "it is no map of tokens");
    while (rp__json_next(object, &at, &name, &value)) {
        int64_t id;
        char place[200];
        snprintf(place, sizeof place, "%s.%s", member, name);
        if (!rp__json_integer(value, &id)) return wrong_member(file, place, "its number is none");
        const char *why = rp__vocab_add(&t->vocab, name, strlen(name), id);
        if (why) return wrong_member(file, place, why);
    }
    return RP_OK;
}

static void bytes_of_vocab(rp_tokenizer *t) {
    for (int b = 0; b < 256; b++) {
        char name[4];
        t->of_byte[b] = rp__vocab_find(&t->vocab, name, rp__utf8_write(rp__byte_character((uint8_t)b), name));
    }
}

/* "a b": both parts, or NULL. */
static const char *two_parts(const char *text, size_t bytes, size_t *left) {
    const char *blank = memchr(text, ' ', bytes);
    if (!blank || blank == text || blank + 1 == text + bytes ||
        memchr(blank + 1, ' ', bytes - (size_t)(blank + 1 - text)))
        return NULL;
    *left = (size_t)(blank - text);
    return blank + 1;
}

static rp_status merge_lines(rp_tokenizer *t, const rp__file *f) {
    line l = {0};
    size_t n = 0, left;
    while (next_line(f, &l)) n++;
    RP_TRY(rp__merges_build(t, n));
    for (l = (line){0}; next_line(f, &l);) {
        if (l.number == 1 && l.bytes >= 8 && memcmp(l.text, "#version", 8) == 0) continue;
        const char *right = two_parts(l.text, l.bytes, &left), *why = "it is not two tokens with a blank between them";
        if (right) why = rp__merges_add(t, l.text, left, right, l.bytes - left - 1);
        if (why) return wrong_line(f, &l, why);
    }
    return RP_OK;
}

rp_status rp__tokenizer_read_bpe(rp_tokenizer *t, const char *vocab, const char *merges, bool prefix_space) {
    rp__file *f = map(vocab);
    if (!f) return rp_error_status();
    rp__json *document = parse(f);
    rp_status status = document ? vocab_object(t, vocab, "vocabulary", document) : rp_error_status();
    rp__json_free(document);
    rp__file_release(f);
    RP_TRY(status);
    if (!(f = map(merges))) return rp_error_status();
    status = merge_lines(t, f);
    rp__file_release(f);
    RP_TRY(status);
    bytes_of_vocab(t);
    t->splitter = RP__SPLIT_GPT2;
    t->prefix_space = prefix_space;
    t->decoder = RP__DECODE_BYTES;
    t->unknown = -1;
    return add_special(t, "<|endoftext|>");
}

/* ---------------------------------------------------------------- tokenizer.json */

typedef struct document {
    rp_tokenizer *t;
    const char *file;
} document;

static bool given(const rp__json *v) { return v && !rp__json_is_null(v); }

static bool is_type(const rp__json *v, const char *type) {
    const char *have = rp__json_string(rp__json_member(v, "type"));
    return have && strcmp(have, type) == 0;
}

/* A boolean member; absent and null: `otherwise`. */
static rp_status flag(const document *d, const char *of, const rp__json *v, const char *name, bool otherwise,
                      bool *out) {
    const rp__json *m = rp__json_member(v, name);
    char place[100];
    *out = otherwise;
    if (!given(m) || rp__json_bool(m, out)) return RP_OK;
    snprintf(place, sizeof place, "%s.%s", of, name);
    return wrong_member(d->file, place, "it is neither true nor false");
}

static rp_status unsupported(const document *d, const char *member, const rp__json *v) {
    const char *type = rp__json_string(rp__json_member(v, "type"));
    char why[200];
    shown of;
    snprintf(why, sizeof why, "the type %s is not served", type ? show(of, type) : "that it has");
    return wrong_member(d->file, member, why);
}

static rp_status read_normalizer(const document *d, const rp__json *v) {
    rp_tokenizer *t = d->t;
    if (!given(v)) return RP_OK;
    if (!is_type(v, "BertNormalizer")) return unsupported(d, "normalizer", v);
    t->bert = true;
    RP_TRY(flag(d, "normalizer", v, "clean_text", true, &t->clean));
    RP_TRY(flag(d, "normalizer", v, "handle_chinese_chars", true, &t->chinese));
    RP_TRY(flag(d, "normalizer", v, "lowercase", true, &t->lower));
    return flag(d, "normalizer", v, "strip_accents", t->lower, &t->no_accents);
}

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char llama3_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                                     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static rp_status read_byte_level(const document *d, const rp__json *v, bool alone) {
    bool regex;
    RP_TRY(flag(d, "pre_tokenizer", v, "add_prefix_space", true, &d->t->prefix_space));
    RP_TRY(flag(d, "pre_tokenizer", v, "use_regex", true, &regex));
    if (alone)
        d->t->splitter = regex ? RP__SPLIT_GPT2 : RP__SPLIT_NONE;
    else if (regex || d->t->prefix_space)
        return wrong_member(d->file, "pre_tokenizer",
                            "a Split is followed by a ByteLevel with use_regex or add_prefix_space");
    return RP_OK;
}

static rp_status read_split(const document *d, const rp__json *v) {
    const char *pattern = rp__json_string(rp__json_member(rp__json_member(v, "pattern"), "Regex"));
    const char *behavior = rp__json_string(rp__json_member(v, "behavior"));
    bool invert;
    RP_TRY(flag(d, "pre_tokenizer", v, "invert", false, &invert));
    if (!pattern || invert || !behavior || strcmp(behavior, "Isolated") != 0)
        return wrong_member(d->file, "pre_tokenizer", "a Split is served by a Regex that isolates");
    const bool gpt2 = strcmp(pattern, gpt2_pattern) == 0;
    if (!gpt2 && strcmp(pattern, llama3_pattern) != 0)
        return wrong_member(d->file, "pre_tokenizer", "its pattern is neither GPT-2's nor Llama 3's");
    d->t->splitter = gpt2 ? RP__SPLIT_GPT2 : RP__SPLIT_LLAMA3;
    return RP_OK;
}

static rp_status read_pre_tokenizer(const document *d, const rp__json *v) {
    if (is_type(v, "BertPreTokenizer")) {
        d->t->splitter = RP__SPLIT_BERT;
        return RP_OK;
    }
    if (is_type(v, "ByteLevel")) return read_byte_level(d, v, true);
    size_t n;
    rp__json *list = rp__json_member(v, "pretokenizers");
    if (!is_type(v, "Sequence") || !rp__json_array(list, &n)) return unsupported(d, "pre_tokenizer", v);
    if (n != 2 || !is_type(rp__json_item(list, 0), "Split") || !is_type(rp__json_item(list, 1), "ByteLevel"))
        return wrong_member(d->file, "pre_tokenizer", "a Sequence is served of a Split and a ByteLevel");
    RP_TRY(read_split(d, rp__json_item(list, 0)));
    return read_byte_level(d, rp__json_item(list, 1), false);
}

static rp_status read_wordpiece(const document *d, rp__json *v) {
    rp_tokenizer *t = d->t;
    const char *prefix = rp__json_string(rp__json_member(v, "continuing_subword_prefix"));
    const char *unknown = rp__json_string(rp__json_member(v, "unk_token"));
    int64_t longest = 100;
    t->wordpiece = true;
    RP_TRY(text_or_oom(&t->prefix, prefix ? prefix : "##"));
    RP_TRY(vocab_object(t, d->file, "model.vocab", rp__json_member(v, "vocab")));
    if (given(rp__json_member(v, "max_input_chars_per_word")) &&
        (!rp__json_integer(rp__json_member(v, "max_input_chars_per_word"), &longest) || longest < 1))
        return wrong_member(d->file, "model.max_input_chars_per_word", "it is no number above 0");
    t->longest_word = (size_t)longest;
    t->unknown = rp__vocab_find(&t->vocab, unknown ? unknown : "[UNK]", strlen(unknown ? unknown : "[UNK]"));
    return t->unknown >= 0 ? RP_OK : wrong_member(d->file, "model.unk_token", "it is no token");
}

static rp_status read_merge(const document *d, rp__json *list, size_t i) {
    rp__json *item = rp__json_item(list, i);
    const char *text = rp__json_string(item), *right = NULL, *why = "it is not two tokens with a blank between them";
    size_t n, left = 0;
    if (text && (right = two_parts(text, strlen(text), &left))) {
        why = rp__merges_add(d->t, text, left, right, strlen(right));
    } else if (rp__json_array(item, &n)) {
        text = rp__json_string(rp__json_item(item, 0));
        right = rp__json_string(rp__json_item(item, 1));
        if (n == 2 && text && right) why = rp__merges_add(d->t, text, strlen(text), right, strlen(right));
    }
    char place[64];
    snprintf(place, sizeof place, "model.merges[%zu]", i);
    return why ? wrong_member(d->file, place, why) : RP_OK;
}

static rp_status read_bpe(const document *d, rp__json *v) {
    static const char *const absent[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    static const char *const off[] = {"fuse_unk", "byte_fallback"};
    rp_tokenizer *t = d->t;
    for (size_t i = 0; i < 4; i++) {
        const rp__json *m = rp__json_member(v, absent[i]);
        const char *text = rp__json_string(m);
        char place[64];
        snprintf(place, sizeof place, "model.%s", absent[i]);
        if (given(m) && (!text || *text)) return wrong_member(d->file, place, "it is not served");
    }
    for (size_t i = 0; i < 2; i++) {
        bool on;
        char place[64];
        RP_TRY(flag(d, "model", v, off[i], false, &on));
        snprintf(place, sizeof place, "model.%s", off[i]);
        if (on) return wrong_member(d->file, place, "it is not served");
    }
    RP_TRY(flag(d, "model", v, "ignore_merges", false, &t->ignore_merges));
    RP_TRY(vocab_object(t, d->file, "model.vocab", rp__json_member(v, "vocab")));
    rp__json *merges = rp__json_member(v, "merges");
    size_t n;
    if (!rp__json_array(merges, &n)) return wrong_member(d->file, "model.merges", "it is no list");
    RP_TRY(rp__merges_build(t, n));
    for (size_t i = 0; i < n; i++) RP_TRY(read_merge(d, merges, i));
    bytes_of_vocab(t);
    t->unknown = -1;
    return RP_OK;
}

static rp_status read_added(const document *d, rp__json *list) {
    size_t n;
    if (!given(list)) return RP_OK;
    if (!rp__json_array(list, &n)) return wrong_member(d->file, "added_tokens", "it is no list");
    for (size_t i = 0; i < n; i++) {
        rp__json *v = rp__json_item(list, i);
        char place[64];
        rp__added a = {0};
        snprintf(place, sizeof place, "added_tokens[%zu]", i);
        a.text = (char *)(uintptr_t)rp__json_string(rp__json_member(v, "content"));
        if (!a.text || !rp__json_integer(rp__json_member(v, "id"), &a.id))
            return wrong_member(d->file, place, "it has no content and id");
        a.bytes = strlen(a.text);
        RP_TRY(flag(d, place, v, "special", false, &a.special));
        RP_TRY(flag(d, place, v, "normalized", !a.special, &a.normalized));
        RP_TRY(flag(d, place, v, "single_word", false, &a.word));
        RP_TRY(flag(d, place, v, "lstrip", false, &a.left));
        RP_TRY(flag(d, place, v, "rstrip", false, &a.right));
        const int64_t known = rp__vocab_find(&d->t->vocab, a.text, a.bytes);
        const char *why = known == a.id ? NULL
                          : known >= 0  ? "the model has it with another id"
                                        : rp__vocab_add(&d->t->vocab, a.text, a.bytes, a.id);
        rp__text clean = {0}; /* a normalized one is looked for in what was cleaned */
        if (!why && a.normalized && d->t->bert) {
            RP_TRY(rp__unicode_need("tokenizer"));
            rp_status status = rp__tokenizer_clean(d->t, a.text, a.bytes, &clean);
            if (status) {
                rp__text_free(&clean);
                return status;
            }
            a.text = clean.data;
            a.bytes = clean.length;
        }
        if (!why) why = rp__added_add(d->t, a);
        rp__text_free(&clean);
        if (why) return wrong_member(d->file, place, why);
    }
    return RP_OK;
}

/* ["[SEP]", 102] */
static rp_status read_pair(const document *d, const char *member, rp__json *v, int64_t *id) {
    const char *text = rp__json_string(rp__json_item(v, 0));
    if (!text || !rp__json_integer(rp__json_item(v, 1), id) || rp__vocab_find(&d->t->vocab, text, strlen(text)) != *id)
        return wrong_member(d->file, member, "it is no token with its number");
    return RP_OK;
}

static rp_status template_item(const document *d, rp__json *v, rp__json *specials, const char *member,
                               rp__template *to) {
    rp__json *special = rp__json_member(v, "SpecialToken"), *sequence = rp__json_member(v, "Sequence");
    rp__json *body = special ? special : sequence;
    const char *id = rp__json_string(rp__json_member(body, "id"));
    rp__part part = {0};
    if (!id || !rp__json_integer(rp__json_member(body, "type_id"), &part.type) || part.type < 0 || part.type > 1)
        return wrong_member(d->file, member, "an item is neither a text nor a special token of type 0 or 1");
    if (sequence) {
        part.sequence = strcmp(id, "A") == 0 ? 1 : strcmp(id, "B") == 0 ? 2 : 0;
        if (!part.sequence) return wrong_member(d->file, member, "texts are A and B");
        return rp__template_add(to, part);
    }
    rp__json *ids = rp__json_member(rp__json_member(specials, id), "ids");
    size_t n;
    if (!rp__json_array(ids, &n) || !n) return wrong_member(d->file, member, "a special token has no ids");
    for (size_t i = 0; i < n; i++) {
        if (!rp__json_integer(rp__json_item(ids, i), &part.id) || part.id < 0 || (size_t)part.id >= d->t->vocab.n)
            return wrong_member(d->file, member, "an id of a special token is none of a token");
        RP_TRY(rp__template_add(to, part));
    }
    return RP_OK;
}

static rp_status template_list(const document *d, rp__json *v, const char *name, rp__template *to) {
    rp__json *list = rp__json_member(v, name);
    char member[64];
    size_t n;
    snprintf(member, sizeof member, "post_processor.%s", name);
    if (!rp__json_array(list, &n)) return wrong_member(d->file, member, "it is no list");
    for (size_t i = 0; i < n; i++)
        RP_TRY(template_item(d, rp__json_item(list, i), rp__json_member(v, "special_tokens"), member, to));
    return RP_OK;
}

static rp_status read_post_processor(const document *d, rp__json *v) {
    int64_t cls, sep;
    if (!given(v) || is_type(v, "ByteLevel")) return RP_OK;
    if (is_type(v, "TemplateProcessing")) {
        RP_TRY(template_list(d, v, "single", &d->t->single));
        return template_list(d, v, "pair", &d->t->pair);
    }
    if (is_type(v, "Sequence")) { /* Llama 3's: a ByteLevel, which does nothing to numbers, and one that counts */
        rp__json *list = rp__json_member(v, "processors");
        size_t n;
        if (!rp__json_array(list, &n)) return wrong_member(d->file, "post_processor.processors", "it is no list");
        bool found = false;
        for (size_t i = 0; i < n; i++) {
            rp__json *item = rp__json_item(list, i);
            if (is_type(item, "ByteLevel")) continue;
            if (found || is_type(item, "Sequence")) return unsupported(d, "post_processor.processors", item);
            found = true;
            RP_TRY(read_post_processor(d, item));
        }
        return RP_OK;
    }
    if (!is_type(v, "BertProcessing")) return unsupported(d, "post_processor", v);
    RP_TRY(read_pair(d, "post_processor.cls", rp__json_member(v, "cls"), &cls));
    RP_TRY(read_pair(d, "post_processor.sep", rp__json_member(v, "sep"), &sep));
    return bert_template(d->t, cls, sep);
}

static rp_status read_decoder(const document *d, const rp__json *v) {
    rp_tokenizer *t = d->t;
    t->decoder = RP__DECODE_BLANKS;
    if (!given(v)) return RP_OK;
    if (is_type(v, "ByteLevel")) {
        t->decoder = RP__DECODE_BYTES;
        return RP_OK;
    }
    if (!is_type(v, "WordPiece")) return unsupported(d, "decoder", v);
    const char *prefix = rp__json_string(rp__json_member(v, "prefix"));
    t->decoder = RP__DECODE_WORDPIECE;
    RP_TRY(text_or_oom(&t->decoder_prefix, prefix ? prefix : "##"));
    return flag(d, "decoder", v, "cleanup", true, &t->cleanup);
}

static rp_status read_document(const document *d, rp__json *v) {
    rp__json *model = rp__json_member(v, "model");
    if (!rp__json_is_object(model)) return wrong_member(d->file, "model", "there is none");
    const bool wordpiece = is_type(model, "WordPiece");
    if (!wordpiece && !is_type(model, "BPE")) return unsupported(d, "model", model);
    RP_TRY(wordpiece ? read_wordpiece(d, model) : read_bpe(d, model));
    RP_TRY(read_normalizer(d, rp__json_member(v, "normalizer")));
    RP_TRY(read_added(d, rp__json_member(v, "added_tokens")));
    RP_TRY(read_pre_tokenizer(d, rp__json_member(v, "pre_tokenizer")));
    if (wordpiece != (d->t->splitter == RP__SPLIT_BERT))
        return wrong_member(d->file, "pre_tokenizer", "WordPiece goes with a BertPreTokenizer, BPE with a ByteLevel");
    RP_TRY(read_post_processor(d, rp__json_member(v, "post_processor")));
    return read_decoder(d, rp__json_member(v, "decoder"));
}

rp_status rp__tokenizer_read_json(rp_tokenizer *t, const char *path) {
    rp__file *f = map(path);
    if (!f) return rp_error_status();
    const document d = {t, path};
    rp__json *v = parse(f);
    rp_status status = v ? read_document(&d, v) : rp_error_status();
    rp__json_free(v);
    rp__file_release(f);
    return status;
}
