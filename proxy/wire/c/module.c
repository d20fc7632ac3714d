/* The header lines of usual heads, bodies in chunks and of known length, and usual events, as a
   module for Python.

   It reads ordinary input only. All other header lines go to the twin in `header_fields.py` (odd names
   and values, a decisive header that comes twice), all other chunks to llhttp (extensions, the last
   chunk, a read that ends inside one). Those say what is wrong. */

#define _GNU_SOURCE /* memmem */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdio.h>
#include <string.h>

#define SLOTS 256 /* of the table of known names, four times as many as there may be */
#define KNOWN_MAX 64
#define NAME_BYTES_MAX 64
#define FIELDS_MAX 128

typedef const unsigned char *Place;

struct known {
    PyObject *name; /* in lower case, or NULL */
    int decisive;
};

typedef struct {
    PyObject_HEAD
    unsigned char lower[256]; /* of the characters of a name; 0 for all others */
    struct known known[SLOTS];
} FieldParser;

static size_t slot_of(Place name, size_t size)
{
    return (size * 31 + name[0] * 7 + name[size - 1] * 3 + name[size / 2]) % SLOTS;
}

/* The slot of a name in lower case, or the empty one where it would be. */
static struct known *known_of(FieldParser *self, Place name, size_t size)
{
    size_t slot = slot_of(name, size);
    for (;; slot = (slot + 1) % SLOTS) {
        PyObject *known = self->known[slot].name;
        if (!known || ((size_t)PyBytes_GET_SIZE(known) == size
                       && !memcmp(PyBytes_AS_STRING(known), name, size)))
            return &self->known[slot];
    }
}

/* The end of the name that begins there: its colon, or NULL. Writes it in lower case. */
static Place name_end(FieldParser *self, Place at, Place end, unsigned char *lowered)
{
    Place begin = at;
    for (; at < end && at - begin <= NAME_BYTES_MAX; at++) {
        unsigned char lower = self->lower[*at];
        if (!lower)
            return *at == ':' && at > begin ? at : NULL;
        if (at - begin == NAME_BYTES_MAX)
            return NULL;
        lowered[at - begin] = lower;
    }
    return NULL;
}

/* The end of the text that begins there: a CR or the end of all. */
static Place text_end(Place at, Place end)
{
    while (at < end && (*at >= ' ' ? *at != 0x7F : *at == '\t'))
        at++;
    return at;
}

static inline int is_blank(unsigned char byte)
{
    return byte == ' ' || byte == '\t';
}

/* Add one field to the headers, and to the decisive ones. -1: an error; 0: not plainly right. */
static int add_field(FieldParser *self, Place lowered, size_t size, Place value, Place end,
                     PyObject *headers, PyObject *decisive)
{
    struct known *known = known_of(self, lowered, size);
    while (value < end && is_blank(*value))
        value++;
    while (value < end && is_blank(end[-1]))
        end--;
    PyObject *text = PyBytes_FromStringAndSize((const char *)value, end - value);
    PyObject *name = known->name ? Py_NewRef(known->name)
                                 : PyBytes_FromStringAndSize((const char *)lowered, (Py_ssize_t)size);
    PyObject *field = text && name ? PyTuple_Pack(2, name, text) : NULL;
    int outcome = field && !PyList_Append(headers, field) ? 1 : -1;
    if (outcome > 0 && known->name && known->decisive) {
        int seen = PyDict_Contains(decisive, name);
        outcome = seen ? (seen < 0 ? -1 : 0) : PyDict_SetItem(decisive, name, text) ? -1 : 1;
    }
    Py_XDECREF(field);
    Py_XDECREF(name);
    Py_XDECREF(text);
    return outcome;
}

static int add_fields(FieldParser *self, Place at, Place end, PyObject *headers, PyObject *decisive)
{
    unsigned char lowered[NAME_BYTES_MAX];
    for (int number = 0; number < FIELDS_MAX; number++) {
        Place colon = name_end(self, at, end, lowered);
        if (!colon)
            return 0;
        Place until = text_end(colon + 1, end);
        int outcome = add_field(self, lowered, (size_t)(colon - at), colon + 1, until, headers,
                                decisive);
        if (outcome < 1 || until == end)
            return outcome;
        if (end - until < 2 || until[0] != '\r' || until[1] != '\n')
            return 0;
        at = until + 2;
    }
    return 0;
}

static PyObject *parse(FieldParser *self, PyObject *lines)
{
    if (!PyBytes_Check(lines))
        return PyErr_Format(PyExc_TypeError, "lines are bytes");
    PyObject *headers = PyList_New(0), *decisive = PyDict_New(), *result = NULL;
    Place at = (Place)PyBytes_AS_STRING(lines);
    int outcome = -1;
    if (headers && decisive)
        outcome = add_fields(self, at, at + PyBytes_GET_SIZE(lines), headers, decisive);
    if (outcome > 0)
        result = PyTuple_Pack(2, headers, decisive);
    else if (!outcome)
        result = Py_NewRef(Py_None);
    Py_XDECREF(headers);
    Py_XDECREF(decisive);
    return result;
}

/* Chunks ----------------------------------------------------------------------------------- */

#define SIZE_DIGITS_MAX 7 /* 256 MiB: more than a read holds */

/* The bytes of the chunk that begins at `*at`, which moves behind it. NULL: not plainly right. */
static Place chunk_at(Place *at, Place end, size_t *size)
{
    Place digit = *at;
    size_t bytes = 0;
    for (; digit < end && *digit != '\r'; digit++) {
        unsigned char letter = *digit | 0x20;
        int value = *digit >= '0' && *digit <= '9' ? *digit - '0'
                    : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
        if (value < 0 || digit - *at == SIZE_DIGITS_MAX)
            return NULL;
        bytes = bytes * 16 + (size_t)value;
    }
    if (!bytes || (size_t)(end - digit) < bytes + 4 || digit[1] != '\n')
        return NULL;
    Place data = digit + 2;
    if (data[bytes] != '\r' || data[bytes + 1] != '\n')
        return NULL;
    *at = data + bytes + 2;
    *size = bytes;
    return data;
}

static PyObject *whole_chunks(PyObject *Py_UNUSED(module), PyObject *read)
{
    if (!PyBytes_Check(read))
        return PyErr_Format(PyExc_TypeError, "a read is bytes");
    Place begin = (Place)PyBytes_AS_STRING(read), end = begin + PyBytes_GET_SIZE(read), at = begin;
    size_t size = 0, all = 0;
    int chunks = 0;
    do {
        if (!chunk_at(&at, end, &size))
            Py_RETURN_NONE;
        chunks++;
        all += size;
    } while (at < end);
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)all);
    if (!body)
        return NULL;
    char *to = PyBytes_AS_STRING(body);
    for (at = begin; at < end; to += size) {
        Place data = chunk_at(&at, end, &size);
        memcpy(to, data, size);
    }
    return Py_BuildValue("(Ni)", body, chunks);
}

/* Bodies of a known length ----------------------------------------------------------------- */

/* A body gets room for this much first, then for twice as much each time. So nothing is moved: the C
   library takes blocks of this size from the kernel, and lets them grow in place. A smaller first block
   would be moved, and leave a hole in the heap: a thousand bodies of a little more than 1 MiB then took
   1.8 GB. Room not yet written takes addresses but no memory. */
#define FIRST_BYTES (4 << 20)
#define VIEW_BYTES_MAX (256 << 10) /* a read is hashed while it is in the processor's cache */

typedef struct {
    PyObject_HEAD
    PyObject *bytes; /* the body, or NULL */
    Py_ssize_t filled, length;
    int lost; /* there was no memory for it: what is left of it is of no use */
} Buffer;

static PyObject *new_buffer(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    Py_ssize_t length;
    if (named && PyDict_GET_SIZE(named))
        return PyErr_Format(PyExc_TypeError, "Buffer takes no named arguments");
    if (!PyArg_ParseTuple(arguments, "n", &length))
        return NULL;
    if (length < 0)
        return PyErr_Format(PyExc_ValueError, "a length is not negative");
    Buffer *self = (Buffer *)type->tp_alloc(type, 0);
    if (self)
        self->length = length;
    return (PyObject *)self;
}

/* Make room for so many bytes in all. -1: an error. */
static int make_room(Buffer *self, Py_ssize_t bytes)
{
    Py_ssize_t room = self->bytes ? PyBytes_GET_SIZE(self->bytes) : 0;
    if (bytes <= room)
        return 0;
    if (self->lost) {
        PyErr_NoMemory();
        return -1;
    }
    room = room ? 2 * room : FIRST_BYTES;
    room = room < bytes ? bytes : room;
    room = room > self->length ? self->length : room;
    if (self->bytes)
        _PyBytes_Resize(&self->bytes, room); /* frees them if it fails */
    else
        self->bytes = PyBytes_FromStringAndSize(NULL, room);
    if (self->bytes)
        return 0;
    self->filled = 0;
    self->lost = 1;
    return -1;
}

static PyObject *write_piece(Buffer *self, PyObject *piece)
{
    if (!PyBytes_Check(piece))
        return PyErr_Format(PyExc_TypeError, "a piece is bytes");
    Py_ssize_t size = PyBytes_GET_SIZE(piece);
    if (size > self->length - self->filled)
        return PyErr_Format(PyExc_ValueError, "more than was announced");
    if (!size)
        return PyLong_FromLong(0);
    if (make_room(self, self->filled + size))
        return NULL;
    memcpy(PyBytes_AS_STRING(self->bytes) + self->filled, PyBytes_AS_STRING(piece), (size_t)size);
    self->filled += size;
    return PyLong_FromSsize_t(size);
}

/* A view of where the next bytes go. It keeps the bytes alive, not the Buffer. */
static int view_of_room(Buffer *self, Py_buffer *view, int flags)
{
    if (self->bytes && Py_REFCNT(self->bytes) > 1) {
        PyErr_SetString(PyExc_BufferError, "another view is kept");
        return -1;
    }
    Py_ssize_t room = self->bytes ? PyBytes_GET_SIZE(self->bytes) : 0;
    if (room == self->filled && room < self->length && make_room(self, room + 1))
        return -1;
    if (!self->bytes) {
        PyErr_SetString(PyExc_BufferError, "nothing is to come");
        return -1;
    }
    room = PyBytes_GET_SIZE(self->bytes) - self->filled;
    return PyBuffer_FillInfo(view, self->bytes, PyBytes_AS_STRING(self->bytes) + self->filled,
                             room < VIEW_BYTES_MAX ? room : VIEW_BYTES_MAX, 0, flags);
}

static PyObject *landed(Buffer *self, PyObject *size)
{
    Py_ssize_t bytes = PyLong_AsSsize_t(size);
    if (bytes == -1 && PyErr_Occurred())
        return NULL;
    if (bytes < 0 || !self->bytes || bytes > PyBytes_GET_SIZE(self->bytes) - self->filled)
        return PyErr_Format(PyExc_ValueError, "more than there was room for");
    self->filled += bytes;
    Py_RETURN_NONE;
}

static PyBufferProcs BUFFER_VIEWS = {.bf_getbuffer = (getbufferproc)view_of_room};

static PyObject *tell(Buffer *self, PyObject *Py_UNUSED(none))
{
    return PyLong_FromSsize_t(self->filled);
}

/* The body, once: it is not kept. */
static PyObject *getvalue(Buffer *self, PyObject *Py_UNUSED(none))
{
    if (self->filled < self->length)
        return PyErr_Format(PyExc_ValueError, "it is not whole");
    PyObject *whole = self->bytes ? self->bytes : PyBytes_FromStringAndSize(NULL, 0);
    self->bytes = NULL;
    self->filled = self->length = 0;
    return whole;
}

static void end_buffer(Buffer *self)
{
    Py_XDECREF(self->bytes);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef BUFFER_METHODS[] = {
    {"write", (PyCFunction)write_piece, METH_O, NULL},
    {"landed", (PyCFunction)landed, METH_O, NULL},
    {"tell", (PyCFunction)tell, METH_NOARGS, NULL},
    {"getvalue", (PyCFunction)getvalue, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject BufferType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "penstock.proxy.wire._native.Buffer",
    .tp_basicsize = sizeof(Buffer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_buffer,
    .tp_dealloc = (destructor)end_buffer,
    .tp_as_buffer = &BUFFER_VIEWS,
    .tp_methods = BUFFER_METHODS,
};

/* Header lines ----------------------------------------------------------------------------- */

/* The name and the value of a field. 0: an error. */
static int parts_of(PyObject *field, PyObject **name, PyObject **value)
{
    if (PyTuple_Check(field) && PyTuple_GET_SIZE(field) == 2) {
        *name = PyTuple_GET_ITEM(field, 0);
        *value = PyTuple_GET_ITEM(field, 1);
        if (PyBytes_Check(*name) && PyBytes_Check(*value))
            return 1;
    }
    PyErr_SetString(PyExc_TypeError, "a field is a tuple of its name and its value, both bytes");
    return 0;
}

static PyObject *lines_of(PyObject *Py_UNUSED(module), PyObject *headers)
{
    PyObject *name, *value;
    Py_ssize_t size = 0;
    if (!PyList_Check(headers))
        return PyErr_Format(PyExc_TypeError, "headers are a list");
    for (Py_ssize_t number = 0; number < PyList_GET_SIZE(headers); number++) {
        if (!parts_of(PyList_GET_ITEM(headers, number), &name, &value))
            return NULL;
        size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + 4;
    }
    PyObject *lines = PyBytes_FromStringAndSize(NULL, size);
    if (!lines)
        return NULL;
    char *at = PyBytes_AS_STRING(lines);
    for (Py_ssize_t number = 0; number < PyList_GET_SIZE(headers); number++) {
        parts_of(PyList_GET_ITEM(headers, number), &name, &value);
        at = (char *)memcpy(at, PyBytes_AS_STRING(name), (size_t)PyBytes_GET_SIZE(name))
             + PyBytes_GET_SIZE(name);
        at = (char *)memcpy(at, ": ", 2) + 2;
        at = (char *)memcpy(at, PyBytes_AS_STRING(value), (size_t)PyBytes_GET_SIZE(value))
             + PyBytes_GET_SIZE(value);
        at = (char *)memcpy(at, "\r\n", 2) + 2;
    }
    return lines;
}

/* Line ends ---------------------------------------------------------------------------------- */

static PyObject *line_ends(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    if (count != 3 || !PyBytes_Check(given[0]))
        return PyErr_Format(PyExc_TypeError, "line_ends takes bytes, and from where to where");
    Py_ssize_t size = PyBytes_GET_SIZE(given[0]);
    Py_ssize_t begin = PyLong_AsSsize_t(given[1]), end = PyLong_AsSsize_t(given[2]);
    if (PyErr_Occurred())
        return NULL;
    if (begin < 0 || end > size)
        return PyErr_Format(PyExc_ValueError, "there are %zd bytes", size);
    Place data = (Place)PyBytes_AS_STRING(given[0]);
    Py_ssize_t found = 0;
    while (begin < end) { /* 255 bytes at a time: their count fits a byte, so the loop is vectorised */
        Py_ssize_t stop = end - begin < 255 ? end : begin + 255;
        unsigned char some = 0;
        for (; begin < stop; begin++)
            some += (data[begin] == '\n') | (data[begin] == '\r');
        found += some;
    }
    return PyLong_FromSsize_t(found);
}

/* Events ------------------------------------------------------------------------------------- */

/* How often `part` is in the data; no two of them overlap. */
static Py_ssize_t count_of(const char *data, const char *end, const char *part, size_t size)
{
    Py_ssize_t count = 0;
    while ((data = memmem(data, (size_t)(end - data), part, size))) {
        data += size;
        count++;
    }
    return count;
}

/* `event_ends.any_ordinary_events` */
static Py_ssize_t ordinary_in(const char *data, Py_ssize_t size, const char *like, size_t like_size)
{
    const char *end = data + size;
    if (size < 2 || memcmp(end - 2, "\n\n", 2) || memchr(data, '\r', (size_t)size) || !like_size)
        return 0;
    if (memchr(data, '\n', (size_t)size - 2)) {
        Py_ssize_t events = count_of(data, end, "\n\n", 2);
        return count_of(data, end, like, like_size) == events ? events : 0;
    }
    if ((size_t)size > like_size && !memcmp(end - like_size, like, like_size))
        return 1;
    return memmem(data + 1, (size_t)size - 1, like, like_size) != NULL;
}

static PyObject *ordinary_events(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(given[0]) || !PyBytes_Check(given[1]))
        return PyErr_Format(PyExc_TypeError, "ordinary_events takes a read and what each event has");
    return PyLong_FromSsize_t(ordinary_in(PyBytes_AS_STRING(given[0]), PyBytes_GET_SIZE(given[0]),
                                          PyBytes_AS_STRING(given[1]),
                                          (size_t)PyBytes_GET_SIZE(given[1])));
}

static PyObject *chunk_of(PyObject *Py_UNUSED(module), PyObject *data)
{
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "a chunk is made of bytes");
    char head[24];
    size_t size = (size_t)PyBytes_GET_SIZE(data);
    size_t begin = (size_t)snprintf(head, sizeof(head), "%zx\r\n", size);
    PyObject *chunk = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(begin + size + 2));
    if (!chunk)
        return NULL;
    char *at = PyBytes_AS_STRING(chunk);
    memcpy(at, head, begin);
    memcpy(at + begin, PyBytes_AS_STRING(data), size);
    memcpy(at + begin + size, "\r\n", 2);
    return chunk;
}

static PyMethodDef FUNCTIONS[] = {
    {"chunk_of", chunk_of, METH_O, NULL},
    {"line_ends", (PyCFunction)(void (*)(void))line_ends, METH_FASTCALL, NULL},
    {"lines_of", lines_of, METH_O, NULL},
    {"ordinary_events", (PyCFunction)(void (*)(void))ordinary_events, METH_FASTCALL, NULL},
    {"whole_chunks", whole_chunks, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* The parser ------------------------------------------------------------------------------- */

static int know(FieldParser *self, PyObject *names, PyObject *decisive)
{
    if (PyTuple_GET_SIZE(names) > KNOWN_MAX) {
        PyErr_Format(PyExc_ValueError, "a parser knows at most %d names", KNOWN_MAX);
        return -1;
    }
    for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(names); number++) {
        PyObject *name = PyTuple_GET_ITEM(names, number);
        if (!PyBytes_Check(name) || !PyBytes_GET_SIZE(name)) {
            PyErr_SetString(PyExc_TypeError, "names are bytes, and not empty");
            return -1;
        }
        int is_decisive = PySet_Contains(decisive, name);
        if (is_decisive < 0)
            return -1;
        struct known *known = known_of(self, (Place)PyBytes_AS_STRING(name),
                                       (size_t)PyBytes_GET_SIZE(name));
        if (!known->name)
            *known = (struct known){Py_NewRef(name), is_decisive};
    }
    return 0;
}

static PyObject *new_parser(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *names, *decisive;
    if (named && PyDict_GET_SIZE(named))
        return PyErr_Format(PyExc_TypeError, "FieldParser takes no named arguments");
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &names, &PyFrozenSet_Type, &decisive))
        return NULL;
    FieldParser *self = (FieldParser *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    for (const char *at = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"; *at; at++)
        self->lower[(unsigned char)*at] = (unsigned char)*at;
    for (int letter = 'A'; letter <= 'Z'; letter++)
        self->lower[letter] = (unsigned char)(letter | 0x20);
    if (know(self, names, decisive)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void end_parser(FieldParser *self)
{
    for (int slot = 0; slot < SLOTS; slot++)
        Py_XDECREF(self->known[slot].name);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef METHODS[] = {
    {"parse", (PyCFunction)parse, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject FieldParserType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "penstock.proxy.wire._native.FieldParser",
    .tp_basicsize = sizeof(FieldParser),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_parser,
    .tp_dealloc = (destructor)end_parser,
    .tp_methods = METHODS,
};

static int fill(PyObject *module)
{
    if (PyModule_AddType(module, &FieldParserType))
        return -1;
    return PyModule_AddType(module, &BufferType);
}

static PyModuleDef_Slot SLOTS_OF_MODULE[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = FUNCTIONS, .m_slots = SLOTS_OF_MODULE};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&MODULE);
}
