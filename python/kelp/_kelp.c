/*
 * kelp/worker.h for Python: its calls as methods, its results as exceptions, its memory as objects
 * with a buffer. Pieces of lanes are counted here, so that a loop in Python is one over pieces. The
 * package around it (kelp/_worker.py, kelp/torch) has what people see.
 *
 * Calls that wait let other threads of Python run. One thread uses a worker at a time;
 * interrupt() alone may come from another one.
 *
 * Weights and gradients live as long as an object refers to them. close() leaves the job at once
 * where no such object is left, else with the last one.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdbool.h>
#include <string.h>

#include <kelp/worker.h>

struct module_state {
    PyTypeObject *worker_type;
    PyTypeObject *memory_type;
    PyObject *invalid; /* exceptions: kelp.InvalidError and kelp.FailedError */
    PyObject *failed;
};

struct worker_object {
    PyObject base;
    struct kelp_worker *worker; /* NULL: closed */
    bool busy;                  /* a call of some thread goes on without the GIL */
    bool waiting;               /* and interrupt() ends it */
    bool stopped;               /* by stop() */
    bool over;                  /* the job is */
    bool close_wanted;          /* by the last memory object */
    Py_ssize_t memory_count;    /* memory objects that refer to it */
    struct kelp_worker_lane lane;
    uint64_t done;  /* samples of the lane in pieces before this one */
    uint64_t count; /* samples of this piece; 0: there is none */
};

struct memory_object {
    PyObject base;
    struct worker_object *worker; /* owned: keeps the memory */
    float *values;                /* borrowed of it */
    Py_ssize_t bytes;
    bool readonly;
};

/* ---- errors ---------------------------------------------------------------------------------- */

static struct module_state *state_of(void *self)
{
    return PyType_GetModuleState(Py_TYPE((PyObject *)self));
}

static PyObject *fail_as_told(void *self, int result)
{
    const struct module_state *state = state_of(self);

    PyErr_SetString(result == KELP_WORKER_INVALID ? state->invalid : state->failed,
                    kelp_worker_error());
    return NULL;
}

static PyObject *none_or_fail(void *self, int result)
{
    if (result < 0) {
        return fail_as_told(self, result);
    }
    Py_RETURN_NONE;
}

/* Is there a worker that no other thread is in? Otherwise an exception is set. */
static bool may_call(const struct worker_object *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this worker");
        return false;
    }
    if (!self->worker || self->close_wanted) {
        PyErr_SetString(PyExc_RuntimeError, "the worker is closed");
        return false;
    }
    return true;
}

/* A signal that came before is handled now, and one that comes later ends the wait. */
static bool begin_wait(struct worker_object *self)
{
    self->waiting = true;
    if (PyErr_CheckSignals() < 0) {
        self->waiting = false;
        return false;
    }
    self->busy = true;
    return true;
}

/* Did a handler of a signal raise an exception in the meantime? */
static bool end_wait(struct worker_object *self, int result)
{
    self->busy = false;
    self->waiting = false;
    return result == KELP_WORKER_OK || PyErr_CheckSignals() == 0;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* argv for the library, in *ret_words (PyMem_Free()); its texts belong to the bytes in *ret_bytes.
 */
static bool take_words(PyObject *arguments, PyObject **ret_bytes, char ***ret_words)
{
    const Py_ssize_t count = PyList_Size(arguments);
    PyObject *bytes = count < 0 ? NULL : PyList_New(count);
    char **words = bytes ? PyMem_Calloc((size_t)count + 1, sizeof(*words)) : NULL;

    if (bytes && !words) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; words && i < count; i++) {
        PyObject *word = NULL;
        if (!PyUnicode_FSConverter(PyList_GetItem(arguments, i), &word) ||
            PyList_SetItem(bytes, i, word) < 0) {
            PyMem_Free(words);
            words = NULL;
            break;
        }
        words[i] = PyBytes_AsString(word);
    }
    if (!words) {
        Py_XDECREF(bytes);
        return false;
    }
    *ret_bytes = bytes;
    *ret_words = words;
    return true;
}

/* Leave in arguments what stands in words, of which the library took some out. */
static bool leave_words(PyObject *arguments, char *const *words, int count)
{
    PyObject *left = PyList_New(count);

    for (int i = 0; left && i < count; i++) {
        PyObject *word = PyUnicode_DecodeFSDefault(words[i]);
        if (!word || PyList_SetItem(left, i, word) < 0) {
            Py_CLEAR(left);
        }
    }
    const bool done = left && PyList_SetSlice(arguments, 0, PyList_Size(arguments), left) == 0;
    Py_XDECREF(left);
    return done;
}

static int open_worker(char **words, int *count, struct kelp_worker **ret_worker)
{
    struct kelp_worker_options options = {.size = sizeof(options)};

    int result = kelp_worker_global_init();
    if (result == KELP_WORKER_OK) {
        result = kelp_worker_options_read(&options, count, words);
    }
    return result == KELP_WORKER_OK ? kelp_worker_open(&options, ret_worker) : result;
}

static PyObject *worker_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *arguments, *bytes;
    char **words;
    int result;

    if (names && PyDict_Size(names) > 0) {
        PyErr_SetString(PyExc_TypeError, "Worker() takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O:Worker", &arguments) || !take_words(arguments, &bytes, &words)) {
        return NULL;
    }
    int count = (int)PyList_Size(arguments);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct worker_object *self = (struct worker_object *)alloc(type, 0);
    if (self) {
        self->lane.size = sizeof(self->lane);
        Py_BEGIN_ALLOW_THREADS
        result = open_worker(words, &count, &self->worker);
        Py_END_ALLOW_THREADS
        if (result != KELP_WORKER_OK) {
            (void)fail_as_told(self, result);
            Py_CLEAR(self);
        } else if (!leave_words(arguments, words, count)) {
            Py_CLEAR(self);
        }
    }
    PyMem_Free(words);
    Py_DECREF(bytes);
    return (PyObject *)self;
}

static void close_worker(struct worker_object *self)
{
    struct kelp_worker *worker = self->worker;

    self->worker = NULL;
    self->count = 0;
    Py_BEGIN_ALLOW_THREADS
    kelp_worker_close(worker);
    Py_END_ALLOW_THREADS
}

static PyObject *worker_close(PyObject *object, PyObject *unused)
{
    struct worker_object *self = (struct worker_object *)object;

    (void)unused;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this worker");
        return NULL;
    }
    if (self->worker && self->memory_count > 0) {
        self->close_wanted = true;
        kelp_worker_stop(self->worker);
    } else {
        close_worker(self);
    }
    Py_RETURN_NONE;
}

static void worker_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    close_worker((struct worker_object *)object);
    release(object);
    Py_DECREF(type);
}

static PyObject *worker_setting(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    const char *key;
    char text[8192];

    if (!PyArg_ParseTuple(args, "s:setting", &key) || !may_call(self)) {
        return NULL;
    }
    const int result = kelp_worker_setting(self->worker, key, text, sizeof(text));
    return result == KELP_WORKER_OK ? PyUnicode_DecodeFSDefault(text) : fail_as_told(self, result);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static PyObject *worker_plan_data(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned long long train, val, test, fingerprint;

    if (!PyArg_ParseTuple(args, "KKKK:plan_data", &train, &val, &test, &fingerprint) ||
        !may_call(self)) {
        return NULL;
    }
    return none_or_fail(self, kelp_worker_plan_data(self->worker, train, val, test, fingerprint));
}

static PyObject *worker_plan_compute(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned long long answer;
    const char *kind;

    if (!PyArg_ParseTuple(args, "sK:plan_compute", &kind, &answer) || !may_call(self)) {
        return NULL;
    }
    return none_or_fail(self, kelp_worker_plan_compute(self->worker, kind, answer));
}

static PyObject *worker_plan_reasons(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    const char *reasons;

    if (!PyArg_ParseTuple(args, "s:plan_reasons", &reasons) || !may_call(self)) {
        return NULL;
    }
    return none_or_fail(self, kelp_worker_plan_reasons(self->worker, reasons));
}

static PyObject *worker_plan_program(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned long long digest;

    if (!PyArg_ParseTuple(args, "K:plan_program", &digest) || !may_call(self)) {
        return NULL;
    }
    return none_or_fail(self, kelp_worker_plan_program(self->worker, digest));
}

static PyObject *worker_plan_block(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned long long samples;

    if (!PyArg_ParseTuple(args, "K:plan_block", &samples) || !may_call(self)) {
        return NULL;
    }
    return none_or_fail(self, kelp_worker_plan_block(self->worker, samples));
}

enum { RANK_MOST = 8 };

static bool take_shape(PyObject *dims, uint64_t shape[RANK_MOST], uint32_t *ret_rank)
{
    const Py_ssize_t rank = PyTuple_Size(dims);

    if (rank < 0 || rank > RANK_MOST) {
        if (rank > RANK_MOST) {
            PyErr_Format(PyExc_ValueError, "a shape has at most %d dimensions", RANK_MOST);
        }
        return false;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        shape[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(dims, i));
        if (PyErr_Occurred()) {
            return false;
        }
    }
    *ret_rank = (uint32_t)rank;
    return true;
}

static PyObject *worker_plan_tensor(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    struct kelp_worker_tensor tensor = {.size = sizeof(tensor)};
    uint64_t shape[RANK_MOST];
    PyObject *dims;

    int held;
    if (!PyArg_ParseTuple(args, "sOIffp:plan_tensor", &tensor.name, &dims, &tensor.init,
                          &tensor.init_a, &tensor.momentum, &held) ||
        !take_shape(dims, shape, &tensor.rank) || !may_call(self)) {
        return NULL;
    }
    tensor.shape = shape;
    tensor.held = held != 0;
    return none_or_fail(self, kelp_worker_plan_tensor(self->worker, &tensor));
}

/* join() -> bool: False where the worker was stopped instead. */
static PyObject *worker_join(PyObject *object, PyObject *unused)
{
    struct worker_object *self = (struct worker_object *)object;
    int result;

    (void)unused;
    if (!may_call(self) || !begin_wait(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = kelp_worker_join(self->worker);
    Py_END_ALLOW_THREADS
    if (!end_wait(self, result)) {
        return NULL;
    }
    if (result < 0 && !self->stopped) {
        return fail_as_told(self, result);
    }
    return PyBool_FromLong(result == KELP_WORKER_OK);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static PyObject *memory_of(struct worker_object *worker, float *values, bool readonly)
{
    PyTypeObject *type = state_of(worker)->memory_type;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct memory_object *self = (struct memory_object *)alloc(type, 0);

    if (self) {
        Py_INCREF((PyObject *)worker);
        self->worker = worker;
        worker->memory_count++;
        self->values = values;
        self->bytes = (Py_ssize_t)(kelp_worker_elements(worker->worker) * sizeof(float));
        self->readonly = readonly;
    }
    return (PyObject *)self;
}

static void memory_dealloc(PyObject *object)
{
    struct memory_object *self = (struct memory_object *)object;
    struct worker_object *worker = self->worker;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    release(object);
    Py_DECREF(type);
    if (!worker) {
        return;
    }
    worker->memory_count--;
    if (worker->memory_count == 0 && worker->close_wanted) {
        close_worker(worker);
    }
    Py_DECREF((PyObject *)worker);
}

static int memory_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    const struct memory_object *self = (const struct memory_object *)object;

    return PyBuffer_FillInfo(view, object, self->values, self->bytes, self->readonly, flags);
}

/* weights(which, writable) -> Memory */
static PyObject *worker_weights(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned which;
    int writable;

    if (!PyArg_ParseTuple(args, "Ip:weights", &which, &writable) || !may_call(self)) {
        return NULL;
    }
    const float *weights = kelp_worker_weights(self->worker, which);
    if (!weights) {
        PyErr_SetString(PyExc_ValueError, "there is no such vector of weights");
        return NULL;
    }
    return memory_of(self, (float *)weights, !writable);
}

/* gradient() -> Memory of the lane's gradient */
static PyObject *worker_gradient(PyObject *object, PyObject *unused)
{
    struct worker_object *self = (struct worker_object *)object;

    (void)unused;
    if (!may_call(self)) {
        return NULL;
    }
    if (self->count == 0 || !self->lane.gradient) {
        PyErr_SetString(PyExc_ValueError, "there is no gradient without a lane of training");
        return NULL;
    }
    return memory_of(self, self->lane.gradient, false);
}

static PyObject *worker_offset(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned tensor;

    if (!PyArg_ParseTuple(args, "I:offset", &tensor) || !may_call(self)) {
        return NULL;
    }
    const uint64_t offset = kelp_worker_offset(self->worker, tensor);
    if (offset == UINT64_MAX) {
        PyErr_SetString(PyExc_ValueError, "there is no such tensor");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(offset);
}

/* ---- pieces of lanes ------------------------------------------------------------------------- */

/* The pieces of a lane draw apart from one another. */
static uint64_t piece_seed(uint64_t lane_seed, uint64_t done)
{
    const uint64_t words[2] = {lane_seed, done};

    return done == 0 ? lane_seed : kelp_worker_hash(words, sizeof(words));
}

static PyObject *describe_piece(const struct worker_object *self)
{
    const struct kelp_worker_lane *lane = &self->lane;

    return Py_BuildValue("(IKIIKKIIKdKK)", lane->kind, (unsigned long long)lane->step, lane->epoch,
                         lane->lane, (unsigned long long)lane->samples,
                         (unsigned long long)lane->step_samples, lane->weights_index,
                         lane->gradient_index,
                         (unsigned long long)piece_seed(lane->seed, self->done), lane->lr,
                         (unsigned long long)self->done, (unsigned long long)self->count);
}

/*
 * next() -> (kind, step, epoch, lane, samples of the lane, samples of the step, weights_index,
 * gradient_index, seed, lr, samples of the lane before this piece, samples of it), or None: the job
 * is over (over()), or the worker was stopped.
 */
static PyObject *worker_next(PyObject *object, PyObject *unused)
{
    struct worker_object *self = (struct worker_object *)object;
    int result;

    (void)unused;
    if (!may_call(self)) {
        return NULL;
    }
    if (self->count > 0) {
        return describe_piece(self);
    }
    if (!begin_wait(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    result = kelp_worker_next_lane(self->worker, &self->lane);
    Py_END_ALLOW_THREADS
    if (!end_wait(self, result)) {
        return NULL;
    }
    self->over = result == KELP_WORKER_OVER;
    if (result != KELP_WORKER_OK) {
        return none_or_fail(self, result);
    }
    self->done = 0;
    self->count = kelp_worker_piece(self->worker, 0);
    return describe_piece(self);
}

static bool has_piece(const struct worker_object *self)
{
    if (self->count == 0) {
        PyErr_SetString(PyExc_RuntimeError, "there is no lane");
    }
    return self->count > 0;
}

typedef int indices_function(const struct kelp_worker *worker, uint64_t first, uint64_t count,
                             uint64_t *ret_indices);

/* A bytearray of uint64: samples [first, first + count) of a lane. */
static PyObject *indices_of(struct worker_object *self, indices_function *indices, uint64_t first,
                            uint64_t count)
{
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint64_t)));

    if (!bytes) {
        return NULL;
    }
    const int result =
        indices(self->worker, first, count, (uint64_t *)(void *)PyByteArray_AsString(bytes));
    if (result != KELP_WORKER_OK) {
        Py_DECREF(bytes);
        return fail_as_told(self, result);
    }
    return bytes;
}

static PyObject *worker_indices(PyObject *object, PyObject *unused)
{
    struct worker_object *self = (struct worker_object *)object;

    (void)unused;
    if (!may_call(self) || !has_piece(self)) {
        return NULL;
    }
    return indices_of(self, kelp_worker_indices, self->done, self->count);
}

struct coming {
    indices_function *indices;
    uint32_t kind;
    uint64_t seed; /* of the lane */
    uint64_t done, count;
};

static bool add_coming(struct worker_object *self, PyObject *list, const struct coming *piece)
{
    PyObject *indices = indices_of(self, piece->indices, piece->done, piece->count);
    if (!indices) {
        return false;
    }
    PyObject *entry = Py_BuildValue("(INK)", piece->kind, indices,
                                    (unsigned long long)piece_seed(piece->seed, piece->done));
    const bool done = entry && PyList_Append(list, entry) == 0;
    Py_XDECREF(entry);
    return done;
}

/* The rest of the lane, and the pieces of those to come; at most `most` in all. */
static bool add_ahead(struct worker_object *self, PyObject *list, Py_ssize_t most)
{
    struct kelp_worker_ahead lane = {.size = sizeof(lane)};
    struct coming piece = {kelp_worker_indices, self->lane.kind, self->lane.seed,
                           self->done + self->count, 0};

    while (PyList_Size(list) < most &&
           (piece.count = kelp_worker_piece(self->worker, piece.done)) > 0) {
        if (!add_coming(self, list, &piece)) {
            return false;
        }
        piece.done += piece.count;
    }
    int result = kelp_worker_ahead_begin(self->worker);
    while (result == KELP_WORKER_OK && PyList_Size(list) < most &&
           (result = kelp_worker_ahead_next(self->worker, &lane)) == KELP_WORKER_OK) {
        piece = (struct coming){kelp_worker_ahead_indices, lane.kind, lane.seed, 0, 0};
        while (PyList_Size(list) < most &&
               (piece.count = kelp_worker_ahead_piece(self->worker, piece.done)) > 0) {
            if (!add_coming(self, list, &piece)) {
                return false;
            }
            piece.done += piece.count;
        }
    }
    if (result < 0) {
        (void)fail_as_told(self, result);
    }
    return result >= 0;
}

/* ahead(most) -> [(kind, indices, seed)] of the pieces that probably come next */
static PyObject *worker_ahead(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    Py_ssize_t most;

    if (!PyArg_ParseTuple(args, "n:ahead", &most) || !may_call(self) || !has_piece(self)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    if (list && !add_ahead(self, list, most)) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *worker_add_named(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    const char *name;
    double value;

    if (!PyArg_ParseTuple(args, "sd:add_named", &name, &value) || !may_call(self)) {
        return NULL;
    }
    return none_or_fail(self, kelp_worker_add_named(self->worker, name, value));
}

static PyObject *worker_add(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned sum;
    double value;

    if (!PyArg_ParseTuple(args, "Id:add", &sum, &value) || !may_call(self)) {
        return NULL;
    }
    return none_or_fail(self, kelp_worker_add(self->worker, sum, value));
}

/* predict(values, width): float32 of the piece, `width` for each of its samples. */
static PyObject *worker_predict(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned long long width;
    Py_buffer values;

    if (!PyArg_ParseTuple(args, "y*K:predict", &values, &width)) {
        return NULL;
    }
    if (!may_call(self) || !has_piece(self)) {
        PyBuffer_Release(&values);
        return NULL;
    }
    if (width > UINT64_MAX / self->count / sizeof(float) ||
        (uint64_t)values.len != self->count * width * sizeof(float)) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are not %llu float32 for each of %llu samples",
                     values.len, width, (unsigned long long)self->count);
        PyBuffer_Release(&values);
        return NULL;
    }
    const int result =
        kelp_worker_predict(self->worker, self->done, self->count, values.buf, width);
    PyBuffer_Release(&values);
    return none_or_fail(self, result);
}

/* submit(): the piece is complete, and with the last one the lane. */
static PyObject *worker_submit(PyObject *object, PyObject *unused)
{
    struct worker_object *self = (struct worker_object *)object;
    int result = KELP_WORKER_OK;

    (void)unused;
    if (!may_call(self) || !has_piece(self)) {
        return NULL;
    }
    self->done += self->count;
    self->count = kelp_worker_piece(self->worker, self->done);
    if (self->count == 0) {
        self->busy = true;
        Py_BEGIN_ALLOW_THREADS
        result = kelp_worker_submit(self->worker);
        Py_END_ALLOW_THREADS
        self->busy = false;
    }
    return none_or_fail(self, result);
}

/* poll() -> bool: is the lane still wanted? */
static PyObject *worker_poll(PyObject *object, PyObject *unused)
{
    struct worker_object *self = (struct worker_object *)object;

    (void)unused;
    if (!may_call(self)) {
        return NULL;
    }
    const int result = kelp_worker_poll(self->worker);
    return result < 0 ? fail_as_told(self, result) : PyBool_FromLong(result == KELP_WORKER_OK);
}

static PyObject *worker_spent_reading(PyObject *object, PyObject *args)
{
    struct worker_object *self = (struct worker_object *)object;
    unsigned long long us;

    if (!PyArg_ParseTuple(args, "K:spent_reading", &us) || !may_call(self)) {
        return NULL;
    }
    kelp_worker_spent_reading(self->worker, us);
    Py_RETURN_NONE;
}

static PyObject *worker_over(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(((const struct worker_object *)object)->over);
}

/* stop(): the loop ends once what was submitted is used. */
static PyObject *worker_stop(PyObject *object, PyObject *unused)
{
    struct worker_object *self = (struct worker_object *)object;

    (void)unused;
    if (self->worker) {
        self->stopped = true;
        kelp_worker_stop(self->worker);
    }
    Py_RETURN_NONE;
}

/* interrupt(): of any thread; a call that waits ends soon, as with kelp_worker_stop(). */
static PyObject *worker_interrupt(PyObject *object, PyObject *unused)
{
    const struct worker_object *self = (const struct worker_object *)object;

    (void)unused;
    if (self->waiting && self->worker) {
        kelp_worker_stop(self->worker);
    }
    Py_RETURN_NONE;
}

/* ---- the module ------------------------------------------------------------------------------ */

static PyObject *module_hash(PyObject *module, PyObject *args)
{
    Py_buffer bytes;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*:hash", &bytes)) {
        return NULL;
    }
    const uint64_t hash = kelp_worker_hash(bytes.buf, (size_t)bytes.len);
    PyBuffer_Release(&bytes);
    return PyLong_FromUnsignedLongLong(hash);
}

static PyObject *module_version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(kelp_worker_version());
}

static PyMethodDef worker_methods[] = {
    {"close", worker_close, METH_NOARGS, NULL},
    {"setting", worker_setting, METH_VARARGS, NULL},
    {"plan_data", worker_plan_data, METH_VARARGS, NULL},
    {"plan_compute", worker_plan_compute, METH_VARARGS, NULL},
    {"plan_reasons", worker_plan_reasons, METH_VARARGS, NULL},
    {"plan_program", worker_plan_program, METH_VARARGS, NULL},
    {"plan_block", worker_plan_block, METH_VARARGS, NULL},
    {"plan_tensor", worker_plan_tensor, METH_VARARGS, NULL},
    {"join", worker_join, METH_NOARGS, NULL},
    {"weights", worker_weights, METH_VARARGS, NULL},
    {"gradient", worker_gradient, METH_NOARGS, NULL},
    {"offset", worker_offset, METH_VARARGS, NULL},
    {"next", worker_next, METH_NOARGS, NULL},
    {"indices", worker_indices, METH_NOARGS, NULL},
    {"ahead", worker_ahead, METH_VARARGS, NULL},
    {"add_named", worker_add_named, METH_VARARGS, NULL},
    {"add", worker_add, METH_VARARGS, NULL},
    {"predict", worker_predict, METH_VARARGS, NULL},
    {"submit", worker_submit, METH_NOARGS, NULL},
    {"poll", worker_poll, METH_NOARGS, NULL},
    {"spent_reading", worker_spent_reading, METH_VARARGS, NULL},
    {"over", worker_over, METH_NOARGS, NULL},
    {"stop", worker_stop, METH_NOARGS, NULL},
    {"interrupt", worker_interrupt, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot worker_slots[] = {
    {Py_tp_new, worker_new},
    {Py_tp_dealloc, worker_dealloc},
    {Py_tp_methods, worker_methods},
    {0, NULL},
};

static PyType_Spec worker_spec = {.name = "kelp._kelp.Worker",
                                  .basicsize = sizeof(struct worker_object),
                                  .flags = Py_TPFLAGS_DEFAULT,
                                  .slots = worker_slots};

static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_getbuffer},
    {0, NULL},
};

static PyType_Spec memory_spec = {.name = "kelp._kelp.Memory",
                                  .basicsize = sizeof(struct memory_object),
                                  .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  .slots = memory_slots};

/* An exception of kelp with the exit status of a program that ends by it. */
static PyObject *add_exception(PyObject *module, const char *name, const char *full_name,
                               const char *text, int result)
{
    PyObject *status = Py_BuildValue("{s:i}", "exit_status", kelp_worker_exit_status(result));
    PyObject *exception =
        status ? PyErr_NewExceptionWithDoc(full_name, text, PyExc_RuntimeError, status) : NULL;

    Py_XDECREF(status);
    if (exception && PyModule_AddObjectRef(module, name, exception) < 0) {
        Py_CLEAR(exception);
    }
    return exception;
}

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);

    if (type && PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_CLEAR(type);
    }
    return (PyTypeObject *)type;
}

static int module_exec(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);

    state->invalid = add_exception(module, "InvalidError", "kelp.InvalidError",
                                   "The call, the job or the data is wrong: tried again, it fails "
                                   "again.",
                                   KELP_WORKER_INVALID);
    state->failed = add_exception(module, "FailedError", "kelp.FailedError",
                                  "Memory, a disk or the network failed: started again, the worker "
                                  "may go on.",
                                  KELP_WORKER_FAILED);
    state->worker_type = add_type(module, &worker_spec);
    state->memory_type = add_type(module, &memory_spec);
    return state->invalid && state->failed && state->worker_type && state->memory_type ? 0 : -1;
}

static int module_clear(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);

    Py_CLEAR(state->invalid);
    Py_CLEAR(state->failed);
    Py_CLEAR(state->worker_type);
    Py_CLEAR(state->memory_type);
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    const struct module_state *state = PyModule_GetState(module);

    Py_VISIT(state->invalid);
    Py_VISIT(state->failed);
    Py_VISIT(state->worker_type);
    Py_VISIT(state->memory_type);
    return 0;
}

static PyMethodDef module_functions[] = {
    {"hash", module_hash, METH_VARARGS, NULL},
    {"version", module_version, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {.m_base = PyModuleDef_HEAD_INIT,
                                               .m_name = "_kelp",
                                               .m_size = sizeof(struct module_state),
                                               .m_methods = module_functions,
                                               .m_slots = module_slots,
                                               .m_traverse = module_traverse,
                                               .m_clear = module_clear};

PyMODINIT_FUNC PyInit__kelp(void);
PyMODINIT_FUNC PyInit__kelp(void)
{
    return PyModuleDef_Init(&module_definition);
}
