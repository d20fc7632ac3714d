/* Searches in JSON text, many bytes at a time. */

#ifndef PENSTOCK_TEXT_H
#define PENSTOCK_TEXT_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__) && !defined(PENSTOCK_PORTABLE)
#include <emmintrin.h>
#endif

typedef const unsigned char *Place;

static inline int is_blank(unsigned char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

/* Whether a backslash before this byte is a whole escape. */
static inline int is_escape(unsigned char byte)
{
    return byte == 'n' || byte == '"' || byte == '\\' || byte == '/' || byte == 't' || byte == 'r'
           || byte == 'b' || byte == 'f';
}

/* Whether a byte of a string is not plain: a quote, a backslash or a control character. */
static inline int is_special(unsigned char byte)
{
    return byte == '"' || byte == '\\' || byte < 0x20;
}

#define WINDOW_BYTES 32

/* A bit for each special byte of a window. */
static inline uint64_t specials(Place at)
{
#if defined(__SSE2__) && !defined(PENSTOCK_PORTABLE)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
    const __m128i control = _mm_set1_epi8(0x1F);
    uint64_t bits = 0;
    for (int half = 0; half < 2; half++) {
        __m128i text = _mm_loadu_si128((const __m128i *)at + half);
        __m128i found = _mm_or_si128(_mm_cmpeq_epi8(text, quote), _mm_cmpeq_epi8(text, backslash));
        found = _mm_or_si128(found, _mm_cmpeq_epi8(_mm_min_epu8(text, control), text));
        bits |= (uint64_t)_mm_movemask_epi8(found) << 16 * half;
    }
    return bits;
#else
    uint64_t bits = 0;
    for (int number = 0; number < WINDOW_BYTES; number++)
        bits |= (uint64_t)is_special(at[number]) << number;
    return bits;
#endif
}

/* The first quote, control character or escape that is not of two bytes, from a place in a string.
   `end` if there is none. */
static Place string_stop(Place at, Place end)
{
    while (end - at > WINDOW_BYTES) { /* one more: it may be the second byte of an escape */
        uint64_t bits = specials(at);
        int size = WINDOW_BYTES;
        while (bits) {
            int number = __builtin_ctzll(bits);
            if (at[number] != '\\' || !is_escape(at[number + 1]))
                return at + number;
            bits &= ~((uint64_t)3 << number);
            if (number + 2 > size)
                size = number + 2;
        }
        at += size;
    }
    while (at < end) {
        if (*at == '\\' && end - at > 1 && is_escape(at[1]))
            at += 2;
        else if (is_special(*at))
            return at;
        else
            at++;
    }
    return at;
}

#endif
