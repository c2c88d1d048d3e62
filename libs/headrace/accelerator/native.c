/* The accelerator: a few functions of Headrace's Python, byte for byte the same, in C.
 *
 * Each does what a function in Python does, which is its oracle in the tests and runs wherever this
 * module is absent. Whatever is unusual (another type, an odd value, a damaged message) is left to
 * that function: the answer is then None, or stops before it. Nothing here decides anything.
 *
 * One extension for every Python from 3.11 on (limited API). Its only state is that of each `Rows`.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The one that headrace/accelerator/__init__.py expects. */
#define INTERFACE 1

/* Bytes that grow. After a failure `failed` stays set, and later writes do nothing. */
typedef struct {
    uint8_t *at;
    size_t used, room;
    int failed;
} Buffer;

static int buffer_open(Buffer *b, size_t room) {
    b->at = PyMem_Malloc(room);
    b->used = 0;
    b->room = room;
    b->failed = b->at == NULL;
    return !b->failed;
}

static int buffer_reserve(Buffer *b, size_t more) {
    if (b->failed) return 0;
    if (b->room - b->used >= more) return 1;
    if (more > (size_t)PY_SSIZE_T_MAX / 2 || b->used > (size_t)PY_SSIZE_T_MAX / 4) {
        b->failed = 1;
        return 0;
    }
    size_t room = b->room * 2;
    while (room - b->used < more) room *= 2;
    uint8_t *at = PyMem_Realloc(b->at, room);
    if (at == NULL) {
        b->failed = 1;
        return 0;
    }
    b->at = at;
    b->room = room;
    return 1;
}

static void put(Buffer *b, const void *bytes, size_t count) {
    if (count == 0 || !buffer_reserve(b, count)) return;
    memcpy(b->at + b->used, bytes, count);
    b->used += count;
}

static void put_byte(Buffer *b, uint8_t byte) { put(b, &byte, 1); }

#define PUT_LITERAL(b, text) put((b), (text), sizeof(text) - 1)

static PyObject *buffer_bytes(const Buffer *b) {
    if (b->failed) return PyErr_NoMemory();
    return PyBytes_FromStringAndSize((const char *)b->at, (Py_ssize_t)b->used);
}

/* Sequences of other kinds may make their items when they are asked, and drop them at once. */
static int is_list(PyObject *object) {
    if (PyList_Check(object) || PyTuple_Check(object)) return 1;
    PyErr_SetString(PyExc_TypeError, "a list or a tuple is needed");
    return 0;
}

static uint32_t read_u32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t read_u64(const uint8_t *p) { return (uint64_t)read_u32(p) << 32 | read_u32(p + 4); }

static void put_be(Buffer *b, uint64_t value, int count) {
    uint8_t bytes[8];
    for (int i = 0; i < count; i++) bytes[i] = (uint8_t)(value >> (8 * (count - 1 - i)));
    put(b, bytes, (size_t)count);
}

static void put_decimal(Buffer *b, uint64_t value) {
    char digits[20];
    int at = 20;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    put(b, digits + at, (size_t)(20 - at));
}

static void put_hex(Buffer *b, uint64_t value) {
    char digits[16];
    int at = 16;
    do {
        digits[--at] = "0123456789abcdef"[value & 15];
        value >>= 4;
    } while (value);
    put(b, digits + at, (size_t)(16 - at));
}

/* Values in MessagePack and JSON, as msgpack-python and orjson write them. */

static void put_integer(Buffer *b, int json, int negative, uint64_t size) {
    if (json) {
        if (negative) put_byte(b, '-');
        put_decimal(b, size);
    } else if (!negative || size == 0) {
        if (size < 0x80) {
            put_byte(b, (uint8_t)size);
        } else if (size <= 0xff) {
            put_byte(b, 0xcc);
            put_be(b, size, 1);
        } else if (size <= 0xffff) {
            put_byte(b, 0xcd);
            put_be(b, size, 2);
        } else if (size <= 0xffffffffu) {
            put_byte(b, 0xce);
            put_be(b, size, 4);
        } else {
            put_byte(b, 0xcf);
            put_be(b, size, 8);
        }
    } else {
        uint64_t two = (uint64_t)0 - size; /* two's complement */
        if (size <= 32) {
            put_byte(b, (uint8_t)two);
        } else if (size <= 0x80) {
            put_byte(b, 0xd0);
            put_be(b, two, 1);
        } else if (size <= 0x8000) {
            put_byte(b, 0xd1);
            put_be(b, two, 2);
        } else if (size <= 0x80000000u) {
            put_byte(b, 0xd2);
            put_be(b, two, 4);
        } else {
            put_byte(b, 0xd3);
            put_be(b, two, 8);
        }
    }
}

static void put_text_head(Buffer *b, size_t count) {
    if (count < 32) {
        put_byte(b, (uint8_t)(0xa0 | count));
    } else if (count <= 0xff) {
        put_byte(b, 0xd9);
        put_be(b, count, 1);
    } else if (count <= 0xffff) {
        put_byte(b, 0xda);
        put_be(b, count, 2);
    } else {
        put_byte(b, 0xdb);
        put_be(b, count, 4);
    }
}

static void put_text(Buffer *b, int json, const uint8_t *text, size_t count) {
    if (!json) {
        put_text_head(b, count);
        put(b, text, count);
        return;
    }
    put_byte(b, '"');
    size_t from = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t c = text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        put(b, text + from, i - from);
        from = i + 1;
        put_byte(b, '\\');
        switch (c) {
        case '"': put_byte(b, '"'); break;
        case '\\': put_byte(b, '\\'); break;
        case '\b': put_byte(b, 'b'); break;
        case '\t': put_byte(b, 't'); break;
        case '\n': put_byte(b, 'n'); break;
        case '\f': put_byte(b, 'f'); break;
        case '\r': put_byte(b, 'r'); break;
        default:
            PUT_LITERAL(b, "u00");
            put_byte(b, (uint8_t)"0123456789abcdef"[c >> 4]);
            put_byte(b, (uint8_t)"0123456789abcdef"[c & 15]);
        }
    }
    put(b, text + from, count - from);
    put_byte(b, '"');
}

static void put_null(Buffer *b, int json) {
    if (json) PUT_LITERAL(b, "null");
    else put_byte(b, 0xc0);
}

static void put_truth(Buffer *b, int json, int truth) {
    if (!json) put_byte(b, truth ? 0xc3 : 0xc2);
    else if (truth) PUT_LITERAL(b, "true");
    else PUT_LITERAL(b, "false");
}

/* Whether bytes are UTF-8, by the rules of Python's strict decoder; `ascii` if no byte is above 127. */
static int is_utf8(const uint8_t *s, size_t count, int *ascii) {
    size_t i = 0;
    while (count - i >= 8) {
        uint64_t eight;
        memcpy(&eight, s + i, 8);
        if (eight & 0x8080808080808080u) break;
        i += 8;
    }
    *ascii = 1;
    while (i < count) {
        uint8_t c = s[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        *ascii = 0;
        uint8_t low = 0x80, high = 0xbf;
        size_t more;
        if (c >= 0xc2 && c <= 0xdf) {
            more = 1;
        } else if (c >= 0xe0 && c <= 0xef) {
            more = 2;
            if (c == 0xe0) low = 0xa0;
            if (c == 0xed) high = 0x9f; /* no surrogates */
        } else if (c >= 0xf0 && c <= 0xf4) {
            more = 3;
            if (c == 0xf0) low = 0x90;
            if (c == 0xf4) high = 0x8f;
        } else {
            return 0;
        }
        if (count - i <= more) return 0;
        if (s[i + 1] < low || s[i + 1] > high) return 0;
        for (size_t k = 2; k <= more; k++)
            if ((s[i + k] & 0xc0) != 0x80) return 0;
        i += more + 1;
    }
    return 1;
}

/* The rows of one relation and kind of message: `row_compiler.compiled`. */

enum { HIDDEN = 'h', TEXT = 't', INTEGER = 'i', BOOLEAN = 'b', MOMENT = 'm', OTHER = 'o' };

typedef struct {
    PyObject_HEAD
    char *kinds;          /* how each column is read */
    Py_ssize_t columns;
    Py_ssize_t shown;     /* without the hidden ones */
    int json;
    PyObject *names;      /* tuple: the columns' names, encoded, with all that precedes a value */
    PyObject *converters; /* tuple: of those that are read by a function */
    PyObject *write;      /* encodes what a converter gives */
    PyObject *inexact;    /* the type of values with an exact text: left to Python */
    PyObject *errors;     /* tuple: exceptions that mean the same */
    PyObject *old_head;   /* bytes that precede the old row; None without one */
    PyObject *end;        /* bytes behind everything */
} Rows;

/* Whether a value is a list of lists, or of documents. */
static int is_nested(PyObject *value) {
    if (!PyList_Check(value)) return 0;
    for (Py_ssize_t i = 0; i < PyList_Size(value); i++) {
        PyObject *item = PyList_GetItem(value, i);
        if (item != NULL && (PyList_Check(item) || PyDict_Check(item))) return 1;
    }
    return 0;
}

/* 1: written; 0: Python must read it; -1: an exception is set. */
static int put_value(Buffer *b, Rows *rows, PyObject *value) {
    if (value == Py_None) {
        put_null(b, rows->json);
        return 1;
    }
    if (PyBool_Check(value)) {
        put_truth(b, rows->json, value == Py_True);
        return 1;
    }
    if ((PyObject *)Py_TYPE(value) == rows->inexact) return 0;
    if (PyUnicode_CheckExact(value)) {
        Py_ssize_t count;
        const char *text = PyUnicode_AsUTF8AndSize(value, &count);
        if (text == NULL) { /* a lone surrogate */
            PyErr_Clear();
            return 0;
        }
        put_text(b, rows->json, (const uint8_t *)text, (size_t)count);
        return 1;
    }
    /* orjson allows as many levels as it counts from the row on. */
    if (rows->json && is_nested(value)) return 0;
    PyObject *written = PyObject_CallFunctionObjArgs(rows->write, value, NULL);
    if (written == NULL) return -1;
    char *bytes;
    Py_ssize_t count;
    int result = 0;
    if (PyBytes_AsStringAndSize(written, &bytes, &count) == 0) {
        put(b, bytes, (size_t)count);
        result = 1;
    } else {
        PyErr_Clear();
    }
    Py_DECREF(written);
    return result;
}

static int put_converted(Buffer *b, Rows *rows, Py_ssize_t column, const uint8_t *text, size_t count) {
    PyObject *converter = PyTuple_GetItem(rows->converters, column);
    if (converter == NULL) return -1;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)text, (Py_ssize_t)count);
    if (bytes == NULL) return -1;
    PyObject *value = PyObject_CallFunctionObjArgs(converter, bytes, NULL);
    Py_DECREF(bytes);
    int result = -1;
    if (value != NULL) {
        result = put_value(b, rows, value);
        Py_DECREF(value);
    }
    if (result < 0 && PyErr_ExceptionMatches(rows->errors)) {
        PyErr_Clear();
        result = 0;
    }
    return result;
}

static int put_number(Buffer *b, Rows *rows, const uint8_t *text, size_t count) {
    int negative = count > 0 && text[0] == '-';
    size_t i = (size_t)negative;
    /* Nineteen digits fit 64 bits without a sign, whatever they are; more are no bigint. */
    if (count == i || count - i > 19) return 0;
    uint64_t size = 0;
    for (; i < count; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        size = size * 10 + (uint64_t)(text[i] - '0');
    }
    if (negative && size > (uint64_t)1 << 63) return 0;
    put_integer(b, rows->json, negative && size != 0, size);
    return 1;
}

static int put_column(Buffer *b, Rows *rows, Py_ssize_t column, const uint8_t *text, size_t count) {
    int ascii;
    switch (rows->kinds[column]) {
    case TEXT:
        if (!is_utf8(text, count, &ascii)) return 0;
        put_text(b, rows->json, text, count);
        return 1;
    case INTEGER:
        return put_number(b, rows, text, count);
    case BOOLEAN:
        if (count != 1 || (text[0] != 't' && text[0] != 'f')) return 0;
        put_truth(b, rows->json, text[0] == 't');
        return 1;
    case MOMENT:
        /* The usual form, "2026-01-31 12:00:00.5+00"; any other goes to the converter. */
        if (count >= 14 && count <= 60 && text[10] == ' ' && memcmp(text + count - 3, "+00", 3) == 0
            && is_utf8(text, count, &ascii) && ascii) {
            uint8_t moment[60];
            memcpy(moment, text, count);
            moment[10] = 'T';
            moment[count - 3] = 'Z';
            put_text(b, rows->json, moment, count - 2);
            return 1;
        }
        return put_converted(b, rows, column, text, count);
    default:
        return put_converted(b, rows, column, text, count);
    }
}

/* Read a row's columns from `*at` on, and write them. */
static int put_row(Buffer *b, Rows *rows, const uint8_t *data, size_t length, size_t *at) {
    if (rows->json) {
        put_byte(b, '{');
    } else if (rows->shown < 16) {
        put_byte(b, (uint8_t)(0x80 | rows->shown));
    } else {
        put_byte(b, 0xde);
        put_be(b, (uint64_t)rows->shown, 2);
    }
    for (Py_ssize_t column = 0; column < rows->columns; column++) {
        if (*at >= length) return 0;
        uint8_t kind = data[*at];
        int hidden = rows->kinds[column] == HIDDEN;
        size_t count = 0;
        if (kind == 't') {
            if (length - *at < 5) return 0;
            count = read_u32(data + *at + 1);
            *at += 5;
            if (length - *at < count) return 0;
        } else if (kind == 'n' || hidden) {
            *at += 1;
        } else {
            return 0;
        }
        if (!hidden) {
            char *name;
            Py_ssize_t size;
            PyObject *object = PyTuple_GetItem(rows->names, column);
            if (object == NULL || PyBytes_AsStringAndSize(object, &name, &size) < 0) return -1;
            put(b, name, (size_t)size);
            if (kind == 't') {
                int result = put_column(b, rows, column, data + *at, count);
                if (result != 1) return result;
            } else {
                put_null(b, rows->json);
            }
        }
        *at += count;
    }
    if (rows->json) put_byte(b, '}');
    return 1;
}

static int put_object(Buffer *b, PyObject *bytes) {
    char *text;
    Py_ssize_t count;
    if (PyBytes_AsStringAndSize(bytes, &text, &count) < 0) return -1;
    put(b, text, (size_t)count);
    return 1;
}

/* Write the message's new row, and behind `*rest` what accompanies it: the old row, and the end. */
static int put_message(Buffer *b, Rows *rows, const uint8_t *data, size_t length, size_t *rest) {
    int old = rows->old_head != Py_None;
    if (length < 8 || data[5] != (old ? 'O' : 'N')) return 0;
    if ((Py_ssize_t)((uint32_t)data[6] << 8 | data[7]) != rows->columns) return 0;
    size_t at = 8;
    int result;
    Buffer before = {NULL, 0, 0, 0};
    if (old) {
        if (!buffer_open(&before, 512)) {
            PyErr_NoMemory();
            return -1;
        }
        result = put_row(&before, rows, data, length, &at);
        if (result == 1
            && (length - at < 3 || data[at] != 'N'
                || (Py_ssize_t)((uint32_t)data[at + 1] << 8 | data[at + 2]) != rows->columns))
            result = 0;
        if (result != 1) {
            PyMem_Free(before.at);
            return result;
        }
        at += 3;
    }
    result = put_row(b, rows, data, length, &at);
    if (result == 1 && at != length) result = 0;
    *rest = b->used;
    if (result == 1 && old) {
        result = put_object(b, rows->old_head);
        put(b, before.at, before.used);
        if (before.failed) b->failed = 1;
    }
    if (result == 1) result = put_object(b, rows->end);
    PyMem_Free(before.at);
    if (result == 1 && b->failed) {
        PyErr_NoMemory();
        return -1;
    }
    return result;
}

static PyObject *rows_call(PyObject *self, PyObject *arguments, PyObject *keywords) {
    char *data;
    Py_ssize_t length;
    PyObject *message;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O", &message)) return NULL;
    if (PyBytes_AsStringAndSize(message, &data, &length) < 0) return NULL;
    Buffer b;
    if (!buffer_open(&b, 512)) return PyErr_NoMemory();
    size_t rest = 0;
    PyObject *answer = NULL;
    int result = put_message(&b, (Rows *)self, (const uint8_t *)data, (size_t)length, &rest);
    if (result == 1)
        answer = Py_BuildValue("y#y#", (char *)b.at, (Py_ssize_t)rest, (char *)b.at + rest,
                               (Py_ssize_t)(b.used - rest));
    else if (result == 0)
        answer = Py_NewRef(Py_None);
    PyMem_Free(b.at);
    return answer;
}

static PyObject *rows_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    const char *kinds;
    Py_ssize_t columns;
    PyObject *names, *converters, *write, *inexact, *errors, *old_head, *end;
    int json;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "y#O!O!OOO!OSp", &kinds, &columns, &PyTuple_Type, &names,
                          &PyTuple_Type, &converters, &write, &inexact, &PyTuple_Type, &errors,
                          &old_head, &end, &json))
        return NULL;
    if (PyTuple_Size(names) != columns || PyTuple_Size(converters) != columns || columns > 0xffff
        || (old_head != Py_None && !PyBytes_Check(old_head))) {
        PyErr_SetString(PyExc_ValueError, "a row's columns don't fit together");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < columns; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        if (name == NULL || !PyBytes_Check(name) || strchr("htibmo", kinds[i]) == NULL || !kinds[i]) {
            PyErr_SetString(PyExc_ValueError, "a column is of no known kind");
            return NULL;
        }
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Rows *rows = (Rows *)allocate(type, 0);
    if (rows == NULL) return NULL;
    rows->kinds = PyMem_Malloc((size_t)columns + 1);
    if (rows->kinds == NULL) {
        Py_DECREF(rows);
        return PyErr_NoMemory();
    }
    memcpy(rows->kinds, kinds, (size_t)columns);
    rows->columns = columns;
    rows->shown = 0;
    for (Py_ssize_t i = 0; i < columns; i++) rows->shown += kinds[i] != HIDDEN;
    rows->json = json;
    rows->names = Py_NewRef(names);
    rows->converters = Py_NewRef(converters);
    rows->write = Py_NewRef(write);
    rows->inexact = Py_NewRef(inexact);
    rows->errors = Py_NewRef(errors);
    rows->old_head = Py_NewRef(old_head);
    rows->end = Py_NewRef(end);
    return (PyObject *)rows;
}

static void rows_dealloc(PyObject *self) {
    Rows *rows = (Rows *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(rows->kinds);
    Py_XDECREF(rows->names);
    Py_XDECREF(rows->converters);
    Py_XDECREF(rows->write);
    Py_XDECREF(rows->inexact);
    Py_XDECREF(rows->errors);
    Py_XDECREF(rows->old_head);
    Py_XDECREF(rows->end);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, "Reads the rows of one relation from whole messages: see row_compiler."},
    {Py_tp_new, rows_new},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_call, rows_call},
    {0, NULL},
};

static PyType_Spec rows_spec = {
    .name = "headrace.accelerator._native.Rows",
    .basicsize = sizeof(Rows),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = rows_slots,
};

static PyTypeObject *rows_type;

/* `frame.decode_entries`: a list of (LSN, message); None if the frame is damaged. */
static PyObject *entries(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    char *bytes;
    Py_ssize_t length;
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "entries() takes a frame and a place");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(arguments[1]);
    if (at == -1 && PyErr_Occurred()) return NULL;
    if (PyBytes_AsStringAndSize(arguments[0], &bytes, &length) < 0) return NULL;
    const uint8_t *frame = (const uint8_t *)bytes;
    if (at < 0) return Py_NewRef(Py_None);
    PyObject *found = PyList_New(0);
    if (found == NULL) return NULL;
    while (at < length) {
        if (length - at < 12) goto damaged;
        uint64_t lsn = read_u64(frame + at);
        uint32_t named_size = read_u32(frame + at + 8);
        at += 12;
        if ((size_t)(length - at) < named_size) goto damaged;
        Py_ssize_t size = (Py_ssize_t)named_size;
        PyObject *entry = PyTuple_New(2);
        PyObject *number = PyLong_FromUnsignedLongLong(lsn);
        PyObject *message = PyBytes_FromStringAndSize(bytes + at, size);
        if (entry == NULL || number == NULL || message == NULL) {
            Py_XDECREF(entry);
            Py_XDECREF(number);
            Py_XDECREF(message);
            Py_DECREF(found);
            return NULL;
        }
        PyTuple_SetItem(entry, 0, number);
        PyTuple_SetItem(entry, 1, message);
        int failed = PyList_Append(found, entry);
        Py_DECREF(entry);
        if (failed) {
            Py_DECREF(found);
            return NULL;
        }
        at += size;
    }
    return found;
damaged:
    Py_DECREF(found);
    return Py_NewRef(Py_None);
}

/* A named tuple of these fields, whose references it takes; NULL with an exception. */
static PyObject *named(PyObject *type, PyObject **fields, Py_ssize_t count) {
    PyObject *plain = PyTuple_New(count);
    int whole = plain != NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (fields[i] == NULL) whole = 0;
        if (plain != NULL && fields[i] != NULL) PyTuple_SetItem(plain, i, fields[i]);
        else Py_XDECREF(fields[i]);
    }
    PyObject *made = NULL;
    PyObject *arguments = whole ? PyTuple_New(1) : NULL;
    if (arguments != NULL) {
        newfunc create = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
        PyTuple_SetItem(arguments, 0, Py_NewRef(plain));
        made = create((PyTypeObject *)type, arguments, NULL);
        Py_DECREF(arguments);
    }
    Py_XDECREF(plain);
    return made;
}

/* The constant parts of a transaction's events. */
typedef struct {
    PyObject *event_type, *position_type, *no_headers;
    PyObject *tx_head, *not_last;
    uint64_t commit;
    size_t room;
} Transaction;

/* The event that is held back until it is known whether it is the transaction's last. */
typedef struct {
    PyObject *position, *subject, *id;
    PyObject *payload; /* as if it were not the last */
    size_t body;       /* the size of what precedes the mark of that */
} Held;

static void held_clear(Held *held) {
    Py_CLEAR(held->position);
    Py_CLEAR(held->subject);
    Py_CLEAR(held->id);
    Py_CLEAR(held->payload);
}

/* From the tuple in which Python keeps it. */
static int held_open(Held *held, PyObject *tuple, const Transaction *tx) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 5) {
        PyErr_SetString(PyExc_TypeError, "this event is not one of rows");
        return -1;
    }
    PyObject *body = PyTuple_GetItem(tuple, 3);
    Buffer b;
    if (!buffer_open(&b, 512)) {
        PyErr_NoMemory();
        return -1;
    }
    int good = put_object(&b, body) == 1;
    held->body = b.used;
    good = good && put_object(&b, tx->not_last) == 1 && put_object(&b, PyTuple_GetItem(tuple, 4)) == 1;
    held->payload = good ? buffer_bytes(&b) : NULL;
    PyMem_Free(b.at);
    if (held->payload == NULL) return -1;
    held->position = Py_NewRef(PyTuple_GetItem(tuple, 0));
    held->subject = Py_NewRef(PyTuple_GetItem(tuple, 1));
    held->id = Py_NewRef(PyTuple_GetItem(tuple, 2));
    return 0;
}

static PyObject *held_tuple(const Held *held, const Transaction *tx) {
    if (held->payload == NULL) return Py_NewRef(Py_None);
    char *text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(held->payload, &text, &size) < 0) return NULL;
    Py_ssize_t body = (Py_ssize_t)held->body, rest = body + PyBytes_Size(tx->not_last);
    return Py_BuildValue("OOOy#y#", held->position, held->subject, held->id, text, body, text + rest,
                         size - rest);
}

/* Release the held event as one that is followed by another. */
static int release(Held *held, const Transaction *tx, PyObject *events) {
    if (held->payload == NULL) return 0;
    PyObject *fields[8] = {
        held->subject, held->id, held->payload, Py_NewRef(tx->no_headers), Py_NewRef(Py_True),
        held->position, Py_NewRef(Py_False), Py_NewRef(Py_None),
    };
    held->subject = held->id = held->payload = held->position = NULL;
    PyObject *event = named(tx->event_type, fields, 8);
    if (event == NULL) return -1;
    int failed = PyList_Append(events, event);
    Py_DECREF(event);
    return failed;
}

/* One row of a writer (a RowWriter) as the next held event; 1, 0: left to Python, -1: an exception. */
static int take_row(Buffer *b, PyObject *writer, const Transaction *tx, uint64_t lsn, uint64_t ordinal,
                    long repeats, const uint8_t *data, size_t length, Held *next) {
    PyObject *read = PyTuple_GetItem(writer, 0), *subject = PyTuple_GetItem(writer, 1);
    PyObject *id_end = PyTuple_GetItem(writer, 2), *head = PyTuple_GetItem(writer, 3);
    PyObject *after_id = PyTuple_GetItem(writer, 4), *after_data = PyTuple_GetItem(writer, 5);
    if (!read || !subject || !id_end || !head || !after_id || !after_data) return -1;
    if (Py_TYPE(read) != rows_type) return 0;
    Rows *rows = (Rows *)read;
    int json = rows->json;

    Py_ssize_t end_size;
    const char *end_text = PyUnicode_AsUTF8AndSize(id_end, &end_size);
    if (end_text == NULL) return -1;
    b->used = 0;
    put_hex(b, lsn);
    put(b, end_text, (size_t)end_size);
    if (repeats) {
        put_byte(b, '-');
        put_decimal(b, (uint64_t)repeats);
    }
    size_t id_size = b->used;
    if (put_object(b, head) < 0) return -1;
    size_t body_at = id_size;
    if (!buffer_reserve(b, id_size * 6 + 16)) return -1;
    /* Reserved for the longest form, so that the id stays where it is while it is copied. */
    put_text(b, json, b->at, id_size);
    if (put_object(b, after_id) < 0) return -1;
    size_t row_at = b->used, rest_at = 0;
    int result = put_message(b, rows, data, length, &rest_at);
    if (result != 1) return result;
    if (b->used - row_at > tx->room) return 0;
    /* What accompanies the row comes last: out of the way, and back. */
    size_t rest_size = b->used - rest_at;
    Buffer rest;
    if (!buffer_open(&rest, rest_size + 1)) {
        PyErr_NoMemory();
        return -1;
    }
    put(&rest, b->at + rest_at, rest_size);
    b->used = rest_at;
    int good = put_object(b, after_data) == 1;
    put_integer(b, json, 0, lsn);
    good = good && put_object(b, tx->tx_head) == 1;
    put_integer(b, json, 0, ordinal);
    next->body = b->used - body_at;
    good = good && put_object(b, tx->not_last) == 1;
    put(b, rest.at, rest_size);
    PyMem_Free(rest.at);
    if (!good) return -1;
    if (b->failed) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *place[2] = {PyLong_FromUnsignedLongLong(tx->commit), PyLong_FromUnsignedLongLong(ordinal)};
    next->position = named(tx->position_type, place, 2);
    next->subject = Py_NewRef(subject);
    next->id = PyUnicode_DecodeUTF8((char *)b->at, (Py_ssize_t)id_size, "strict");
    next->payload = PyBytes_FromStringAndSize((char *)b->at + body_at, (Py_ssize_t)(b->used - body_at));
    if (next->position && next->id && next->payload) return 1;
    held_clear(next);
    return -1;
}

/* `Assembler._take_rows`: rows from a place on, as many as can be taken here.
 *
 * take_rows(entries, at, writers, held, (last LSN, id's end, how often), ordinal, events, constants)
 * gives (place, held, (last LSN, id's end, how often), ordinal); events get what is released.
 */
static PyObject *take_rows(PyObject *module, PyObject *arguments) {
    PyObject *list, *writers, *before, *events, *last_end;
    Transaction tx;
    Py_ssize_t at;
    unsigned long long last_lsn, ordinal, commit;
    long times;
    Py_ssize_t room;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OnO!O(KUl)KO!(OOOSSKn)", &list, &at, &PyDict_Type,
                          &writers, &before, &last_lsn, &last_end, &times, &ordinal, &PyList_Type,
                          &events, &tx.event_type, &tx.position_type, &tx.no_headers, &tx.tx_head,
                          &tx.not_last, &commit, &room))
        return NULL;
    if (!is_list(list)) return NULL;
    tx.commit = commit;
    tx.room = room < 0 ? 0 : (size_t)room;
    if (!PyType_Check(tx.event_type) || !PyType_IsSubtype((PyTypeObject *)tx.event_type, &PyTuple_Type)
        || !PyType_Check(tx.position_type)
        || !PyType_IsSubtype((PyTypeObject *)tx.position_type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "events and positions are named tuples");
        return NULL;
    }
    Held held = {NULL, NULL, NULL, NULL, 0};
    if (before != Py_None && held_open(&held, before, &tx) < 0) return NULL;
    Py_INCREF(last_end);
    PyObject *answer = NULL;
    char start[6];
    PyObject *writer = NULL; /* of the messages with this start; owned, as a converter may run any code */
    Buffer b;
    if (!buffer_open(&b, 4096)) {
        PyErr_NoMemory();
        goto end;
    }
    Py_ssize_t count = PySequence_Size(list);
    if (count < 0) goto failed;
    while (at >= 0 && at < count) {
        PyObject *entry = PySequence_GetItem(list, at);
        if (entry == NULL) goto failed;
        /* The sequence has it still. */
        Py_DECREF(entry);
        if (!PyTuple_Check(entry) || PyTuple_Size(entry) != 2) break;
        PyObject *message = PyTuple_GetItem(entry, 1);
        char *data;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(message, &data, &length) < 0) goto failed;
        unsigned long long lsn = PyLong_AsUnsignedLongLong(PyTuple_GetItem(entry, 0));
        if (lsn == (unsigned long long)-1 && PyErr_Occurred()) goto failed;
        if (length < 6) break;
        if (writer == NULL || memcmp(start, data, 6) != 0) {
            PyObject *key = PyBytes_FromStringAndSize(data, 6);
            if (key == NULL) goto failed;
            Py_XDECREF(writer);
            writer = PyDict_GetItemWithError(writers, key);
            Py_XINCREF(writer);
            Py_DECREF(key);
            if (writer == NULL && PyErr_Occurred()) goto failed;
            if (writer == NULL || !PyTuple_Check(writer) || PyTuple_Size(writer) != 6) break;
            memcpy(start, data, 6);
        }
        PyObject *id_end = PyTuple_GetItem(writer, 2);
        long repeats = 0;
        if (lsn == last_lsn) {
            /* Of several tables or kinds at one LSN Python counts each. */
            if (id_end != last_end) break;
            repeats = times;
        }
        Held next = {NULL, NULL, NULL, NULL, 0};
        Py_INCREF(message);
        int result = take_row(&b, writer, &tx, lsn, ordinal, repeats, (const uint8_t *)data,
                              (size_t)length, &next);
        Py_DECREF(message);
        if (result != 1) {
            if (result == 0) break;
            if (b.failed && !PyErr_Occurred()) PyErr_NoMemory();
            goto failed;
        }
        if (release(&held, &tx, events) < 0) {
            held_clear(&next);
            goto failed;
        }
        held = next;
        Py_INCREF(id_end);
        Py_DECREF(last_end);
        last_end = id_end;
        last_lsn = lsn;
        times = repeats + 1;
        ordinal++;
        at++;
    }
    PyObject *kept = held_tuple(&held, &tx);
    if (kept != NULL) answer = Py_BuildValue("nN(KOl)K", at, kept, last_lsn, last_end, times, ordinal);
failed:
    PyMem_Free(b.at);
end:
    held_clear(&held);
    Py_XDECREF(writer);
    Py_DECREF(last_end);
    return answer;
}

/* `FastBatch.commands`: what publishes messages in a batch, in one piece; None if one has headers.
 *
 * commands(messages, prefix, suffix, number, base, header, no_headers, first, append, end): the last
 * three are operations, and the end is None if these messages don't end the batch.
 */
static PyObject *commands(PyObject *module, PyObject *arguments) {
    PyObject *messages, *no_headers, *end;
    const char *prefix, *suffix, *header;
    Py_ssize_t prefix_size, suffix_size, header_size;
    unsigned long long number, base, first, append, last = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Os#s#KKs#OKKO", &messages, &prefix, &prefix_size,
                          &suffix, &suffix_size, &number, &base, &header, &header_size, &no_headers,
                          &first, &append, &end))
        return NULL;
    if (end != Py_None) {
        last = PyLong_AsUnsignedLongLong(end);
        if (last == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    }
    if (!is_list(messages)) return NULL;
    Buffer b, head;
    if (!buffer_open(&b, 65536)) return PyErr_NoMemory();
    if (!buffer_open(&head, 512)) {
        PyMem_Free(b.at);
        return PyErr_NoMemory();
    }
    PyObject *answer = NULL;
    Py_ssize_t count = PySequence_Size(messages);
    if (count < 0) goto end;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *message = PySequence_GetItem(messages, i);
        if (message == NULL) goto end;
        /* The sequence has it still. */
        Py_DECREF(message);
        if (!PyTuple_Check(message) || PyTuple_Size(message) < 4
            || PyTuple_GetItem(message, 3) != no_headers)
            goto unusual;
        PyObject *payload = PyTuple_GetItem(message, 2);
        PyObject *subject = PyTuple_GetItem(message, 0), *id = PyTuple_GetItem(message, 1);
        if (!PyBytes_Check(payload) || !PyUnicode_Check(subject) || !PyUnicode_Check(id)) goto unusual;
        Py_ssize_t subject_size, id_size, payload_size;
        char *payload_text;
        const char *subject_text = PyUnicode_AsUTF8AndSize(subject, &subject_size);
        const char *id_text = PyUnicode_AsUTF8AndSize(id, &id_size);
        if (subject_text == NULL || id_text == NULL
            || PyBytes_AsStringAndSize(payload, &payload_text, &payload_size) < 0)
            goto end;
        unsigned long long operation = append;
        if (i == count - 1 && end != Py_None) operation = last;
        else if (number == 0) operation = first;
        head.used = 0;
        PUT_LITERAL(&head, "NATS/1.0\r\n");
        put(&head, header, (size_t)header_size);
        PUT_LITERAL(&head, ": ");
        put(&head, id_text, (size_t)id_size);
        PUT_LITERAL(&head, "\r\nNats-Expected-Last-Sequence: ");
        put_decimal(&head, base + number);
        PUT_LITERAL(&head, "\r\n\r\n");
        number++;
        PUT_LITERAL(&b, "HPUB ");
        put(&b, subject_text, (size_t)subject_size);
        put_byte(&b, ' ');
        put(&b, prefix, (size_t)prefix_size);
        put_byte(&b, '.');
        put_decimal(&b, number);
        put_byte(&b, '.');
        put_decimal(&b, operation);
        put_byte(&b, '.');
        put(&b, suffix, (size_t)suffix_size);
        put_byte(&b, ' ');
        put_decimal(&b, head.used);
        put_byte(&b, ' ');
        put_decimal(&b, head.used + (uint64_t)payload_size);
        PUT_LITERAL(&b, "\r\n");
        put(&b, head.at, head.used);
        put(&b, payload_text, (size_t)payload_size);
        PUT_LITERAL(&b, "\r\n");
    }
    if (head.failed) b.failed = 1;
    answer = buffer_bytes(&b);
    goto end;
unusual:
    answer = Py_NewRef(Py_None);
end:
    PyMem_Free(head.at);
    PyMem_Free(b.at);
    return answer;
}

static PyMethodDef functions[] = {
    {"entries", (PyCFunction)(void (*)(void))entries, METH_FASTCALL, "See frame.decode_entries."},
    {"take_rows", take_rows, METH_VARARGS, "See Assembler."},
    {"commands", commands, METH_VARARGS, "See FastBatch.commands."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Hot functions of Headrace in C.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    const char *setting = getenv("HEADRACE_ACCELERATOR");
    if (setting != NULL && strcmp(setting, "off") == 0) {
        PyErr_SetString(PyExc_ImportError, "HEADRACE_ACCELERATOR is off");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    rows_type = (PyTypeObject *)PyType_FromSpec(&rows_spec);
    if (rows_type == NULL || PyModule_AddObjectRef(module, "Rows", (PyObject *)rows_type) < 0
        || PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
