/* A part of a graph (doors/door.h) as an ONNX model in memory, for engines that read such: inputs "in0", .. and outputs "out0", .. by
   their places in the part; captured tensors that stay as they are, are weights inside. */
#ifndef RP_DOORS_ONNX_PART_H
#define RP_DOORS_ONNX_PART_H

#include "doors/door.h"
#include "doors/onnx/onnx.h"

typedef struct rp__onnx_part {
    rp__text model;
    uint32_t n_in;    /* inputs of the model */
    uint32_t *in_of;  /* per input: its place in the part */
    char (*name)[16]; /* of inputs, and behind them of outputs */
} rp__onnx_part;

/* who: the engine, for messages. Fails with a sticky error; ended by rp__onnx_part_free in any case. */
rp_status rp__onnx_part_write(const rp__door_part *part, const char *who, int opset, rp__onnx_part *out);
void rp__onnx_part_free(rp__onnx_part *p);
/* Has ONNX a form of the node? flat: of an engine that takes no graphs within nodes, as branches and loops have them. */
bool rp__onnx_takes(const rp_ir *ir, const rp__ir_node *n, int opset, bool flat, char why[256]);

#endif
