/* Counts the kinds of bytes by which tokens are estimated (`tokens.py`). */

#ifndef PENSTOCK_KINDS_H
#define PENSTOCK_KINDS_H

#include "text.h"

struct kinds {
    Py_ssize_t words, letters, digits, signs, backslashes, wide_bytes, escapes;
};

static inline int is_hex(unsigned char byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

/* Whether an escape of the form \uXXXX begins there. */
static inline int is_code(Place at, Place end)
{
    return end - at >= 6 && at[1] == 'u' && is_hex(at[2]) && is_hex(at[3]) && is_hex(at[4])
           && is_hex(at[5]);
}

/* Add what is in a text up to `stop`, byte by byte. Returns where it stopped: an escape that begins
   before `stop` ends behind it. A word goes on over an escape, as if the escape were not there. */
static Place count_bytes(struct kinds *kinds, int *in_word, Place at, Place stop, Place end)
{
    while (at < stop) {
        unsigned char byte = *at;
        if (byte == '\\' && is_code(at, end)) {
            kinds->escapes++;
            at += 6;
            continue;
        }
        int letter = (unsigned char)((byte | 0x20) - 'a') < 26;
        kinds->letters += letter;
        kinds->words += letter & !*in_word;
        *in_word = letter;
        if (!letter) {
            if (byte >= 0x80)
                kinds->wide_bytes++;
            else if (byte >= '0' && byte <= '9')
                kinds->digits++;
            else if (byte == '\\')
                kinds->backslashes++;
            else if (byte > ' ' && byte < 0x7F)
                kinds->signs++;
        }
        at++;
    }
    return at;
}

#if defined(__SSE2__) && !defined(PENSTOCK_PORTABLE)

#define LANE_BYTES 16

/* 0xFF for each byte that is one of the `number` values from `first` on, 0 for each other. */
static inline __m128i among(__m128i text, char first, char number)
{
    __m128i from = _mm_sub_epi8(text, _mm_set1_epi8(first));
    return _mm_cmpeq_epi8(_mm_min_epu8(from, _mm_set1_epi8((char)(number - 1))), from);
}

/* Add how many bytes are 0xFF. */
static inline void add_set(__m128i *sum, __m128i bytes)
{
    __m128i ones = _mm_and_si128(bytes, _mm_set1_epi8(1));
    *sum = _mm_add_epi64(*sum, _mm_sad_epu8(ones, _mm_setzero_si128()));
}

static inline Py_ssize_t total(__m128i sum)
{
    return (Py_ssize_t)(_mm_cvtsi128_si64(sum) + _mm_cvtsi128_si64(_mm_srli_si128(sum, 8)));
}

/* Whether \u may begin in these bytes. */
static inline int may_escape(__m128i text)
{
    int backslashes = _mm_movemask_epi8(_mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
    int letters_u = _mm_movemask_epi8(_mm_cmpeq_epi8(text, _mm_set1_epi8('u')));
    return (backslashes << 1 & (letters_u | 1 << LANE_BYTES)) != 0;
}

/* `count_bytes`, many bytes at a time. Returns where the last few bytes begin. */
static Place count_lanes(struct kinds *kinds, int *in_word, Place at, Place end)
{
    __m128i words = _mm_setzero_si128(), letters = words, digits = words, signs = words;
    __m128i backslashes = words, wide = words;
    while (end - at >= LANE_BYTES) {
        __m128i text = _mm_loadu_si128((const __m128i *)at);
        if (may_escape(text)) {
            at = count_bytes(kinds, in_word, at, at + LANE_BYTES, end);
            continue;
        }
        __m128i letter = among(_mm_or_si128(text, _mm_set1_epi8(0x20)), 'a', 26);
        __m128i digit = among(text, '0', 10);
        __m128i backslash = _mm_cmpeq_epi8(text, _mm_set1_epi8('\\'));
        __m128i printed = among(text, '!', 0x7F - '!');
        __m128i before = _mm_or_si128(_mm_slli_si128(letter, 1),
                                      _mm_cvtsi32_si128(*in_word ? 0xFF : 0));
        add_set(&words, _mm_andnot_si128(before, letter));
        add_set(&letters, letter);
        add_set(&digits, digit);
        add_set(&backslashes, backslash);
        add_set(&signs, printed); /* with letters, digits and backslashes */
        add_set(&wide, _mm_cmplt_epi8(text, _mm_setzero_si128()));
        *in_word = _mm_movemask_epi8(letter) >> (LANE_BYTES - 1);
        at += LANE_BYTES;
    }
    kinds->words += total(words);
    kinds->letters += total(letters);
    kinds->digits += total(digits);
    kinds->backslashes += total(backslashes);
    kinds->signs += total(signs) - total(letters) - total(digits) - total(backslashes);
    kinds->wide_bytes += total(wide);
    return at;
}

#endif

/* Add what is in a text. */
static void count_kinds(struct kinds *kinds, Place at, Place end)
{
    int in_word = 0;
#if defined(__SSE2__) && !defined(PENSTOCK_PORTABLE)
    at = count_lanes(kinds, &in_word, at, end);
#endif
    count_bytes(kinds, &in_word, at, end, end);
}

#endif
