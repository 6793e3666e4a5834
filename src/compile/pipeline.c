/* The pipeline (pipeline.h). A pass is a function of passes.h, fuse.h or program.h in a file of its own; its call here is the
   only one, so what runs for whom, and behind what, is read on this page. */
#include "compile/pipeline.h"

#include <string.h>

#include "compile/program_parts.h"
#include "compile/recipe.h"
#include "core/alloc.h"

/* ---- from a traced graph to what units are made of */

rp_status rp__pipeline_functional(const rp_ir *traced, rp_ir **out, rp__executable_random **random, size_t *n_random) {
    RP_TRY(rp__functionalise(traced, out));
    rp_status status = random ? rp__random_totals(*out, random, n_random) : RP_OK;
    if (status == RP_OK) return RP_OK;
    rp__ir_release(*out);
    *out = NULL;
    return status;
}

/* Once no gradient is to be taken any more: merged values would add up their gradients in another order. */
static rp_status simplify(rp_ir *ir, rp__leaf_kind leaf, rp_ir **out) {
    rp_ir *parts = NULL;
    if (leaf == RP__LEAF_FUSED || leaf == RP__LEAF_DOOR) RP_TRY(rp__decompose(ir, &parts));
    rp_status status = rp__simplify(parts ? parts : ir, true, out);
    rp__ir_release(parts);
    return status;
}

rp_status rp__pipeline_inference(const rp_ir *traced, rp__leaf_kind leaf, rp_ir **out, rp__executable_random **random,
                                 size_t *n_random) {
    if (!rp__leaf_is_program(leaf)) return rp__pipeline_functional(traced, out, NULL, NULL);
    rp_ir *functional;
    RP_TRY(rp__pipeline_functional(traced, &functional, random, n_random));
    rp_status status = simplify(functional, leaf, out);
    rp__ir_release(functional);
    return status;
}

rp_status rp__pipeline_training(const rp_ir *traced, const int64_t *binding, rp__leaf_kind leaf, const uint32_t *leaves,
                                uint32_t n_leaves, uint64_t given, rp_numbers numbers, rp__pipeline_pair *out) {
    const bool program = rp__leaf_is_program(leaf);
    *out = (rp__pipeline_pair){0};
    rp_status status = rp__joint_build(traced, binding, leaves, n_leaves, given, &out->joint);
    if (status == RP_OK && program) {
        rp_ir *simple;
        status = simplify(out->joint.ir, leaf, &simple);
        if (status == RP_OK) {
            rp__ir_release(out->joint.ir);
            out->joint.ir = simple;
        }
    }
    out->joint.relaxed = numbers == RP_NUMBERS_FAST;
    if (status == RP_OK) status = rp__partition(&out->joint, !program, &out->parts);
    if (status != RP_OK) rp__pipeline_pair_free(out);
    return status;
}

void rp__pipeline_pair_free(rp__pipeline_pair *p) {
    rp__partitioned_free(&p->parts);
    rp__joint_free(&p->joint);
    *p = (rp__pipeline_pair){0};
}

/* ---- from a unit's graph to a program */

rp_status rp__pipeline_sized(const rp_ir *ir, const int64_t *binding, rp_ir **out) {
    return rp__specialise(ir, binding, out);
}

/* The passes that none may follow but those that keep every node. */
static rp_status widen(rp_ir *ir, bool fuses, const bool *free_results, rp_ir **out) {
    if (!fuses) {
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    rp_ir *joined, *laid = NULL, *wide = NULL;
    RP_TRY(rp__join_scatters(ir, &joined));
    rp_status status = rp__layout(joined, free_results, &laid);
    if (status == RP_OK) status = rp__spread(laid, &wide);
    if (status == RP_OK) status = rp__cats_part(wide, out);
    rp__ir_release(joined);
    rp__ir_release(laid);
    rp__ir_release(wide);
    return status;
}

/* What a loop writes is marked in the storages of a settled graph, which no other pass keeps: spreading comes first. */
static rp_status prepare_body(rp_ir *ir, bool fuses, const bool *free_results, rp_ir **out) {
    rp_ir *wide;
    RP_TRY(widen(ir, fuses, free_results, &wide));
    rp_status status = rp__blocks_settle(wide, out);
    rp__ir_release(wide);
    return status;
}

/* Block `region` of a node of the settled graph. */
static rp_status prepare_block(const rp_ir *ir, uint32_t node, uint32_t region, bool fuses, rp_ir **out) {
    rp_ir *open, *wide;
    RP_TRY(rp__block_open(ir, node, region, &open));
    rp_status status = widen(open, fuses, NULL, &wide);
    rp__ir_release(open);
    RP_TRY(status);
    status = rp__block_settle(wide, ir, node, region, out);
    rp__ir_release(wide);
    return status;
}

typedef struct maker {
    rp__executable *p;
    bool fuses;
    const bool *free_results;
    rp__recipes *recipes; /* NULL: none */
} maker;

static rp_status add_part(const maker *m, rp_ir *ir, rp__program_part **out);

static rp_status add_blocks(const maker *m, rp__program_part *part, uint32_t group) {
    rp__program_choice *c;
    RP_TRY(rp__program_choice_new(m->p, part, group, &c));
    rp__program_part **blocks[2] = {c->loop ? &c->test : &c->body[0], c->loop ? &c->body[0] : &c->body[1]};
    for (uint32_t region = 0; region < 2; region++) {
        rp_ir *ir;
        RP_TRY(prepare_block(part->ir, c->node, region, m->fuses, &ir));
        RP_TRY(add_part(m, ir, blocks[region]));
    }
    return RP_OK;
}

/* Groups and their order: those of programs of other sizes, or new ones. */
static rp_status group_nodes(const maker *m, rp__program_part *part) {
    rp__executable *p = m->p;
    rp__recipe *recipe = NULL;
    bool taken = false;
    if (m->recipes) {
        RP_TRY(rp__recipes_find(m->recipes, part->ir, &recipe));
        RP_TRY(rp__recipe_take(recipe, part->ir, m->fuses ? p->device : NULL, &part->fusion, &taken));
    }
    if (!taken) {
        p->n_fused++;
        RP_TRY(rp__fuse(part->ir, p->device, !m->fuses, &part->fusion));
        if (m->fuses) RP_TRY(rp__fuse_chains(&part->fusion, p->device));
    }
    RP_TRY(rp__program_part_groups(p, part));
    if (taken)
        rp__recipe_order(recipe, part->order, &part->n_order);
    else
        RP_TRY(rp__fuse_order(&part->fusion, part->order, &part->n_order));
    if (recipe && !taken) RP_TRY(rp__recipe_keep(recipe, &part->fusion, part->order, part->n_order));
    if (recipe) part->kernels = rp__recipe_kernels(recipe);
    return RP_OK;
}

/* A prepared graph, taken over, and the blocks of its regions. */
static rp_status add_part(const maker *m, rp_ir *ir, rp__program_part **out) {
    RP_TRY(rp__program_part_new(m->p, ir, out));
    rp__program_part *part = *out;
    if (m->fuses) RP_TRY(rp__cats_place(ir));
    RP_TRY(group_nodes(m, part));
    for (uint32_t i = 0; i < part->n_order; i++) {
        const rp__fuse_group *g = &part->fusion.groups[part->order[i]];
        if (part->fusion.nodes[g->members[0]].kind == RP__FUSE_REGION) RP_TRY(add_blocks(m, part, part->order[i]));
    }
    return RP_OK;
}

static rp_status make_parts(const maker *m) {
    rp__executable *p = m->p;
    rp_ir *ir;
    RP_TRY(prepare_body(p->ir, m->fuses, m->free_results, &ir));
    rp__ir_release(p->ir);
    p->ir = ir;
    return add_part(m, rp__ir_retain(ir), &p->body);
}

rp_status rp__pipeline_program(const rp_ir *ir, rp_tensor *const *in, size_t n_in,
                               const rp__executable_options *options, rp__executable **out) {
    rp__executable_options o = options ? *options : (rp__executable_options){0};
    rp__executable_random *own = NULL;
    rp__executable *p = NULL;
    rp_status status = o.random ? RP_OK : rp__random_totals(ir, &own, &o.n_random);
    if (own) o.random = own;
    if (status == RP_OK) status = rp__program_begin(ir, n_in, &o, &p);
    if (status == RP_OK) status = make_parts(&(maker){p, !o.no_fusion, o.free_results, o.recipes});
    if (status == RP_OK) status = rp__program_place_buffers(p, in, &o); /* rp__plan */
    if (status == RP_OK) status = rp__program_record(p);                /* rp__group_lower, once a group */
    if (status == RP_OK) status = rp__program_collect_patches(p);
    if (status == RP_OK && !o.no_graph) {
        p->one_call = rp__program_is_one_call(p);
        if (!p->one_call) status = rp__program_build_graph(p);
    }
    if (status == RP_OK) status = rp__program_describe(p);
    if (status == RP_OK) rp__program_plan_heat(p, o.wait);
    rp__free(own);
    rp__program_parts_made(p);
    if (o.recipes) rp__recipes_trim(o.recipes);
    if (status != RP_OK) {
        rp__executable_free(p);
        p = NULL;
    }
    *out = p;
    return status;
}
