/* See texts.h. */
#include "texts.h"

#include <math.h>
#include <reprise_text.h>
#include <stdlib.h>
#include <string.h>

static bool sees_both_sides(const struct model_kind *kind) { return kind->inputs[1].name != NULL; }

bool cli_texts_fit(const struct cli_texts *t, const struct model_kind *kind) {
    if (!t->tokenizer && !t->n) return true;
    if (!t->tokenizer || !t->n) {
        fputs("reprise run: --tokenizer and --text belong together\n", stderr);
        return false;
    }
    if (kind && kind->inputs[0].name && !strcmp(kind->inputs[0].name, "ids") && kind->batch) return true;
    fprintf(stderr, "reprise run: --text: %s takes no texts\n", kind ? kind->name : "a graph");
    return false;
}

static rp_tokenizer *tokenizer_open(const char *file) {
    const size_t n = strlen(file);
    return n > 5 && !strcmp(file + n - 5, ".json") ? rp_tokenizer_open(file) : rp_tokenizer_wordpiece(file, NULL);
}

/* made: numbers, types and mask, int64. */
static rp_status tokenize(const struct cli_texts *t, rp_tokenizer *tokenizer, rp_tensor *made[3]) {
    const rp_status status = rp_tokenizer_batch(tokenizer, t->text, NULL, t->n, NULL, &made[0], &made[1], &made[2]);
    return status ? status : rp_failed() ? rp_error_status() : RP_OK;
}

rp_status cli_texts_inputs(const struct cli_texts *t, const struct model_kind *kind, rp_dtype dtype, rp_tensor **in) {
    static const char *const names[] = {"ids", "types", "mask"};
    rp_tensor *made[3];
    rp_tokenizer *tokenizer = tokenizer_open(t->tokenizer);
    rp_status status = rp_failed() ? rp_error_status() : tokenize(t, tokenizer, made);
    for (size_t k = 0; kind->inputs[k].name && !status; k++)
        for (size_t i = 0; i < 3; i++)
            if (!strcmp(kind->inputs[k].name, names[i]))
                in[k] = i < 2 ? made[i] : rp_to_dtype(made[i], dtype == RP_DTYPE_NONE ? RP_F32 : dtype);
    if (!status && rp_failed()) status = rp_error_status();
    rp_tokenizer_release(tokenizer);
    return status;
}

struct guess {
    int64_t id;
    double logit;
};

/* The likeliest of n, of equals the first; returns the logarithm of what the probabilities are divided by. */
static double likeliest(const double *logits, int64_t n, struct guess best[CLI_GUESSES]) {
    double sum = 0;
    for (int k = 0; k < CLI_GUESSES; k++) best[k] = (struct guess){-1, -INFINITY};
    for (int64_t i = 0; i < n; i++) {
        int at = CLI_GUESSES;
        while (at > 0 && logits[i] > best[at - 1].logit) at--;
        for (int k = CLI_GUESSES - 1; k > at; k--) best[k] = best[k - 1];
        if (at < CLI_GUESSES) best[at] = (struct guess){i, logits[i]};
    }
    for (int64_t i = 0; i < n; i++) sum += exp(logits[i] - best[0].logit);
    return best[0].logit + log(sum);
}

static void tell_at(const rp_tokenizer *tokenizer, const double *logits, int64_t n, int64_t place, bool next,
                    json_t *to) {
    struct guess best[CLI_GUESSES];
    const double whole = likeliest(logits, n, best);
    json_t *list = to ? json_array() : NULL;
    if (!list) printf(next ? "next:" : "token %lld:", (long long)place);
    for (int k = 0; k < CLI_GUESSES && best[k].id >= 0; k++) {
        const char *token = rp_tokenizer_token(tokenizer, best[k].id);
        const double p = exp(best[k].logit - whole);
        rp_error_take(); /* the model has more tokens than the tokenizer */
        if (list)
            json_array_append_new(list, json_pack("{s:I, s:s, s:f}", "id", (json_int_t)best[k].id, "token",
                                                  token ? token : "", "probability", p));
        else
            printf("%s %s %.4f", k ? "," : "", token ? token : "?", p);
    }
    if (list)
        json_array_append_new(to, json_pack("{s:I, s:o}", "at", (json_int_t)place, "guesses", list));
    else
        putchar('\n');
}

/* One text, of whose tokens ids has the numbers. */
static void tell_text(const struct cli_texts *t, const struct model_kind *kind, const rp_tokenizer *tokenizer, size_t k,
                      const int64_t *ids, int64_t n, const double *logits, int64_t vocabulary, json_t *to) {
    const int64_t mask = rp_tokenizer_id(tokenizer, "[MASK]");
    json_t *tokens = to ? json_array() : NULL, *places = to ? json_array() : NULL;
    if (!to) printf("text %zu: %s\ntokens:", k, cli_shown(t->text[k]));
    for (int64_t i = 0; i < n; i++) {
        const char *token = rp_tokenizer_token(tokenizer, ids[i]);
        if (to)
            json_array_append_new(tokens, json_string(token ? token : ""));
        else
            printf(" %s", token ? token : "?");
    }
    if (!to) putchar('\n');
    if (!sees_both_sides(kind) && n > 0) tell_at(tokenizer, logits + (n - 1) * vocabulary, vocabulary, n, true, places);
    for (int64_t i = 0; i < n && sees_both_sides(kind); i++)
        if (ids[i] == mask) tell_at(tokenizer, logits + i * vocabulary, vocabulary, i, false, places);
    if (to)
        json_array_append_new(to, json_pack("{s:s, s:o, s:o}", "text", t->text[k], "tokens", tokens, "places", places));
}

rp_status cli_texts_tell(const struct cli_texts *t, const struct model_kind *kind, const double *logits,
                         const int64_t size[3], json_t *to) {
    rp_tensor *made[3];
    rp_scope scope = rp_scope_begin();
    rp_tokenizer *tokenizer = tokenizer_open(t->tokenizer);
    rp_status status = rp_failed() ? rp_error_status() : tokenize(t, tokenizer, made);
    const size_t tokens = (size_t)size[1], n = t->n * tokens;
    int64_t *ids = calloc(2 * n + 1, sizeof *ids), *mask = ids ? ids + n : NULL;
    if (!ids && !status) status = RP_ERROR_OUT_OF_MEMORY;
    if (!status) status = rp_to_host(made[0], ids, n * sizeof *ids);
    if (!status) status = rp_to_host(made[2], mask, n * sizeof *mask);
    for (size_t k = 0; k < t->n && !status; k++) {
        int64_t own = 0; /* padding stands behind */
        for (size_t i = 0; i < tokens; i++) own += mask[k * tokens + i] != 0;
        tell_text(t, kind, tokenizer, k, ids + k * tokens, own, logits + k * tokens * (size_t)size[2], size[2], to);
    }
    free(ids);
    rp_tokenizer_release(tokenizer);
    rp_scope_end(scope, NULL, 0);
    return status;
}
