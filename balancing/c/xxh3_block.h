/* XXH3, 64 bits, with a seed, of a block of exactly 512 bytes.

   The algorithm and its constants are those of the xxHash specification (doc/xxhash_spec.md,
   0.2.0), so `xxhash.xxh3_64_intdigest(block, seed)` gives the same number. */

#ifndef PENSTOCK_XXH3_BLOCK_H
#define PENSTOCK_XXH3_BLOCK_H

#include <stdint.h>
#include <string.h>

#define BLOCK_BYTES 512
#define STRIPE_BYTES 64
#define LANES 8
#define SECRET_BYTES 192

static const uint64_t PRIME32_1 = 0x9E3779B1u, PRIME32_2 = 0x85EBCA77u, PRIME32_3 = 0xC2B2AE3Du;
static const uint64_t PRIME64_1 = 0x9E3779B185EBCA87u, PRIME64_2 = 0xC2B2AE3D27D4EB4Fu;
static const uint64_t PRIME64_3 = 0x165667B19E3779F9u, PRIME64_4 = 0x85EBCA77C2B2AE63u;
static const uint64_t PRIME64_5 = 0x27D4EB2F165667C5u, PRIME_MX1 = 0x165667919E3779F9u;

static const unsigned char SECRET[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* Both kinds of machine that wheels are built for are little-endian; setup refuses others. */
static inline uint64_t read64(const unsigned char *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static inline void accumulate(uint64_t acc[LANES], const unsigned char *stripe,
                              const unsigned char *secret)
{
    uint64_t data[LANES], key[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        data[lane] = read64(stripe + 8 * lane);
        key[lane] = data[lane] ^ read64(secret + 8 * lane);
    }
    for (int lane = 0; lane < LANES; lane++)
        acc[lane] += data[lane ^ 1] + (key[lane] & 0xFFFFFFFFu) * (key[lane] >> 32);
}

static inline uint64_t folded(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t xxh3_of_block(const unsigned char *block, uint64_t seed)
{
    unsigned char secret[SECRET_BYTES];
    for (int at = 0; at < SECRET_BYTES; at += 16) {
        uint64_t low = read64(SECRET + at) + seed, high = read64(SECRET + at + 8) - seed;
        memcpy(secret + at, &low, 8);
        memcpy(secret + at + 8, &high, 8);
    }
    uint64_t acc[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                           PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    const int stripes = (BLOCK_BYTES - 1) / STRIPE_BYTES;
    for (int number = 0; number < stripes; number++)
        accumulate(acc, block + STRIPE_BYTES * number, secret + 8 * number);
    accumulate(acc, block + BLOCK_BYTES - STRIPE_BYTES, secret + SECRET_BYTES - STRIPE_BYTES - 7);
    uint64_t hash = BLOCK_BYTES * PRIME64_1;
    for (int pair = 0; pair < LANES / 2; pair++)
        hash += folded(acc[2 * pair] ^ read64(secret + 11 + 16 * pair),
                       acc[2 * pair + 1] ^ read64(secret + 11 + 16 * pair + 8));
    hash ^= hash >> 37;
    hash *= PRIME_MX1;
    return hash ^ hash >> 32;
}

#endif
