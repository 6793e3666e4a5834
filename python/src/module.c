/* The C module reprise._c: programs, arrays, facts about the library. */
#include "module.h"

#include <stdlib.h>

PyObject *py_error;
static PyObject
    *texts; /* a dict: what was once kept stays, since call sites and names are read as long as the process lives */

void *py_fail(const char *where) {
    rp_status status = rp_error_status();
    PyErr_Format(py_error, "%s: %s", where, rp_failed() ? rp_error_message() : rp_status_name(status));
    (void)rp_error_take();
    return NULL;
}

const char *py_keep_text(PyObject *text) {
    PyObject *kept = PyDict_GetItemWithError(texts, text);
    if (!kept && !PyErr_Occurred() && PyDict_SetItem(texts, text, text) == 0)
        kept = PyDict_GetItemWithError(texts, text);
    return kept ? PyUnicode_AsUTF8AndSize(kept, NULL) : NULL;
}

static PyObject *doctor(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    size_t bytes = rp_doctor(NULL, 0) + 1;
    char *text = malloc(bytes);
    if (!text) return PyErr_NoMemory();
    rp_doctor(text, bytes);
    PyObject *result = PyUnicode_FromString(text);
    free(text);
    return result;
}

/* [(name, schema, doc, lowering, differentiable, flags)] */
static PyObject *ops(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    size_t n = rp_op_count();
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t k = 0; list && k < n; k++) {
        rp_op_info i;
        if ((rp_op_info_get)(k, &i) != RP_OK) {
            Py_DECREF(list);
            return py_fail("ops");
        }
        PyObject *one = Py_BuildValue("(ssssOI)", i.name, i.schema, i.doc, i.lowering,
                                      i.differentiable ? Py_True : Py_False, i.flags);
        if (!one) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, (Py_ssize_t)k, one);
    }
    return list;
}

static PyObject *dtypes(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyObject *names = PyDict_New();
    for (int d = RP_F32; names && d <= RP_I16; d++) {
        PyObject *number = PyLong_FromLong(d);
        if (!number || PyDict_SetItemString(names, rp_dtype_name((rp_dtype)d), number)) Py_CLEAR(names);
        Py_XDECREF(number);
    }
    return names;
}

static PyObject *backends(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyObject *list = PyList_New(0);
    for (size_t k = 0; list && k < rp_backend_count(); k++) {
        PyObject *name = PyUnicode_FromString((rp_backend_name)(k));
        if (!name || PyList_Append(list, name)) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *set_generator(PyObject *module, PyObject *args) {
    (void)module;
    int type, index;
    unsigned long long seed, offset;
    if (!PyArg_ParseTuple(args, "iiKK", &type, &index, &seed, &offset)) return NULL;
    rp_generator *g = (rp_default_generator)((rp_device){(rp_device_type)type, index});
    if ((rp_generator_set)(g, seed, offset) != RP_OK) return py_fail("set_generator");
    Py_RETURN_NONE;
}

static PyObject *get_generator(PyObject *module, PyObject *args) {
    (void)module;
    int type, index;
    if (!PyArg_ParseTuple(args, "ii", &type, &index)) return NULL;
    uint64_t seed, offset;
    rp_generator *g = (rp_default_generator)((rp_device){(rp_device_type)type, index});
    if ((rp_generator_get)(g, &seed, &offset) != RP_OK) return py_fail("get_generator");
    return Py_BuildValue("(KK)", (unsigned long long)seed, (unsigned long long)offset);
}

static PyObject *follow_generator(PyObject *module, PyObject *args) {
    (void)module;
    int type, index;
    unsigned long long state;
    if (!PyArg_ParseTuple(args, "iiK", &type, &index, &state)) return NULL;
    rp_generator *g = (rp_default_generator)((rp_device){(rp_device_type)type, index});
    if ((rp_generator_follow)(g, (const uint64_t *)(uintptr_t)state) != RP_OK) return py_fail("follow_generator");
    Py_RETURN_NONE;
}

static PyObject *set_threads(PyObject *module, PyObject *n) {
    (void)module;
    if ((rp_set_num_threads)((int)PyLong_AsLong(n)) != RP_OK) return py_fail("set_threads");
    Py_RETURN_NONE;
}

static PyObject *set_precision(PyObject *module, PyObject *args) {
    (void)module;
    const char *products, *convolutions;
    if (!PyArg_ParseTuple(args, "ss", &products, &convolutions)) return NULL;
    if ((rp_set_float32_matmul_precision)(products) != RP_OK || (rp_set_float32_conv_precision)(convolutions) != RP_OK)
        return py_fail("set_precision");
    Py_RETURN_NONE;
}

static PyObject *precision_now(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return Py_BuildValue("(ss)", rp_float32_matmul_precision(), rp_float32_conv_precision());
}

static PyObject *version(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyUnicode_FromString(rp_version_string());
}

static PyObject *reset(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    rp_compile_reset();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind_exchange", py_bind_exchange, METH_VARARGS,
     "(tensor class, to_dlpack, from_dlpack, current stream of a device or None, use the class's table of C functions)"},
    {"doctor", doctor, METH_NOARGS, "what the library found on this machine"},
    {"ops", ops, METH_NOARGS, "the op table"},
    {"dtypes", dtypes, METH_NOARGS, "numbers of the element types by name"},
    {"backends", backends, METH_NOARGS, "names of the library's backends"},
    {"set_generator", set_generator, METH_VARARGS, "(device type, index, seed, offset) of a default generator"},
    {"follow_generator", follow_generator, METH_VARARGS,
     "(device type, index, address): what draws of the default generator read in a graph of others; 0: nothing"},
    {"get_generator", get_generator, METH_VARARGS, "(seed, offset) of a default generator"},
    {"set_threads", set_threads, METH_O, "threads of the CPU"},
    {"set_precision", set_precision, METH_VARARGS,
     "of float32 in products: highest, high, medium; in convolutions: highest, high"},
    {"precision", precision_now, METH_NOARGS, "the same, as it is"},
    {"version", version, METH_NOARGS, "of the library"},
    {"reset", reset, METH_NOARGS, "compiled functions forget what they compiled"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_c", "libreprise for Python", -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__c(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    texts = PyDict_New();
    py_error =
        PyErr_NewExceptionWithDoc("reprise.Error", "what the library refused, and why", PyExc_RuntimeError, NULL);
    if (!texts || !py_error) return NULL;
    Py_INCREF(py_error);
    if (PyModule_AddObject(module, "Error", py_error) || py_exchange_ready(module) || py_program_ready(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
