/* Takes the blanks between values out of JSON text and hashes it block by block. */

#ifndef PENSTOCK_BLOCKS_H
#define PENSTOCK_BLOCKS_H

#include "text.h"
#include "xxh3_block.h"

#define BLOCKS_MAX 2048

struct blocks {
    uint64_t chained; /* the hash of all text before the present block */
    int number;
    int inside;  /* the text so far ends inside a string */
    int escaped; /* and after a backslash */
    size_t filled;
    unsigned char block[BLOCK_BYTES];
    uint64_t hashes[BLOCKS_MAX];
};

static inline void add_block(struct blocks *blocks, Place block)
{
    blocks->chained = xxh3_of_block(block, blocks->chained);
    blocks->hashes[blocks->number++] = blocks->chained;
}

/* Take text as it is. */
static void add_text(struct blocks *blocks, Place at, Place end)
{
    while (at < end && blocks->number < BLOCKS_MAX) {
        if (!blocks->filled && end - at >= BLOCK_BYTES) {
            add_block(blocks, at);
            at += BLOCK_BYTES;
            continue;
        }
        size_t size = BLOCK_BYTES - blocks->filled;
        if (size > (size_t)(end - at))
            size = (size_t)(end - at);
        memcpy(blocks->block + blocks->filled, at, size);
        at += size;
        blocks->filled += size;
        if (blocks->filled == BLOCK_BYTES) {
            add_block(blocks, blocks->block);
            blocks->filled = 0;
        }
    }
}

/* The place after the quote that ends the string around `at`, or `end`. */
static Place string_until(struct blocks *blocks, Place at, Place end)
{
    if (blocks->escaped && at < end) {
        blocks->escaped = 0;
        at++;
    }
    while ((at = string_stop(at, end)) < end && *at != '"') {
        if (*at == '\\' && ++at == end)
            blocks->escaped = 1;
        else
            at++;
    }
    blocks->inside = at == end;
    return at < end ? at + 1 : end;
}

/* Take text without its blanks. */
static void add_squeezed(struct blocks *blocks, Place at, Place end)
{
    Place kept = at; /* from there it is not taken yet */
    while (at < end && blocks->number < BLOCKS_MAX) {
        if (blocks->inside) {
            at = string_until(blocks, at, end);
        } else if (is_blank(*at)) {
            add_text(blocks, kept, at);
            kept = ++at;
        } else {
            blocks->inside = *at++ == '"';
        }
    }
    add_text(blocks, kept, at);
}

#endif
