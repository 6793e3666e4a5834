/* What explain is told of a unit's programs. */
#include "compile/unit_parts.h"

#include <stdio.h>

/* Of a kernel, which is compiled while it runs in another form. */
static const char *fault_of(const void *about) {
    const rp__executable_kernel *k = about;
    const char *fault = k->fault(k->dags[0]);
    return fault || !k->dags[1] ? fault : k->fault(k->dags[1]);
}

/* How the kernel's launches run, and how near to what the device's memory gives. */
static void explain_schedules(rp__explain *to, const rp__executable_kernel *k, double copy_rate) {
    for (unsigned i = 0; i < 2; i++) {
        const rp__tuned *t = &k->tuned[i];
        char measured[160] = "", share[96] = "";
        if (!k->schedule[i]) continue;
        if (t->known)
            (void)snprintf(measured, sizeof measured, ", %.2f us, the fastest of %u (the choice by sizes: %.2f us)",
                           (double)t->best / 1e3, t->tried, (double)t->own / 1e3);
        if (t->known && copy_rate > 0)
            (void)snprintf(share, sizeof share, ", %.0f %% of the %.0f GB/s that a copy reaches",
                           100e9 * (double)k->moved[i] / (double)t->best / copy_rate, copy_rate / 1e9);
        rp__explain_add(to, "schedule",
                        !t->known     ? RP__REASON_NOT_TUNED
                        : t->measured ? RP__REASON_TUNED
                                      : RP__REASON_TUNED_BEFORE,
                        k->site, 1, "%s: %s%s, %lld bytes%s", k->ops, k->schedule[i], measured, (long long)k->moved[i],
                        share);
    }
}

static const rp__reason freedoms[RP__FREE_COUNT] = {[RP__FREE_FMA] = RP__REASON_FREE_FMA,
                                                    [RP__FREE_QUOTIENT] = RP__REASON_FREE_QUOTIENT,
                                                    [RP__FREE_WIDE] = RP__REASON_FREE_WIDE,
                                                    [RP__FREE_FUNCTIONS] = RP__REASON_FREE_FUNCTIONS};

void rp__unit_explain(rp__explain *to, const rp__executable *e) {
    if (!to) return;
    rp__executable_facts f;
    rp__executable_facts_of(e, &f);
    for (size_t k = 0; k < f.n_kernels; k++) {
        const rp__executable_kernel *kernel = &f.kernels[k];
        rp__explain_add(to, kernel->library ? "library" : "kernel", RP__REASON_NONE, kernel->site, 1,
                        "%s: %lld bytes, by %s", kernel->ops, (long long)kernel->bytes, kernel->server);
        for (unsigned i = 0; i < RP__FREE_COUNT; i++)
            if (kernel->taken[i])
                rp__explain_add(to, "numbers", freedoms[i], kernel->site, kernel->taken[i], "%s: %s", kernel->ops,
                                rp__reason_text(freedoms[i]));
        explain_schedules(to, kernel, f.copy_rate);
        if (kernel->fault && kernel->dags[0])
            rp__explain_ask(to, "kernel", RP__REASON_NOT_COMPILED, kernel->site, kernel->ops, fault_of, kernel);
    }
    for (size_t k = 0; k < f.n_unfused; k++) {
        rp__reason reason = rp__reason_find(f.unfused[k].reason);
        rp__explain_add(to, "unfused", reason, f.unfused[k].site, 1, "%s is not fused into %s: %s",
                        f.unfused[k].producer, f.unfused[k].consumer, rp__reason_text(reason));
    }
    for (size_t k = 0; k < f.n_regions; k++) {
        bool host = f.split || !f.graphed;
        rp__explain_add(to, "region", f.split ? RP__REASON_REGION_ON_HOST : RP__REASON_NONE, f.regions[k].site, 1,
                        "%s: %s%s%s", f.regions[k].kind, host ? "decided by the host" : "a node of the device graph",
                        f.split ? ": " : "", f.split ? f.split : "");
    }
    for (size_t k = 0; k < f.n_layouts; k++) {
        const rp__executable_layout *l = &f.layouts[k];
        const char *of = l->body ? "body of a branch or loop" : "device graph";
        if (l->line)
            rp__explain_add(to, "graph", rp__reason_find(l->reason), NULL, 1, "%s in one line: %u nodes", of, l->nodes);
        else
            rp__explain_add(to, "graph", rp__reason_find(l->reason), NULL, 1,
                            "%s with forks: %u nodes, %u on the longest path", of, l->nodes, l->depth);
    }
    if (f.n_ahead > 0)
        rp__explain_add(to, "graph", RP__REASON_READS_AHEAD, NULL, f.n_ahead,
                        "launches that ask for weights before the launches before them are complete");
    if (f.executables && f.one_call)
        rp__explain_live(to, "graph", RP__REASON_NONE,
                         "executables of the library's call, for memory that stays where it is", f.executables);
    if (f.executables && f.graphed)
        rp__explain_live(to, "graph", RP__REASON_NONE,
                         "executables of device graphs, each with the parameters of a recent call", f.executables);
    rp__explain_live(to, "patch", RP__REASON_NONE, "launches re-pointed because an argument or a result moved",
                     f.patches);
    rp__explain_live(to, "patch", RP__REASON_NONE, "results in fresh memory because the caller held older ones",
                     f.fresh_results);
    rp__explain_add(to, "memory", RP__REASON_NONE, NULL, f.arena_bytes, "arena of temporaries");
    if (f.donated_bytes > 0)
        rp__explain_add(
            to, "memory", RP__REASON_NONE, NULL, f.donated_bytes,
            "donated: by so much the arena is smaller because temporaries lie in saved values, behind their "
            "last readers");
    rp__explain_add(to, "memory", RP__REASON_NONE, NULL, f.result_bytes, "results");
    rp__explain_add(to, "memory", RP__REASON_NONE, NULL, f.eager_peak_bytes, "peak of the same graph run op by op");
}

void rp__unit_explain_made(rp__explain *to, const rp__executable *e) {
    rp__executable_facts f;
    rp__executable_facts_of(e, &f);
    if (f.n_fused)
        rp__explain_add(to, "fusion", RP__REASON_NONE, NULL, f.n_fused,
                        "graphs whose nodes were grouped, for some sizes");
    if (f.n_lowered)
        rp__explain_add(to, "lowering", RP__REASON_NONE, NULL, f.n_lowered, "kernels lowered, for some sizes");
}

void rp__unit_explain_moves(rp__explain *to, const rp__executable *e, uint32_t kinds) {
    static const struct {
        const char *kind, *text;
        rp__reason reason;
    } rows[RP__COPY_COUNT + 1] = {
        [RP__COPY_LIBRARY] = {"copy", "arguments of library calls that moved, copied at each call",
                              RP__REASON_LIBRARY_OPERAND},
        [RP__COPY_FOREIGN] = {"copy", "arguments in wrapped memory that moved, copied at each call",
                              RP__REASON_FOREIGN_MEMORY},
        [RP__COPY_ALIGNMENT] = {"copy", "arguments at addresses of another alignment, copied at each call",
                                RP__REASON_ALIGNMENT},
        [RP__COPY_RESULT] = {"copy", "results of library calls, copied because the caller held older ones",
                             RP__REASON_LIBRARY_OPERAND},
        [RP__COPY_COUNT] = {"patch", "arguments that moved: the launches that use them were re-pointed",
                            RP__REASON_MOVED_INPUT},
    };
    rp__executable_facts f;
    rp__executable_counts_of(e, &f);
    for (unsigned k = 0; k <= RP__COPY_COUNT; k++) {
        if (kinds >> k & 1u) {
            rp__explain_live(to, rows[k].kind, rows[k].reason, rows[k].text,
                             k == RP__COPY_COUNT ? f.moved : &f.copies[k]);
        }
    }
}
