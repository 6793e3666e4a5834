/* The third part of `reprise demo`: a character-level language model, trained on a text through a compiled function that
 * holds forward, backward and optimizer, then asked for text of its own. */
#ifndef REPRISE_TRAIN_TEXT_H
#define REPRISE_TRAIN_TEXT_H

#include "cli.h"

#include <reprise.h>

struct cli_text {
    char path[512];
    rp_tensor *codes; /* one a byte of the file, below vocabulary: int64 */
    size_t size;
    int64_t vocabulary;
    uint8_t bytes[256]; /* of a code */
};

enum { CLI_TEXT_SAMPLE = 400, CLI_TEXT_EVALUATIONS = 16 };
struct cli_text_result {
    size_t steps;
    double seconds, tokens_per_second, loss, held_out_before, held_out;
    double history[CLI_TEXT_EVALUATIONS]; /* held-out loss on the way */
    size_t n_held_out;
    uint64_t checkpoint_bytes;
    bool resumed_equal; /* what was resumed from it went on as what had not stopped, to the last bit */
    char sample[CLI_TEXT_SAMPLE + 1];
};

/* path NULL: the first licence text of the system. Returns an exit code; errors are printed. */
int cli_text_load(struct cli_text *text, const char *path);
void cli_text_free(struct cli_text *text);

/* Trains for at most `seconds` and `steps` and samples, on the default device, which is `device`. quiet: nothing on stdout. The error
   stays sticky. */
rp_status cli_text_train(const struct cli_text *text, rp_device device, double seconds, size_t steps, bool quiet,
                         struct cli_text_result *result);
json_t *cli_text_to_json(const struct cli_text *text, const struct cli_text_result *result);

#endif
