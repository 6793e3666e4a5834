/* Texts as what goes into a model of texts: tokenized, and its guesses told as tokens. */
#ifndef REPRISE_TEXTS_H
#define REPRISE_TEXTS_H

#include "cli.h"
#include "model.h"

enum { CLI_MAX_TEXTS = 16, CLI_GUESSES = 5 };

struct cli_texts {
    const char *tokenizer; /* tokenizer.json, or a vocab.txt of WordPiece; NULL: no texts */
    const char *text[CLI_MAX_TEXTS];
    size_t n;
};

/* Do they fit together and with the kind (NULL: a graph)? Else says why not. */
bool cli_texts_fit(const struct cli_texts *t, const struct model_kind *kind);
/* The kind's arguments are replaced by the texts', (n, tokens); in[] has those of the kind. New tensors of the scope. */
rp_status cli_texts_inputs(const struct cli_texts *t, const struct model_kind *kind, rp_dtype dtype, rp_tensor **in);
/* What the logits (n, tokens, vocabulary) say: the likeliest tokens at each [MASK] of a model that sees both sides, of others
   those that come next. Prints them, or, with to not NULL, puts them there. */
rp_status cli_texts_tell(const struct cli_texts *t, const struct model_kind *kind, const double *logits,
                         const int64_t size[3], json_t *to);

#endif
