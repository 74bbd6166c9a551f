/* bfloat16: rounding as arithmetic says, not as the bits are shifted; the same bits in every
 * instruction set, at any alignment and length. */
#include "kernels/bfloat16.h"

#include <math.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "kernels/cpu/loops/loops.h"
#include "tests/lib/suite.h"

#define COUNT 1027 /* no multiple of any vector width */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* What a NaN or infinity is in exact arithmetic with one more exponent: 2^128. */
static double wide(uint32_t bits)
{
    const double value = (double)float_of(bits);
    return isinf(value) ? copysign(ldexp(1.0, 128), value) : value;
}

/* The nearest of the two bfloat16 around it by exact distances in double, the even one of two. */
static uint32_t expected(uint32_t bits)
{
    const uint32_t below = bits & 0xffff0000u; /* towards zero */
    const uint32_t above = below + 0x10000u;

    if (isnan(float_of(bits))) {
        return below | 0x00400000u;
    }
    if (below == bits) {
        return bits;
    }
    const double to_below = fabs(wide(bits) - wide(below));
    const double to_above = fabs(wide(above) - wide(bits));
    if (to_below == to_above) {
        return (below & 0x10000u) == 0 ? below : above;
    }
    return to_below < to_above ? below : above;
}

/* Any exponent and sign; every sixteenth is no number, or infinite, or at the border of that. */
static void fill(float *values, uint32_t count, uint32_t stream)
{
    static const uint32_t odd[] = {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffc01234u, 0x7f7fffffu,
                                   0x7f7f7fffu, 0x7f7f8000u, 0x00000001u, 0x80008000u, 0x00000000u};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words[4];
        kelp_philox(3, KELP_PHILOX_TEST, stream, i, words);
        values[i] = float_of(words[1] % 16 == 0 ? odd[words[2] % KELP_ARRAY_COUNT(odd)] : words[0]);
    }
}

KELP_CASE("bfloat16", .timeout_s = 60)

/* Known answers: ties go to the even neighbour, beyond the largest is infinite, a NaN whose leading
 * bits are zero stays one. */
KELP_TEST(known_answers)
{
    static const struct {
        uint32_t from, to;
    } cases[] = {
        {0x3f800000u, 0x3f800000u}, /* 1 */
        {0x3f808000u, 0x3f800000u}, /* a tie: down to even */
        {0x3f818000u, 0x3f820000u}, /* a tie: up to even */
        {0x3f808001u, 0x3f810000u}, {0xbf808001u, 0xbf810000u},
        {0x3fffffffu, 0x40000000u}, /* into the next exponent */
        {0x00008000u, 0x00000000u}, /* subnormal numbers, as others */
        {0x00018000u, 0x00020000u}, {0x007fffffu, 0x00800000u},
        {0x80000001u, 0x80000000u}, /* to zero, with its sign */
        {0x7f7f7fffu, 0x7f7f0000u}, {0x7f7f8000u, 0x7f800000u},
        {0xff7fffffu, 0xff800000u}, {0x7f800000u, 0x7f800000u},
        {0x7f800001u, 0x7fc00000u}, {0xff80ffffu, 0xffc00000u},
        {0x7fd5aaaau, 0x7fd50000u},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        float value = float_of(cases[i].from);
        kelp_bfloat16_round(&value, 1);
        ck_assert_msg(bits_of(value) == cases[i].to, "%08x becomes %08x, not %08x", cases[i].from,
                      bits_of(value), cases[i].to);
    }
}

/* Every bfloat16 with what lies behind it, around ties and borders: as exact distances say. */
KELP_TEST(every_upper_half)
{
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    static float values[65536];
    static uint16_t packed[65536];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(lower); i++) {
        for (uint32_t upper = 0; upper < 65536; upper++) {
            values[upper] = float_of(upper << 16 | lower[i]);
        }
        kelp_bfloat16_pack(values, 65536, packed);
        kelp_bfloat16_round(values, 65536);
        for (uint32_t upper = 0; upper < 65536; upper++) {
            const uint32_t right = expected(upper << 16 | lower[i]);
            if (bits_of(values[upper]) != right || packed[upper] != right >> 16) {
                ck_abort_msg("%04x%04x becomes %08x, not %08x; packed %04x", upper, lower[i],
                             bits_of(values[upper]), right, packed[upper]);
            }
        }
    }
}

/* Every bfloat16 goes to float32 and back; a NaN becomes quiet on its way back. */
KELP_TEST(there_and_back)
{
    static uint16_t from[65536], to[65536];
    static float values[65536];

    for (uint32_t i = 0; i < 65536; i++) {
        from[i] = (uint16_t)i;
    }
    kelp_bfloat16_unpack(from, 65536, values);
    kelp_bfloat16_pack(values, 65536, to);
    for (uint32_t i = 0; i < 65536; i++) {
        if (bits_of(values[i]) != i << 16 || to[i] != (isnan(values[i]) ? i | 0x0040u : i)) {
            ck_abort_msg("%04x becomes %08x and %04x", i, bits_of(values[i]), to[i]);
        }
    }
}

struct work {
    float left[COUNT], right[COUNT], sum[COUNT];
    char packed[2 * COUNT + 8], other[2 * COUNT + 8];
};

/* Each loop of one variant with `count` elements at `offset`: the bits of the plain loop, and
 * nothing behind the end is touched. */
static void check_variant(const struct kelp_loops *variant, struct work *work, uint32_t count,
                          size_t offset)
{
    const struct kelp_bfloat16_loops *loops = variant->bfloat16;
    char *packed = work->packed + offset, *other = work->other + offset;

    fill(work->left, COUNT, 1 + count);
    fill(work->right, COUNT, 2 + count);
    memset(work->packed, 0x5a, sizeof(work->packed));
    const float behind = work->left[COUNT - 1];
    loops->pack(work->left, count, packed);
    loops->pack(work->right, count, other);
    loops->round(work->left, count);
    loops->round(work->right, count);
    for (uint32_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, packed + (size_t)2 * i, sizeof(half));
        ck_assert_msg((uint32_t)half << 16 == bits_of(work->left[i]), "%s at %u", variant->name, i);
        work->sum[i] = work->left[i] + work->right[i];
    }
    ck_assert_int_eq(packed[(size_t)2 * count], 0x5a);
    loops->add(work->left, work->right, count);
    loops->add_packed(packed, other, count);
    loops->unpack(packed, count, work->right);
    for (uint32_t i = 0; i < count; i++) {
        const float sum = work->sum[i];
        ck_assert_msg(isnan(sum) ? isnan(work->left[i])
                                 : bits_of(work->left[i]) == expected(bits_of(sum)),
                      "%s: sum %u is %08x", variant->name, i, bits_of(work->left[i]));
        ck_assert_msg(isnan(sum) ? isnan(work->right[i])
                                 : bits_of(work->right[i]) == bits_of(work->left[i]),
                      "%s: packed sum %u is %08x", variant->name, i, bits_of(work->right[i]));
    }
    ck_assert_int_eq(packed[(size_t)2 * count], 0x5a);
    if (count < COUNT) {
        ck_assert_uint_eq(bits_of(work->left[COUNT - 1]), bits_of(behind));
    }
}

KELP_LOOP_TEST(every_variant, 0, 5)
{
    static const uint32_t counts[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 255, COUNT};
    static struct work work;
    const struct kelp_loops *variant;

    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        for (size_t i = 0; i < KELP_ARRAY_COUNT(counts); i++) {
            check_variant(variant, &work, counts[i], (size_t)_i);
        }
    }
}

/* What programs call is one of them. */
KELP_TEST(what_is_called)
{
    static struct work work;
    static float again[COUNT];

    fill(work.left, COUNT, 1);
    fill(work.right, COUNT, 2);
    kelp_bfloat16_pack(work.left, COUNT, work.packed);
    kelp_bfloat16_pack(work.right, COUNT, work.other);
    kelp_bfloat16_add_packed(work.packed, work.other, COUNT);
    kelp_bfloat16_unpack(work.packed, COUNT, again);
    kelp_bfloat16_round(work.left, COUNT);
    kelp_bfloat16_round(work.right, COUNT);
    kelp_bfloat16_add(work.left, work.right, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        ck_assert(isnan(again[i]) ? isnan(work.left[i])
                                  : bits_of(again[i]) == bits_of(work.left[i]));
    }
}
