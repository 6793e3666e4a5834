/* The order in which products and convolutions of ours add up, on every device: K in blocks of RP__PRODUCT_BLOCK elements (f64: half
   as many), blocks in groups of RP__PRODUCT_GROUP, each a chain from left to right:
     block = ((0 + a b) + a b) ..., group = (block + block) + ..., result = (group + group) + ...
   Where K is one block it is one chain. The error of a sum so grows with 256 + 16 + K / 4096 instead of K. A function of K and
   dtype alone; the chain within a block uses the machine's fma, if it has one. */
#ifndef RP_KERNEL_PRODUCT_H
#define RP_KERNEL_PRODUCT_H

enum { RP__PRODUCT_BLOCK = 256, RP__PRODUCT_GROUP = 16 };

#endif
