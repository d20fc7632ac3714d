/* The parts of reading a request that look at every byte of it, as a module for Python.

   Each has a twin in Python, which an interpreted installation uses: in `members.py`,
   `prompt_blocks.py` and `tokens.py`. The tests hold both against each other. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "blocks.h"
#include "kinds.h"
#include "scan.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Hashes of blocks are written for little-endian machines: install penstock interpreted."
#endif

/* Scan ------------------------------------------------------------------------------------ */

#define WORK_MAX ((Py_ssize_t)1 << 40) /* more than any text is long */

typedef struct {
    PyObject_HEAD
    PyObject *text, *keys;
    struct scan scan;
} Scan;

static PyObject *new_scan(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *text, *keys;
    if (named && PyDict_GET_SIZE(named))
        return PyErr_Format(PyExc_TypeError, "Scan takes no named arguments");
    if (!PyArg_ParseTuple(arguments, "SO!", &text, &PyTuple_Type, &keys))
        return NULL;
    Py_ssize_t number = PyTuple_GET_SIZE(keys);
    if (number > KEYS_MAX)
        return PyErr_Format(PyExc_ValueError, "Scan takes at most %d keys", KEYS_MAX);
    Scan *self = PyObject_New(Scan, type); /* not cleared: it has 4 KiB of places */
    if (!self)
        return NULL;
    self->text = Py_NewRef(text);
    self->keys = Py_NewRef(keys);
    struct scan *scan = &self->scan;
    scan->text = scan->at = (Place)PyBytes_AS_STRING(text);
    scan->end = scan->text + PyBytes_GET_SIZE(text);
    scan->expected = OBJECT;
    scan->outcome = MORE;
    scan->string = NULL;
    scan->typed = scan->depth = scan->media = 0;
    scan->key = -1;
    scan->keys = (int)number;
    for (Py_ssize_t at = 0; at < number; at++) {
        PyObject *key = PyTuple_GET_ITEM(keys, at);
        if (!PyBytes_Check(key)) {
            Py_DECREF(self);
            return PyErr_Format(PyExc_TypeError, "keys are bytes");
        }
        scan->found[at] = (struct key){(Place)PyBytes_AS_STRING(key),
                                       (size_t)PyBytes_GET_SIZE(key), -1, -1};
    }
    return (PyObject *)self;
}

static void end_scan(Scan *self)
{
    Py_XDECREF(self->text);
    Py_XDECREF(self->keys);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *scan_go_on(Scan *self, PyObject *work)
{
    Py_ssize_t tokens = PyNumber_AsSsize_t(work, PyExc_OverflowError);
    if (tokens == -1 && PyErr_Occurred())
        return NULL;
    if (tokens > WORK_MAX)
        tokens = WORK_MAX;
    return PyLong_FromLong(scan_on(&self->scan, tokens));
}

static PyObject *scan_places(Scan *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *places = PyList_New(0);
    for (int number = 0; places && number < self->scan.keys; number++) {
        struct key *key = &self->scan.found[number];
        if (key->end < 0 || self->scan.outcome != WHOLE)
            continue;
        PyObject *begin = PyLong_FromSsize_t(key->begin), *end = PyLong_FromSsize_t(key->end);
        PyObject *name = PyTuple_GET_ITEM(self->keys, number);
        PyObject *place = begin && end ? PyTuple_Pack(3, name, begin, end) : NULL;
        if (!place || PyList_Append(places, place))
            Py_CLEAR(places);
        Py_XDECREF(place);
        Py_XDECREF(begin);
        Py_XDECREF(end);
    }
    return places;
}

static PyObject *scan_media(Scan *self, PyObject *Py_UNUSED(nothing))
{
    return PyBool_FromLong(self->scan.media);
}

static PyMethodDef SCAN_METHODS[] = {
    {"go_on", (PyCFunction)scan_go_on, METH_O, NULL},
    {"places", (PyCFunction)scan_places, METH_NOARGS, NULL},
    {"names_media", (PyCFunction)scan_media, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ScanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "penstock.balancing._native.Scan",
    .tp_basicsize = sizeof(Scan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_scan,
    .tp_dealloc = (destructor)end_scan,
    .tp_methods = SCAN_METHODS,
};

/* Blocks ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct blocks blocks;
} BlockHashes;

static PyObject *new_blocks(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    unsigned long long chained;
    if (named && PyDict_GET_SIZE(named))
        return PyErr_Format(PyExc_TypeError, "BlockHashes takes no named arguments");
    if (!PyArg_ParseTuple(arguments, "K", &chained))
        return NULL;
    BlockHashes *self = PyObject_New(BlockHashes, type); /* not cleared: the hashes are 16 KiB */
    if (!self)
        return NULL;
    self->blocks.chained = chained;
    self->blocks.number = self->blocks.inside = self->blocks.escaped = 0;
    self->blocks.filled = 0;
    return (PyObject *)self;
}

static PyObject *blocks_add(BlockHashes *self, PyObject *const *arguments, Py_ssize_t number)
{
    Py_buffer text;
    if (number != 2)
        return PyErr_Format(PyExc_TypeError, "add takes a text and whether to squeeze it");
    int squeezed = PyObject_IsTrue(arguments[1]);
    if (squeezed < 0 || PyObject_GetBuffer(arguments[0], &text, PyBUF_SIMPLE))
        return NULL;
    Place at = text.buf, end = at + text.len;
    if (squeezed)
        add_squeezed(&self->blocks, at, end);
    else
        add_text(&self->blocks, at, end);
    PyBuffer_Release(&text);
    return PyBool_FromLong(self->blocks.number < BLOCKS_MAX);
}

static PyObject *blocks_hashes(BlockHashes *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *hashes = PyTuple_New(self->blocks.number);
    for (int number = 0; hashes && number < self->blocks.number; number++) {
        PyObject *hash = PyLong_FromUnsignedLongLong(self->blocks.hashes[number]);
        if (!hash)
            Py_CLEAR(hashes);
        else
            PyTuple_SET_ITEM(hashes, number, hash);
    }
    return hashes;
}

static PyObject *blocks_size(BlockHashes *self, PyObject *Py_UNUSED(nothing))
{
    struct blocks *blocks = &self->blocks;
    return PyLong_FromSize_t((size_t)blocks->number * BLOCK_BYTES + blocks->filled);
}

static PyMethodDef BLOCKS_METHODS[] = {
    {"add", (PyCFunction)(void (*)(void))blocks_add, METH_FASTCALL, NULL},
    {"hashes", (PyCFunction)blocks_hashes, METH_NOARGS, NULL},
    {"size_bytes", (PyCFunction)blocks_size, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject BlockHashesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "penstock.balancing._native.BlockHashes",
    .tp_basicsize = sizeof(BlockHashes),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_blocks,
    .tp_methods = BLOCKS_METHODS,
};

/* Kinds of bytes --------------------------------------------------------------------------- */

static PyObject *kinds_of(PyObject *Py_UNUSED(module), PyObject *text)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(text, &buffer, PyBUF_SIMPLE))
        return NULL;
    struct kinds kinds = {0};
    Place at = buffer.buf;
    count_kinds(&kinds, at, at + buffer.len);
    PyBuffer_Release(&buffer);
    return Py_BuildValue("(nnnnnnn)", kinds.words, kinds.letters, kinds.digits, kinds.signs,
                         kinds.backslashes, kinds.wide_bytes, kinds.escapes);
}

static PyMethodDef FUNCTIONS[] = {{"kinds_of", kinds_of, METH_O, NULL}, {NULL, NULL, 0, NULL}};

/* The module ------------------------------------------------------------------------------ */

static int fill(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "UNCLEAN", UNCLEAN)
        || PyModule_AddIntConstant(module, "MORE", MORE)
        || PyModule_AddIntConstant(module, "WHOLE", WHOLE))
        return -1;
    return PyModule_AddType(module, &ScanType) || PyModule_AddType(module, &BlockHashesType) ? -1 : 0;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = FUNCTIONS, .m_slots = SLOTS};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&MODULE);
}
