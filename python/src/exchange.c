/* Tensors between Python and the library, in both directions without a copy: torch's by DLPack's table of C functions where torch has
   it (a call costs tens of nanoseconds), everybody's by capsules. Owns reprise.Array, what results are for frameworks that are
   not torch. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

dl_exchange *py_exchange;
static PyObject *capsule_of, *tensor_of; /* torch.utils.dlpack's functions, where the table is absent */

/* ---- torch */

static dl_exchange *exchange_of(PyObject *cls) {
    PyObject *capsule = PyObject_GetAttrString(cls, "__dlpack_c_exchange_api__");
    if (!capsule) {
        PyErr_Clear();
        return NULL;
    }
    dl_exchange *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule); /* the table is static */
    if (!api) PyErr_Clear();
    while (api && api->major > 1) api = api->previous;
    return api && api->major == 1 && api->view_of_object && api->object_from_managed ? api : NULL;
}

PyObject *py_bind_exchange(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *cls, *to, *from;
    int table;
    if (!PyArg_ParseTuple(args, "OOOp", &cls, &to, &from, &table)) return NULL;
    py_exchange = table ? exchange_of(cls) : NULL;
    Py_INCREF(to);
    Py_INCREF(from);
    Py_XDECREF(capsule_of);
    Py_XDECREF(tensor_of);
    capsule_of = to;
    tensor_of = from;
    return PyBool_FromLong(py_exchange != NULL);
}

int py_view(PyObject *object, dl_tensor *out, PyObject **keep) {
    *keep = NULL;
    if (py_exchange) return py_exchange->view_of_object(object, out);
    PyObject *capsule = capsule_of ? PyObject_CallFunctionObjArgs(capsule_of, object, NULL) : NULL;
    if (!capsule) {
        if (!PyErr_Occurred()) PyErr_SetString(py_error, "no framework is bound");
        return -1;
    }
    *keep = capsule; /* not taken: its destructor runs the deleter when the call is over */
    struct DLManagedTensor *old =
        PyCapsule_IsValid(capsule, "dltensor") ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
    struct DLManagedTensorVersioned *managed = old ? NULL : PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (!old && !managed) {
        Py_CLEAR(*keep);
        return -1;
    }
    *out = old ? old->tensor : managed->tensor;
    return 0;
}

int py_dtype_of(const dl_tensor *t, rp_dtype *dtype, rp_device *device) {
    static const struct {
        uint8_t code, bits, dtype;
    } types[] = {{DL_FLOAT, 32, RP_F32}, {DL_FLOAT, 64, RP_F64}, {DL_FLOAT, 16, RP_F16}, {DL_BFLOAT, 16, RP_BF16},
                 {DL_INT, 64, RP_I64},   {DL_INT, 32, RP_I32},   {DL_BOOL, 8, RP_BOOL},  {DL_UINT, 8, RP_U8},
                 {DL_INT, 8, RP_I8},     {DL_INT, 16, RP_I16}};
    *dtype = RP_DTYPE_NONE;
    for (size_t i = 0; i < sizeof types / sizeof *types && t->lanes == 1; i++)
        if (types[i].code == t->code && types[i].bits == t->bits) *dtype = (rp_dtype)types[i].dtype;
    if (*dtype == RP_DTYPE_NONE) {
        PyErr_Format(py_error, "an element type of %s%d bits is not supported",
                     t->code == DL_COMPLEX ? "complex numbers, " : "", (int)t->bits);
        return -1;
    }
    if (t->device_type == DL_CPU || t->device_type == DL_CUDA_HOST)
        *device = rp_cpu();
    else if (t->device_type == DL_CUDA)
        *device = rp_cuda(t->device_id);
    else {
        PyErr_Format(py_error, "memory of device type %d is not supported", (int)t->device_type);
        return -1;
    }
    if (t->ndim > RP_MAX_DIMS) {
        PyErr_Format(py_error, "a tensor has at most %d dimensions, not %d", RP_MAX_DIMS, (int)t->ndim);
        return -1;
    }
    return 0;
}

static void capsule_end(PyObject *capsule) { /* nobody took it */
    struct DLManagedTensorVersioned *managed =
        PyCapsule_IsValid(capsule, "dltensor_versioned") ? PyCapsule_GetPointer(capsule, "dltensor_versioned") : NULL;
    if (managed && managed->deleter) managed->deleter(managed);
}

static PyObject *capsule_from(rp_tensor *t) {
    struct DLManagedTensorVersioned *managed = (rp_to_dlpack)(t);
    if (!managed) return py_fail("to_dlpack");
    PyObject *capsule = PyCapsule_New(managed, "dltensor_versioned", capsule_end);
    if (!capsule) managed->deleter(managed);
    return capsule;
}

PyObject *py_torch_from(rp_tensor *t) {
    if (py_exchange) {
        struct DLManagedTensorVersioned *managed = (rp_to_dlpack)(t);
        if (!managed) return py_fail("to_dlpack");
        void *object = NULL;
        if (py_exchange->object_from_managed(managed, &object)) return NULL;
        return object;
    }
    PyObject *capsule = capsule_from(t);
    PyObject *object = capsule ? PyObject_CallFunctionObjArgs(tensor_of, capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    return object;
}

int py_follow_stream(rp_device device) {
    void *native = NULL;
    if (device.type == RP_DEVICE_CPU || !py_exchange || !py_exchange->current_stream) return 0;
    if (py_exchange->current_stream(DL_CUDA, device.index, &native)) return -1;
    rp_stream *s = (rp_stream_wrap)(device, native);
    rp_status status = (rp_set_current_stream)(s);
    rp_stream_release(s);
    return status == RP_OK ? 0 : (py_fail("the current stream"), -1);
}

/* ---- everybody */

rp_tensor *py_from_array(PyObject *array) {
    PyObject *method = PyObject_GetAttrString(array, "__dlpack__");
    if (!method) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%R is no array: it has no __dlpack__", (PyObject *)Py_TYPE(array));
        return NULL;
    }
    PyObject *empty = PyTuple_New(0), *options = Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
    PyObject *capsule = empty && options ? PyObject_Call(method, empty, options) : NULL;
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { /* from before the array API of 2023 */
        PyErr_Clear();
        capsule = PyObject_CallFunctionObjArgs(method, NULL);
    }
    Py_DECREF(method);
    Py_XDECREF(empty);
    Py_XDECREF(options);
    if (!capsule) return NULL;
    rp_tensor *t = NULL;
    rp_scope scope = (rp_scope_begin)();
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        t = (rp_from_dlpack)(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
        PyCapsule_SetName(capsule, "used_dltensor_versioned");
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        t = (rp_from_dlpack_unversioned)(PyCapsule_GetPointer(capsule, "dltensor"));
        PyCapsule_SetName(capsule, "used_dltensor");
    } else {
        PyErr_SetString(PyExc_TypeError, "__dlpack__ gave no DLPack capsule");
    }
    Py_DECREF(capsule);
    if (t && !rp_is_error(t)) (rp_retain)(t);
    (rp_scope_end)(scope, NULL, 0);
    return t && rp_is_error(t) ? py_fail("from_dlpack") : t;
}

typedef struct array {
    PyObject_HEAD rp_tensor *t; /* one reference */
} array;

PyObject *py_array_type;

PyObject *py_array_new(rp_tensor *t) {
    PyObject *self =
        ((allocfunc)PyType_GetSlot((PyTypeObject *)py_array_type, Py_tp_alloc))((PyTypeObject *)py_array_type, 0);
    if (self) ((array *)self)->t = (rp_retain)(t);
    return self;
}

static void array_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (((array *)self)->t) (rp_release)(((array *)self)->t);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ---- the form of before DLPack 1.0, which consumers that name no version take */

static void old_free(struct DLManagedTensor *old) {
    struct DLManagedTensorVersioned *managed = old->manager_ctx;
    if (managed->deleter) managed->deleter(managed);
    free(old);
}

static void old_capsule_end(PyObject *capsule) { /* nobody took it */
    struct DLManagedTensor *old =
        PyCapsule_IsValid(capsule, "dltensor") ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
    if (old) old->deleter(old);
}

static PyObject *old_capsule_from(rp_tensor *t) {
    struct DLManagedTensorVersioned *managed = (rp_to_dlpack)(t);
    if (!managed) return py_fail("to_dlpack");
    struct DLManagedTensor *old = malloc(sizeof *old);
    if (!old) {
        managed->deleter(managed);
        return PyErr_NoMemory();
    }
    *old = (struct DLManagedTensor){.tensor = managed->tensor, .manager_ctx = managed, .deleter = old_free};
    PyObject *capsule = PyCapsule_New(old, "dltensor", old_capsule_end);
    if (!capsule) old_free(old);
    return capsule;
}

/* What the consumer's stream (as in the array API: a number; 1 the default one, 2 the thread's own) is given next comes behind what ours
   has been given. */
static int let_stream_wait(rp_device device, PyObject *stream) {
    long long number = PyLong_AsLongLong(stream);
    if (number == -1) return PyErr_Occurred() ? -1 : 0; /* -1: the consumer wants no waiting */
    void *native = NULL;
    uintptr_t at = number == 1 ? 0 : (uintptr_t)number; /* the driver takes 2 as the thread's own stream */
    memcpy(&native, &at, sizeof native);
    rp_stream *s = (rp_stream_wrap)(device, native);
    rp_status status = (rp_stream_wait_stream)(s, (rp_current_stream)(device));
    rp_stream_release(s);
    return status == RP_OK && !rp_failed() ? 0 : (py_fail("__dlpack__"), -1);
}

/* __dlpack__ of the array API: the memory as it lies. */
static PyObject *array_dlpack(PyObject *self, PyObject *args, PyObject *options) {
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *place = Py_None, *copy = Py_None;
    rp_tensor *t = ((array *)self)->t;
    rp_device device = (rp_device_of)(t);
    if (!PyArg_ParseTupleAndKeywords(args, options, "|$OOOO", names, &stream, &version, &place, &copy)) return NULL;
    if (copy == Py_True) return PyErr_SetString(PyExc_BufferError, "a copy was asked for: the memory is shared"), NULL;
    int type, index;
    if (place != Py_None) {
        if (!PyArg_ParseTuple(place, "ii", &type, &index)) return NULL;
        if (type != (device.type == RP_DEVICE_CPU ? DL_CPU : DL_CUDA) || index != device.index)
            return PyErr_SetString(PyExc_BufferError, "the memory is of another device"), NULL;
    }
    if (device.type != RP_DEVICE_CPU && stream != Py_None && let_stream_wait(device, stream)) return NULL;
    int major = 0, minor = 0;
    if (version != Py_None && !PyArg_ParseTuple(version, "ii", &major, &minor)) return NULL;
    return major >= 1 ? capsule_from(t) : old_capsule_from(t);
}

static PyObject *array_device(PyObject *self, PyObject *unused) {
    (void)unused;
    rp_device d = (rp_device_of)(((array *)self)->t);
    return Py_BuildValue("(ii)", d.type == RP_DEVICE_CPU ? DL_CPU : DL_CUDA, (int)d.index);
}

static PyObject *array_shape(PyObject *self, void *unused) {
    (void)unused;
    rp_tensor *t = ((array *)self)->t;
    size_t n = (rp_ndim)(t);
    PyObject *shape = PyTuple_New((Py_ssize_t)n);
    for (size_t d = 0; shape && d < n; d++)
        PyTuple_SetItem(shape, (Py_ssize_t)d, PyLong_FromLongLong((rp_size)(t, (int64_t)d)));
    return shape;
}

static PyObject *array_dtype(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(rp_dtype_name((rp_dtype_of)(((array *)self)->t)));
}

static PyObject *array_text(PyObject *self) {
    char text[4096];
    (rp_format)(((array *)self)->t, text, sizeof text);
    if (rp_failed()) return py_fail("repr");
    return PyUnicode_FromString(text);
}

static PyMethodDef array_methods[] = {{"__dlpack__", (PyCFunction)(void (*)(void))array_dlpack,
                                       METH_VARARGS | METH_KEYWORDS, "the memory, as a DLPack capsule"},
                                      {"__dlpack_device__", array_device, METH_NOARGS, "(type, index)"},
                                      {NULL, NULL, 0, NULL}};
static PyGetSetDef array_members[] = {{"shape", array_shape, NULL, "sizes", NULL},
                                      {"dtype", array_dtype, NULL, "name of the element type", NULL},
                                      {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot array_slots[] = {
    {Py_tp_dealloc, array_free},
    {Py_tp_repr, array_text},
    {Py_tp_methods, array_methods},
    {Py_tp_getset, array_members},
    {Py_tp_doc, "a result: numpy.from_dlpack(a), torch.from_dlpack(a), jax.dlpack.from_dlpack(a)"},
    {0, NULL}};
static PyType_Spec array_spec = {"reprise.Array", sizeof(array), 0, Py_TPFLAGS_DEFAULT, array_slots};

int py_exchange_ready(PyObject *module) {
    py_array_type = PyType_FromSpec(&array_spec);
    if (!py_array_type) return -1;
    Py_INCREF(py_array_type);
    return PyModule_AddObject(module, "Array", py_array_type);
}
