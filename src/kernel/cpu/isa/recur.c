/* The cells of recurrent layers on the CPU, compiled once an instruction set (RP_ISA, RP_VEC_BYTES); recur.h has the contract. */
#include "kernel/cpu/recur.h"

#include <string.h>

#include "kernel/cpu/vec.h"
#include "kernel/cpu/vmath.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#define R float
#define S f32
#define V rp__vf32
#define LANES RP_VEC_F32
#include "kernel/cpu/isa/recur_core.h"
#define R double
#define S f64
#define V rp__vf64
#define LANES RP_VEC_F64
#include "kernel/cpu/isa/recur_core.h"

#define ISA_NAME_(isa) rp__recur_##isa
#define ISA_NAME(isa) ISA_NAME_(isa)
const rp__recur_isa ISA_NAME(RP_ISA) = {
    .forward = {forward_f32, forward_f64}, .backward = {backward_f32, backward_f64}, .turn = {turn_f32, turn_f64}};
