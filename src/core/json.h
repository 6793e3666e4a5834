/* Reading JSON, by Jansson, which is opened at run time (libjansson.so.4; REPRISE_LIBJANSSON names another file): headers of
   safetensors and their indices. A document is read whole; its values are borrowed from it. Nothing is believed of a document:
   numbers that are no integers, strings with a NUL, names that come twice, nesting deeper than 64 are refused while parsing. */
#ifndef RP_CORE_JSON_H
#define RP_CORE_JSON_H

#include "core/error.h"

typedef struct rp__json rp__json; /* a value */

/* NULL and a sticky error that says where; `what` names the document in it. Given back with rp__json_free. */
rp__json *rp__json_parse(const char *text, size_t bytes, const char *what);
void rp__json_free(rp__json *document);

bool rp__json_is_object(const rp__json *v);                     /* of all of these: v NULL is no value of any kind */
size_t rp__json_count(const rp__json *v);                       /* of an object's members; 0: none, or no object */
rp__json *rp__json_member(const rp__json *v, const char *name); /* NULL: none */
/* The next member, *at NULL at first; false behind the last one, and for what is no object. */
bool rp__json_next(rp__json *v, void **at, const char **name, rp__json **value);
bool rp__json_array(const rp__json *v, size_t *n);
rp__json *rp__json_item(const rp__json *v, size_t i);
bool rp__json_integer(const rp__json *v, int64_t *out);
const char *rp__json_string(const rp__json *v); /* NULL: it is none */
bool rp__json_bool(const rp__json *v, bool *out);
bool rp__json_is_null(const rp__json *v); /* the word null */

size_t rp__json_report(char *text, size_t size); /* of Jansson, for rp_doctor */

#endif
