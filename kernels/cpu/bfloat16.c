#include "kernels/bfloat16.h"

#include "kernels/cpu/loops/loops.h"

void kelp_bfloat16_round(float *values, uint64_t count)
{
    kelp__loops()->bfloat16->round(values, count);
}

void kelp_bfloat16_add(float *sum, const float *other, uint64_t count)
{
    kelp__loops()->bfloat16->add(sum, other, count);
}

void kelp_bfloat16_add_packed(void *sum, const void *other, uint64_t count)
{
    kelp__loops()->bfloat16->add_packed(sum, other, count);
}

void kelp_bfloat16_pack(const float *values, uint64_t count, void *packed)
{
    kelp__loops()->bfloat16->pack(values, count, packed);
}

void kelp_bfloat16_unpack(const void *packed, uint64_t count, float *values)
{
    kelp__loops()->bfloat16->unpack(packed, count, values);
}
