/* Doors: other engines behind rp_compile. A door says what an engine takes and how its parts of a graph are made and run; all else
   is shared (door.c): a functional graph is cut into parts that the engine takes, as few and as large as the order of nodes allows,
   and parts of fused kernels in between (part.c); these run one after the other over one table of tensors.

   What an engine cannot do is never an error unless rp_compile_options.strict asks for it: the part becomes fused kernels, and explain
   has the reason. An engine is opened at run time, by the first who asks, and stays open. */
#ifndef RP_DOORS_DOOR_H
#define RP_DOORS_DOOR_H

#include "compile/backend.h"
#include "compile/passes.h"
#include "compile/program.h"
#include "doors/lower.h"

/* One operand or result of a part. A value is the root of its memory: no view. An engine sees memory order: the dims of the value by
   falling strides, row-major; order[d] is the dim of the value that lies at place d, and `turned` says whether that is another order
   than the value's own. */
typedef struct rp__door_value {
    rp__ir_value value;
    uint32_t slot; /* of the table of tensors */
    bool turned;
    bool weight;       /* a captured tensor that stays as it is while the part lives: its bytes may be packed */
    rp_tensor *tensor; /* captured: the tensor, borrowed from the graph; NULL: an argument or another part's result */
    int64_t order[RP_MAX_DIMS];
    rp__put_type type; /* in memory order */
} rp__door_value;

typedef struct rp__door_part {
    const rp_ir *ir; /* concrete sizes */
    bool engine;
    uint32_t *nodes; /* in order, views and constants among them */
    size_t n_nodes;
    rp__door_value *in, *out;
    uint32_t n_in, n_out;
    uint32_t *writes; /* numbers of `in` that its nodes write */
    uint32_t n_writes;
} rp__door_part;

typedef struct rp__door rp__door;
struct rp__door {
    const char *name;  /* of the backend */
    const char *title; /* for people */
    /* Opens the library, once. False: why says why not, in a line. version and where are filled when it is there. */
    bool (*open)(char version[64], char where[512], char why[512]);
    rp_device_type device;
    bool (*runs_on)(rp_device device); /* may be NULL: on all of that type; else asked once it is open */
    bool writes;    /* it runs nodes that write in place: what part->writes says has new bytes behind a run */
    bool inference; /* it takes no graph that is about to be differentiated */
    bool shares;    /* fused kernels are meant to have what it leaves: no reason is told, and strict does not mind */
    const char *const *keys; /* of options, NULL at the end */
    /* May be NULL: all values are good. Fails with a sticky error. */
    rp_status (*check)(const rp__engine_options *options);
    /* Has the engine a form of the node? Else why says what is missing. */
    bool (*takes)(const rp__engine_options *options, const rp_ir *ir, const rp__ir_node *n, char why[256]);
    /* What it makes of a part. Fails with a sticky error that has the engine's text. */
    rp_status (*build)(const rp__door_part *part, const rp__engine_options *options, void **made);
    /* in[k] as part->in[k], in memory order without gaps, NULL where it is a weight; out[k] tensors that the engine fills, or NULL, which it
       replaces by a new one (rp__door_result). */
    rp_status (*run)(void *made, rp_tensor *const *in, rp_tensor **out);
    void (*destroy)(void *made);
};

/* Of a run that failed with a sticky error after memory may have been written: nobody can run the part again. */
#define RP__DOOR_SPOILT ((rp_status)-2)
/* Of a run that cannot be now, without an error: this call is fused kernels, also where the engine is asked for strictly. */
#define RP__DOOR_NOT_NOW ((rp_status)-3)
/* Of a run that did not begin, with the sticky error of work before it, which is the caller's. */
#define RP__DOOR_EARLIER ((rp_status)-4)

/* Writes part of a graph with an emitter whose values for part->in are given, in memory order, and gives those for part->out, and behind
   them the new values of part->writes. False: *failed
   is the node that could not be written. */
bool rp__door_write(rp__emitter *e, const rp__door_part *part, const rp__put_val *in, rp__put_val *out,
                    uint32_t *failed);
/* The same for a single node, its operands as arguments: can the language say it? add: makes a value of a type. */
bool rp__door_takes(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n,
                    rp__put_val (*add)(rp__emitter *e, const rp__put_type *type));
/* A new tensor for a result of a part; the error tensor on failure. */
rp_tensor *rp__door_result(const rp__door_value *v, const rp_ir *ir);

extern const rp__leaf_ops rp__door_leaf;
/* The last lines of an engine's file, whose functions and keys are called as the door's members; what else its door says. */
#define RP__ENGINE_OF_DOOR(which, ...)                                                                                 \
    static const rp__door door = {.name = #which,                                                                      \
                                  .open = open_door,                                                                   \
                                  .keys = keys,                                                                        \
                                  .takes = takes,                                                                      \
                                  .build = build,                                                                      \
                                  .run = run,                                                                          \
                                  .destroy = destroy,                                                                  \
                                  __VA_ARGS__};                                                                        \
    static const rp__leaf leaf = {.kind = RP__LEAF_DOOR, .ops = &rp__door_leaf, .door = &door};                        \
    const rp__engine rp__engine_##which = {.name = #which, RP__ENGINE_OVER_LEAF, .leaf = &leaf};

/* part.c: the parts of a graph, in the order in which they run. takes[node]: the engine has it. Slots: arguments, captured tensors, then
   results of parts; *n_slots of them. */
rp_status rp__door_parts(const rp_ir *ir, const bool *takes, rp__door_part **parts, size_t *n, uint32_t *n_slots,
                         uint32_t *slot_of);
void rp__door_parts_free(rp__door_part *parts, size_t n);
/* The part as a graph of its own, whose arguments are the inputs that are not captured. */
rp_status rp__door_part_graph(const rp__door_part *part, rp_ir **out);

/* find.c: libraries in Python's site-packages, of $VIRTUAL_ENV, of the python3 on PATH and of ~/.local: `below` is a folder there,
   and names begin with `stem`; the last by name of those that are there. False: none. */
bool rp__door_find(const char *below, const char *stem, char *path, size_t bytes);

#endif
