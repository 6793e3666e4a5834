/* Tokenizers as programs call them: what is put around texts, truncation, batches, and the way back to text. */
#include "io/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/unicode.h"

static rp_tokenizer failed_tokenizer; /* returned when there is none */

static rp_status check(const rp_tokenizer *t, const char *call) {
    return rp__handle_check(t, RP__HANDLE_TOKENIZER, call);
}

static void clear(rp_tokenizer *t) {
    rp__vocab_free(&t->vocab);
    for (size_t i = 0; i < t->n_added; i++) rp__free(t->added[i].text);
    rp__free(t->added);
    rp__free(t->prefix);
    rp__free(t->decoder_prefix);
    rp__free(t->merges);
    rp__free(t->single.parts);
    rp__free(t->pair.parts);
}

static rp_tokenizer *new_tokenizer(void) {
    rp_tokenizer *t = rp__handle_new(RP__HANDLE_TOKENIZER, sizeof *t);
    if (!t) (void)RP__OOM("a tokenizer");
    return t;
}

static rp_tokenizer *finished(rp_tokenizer *t, rp_status status) {
    if (status == RP_OK) return t;
    clear(t);
    rp__handle_free(t);
    return &failed_tokenizer;
}

rp_tokenizer *rp_tokenizer_wordpiece_at(const char *site, const char *vocab_txt, const rp_wordpiece_options *options) {
    RP__CALLED_FROM(site);
    rp_wordpiece_options o;
    if (rp__options_read("rp_tokenizer_wordpiece", options, sizeof o, &o)) return &failed_tokenizer;
    rp_tokenizer *t = new_tokenizer();
    return t ? finished(t, rp__tokenizer_read_vocab_txt(t, vocab_txt, &o)) : &failed_tokenizer;
}

rp_tokenizer *rp_tokenizer_bpe_at(const char *site, const char *vocab_json, const char *merges_txt, bool prefix_space) {
    RP__CALLED_FROM(site);
    rp_tokenizer *t = new_tokenizer();
    return t ? finished(t, rp__tokenizer_read_bpe(t, vocab_json, merges_txt, prefix_space)) : &failed_tokenizer;
}

rp_tokenizer *rp_tokenizer_open_at(const char *site, const char *tokenizer_json) {
    RP__CALLED_FROM(site);
    rp_tokenizer *t = new_tokenizer();
    return t ? finished(t, rp__tokenizer_read_json(t, tokenizer_json)) : &failed_tokenizer;
}

void rp_tokenizer_release(rp_tokenizer *t) {
    if (!t || t == &failed_tokenizer || !rp__handle_give_up(t, RP__HANDLE_TOKENIZER, "rp_tokenizer_release")) return;
    clear(t);
    rp__handle_free(t);
}

/* ---------------------------------------------------------------- tokens */

size_t rp_tokenizer_count_at(const char *site, const rp_tokenizer *t) {
    RP__CALLED_FROM(site);
    return check(t, "rp_tokenizer_count") ? 0 : t->vocab.n;
}

int64_t rp_tokenizer_id_at(const char *site, const rp_tokenizer *t, const char *token) {
    RP__CALLED_FROM(site);
    if (check(t, "rp_tokenizer_id")) return -1;
    if (!token) (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_tokenizer_id: the token is NULL");
    return token ? rp__vocab_find(&t->vocab, token, strlen(token)) : -1;
}

const char *rp_tokenizer_token_at(const char *site, const rp_tokenizer *t, int64_t id) {
    RP__CALLED_FROM(site);
    if (check(t, "rp_tokenizer_token") || id < 0 || (uint64_t)id >= t->vocab.n) return NULL;
    return t->vocab.tokens[id].text;
}

/* ---------------------------------------------------------------- texts to numbers */

static size_t size_min(size_t a, size_t b) { return a < b ? a : b; }
static size_t size_max(size_t a, size_t b) { return a > b ? a : b; }

/* Where one text, or a pair, is longer than `room` together. */
static rp_status truncate(const rp_encode_options *o, size_t room, bool pair, size_t n[2]) {
    const size_t total = n[0] + n[1], over = total > room ? total - room : 0;
    if (!over) return RP_OK;
    if (o->truncation == RP_TRUNCATION_ERROR)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the text has %zu tokens, and %zu have room", total, room);
    if (pair && o->truncation == RP_TRUNCATION_LONGEST) {
        const int longer = n[1] >= n[0];
        const size_t shorter = n[1 - longer];
        n[longer] = shorter > room ? shorter : size_max(shorter, room - shorter);
        if (n[0] + n[1] > room) {
            n[1 - longer] = room / 2;
            n[longer] = room / 2 + room % 2;
        }
        return RP_OK;
    }
    const int which = pair && o->truncation == RP_TRUNCATION_SECOND;
    if (over > n[which])
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the %s text has %zu tokens, and %zu would have to go",
                        which ? "second" : "first", n[which], over);
    n[which] -= over;
    return RP_OK;
}

/* All of one text or pair, types[k] beside ids[k]. */
static rp_status encode(const rp_tokenizer *t, const char *text, const char *pair, const rp_encode_options *o,
                        rp__ids *ids, rp__ids *types) {
    static const rp__part plain[] = {{1, 0, 0}, {2, 0, 1}};
    const rp__template *around = pair ? &t->pair : &t->single;
    const rp__part *parts = around->n ? around->parts : plain;
    const size_t n_parts = around->n ? around->n : pair ? 2 : 1;
    rp__ids of[2] = {{0}, {0}};
    rp_status status = rp__tokenizer_text(t, text, strlen(text), &of[0]);
    if (!status && pair) status = rp__tokenizer_text(t, pair, strlen(pair), &of[1]);
    size_t n[2] = {of[0].n, of[1].n}, n_special = 0;
    for (size_t i = 0; i < n_parts; i++) n_special += !parts[i].sequence && !o->no_special;
    if (!status && o->max_tokens && o->max_tokens < n_special)
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "max_tokens is %zu, and %zu are put around a text", o->max_tokens,
                          n_special);
    if (!status && o->max_tokens) status = truncate(o, o->max_tokens - n_special, pair != NULL, n);
    for (size_t i = 0; i < n_parts && !status; i++) {
        const rp__part *p = &parts[i];
        if (!p->sequence && o->no_special) continue;
        const size_t length = p->sequence ? n[p->sequence - 1] : 1;
        for (size_t k = 0; k < length && !status; k++) {
            status = rp__ids_add(ids, p->sequence ? of[p->sequence - 1].data[k] : p->id);
            if (!status) status = rp__ids_add(types, p->type);
        }
    }
    rp__free(of[0].data);
    rp__free(of[1].data);
    return status;
}

static rp_status read_options(const char *call, const rp_encode_options *options, rp_encode_options *o) {
    RP_TRY(rp__options_read(call, options, sizeof *o, o));
    if ((unsigned)o->truncation <= RP_TRUNCATION_ERROR) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: there is no truncation %d", call, (int)o->truncation);
}

size_t rp_tokenizer_encode_at(const char *site, const rp_tokenizer *t, const char *text, const char *pair,
                              const rp_encode_options *options, int64_t *ids, int64_t *types, size_t room) {
    RP__CALLED_FROM(site);
    rp_encode_options o;
    if (check(t, "rp_tokenizer_encode") || read_options("rp_tokenizer_encode", options, &o)) return 0;
    if (!text) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_tokenizer_encode: the text is NULL");
        return 0;
    }
    rp__ids all = {0}, all_types = {0};
    rp_status status = encode(t, text, pair, &o, &all, &all_types);
    if (status) (void)rp__fail_context("rp_tokenizer_encode");
    const size_t n = status ? 0 : all.n, kept = size_min(n, room);
    if (ids && kept) memcpy(ids, all.data, kept * sizeof *ids);
    if (types && kept) memcpy(types, all_types.data, kept * sizeof *types);
    rp__free(all.data);
    rp__free(all_types.data);
    return n;
}

static int64_t padding(const rp_tokenizer *t, const rp_encode_options *o) {
    if (o->pad_token) return rp__vocab_find(&t->vocab, o->pad_token, strlen(o->pad_token));
    const int64_t id = rp__vocab_find(&t->vocab, "[PAD]", 5);
    return id >= 0 ? id : rp__vocab_find(&t->vocab, "<pad>", 5);
}

/* Rows of `width` numbers: first what pads, or last. */
static void fill_row(int64_t *row, size_t width, const int64_t *data, size_t n, bool left, int64_t pad) {
    for (size_t k = 0; k < width; k++) row[k] = pad;
    if (n) memcpy(row + (left ? width - n : 0), data, n * sizeof *row);
}

struct batch {
    rp__ids *ids, *types; /* of each row */
    int64_t *table;       /* the three results, one after the other */
};

static rp_status batch_rows(const rp_tokenizer *t, const char *const *texts, const char *const *pairs, size_t n,
                            const rp_encode_options *o, struct batch *b, size_t *width) {
    *width = o->pad_to;
    for (size_t i = 0; i < n; i++) {
        if (!texts[i] || (pairs && !pairs[i]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_tokenizer_batch: text %zu is NULL", i);
        rp_status status = encode(t, texts[i], pairs ? pairs[i] : NULL, o, &b->ids[i], &b->types[i]);
        if (status) return rp__fail_context("rp_tokenizer_batch: text %zu", i), status;
        *width = size_max(*width, b->ids[i].n);
    }
    const int64_t pad = padding(t, o);
    size_t cells;
    if (__builtin_mul_overflow(n, *width, &cells) || !(b->table = rp__calloc(3 * cells + 1, sizeof *b->table)))
        return RP__OOM("a batch of texts");
    for (size_t i = 0; i < n; i++) {
        const size_t at = i * *width, length = b->ids[i].n;
        if (length < *width && pad < 0)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_tokenizer_batch: the tokenizer has no %s to pad with",
                            o->pad_token ? o->pad_token : "[PAD] or <pad>");
        fill_row(b->table + at, *width, b->ids[i].data, length, o->pad_left, pad);
        fill_row(b->table + cells + at, *width, b->types[i].data, length, o->pad_left, 0);
        for (size_t k = 0; k < length; k++) b->table[2 * cells + at + (o->pad_left ? *width - length : 0) + k] = 1;
    }
    return RP_OK;
}

rp_status rp_tokenizer_batch_at(const char *site, const rp_tokenizer *t, const char *const *texts,
                                const char *const *pairs, size_t n, const rp_encode_options *options, rp_tensor **ids,
                                rp_tensor **types, rp_tensor **mask) {
    RP__CALLED_FROM(site);
    rp_encode_options o;
    RP_TRY(check(t, "rp_tokenizer_batch"));
    RP_TRY(read_options("rp_tokenizer_batch", options, &o));
    if (n && !texts) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_tokenizer_batch: the texts are NULL");
    struct batch b = {rp__calloc(n + 1, sizeof *b.ids), rp__calloc(n + 1, sizeof *b.types), NULL};
    size_t width = 0;
    rp_status status = b.ids && b.types ? batch_rows(t, texts, pairs, n, &o, &b, &width) : RP__OOM("a batch of texts");
    rp_tensor **const results[] = {ids, types, mask};
    const int64_t size[] = {(int64_t)n, (int64_t)width};
    for (size_t i = 0; i < 3 && !status; i++) {
        if (!results[i]) continue;
        *results[i] = rp_from_data(b.table + i * n * width, size, 2, RP_I64);
        if (rp_is_error(*results[i])) status = rp_error_status();
    }
    for (size_t i = 0; i < n && b.ids && b.types; i++) {
        rp__free(b.ids[i].data);
        rp__free(b.types[i].data);
    }
    rp__free(b.ids);
    rp__free(b.types);
    rp__free(b.table);
    return status;
}

/* ---------------------------------------------------------------- numbers to text */

static void replace(rp__text *text, const char *from, const char *to) {
    const size_t n = strlen(from), m = strlen(to); /* m <= n */
    size_t end = 0;
    for (size_t i = 0; i < text->length;) {
        const bool here = i + n <= text->length && memcmp(text->data + i, from, n) == 0;
        if (here) {
            memcpy(text->data + end, to, m);
            end += m;
            i += n;
        } else {
            text->data[end++] = text->data[i++];
        }
    }
    text->length = end;
}

/* Blanks before marks and endings of words go, as BERT's decoders do it: in each token by itself. */
static void clean_up(rp__text *piece) {
    static const char *const pairs[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && piece->data; i++) replace(piece, pairs[i][0], pairs[i][1]);
}

static void add_wordpiece(const rp_tokenizer *t, const rp__token *token, bool first, rp__text *out) {
    const size_t prefix = strlen(t->decoder_prefix);
    const bool goes_on = !first && token->bytes >= prefix && memcmp(token->text, t->decoder_prefix, prefix) == 0;
    rp__text piece = {0};
    if (!first && !goes_on) rp__text_puts(&piece, " ");
    rp__text_write(&piece, token->text + (goes_on ? prefix : 0), token->bytes - (goes_on ? prefix : 0));
    if (t->cleanup) clean_up(&piece);
    if (piece.data) rp__text_write(out, piece.data, piece.length);
    out->failed = out->failed || piece.failed;
    rp__text_free(&piece);
}

/* The bytes that its characters stand for; a token with one that stands for none is taken as it is. */
static void add_bytes(const rp__token *token, rp__text *out) {
    size_t length;
    bool all = true;
    for (size_t i = 0; i < token->bytes && all; i += length)
        all = rp__character_byte(rp__utf8_read(token->text + i, token->bytes - i, &length)) >= 0;
    if (!all) rp__text_write(out, token->text, token->bytes);
    for (size_t i = 0; i < token->bytes && all; i += length) {
        const char byte = (char)rp__character_byte(rp__utf8_read(token->text + i, token->bytes - i, &length));
        rp__text_write(out, &byte, 1);
    }
}

static bool is_special(const rp_tokenizer *t, int64_t id) {
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].id == id) return t->added[i].special;
    return false;
}

size_t rp_tokenizer_decode_at(const char *site, const rp_tokenizer *t, const int64_t *ids, size_t n, bool skip_special,
                              char *text, size_t bytes) {
    RP__CALLED_FROM(site);
    rp__text out = {0};
    if (check(t, "rp_tokenizer_decode")) return 0;
    rp_status status = n && !ids ? rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_tokenizer_decode: ids is NULL") : RP_OK;
    bool first = true;
    for (size_t i = 0; i < n && !status; i++) {
        if (ids[i] < 0 || (uint64_t)ids[i] >= t->vocab.n || !t->vocab.tokens[ids[i]].text) {
            status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_tokenizer_decode: number %zu, %lld, is of no token", i,
                              (long long)ids[i]);
            break;
        }
        if (skip_special && is_special(t, ids[i])) continue;
        const rp__token *token = &t->vocab.tokens[ids[i]];
        if (t->decoder == RP__DECODE_WORDPIECE)
            add_wordpiece(t, token, first, &out);
        else if (t->decoder == RP__DECODE_BYTES)
            add_bytes(token, &out);
        else
            rp__text_puts(&out, first ? "" : " "), rp__text_write(&out, token->text, token->bytes);
        first = false;
    }
    if (!status && out.failed) status = RP__OOM("a text");
    const size_t length = status ? 0 : out.length, kept = bytes ? size_min(length, bytes - 1) : 0;
    if (text && kept) memcpy(text, out.data, kept);
    if (text && bytes) text[kept] = 0;
    rp__text_free(&out);
    return length;
}
