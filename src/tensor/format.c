/* Text of a tensor as PyTorch's repr writes it: four digits, scientific when the range asks for it, summarised past 1000
   elements. The rules are those of torch/_tensor_str.py with its default print options. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/text.h"
#include "device/capture.h"
#include "device/error_record.h"
#include "tensor/tensor.h"

enum { THRESHOLD = 1000, EDGE = 3, LINE = 80, INDENT = 7 /* "tensor(" */ };

const char *(*rp__grad_name_hook)(const rp_tensor *t);

typedef struct printer {
    const rp_tensor *t;
    const char *base; /* host address of element 0 */
    bool summarise;
    bool integral, scientific; /* floats: all are whole numbers; %.4e */
    bool any;                  /* a nonzero finite number was seen */
    double least, most;        /* of their absolute values */
    size_t width;
    rp__text out;
} printer;

static rp_scalar element(const printer *p, const char *address) {
    return rp__scalar_load((rp_dtype)p->t->dtype, address);
}

static size_t number_text(const printer *p, rp_scalar s, char buf[64]) {
    if (s.kind == RP_SCALAR_BOOL) return (size_t)snprintf(buf, 64, "%s", s.v.b ? "True" : "False");
    if (s.kind == RP_SCALAR_I64) return (size_t)snprintf(buf, 64, "%" PRId64, s.v.i);
    if (isnan(s.v.f)) return (size_t)snprintf(buf, 64, "nan");
    if (isinf(s.v.f)) return (size_t)snprintf(buf, 64, s.v.f < 0 ? "-inf" : "inf");
    const int n = p->scientific ? snprintf(buf, 64, "%.4e", s.v.f)
                  : p->integral ? snprintf(buf, 64, "%.0f.", s.v.f)
                                : snprintf(buf, 64, "%.4f", s.v.f);
    return rp__text_point(buf, (size_t)n);
}

static void look_at_range(printer *p, const char *address) {
    rp_scalar s = element(p, address);
    if (s.kind != RP_SCALAR_F64 || !isfinite(s.v.f) || s.v.f == 0) return;
    double magnitude = fabs(s.v.f);
    p->least = !p->any || magnitude < p->least ? magnitude : p->least;
    p->most = !p->any || magnitude > p->most ? magnitude : p->most;
    p->any = true;
    p->integral = p->integral && s.v.f == ceil(s.v.f);
}

static void look_at_width(printer *p, const char *address) {
    char buf[64];
    rp_scalar s = element(p, address);
    if (s.kind == RP_SCALAR_F64 && (!isfinite(s.v.f) || s.v.f == 0))
        return; /* PyTorch measures nonzero finite numbers only */
    size_t n = number_text(p, s, buf);
    p->width = n > p->width ? n : p->width;
}

static bool elided(const printer *p, size_t dim, int64_t i) {
    int64_t n = p->t->size[dim];
    return p->summarise && n > 2 * EDGE && i >= EDGE && i < n - EDGE;
}

/* Every element that will be shown. */
static void visit(printer *p, size_t dim, const char *address, void (*look)(printer *p, const char *address)) {
    const rp_tensor *t = p->t;
    if (dim == t->ndim) {
        look(p, address);
        return;
    }
    int64_t step = t->stride[dim] * (int64_t)rp__dtype_bytes((rp_dtype)t->dtype);
    for (int64_t i = 0; i < rp__dim_number(t->size[dim]); i++) {
        if (elided(p, dim, i)) i = t->size[dim] - EDGE;
        visit(p, dim + 1, address + i * step, look);
    }
}

static void pad(rp__text *out, size_t n, char c) {
    while (n--) rp__text_write(out, &c, 1);
}

static void show_number(printer *p, const char *address) {
    char buf[64];
    size_t n = number_text(p, element(p, address), buf);
    pad(&p->out, n < p->width ? p->width - n : 0, ' ');
    rp__text_write(&p->out, buf, n);
}

static void show(printer *p, size_t dim, const char *address, size_t indent) {
    const rp_tensor *t = p->t;
    if (dim == t->ndim) {
        show_number(p, address);
        return;
    }
    int64_t step = t->stride[dim] * (int64_t)rp__dtype_bytes((rp_dtype)t->dtype);
    size_t deep = t->ndim - dim, shown = 0;
    size_t on_a_line = indent < LINE ? (LINE - indent) / (p->width + 2) : 0;
    if (on_a_line == 0) on_a_line = 1;
    rp__text_puts(&p->out, "[");
    for (int64_t i = 0; i < rp__dim_number(t->size[dim]); i++, shown++) {
        bool gap = elided(p, dim, i);
        if (shown && deep > 1) {
            rp__text_puts(&p->out, ",");
            pad(&p->out, deep - 1, '\n');
            pad(&p->out, indent + 1, ' ');
        } else if (shown && shown % on_a_line == 0) {
            rp__text_puts(&p->out, ",\n");
            pad(&p->out, indent + 1, ' ');
        } else if (shown) {
            rp__text_puts(&p->out, ", ");
        }
        if (gap) {
            rp__text_puts(&p->out, deep > 1 ? "..." : " ...");
            i = t->size[dim] - EDGE - 1;
        } else {
            show(p, dim + 1, address + i * step, indent + 1);
        }
    }
    rp__text_puts(&p->out, "]");
}

static void suffix(printer *p, size_t *last_line, const char *text) {
    size_t n = strlen(text);
    if (*last_line + n + 2 > LINE) {
        rp__text_puts(&p->out, ",\n");
        pad(&p->out, INDENT, ' ');
        *last_line = INDENT + n;
    } else {
        rp__text_puts(&p->out, ", ");
        *last_line += n + 2;
    }
    rp__text_puts(&p->out, text);
}

static void write_all(printer *p) {
    const rp_tensor *t = p->t;
    int64_t n = rp__tensor_numel(t);
    rp__text_puts(&p->out, "tensor(");
    if (n == 0) {
        rp__text_puts(&p->out, "[]");
    } else {
        p->summarise = n > THRESHOLD;
        p->integral = true;
        p->width = 1;
        if (rp__dtype_is_float((rp_dtype)t->dtype)) {
            visit(p, 0, p->base, look_at_range);
            p->scientific =
                p->any && (p->most / p->least > 1000. || p->most > 1e8 || (!p->integral && p->least < 1e-4));
        }
        visit(p, 0, p->base, look_at_width);
        show(p, 0, p->base, INDENT);
    }
    if (p->out.failed) return;
    const char *newline = strrchr(p->out.data, '\n');
    /* PyTorch: len - rfind("\n") + 1, with -1 for none */
    size_t last_line = p->out.length + 1 - (newline ? (size_t)(newline - p->out.data) : (size_t)-1);
    char text[RP__SHAPE_TEXT + 16], shape[RP__SHAPE_TEXT];
    if (t->device.type != RP_DEVICE_CPU) {
        char device[24];
        snprintf(text, sizeof text, "device='%s'", rp__device_text(t->device, device));
        suffix(p, &last_line, text);
    }
    if (n == 0 && t->ndim != 1) {
        snprintf(text, sizeof text, "size=%s", rp__shape_text(t->size, t->ndim, shape));
        suffix(p, &last_line, text);
    }
    if (t->dtype != RP_F32 && (n == 0 || (t->dtype != RP_I64 && t->dtype != RP_BOOL))) {
        snprintf(text, sizeof text, "dtype=torch.%s", rp_dtype_name((rp_dtype)t->dtype));
        suffix(p, &last_line, text);
    }
    const char *grad_fn = rp__grad_name_hook ? rp__grad_name_hook(t) : NULL;
    if (grad_fn) {
        snprintf(text, sizeof text, "grad_fn=<%s>", grad_fn);
        suffix(p, &last_line, text);
    } else if (t->flags & RP__T_REQUIRES_GRAD) {
        suffix(p, &last_line, "requires_grad=True");
    }
    rp__text_puts(&p->out, ")");
}

/* Host memory of the tensor's byte range: its own on the CPU, else a copy that *owned names. */
static rp_status host_view(rp_tensor *t, printer *p, char **owned) {
    int64_t begin, end;
    RP_TRY(rp__tensor_materialise(t));
    rp__device *d = rp__device_get(t->device);
    if (!d) return rp_error_status();
    rp_stream *s = rp__current_stream(d);
    RP_TRY(rp__capture_forbid(s, "printing a tensor"));
    if (d->id.type == RP_DEVICE_CPU) {
        RP_TRY(d->ops->stream_synchronize(d, s));
        p->base = rp__tensor_data(t);
        return rp__device_waited(d);
    }
    rp__tensor_byte_range(t, &begin, &end);
    if (begin == end) return RP_OK;
    *owned = rp__alloc((size_t)(end - begin));
    if (!*owned) return RP__OOM("a host copy of a tensor");
    RP_TRY(d->ops->copy_out(d, s, *owned, (char *)t->storage->data + begin, (size_t)(end - begin)));
    p->base = *owned + (t->offset * (int64_t)rp__dtype_bytes((rp_dtype)t->dtype) - begin);
    return rp__device_waited(d);
}

size_t rp_format_at(const char *site, rp_tensor *t, char *buf, size_t bytes) {
    RP__CALLED_FROM(site);
    if (!buf) bytes = 0; /* asks for the length */
    if (bytes) buf[0] = 0;
    rp__site_frame outer = rp__site_push(NULL, "format");
    printer p = {.t = t};
    char *owned = NULL;
    size_t length = 0;
    rp_status status = rp__tensor_check(t, "the tensor");
    for (size_t i = 0; status == RP_OK && i < t->ndim; i++)
        rp__dim_value(t->size[i]); /* the text depends on the size */
    if (status == RP_OK) status = host_view(t, &p, &owned);
    if (status == RP_OK) {
        write_all(&p);
        if (p.out.failed) {
            RP__OOM("the text of a tensor");
        } else {
            length = p.out.length;
            size_t n = length < bytes ? length : bytes ? bytes - 1 : 0;
            if (bytes) {
                memcpy(buf, p.out.data, n);
                buf[n] = 0;
            }
        }
    }
    rp__text_free(&p.out);
    rp__free(owned);
    rp__site_pop(outer);
    return length;
}
