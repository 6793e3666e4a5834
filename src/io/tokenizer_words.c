/* From a text to the numbers of its tokens: special tokens are taken out, what is between is cleaned, cut into words,
 * and each word becomes pieces. The rules are those of Hugging Face's tokenizers, whose results
 * tests/conformance/tokens.py compares. */
#include "io/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/unicode.h"

/* ---------------------------------------------------------------- vocabulary */

static uint64_t hash_of(const char *text, size_t bytes) { return rp__hash_bytes(text, bytes, rp__hash_none()).lo; }

/* The slot of a text, or the free one where it would go. n_slots is a power of two and never full. */
static uint32_t *slot_of(const rp__vocab *v, const char *text, size_t bytes) {
    for (uint64_t at = hash_of(text, bytes);; at++) {
        uint32_t *slot = &v->slots[at & (v->n_slots - 1)];
        if (!*slot) return slot;
        const rp__token *t = &v->tokens[*slot - 1];
        if (t->bytes == bytes && memcmp(t->text, text, bytes) == 0) return slot;
    }
}

int64_t rp__vocab_find(const rp__vocab *v, const char *text, size_t bytes) {
    return v->n_slots ? (int64_t)*slot_of(v, text, bytes) - 1 : -1;
}

static bool more_slots(rp__vocab *v) {
    if (2 * (v->count + 1) <= v->n_slots) return true;
    const size_t n = v->n_slots ? 2 * v->n_slots : 1024;
    uint32_t *old = v->slots, *slots = rp__calloc(n, sizeof *slots);
    if (!slots) return false;
    v->slots = slots;
    v->n_slots = n;
    for (size_t id = 0; id < v->n; id++)
        if (v->tokens[id].text) *slot_of(v, v->tokens[id].text, v->tokens[id].bytes) = (uint32_t)id + 1;
    rp__free(old);
    return true;
}

static const char memory[] = "out of memory";

const char *rp__vocab_add(rp__vocab *v, const char *text, size_t bytes, int64_t id) {
    if (id < 0 || id >= RP__TOKEN_IDS) return "its number is below 0 or above 16777215";
    if (rp__vocab_find(v, text, bytes) >= 0) return "it comes twice";
    if ((size_t)id < v->n && v->tokens[id].text) return "another token has its number";
    if (!more_slots(v) || !RP__GROW(&v->tokens, &v->capacity, (size_t)id + 1)) return memory;
    char *copy = rp__alloc(bytes + 1);
    if (!copy) return memory;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    for (; v->n <= (size_t)id; v->n++) v->tokens[v->n] = (rp__token){NULL, 0};
    *slot_of(v, text, bytes) = (uint32_t)id + 1;
    v->tokens[id] = (rp__token){copy, bytes};
    v->count++;
    return NULL;
}

void rp__vocab_free(rp__vocab *v) {
    for (size_t i = 0; i < v->n; i++) rp__free(v->tokens[i].text);
    rp__free(v->tokens);
    rp__free(v->slots);
    *v = (rp__vocab){0};
}

rp_status rp__ids_add(rp__ids *ids, int64_t id) {
    if (!RP__GROW(&ids->data, &ids->capacity, ids->n + 1)) return RP__OOM("a text's tokens");
    ids->data[ids->n++] = id;
    return RP_OK;
}

const char *rp__added_add(rp_tokenizer *t, rp__added a) {
    if (!a.bytes) return "it is empty";
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].bytes == a.bytes && memcmp(t->added[i].text, a.text, a.bytes) == 0) return "it comes twice";
    if (!RP__GROW(&t->added, &t->added_capacity, t->n_added + 1)) return memory;
    char *copy = rp__alloc(a.bytes + 1);
    if (!copy) return memory;
    memcpy(copy, a.text, a.bytes);
    copy[a.bytes] = 0;
    a.text = copy;
    t->added[t->n_added++] = a;
    return NULL;
}

rp_status rp__template_add(rp__template *t, rp__part part) {
    if (!RP__GROW(&t->parts, &t->capacity, t->n + 1)) return RP__OOM("a tokenizer");
    t->parts[t->n++] = part;
    return RP_OK;
}

/* ---------------------------------------------------------------- bytes as characters */

/* Printable characters of Latin-1 stand for themselves, the other bytes, in order, for 256 and up. */
static bool stands_for_itself(uint32_t b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

uint32_t rp__byte_character(uint8_t b) {
    if (stands_for_itself(b)) return b;
    uint32_t n = 0;
    for (uint32_t c = 0; c < b; c++) n += !stands_for_itself(c);
    return 256 + n;
}

int rp__character_byte(uint32_t c) {
    if (c < 256) return stands_for_itself(c) ? (int)c : -1;
    for (int b = 0, n = 256; b < 256 && c < 512; b++)
        if (!stands_for_itself((uint32_t)b) && (uint32_t)n++ == c) return b;
    return -1;
}

/* ---------------------------------------------------------------- byte-level BPE */

rp_status rp__merges_build(rp_tokenizer *t, size_t n) {
    t->n_merge_slots = 1024;
    while (t->n_merge_slots < 2 * n + 2) t->n_merge_slots *= 2;
    t->merges = rp__alloc(t->n_merge_slots * sizeof *t->merges);
    if (!t->merges) return RP__OOM("a tokenizer");
    memset(t->merges, 0xFF, t->n_merge_slots * sizeof *t->merges);
    return RP_OK;
}

static rp__merge *merge_of(const rp_tokenizer *t, uint32_t left, uint32_t right) {
    for (uint64_t at = rp__hash_mix(left, right);; at++) {
        rp__merge *m = &t->merges[at & (t->n_merge_slots - 1)];
        if (m->left == UINT32_MAX || (m->left == left && m->right == right)) return m;
    }
}

const char *rp__merges_add(rp_tokenizer *t, const char *left, size_t left_bytes, const char *right,
                           size_t right_bytes) {
    const int64_t a = rp__vocab_find(&t->vocab, left, left_bytes), b = rp__vocab_find(&t->vocab, right, right_bytes);
    if (a < 0) return "its first part is no token";
    if (b < 0) return "its second part is no token";
    char *whole = rp__alloc(left_bytes + right_bytes + 1);
    if (!whole) return memory;
    memcpy(whole, left, left_bytes);
    memcpy(whole + left_bytes, right, right_bytes);
    const int64_t id = rp__vocab_find(&t->vocab, whole, left_bytes + right_bytes);
    rp__free(whole);
    if (id < 0) return "what it makes is no token";
    if (2 * (t->n_merges + 1) > t->n_merge_slots) return "there are more merges than were counted";
    rp__merge *m = merge_of(t, (uint32_t)a, (uint32_t)b);
    if (m->left != UINT32_MAX) return "it comes twice";
    *m = (rp__merge){(uint32_t)a, (uint32_t)b, (uint32_t)t->n_merges++, (uint32_t)id};
    return NULL;
}

typedef struct symbol {
    uint32_t id, previous, next; /* UINT32_MAX: none; id UINT32_MAX: merged into another */
} symbol;

typedef struct candidate {
    uint32_t rank, at, id; /* of the symbols at `at` and behind it, which become `id` */
} candidate;

typedef struct heap {
    candidate *items;
    size_t n, capacity;
} heap;

static bool comes_before(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static bool heap_put(heap *h, candidate c) {
    if (!RP__GROW(&h->items, &h->capacity, h->n + 1)) return false;
    size_t i = h->n++;
    for (; i && comes_before(&c, &h->items[(i - 1) / 2]); i = (i - 1) / 2) h->items[i] = h->items[(i - 1) / 2];
    h->items[i] = c;
    return true;
}

static candidate heap_take(heap *h) {
    const candidate first = h->items[0], last = h->items[--h->n];
    size_t i = 0;
    for (size_t child = 1; child < h->n; child = 2 * i + 1) {
        if (child + 1 < h->n && comes_before(&h->items[child + 1], &h->items[child])) child++;
        if (!comes_before(&h->items[child], &last)) break;
        h->items[i] = h->items[child];
        i = child;
    }
    if (h->n) h->items[i] = last;
    return first;
}

/* The merge of the symbol at `at` with the one behind it, if there is one, becomes a candidate. */
static bool consider(const rp_tokenizer *t, const symbol *s, uint32_t at, heap *h) {
    if (at == UINT32_MAX || s[at].next == UINT32_MAX) return true;
    const rp__merge *m = merge_of(t, s[at].id, s[s[at].next].id);
    return m->left == UINT32_MAX || heap_put(h, (candidate){m->rank, at, m->id});
}

/* The merge of the lowest rank first, the leftmost of equal ones, until none is left. */
static rp_status bpe_word(const rp_tokenizer *t, const char *word, size_t bytes, rp__ids *ids) {
    symbol few[64], *s = few;
    heap h = {NULL, 0, 0};
    uint32_t n = 0;
    if (bytes >= UINT32_MAX) return RP__OOM("a word");
    if (bytes > sizeof few / sizeof *few && !(s = rp__alloc(bytes * sizeof *s))) return RP__OOM("a word");
    for (size_t i = 0; i < bytes; i++) {
        const int64_t id = t->of_byte[(uint8_t)word[i]];
        if (id < 0) continue; /* a byte without a token is left out, as there is no unknown one */
        s[n] = (symbol){(uint32_t)id, n - 1, n + 1};
        n++;
    }
    if (n) s[n - 1].next = UINT32_MAX;
    bool room = true;
    for (uint32_t i = 0; i < n && room; i++) room = consider(t, s, i, &h);
    while (h.n && room) {
        const candidate c = heap_take(&h);
        symbol *left = &s[c.at];
        if (left->id == UINT32_MAX || left->next == UINT32_MAX) continue;
        const rp__merge *m = merge_of(t, left->id, s[left->next].id);
        if (m->left == UINT32_MAX || m->id != c.id) continue; /* one of the two is another by now */
        symbol *right = &s[left->next];
        left->id = c.id;
        left->next = right->next;
        right->id = UINT32_MAX;
        if (left->next != UINT32_MAX) s[left->next].previous = c.at;
        room = consider(t, s, left->previous, &h) && consider(t, s, c.at, &h);
    }
    rp_status status = room ? RP_OK : RP__OOM("a word");
    for (uint32_t i = n ? 0 : UINT32_MAX; i != UINT32_MAX && !status; i = s[i].next) status = rp__ids_add(ids, s[i].id);
    rp__free(h.items);
    if (s != few) rp__free(s);
    return status;
}

/* A word that is a token as a whole, for vocabularies that look there first; -1: none. */
static rp_status whole_word(const rp_tokenizer *t, const char *word, size_t bytes, int64_t *id) {
    rp__text name = {0};
    char c[4];
    for (size_t i = 0; i < bytes; i++)
        rp__text_write(&name, c, rp__utf8_write(rp__byte_character((uint8_t)word[i]), c));
    *id = name.failed || !name.data ? -1 : rp__vocab_find(&t->vocab, name.data, name.length);
    rp_status status = name.failed ? RP__OOM("a word") : RP_OK;
    rp__text_free(&name);
    return status;
}

/* ---------------------------------------------------------------- WordPiece */

/* The longest token from the left, then the longest that continues it, ...; a word with a rest that is none is unknown
   as a whole. */
static rp_status wordpiece_word(const rp_tokenizer *t, const char *word, size_t bytes, rp__ids *ids) {
    const size_t first = ids->n, prefix = strlen(t->prefix);
    size_t characters = 0;
    for (size_t i = 0; i < bytes; i++) characters += ((uint8_t)word[i] & 0xC0) != 0x80;
    char few[512], *piece = few;
    if (prefix + bytes > sizeof few && !(piece = rp__alloc(prefix + bytes))) return RP__OOM("a word");
    bool known = characters <= t->longest_word;
    rp_status status = RP_OK;
    for (size_t begin = 0; begin < bytes && known && !status;) {
        const size_t front = begin ? prefix : 0;
        memcpy(piece, t->prefix, front);
        memcpy(piece + front, word + begin, bytes - begin);
        size_t end = bytes;
        int64_t id = -1;
        for (; end > begin; end--) {
            if (end < bytes && ((uint8_t)word[end] & 0xC0) == 0x80) continue; /* within a character */
            if ((id = rp__vocab_find(&t->vocab, piece, front + end - begin)) >= 0) break;
        }
        known = id >= 0;
        if (known) status = rp__ids_add(ids, id);
        begin = end;
    }
    if (piece != few) rp__free(piece);
    if (known || status) return status;
    ids->n = first;
    if (t->unknown < 0)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "the tokenizer has no token for unknown words, and the text has one");
    return rp__ids_add(ids, t->unknown);
}

static rp_status word_tokens(const rp_tokenizer *t, const char *word, size_t bytes, rp__ids *ids) {
    if (!bytes) return RP_OK;
    if (t->wordpiece) return wordpiece_word(t, word, bytes, ids);
    int64_t id = -1;
    if (t->ignore_merges) RP_TRY(whole_word(t, word, bytes, &id));
    return id >= 0 ? rp__ids_add(ids, id) : bpe_word(t, word, bytes, ids);
}

/* ---------------------------------------------------------------- cutting into words */

/* Blanks go, and each punctuation mark is a word. */
static rp_status cut_bert(const rp_tokenizer *t, const char *text, size_t bytes, rp__ids *ids) {
    size_t begin = 0, length;
    for (size_t i = 0; i < bytes; i += length) {
        const uint32_t c = rp__utf8_read(text + i, bytes - i, &length);
        const bool blank = rp__unicode_blank(c);
        /* All of ASCII's marks and symbols are punctuation here. */
        const bool mark = !blank && (c < 0x80 ? rp__unicode_kind(c) == RP__KIND_PUNCTUATION ||
                                                    (c > 32 && rp__unicode_kind(c) == RP__KIND_OTHER)
                                              : rp__unicode_kind(c) == RP__KIND_PUNCTUATION);
        if (!blank && !mark) continue;
        RP_TRY(word_tokens(t, text + begin, i - begin, ids));
        if (mark) RP_TRY(word_tokens(t, text + i, length, ids));
        begin = i + length;
    }
    return word_tokens(t, text + begin, bytes - begin, ids);
}

typedef struct reader {
    const char *text;
    size_t bytes;
} reader;

typedef enum shape { END, BLANK, LETTER, NUMBER, OTHER } shape;
static shape shape_at(const reader *r, size_t at, size_t *length) {
    *length = 0;
    if (at >= r->bytes) return END;
    const uint32_t c = rp__utf8_read(r->text + at, r->bytes - at, length);
    const rp__kind kind = rp__unicode_kind(c);
    return rp__unicode_blank(c) ? BLANK : kind == RP__KIND_LETTER ? LETTER : kind == RP__KIND_NUMBER ? NUMBER : OTHER;
}

/* Behind all characters of a shape from here on, at most `most` of them. */
static size_t behind(const reader *r, size_t at, shape s, size_t most) {
    size_t length;
    for (; most && shape_at(r, at, &length) == s; most--) at += length;
    return at;
}

/* 's, 't, 'm, 'd, 're, 've, 'll; the bytes of it, 0: none. any_case: also large letters, and the long s. */
static size_t contraction(const reader *r, size_t at, bool any_case) {
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (at >= r->bytes || r->text[at] != '\'') return 0;
    const char *p = r->text + at + 1;
    const size_t left = r->bytes - at - 1;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(ends[i]);
        size_t same = 0;
        while (same < n && same < left && (p[same] == ends[i][same] || (any_case && (p[same] | 0x20) == ends[i][same])))
            same++;
        if (same == n) return n + 1;
    }
    return any_case && left >= 2 && memcmp(p, "\xC5\xBF", 2) == 0 ? 3 : 0;
}

static bool line_end(const reader *r, size_t at) {
    return at < r->bytes && (r->text[at] == '\r' || r->text[at] == '\n');
}

/* Blanks from here on: all of them where the text ends behind them, else all but the last, which goes with what
   follows; at least one. */
static size_t blanks_end(const reader *r, size_t at) {
    size_t end = at, before = at, length;
    while (shape_at(r, end, &length) == BLANK) {
        before = end;
        end += length;
    }
    return end == r->bytes || before == at ? end : before;
}

/* Where the word that begins here ends. GPT-2's pattern. */
static size_t word_gpt2(const reader *r, size_t at) {
    const size_t short_form = contraction(r, at, false);
    if (short_form) return at + short_form;
    size_t length;
    const size_t start = r->text[at] == ' ' ? at + 1 : at;
    const shape s = shape_at(r, start, &length);
    if (s == LETTER || s == NUMBER || s == OTHER) return behind(r, start, s, SIZE_MAX);
    return blanks_end(r, at);
}

/* Llama 3's pattern: one mark goes with the letters behind it, numbers have three digits at most, line ends end a
   word. */
static size_t word_llama3(const reader *r, size_t at) {
    const size_t short_form = contraction(r, at, true);
    if (short_form) return at + short_form;
    size_t length, next;
    const shape s = shape_at(r, at, &length);
    if (s == LETTER) return behind(r, at, LETTER, SIZE_MAX);
    if (s != NUMBER && !line_end(r, at) && shape_at(r, at + length, &next) == LETTER)
        return behind(r, at + length, LETTER, SIZE_MAX);
    if (s == NUMBER) return behind(r, at, NUMBER, 3);
    const size_t start = r->text[at] == ' ' ? at + 1 : at;
    if (shape_at(r, start, &next) == OTHER) {
        size_t end = behind(r, start, OTHER, SIZE_MAX);
        while (line_end(r, end)) end++;
        return end;
    }
    size_t last = 0; /* behind the last line end among the blanks here */
    for (size_t i = at; shape_at(r, i, &next) == BLANK; i += next)
        if (line_end(r, i)) last = i + 1;
    return last ? last : blanks_end(r, at);
}

static rp_status cut_bytes(const rp_tokenizer *t, const char *text, size_t bytes, rp__ids *ids) {
    const reader r = {text, bytes};
    if (t->splitter == RP__SPLIT_NONE) return word_tokens(t, text, bytes, ids);
    for (size_t at = 0, end; at < bytes; at = end) {
        end = t->splitter == RP__SPLIT_GPT2 ? word_gpt2(&r, at) : word_llama3(&r, at);
        RP_TRY(word_tokens(t, text + at, end - at, ids));
    }
    return RP_OK;
}

static rp_status cut(const rp_tokenizer *t, const char *text, size_t bytes, rp__ids *ids) {
    if (t->splitter == RP__SPLIT_BERT) return cut_bert(t, text, bytes, ids);
    if (!t->prefix_space || !bytes || text[0] == ' ') return cut_bytes(t, text, bytes, ids);
    char *spaced = rp__alloc(bytes + 1);
    if (!spaced) return RP__OOM("a text");
    spaced[0] = ' ';
    memcpy(spaced + 1, text, bytes);
    rp_status status = cut_bytes(t, spaced, bytes + 1, ids);
    rp__free(spaced);
    return status;
}

/* ---------------------------------------------------------------- cleaning */

static bool is_chinese(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static void put_character(rp__text *out, uint32_t c) {
    char bytes[4];
    rp__text_write(out, bytes, rp__utf8_write(c, bytes));
}

static void clean_and_space(const rp_tokenizer *t, const char *text, size_t bytes, rp__text *out) {
    size_t length;
    for (size_t i = 0; i < bytes; i += length) {
        uint32_t c = rp__utf8_read(text + i, bytes - i, &length);
        const bool blank = c == '\t' || c == '\n' || c == '\r';
        if (t->clean) {
            if (!blank && (c == 0 || c == RP__UNICODE_WRONG || rp__unicode_kind(c) == RP__KIND_CONTROL)) continue;
            if (blank || rp__unicode_blank(c)) c = ' ';
        }
        const bool apart = t->chinese && is_chinese(c);
        if (apart) rp__text_puts(out, " ");
        put_character(out, c);
        if (apart) rp__text_puts(out, " ");
    }
}

static rp_status without_accents(rp__text *text) {
    uint32_t *characters;
    size_t n;
    RP_TRY(rp__unicode_decompose(text->data, text->length, &characters, &n));
    text->length = 0;
    for (size_t i = 0; i < n; i++)
        if (rp__unicode_kind(characters[i]) != RP__KIND_MARK) put_character(text, characters[i]);
    rp__free(characters);
    return RP_OK;
}

static void lower(rp__text *text) {
    rp__text out = {0};
    size_t length;
    for (size_t i = 0; i < text->length; i += length) {
        uint32_t small[2];
        const int n = rp__unicode_lower(rp__utf8_read(text->data + i, text->length - i, &length), small);
        for (int k = 0; k < n; k++) put_character(&out, small[k]);
    }
    out.failed = out.failed || text->failed;
    rp__text_free(text);
    *text = out;
}

static bool is_ascii(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if ((uint8_t)text[i] >= 0x80) return false;
    return true;
}

rp_status rp__tokenizer_clean(const rp_tokenizer *t, const char *text, size_t bytes, rp__text *out) {
    clean_and_space(t, text, bytes, out);
    rp_status status = RP_OK;
    if (t->no_accents && out->length && !out->failed && !is_ascii(out->data, out->length))
        status = without_accents(out);
    if (t->lower && !status) lower(out);
    return status ? status : out->failed ? RP__OOM("a text") : RP_OK;
}

/* ---------------------------------------------------------------- special tokens in a text */

/* Is what lies there a word by itself? */
static bool stands_alone(const char *text, size_t bytes, size_t begin, size_t end) {
    size_t length, before = begin;
    while (before > 0 && ((uint8_t)text[--before] & 0xC0) == 0x80) continue;
    if (begin > 0 && rp__unicode_word(rp__utf8_read(text + before, begin - before, &length))) return false;
    return end == bytes || !rp__unicode_word(rp__utf8_read(text + end, bytes - end, &length));
}

/* The longest added token at a place; NULL: none. */
static const rp__added *added_at(const rp_tokenizer *t, bool normalized, const char *text, size_t bytes) {
    const rp__added *found = NULL;
    for (size_t i = 0; i < t->n_added; i++) {
        const rp__added *a = &t->added[i];
        if (a->normalized == normalized && a->bytes <= bytes && a->text[0] == text[0] &&
            memcmp(a->text, text, a->bytes) == 0 && (!found || a->bytes > found->bytes))
            found = a;
    }
    return found;
}

typedef rp_status between(const rp_tokenizer *t, const char *text, size_t bytes, rp__ids *ids);

/* Added tokens of one of both sorts, and `rest` for what is between them. */
static rp_status split_added(const rp_tokenizer *t, bool normalized, const char *text, size_t bytes, rp__ids *ids,
                             between *rest) {
    bool begins[256] = {false};
    size_t done = 0, length;
    for (size_t i = 0; i < t->n_added; i++) begins[(uint8_t)t->added[i].text[0]] = true;
    for (size_t i = 0; i < bytes;) {
        const rp__added *a = begins[(uint8_t)text[i]] ? added_at(t, normalized, text + i, bytes - i) : NULL;
        if (!a) {
            i++;
            continue;
        }
        size_t begin = i, end = i + a->bytes;
        i = end;
        if (a->word && !stands_alone(text, bytes, begin, end)) continue;
        if (a->left) {
            for (size_t at = begin; at > done;) {
                while (at > done && ((uint8_t)text[--at] & 0xC0) == 0x80) continue;
                if (!rp__unicode_blank(rp__utf8_read(text + at, begin - at, &length))) break;
                begin = at;
            }
        }
        while (a->right && end < bytes && rp__unicode_blank(rp__utf8_read(text + end, bytes - end, &length)))
            end += length;
        if (begin > done) RP_TRY(rest(t, text + done, begin - done, ids));
        RP_TRY(rp__ids_add(ids, a->id));
        done = i = end;
    }
    return bytes > done ? rest(t, text + done, bytes - done, ids) : RP_OK;
}

static rp_status clean_and_cut(const rp_tokenizer *t, const char *text, size_t bytes, rp__ids *ids) {
    if (!t->bert) return split_added(t, true, text, bytes, ids, cut);
    rp__text out = {0};
    rp_status status = rp__tokenizer_clean(t, text, bytes, &out);
    if (!status && out.length) status = split_added(t, true, out.data, out.length, ids, cut);
    rp__text_free(&out);
    return status;
}

rp_status rp__tokenizer_text(const rp_tokenizer *t, const char *text, size_t bytes, rp__ids *ids) {
    if (!is_ascii(text, bytes)) RP_TRY(rp__unicode_need("the text"));
    return split_added(t, false, text, bytes, ids, clean_and_cut);
}
