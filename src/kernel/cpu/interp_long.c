/* Long rows of the interpreter (interp_parts.h): few rows, each with many chunks, which threads share. Partials are put
   together in the order of one thread: the same bits. */
#include "core/alloc.h"
#include "core/thread.h"
#include "kernel/cpu/interp_parts.h"

typedef rp__interp run;
typedef rp__interp_scratch workspace;

typedef struct long_row {
    const rp__program *p;
    const uint64_t *words;
    const run *main;
    int64_t row;
    unsigned phase;
    uint64_t *partials; /* [reduction][chunk] */
    int64_t chunks;
    rp__line line; /* of chunk functions */
    rp__line_pieces pieces;
    rp__line_fn *fn;
} long_row;

static void long_line_slice(void *ctx, int64_t first, int64_t last) {
    const long_row *l = ctx;
    rp__line line = l->line;
    line.first = first;
    line.last = last;
    if (!line.apart) {
        l->fn(&line);
        return;
    }
    workspace *mine = rp__interp_take(RP__INTERP_SLICE);
    rp__line_pieces pieces = l->pieces;
    rp__line_room(&pieces, &line, mine->tiles, 0);
    l->fn(&line);
    rp__interp_give(mine);
}

static void long_slice(void *ctx, int64_t first, int64_t last) {
    const long_row *l = ctx;
    workspace *mine = rp__interp_take(RP__INTERP_SLICE);
    run *r = &mine->r;
    rp__interp_begin(r, l->p, l->words, RP__WALK_LONG);
    rp__interp_begin_walk(r);
    rp__interp_size_along(r);
    rp__interp_lay_out(r, mine->tiles);
    rp__interp_uniform(r);
    rp__interp_set_row(r, l->row);
    memcpy(r->rowbuf, l->main->rowbuf, 64 * (size_t)l->p->n_row_regs);
    for (int64_t c = first; c < last; c++) {
        rp__interp_begin_chunk(r, l->phase);
        int64_t at = c * RP__CHUNK, end = r->row_len - at < RP__CHUNK ? r->row_len : at + RP__CHUNK;
        rp__interp_positions(r, l->phase, at, end);
        for (unsigned k = 0; k < l->p->n_reductions; k++) {
            const rp__reduction *red = &l->p->reductions[k];
            if (red->phase == l->phase)
                memcpy(&l->partials[k * l->chunks + c], rp__interp_finish_chunk(r, red), red->size);
        }
    }
    rp__interp_give(mine);
}
/* loop: its chunk functions serve; NULL: tiles do. */
void rp__interp_long(run *r, const rp__cpu_loop *loop, char *scratch) {
    const rp__program *p = r->p;
    rp__interp_begin_walk(r);
    rp__interp_size_along(r);
    rp__interp_lay_out(r, scratch);
    rp__interp_uniform(r);
    long_row l = {.p = p, .words = r->address - 1, .main = r, .chunks = (r->row_len + RP__CHUNK - 1) / RP__CHUNK};
    uint64_t few[1024], *many = NULL;
    const size_t need = (size_t)l.chunks * (p->n_reductions ? p->n_reductions : 1);
    l.partials = few;
    if (need > sizeof few / sizeof *few) l.partials = many = rp__alloc(need * sizeof *many);
    if (rp__interp_in_reserve(r)) l.partials = NULL; /* slices would wait for it */
    static const int64_t no_rows[RP__DAG_MAX_ACCESSES];
    l.line = (rp__line){.base = r->base, .row = no_rows, .blocks = r->blocks, .rows = 1, .n = r->row_len};
    l.line.values = r->rowbuf;
    l.line.partials = l.partials;
    l.line.chunks = l.chunks;
    if (loop) (void)rp__line_apart(p, r->n_outer, r->dims, r->extent, r->stride, &l.pieces, &l.line);
    int64_t bytes = 0;
    for (unsigned a = 0; a < p->n_accesses; a++) bytes += p->access_row[a] ? 0 : p->access_size[a];
    for (int64_t row = 0; row < r->rows; row++) {
        rp__interp_set_row(r, row);
        l.line.stream = rp__line_streams(p, &l.line, bytes * r->row_len * r->rows, 0);
        if (!l.partials) { /* out of memory: the same bits in one thread */
            rp__interp_phases(r);
            continue;
        }
        l.row = row;
        for (unsigned phase = 0; phase < p->n_phases; phase++) {
            rp__interp_row(r, p->row[phase]);
            l.phase = phase;
            l.fn = loop ? atomic_load_explicit(&loop->chunk[phase], memory_order_relaxed) : NULL;
            (void)!rp__parallel(l.chunks, p->serial ? l.chunks : 4, l.fn ? long_line_slice : long_slice, &l);
            for (unsigned k = 0; k < p->n_reductions; k++) {
                const rp__reduction *red = &p->reductions[k];
                if (red->phase != phase) continue;
                for (int64_t c = 0; c < l.chunks; c++) {
                    rp__interp_push_chunk(r, red, (uint64_t)c, (char *)&l.partials[(int64_t)k * l.chunks + c]);
                }
                rp__interp_set_result(r, red, rp__interp_finish_chunks(r, red, (uint64_t)l.chunks));
            }
        }
        rp__interp_row(r, p->row[p->n_phases]);
        rp__interp_store_rows(r);
    }
    rp__free(many);
}
