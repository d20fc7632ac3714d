/* Passes over one JSON object and notes where the values of some top-level keys are.

   It can stop anywhere outside a number or a literal, and go on later. What is not plainly right
   ends it: the caller then reads the text in another way, which says what is wrong. */

#ifndef PENSTOCK_SCAN_H
#define PENSTOCK_SCAN_H

#include "text.h"
#include <stddef.h>

#define DEPTH_MAX 512
#define KEYS_MAX 128
/* A longer number is no number that a backend reads. */
#define NUMBER_BYTES_MAX 1024
/* So many bytes of a number, or of a string that is full of escapes, cost as much as a token. */
#define BYTES_A_TOKEN 4

enum expected { OBJECT, FIRST_KEY, KEY, COLON, VALUE, FIRST_VALUE, NEXT, END };
enum outcome { UNCLEAN = -1, MORE = 0, WHOLE = 1 };

struct key {
    Place name;
    size_t size;
    ptrdiff_t begin, end; /* of its value; -1: there is none */
};

struct scan {
    Place text, end, at;
    Place string; /* where the string around `at` began, or NULL */
    enum expected expected;
    enum outcome outcome; /* so far: after anything but MORE there is no going on */
    int typed;    /* the next value, or the string around `at`, is that of a key "type" */
    int depth;
    int key;   /* the top-level key whose value is next or around `at`, or -1 */
    int keys;
    int media; /* whether the type of a part that is not text was seen */
    unsigned char in_object[DEPTH_MAX];
    struct key found[KEYS_MAX];
};

static int is_media(Place string, size_t size)
{
    static const char *const TYPES[] = {
        "image", "image_url", "input_image", "image_embeds", "audio_url", "input_audio",
        "video", "video_url", "document",    "file",         "input_file"};
    for (size_t number = 0; number < sizeof TYPES / sizeof *TYPES; number++)
        if (size == strlen(TYPES[number]) && !memcmp(string, TYPES[number], size))
            return 1;
    return 0;
}

static inline int hex_of(unsigned char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The code of an escape's four hexadecimal digits, or -1. */
static int code_at(Place at)
{
    int code = 0;
    for (int number = 0; number < 4; number++) {
        int digit = hex_of(at[number]);
        if (digit < 0)
            return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* The place after the escape `\\u....` that begins there, or NULL. Surrogates must be pairs. */
static Place escape_end(Place at, Place end)
{
    if (end - at < 6 || at[1] != 'u')
        return NULL;
    int code = code_at(at + 2);
    if (code < 0 || (code >= 0xDC00 && code <= 0xDFFF))
        return NULL;
    if (code < 0xD800 || code > 0xDFFF)
        return at + 6;
    if (end - at < 12 || at[6] != '\\' || at[7] != 'u')
        return NULL;
    code = code_at(at + 8);
    return code >= 0xDC00 && code <= 0xDFFF ? at + 12 : NULL;
}

static inline int is_digit(Place at, Place end)
{
    return at < end && *at >= '0' && *at <= '9';
}

/* The place after a number, or NULL. */
static Place number_end(Place at, Place end)
{
    Place begin = at;
    if (end - at > NUMBER_BYTES_MAX)
        end = at + NUMBER_BYTES_MAX;
    if (*at == '-')
        at++;
    if (!is_digit(at, end))
        return NULL;
    if (*at == '0')
        at++;
    else
        while (is_digit(at, end))
            at++;
    if (at < end && *at == '.') {
        if (!is_digit(++at, end))
            return NULL;
        while (is_digit(at, end))
            at++;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            at++;
        if (!is_digit(at, end))
            return NULL;
        while (is_digit(at, end))
            at++;
    }
    return at - begin < NUMBER_BYTES_MAX ? at : NULL;
}

/* The place after a number, `true`, `false` or `null`, or NULL. */
static Place scalar_end(Place at, Place end)
{
    size_t left = (size_t)(end - at);
    if (*at == '-' || is_digit(at, end))
        return number_end(at, end);
    if (left >= 4 && (!memcmp(at, "true", 4) || !memcmp(at, "null", 4)))
        return at + 4;
    return left >= 5 && !memcmp(at, "false", 5) ? at + 5 : NULL;
}

/* Note that a value has ended. */
static void value_ends(struct scan *scan)
{
    scan->expected = scan->depth ? NEXT : END;
    if (scan->depth == 1 && scan->key >= 0) {
        scan->found[scan->key].end = scan->at - scan->text;
        scan->key = -1;
    }
}

/* Note a value that begins. */
static inline void value_begins(struct scan *scan)
{
    if (scan->depth == 1 && scan->key >= 0)
        scan->found[scan->key].begin = scan->at - scan->text;
}

/* A key or a string value has ended. `scan->at` is after its quote. False: not clean. */
static int string_ends(struct scan *scan)
{
    Place string = scan->string;
    size_t size = (size_t)(scan->at - 1 - string);
    scan->string = NULL;
    if (scan->expected != KEY && scan->expected != FIRST_KEY) {
        if (scan->typed && is_media(string, size))
            scan->media = 1;
        scan->typed = 0;
        value_ends(scan);
        return 1;
    }
    scan->expected = COLON;
    /* As `media.py` has it: after a quote, which may also be an escaped one inside a key. */
    scan->typed = size >= 4 && !memcmp(string + size - 5, "\"type", 5);
    if (scan->depth > 1)
        return 1;
    if (memchr(string, '\\', size))
        return 0; /* it may be one of the keys */
    for (int number = 0; number < scan->keys; number++)
        if (scan->found[number].size == size && !memcmp(scan->found[number].name, string, size)) {
            if (scan->found[number].end >= 0)
                return 0; /* it is given twice */
            scan->key = number;
            break;
        }
    return 1;
}

static enum outcome open_string(struct scan *scan)
{
    scan->string = ++scan->at;
    return MORE;
}

/* Pass over the rest of the string around `scan->at`. */
static enum outcome scan_string(struct scan *scan, ptrdiff_t *work)
{
    Place at = scan->at, end = scan->end;
    Place until = end - at > *work * BYTES_A_TOKEN ? at + *work * BYTES_A_TOKEN : end;
    while ((at = string_stop(at, until)) < until && *at == '\\') {
        at = end - at > 1 && is_escape(at[1]) ? at + 2 : escape_end(at, end);
        if (!at)
            return UNCLEAN;
        if (at > until)
            until = at; /* it is passed over whole */
    }
    *work -= 1 + (at - scan->at) / BYTES_A_TOKEN;
    scan->at = at;
    if (at == until)
        return at == end ? UNCLEAN : MORE;
    if (*at != '"')
        return UNCLEAN;
    scan->at++;
    return string_ends(scan) ? MORE : UNCLEAN;
}

static enum outcome open_bracket(struct scan *scan, int object)
{
    if (scan->depth == DEPTH_MAX)
        return UNCLEAN;
    scan->in_object[scan->depth++] = (unsigned char)object;
    scan->expected = object ? FIRST_KEY : FIRST_VALUE;
    scan->at++;
    return MORE;
}

static enum outcome close_bracket(struct scan *scan)
{
    scan->depth--;
    scan->at++;
    value_ends(scan);
    return MORE;
}

static enum outcome scan_value(struct scan *scan)
{
    unsigned char byte = *scan->at;
    value_begins(scan);
    if (byte == '"')
        return open_string(scan);
    scan->typed = 0;
    if (byte == '{' || byte == '[')
        return open_bracket(scan, byte == '{');
    scan->at = scalar_end(scan->at, scan->end);
    if (!scan->at)
        return UNCLEAN;
    value_ends(scan);
    return MORE;
}

/* Take the token at `scan->at`, which is not a blank. */
static enum outcome scan_token(struct scan *scan)
{
    unsigned char byte = *scan->at;
    int object = scan->depth && scan->in_object[scan->depth - 1];
    switch (scan->expected) {
    case OBJECT:
        return byte == '{' ? open_bracket(scan, 1) : UNCLEAN;
    case FIRST_KEY:
        if (byte == '}')
            return close_bracket(scan);
        /* fall through */
    case KEY:
        if (byte != '"')
            return UNCLEAN;
        return open_string(scan);
    case COLON:
        if (byte != ':')
            return UNCLEAN;
        scan->at++;
        scan->expected = VALUE;
        return MORE;
    case FIRST_VALUE:
        if (byte == ']')
            return close_bracket(scan);
        /* fall through */
    case VALUE:
        return scan_value(scan);
    case NEXT:
        if (byte == (object ? '}' : ']'))
            return close_bracket(scan);
        if (byte != ',')
            return UNCLEAN;
        scan->at++;
        scan->expected = object ? KEY : VALUE;
        return MORE;
    default:
        return UNCLEAN;
    }
}

/* Go on for about `work` tokens. */
static enum outcome scan_on(struct scan *scan, ptrdiff_t work)
{
    while (scan->outcome == MORE && work > 0) {
        if (scan->string) {
            scan->outcome = scan_string(scan, &work);
            continue;
        }
        if (scan->at == scan->end) {
            scan->outcome = scan->expected == END ? WHOLE : UNCLEAN;
            break;
        }
        Place before = scan->at;
        if (is_blank(*scan->at))
            scan->at++;
        else
            scan->outcome = scan_token(scan);
        work--;
        if (scan->outcome == MORE) /* a number may be long */
            work -= (scan->at - before) / BYTES_A_TOKEN;
    }
    return scan->outcome;
}

#endif
