/* reprise_text.h - texts to token numbers and back: WordPiece as BERT has it, byte-level BPE as GPT-2 and Llama 3 have
 * it, from the files that Hugging Face's tokenizers write. On top of reprise.h.
 *
 * Texts are UTF-8 and end with a NUL; bytes that are no UTF-8 stand for U+FFFD, but a byte-level tokenizer takes them
 * as they are. What letters, marks and lower case are beyond ASCII is said by utf8proc (package libutf8proc2), opened
 * at run time: without it a text that needs it is RP_ERROR_UNAVAILABLE. JSON is read by Jansson (package libjansson4).
 * A file is taken as a whole or not at all; errors are RP_ERROR_IO with its name and the line and byte, or the member
 * of the JSON document. A tokenizer does not change: threads may share it.
 */
#ifndef REPRISE_TEXT_H
#define REPRISE_TEXT_H

#include "reprise.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_tokenizer rp_tokenizer;

/* ---------------------------------------------------------------- made from files

   Never NULL: on failure a tokenizer on which every call fails. */

typedef struct rp_wordpiece_options { /* zero is bert-base-uncased's */
    size_t struct_size;
    bool keep_case;         /* do_lower_case=False: letters stay as they are */
    rp_tristate no_accents; /* marks go from letters: not given, where letters become small */
    bool whole_chinese;     /* no blanks around Chinese characters */
    size_t longest_word;    /* characters; a longer word is unknown; 0: 100 */
} rp_wordpiece_options;
/* vocab.txt: a token a line, numbered from 0. [PAD], [UNK], [CLS], [SEP] and [MASK], as far as it has them, are
   special; texts become [CLS] A [SEP] and [CLS] A [SEP] B [SEP]. */
RP_CALL rp_tokenizer *rp_tokenizer_wordpiece(const char *vocab_txt, const rp_wordpiece_options *options);
/* vocab.json and merges.txt of GPT-2: <|endoftext|>, where it is there, is special, and nothing is put around texts.
   prefix_space: a text that begins with no blank gets one. */
RP_CALL rp_tokenizer *rp_tokenizer_bpe(const char *vocab_json, const char *merges_txt, bool prefix_space);
/* tokenizer.json with a WordPiece or byte-level BPE model. What it has of other parts is an error that names it; its
   truncation and padding are not used: rp_encode_options say. */
RP_CALL rp_tokenizer *rp_tokenizer_open(const char *tokenizer_json);
RP_API void rp_tokenizer_release(rp_tokenizer *t); /* NULL is ignored */

/* ---------------------------------------------------------------- tokens */

RP_CALL size_t rp_tokenizer_count(const rp_tokenizer *t); /* one more than the largest number of a token */
/* -1: there is none of that name */
RP_CALL int64_t rp_tokenizer_id(const rp_tokenizer *t, const char *token);
/* As the file has it, borrowed; NULL: none has that number. */
RP_CALL const char *rp_tokenizer_token(const rp_tokenizer *t, int64_t id);

/* ---------------------------------------------------------------- texts to numbers */

typedef enum rp_truncation {
    RP_TRUNCATION_LONGEST = 0, /* of a pair, the longer text gives until both are equally long */
    RP_TRUNCATION_FIRST = 1,
    RP_TRUNCATION_SECOND = 2,
    RP_TRUNCATION_ERROR = 3 /* RP_ERROR_INVALID_ARGUMENT where a text has more tokens */
} rp_truncation;

typedef struct rp_encode_options {
    size_t struct_size;
    bool no_special;          /* nothing is put around texts; what stands in a text is still found */
    size_t max_tokens;        /* with what is put around; 0: no bound */
    rp_truncation truncation; /* texts lose tokens at their end */
    size_t pad_to;            /* of a batch: rows of at least so many; 0: of the longest */
    bool pad_left;
    const char *pad_token; /* NULL: [PAD] or <pad> */
} rp_encode_options;

/* Numbers of the tokens of a text, or of a pair of texts (pair NULL: none), and to which of them each belongs, 0 or 1:
   the first `room` into ids and types (NULL: not wanted). Returns how many there are. */
RP_CALL size_t rp_tokenizer_encode(const rp_tokenizer *t, const char *text, const char *pair,
                                   const rp_encode_options *options, int64_t *ids, int64_t *types, size_t room);
/* n texts, or n pairs, as (n, tokens) int64 tensors on the default device: numbers, types, and a mask with 1 for a
   token and 0 for padding (NULL: not wanted). */
RP_CALL rp_status rp_tokenizer_batch(const rp_tokenizer *t, const char *const *texts, const char *const *pairs,
                                     size_t n, const rp_encode_options *options, rp_tensor **ids, rp_tensor **types,
                                     rp_tensor **mask);

/* ---------------------------------------------------------------- numbers to text */

/* The text of n tokens, NUL-terminated and cut at `bytes`; returns the length that it needs without the NUL.
   skip_special: without special tokens. Pieces of a word are joined; bytes of a character that is cut in between stay
   as they are. */
RP_CALL size_t rp_tokenizer_decode(const rp_tokenizer *t, const int64_t *ids, size_t n, bool skip_special, char *text,
                                   size_t bytes);

#ifdef __cplusplus
}
#endif

#include "reprise_text_calls.h"

#endif
