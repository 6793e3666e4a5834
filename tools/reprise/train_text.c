/* Training and sampling of the language model. Called by cmd_demo.c alone. */
#include "train_text.h"

#include "chars.h"
#include "measure.h"
#include "program.h"

#include <reprise_io.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every tenth block of the text is held out. */
enum { BATCH = 128, EVALUATIONS = 8, HELD_OUT = 512, BLOCK = 400, MAX_BYTES = 64 << 20, MIN_BYTES = 8192 };
enum { CONTEXT = 24, RESUMED = 20 }; /* characters that the next one is guessed from; steps behind a checkpoint */
static const double TEMPERATURE = 0.5, DROPOUT = 0.4;

/* ---------------------------------------------------------------- the text */

/* The file's bytes, retained: by cli_read, which knows standard input and waits for no pipe. */
static bool read_text(struct cli_text *text, const char *path, char *why, size_t why_bytes) {
    size_t n;
    char *data = cli_read(path, MAX_BYTES, &n, why, why_bytes);
    if (data && n < MIN_BYTES) snprintf(why, why_bytes, "a text of at least %d bytes is needed", MIN_BYTES);
    if (data && n >= MIN_BYTES) {
        rp_scope scope = rp_scope_begin();
        text->codes = rp_retain(rp_from_data(data, RP_DIMS((int64_t)n), RP_U8));
        text->size = n;
        snprintf(text->path, sizeof text->path, "%s", path);
        rp_scope_end(scope, NULL, 0);
    }
    free(data);
    return text->codes != NULL;
}

/* Bytes become their places among those that the text has; the codes are int64, on the default device. */
static rp_status encode(struct cli_text *text) {
    int64_t counts[256], code[256];
    rp_scope scope = rp_scope_begin();
    rp_status status = rp_to_host(rp_bincount(text->codes, NULL, 256), counts, sizeof counts);
    for (int byte = 0; byte < 256 && !status; byte++) {
        code[byte] = text->vocabulary;
        if (counts[byte]) text->bytes[text->vocabulary++] = (uint8_t)byte;
    }
    rp_tensor *bytes = text->codes;
    if (!status) text->codes = rp_retain(rp_take(rp_from_data(code, RP_DIMS(256), RP_I64), rp_to_dtype(bytes, RP_I64)));
    rp_release(bytes);
    if (!status && rp_failed()) status = rp_error_status();
    rp_scope_end(scope, NULL, 0);
    return status;
}

int cli_text_load(struct cli_text *text, const char *path) {
    static const char *const defaults[] = {"GPL-3",   "Apache-2.0", "GPL-2",   "LGPL-2.1",
                                           "MPL-2.0", "GFDL-1.3",   "Artistic"};
    char why[256];
    *text = (struct cli_text){0};
    if (path) {
        if (!read_text(text, path, why, sizeof why)) {
            fprintf(stderr, "reprise demo: --text %s: %s\n", cli_shown(path), why);
            return CLI_FAILED;
        }
    } else {
        char name[256];
        for (size_t i = 0; !text->size && i < sizeof defaults / sizeof *defaults; i++) {
            snprintf(name, sizeof name, "/usr/share/common-licenses/%s", defaults[i]);
            read_text(text, name, why, sizeof why);
        }
        if (!text->size) {
            fputs("reprise demo: this system has no licence text to learn from; name a text with --text FILE\n",
                  stderr);
            return CLI_FAILED;
        }
    }
    if (encode(text) == RP_OK) return CLI_OK;
    fprintf(stderr, "reprise demo: %s\n", rp_error_message());
    rp_error_take();
    cli_text_free(text);
    return CLI_FAILED;
}

void cli_text_free(struct cli_text *text) {
    rp_release(text->codes);
    *text = (struct cli_text){0};
}

/* ---------------------------------------------------------------- batches */

/* All places of the held-out blocks, or of the others: contexts and their next characters do not cross a block's end. (N) int64 on
   the CPU. */
static rp_tensor *places_of(const struct cli_text *text, bool held_out) {
    const rp_scalar ten = rp_i64(10), nine = rp_i64(9);
    rp_tensor *block = rp_arange(rp_i64(0), rp_i64((int64_t)text->size / BLOCK), rp_i64(1), NULL);
    rp_tensor *last = rp_eq_scalar(rp_remainder_scalar(block, ten), nine);
    rp_tensor *first = rp_masked_select(rp_mul_scalar(block, rp_i64(BLOCK)), held_out ? last : rp_logical_not(last));
    rp_tensor *within = rp_arange(rp_i64(0), rp_i64(BLOCK - CONTEXT), rp_i64(1), NULL);
    return rp_to_device(rp_flatten(rp_add(rp_unsqueeze(first, 1), within)), rp_cpu(), false);
}

/* Contexts and what follows them, from n places. */
static rp_status make_batch(const struct cli_text *text, rp_tensor *places, rp_tensor *in[2]) {
    rp_tensor *within = rp_arange(rp_i64(0), rp_i64(CONTEXT + 1), rp_i64(1), NULL);
    rp_tensor *windows = rp_take(text->codes, rp_add(rp_unsqueeze(places, 1), within));
    in[0] = rp_narrow(windows, 1, 0, CONTEXT);
    in[1] = rp_select(windows, 1, CONTEXT);
    return rp_failed() ? rp_error_status() : RP_OK;
}

/* The loader's next batch; an epoch that is over is followed by another. */
static rp_status next_batch(const struct cli_text *text, rp_loader *loader, rp_tensor *in[2]) {
    rp_tensor *places;
    if (!rp_loader_next(loader, &places, 1) && !rp_failed()) (void)rp_loader_next(loader, &places, 1);
    return rp_failed() ? rp_error_status() : make_batch(text, places, in);
}

/* ---------------------------------------------------------------- functions: step (program.c), held-out loss, next
   character */

static void held_out_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct cli_program *p = ctx;
    (void)n_in, (void)n_out;
    out[0] = model_loss(&p->model, chars_forward(p->model.self, in[0]), in);
}

static void sample_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct cli_program *p = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *logits = chars_forward(p->model.self, in[0]);                                      /* (1, vocabulary) */
    out[0] = rp_multinomial(rp_softmax(rp_div_scalar(logits, rp_f64(TEMPERATURE)), -1), 1, true); /* (1, 1) */
}

/* Without dropout, as sampling is. */
static rp_status held_out_loss(const struct cli_text *text, rp_module *m, rp_compiled *f, double *loss) {
    rp_tensor *in[2], *out = NULL;
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(false);
    rp_status status = rp_module_set_training(m, false);
    rp_tensor *all = places_of(text, true), *some = rp_arange(rp_i64(0), rp_i64(HELD_OUT), rp_i64(1), NULL);
    const rp_device here = rp_default_device();
    some = rp_floor_divide_scalar(rp_mul_scalar(some, rp_i64(rp_numel(all))), rp_i64(HELD_OUT));
    if (!status) status = make_batch(text, rp_take(rp_to_device(all, here, false), some), in);
    if (!status) status = rp_call(f, in, 2, &out, 1);
    *loss = status ? NAN : rp_item_f64(out);
    if (!status && rp_failed()) status = rp_error_status();
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    return status ? status : rp_module_set_training(m, true);
}

static rp_status write_sample(const struct cli_text *text, rp_compiled *f, char *sample) {
    int64_t context[CONTEXT];
    bool grad = rp_set_grad_enabled(false);
    rp_status status = rp_to_host(rp_slice(text->codes, 0, 9 * BLOCK, 9 * BLOCK + CONTEXT), context, sizeof context);
    for (size_t i = 0; !status && i < CLI_TEXT_SAMPLE; i++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *in = rp_from_data(context, RP_DIMS(1, CONTEXT), RP_I64), *out = NULL;
        status = rp_call(f, &in, 1, &out, 1);
        int64_t code = status ? 0 : rp_item_i64(out);
        if (!status && rp_failed()) status = rp_error_status();
        if (!status && (code < 0 || code >= text->vocabulary)) code = 0;
        rp_scope_end(scope, NULL, 0);
        memmove(context, context + 1, (CONTEXT - 1) * sizeof *context);
        context[CONTEXT - 1] = code;
        sample[i] = (char)text->bytes[code];
        sample[i + 1] = 0;
    }
    rp_set_grad_enabled(grad);
    return status;
}

/* ---------------------------------------------------------------- progress */

struct progress {
    FILE *out; /* NULL: none */
    bool bar;  /* a terminal: one line that is written over */
    double begin, shown;
};

/* A terminal sees a bar that moves all the time; elsewhere a line is written every four seconds. */
static void show_progress(struct progress *p, double done, const struct cli_text_result *r, bool last) {
    double now = cli_now();
    if (!p->out || (!last && now - p->shown < (p->bar ? 0.1 : 4.0))) return;
    p->shown = now;
    double left = done > 0 ? (now - p->begin) * (1 - done) / done : 0;
    enum {
        WIDTH = 16
    }; /* the whole line is shorter than a terminal's 80 columns: one that wraps cannot be written over */
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) {
        bar[i] = i < (int)(WIDTH * done + 0.5) ? '#' : '.';
    }
    bar[WIDTH] = 0;
    fprintf(p->out, "%s  [%s] %3.0f%%  loss %.3f, held out %.3f  %.0f/s  %.0f s left%s", p->bar ? "\r" : "", bar,
            100 * done, r->loss, r->held_out, r->tokens_per_second, left, p->bar ? "\033[K" : "\n");
    if (p->bar && last) fputc('\n', p->out);
    fflush(p->out);
}

/* ---------------------------------------------------------------- training */

/* What a training goes on with, all of which rp_save keeps. */
struct training {
    struct cli_program program;
    rp_compiled *step;
    rp_loader *loader; /* of places */
};

static rp_status train(const struct cli_text *text, struct training *t, rp_compiled *held_out, rp_device device,
                       double seconds, size_t steps, struct progress *p, struct cli_text_result *r) {
    double begin = cli_now(), now = begin;
    rp_status status = RP_OK;
    p->begin = begin;
    p->shown = begin - 3; /* the first line comes after a second */
    for (r->steps = 0; !status && r->steps < steps && now - begin < seconds;) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[2], *loss = NULL;
        status = next_batch(text, t->loader, in);
        if (!status) status = rp_call(t->step, in, 2, &loss, 1);
        r->steps++;
        /* Reading the loss waits for the device: not at every step. */
        if (!status && (r->steps % 16 == 0 || r->steps == 1)) {
            double value = rp_item_f64(loss);
            r->loss = r->steps == 1 ? value : 0.8 * r->loss + 0.2 * value;
            status = rp_failed() ? rp_error_status() : RP_OK;
        }
        rp_scope_end(scope, NULL, 0);
        now = cli_now();
        r->tokens_per_second = (double)r->steps * BATCH / (now - begin);
        double done = fmin(fmax((double)r->steps / (double)steps, (now - begin) / seconds), 1);
        if (!status && done * EVALUATIONS >= (double)(r->n_held_out + 1) && r->n_held_out < CLI_TEXT_EVALUATIONS) {
            status = held_out_loss(text, t->program.model.module, held_out, &r->held_out);
            r->history[r->n_held_out++] = r->held_out;
            /* The learning rate is a tensor that the recorded step reads: it falls without a new recording. */
            if (!status)
                status = rp_optimizer_set_lr(t->program.optimizer, 0, t->program.model.kind->rate * (1 - 0.9 * done));
        }
        if (!status) show_progress(p, done, r, false);
    }
    if (!status) status = rp_synchronize(device);
    r->seconds = cli_now() - begin;
    if (!status) show_progress(p, 1, r, true);
    return status;
}

/* ---------------------------------------------------------------- checkpoint */

static rp_status training_make(const struct cli_text *text, struct training *t, const struct model_kind *kind,
                               uint64_t seed) {
    const struct cli_program_options options = {.batch = BATCH, .seed = seed};
    const rp_compile_options whole = {.struct_size = sizeof whole};
    rp_status status = cli_program_make(&t->program, kind, &options);
    if (status) return status;
    t->step = cli_program_compile(&t->program, cli_program_step(&t->program), &whole);
    rp_tensor *places = places_of(text, false);
    t->loader = rp_loader_new(&places, 1, BATCH,
                              RP_OPTIONS(rp_loader_options, .shuffle = true, .drop_last = true, .seed = seed));
    return rp_failed() ? rp_error_status() : RP_OK;
}

static void training_release(struct training *t) {
    rp_compiled_release(t->step);
    rp_loader_release(t->loader);
    cli_program_release(&t->program);
}

/* Some more steps; then the last loss and all parameters are in *values, to be freed. */
static rp_status go_on(const struct cli_text *text, struct training *t, float **values, size_t *n) {
    rp_status status = RP_OK;
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[2], *loss = NULL;
    for (int i = 0; i < RESUMED && !status; i++) {
        status = next_batch(text, t->loader, in);
        if (!status) status = rp_call(t->step, in, 2, &loss, 1);
    }
    *n = 1;
    for (size_t i = 0; i < t->program.n_params; i++) *n += (size_t)rp_numel(t->program.params[i]);
    *values = malloc(*n * sizeof **values);
    if (!status && !*values) status = RP_ERROR_OUT_OF_MEMORY;
    float *at = *values;
    if (!status) status = rp_to_host(loss, at++, sizeof *at);
    for (size_t i = 0; i < t->program.n_params && !status; i++) {
        rp_tensor *p = t->program.params[i];
        status = rp_to_host(p, at, (size_t)rp_numel(p) * sizeof *at);
        at += rp_numel(p);
    }
    rp_scope_end(scope, NULL, 0);
    return status;
}

/* Writes the training to a file, goes on, and then goes on once more from the file with another model, of other
   weights. */
static rp_status resume(const struct cli_text *text, struct training *t, const struct model_kind *kind,
                        struct cli_text_result *r) {
    struct training other = {.loader = NULL};
    float *values[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    const char *folder = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/reprise-demo-XXXXXX", folder && *folder ? folder : "/tmp");
    const int fd = mkstemp(path);
    if (fd < 0) return RP_ERROR_IO;
    close(fd);
    rp_status status =
        rp_save(path, t->program.model.module,
                RP_OPTIONS(rp_save_options, .optimizer = t->program.optimizer, .random = true, .loader = t->loader));
    struct stat st;
    r->checkpoint_bytes = status || stat(path, &st) ? 0 : (uint64_t)st.st_size;
    if (!status) status = go_on(text, t, &values[0], &n[0]);
    if (!status) status = training_make(text, &other, kind, 2);
    if (!status)
        status = rp_load(
            path, other.program.model.module,
            RP_OPTIONS(rp_load_options, .optimizer = other.program.optimizer, .random = true, .loader = other.loader));
    if (!status) status = go_on(text, &other, &values[1], &n[1]);
    r->resumed_equal = !status && n[0] == n[1] && memcmp(values[0], values[1], n[0] * sizeof **values) == 0;
    training_release(&other);
    free(values[0]);
    free(values[1]);
    unlink(path);
    return status;
}

/* ---------------------------------------------------------------- all of it */

rp_status cli_text_train(const struct cli_text *text, rp_device device, double seconds, size_t steps, bool quiet,
                         struct cli_text_result *r) {
    *r = (struct cli_text_result){0};
    const struct chars_options sizes = {.vocabulary = text->vocabulary, .context = CONTEXT, .dropout = DROPOUT};
    struct model_kind kind = *model_find("chars");
    kind.options = &sizes;
    struct training t;
    struct cli_program *program = &t.program;
    rp_status status = training_make(text, &t, &kind, 1);
    if (status) return status;
    rp_module *m = program->model.module;
    const rp_compile_options options = {.struct_size = sizeof options};
    rp_compiled *held_out =
        cli_program_compile(program, (rp_fn){held_out_body, program, sizeof *program, "held_out"}, &options);
    rp_compiled *next = cli_program_compile(program, (rp_fn){sample_body, program, sizeof *program, "next"}, &options);
    struct progress progress = {.out = quiet ? (isatty(2) ? cli_terminal : NULL) : stdout};
    progress.bar = progress.out && isatty(fileno(progress.out));
    if (!quiet) {
        printf("  %s:\n  %zu characters, %lld different; context %d, batch %d; %zu held out\n", cli_shown(text->path),
               text->size, (long long)text->vocabulary, CONTEXT, BATCH, text->size / BLOCK / 10 * BLOCK);
        fflush(stdout);
    }
    status = rp_failed() ? rp_error_status() : held_out_loss(text, m, held_out, &r->held_out_before);
    r->held_out = r->held_out_before;
    if (!status) status = train(text, &t, held_out, device, seconds, steps, &progress, r);
    if (!status) status = held_out_loss(text, m, held_out, &r->held_out);
    if (!status && !quiet) {
        printf("  %zu steps in %.1f s, %.0f tokens/s; held-out loss %.3f before, %.3f after\n", r->steps, r->seconds,
               r->tokens_per_second, r->held_out_before, r->held_out);
    }
    if (!status) status = resume(text, &t, &kind, r);
    if (!status && !quiet)
        printf("  checkpoint of %.1f KiB; %d more steps, and these again in a model resumed\n  from it: %s\n",
               (double)r->checkpoint_bytes / 1024, RESUMED, r->resumed_equal ? "the same bits" : "the results DIFFER");
    if (!status) status = rp_module_set_training(m, false);
    if (!status) status = write_sample(text, next, r->sample);
    if (!status && !quiet) {
        printf("  sampled at temperature %.1f:\n\n", TEMPERATURE);
        for (const char *line = r->sample; *line;) {
            int length = (int)strcspn(line, "\n");
            if (length > 74) length = 74;
            printf("    ");
            for (int i = 0; i < length; i++) putchar((unsigned char)line[i] < 0x20 || line[i] == 0x7F ? '?' : line[i]);
            putchar('\n');
            line += length + (line[length] == '\n');
        }
        fflush(stdout);
    }
    rp_compiled_release(held_out);
    rp_compiled_release(next);
    training_release(&t);
    return status ? status : r->resumed_equal ? RP_OK : RP_ERROR_INTERNAL;
}

json_t *cli_text_to_json(const struct cli_text *text, const struct cli_text_result *r) {
    /* The sample may cut a character of several bytes; JSON takes whole UTF-8 only. */
    char sample[CLI_TEXT_SAMPLE + 1];
    size_t n = strlen(r->sample);
    for (size_t i = 0; i <= n; i++) {
        sample[i] = (unsigned char)r->sample[i] < 128 ? r->sample[i] : '?';
    }
    json_t *history = json_array();
    for (size_t i = 0; i < r->n_held_out; i++) {
        json_array_append_new(history, json_real(r->history[i]));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:I, s:b, s:s}", "text", text->path,
                     "characters", (json_int_t)text->size, "vocabulary", (json_int_t)text->vocabulary, "steps",
                     (json_int_t)r->steps, "seconds", r->seconds, "tokens_per_second", r->tokens_per_second, "loss",
                     r->loss, "held_out_before", r->held_out_before, "held_out", r->held_out, "held_out_history",
                     history, "checkpoint_bytes", (json_int_t)r->checkpoint_bytes, "resumed_equal", r->resumed_equal,
                     "sample", sample);
}
