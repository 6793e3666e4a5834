/* `reprise run`: computes a model, or a graph in text form, with one backend or several, prints or writes results, and
 * compares them. Each backend gets the same inputs and the same random numbers, in calls enough that what is compared
 * was played back. */
#include "cli.h"
#include "graph_file.h"
#include "model_options.h"
#include "texts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BACKENDS = 16, CALLS = 3 };

struct run_options {
    struct cli_options common;
    struct cli_graph graph;        /* of a model: its name as the path, and --input */
    const struct model_kind *kind; /* NULL: a graph */
    struct cli_model_options model;
    struct cli_texts texts;
    bool list;
    char *backends; /* with commas between them; NULL: not given */
    const char *outputs[CLI_MAX_GRAPH_INPUTS];
    size_t n_outputs;
    const char *expected[CLI_MAX_GRAPH_INPUTS];
    size_t n_expected;
    double atol, rtol;
    bool compare;
};

/* What a backend computed, as doubles: every element type but i64 fits, whose differences are told of integers. */
struct result {
    char type[16];
    int64_t size[RP_MAX_DIMS];
    size_t ndim, count;
    rp_dtype dtype;
    double *real;   /* of real types */
    int64_t *whole; /* of the others */
    char *text;
};

static size_t n_results(const struct run_options *o) { return o->kind ? 1 : o->graph.n_out; }

/* ---------------------------------------------------------------- one backend */

static void free_results(struct result *r, size_t n) {
    for (size_t k = 0; k < n; k++) {
        free(r[k].real);
        free(r[k].whole);
        free(r[k].text);
    }
}

static rp_status keep(struct result *r, rp_tensor *t) {
    if (!t) return RP_OK; /* a result that the graph calls none */
    r->dtype = rp_dtype_of(t);
    r->ndim = rp_ndim(t);
    r->count = (size_t)rp_numel(t);
    snprintf(r->type, sizeof r->type, "%s", rp_dtype_name(r->dtype));
    for (size_t d = 0; d < r->ndim; d++) r->size[d] = rp_size(t, (int64_t)d);
    const bool real = r->dtype == RP_F32 || r->dtype == RP_F64 || r->dtype == RP_F16 || r->dtype == RP_BF16;
    void *data = malloc(r->count * 8 + 8);
    if (real)
        r->real = data;
    else
        r->whole = data;
    const size_t length = rp_format(t, NULL, 0) + 1;
    r->text = malloc(length);
    if (!data || !r->text) return RP_ERROR_OUT_OF_MEMORY;
    rp_tensor *wide = rp_to_dtype(t, real ? RP_F64 : RP_I64);
    if (rp_failed() || rp_to_host(wide, data, r->count * 8)) return rp_error_status();
    rp_format(t, r->text, length);
    return rp_failed() ? rp_error_status() : RP_OK;
}

/* What runs: a graph with arguments that are made anew for each call, or a model with its own. */
struct subject {
    rp_compiled *f;
    rp_ir *ir;
    struct cli_program program;
    size_t n_in;
    rp_tensor *in[CLI_MAX_GRAPH_INPUTS];
};

static rp_status make_model(const struct run_options *o, const char *backend, struct subject *s) {
    const rp_compile_options options = {.struct_size = sizeof options, .backend = backend, .wait = true};
    char why[512];
    rp_status status = cli_program_make(&s->program, o->kind, &o->model.program);
    if (status) return status;
    if (s->program.model.module) status = rp_module_set_training(s->program.model.module, false);
    s->n_in = cli_program_n_in(&s->program, false);
    rp_tensor *own[MODEL_MAX_INPUTS + 1];
    memcpy(own, s->program.in, sizeof own);
    if (!status && o->texts.n) status = cli_texts_inputs(&o->texts, o->kind, o->model.program.dtype, own);
    if (o->graph.n_inputs > s->n_in) {
        fprintf(stderr, "reprise run: %zu inputs are given, and %s has %zu arguments\n", o->graph.n_inputs,
                o->kind->name, s->n_in);
        return RP_ERROR_INVALID_ARGUMENT;
    }
    for (size_t k = 0; k < s->n_in && !status; k++) {
        rp_tensor *given = cli_given_input(&o->graph, k, own[k], why, sizeof why);
        s->in[k] = given ? given : own[k];
        if (!*why) continue;
        fprintf(stderr, "reprise run: input %zu (%s): %s\n", k, o->kind->inputs[k].name, cli_shown(why));
        status = RP_ERROR_INVALID_ARGUMENT;
    }
    if (!status) s->f = cli_program_compile(&s->program, cli_program_forward(&s->program), &options);
    return status ? status : rp_failed() ? rp_error_status() : RP_OK;
}

static rp_status run_backend(const struct run_options *o, const char *backend, bool write, struct result *results,
                             int *code) {
    const struct cli_graph *g = &o->graph;
    const size_t n_out = n_results(o);
    rp_tensor *out[CLI_MAX_GRAPH_INPUTS] = {NULL};
    struct subject s = {.n_in = g->n_in};
    rp_status status = RP_OK;
    rp_scope whole = rp_scope_begin();
    if (o->kind)
        status = make_model(o, backend, &s);
    else
        s.f = cli_graph_compile(g, backend, &s.ir);
    if (!status && rp_failed()) status = rp_error_status();
    for (int i = 0; i < CALLS && !status; i++) {
        rp_scope scope = rp_scope_begin();
        if (!o->kind) status = cli_graph_inputs(g, "run", s.in);
        if (!status) status = rp_call(s.f, s.in, s.n_in, out, n_out);
        for (size_t k = 0; k < n_out && !status && i + 1 == CALLS; k++) {
            status = keep(&results[k], out[k]);
            if (status || !write || k >= o->n_outputs || !strcmp(o->outputs[k], "_")) continue;
            if (out[k] && rp_npy_save(o->outputs[k], out[k]) == RP_OK) continue;
            fprintf(stderr, "reprise run: --output %s: %s\n", cli_shown(o->outputs[k]),
                    out[k] ? rp_error_message() : "the graph has no such result");
            rp_error_take();
            *code = CLI_FAILED;
        }
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(s.f);
    rp_ir_release(s.ir);
    cli_program_release(&s.program);
    rp_scope_end(whole, NULL, 0);
    return status;
}

/* ---------------------------------------------------------------- differences */

struct difference {
    double absolute, relative; /* largest; infinite where one is NaN or infinite and the other not so */
    double ulps;               /* largest, in steps of the element type */
    size_t at, count;          /* place of the largest absolute one; elements that differ */
    bool beyond;               /* of some element: more than atol + rtol * |a| */
};

/* Steps between two finite numbers of a type with so many bits of mantissa and this smallest exponent. */
static double steps(double a, double b, rp_dtype t) {
    const int bits = t == RP_F64 ? 52 : t == RP_F32 ? 23 : t == RP_F16 ? 10 : 7;
    const int lowest = t == RP_F64 ? -1022 : t == RP_F16 ? -14 : -126;
    const double larger = fmax(fabs(a), fabs(b));
    int exponent = larger > 0 ? ilogb(larger) : lowest;
    if (exponent < lowest) exponent = lowest;
    return fabs(ldexp(a - b, bits - exponent));
}

static struct difference compare(const struct result *a, const struct result *b, double atol, double rtol) {
    struct difference d = {0};
    for (size_t i = 0; i < a->count; i++) {
        double absolute, ulps, size;
        if (a->real) {
            const double x = a->real[i], y = b->real[i];
            if (x == y || (isnan(x) && isnan(y))) continue;
            const bool finite = isfinite(x) && isfinite(y);
            absolute = finite ? fabs(x - y) : INFINITY;
            ulps = finite ? steps(x, y, a->dtype) : INFINITY;
            size = fabs(x);
        } else {
            if (a->whole[i] == b->whole[i]) continue;
            absolute = ulps = fabs((double)a->whole[i] - (double)b->whole[i]);
            size = fabs((double)a->whole[i]);
        }
        d.count++;
        if (absolute > d.absolute) {
            d.absolute = absolute;
            d.at = i;
        }
        d.relative = fmax(d.relative, size > 0 ? absolute / size : INFINITY);
        d.ulps = fmax(d.ulps, ulps);
        if (!(absolute <= atol + rtol * size) || isinf(absolute)) d.beyond = true;
    }
    return d;
}

static bool same_type(const struct result *a, const struct result *b) {
    if (a->dtype != b->dtype || a->ndim != b->ndim || a->count != b->count) return false;
    return memcmp(a->size, b->size, a->ndim * sizeof *a->size) == 0;
}

/* ---------------------------------------------------------------- output */

/* JSON has no number for what is not finite. */
static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_string("inf"); }

static json_t *result_to_json(const struct result *r) {
    json_t *size = json_array();
    for (size_t d = 0; d < r->ndim; d++) json_array_append_new(size, json_integer((json_int_t)r->size[d]));
    return json_pack("{s:s, s:o, s:s}", "type", r->type, "size", size, "text", r->text ? r->text : "none");
}

static void print_result(size_t k, const struct result *r) {
    printf("result %zu: ", k);
    if (!r->text) {
        puts("none");
        return;
    }
    printf("%s[", r->type);
    for (size_t d = 0; d < r->ndim; d++) printf("%s%lld", d ? ", " : "", (long long)r->size[d]);
    printf("]\n%s\n", r->text);
}

/* One result of one backend beside the first one's. true: beyond the bound. */
static bool tell_difference(const struct run_options *o, json_t *doc, const char *first, const char *backend, size_t k,
                            const struct result *a, const struct result *b) {
    if (!same_type(a, b)) {
        if (doc)
            json_array_append_new(doc, json_pack("{s:i, s:s, s:s, s:b}", "result", (int)k, "backend", backend,
                                                 "reference", first, "same_type", 0));
        else
            printf("result %zu: %s and %s differ in type or size\n", k, backend, first);
        return true;
    }
    const struct difference d = compare(a, b, o->atol, o->rtol);
    if (doc) {
        json_array_append_new(doc, json_pack("{s:i, s:s, s:s, s:b, s:I, s:o, s:o, s:o, s:b}", "result", (int)k,
                                             "backend", backend, "reference", first, "same_type", 1, "elements",
                                             (json_int_t)d.count, "absolute", number(d.absolute), "relative",
                                             number(d.relative), "ulps", number(d.ulps), "beyond", d.beyond));
    } else if (!d.count) {
        printf("result %zu: %s equals %s\n", k, backend, first);
    } else {
        printf("result %zu: %s differs from %s in %zu of %zu: absolute %.3g (at %zu), relative %.3g, %.3g ulps%s\n", k,
               backend, first, d.count, a->count, d.absolute, d.at, d.relative, d.ulps,
               d.beyond ? ": beyond the bound" : "");
    }
    return d.beyond;
}

/* ---------------------------------------------------------------- the command */

static double bound(const char *name, const char *arg, struct argp_state *state) {
    char *end;
    const double x = strtod(arg, &end);
    if (end == arg || *end || !(x >= 0)) argp_error(state, "--%s: '%s' is no bound", name, cli_shown(arg));
    return x;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct run_options *o = state->input;
    char why[256], *end;
    switch (key) {
    case 'i':
        if (!cli_input_add(&o->graph, arg, why, sizeof why)) argp_error(state, "--input %s: %s", cli_shown(arg), why);
        return 0;
    case 'o':
        if (o->n_outputs == CLI_MAX_GRAPH_INPUTS)
            argp_error(state, "at most %d outputs", CLI_MAX_GRAPH_INPUTS);
        else
            o->outputs[o->n_outputs++] = arg;
        return 0;
    case 'e':
        if (o->n_expected == CLI_MAX_GRAPH_INPUTS)
            argp_error(state, "at most %d results", CLI_MAX_GRAPH_INPUTS);
        else
            o->expected[o->n_expected++] = arg;
        o->compare = true;
        return 0;
    case 'b': o->backends = arg; return 0;
    case 'c': o->compare = true; return 0;
    case 'l': o->list = true; return 0;
    case 'k': o->texts.tokenizer = arg; return 0;
    case 't':
        if (o->texts.n == CLI_MAX_TEXTS)
            argp_error(state, "at most %d texts", CLI_MAX_TEXTS);
        else
            o->texts.text[o->texts.n++] = arg;
        return 0;
    case 'A': o->atol = bound("atol", arg, state); return 0;
    case 'R': o->rtol = bound("rtol", arg, state); return 0;
    case 's':
        o->graph.seed = strtoull(arg, &end, 10);
        if (*end || *arg < '0' || *arg > '9') argp_error(state, "--seed: '%s' is no number", cli_shown(arg));
        return 0;
    case ARGP_KEY_ARG:
        if (o->graph.path) argp_error(state, "one model or graph at a time");
        o->graph.path = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        if (!o->list) argp_usage(state);
        return 0;
    default: return cli_model_option(&o->model, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static int list_models(bool as_json) {
    json_t *list = as_json ? json_array() : NULL;
    for (const struct model_kind *k = model_kinds; k->name; k++) {
        if (list)
            json_array_append_new(list,
                                  json_pack("{s:s, s:s, s:I, s:I, s:b, s:b}", "name", k->name, "summary", k->summary,
                                            "batch", (json_int_t)k->batch, "length", (json_int_t)k->length, "weights",
                                            k->bytes != 0, "trains", cli_program_trains(k)));
        else
            printf("%-21s%s\n", k->name, k->summary);
    }
    return list ? cli_print_json(list) : CLI_OK;
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"input", 'i', "INPUT", 0,
         "Of the next argument: TYPE[SIZE,...], @FILE.npy or =VALUE,... or several of these in this order (f32[8,10]@x.npy); _ "
         "leaves it random. An argument without one is random, of the type that the graph says",
         0},
        {"output", 'o', "FILE.npy", 0,
         "Writes the next result there, as the first backend computed it; _ passes one over", 0},
        {"backend", 'b', "NAME,...", 0, "The backends (fused; with --compare: eager, aot_eager, fused)", 0},
        {"expect", 'e', "FILE.npy", 0, "Compares the next result with that file, too; _ passes one over", 0},
        {"compare", 'c', NULL, 0, "Compares the results of all backends with those of the first; prints no values", 0},
        {"atol", 'A', "X", 0, "What absolute difference is no failure (0)", 0},
        {"rtol", 'R', "X", 0, "What difference beside the first backend's value is none, in addition (0)", 0},
        {"seed", 's', "N", 0, "Of random inputs, weights and nodes (0)", 0},
        {"list", 'l', NULL, 0, "Lists the models", 0},
        {"tokenizer", 'k', "FILE", 0, "Of --text: tokenizer.json, or the vocab.txt of a BERT", 0},
        {"text", 't', "TEXT", 0,
         "What a model of texts is given, once for each row; told are its likeliest tokens at each [MASK], or, of a model that goes "
         "on, those that come next",
         0},
        CLI_MODEL_OPTIONS,
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "MODEL | FILE\n--list",
        .doc =
            "Computes a model in its evaluation mode, or a graph in text form (docs/ir.md; `reprise dump` prints some), read "
            "from FILE (a name with a dot or slash) or, for -, from standard input, and prints the results. With --compare the results of several backends are held against each other, and "
            "the exit code is 1 where they differ by more than --atol + --rtol * value; two NaNs are equal.",
    };
    struct run_options o = {0};
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;
    if (o.list) return list_models(o.common.json);
    o.kind = model_find(o.graph.path);
    if (!o.kind && !cli_is_graph(o.graph.path) && access(o.graph.path, F_OK)) {
        cli_no_model("run", o.graph.path);
        return CLI_USAGE;
    }
    if (!o.kind && o.model.given) {
        fputs("reprise run: --weights, --prefix, --dtype, --batch, --length and --device are for models\n", stderr);
        return CLI_USAGE;
    }
    if (o.kind && !cli_model_fits(&o.model, "run", o.kind)) return CLI_USAGE;
    if (!cli_texts_fit(&o.texts, o.kind)) return CLI_USAGE;
    o.model.program.seed = o.graph.seed;
    char names[512], *backends[MAX_BACKENDS];
    size_t n = 0;
    snprintf(names, sizeof names, "%s", o.backends ? o.backends : o.compare ? "eager,aot_eager,fused" : "fused");
    for (char *save, *name = strtok_r(names, ",", &save); name && n < MAX_BACKENDS; name = strtok_r(NULL, ",", &save)) {
        if (!cli_is_backend("run", name)) return CLI_USAGE;
        backends[n++] = name;
    }
    if (n < (o.compare && !o.n_expected ? 2 : 1)) {
        fprintf(stderr, "reprise run: --backend names %zu; %s\n", n,
                o.compare ? "two or more are compared" : "at least one is needed");
        return CLI_USAGE;
    }
    int code = o.kind ? cli_model_device(&o.model, "run") : cli_graph_load(&o.graph, "run", o.graph.path);
    if (code) return code;
    const size_t n_out = n_results(&o);
    if (o.n_outputs > n_out) {
        fprintf(stderr, "reprise run: %zu outputs are named, and the %s has %zu results\n", o.n_outputs,
                o.kind ? "model" : "graph", n_out);
        cli_graph_free(&o.graph);
        return CLI_USAGE;
    }
    struct result *results = calloc((MAX_BACKENDS + 1) * n_out + 1, sizeof *results);
    rp_set_grad_enabled(false);
    rp_status status = results ? RP_OK : RP_ERROR_OUT_OF_MEMORY;
    for (size_t b = 0; b < n && !status; b++) {
        status = run_backend(&o, backends[b], b == 0, results + b * n_out, &code);
        if (status) code = cli_graph_failed(&o.graph, backends[b], status);
    }
    struct result *expected = results ? results + MAX_BACKENDS * n_out : NULL;
    for (size_t k = 0; k < o.n_expected && !status; k++) {
        if (!strcmp(o.expected[k], "_")) continue;
        rp_tensor *t = rp_npy_load(o.expected[k]);
        status = rp_is_error(t) ? rp_error_status() : keep(&expected[k], t);
        if (status) code = cli_graph_failed(&o.graph, "run", status);
    }
    json_t *list = o.common.json ? json_array() : NULL, *differences = o.common.json ? json_array() : NULL;
    json_t *texts = o.common.json && o.texts.n ? json_array() : NULL;
    const bool told = o.texts.n && !status && results->ndim == 3 && results->real && (list || !o.compare);
    if (told) status = cli_texts_tell(&o.texts, o.kind, results->real, results->size, texts);
    if (told && status) code = cli_graph_failed(&o.graph, "run", status);
    for (size_t k = 0; k < n_out && !status; k++) {
        if (list)
            json_array_append_new(list, result_to_json(results + k));
        else if (!o.compare && !told)
            print_result(k, results + k);
        for (size_t b = 0; b < n && k < o.n_expected && expected[k].text; b++) {
            if (tell_difference(&o, differences, "the file", backends[b], k, expected + k, results + b * n_out + k))
                code = CLI_FAILED;
        }
        for (size_t b = 1; b < n && o.compare; b++) {
            if (tell_difference(&o, differences, backends[0], backends[b], k, results + k, results + b * n_out + k))
                code = CLI_FAILED;
        }
    }
    if (list && !status) {
        json_t *doc = json_pack("{s:o, s:o}", "results", list, "differences", differences);
        if (texts) json_object_set_new(doc, "texts", texts);
        const int printed = cli_print_json(doc);
        if (!code) code = printed;
    } else {
        json_decref(list);
        json_decref(differences);
        json_decref(texts);
    }
    if (results) free_results(results, (MAX_BACKENDS + 1) * n_out);
    free(results);
    cli_graph_free(&o.graph);
    return code;
}

const struct cli_command cli_cmd_run = {"run", "compute a model or a graph in text form, and compare backends", run};
