#include "mock.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RUNTIME_EXCEPTION = 6, PAGE = 4096, MOST_THREADS = 16 };
struct faults calls, allocations, interrupts;
struct books books;
const char *failed_call;
size_t largest_tensor = 1 << 22, largest_block = 1 << 28;
int pool = 1;
long lost_tiles;

#define COUNTED(counter, more) __atomic_add_fetch(&(counter), more, __ATOMIC_RELAXED)

int fails(struct faults *faults) {
    long number = COUNTED(faults->count, 1);
    return faults->at && (number == faults->at || (faults->is_lasting && number > faults->at));
}

/* Memory. The linker leads all allocations of the program here (--wrap); those of the mock itself are __real ones. */
void *__real_malloc(size_t), *__real_calloc(size_t, size_t), *__real_realloc(void *, size_t);
void __real_free(void *);
void *__wrap_malloc(size_t), *__wrap_calloc(size_t, size_t), *__wrap_realloc(void *, size_t);
void __wrap_free(void *);

static void *counted(void *block) { return COUNTED(books.blocks, block != 0), block; }
static int lacks(size_t size) { return fails(&allocations) || size > largest_block; }
void *__wrap_malloc(size_t size) { return lacks(size) ? 0 : counted(__real_malloc(size)); }
void *__wrap_calloc(size_t n, size_t size) { return lacks(n * size) ? 0 : counted(__real_calloc(n, size)); }
void *__wrap_realloc(void *block, size_t size) {
    if (lacks(size)) return 0;
    COUNTED(books.blocks, -(block != 0));
    return counted(__real_realloc(block, size));
}
void __wrap_free(void *block) { COUNTED(books.blocks, -(block != 0)), __real_free(block); }

/* Statuses. As ONNX Runtime's, they need memory of their own. */
struct error {
    int code;
    char message[4200];
};
static status create_status(int code, const char *message) {
    struct error *error = malloc(sizeof *error);
    if (!error) return 0;
    error->code = code, COUNTED(books.statuses, 1);
    snprintf(error->message, sizeof error->message, "%s", message);
    return error;
}
static int error_code(const void *error) { return ((const struct error *)error)->code; }
static void release_status(status error) {
    if (error) COUNTED(books.statuses, -1);
    free(error);
}
const char *message_of(status error) { return error ? ((struct error *)error)->message : ""; }

/* The error for a call that fails on demand; there is memory for it. */
static status injected(const char *function) {
    char message[128];
    struct error *error = counted(__real_calloc(1, sizeof *error));
    snprintf(message, sizeof message, "injected into %s", failed_call = function);
    error->code = RUNTIME_EXCEPTION, COUNTED(books.statuses, 1);
    return strcpy(error->message, message), error;
}
#define MAY_FAIL                                                                                                       \
    if (fails(&calls)) return injected(__func__)

/* In a function of ONNX Runtime that allocates. Where there is no memory for the status either, it reports success. */
#define NEEDS_MEMORY                                                                                                   \
    if (fails(&calls)) return injected(__func__);                                                                      \
    if (fails(&allocations)) return create_status(RUNTIME_EXCEPTION, "no room (std::bad_alloc)")

/* Tensors. Their pages are kept for the next ones, as long as there is one thread: a mutex would hide races. */
struct kept {
    struct kept *next;
};
static struct kept *kept[64]; /* by number of pages */

/* So many pages, and an unreadable one; 0 without memory. They are 0 if they are new. */
static void *take_pages(size_t count) {
    struct kept *pages = count < COUNT(kept) && pool == 1 ? kept[count] : 0;
    if (pages) return kept[count] = pages->next, pages;
    size_t readable = count * PAGE;
    char *made = mmap(0, readable + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return 0;
    if (!mprotect(made + readable, PAGE, PROT_NONE)) return made;
    return munmap(made, readable + PAGE), NULL;
}
static void give_pages(void *pages, size_t count) {
    if (!count || count >= COUNT(kept) || pool > 1) munmap(pages, (count + 1) * PAGE);
    else ((struct kept *)pages)->next = kept[count], kept[count] = pages;
}
int make_value(struct value *value, int type, const int64_t *sizes, size_t rank) {
    size_t bytes = type == STRINGS ? sizeof(struct string) : type > 0 && type < TYPES ? item_size[type] : 0;
    if (!bytes || rank > MOST_DIMENSIONS) return 0;
    for (size_t a = 0; a < rank; a++) {
        if (sizes[a] < 0 || (sizes[a] && bytes > largest_tensor / (uint64_t)sizes[a])) return 0;
        bytes *= (size_t)sizes[a];
    }
    size_t count = bytes ? (bytes + PAGE - 1) / PAGE : 1;
    char *pages = take_pages(count);
    if (!pages) return 0;
    *value = (struct value){{.type = type, .rank = rank}, pages + (count * PAGE - bytes), pages, bytes, count};
    if (rank) memcpy(value->info.sizes, sizes, rank * sizeof *sizes);
    if (type == STRINGS) memset(value->data, 0, bytes);
    return 1;
}
void unmake_value(struct value *value) {
    struct string *strings = value->data;
    for (size_t k = 0; strings && value->info.type == STRINGS && k < value->bytes / sizeof *strings; k++)
        __real_free(strings[k].at);
    if (value->pages) give_pages(value->pages, value->page_count);
    value->pages = value->data = 0;
}

static struct info *new_info(const struct info *from) {
    struct info *info = __real_calloc(1, sizeof *info);
    if (from) *info = *from;
    return COUNTED(books.infos, 1), info;
}
static void release_info(void *info) { COUNTED(books.infos, -(info != 0)), __real_free(info); }
static void release_value(void *value) {
    if (value) COUNTED(books.values, -1), unmake_value(value);
    __real_free(value);
}
static status mutable_data(void *value, void **out) {
    MAY_FAIL;
    return *out = ((struct value *)value)->data, NULL;
}
/* Strings. */
char *new_content(size_t size) { return __real_calloc(1, size + !size); } /* it is not 0 */
static status string_bytes(const void *value, size_t *out) {
    MAY_FAIL;
    const struct value *from = value;
    const struct string *strings = from->data;
    for (size_t k = *out = 0; k < from->bytes / sizeof *strings; k++) *out += strings[k].size;
    return 0;
}
static status string_content(const void *value, char *out, size_t room, size_t *offsets, size_t count) {
    MAY_FAIL;
    const struct value *from = value;
    const struct string *strings = from->data;
    if (count != from->bytes / sizeof *strings) return create_status(INVALID_ARGUMENT, "offsets of another number");
    for (size_t k = 0, at = 0; k < count; at += strings[k++].size) {
        if (strings[k].size > room - at) return create_status(INVALID_ARGUMENT, "output buffer is too small");
        if (strings[k].size) memcpy(out + at, strings[k].at, strings[k].size);
        offsets[k] = at;
    }
    return 0;
}
static status string_buffer(void *value, size_t k, size_t size, char **out) {
    NEEDS_MEMORY;
    struct string *string = (struct string *)((struct value *)value)->data + k;
    __real_free(string->at);
    *string = (struct string){size, new_content(size)};
    return *out = string->at, NULL;
}
static status cast_type_info(void *info, void **out) {
    MAY_FAIL;
    return *out = info, NULL;
}
static status create_info(void **out) {
    NEEDS_MEMORY;
    return *out = new_info(0), NULL;
}
static status tensor_info(const void *value, void **out) {
    NEEDS_MEMORY;
    return *out = new_info(&((const struct value *)value)->info), NULL;
}
static status set_type(void *info, int type) {
    MAY_FAIL;
    return ((struct info *)info)->type = type, NULL;
}
static status set_sizes(void *info, const int64_t *sizes, size_t count) {
    MAY_FAIL;
    struct info *to = info;
    if (count > MOST_DIMENSIONS) abort();
    for (to->rank = 0; to->rank < count; to->rank++) to->sizes[to->rank] = sizes[to->rank];
    return 0;
}
static status set_names(void *info, const char **names, size_t count) {
    MAY_FAIL;
    for (size_t a = 0; a < count; a++) snprintf(((struct info *)info)->names[a], 48, "%s", names[a]);
    return 0;
}
static status get_type(const void *info, int *out) {
    MAY_FAIL;
    return *out = ((const struct info *)info)->type, NULL;
}
static status get_rank(const void *info, size_t *out) {
    MAY_FAIL;
    return *out = ((const struct info *)info)->rank, NULL;
}
static status get_sizes(const void *info, int64_t *out, size_t count) {
    MAY_FAIL;
    for (size_t a = 0; a < count; a++) out[a] = ((const struct info *)info)->sizes[a];
    return 0;
}
static status get_names(const void *info, const char **out, size_t count) {
    MAY_FAIL;
    for (size_t a = 0; a < count; a++) out[a] = ((const struct info *)info)->names[a];
    return 0;
}
static status type_and_shape(const void *value, int *type, const int64_t **sizes, size_t *rank) {
    MAY_FAIL;
    const struct info *info = &((const struct value *)value)->info;
    return *type = info->type, *sizes = info->sizes, *rank = info->rank, NULL;
}
static status allocator(void **out) {
    MAY_FAIL;
    return *out = 0, NULL;
}

/* Attributes. The codes of errors are those of ONNX Runtime 1.20.1 and 1.32.0. */
static const struct given *given(const void *info, const char *name) {
    const struct node *node = info;
    for (size_t k = 0; k < node->attribute_count; k++)
        if (!strcmp(node->attributes[k].name, name)) return &node->attributes[k];
    return 0;
}
static status hand_over(const char *content, size_t bytes, size_t count, void *out, size_t *room) {
    if (out && *room < count) return create_status(INVALID_ARGUMENT, "Result buffer is not large enough");
    if (out && bytes) memcpy(out, content, bytes);
    return *room = count, NULL;
}
static status read_list(const void *info, const char *name, int kind, size_t item, void *out, size_t *room) {
    const struct given *a = given(info, name);
    if (!a) return create_status(FAIL, "No attribute with this name is defined.");
    size_t count = a->kind == kind ? a->count : 0; /* a list of another kind is an empty one */
    return hand_over(a->content, count * item, count, out, room);
}
static status read_number(const void *info, const char *name, int kind, size_t item, void *out) {
    const struct given *a = given(info, name);
    if (!a || a->kind != kind) return create_status(FAIL, "Attribute name and type don't match");
    return memcpy(out, a->content, item), NULL;
}
static status attribute_float(const void *info, const char *name, float *out) {
    MAY_FAIL;
    return read_number(info, name, FLOAT, sizeof *out, out);
}
static status attribute_int(const void *info, const char *name, int64_t *out) {
    MAY_FAIL;
    return read_number(info, name, INT, sizeof *out, out);
}
static status attribute_floats(const void *info, const char *name, float *out, size_t *size) {
    NEEDS_MEMORY;
    return read_list(info, name, FLOATS, sizeof *out, out, size);
}
static status attribute_ints(const void *info, const char *name, int64_t *out, size_t *size) {
    NEEDS_MEMORY;
    return read_list(info, name, INTS, sizeof *out, out, size);
}
static status attribute_string(const void *info, const char *name, char *out, size_t *size) {
    NEEDS_MEMORY;
    const struct given *a = given(info, name);
    if (!a || a->kind != STRING) return create_status(FAIL, "Attribute name and type don't match");
    status error = hand_over(a->content, a->count, a->count + 1, out, size);
    if (out && !error) out[a->count] = 0;
    return error;
}
static status attribute_tensor(const void *info, const char *name, void *unused, void **out) {
    NEEDS_MEMORY;
    const struct given *a = given(info, name);
    (void)unused;
    if (!a || a->kind != TENSOR) return create_status(FAIL, "Attribute name and type don't match");
    struct value *copy = __real_calloc(1, sizeof *copy);
    const struct value *from = &a->tensor;
    if (!make_value(copy, from->info.type, from->info.sizes, from->info.rank)) abort();
    if (from->bytes) memcpy(copy->data, from->data, from->bytes);
    struct string *strings = copy->data;
    for (size_t k = 0; from->info.type == STRINGS && k < from->bytes / sizeof *strings; k++) {
        const char *content = strings[k].at;
        strings[k].at = memcpy(new_content(strings[k].size), content, strings[k].size);
    }
    return COUNTED(books.values, 1), *out = copy, NULL;
}
static status inferred_attribute(const void *context, const char *name, const void **out) {
    MAY_FAIL;
    *out = given(((const struct context *)context)->node, name);
    return *out ? 0 : create_status(INVALID_ARGUMENT, "Attribute does not exist.");
}
static status read_attribute(const void *attribute, int type, void *out, size_t room, size_t *size) {
    MAY_FAIL;
    static const int kinds[] = {-1, INT, INTS, FLOAT, FLOATS, STRING};
    static const size_t items[] = {0, sizeof(int64_t), sizeof(int64_t), sizeof(float), sizeof(float), 1};
    const struct given *a = attribute;
    int is_other = a->kind != kinds[type], is_list = type == 2 || type == 4 || type == 5;
    size_t bytes = is_other && is_list ? 0 : (is_list ? a->count : 1) * items[type];
    *size = bytes;
    if (is_other && !is_list) return create_status(INVALID_ARGUMENT, "Attribute has no such value.");
    if (bytes > room) return create_status(INVALID_ARGUMENT, "Size of data not large enough");
    if (bytes) memcpy(out, a->content, bytes);
    return 0;
}

/* A node when its kernel is made. */
static status node_name(const void *info, char *out, size_t *size) {
    MAY_FAIL;
    const struct node *node = info;
    return hand_over(node->name, strlen(node->name) + 1, strlen(node->name) + 1, out, size);
}
static status node_input_count(const void *info, size_t *out) {
    MAY_FAIL;
    return *out = ((const struct node *)info)->input_count, NULL;
}
static status node_input_name(const void *info, size_t k, char *out, size_t *size) {
    MAY_FAIL;
    const char *name = ((const struct node *)info)->inputs[k].info.type ? "x" : "";
    return hand_over(name, strlen(name) + 1, strlen(name) + 1, out, size);
}
static status node_input_type(const void *info, size_t k, void **out) {
    NEEDS_MEMORY;
    return *out = new_info(&((const struct node *)info)->known[k]), NULL;
}
static status constant_input(const void *info, size_t k, int *is_constant, void **out) {
    MAY_FAIL;
    const struct node *node = info;
    *is_constant = node->inputs[k].info.type && node->is_constant[k];
    return *out = *is_constant ? (void *)&node->inputs[k] : 0, NULL;
}

/* A node that runs, and shape inference. */
static status context_input_count(const void *context, size_t *out) {
    MAY_FAIL;
    return *out = ((const struct context *)context)->node->input_count, NULL;
}
static status context_input(const void *context, size_t k, void **out) {
    MAY_FAIL;
    const struct context *c = context;
    const struct value *value = c->node->is_constant[k] ? &c->node->inputs[k] : &c->inputs[k];
    return *out = value->info.type ? (void *)value : 0, NULL;
}
static status context_output(void *context, size_t k, const int64_t *sizes, size_t rank, void **out) {
    NEEDS_MEMORY;
    struct context *c = context;
    unmake_value(&c->outputs[k]);
    if (!make_value(&c->outputs[k], (int)c->overload->types[MAX_INPUTS + k], sizes, rank))
        return create_status(RUNTIME_EXCEPTION, "Failed to allocate memory for requested buffer");
    if (c->outputs[k].info.type != STRINGS) memset(c->outputs[k].data, 0xA5, c->outputs[k].bytes);
    return *out = &c->outputs[k], NULL;
}
struct loop { /* a call's tiles, which threads take from the last one on: any order is right */
    void (*tile)(void *, size_t);
    void *work;
    long left;
};
static void *take_tiles(void *loop_of_call) {
    struct loop *loop = loop_of_call;
    for (long left; (left = COUNTED(loop->left, -1)) >= 0;) loop->tile(loop->work, (size_t)left);
    return 0;
}
static status parallel_for(const void *context, void (*tile)(void *, size_t), size_t total, size_t batches,
                           void *work) {
    NEEDS_MEMORY;
    struct loop loop = {tile, work, (long)total - lost_tiles};
    pthread_t threads[MOST_THREADS];
    int count = 0;
    (void)context, (void)batches;
    while (count < pool - 1 && !pthread_create(&threads[count], 0, take_tiles, &loop)) count++;
    take_tiles(&loop);
    while (count) pthread_join(threads[--count], 0);
    return 0;
}
static status inferred_input(void *context, size_t k, const void **out) {
    MAY_FAIL;
    return *out = &((struct context *)context)->node->known[k], NULL;
}
static status inferred_output(void *context, size_t k, void *info) {
    MAY_FAIL;
    return ((struct context *)context)->reported[k] = *(struct info *)info, NULL;
}

/* A session's options. */
static status create_domain(const char *name, void **out) {
    NEEDS_MEMORY;
    struct domain_of_options *domain = __real_calloc(1, sizeof *domain);
    snprintf(domain->name, sizeof domain->name, "%s", name);
    return COUNTED(books.domains, 1), *out = domain, NULL;
}
static void release_domain(void *domain) { COUNTED(books.domains, -(domain != 0)), __real_free(domain); }
static status add_custom_op(void *domain, void *custom_op) {
    MAY_FAIL;
    struct domain_of_options *to = domain;
    if (to->count == MOST_CUSTOM_OPS) abort();
    return to->custom_ops[to->count++] = custom_op, NULL;
}
static status add_domain(void *options, void *domain) {
    MAY_FAIL;
    struct options *to = options;
    return to->domains[to->domain_count++] = domain, NULL;
}
static const char *entry(const struct options *options, const char *key) {
    for (size_t k = 0; k < options->entry_count; k++)
        if (!strcmp(options->entries[k].key, key)) return options->entries[k].value;
    return 0;
}
static status add_entry(void *options, const char *key, const char *value) {
    MAY_FAIL;
    struct options *to = options;
    snprintf(to->entries[to->entry_count].key, sizeof to->entries->key, "%s", key);
    snprintf(to->entries[to->entry_count++].value, sizeof to->entries->value, "%s", value);
    return 0;
}
static status has_entry(const void *options, const char *key, int *out) {
    MAY_FAIL;
    return *out = entry(options, key) != 0, NULL;
}
static status get_entry(const void *options, const char *key, char *out, size_t *size) {
    MAY_FAIL;
    const char *value = entry(options, key);
    return value ? hand_over(value, strlen(value) + 1, strlen(value) + 1, out, size) : create_status(FAIL, "no entry");
}
struct options *new_options(void) { return __real_calloc(1, sizeof(struct options)); }
void release_options(struct options *options) {
    for (size_t k = 0; k < options->domain_count; k++) release_domain(options->domains[k]);
    __real_free(options);
}

#define AT(offset) [(offset) / 8]
static const void *const table[] = {
    AT(0) = create_status,          AT(8) = error_code,           AT(208) = create_domain,
    AT(216) = add_custom_op,        AT(224) = add_domain,         AT(408) = mutable_data,
    AT(424) = string_bytes,         AT(432) = string_content,     AT(440) = cast_type_info,
    AT(456) = create_info,          AT(464) = set_type,           AT(472) = set_sizes,
    AT(480) = get_type,             AT(488) = get_rank,           AT(496) = get_sizes,
    AT(504) = get_names,            AT(520) = tensor_info,        AT(624) = allocator,
    AT(680) = attribute_float,      AT(688) = attribute_int,      AT(696) = attribute_string,
    AT(704) = context_input_count,  AT(720) = context_input,      AT(728) = context_output,
    AT(744) = release_status,       AT(768) = release_value,      AT(784) = release_info,
    AT(792) = release_info,         AT(808) = release_domain,     AT(1040) = add_entry,
    AT(1296) = attribute_floats,    AT(1304) = attribute_ints,    AT(1840) = node_input_count,
    AT(1856) = node_input_name,     AT(1872) = node_input_type,   AT(1888) = attribute_tensor,
    AT(1896) = has_entry,           AT(1904) = get_entry,         AT(1952) = node_name,
    AT(1992) = constant_input,      AT(2016) = string_buffer,     AT(2136) = context_input_count,
    AT(2144) = inferred_input,      AT(2152) = inferred_attribute, AT(2160) = inferred_output,
    AT(2168) = set_names,           AT(2176) = read_attribute,    AT(2192) = parallel_for,
    AT(3312) = type_and_shape,
};
static void *const *get_api(uint32_t version) { return (void)version, (void *const *)table; }
static const char *get_version(void) {
    const char *version = getenv("MOCK_VERSION");
    return version ? version : "1.24.0";
}
const struct api_base mock = {get_api, get_version};
