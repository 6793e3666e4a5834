/* What a tokenizer is made of, for the files tokenizer*.c: a vocabulary, special tokens, how a text is cleaned and cut
   into words, and how a word becomes tokens. Read by tokenizer_files.c, used by tokenizer.c through
   tokenizer_words.c. */
#ifndef RP_IO_TOKENIZER_H
#define RP_IO_TOKENIZER_H

#include <reprise_text.h>

#include "core/handle.h"
#include "core/text.h"

enum { RP__TOKEN_IDS = 1 << 24 }; /* numbers of tokens are below: larger ones are of hostile files */

/* ---------------------------------------------------------------- vocabulary: tokens by name and by number */

typedef struct rp__token {
    char *text; /* NULL: there is none of this number */
    size_t bytes;
} rp__token;

typedef struct rp__vocab {
    rp__token *tokens; /* by number */
    size_t n, capacity;
    uint32_t *slots; /* number + 1 of a token, by the hash of its text; 0: free */
    size_t n_slots, count;
} rp__vocab;

int64_t rp__vocab_find(const rp__vocab *v, const char *text, size_t bytes); /* -1: none */
/* NULL, or why not: a text or number that is there, a number out of range. *status: RP_ERROR_OUT_OF_MEMORY if that is
   the cause. */
const char *rp__vocab_add(rp__vocab *v, const char *text, size_t bytes, int64_t id);
void rp__vocab_free(rp__vocab *v);

/* ---------------------------------------------------------------- parts */

/* A token that is looked for in texts before they are cut into words. */
typedef struct rp__added {
    char *text;
    size_t bytes;
    int64_t id;
    bool special, normalized, word, left,
        right; /* normalized: looked for behind cleaning; word: only as one; left, right: blanks there go */
} rp__added;

typedef struct rp__merge {
    uint32_t left, right; /* numbers; left UINT32_MAX: free */
    uint32_t rank, id;
} rp__merge;

typedef enum rp__splitter { RP__SPLIT_BERT, RP__SPLIT_GPT2, RP__SPLIT_LLAMA3, RP__SPLIT_NONE } rp__splitter;

typedef struct rp__part { /* of what is put around texts */
    int sequence;         /* 0: the token; 1, 2: the first, the second text */
    int64_t id, type;
} rp__part;
typedef struct rp__template {
    rp__part *parts;
    size_t n, capacity;
} rp__template;

struct rp_tokenizer {
    rp__handle handle;
    rp__vocab vocab;
    rp__added *added;
    size_t n_added, added_capacity;

    bool bert; /* cleaning as BERT's; else none */
    bool clean, chinese, no_accents, lower;

    rp__splitter splitter;
    bool prefix_space; /* before a text that begins with none */

    bool wordpiece; /* else byte-level BPE */
    char *prefix;   /* of pieces that continue a word */
    size_t longest_word;
    int64_t unknown; /* -1: none */
    rp__merge *merges;
    size_t n_merges, n_merge_slots;
    bool ignore_merges;   /* a word that is a token is that token */
    int64_t of_byte[256]; /* -1: none */

    rp__template single, pair; /* n 0: the texts alone */
    enum { RP__DECODE_WORDPIECE, RP__DECODE_BYTES, RP__DECODE_BLANKS } decoder;
    char *decoder_prefix;
    bool cleanup;
};

/* A growing list of numbers. */
typedef struct rp__ids {
    int64_t *data;
    size_t n, capacity;
} rp__ids;
rp_status rp__ids_add(rp__ids *ids, int64_t id);

/* Byte b as the character that stands for it in the names of byte-level tokens, and back (-1: it stands for none). */
uint32_t rp__byte_character(uint8_t b);
int rp__character_byte(uint32_t c);

rp_status rp__merges_build(rp_tokenizer *t, size_t n); /* room for n merges */
/* NULL, or why not. */
const char *rp__merges_add(rp_tokenizer *t, const char *left, size_t left_bytes, const char *right, size_t right_bytes);
const char *rp__added_add(rp_tokenizer *t, rp__added a); /* text is copied */
rp_status rp__template_add(rp__template *t, rp__part part);

/* BERT's cleaning, added to *out. */
rp_status rp__tokenizer_clean(const rp_tokenizer *t, const char *text, size_t bytes, rp__text *out);
/* The tokens of a whole text without what is put around it. */
rp_status rp__tokenizer_text(const rp_tokenizer *t, const char *text, size_t bytes, rp__ids *ids);

/* Files: each fills *t, which is zero but for its head, or fails. */
rp_status rp__tokenizer_read_vocab_txt(rp_tokenizer *t, const char *path, const rp_wordpiece_options *options);
rp_status rp__tokenizer_read_bpe(rp_tokenizer *t, const char *vocab, const char *merges, bool prefix_space);
rp_status rp__tokenizer_read_json(rp_tokenizer *t, const char *path);

#endif
