/* Prints graphs in the text form of docs/ir.md. Whatever is printed parses back to an equal graph (ir_parse.c). Values are
   numbered in the order in which they are defined, so equal graphs print alike. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "trace/ir.h"

typedef struct printer {
    const rp_ir *ir;
    rp__text *out;
    rp__symbols *symbols; /* in which sizes are compared; counted */
    uint32_t *number;     /* value -> printed number; NULL: the index itself */
    uint32_t *owner;      /* storage -> printed number of the first value in it, RP__IR_NONE: not met */
    uint32_t next;
    bool sites;
} printer;

static void indent(printer *p, unsigned depth) { rp__text_add(p->out, "%*s", (int)(2 * depth), ""); }

static void quoted(rp__text *out, const char *s) {
    rp__text_puts(out, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            rp__text_add(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            rp__text_add(out, "\\x%02x", c);
        else
            rp__text_write(out, s, 1);
    }
    rp__text_puts(out, "\"");
}

static void use(printer *p, rp__ir_value v) {
    if (v == RP__IR_NONE)
        rp__text_puts(p->out, "none");
    else
        rp__text_add(p->out, "%%%u", p->number ? p->number[v] : v);
}

static void dims(printer *p, const rp_dim *d, size_t n) {
    for (size_t i = 0; i < n; i++) {
        rp__text_puts(p->out, i ? ", " : "");
        rp__symbols_text(p->ir->symbols, d[i], false, p->out);
    }
}

/* f32[2, s0] cuda:1 strides(1, 2) offset(4) alias(%0) shared grad */
static void type(printer *p, rp__ir_value v) {
    const rp__ir_value_info *info = &p->ir->values[v];
    rp__text_add(p->out, "%s[", rp__dtypes[info->meta.dtype].short_name);
    dims(p, info->meta.size, info->meta.ndim);
    rp__text_puts(p->out, "]");
    if (info->meta.device.type != RP_DEVICE_CPU || info->meta.device.index != 0)
        rp__text_add(p->out, " %s:%d", info->meta.device.type == RP_DEVICE_CPU ? "cpu" : "cuda",
                     (int)info->meta.device.index);
    rp__symbols *outer = rp__symbols_enter(p->symbols);
    bool quiet = rp__symbols_quiet(true), contiguous = rp__ir_value_contiguous(info);
    (void)rp__symbols_quiet(quiet);
    (void)rp__symbols_enter(outer);
    if (!contiguous) {
        rp__text_puts(p->out, " strides(");
        dims(p, info->stride, info->meta.ndim);
        rp__text_puts(p->out, ")");
    }
    if (!rp__dim_same_word(info->offset, 0)) {
        rp__text_puts(p->out, " offset(");
        dims(p, &info->offset, 1);
        rp__text_puts(p->out, ")");
    }
    if (p->owner && p->owner[info->storage] != RP__IR_NONE)
        rp__text_add(p->out, " alias(%%%u)", p->owner[info->storage]);
    if (info->shared) rp__text_puts(p->out, " shared");
    if (info->requires_grad) rp__text_puts(p->out, " grad");
}

static void definition(printer *p, rp__ir_value v) {
    if (v == RP__IR_NONE) {
        rp__text_puts(p->out, "none");
        return;
    }
    if (p->number) p->number[v] = p->next++;
    use(p, v);
    rp__text_puts(p->out, ": ");
    type(p, v);
    if (p->owner && p->owner[p->ir->values[v].storage] == RP__IR_NONE)
        p->owner[p->ir->values[v].storage] = p->number[v];
}

static void scalar(rp__text *out, rp_scalar s) {
    if (s.kind == RP_SCALAR_I64)
        rp__text_add(out, "%lld", (long long)s.v.i);
    else if (s.kind == RP_SCALAR_BOOL)
        rp__text_puts(out, s.v.b ? "true" : "false");
    else
        rp__text_number(out, s.v.f);
}

static void attribute(printer *p, const rp_attr *a, bool optional) {
    rp__text *out = p->out;
    if (optional && rp__attr_is_none(a)) {
        rp__text_puts(out, "none");
        return;
    }
    switch (a->kind) {
    case RP_ATTR_INT: rp__symbols_text(p->ir->symbols, a->v.i, false, out); break;
    case RP_ATTR_FLOAT: rp__text_number(out, a->v.f); break;
    case RP_ATTR_BOOL: rp__text_puts(out, a->v.b ? "true" : "false"); break;
    case RP_ATTR_SCALAR:
        if (!rp__scalar_is_symbol(a->v.scalar)) {
            scalar(out, a->v.scalar);
            break;
        }
        rp__text_puts(out, rp__scalar_is_size(a->v.scalar) ? "sym(" : "num(");
        rp__symbols_text(p->ir->symbols, a->v.scalar.v.i, false, out);
        rp__text_puts(out, ")");
        break;
    case RP_ATTR_DTYPE:
        rp__text_puts(out, a->v.dtype == RP_DTYPE_NONE ? "none" : rp__dtypes[a->v.dtype].short_name);
        break;
    case RP_ATTR_INTS:
        rp__text_puts(out, "[");
        dims(p, a->v.ints, a->n);
        rp__text_puts(out, "]");
        break;
    case RP_ATTR_FLOATS:
        rp__text_puts(out, "[");
        for (size_t i = 0; i < a->n; i++) {
            rp__text_puts(out, i ? ", " : "");
            rp__text_number(out, a->v.floats[i]);
        }
        rp__text_puts(out, "]");
        break;
    case RP_ATTR_NONE: break;
    case RP_ATTR_GENERATOR: {
        size_t k = 0;
        if (!a->v.generator) {
            rp__text_puts(out, "none");
            break;
        }
        while (k < p->ir->n_generators && p->ir->generators[k] != a->v.generator) k++;
        rp__text_add(out, "generator(%zu)", k);
        break;
    }
    case RP_ATTR_STRING:
        if (a->v.string)
            quoted(out, a->v.string);
        else
            rp__text_puts(out, "none");
        break;
    }
}

static void operands(printer *p, const rp__ir_node *n) {
    rp__text_puts(p->out, "(");
    if (n->kind != RP__IR_OP) {
        for (uint32_t k = 0; k < n->n_in; k++) {
            rp__text_puts(p->out, k ? ", " : "");
            use(p, n->in[k]);
        }
    } else {
        unsigned tensor = 0;
        for (unsigned i = 0; i < n->op->schema.n_params; i++) {
            const rp__param *param = &n->op->schema.params[i];
            if (param->kind == RP__PARAM_ATTR) continue;
            rp__text_puts(p->out, tensor ? ", " : "");
            if (param->kind == RP__PARAM_TENSORS) rp__text_puts(p->out, "[");
            for (uint32_t k = n->list_begin[tensor]; k < n->list_begin[tensor + 1]; k++) {
                rp__text_puts(p->out, k > n->list_begin[tensor] ? ", " : "");
                use(p, n->in[k]);
            }
            if (param->kind == RP__PARAM_TENSORS) rp__text_puts(p->out, "]");
            tensor++;
        }
    }
    rp__text_puts(p->out, ")");
    for (uint32_t k = 0; k < rp__ir_forms[n->kind].n_attrs; k++) {
        if (k > 0 && !n->attrs[k].v.i) continue;
        rp__text_add(p->out, " %s(", rp__ir_forms[n->kind].attr[k]);
        dims(p, &n->attrs[k].v.i, 1);
        rp__text_puts(p->out, ")");
    }
    if (n->kind == RP__IR_OP && n->n_attrs) {
        unsigned k = 0, said = 0;
        for (unsigned i = 0; i < n->op->schema.n_params && k < n->n_attrs; i++) {
            const rp__param *param = &n->op->schema.params[i];
            if (param->kind != RP__PARAM_ATTR) continue;
            const rp_attr *a = &n->attrs[k++], otherwise = rp__param_default(param);
            /* what PyTorch takes by keyword and the call does not give goes without saying */
            if (param->keyword && param->optional && param->has_default && rp__attr_is_none(a) &&
                rp__attr_is_none(&otherwise))
                continue;
            rp__text_add(p->out, "%s%s = ", said++ ? ", " : " {", param->name);
            attribute(p, a, param->optional);
        }
        if (said) rp__text_puts(p->out, "}");
    }
    if (!rp__dim_same_word(n->random_offset, 0) || !rp__dim_same_word(n->random_count, 0)) {
        rp__text_puts(p->out, " random(");
        dims(p, &n->random_offset, 1);
        rp__text_puts(p->out, ", ");
        dims(p, &n->random_count, 1);
        rp__text_puts(p->out, ")");
    }
}

/* Elements as numbers; NaNs, whose payload a number does not show, as the bits of the element. */
static void constant(printer *p, const rp__ir_node *n) {
    rp_dtype dtype = p->ir->values[n->out[0]].meta.dtype;
    size_t bytes = rp__dtype_bytes(dtype), count = bytes ? n->data_bytes / bytes : 0;
    rp__text_puts(p->out, " [");
    for (size_t i = 0; i < count; i++) {
        const unsigned char *element = (const unsigned char *)n->data + i * bytes;
        rp_scalar s = rp__scalar_load(dtype, element);
        rp__text_puts(p->out, i ? ", " : "");
        if (s.kind == RP_SCALAR_F64 && isnan(s.v.f)) {
            uint64_t bits = 0;
            memcpy(&bits, element, bytes);
            rp__text_add(p->out, "nan(0x%llx)", (unsigned long long)bits);
        } else {
            scalar(p->out, s);
        }
    }
    rp__text_puts(p->out, "]");
}

static void site_text(printer *p, const char *site) {
    if (p->sites && site && *site) {
        rp__text_puts(p->out, " @");
        quoted(p->out, site);
    }
}

static void head(printer *p, const rp__ir_node *n) {
    const rp__ir_form *form = &rp__ir_forms[n->kind];
    rp__text_puts(p->out, form->name ? form->name : n->op->name);
    if (form->index)
        rp__text_add(p->out, " %u", n->captured_index);
    else if (form->data)
        constant(p, n);
    else
        operands(p, n);
}

static void arguments(printer *p, const rp__ir_block *block) {
    rp__text_puts(p->out, "(");
    for (uint32_t i = 0; i < block->n_args; i++) {
        rp__text_puts(p->out, i ? ", " : "");
        definition(p, block->args[i]);
    }
    rp__text_puts(p->out, ")");
}

static void block_text(printer *p, const rp__ir_block *block, unsigned depth);

/* Results are defined after the regions: their numbers come after those inside, as in rp__ir_hash. The text puts them in
   front, so they are printed into a buffer of their own first. */
static void node_text(printer *p, uint32_t at, unsigned depth) {
    const rp__ir_node *n = &p->ir->nodes[at];
    indent(p, depth);
    rp__text *whole = p->out, tail = {0};
    p->out = &tail;
    head(p, n);
    if (n->n_regions) {
        rp__text_puts(p->out, " {");
        site_text(p, n->site);
        rp__text_puts(p->out, "\n");
        for (uint32_t r = 0; r < n->n_regions; r++) {
            indent(p, depth + 1);
            rp__text_puts(p->out, rp__ir_forms[n->kind].region[r].name);
            arguments(p, &n->regions[r]);
            rp__text_puts(p->out, " {\n");
            block_text(p, &n->regions[r], depth + 2);
            indent(p, depth + 1);
            rp__text_puts(p->out, "}\n");
        }
        indent(p, depth);
        rp__text_puts(p->out, "}\n");
    } else {
        site_text(p, n->site);
        rp__text_puts(p->out, "\n");
    }
    p->out = whole;
    for (uint32_t k = 0; k < n->n_out; k++) {
        rp__text_puts(p->out, k ? ", " : "");
        definition(p, n->out[k]);
    }
    if (n->n_out) rp__text_puts(p->out, " = ");
    if (tail.failed)
        p->out->failed = true;
    else
        rp__text_write(p->out, tail.data, tail.length);
    rp__text_free(&tail);
}

static void block_text(printer *p, const rp__ir_block *block, unsigned depth) {
    for (size_t i = 0; i < block->n_nodes; i++) {
        if (!p->ir->nodes[block->nodes[i]].dead) node_text(p, block->nodes[i], depth);
    }
    indent(p, depth);
    rp__text_puts(p->out, "return");
    for (uint32_t i = 0; i < block->n_results; i++) {
        rp__text_puts(p->out, i ? ", " : " ");
        use(p, block->results[i]);
    }
    rp__text_puts(p->out, "\n");
}

static void symbols_text(printer *p) {
    const rp__symbols *s = p->ir->symbols;
    for (size_t i = 0; i < rp__symbols_count(s); i++) {
        const rp__symbol *symbol = rp__symbols_at(s, i);
        rp__text_add(p->out, "  symbol s%zu = %lld", i, (long long)symbol->hint);
        if (symbol->input != RP__SYMBOL_NO_SOURCE)
            rp__text_add(p->out, " of %s(%u, %u)", symbol->is_stride ? "stride" : "size", symbol->input, symbol->dim);
        rp__text_puts(p->out, "\n");
    }
    for (size_t i = 0; i < rp__symbols_guard_count(s); i++) {
        rp__text_puts(p->out, "  guard ");
        rp__symbols_guard_text(s, rp__symbols_guard_at(s, i), false, p->out);
        rp__text_puts(p->out, "\n");
    }
}

void rp__ir_print(const rp_ir *ir, bool sites, rp__text *out) {
    printer p = {.ir = ir, .out = out, .sites = sites};
    p.number = rp__calloc(ir->n_values + 1, sizeof *p.number);
    p.owner = rp__alloc((ir->n_storages + 1u) * sizeof *p.owner);
    if (!p.number || !p.owner || rp__symbols_scratch(ir->symbols, &p.symbols) != RP_OK) {
        out->failed = true;
    } else {
        memset(p.owner, 0xff, (ir->n_storages + 1u) * sizeof *p.owner);
        rp__text_puts(out, "graph ");
        quoted(out, ir->name);
        /* Symbols come first: sizes of the arguments use them. */
        if (rp__symbols_count(ir->symbols)) {
            rp__text_puts(out, " with {\n");
            symbols_text(&p);
            rp__text_puts(out, "}");
        }
        rp__text_puts(out, " ");
        arguments(&p, &ir->body);
        rp__text_puts(out, " {\n");
        block_text(&p, &ir->body, 1);
        rp__text_puts(out, "}\n");
    }
    rp__symbols_release(p.symbols);
    rp__free(p.number);
    rp__free(p.owner);
}

void rp__ir_print_node(const rp_ir *ir, uint32_t node, rp__text *out) {
    printer p = {.ir = ir, .out = out};
    const rp__ir_node *n = &ir->nodes[node];
    if (rp__symbols_scratch(ir->symbols, &p.symbols) != RP_OK) {
        out->failed = true;
        return;
    }
    head(&p, n);
    if (n->n_out && n->out[0] != RP__IR_NONE) {
        rp__text_puts(out, ": ");
        type(&p, n->out[0]);
    }
    if (n->site && *n->site) rp__text_add(out, " at %s", n->site);
    rp__symbols_release(p.symbols);
}

size_t rp_ir_text_at(const char *site, const rp_ir *ir, char *buf, size_t bytes) {
    RP__CALLED_FROM(site);
    rp__text t = {0};
    if (bytes && buf) buf[0] = '\0';
    if (rp__ir_usable(ir, "rp_ir_text") != RP_OK) return 0;
    rp__ir_print(ir, true, &t);
    if (t.failed) {
        (void)RP__OOM("text of a graph");
        rp__text_free(&t);
        return 0;
    }
    size_t length = t.length;
    if (bytes && buf) {
        size_t n = length < bytes - 1 ? length : bytes - 1;
        memcpy(buf, t.data, n);
        buf[n] = '\0';
    }
    rp__text_free(&t);
    return length;
}
