/* A language model of characters: the next one from a context of fixed length, by an embedding and three linear layers
 * with dropout. Names: embedding, first, second, third.
 *
 * The struct stays where it is from chars_init to chars_release: its module knows where its tensors lie.
 */
#ifndef MODELS_CHARS_H
#define MODELS_CHARS_H

#include <reprise.h>
#include <reprise_nn.h>

struct chars_options {  /* zero fields: as in the comments */
    int64_t vocabulary; /* 96 */
    int64_t context;    /* 24 */
    int64_t width;      /* of a character; 16 */
    int64_t hidden;     /* 256 */
    double dropout;     /* behind the first and second layer; 0: 0.1; negative: 0 */
};

struct chars {
    rp_module *module; /* training mode at first: rp_module_set_training */
    rp_embedding_layer embedding;
    rp_linear_layer first, second, third;
    rp_dropout_layer dropout;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status chars_init(struct chars *c, const struct chars_options *options);
void chars_release(struct chars *c);
rp_tensor *chars_forward(const struct chars *c, rp_tensor *codes); /* (batch, context) int64 to (batch, vocabulary) */
/* The same as a function to compile; ctx: the struct chars. */
void chars_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
