/* See graph_file.h. Inputs of nobody's choice are normal random numbers, and 0 or 1 where elements are no reals: such are places of most
 * tables. */
#include "graph_file.h"

#include <reprise_ir.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    rp_dtype dtype;
    bool floating;
} types[] = {
#define RP_DTYPE(suffix, name, short_name, category, ...) {short_name, RP_##suffix, #category[0] == 'F'},
#include "core/dtype.def"
#undef RP_DTYPE
};

bool cli_is_graph(const char *name) { return !strcmp(name, "-") || strchr(name, '/') || strchr(name, '.'); }

static bool parse_input(const char *text, struct cli_input *out, char *why, size_t why_bytes) {
    *out = (struct cli_input){.dtype = RP_DTYPE_NONE};
    if (!strcmp(text, "_")) return true;
    snprintf(why, why_bytes, "expected TYPE[SIZE,...], @FILE.npy, =VALUE,... or _");
    const size_t length = strcspn(text, "[@=");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strlen(types[i].name) == length && !strncmp(types[i].name, text, length)) out->dtype = types[i].dtype;
    }
    if (length && out->dtype == RP_DTYPE_NONE) {
        snprintf(why, why_bytes, "types are f32, f64, f16, bf16, i32, i64, u8, b8, i8 and i16");
        return false;
    }
    const char *p = text + length;
    if (*p == '[') {
        out->sized = true;
        for (p++; *p != ']'; p += *p == ',') {
            char *end;
            errno = 0;
            if (*p < '0' || *p > '9' || out->ndim == RP_MAX_DIMS) return false;
            out->size[out->ndim++] = strtoll(p, &end, 10);
            if (errno || (*end != ',' && *end != ']') || (*end == ',' && end[1] == ']')) return false;
            p = end;
        }
        p++;
    }
    if (*p == '@') {
        out->file = p + 1;
        return p[1] != 0;
    }
    if (*p == '=') {
        out->values = p + 1;
        return p[1] != 0;
    }
    return !*p && p != text;
}

bool cli_input_add(struct cli_graph *g, const char *text, char *why, size_t why_bytes) {
    if (g->n_inputs < CLI_MAX_GRAPH_INPUTS) return parse_input(text, &g->inputs[g->n_inputs++], why, why_bytes);
    snprintf(why, why_bytes, "at most %d inputs", CLI_MAX_GRAPH_INPUTS);
    return false;
}

int cli_graph_load(struct cli_graph *g, const char *command, const char *path) {
    char why[256];
    g->path = path;
    g->text = cli_read(path, CLI_GRAPH_BYTES, &g->bytes, why, sizeof why);
    if (!g->text) {
        fprintf(stderr, "reprise %s: %s: %s\n", command, cli_shown(path), why);
        return CLI_FAILED;
    }
    rp_ir *ir = rp_ir_parse(g->text, g->bytes);
    if (!rp_failed()) (void)rp_ir_check(ir);
    g->n_in = rp_ir_block_args(rp_ir_body(ir), NULL);
    g->n_out = rp_ir_block_results(rp_ir_body(ir), NULL);
    rp_ir_release(ir);
    int code = CLI_OK;
    if (rp_failed()) {
        fprintf(stderr, "reprise %s: %s: %s\n", command, cli_shown(path), rp_error_message());
        code = CLI_FAILED;
    } else if (!g->uncalled && (g->n_in > CLI_MAX_GRAPH_INPUTS || g->n_out > CLI_MAX_GRAPH_INPUTS)) {
        fprintf(stderr, "reprise %s: %s: a graph of %zu arguments and %zu results; at most %d are served\n", command,
                cli_shown(path), g->n_in, g->n_out, CLI_MAX_GRAPH_INPUTS);
        code = CLI_FAILED;
    } else if (g->n_inputs > g->n_in) {
        fprintf(stderr, "reprise %s: %zu inputs are given, and the graph has %zu arguments\n", command, g->n_inputs,
                g->n_in);
        code = CLI_USAGE;
    }
    if (code) {
        rp_error_take();
        cli_graph_free(g);
    }
    return code;
}

void cli_graph_free(struct cli_graph *g) {
    free(g->text);
    g->text = NULL;
}

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)rp_ir_run(*(rp_ir *const *)ctx, in, n_in, out, n_out);
}

rp_compiled *cli_graph_compile(const struct cli_graph *g, const char *backend, rp_ir **ir) {
    const rp_compile_options options = {.struct_size = sizeof options, .backend = backend, .wait = true};
    *ir = rp_ir_parse(g->text, g->bytes);
    if (rp_failed()) return NULL;
    const rp_fn fn = {body, ir, sizeof *ir, "graph"};
    return rp_compile(fn, &options);
}

/* ---------------------------------------------------------------- inputs */

/* Row k is that of dtype k + 1, the table's order. */
static bool is_real(rp_dtype t) { return types[t - 1].floating; }
static const char *type_name(rp_dtype t) { return types[t - 1].name; }

/* Numbers with commas between them, in order; one number stands for all. Those of integers are exact. */
static rp_tensor *literal(const char *text, const int64_t *size, size_t ndim, rp_dtype dtype, char *why,
                          size_t why_bytes) {
    union {
        double f;
        int64_t i;
    } *data = NULL;
    size_t count = 1, numbers = 1, n = 0;
    for (size_t d = 0; d < ndim; d++) count *= (size_t)size[d];
    for (const char *p = text; *p; p++) numbers += *p == ',';
    rp_tensor *t = NULL;
    const bool real = is_real(dtype);
    if (numbers != 1 && numbers != count)
        snprintf(why, why_bytes, "%zu values for %zu elements", numbers, count);
    else if (!(data = malloc(numbers * sizeof *data)))
        snprintf(why, why_bytes, "out of memory");
    for (const char *p = text; data && n < numbers; n++) {
        char *end;
        errno = 0;
        if (real)
            data[n].f = strtod(p, &end);
        else
            data[n].i = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ',') || *p == ' ' || (!real && errno)) {
            snprintf(why, why_bytes, "'%s' is no %s", p, real ? "number" : "integer");
            break;
        }
        p = end + (*end == ',');
    }
    if (data && n == numbers && numbers == 1)
        t = rp_full(size, ndim, real ? rp_f64(data[0].f) : rp_i64(data[0].i),
                    RP_OPTIONS(rp_full_options, .dtype = dtype));
    else if (data && n == numbers)
        t = rp_to_dtype(rp_from_data(data, size, ndim, real ? RP_F64 : RP_I64), dtype);
    free(data);
    return t;
}

/* The same elements with these strides, where they are those of a dense tensor whose dims were permuted; else row-major, and the
   graph says what it wanted. */
static rp_tensor *laid_out(rp_tensor *t, const int64_t *stride) {
    const size_t ndim = rp_ndim(t);
    int64_t order[RP_MAX_DIMS], back[RP_MAX_DIMS], size[RP_MAX_DIMS], dense = 1;
    for (size_t d = 0; d < ndim; d++) {
        size_t at = d;
        for (; at > 0 && stride[order[at - 1]] < stride[d]; at--) order[at] = order[at - 1];
        order[at] = (int64_t)d;
    }
    bool same = true;
    for (size_t d = ndim; d-- > 0;) {
        if (rp_size(t, order[d]) != 1 && stride[order[d]] != dense) return t;
        dense *= rp_size(t, order[d]);
        size[d] = rp_size(t, order[d]);
        back[order[d]] = (int64_t)d;
        same = same && order[d] == (int64_t)d;
    }
    if (same) return t;
    rp_tensor *view =
        rp_permute(rp_empty(size, ndim, RP_OPTIONS(rp_empty_options, .dtype = rp_dtype_of(t))), back, ndim);
    rp_copy_(view, t);
    return view;
}

static rp_tensor *make_input(const struct cli_input *given, const struct cli_input *graph, char *why,
                             size_t why_bytes) {
    const rp_dtype dtype = given->dtype != RP_DTYPE_NONE ? given->dtype : graph->dtype;
    const struct cli_input *sizes = given->sized ? given : graph;
    if (given->values) return literal(given->values, sizes->size, sizes->ndim, dtype, why, why_bytes);
    if (!given->file) {
        if (is_real(dtype)) return rp_randn(sizes->size, sizes->ndim, RP_OPTIONS(rp_randn_options, .dtype = dtype));
        return rp_to_dtype(rp_randint(0, 2, sizes->size, sizes->ndim), dtype);
    }
    rp_tensor *t = rp_npy_load(given->file);
    if (rp_is_error(t)) {
        snprintf(why, why_bytes, "%s", rp_error_message());
        rp_error_take();
        return NULL;
    }
    bool fits = given->dtype == RP_DTYPE_NONE || rp_dtype_of(t) == given->dtype;
    if (given->sized) {
        fits = fits && rp_ndim(t) == given->ndim;
        for (size_t d = 0; fits && d < given->ndim; d++) fits = rp_size(t, (int64_t)d) == given->size[d];
    }
    if (fits) return t;
    int n = snprintf(why, why_bytes, "%s holds %s[", given->file, type_name(rp_dtype_of(t)));
    for (size_t d = 0; d < rp_ndim(t) && n > 0 && (size_t)n < why_bytes; d++)
        n += snprintf(why + n, why_bytes - (size_t)n, "%s%lld", d ? ", " : "", (long long)rp_size(t, (int64_t)d));
    if (n > 0 && (size_t)n < why_bytes) snprintf(why + n, why_bytes - (size_t)n, "]");
    return NULL;
}

rp_tensor *cli_given_input(const struct cli_graph *g, size_t k, rp_tensor *like, char *why, size_t why_bytes) {
    *why = 0;
    if (k >= g->n_inputs) return NULL;
    const struct cli_input *given = &g->inputs[k];
    struct cli_input form = {.dtype = rp_dtype_of(like), .ndim = rp_ndim(like)};
    if (!given->file && !given->values && !given->sized && given->dtype == RP_DTYPE_NONE) return NULL;
    for (size_t d = 0; d < form.ndim; d++) form.size[d] = rp_size(like, (int64_t)d);
    return make_input(given, &form, why, why_bytes);
}

rp_status cli_graph_inputs(const struct cli_graph *g, const char *command, rp_tensor **in) {
    static const struct cli_input none = {.dtype = RP_DTYPE_NONE};
    const rp_device before = rp_default_device();
    rp_status status = rp_manual_seed(g->seed);
    rp_ir *ir = status ? NULL : rp_ir_parse(g->text, g->bytes);
    if (rp_failed()) status = rp_error_status();
    for (size_t k = 0; k < g->n_in && !status; k++) {
        struct cli_input graph = none;
        int64_t stride[RP_MAX_DIMS];
        rp_ir_value_info info = {.struct_size = sizeof info};
        const rp_ir_value *args;
        char why[512] = "";
        (void)rp_ir_block_args(rp_ir_body(ir), &args);
        status = rp_ir_value_get(ir, args[k], &info);
        graph.dtype = info.dtype, graph.ndim = info.ndim;
        for (size_t d = 0; d < info.ndim && !status; d++) { /* a symbol is that of the traced call */
            graph.size[d] = rp_ir_size_hint(ir, info.size[d]);
            stride[d] = rp_ir_size_hint(ir, info.stride[d]);
        }
        if (!status) status = rp_set_default_device(info.device);
        if (status) break;
        in[k] = make_input(k < g->n_inputs ? &g->inputs[k] : &none, &graph, why, sizeof why);
        if (!in[k]) {
            fprintf(stderr, "reprise %s: input %zu: %s\n", command, k, *why ? cli_shown(why) : "none");
            status = RP_ERROR_INVALID_ARGUMENT;
        } else if (rp_ndim(in[k]) == graph.ndim && !rp_failed()) {
            in[k] = laid_out(in[k], stride);
        }
        if (!status && rp_failed()) status = rp_error_status();
    }
    rp_set_default_device(before);
    rp_ir_release(ir);
    return status;
}

int cli_graph_failed(const struct cli_graph *g, const char *command, rp_status status) {
    if (rp_failed())
        fprintf(stderr, "reprise %s: %s: %s: %s\n", command, cli_shown(g->path), rp_status_name(status),
                rp_error_message());
    rp_error_take();
    return CLI_FAILED;
}
