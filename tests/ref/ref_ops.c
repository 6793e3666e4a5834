/* The reference of each op, by name and by number: a family a file (ref_FAMILY.c). Forms that differ from an op in where the
   result goes (`_`) or where the second operand comes from (`_scalar`) follow from its reference, where the library has them. */
#include <stdio.h>

#include "ref/ref_case.h"

static const ref_family *const families[] = {&ref_pointwise, &ref_reduce, &ref_view, &ref_index, &ref_matrix};
enum { FAMILIES = sizeof families / sizeof *families, MOST = 2048 };

static ref_op all[MOST];
static char names[MOST][48];
static size_t n_all;

static bool exists(const char *name) {
    rp_op_info info;
    for (size_t i = 0; i < rp_op_count() && rp_op_info_get(i, &info) == RP_OK; i++) {
        if (strcmp(info.name, name) == 0) return true;
    }
    return false;
}

static const ref_op *listed(const char *name) {
    for (size_t i = 0; i < n_all; i++) {
        if (strcmp(all[i].name, name) == 0) return &all[i];
    }
    return NULL;
}

static void derive(const ref_op *from, const char *suffix, int flags,
                   bool (*make)(const ref_op *, rp_dtype, int, ref_case *)) {
    (void)snprintf(names[n_all], sizeof names[0], "%s%s", from->name, suffix);
    if (listed(names[n_all]) || !exists(names[n_all])) return;
    all[n_all] = *from;
    all[n_all].name = names[n_all];
    all[n_all].make = make;
    all[n_all++].flags |= flags;
}

static void collect(void) {
    for (size_t f = 0; f < FAMILIES; f++) {
        for (size_t i = 0; i < families[f]->n; i++) all[n_all++] = families[f]->ops[i];
    }
    for (size_t i = 0; i < n_all; i++) { /* the list grows: `_scalar` forms may be in place, too */
        if (all[i].flags & INPLACE) continue;
        derive(&all[i], "_", INPLACE, all[i].make);
        if (all[i].f2) derive(&all[i], "_scalar", 0, ref_with_scalar);
    }
}

const ref_op *ref_at(size_t index) {
    if (!n_all) collect();
    return index < n_all ? &all[index] : NULL;
}

const ref_op *ref_find(const char *name) {
    (void)ref_at(0);
    return listed(name);
}
